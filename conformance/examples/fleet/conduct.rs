//! The course of a run: start the workers, disturb them, let them finish, audit.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep};

use crate::Result;
use crate::args::Settings;
use crate::disturb::{Disturber, Tally};
use crate::plan;
use crate::view::Screen;
use crate::watch::Watch;

/// How long workers have to start.
const STARTING: Duration = Duration::from_secs(30);
/// How long nothing may be completed, in the end, until the rest is given up.
const STUCK: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(50);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Interrupted,
}

/// How a worker fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Stopped,
    /// By this program.
    Killed,
    /// By somebody else.
    Fallen,
    /// It found that nothing is left to do.
    Done,
    /// It failed.
    Crashed,
}

/// A worker, as the fleet knows it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) node: String,
    pub(crate) state: State,
}

/// The workers, from outside.
#[async_trait]
pub(crate) trait Fleet: Send + Sync {
    /// Starts a worker, like the one that it succeeds, and answers its name.
    fn start(&self, successor_of: Option<&str>) -> Result<String>;

    /// Ends a worker without any warning.
    fn kill(&self, node: &str) -> Result<()>;

    /// Keeps a worker from doing anything.
    fn stop(&self, node: &str) -> Result<()>;

    /// Lets a stopped worker go on.
    fn resume(&self, node: &str) -> Result<()>;

    /// Ends the database sessions of a worker, and answers which workers lost theirs.
    async fn end_sessions(&self, node: &str) -> Result<Vec<String>>;

    /// All workers that were ever started.
    fn members(&self) -> Result<Vec<Member>>;
}

/// The name of the worker of this kind with this number.
pub(crate) fn node_name(kind: &str, number: usize) -> String {
    format!("{kind}-{number:02}")
}

/// The kind of the worker with this name.
pub(crate) fn node_kind(node: &str) -> &str {
    node.rsplit_once('-').map_or(node, |(kind, _)| kind)
}

/// Runs the fleet until all is done, or the user has enough.
pub(crate) async fn conduct(
    settings: &Settings,
    store: &dyn Watch,
    fleet: &dyn Fleet,
    screen: &Screen,
    subject: &str,
) -> Result<Verdict> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let verdict = tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(Verdict::Interrupted),
        _ = terminate.recv() => Ok(Verdict::Interrupted),
        _ = hangup.recv() => Ok(Verdict::Interrupted),
        verdict = course(settings, store, fleet, screen, subject) => verdict,
    };
    screen.clear();
    verdict
}

async fn course(
    settings: &Settings,
    store: &dyn Watch,
    fleet: &dyn Fleet,
    screen: &Screen,
    subject: &str,
) -> Result<Verdict> {
    screen.line(subject)?;
    if let Some(missing) = settings.safety.lacks() {
        screen.line(&format!(
            "They do so without {missing}: expect some to be run more than once."
        ))?;
    }
    screen.line("")?;
    start(settings, store, fleet).await?;
    store
        .open(&plan::tasks(settings.tasks), settings.time)
        .await?;
    let disturber = Disturber::new(settings, store, fleet, screen);
    tokio::select! {
        // These two end only when they fail.
        failed = screen.follow(settings.time, store, fleet) => failed?,
        failed = disturber.replace() => failed?,
        finished = async {
            disturber.run().await?;
            drain(settings, store, fleet).await
        } => finished?,
    }
    screen.clear();
    finish(settings, store, screen, &disturber.tally()).await
}

/// Starts the workers and waits until all of them are ready.
async fn start(settings: &Settings, store: &dyn Watch, fleet: &dyn Fleet) -> Result<()> {
    for _ in 0..settings.workers {
        fleet.start(None)?;
    }
    let since = Instant::now();
    while store.nodes().await? < settings.workers {
        let members = fleet.members()?;
        if let Some(gone) = members.iter().find(|one| one.state != State::Running) {
            return Err(format!("{} did not start", gone.node).into());
        }
        if since.elapsed() > STARTING {
            return Err("the workers did not start".into());
        }
        sleep(TICK).await;
    }
    Ok(())
}

/// Waits until all workers have found that nothing is left to do.
async fn drain(settings: &Settings, store: &dyn Watch, fleet: &dyn Fleet) -> Result<()> {
    let mut ticks = interval(TICK);
    let mut completed = 0;
    let mut progress = Instant::now();
    loop {
        ticks.tick().await;
        let ended = |state| matches!(state, State::Done | State::Killed | State::Fallen);
        if fleet.members()?.iter().all(|member| ended(member.state)) {
            return Ok(());
        }
        let snapshot = store.snapshot().await?;
        if snapshot.completed > completed || snapshot.elapsed < settings.time {
            completed = snapshot.completed;
            progress = Instant::now();
        } else if progress.elapsed() > STUCK {
            // The audit tells what is missing.
            return Ok(());
        }
    }
}

async fn finish(
    settings: &Settings,
    store: &dyn Watch,
    screen: &Screen,
    tally: &Tally,
) -> Result<Verdict> {
    let audit = store.audit().await?;
    screen.line("")?;
    screen.line(&audit.to_string())?;
    let passed = audit.passed();
    screen.verdict(passed, &audit.verdict(tally, settings.safety))?;
    Ok(if passed {
        Verdict::Passed
    } else {
        Verdict::Failed
    })
}
