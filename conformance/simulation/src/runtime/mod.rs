//! The runtime of a simulation: virtual time, tasks that run one at a time, and everything that was
//! scheduled. What happens next is decided by the seed alone.

mod program;
mod sleep;

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;
use lockapi::suite::simulation::DrivenClock;
use rustc_hash::FxHasher;

use program::Program;
pub(crate) use program::ProgramId;
pub(crate) use sleep::Sleep;

/// A point of virtual time.
pub(crate) type Time = Duration;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Action = Box<dyn FnOnce(&Runtime) + Send>;

/// How many polls may follow each other without any time passing.
const MOST_AT_ONCE: u64 = 2_000_000;

/// What a waker says that panics, as wakers of programs may.
pub(crate) const WAKER_PANIC: &str = "a waker of the simulation";

thread_local! {
    /// Whether a task or a timer of a process runs, and not the simulation itself.
    static RUNS_PROGRAM: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of a waker is one of a process.
pub(crate) fn may_panic() -> bool {
    RUNS_PROGRAM.get() && !std::thread::panicking()
}

/// A runtime; clones are one and the same.
#[derive(Clone)]
pub(crate) struct Runtime {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    ready: Mutex<Vec<(u64, ProgramId)>>,
    /// How often each promise was looked at where it might have been broken.
    looks: Mutex<BTreeMap<&'static str, u64>>,
}

struct State {
    now: Time,
    random: Rng,
    trace: FxHasher,
    events: BTreeMap<(Time, u64), Action>,
    next: u64,
    tasks: BTreeMap<u64, Slot>,
    programs: Vec<Program>,
    polls_at_once: u64,
    steps: u64,
    /// How likely a task of the library ends at a poll.
    ends: f64,
    /// How many have.
    ended: u64,
    violation: Option<Violation>,
}

struct Slot {
    program: ProgramId,
    name: &'static str,
    /// Whether it is one of the library.
    is_engine: bool,
    task: Option<Task>,
    waker: Arc<Ready>,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Which promise.
    pub(crate) promise: &'static str,
    /// How.
    pub(crate) what: String,
    /// When.
    pub(crate) at: Time,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (after {:?})", self.promise, self.what, self.at)
    }
}

