//! What is done to the workers while they work.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::time::sleep;

use crate::Result;
use crate::args::Settings;
use crate::conduct::{Fleet, Member, State, node_kind};
use crate::view::Screen;
use crate::watch::{Busy, Watch};

/// What has been done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    killed: usize,
    stopped: usize,
    cut_off: usize,
}

impl Tally {
    pub(crate) fn is_empty(&self) -> bool {
        self.killed + self.stopped + self.cut_off == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (killed, stopped, cut_off) = (self.killed, self.stopped, self.cut_off);
        write!(
            f,
            "workers were killed {}, stopped {} and cut off {}",
            times(killed),
            times(stopped),
            times(cut_off)
        )
    }
}

fn times(count: usize) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        more => format!("{more} times"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The process ends at once; another takes its place.
    Kill,
    /// The process stands still; its sessions live on.
    Stop,
    /// Its sessions end.
    CutOff,
    /// Its sessions end while it stands still: it goes on believing that it has its runs.
    Outdate,
}

/// Whoever does it.
pub(crate) struct Disturber<'a> {
    plan: Vec<(Duration, Kind)>,
    pause: Duration,
    store: &'a dyn Watch,
    fleet: &'a dyn Fleet,
    screen: &'a Screen,
    tally: Mutex<Tally>,
    /// How often which kind of worker was chosen.
    chosen: Mutex<HashMap<String, usize>>,
}

