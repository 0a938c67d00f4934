//! Applies the faults of a plan, two at a time, and measures that each had an effect.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::Result;
use crate::crew::Crew;
use crate::log::{Nanos, now};
use crate::plan::{Fault, Plan, Planned};
use crate::pooler::Pooler;
use crate::screen::{Colour, Screen};
use crate::server::Server;

mod clients;
mod network;
mod processes;
mod settings;

/// How many faults there may be at the same time.
const PARALLEL: usize = 2;
/// For kinds that had no effect among others, how often and for how long they come again alone.
const AGAIN: usize = 3;
const MAKE_UP: Duration = Duration::from_secs(30);

/// A fault that took place.
#[derive(Clone, Debug)]
pub(crate) struct AppliedFault {
    pub(crate) fault: Fault,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// How much of what it aims at was hit; zero is none.
    pub(crate) effect: u64,
    /// The place of the program that it concerns; `None` if that may be any.
    pub(crate) place: Option<usize>,
}

/// What a fault did.
#[derive(Debug)]
pub(crate) struct Effect {
    count: u64,
    text: String,
    /// The place of the program that it concerned, if it was one.
    place: Option<usize>,
}

impl Effect {
    fn new(count: u64, text: impl Into<String>) -> Self {
        Self {
            count,
            text: text.into(),
            place: None,
        }
    }

    fn of(self, place: usize) -> Self {
        let place = Some(place);
        Self { place, ..self }
    }
}

/// A fault that is being applied.
struct Draw {
    random: Rng,
    time: Duration,
    /// Which of those that work at the same time applies it.
    place: usize,
}

pub(crate) struct Conductor<'a> {
    pub(crate) server: &'a Server,
    pub(crate) crew: &'a Crew,
    pub(crate) pooler: Option<Mutex<Pooler>>,
    screen: &'a Screen,
    plan: Mutex<Plan>,
    applied: Mutex<Vec<AppliedFault>>,
    /// What is set for the whole server, one fault at a time sets: it takes back what others have set.
    setting: Mutex<()>,
}

impl<'a> Conductor<'a> {
    pub(crate) fn new(
        server: &'a Server,
        crew: &'a Crew,
        pooler: Option<Pooler>,
        screen: &'a Screen,
        plan: Plan,
    ) -> Self {
        Self {
            server,
            crew,
            pooler: pooler.map(Mutex::new),
            screen,
            plan: Mutex::new(plan),
            applied: Mutex::default(),
            setting: Mutex::default(),
        }
    }