struct Ready {
    task: u64,
    program: ProgramId,
    queued: AtomicBool,
    runtime: std::sync::Weak<Shared>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(shared) = self.runtime.upgrade()
        {
            shared.ready().push((self.task, self.program));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> MutexGuard<'_, Vec<(u64, ProgramId)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    now: Time::ZERO,
                    random: Rng::with_seed(seed),
                    trace: FxHasher::default(),
                    events: BTreeMap::new(),
                    next: 0,
                    tasks: BTreeMap::new(),
                    programs: Vec::new(),
                    polls_at_once: 0,
                    steps: 0,
                    ends: 0.0,
                    ended: 0,
                    violation: None,
                }),
                ready: Mutex::default(),
                looks: Mutex::default(),
            }),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.shared.lock().now
    }

    /// How many polls and events there were.
    pub(crate) fn steps(&self) -> u64 {
        self.shared.lock().steps
    }

    /// A number that two runs have in common if everything happened in the same order.
    pub(crate) fn trace(&self) -> u64 {
        self.shared.lock().trace.finish()
    }

    /// Draws.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.shared.lock().random)
    }

    /// Whether something with this probability happens.
    pub(crate) fn happens(&self, probability: f64) -> bool {
        probability > 0.0 && self.draw(Rng::f64) < probability
    }

    /// A time between two others, short ones as likely as long ones.
    pub(crate) fn between(&self, least: Duration, most: Duration) -> Duration {
        // In whole numbers: powers of fractions differ between machines.
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1000);
        let (least, most) = (nanos(least), nanos(most).max(nanos(least)));
        let drawn = self.draw(|random| {
            let from = least << random.u32(0..=(most / least).ilog2());
            random.u64(from..=from.saturating_mul(2).min(most))
        });
        Duration::from_nanos(drawn)
    }

    /// Notes that a promise was broken. The first one counts.
    pub(crate) fn violate(&self, promise: &'static str, what: impl Into<String>) {
        let mut state = self.shared.lock();
        let at = state.now;
        let what = what.into();
        state
            .violation
            .get_or_insert(Violation { promise, what, at });
    }

    /// Counts that a promise is looked at where it might have been broken.
    pub(crate) fn looks_at(&self, promise: &'static str) {
        let looks = self.shared.looks.lock();
        *looks
            .unwrap_or_else(PoisonError::into_inner)
            .entry(promise)
            .or_default() += 1;
    }

    pub(crate) fn looks(&self) -> BTreeMap<&'static str, u64> {
        let looks = self.shared.looks.lock();
        looks.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.shared.lock().violation.clone()
    }

    /// Does something at a time.
    pub(crate) fn at(&self, time: Time, action: impl FnOnce(&Runtime) + Send + 'static) {
        let mut state = self.shared.lock();
        let time = time.max(state.now);
        let number = state.next;
        state.next += 1;
        state.events.insert((time, number), Box::new(action));
    }

    /// Does something after a time.
    pub(crate) fn after(&self, time: Duration, action: impl FnOnce(&Runtime) + Send + 'static) {
        self.at(self.now() + time, action);
    }

    /// Waits in virtual time.
    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        Sleep {
            runtime: self.clone(),
            until: self.now() + time,
            registered: None,
        }
    }

    /// Starts a process.
    pub(crate) fn begin_program(&self, drift: i64, is_copy: bool) -> (ProgramId, DrivenClock) {
        let mut state = self.shared.lock();
        let drawn = state.random.u64(..);
        let programs = state.programs.len();
        let of = state.random.usize(..=programs);
        let copied = state.programs.get(of).filter(|_| is_copy);
        let numbers = copied.map_or(drawn, |it| it.numbers);
        let clock = DrivenClock::default();
        let began = state.now;
        state.programs.push(Program {
            clock: clock.clone(),
            drift,
            began,
            stopped: false,
            blocked: false,
            numbers,
            alive: true,
            parked: Vec::new(),
            disturbed: false,
            session_ended: None,
        });
        (ProgramId(state.programs.len() - 1), clock)
    }

    /// Whether the process runs: it neither ended nor is stopped.
    pub(crate) fn is_running(&self, program: ProgramId) -> bool {
        let state = self.shared.lock();
        let program = &state.programs[program.0];
        program.alive && !program.stopped
    }

    /// Whether it was stopped, blocked or killed at any time.
    pub(crate) fn was_disturbed(&self, program: ProgramId) -> bool {
        self.shared.lock().programs[program.0].disturbed
    }

    /// A session of a process has ended, or its connection has.
    pub(crate) fn session_ended(&self, program: ProgramId) {
        let mut state = self.shared.lock();
        state.programs[program.0].session_ended = Some(state.now);
    }

    /// Whether a session of a process has ended since then.
    pub(crate) fn has_lost_session(&self, program: ProgramId, since: Time) -> bool {
        let ended = self.shared.lock().programs[program.0].session_ended;
        ended.is_some_and(|at| at >= since)
    }

    /// Whether the process has not ended.
    pub(crate) fn is_alive(&self, program: ProgramId) -> bool {
        self.shared.lock().programs[program.0].alive
    }

    /// Stops or continues a process, as signals do.
    pub(crate) fn stop(&self, program: ProgramId, stopped: bool) {
        let mut state = self.shared.lock();
        let now = state.now;
        let one = &mut state.programs[program.0];
        one.stopped = stopped;
        one.disturbed |= stopped;
        if !stopped {
            // Its tasks may run before its timers.
            one.clock.set(one.local(now));
        }
        let parked = std::mem::take(&mut one.parked);
        drop(state);
        let mut ready = self.shared.ready();
        ready.extend(parked.into_iter().map(|task| (task, program)));
    }

    /// Takes the thread of the tasks of a process away, or gives it back; its clock and timers go on.
    pub(crate) fn block(&self, program: ProgramId, blocked: bool) {
        let mut state = self.shared.lock();
        let one = &mut state.programs[program.0];
        one.blocked = blocked;
        one.disturbed |= blocked;
        let parked = std::mem::take(&mut one.parked);
        drop(state);
        let mut ready = self.shared.ready();
        ready.extend(parked.into_iter().map(|task| (task, program)));
    }

    /// Whether its tasks have no thread.
    pub(crate) fn is_blocked(&self, program: ProgramId) -> bool {
        self.shared.lock().programs[program.0].blocked
    }

    /// From now on tasks of the library end before their time, so likely at each poll.
    pub(crate) fn end_tasks(&self, likely: f64) {
        self.shared.lock().ends = likely;
    }

    /// How many did.
    pub(crate) fn tasks_ended(&self) -> u64 {
        self.shared.lock().ended
    }

    /// Ends a process without a warning: none of its tasks runs again. What they own is dropped, which
    /// nobody outside notices.
    pub(crate) fn kill(&self, program: ProgramId) {
        let mut state = self.shared.lock();
        state.programs[program.0].alive = false;
        state.programs[program.0].disturbed = true;
        let tasks: Vec<_> = state
            .tasks
            .iter_mut()
            .filter(|(_, slot)| slot.program == program)
            .filter_map(|(_, slot)| slot.task.take())
            .collect();
        state.tasks.retain(|_, slot| slot.program != program);
        drop(state);
        drop(tasks);
    }

    /// Runs a task of a process until it ends.
    pub(crate) fn spawn(
        &self,
        program: ProgramId,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn_task(program, (name, false), Box::pin(task));
    }

    /// The same with a task of the library.
    pub(crate) fn spawn_boxed(&self, program: ProgramId, name: &'static str, task: Task) {
        self.spawn_task(program, (name, true), task);
    }

    fn spawn_task(&self, program: ProgramId, (name, is_engine): (&'static str, bool), task: Task) {
        let mut state = self.shared.lock();
        if !state.programs[program.0].alive {
            drop(state);
            return drop(task);
        }
        let number = state.next;
        state.next += 1;
        let waker = Arc::new(Ready {
            task: number,
            program,
            queued: AtomicBool::new(true),
            runtime: Arc::downgrade(&self.shared),
        });
        let slot = Slot {
            program,
            name,
            is_engine,
            task: Some(task),
            waker,
        };
        state.tasks.insert(number, slot);
        drop(state);
        self.shared.ready().push((number, program));
    }

    /// Ends all that is left.
    pub(crate) fn end(&self) {
        let mut state = self.shared.lock();
        for program in &mut state.programs {
            program.alive = false;
        }
        let tasks = std::mem::take(&mut state.tasks);
        let events = std::mem::take(&mut state.events);
        drop(state);
        drop((tasks, events));
        // What was scheduled meanwhile holds the runtime.
        drop(std::mem::take(&mut self.shared.lock().events));
    }

    /// The names of the tasks that have not ended.
    pub(crate) fn tasks(&self) -> Vec<&'static str> {
        self.shared
            .lock()
            .tasks
            .values()
            .map(|slot| slot.name)
            .collect()
    }

    /// Lets time pass until `until`, or until a promise is broken or `done`.
    pub(crate) fn run(&self, until: Time, done: impl Fn() -> bool) {
        while self.violation().is_none() && !done() {
            if let Some(task) = self.choose() {
                self.poll(task);
            } else if !self.pass(until) {
                return;
            }
        }
    }

    /// One of the tasks that are ready, by chance.
    fn choose(&self) -> Option<u64> {
        let mut state = self.shared.lock();
        let mut ready = self.shared.ready();
        while !ready.is_empty() {
            let at = state.random.usize(..ready.len());
            let (task, program) = ready.swap_remove(at);
            let program = &mut state.programs[program.0];
            if program.stopped || program.blocked {
                program.parked.push(task);
            } else if program.alive {
                return Some(task);
            }
        }
        None
    }

    fn poll(&self, number: u64) {
        let mut state = self.shared.lock();
        state.steps += 1;
        state.trace.write_u64(number);
        state.polls_at_once += 1;
        if state.polls_at_once > MOST_AT_ONCE {
            let name = state.tasks.get(&number).map_or("", |slot| slot.name);
            drop(state);
            return self.violate(
                "no task runs without end",
                format!("{name} is polled again and again"),
            );
        }
        let Some(slot) = state.tasks.get_mut(&number) else {
            return;
        };
        let Some(mut task) = slot.task.take() else {
            return;
        };
        slot.waker.queued.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&slot.waker));
        let (name, is_engine, program) = (slot.name, slot.is_engine, slot.program);
        if is_engine && state.ends > 0.0 && state.random.f64() < state.ends {
            state.ended += 1;
            state.tasks.remove(&number);
            drop(state);
            return self.with_numbers(program, || drop(task));
        }
        drop(state);
        RUNS_PROGRAM.set(true);
        let polled = self.with_numbers(program, || {
            catch_unwind(AssertUnwindSafe(|| {
                task.as_mut().poll(&mut Context::from_waker(&waker))
            }))
        });
        RUNS_PROGRAM.set(false);
        let ended = match polled {
            Ok(polled) => polled.is_ready(),
            Err(panic) => {
                let words = words(&*panic);
                // Who wakes another task of the program may meet its panic.
                if is_engine || words != WAKER_PANIC {
                    self.violate("no task panics", format!("{name}: {words}"));
                }
                true
            }
        };
        let mut state = self.shared.lock();
        if ended {
            state.tasks.remove(&number);
        } else if let Some(slot) = state.tasks.get_mut(&number) {
            slot.task = Some(task);
            return;
        }
        drop(state);
        drop(task);
    }

    /// Runs a part of a process with the pseudo-random numbers of its own.
    fn with_numbers<T>(&self, program: ProgramId, run: impl FnOnce() -> T) -> T {
        fastrand::seed(self.shared.lock().programs[program.0].numbers);
        let outcome = run();
        self.shared.lock().programs[program.0].numbers = fastrand::get_seed();
        outcome
    }

    /// Goes on to the next time at which something happens; `false` when that is after `until`.
    fn pass(&self, until: Time) -> bool {
        let mut state = self.shared.lock();
        let event = state.events.first_key_value().map(|((at, _), _)| *at);
        let running = state.programs.iter().filter(|it| it.alive && !it.stopped);
        let timers = running.filter_map(|it| it.clock.next().map(|local| it.runtime(local)));
        let Some(next) = timers.chain(event).min().filter(|next| *next <= until) else {
            state.now = state.now.max(until);
            return false;
        };
        if next > state.now {
            state.now = next;
            state.polls_at_once = 0;
        }
        state.steps += 1;
        let now = state.now;
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        state.trace.write_u64(nanos);
        let programs = state.programs.iter().enumerate();
        let clocks: Vec<_> = programs
            .filter(|(_, it)| it.alive && !it.stopped)
            .map(|(at, it)| (ProgramId(at), it.clock.clone(), it.local(now)))
            .collect();
        let due = state
            .events
            .first_key_value()
            .is_some_and(|((at, _), _)| *at <= now);
        let event = due.then(|| state.events.pop_first()).flatten();
        drop(state);
        RUNS_PROGRAM.set(true);
        let advanced = catch_unwind(AssertUnwindSafe(|| {
            for (program, clock, local) in clocks {
                self.with_numbers(program, || clock.advance_to(local));
            }
        }));
        RUNS_PROGRAM.set(false);
        if let Err(panic) = advanced {
            self.violate("no task panics", format!("a timer: {}", words(&*panic)));
        }
        if let Some((_, action)) = event {
            action(self);
        }
        true
    }
}

/// What a panic says.
pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}