impl<'a> Disturber<'a> {
    pub(crate) fn new(
        settings: &Settings,
        store: &'a dyn Watch,
        fleet: &'a dyn Fleet,
        screen: &'a Screen,
    ) -> Self {
        Self {
            plan: plan(settings),
            pause: settings
                .time
                .div_f64(6.0)
                .clamp(Duration::from_millis(400), Duration::from_secs(4)),
            store,
            fleet,
            screen,
            tally: Mutex::default(),
            chosen: Mutex::default(),
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.with_tally(|tally| tally.clone())
    }

    /// Does all that is planned, each at its time.
    pub(crate) async fn run(&self) -> Result<()> {
        let all = self.plan.iter().map(async |(at, kind)| {
            sleep(*at).await;
            match kind {
                Kind::Kill => self.kill().await,
                Kind::Stop => self.stop().await,
                Kind::CutOff => self.cut_off().await,
                Kind::Outdate => self.outdate().await,
            }
        });
        try_join_all(all).await.map(drop)
    }

    /// Replaces workers that somebody else kills, for as long as it is not dropped.
    pub(crate) async fn replace(&self) -> Result<()> {
        let mut replaced = HashSet::new();
        loop {
            sleep(Duration::from_millis(100)).await;
            for member in self.fleet.members()? {
                let node = member.node;
                match member.state {
                    State::Fallen if replaced.insert(node.clone()) => {
                        self.store
                            .disturbed(&node, "killed", Instant::now())
                            .await?;
                        self.with_tally(|tally| tally.killed += 1);
                        let successor = self.fleet.start(Some(&node))?;
                        self.screen.event(&format!(
                            "{node} is killed by somebody else; {successor} replaces it"
                        ))?;
                    }
                    State::Crashed => return Err(format!("{node} has failed").into()),
                    _ => {}
                }
            }
        }
    }

    async fn kill(&self) -> Result<()> {
        let Some(victim) = self.victim().await? else {
            return Ok(());
        };
        let now = Instant::now();
        self.fleet.kill(&victim.node)?;
        self.store.disturbed(&victim.node, "killed", now).await?;
        let successor = self.fleet.start(Some(&victim.node))?;
        self.with_tally(|tally| tally.killed += 1);
        let (node, tasks) = (&victim.node, victim.tasks.join(", "));
        self.screen.event(&format!(
            "{node} is killed while it runs {tasks}; {successor} replaces it"
        ))
    }

    async fn stop(&self) -> Result<()> {
        let Some(victim) = self.victim().await? else {
            return Ok(());
        };
        let node = &victim.node;
        let now = Instant::now();
        self.fleet.stop(node)?;
        self.store.disturbed(node, "stopped", now).await?;
        self.with_tally(|tally| tally.stopped += 1);
        let (pause, tasks) = (self.pause.as_secs_f64(), victim.tasks.join(", "));
        self.screen.event(&format!(
            "{node} is stopped for {pause:.1} s while it runs {tasks}: others take over"
        ))?;
        sleep(self.pause).await;
        self.fleet.resume(node)?;
        self.screen.event(&format!("{node} continues"))
    }

    async fn cut_off(&self) -> Result<()> {
        let Some(victim) = self.victim().await? else {
            return Ok(());
        };
        let who = self.end_sessions(&victim.node).await?;
        let tasks = victim.tasks.join(", ");
        self.screen.event(&format!(
            "the database ends all sessions of {who}, which runs {tasks}"
        ))
    }

    async fn outdate(&self) -> Result<()> {
        let Some(victim) = self.stopped_at_work().await? else {
            return Ok(());
        };
        let node = &victim.node;
        self.with_tally(|tally| tally.stopped += 1);
        let who = self.end_sessions(node).await?;
        let tasks = victim.tasks.join(", ");
        self.screen.event(&format!(
            "{node} is stopped, and the database ends all sessions of {who}: others take over {tasks}"
        ))?;
        sleep(self.pause).await;
        self.fleet.resume(node)?;
        self.screen.event(&format!(
            "{node} continues, unaware: its writes must be refused"
        ))
    }

    async fn end_sessions(&self, node: &str) -> Result<String> {
        let now = Instant::now();
        let hit = self.fleet.end_sessions(node).await?;
        for node in &hit {
            self.store.disturbed(node, "cut off", now).await?;
        }
        self.with_tally(|tally| tally.cut_off += 1);
        Ok(if hit.len() > 1 {
            "all workers".to_owned()
        } else {
            node.to_owned()
        })
    }

    /// A worker that is not disturbed at present.
    async fn victim(&self) -> Result<Option<Busy>> {
        for _ in 0..50 {
            let busy = self.store.busy().await?;
            let found = self.choose(busy, &self.fleet.members()?);
            if found.is_some() {
                return Ok(found);
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(None)
    }

    /// The busiest of those that run, among the kind that was chosen the fewest times.
    fn choose(&self, busy: Vec<Busy>, members: &[Member]) -> Option<Busy> {
        let runs = |busy: &Busy| {
            let mut running = members.iter().filter(|one| one.state == State::Running);
            running.any(|member| member.node == busy.node)
        };
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let times = |busy: &Busy| chosen.get(node_kind(&busy.node)).copied();
        let found = busy.into_iter().filter(runs).min_by_key(times)?;
        *chosen.entry(node_kind(&found.node).to_owned()).or_default() += 1;
        Some(found)
    }

    /// Stops a worker in the middle of its work.
    async fn stopped_at_work(&self) -> Result<Option<Busy>> {
        for _ in 0..20 {
            let Some(victim) = self.victim().await? else {
                return Ok(None);
            };
            self.fleet.stop(&victim.node)?;
            // What it had sent is done by then.
            sleep(Duration::from_millis(50)).await;
            let busy = self.store.busy().await?;
            if let Some(busy) = busy.into_iter().find(|busy| busy.node == victim.node) {
                return Ok(Some(busy));
            }
            self.fleet.resume(&victim.node)?;
        }
        Ok(None)
    }

    fn with_tally<T>(&self, see: impl FnOnce(&mut Tally) -> T) -> T {
        see(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Kills and the others by turns, over the time from one tenth to four fifths.
fn plan(settings: &Settings) -> Vec<(Duration, Kind)> {
    let Some(kills) = settings.kills else {
        return Vec::new();
    };
    let mut kinds = Vec::new();
    let mut others = [Kind::Stop, Kind::CutOff, Kind::Outdate].into_iter();
    for _ in 0..kills {
        kinds.push(Kind::Kill);
        kinds.extend(others.next());
    }
    kinds.extend(others);
    let last = u32::try_from(kinds.len()).unwrap_or(u32::MAX).max(2) - 1;
    let first = settings.time / 10;
    let step = settings.time.mul_f64(0.7) / last;
    (0_u32..)
        .zip(kinds)
        .map(|(number, kind)| (first + step * number, kind))
        .collect()
}