    /// Applies faults for a time, and answers when the last had ended.
    pub(crate) fn disturb(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        thread::scope(|scope| {
            let threads =
                (0..PARALLEL).map(|place| scope.spawn(move || self.apply_in_turn(place, end)));
            let threads: Vec<_> = threads.collect();
            let begun = Instant::now();
            // Programs end with the thread that starts them, so that it has to be this one.
            let wait = |thread: ScopedJoinHandle<'_, ()>| -> Result<()> {
                while !thread.is_finished() {
                    thread::sleep(Duration::from_millis(200));
                    self.crew.look()?;
                    self.show(begun.elapsed(), time);
                }
                Ok(thread.join().map_err(|_| "the conductor panicked")?)
            };
            for thread in threads {
                wait(thread)?;
            }
            wait(scope.spawn(|| self.make_up()))?;
            self.screen.status(String::new());
            Ok(())
        })
    }

    /// Has kinds that had no effect yet come again. No other fault is in their way now.
    fn make_up(&self) {
        let end = Instant::now() + MAKE_UP;
        let faults = self.plan().faults().to_vec();
        for _ in 0..AGAIN {
            for fault in &faults {
                let applied = self.applied();
                let mut hits = applied.iter().filter(|it| it.effect > 0);
                if hits.all(|it| it.fault != *fault) && Instant::now() < end {
                    let planned = self.plan().draw_again(*fault);
                    self.run(0, &planned);
                }
            }
        }
    }

    fn show(&self, elapsed: Duration, time: Duration) {
        let applied = self.applied();
        let hit = applied.iter().filter(|it| it.effect > 0).count();
        let part = (elapsed.as_secs_f64() / time.as_secs_f64()).min(1.0);
        let filled = (0..40u8)
            .filter(|cell| f64::from(*cell) < part * 40.0)
            .count();
        self.screen.status(format!(
            "  [{}{}] {:.0} of {:.0} s, {hit} faults",
            "#".repeat(filled),
            ".".repeat(40 - filled),
            elapsed.as_secs_f64(),
            time.as_secs_f64()
        ));
    }

    pub(crate) fn applied(&self) -> Vec<AppliedFault> {
        let applied = self.applied.lock();
        applied.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn setting(&self) -> MutexGuard<'_, ()> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply_in_turn(&self, place: usize, end: Instant) {
        loop {
            let Some(mut planned) = self.plan().next() else {
                return;
            };
            thread::sleep(planned.pause);
            let left = end.saturating_duration_since(Instant::now());
            if left < planned.fault.least() {
                return;
            }
            planned.time = planned.time.min(left);
            self.run(place, &planned);
        }
    }

    fn run(&self, place: usize, planned: &Planned) {
        let fault = planned.fault;
        let mut draw = Draw {
            random: Rng::with_seed(planned.seed),
            time: planned.time,
            place,
        };
        let from = now();
        let outcome = self.apply(fault, &mut draw);
        let to = now();
        // Another fault may be in the way of this one.
        let not_applied = |error| Effect::new(0, format!("not applied: {error}"));
        let Effect { count, text, place } = outcome.unwrap_or_else(not_applied);
        let colour = if count > 0 {
            Colour::Yellow
        } else {
            Colour::Grey
        };
        let name = self.screen.paint(colour, &format!("{:<16}", fault.name()));
        self.screen.event(&format!("{name} {text}"));
        let mut all = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(AppliedFault {
            fault,
            from,
            to,
            effect: count,
            place,
        });
        drop(all);
        if count == 0 {
            self.plan().again(fault);
        }
    }

    fn apply(&self, fault: Fault, draw: &mut Draw) -> Result<Effect> {
        match fault {
            Fault::Kill => self.kill(draw),
            Fault::Stop => self.stop(draw),
            Fault::KillBackend => self.kill_backend(draw),
            Fault::Terminate => self.terminate(draw),
            Fault::Cancel => self.cancel(draw),
            Fault::Crash => self.crash(draw),
            Fault::FreezeSessions => self.freeze_sessions(draw),
            Fault::FreezeServer => self.freeze_server(draw),
            Fault::CutBefore
            | Fault::CutAfter
            | Fault::Stall
            | Fault::Delay
            | Fault::Dribble
            | Fault::HalfOpen => Ok(self.weather(fault, draw)),
            Fault::Unplug => self.unplug(draw),
            Fault::PausePooler => self.pause_pooler(draw),
            Fault::RestartPooler => self.restart_pooler(draw),
            Fault::FullLocks => self.full_locks(draw),
            Fault::FullConnections => self.full_connections(draw),
            Fault::Index => self.index(draw),
            Fault::Vacuum => self.vacuum(draw),
            Fault::LockTable => self.lock_table(draw),
            Fault::RowLocks => self.row_locks(draw),
            Fault::Snapshot => self.snapshot(draw),
            Fault::Settings => self.settings(draw),
            Fault::Clock => self.clock(draw),
            Fault::FullDisk => self.full_disk(draw),
        }
    }

    /// A place, drawn; of the two that work at the same time each has its own.
    fn place(&self, draw: &mut Draw) -> usize {
        let places = self.crew.places.len();
        let own = (places - draw.place % places).div_ceil(PARALLEL);
        draw.random.usize(..own.max(1)) * PARALLEL + draw.place.min(places - 1)
    }

    fn name(&self, place: usize) -> &str {
        &self.crew.places[place].name
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
