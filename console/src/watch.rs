//! What the screens show, read once for all who look.

mod counts;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lockapi::admin::{
    Filter, FoundQueue, HeldLease, HeldLock, LimitLevel, RunningJob, Waiter, WorkerNumber,
};
use lockapi::queue::Statistics;
use lockapi::schedule::TaskState;
use lockapi::{Backend, Error, ErrorKind};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use counts::Counts;

/// Nothing is read again within this time, however many look.
const FRESH: Duration = Duration::from_secs(1);
/// Who looks waits no longer than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who looks waits no longer than this for jobs to be counted anew.
const GLANCE: Duration = Duration::from_millis(20);
/// The most queues, and schedulers, that are counted.
pub(crate) const MAX_QUEUES: usize = 50;
/// Of more queues in which jobs run, fewer jobs of each are shown.
const MANY: usize = 8;
/// The most entries of any other kind.
pub(crate) const MAX_ENTRIES: usize = 200;

/// Some of what is shown, or why it could not be read.
pub(crate) type Part<T> = Result<Vec<T>, String>;

/// All that is shown, as it was at one time.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The namespace of what has no other.
    pub(crate) namespace: String,
    pub(crate) at: SystemTime,
    pub(crate) locks: Part<HeldLock>,
    pub(crate) waiters: Part<Waiter>,
    pub(crate) leases: Part<HeldLease>,
    pub(crate) running: Part<RunningJob>,
    pub(crate) queues: Part<QueueLine>,
    pub(crate) tasks: Part<TaskLine>,
    pub(crate) limits: Part<LimitLevel>,
    pub(crate) workers: Part<WorkerNumber>,
    /// How long it took to read.
    pub(crate) took: Duration,
}

/// A queue, with what it was lately.
#[derive(Clone, Debug)]
pub(crate) struct QueueLine {
    pub(crate) queue: FoundQueue,
    pub(crate) statistics: Statistics,
    /// The oldest first.
    pub(crate) history: Vec<Sample>,
}

/// What a queue was at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    /// How many jobs were due and waited.
    pub(crate) ready: u64,
}

impl QueueLine {
    /// How much its jobs that are due and wait grew in a second, over what is known of the past.
    pub(crate) fn growth(&self) -> Option<f64> {
        let (first, last) = (self.history.first()?, self.history.last()?);
        let time = last.at.duration_since(first.at).as_secs_f64();
        // Counts end at a bound, which does not grow.
        let exact = !self.statistics.ready.more && time >= 1.0;
        #[allow(clippy::cast_precision_loss, reason = "counts are small")]
        exact.then(|| (last.ready as f64 - first.ready as f64) / time)
    }
}

/// A recurring task of a scheduler.
#[derive(Clone, Debug)]
pub(crate) struct TaskLine {
    pub(crate) scheduler: String,
    pub(crate) task: TaskState,
}

/// Reads snapshots of a database, at most one in a second.
///
/// Jobs are counted beside that: a large queue takes as long as all the rest, and there may be fifty of them. Who looks
/// waits for counts that nobody has yet, and for others no longer than [`GLANCE`]; then the ones of the round before are
/// shown, while the next goes on.
#[derive(Debug)]
pub(crate) struct Watch {
    backend: Arc<dyn Backend>,
    statements: bool,
    state: Mutex<State>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct State {
    latest: Option<(Instant, Arc<Snapshot>)>,
    /// The round that counts now, or the last one.
    round: Option<JoinHandle<Result<Duration, Error>>>,
    /// No round begins before.
    rests_until: Option<Instant>,
    /// Why the last round ended early.
    failed: Option<String>,
}

impl Watch {
    /// Statements of sessions, which may have data in them, are read if they are wanted.
    pub(crate) fn new(backend: Arc<dyn Backend>, statements: bool) -> Self {
        Self {
            backend,
            statements,
            state: Mutex::default(),
            counts: Arc::default(),
        }
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    #[cfg(feature = "web")]
    pub(crate) fn shared_backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    #[cfg(feature = "web")]
    pub(crate) fn inspector(&self) -> Arc<dyn lockapi::admin::Inspector> {
        self.backend.inspector()
    }

    /// What is there now, or was up to a second ago. On large queues their counts may be some seconds older.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be read in time.
    pub(crate) async fn look(&self) -> Result<Arc<Snapshot>, Error> {
        self.look_within(GLANCE).await
    }

    /// As [`look`](Self::look), with all jobs counted anew, for a program that asks seldom.
    ///
    /// # Errors
    /// As for [`look`](Self::look).
    #[cfg(feature = "web")]
    pub(crate) async fn look_closely(&self) -> Result<Arc<Snapshot>, Error> {
        self.look_within(PATIENCE / 2).await
    }

    async fn look_within(&self, glance: Duration) -> Result<Arc<Snapshot>, Error> {
        let looked = timeout(PATIENCE, self.look_now(glance)).await;
        looked.map_err(|_| {
            let message =
                format!("the database did not answer within {PATIENCE:?}; look again later");
            Error::new(ErrorKind::Unavailable, "look", message)
        })
    }

    /// After an action on a queue, or (empty) on something else: what was read before it is old.
    pub(crate) async fn forget(&self, queue: &str) {
        self.state.lock().await.latest = None;
        self.counts.forget(|name| name == queue);
    }

    /// What was read before is old, all of it.
    #[cfg(test)]
    pub(crate) async fn forget_all(&self) {
        self.state.lock().await.latest = None;
        self.counts.forget(|_| true);
    }

    /// How many jobs a queue has, or had some seconds ago.
    ///
    /// # Errors
    /// As for [`Queue::statistics`](lockapi::Queue::statistics).
    #[cfg(feature = "web")]
    pub(crate) async fn counted(&self, queue: &str) -> Result<Statistics, Error> {
        if let Some(statistics) = self.counts.recent(queue) {
            return Ok(statistics);
        }
        self.counts.count(&*self.backend, queue).await
    }

    async fn look_now(&self, glance: Duration) -> Arc<Snapshot> {
        let mut state = self.state.lock().await;
        if let Some((at, latest)) = &state.latest
            && at.elapsed() < FRESH
        {
            return Arc::clone(latest);
        }
        let started = Instant::now();
        let inspector = self.backend.inspector();
        let (here, all) = (Filter::new().limit(MAX_ENTRIES), Filter::new().everywhere());
        let all = all.limit(MAX_ENTRIES);
        let waits = if self.statements {
            all.clone()
        } else {
            all.clone().without_statements()
        };
        let filter = Filter::new().limit(MAX_QUEUES);
        let queues = part(inspector.queues(&filter, None).await);
        let schedulers = part(inspector.schedulers("", MAX_QUEUES).await);
        let tasks = self.tasks(schedulers).await;
        let queues = self.count(queues, started, glance, &mut state).await;
        let running = self.running(&queues).await;
        let snapshot = Arc::new(Snapshot {
            namespace: self.backend.namespace().to_owned(),
            at: SystemTime::now(),
            locks: part(inspector.locks(&all).await),
            waiters: part(inspector.waiters(&waits).await),
            leases: part(inspector.leases(&here).await),
            running,
            limits: part(inspector.limits("", MAX_ENTRIES).await),
            workers: part(inspector.worker_numbers(MAX_ENTRIES).await),
            queues,
            tasks,
            took: started.elapsed(),
        });
        state.latest = Some((Instant::now(), Arc::clone(&snapshot)));
        snapshot
    }

    /// Jobs that run, in the queues in which some were counted: to look into each of many takes long.
    async fn running(&self, queues: &Part<QueueLine>) -> Part<RunningJob> {
        let lines = queues.as_ref().map_err(Clone::clone)?;
        let busy = || {
            lines
                .iter()
                .filter(|line| line.statistics.running.count > 0)
        };
        let most = if busy().count() > MANY {
            MAX_ENTRIES / 4
        } else {
            MAX_ENTRIES
        };
        let inspector = self.backend.inspector();
        let mut running = Vec::new();
        for line in busy() {
            let filter = Filter::queue(&*line.queue.name).limit(most);
            running.extend(inspector.running(&filter).await.map_err(told)?);
        }
        running.sort_by_key(|job| job.id);
        running.truncate(MAX_ENTRIES);
        Ok(running)
    }

    async fn count(
        &self,
        queues: Part<FoundQueue>,
        began: Instant,
        glance: Duration,
        state: &mut State,
    ) -> Part<QueueLine> {
        let queues = queues?;
        self.counts.retain(&queues);
        for name in self.counts.missing(&queues) {
            self.counts
                .count(&*self.backend, &name)
                .await
                .map_err(told)?;
        }
        self.go_round(&queues, began, glance, state).await;
        if let Some(why) = &state.failed {
            return Err(why.clone());
        }
        Ok(self.counts.lines(queues))
    }

    /// Counts all queues anew but those counted since a look began, or just before, and waits a little for it.
    async fn go_round(
        &self,
        queues: &[FoundQueue],
        began: Instant,
        glance: Duration,
        state: &mut State,
    ) {
        let now = Instant::now();
        // A first look may have taken longer than that to count them.
        let since = began.checked_sub(FRESH / 2).unwrap_or(began);
        if state.round.is_none() && state.rests_until.is_none_or(|until| until <= now) {
            let (backend, counts) = (Arc::clone(&self.backend), Arc::clone(&self.counts));
            let names: Vec<String> = queues.iter().map(|queue| queue.name.clone()).collect();
            state.round = Some(tokio::spawn(async move {
                let began = Instant::now();
                for name in names {
                    if !counts.counted_since(&name, since) {
                        counts.count(&*backend, &name).await?;
                    }
                }
                Ok(began.elapsed())
            }));
        }
        let Some(round) = &mut state.round else {
            return;
        };
        let Ok(ended) = timeout(glance, round).await else {
            return;
        };
        state.round = None;
        // A task that panicked is counted again by the next round.
        let ended = ended.unwrap_or(Ok(FRESH));
        // The server is busy with counts for a fifth of the time at most.
        let took = *ended.as_ref().unwrap_or(&FRESH);
        state.rests_until = Some(Instant::now() + 4 * took);
        state.failed = ended.err().map(told);
    }

    async fn tasks(&self, schedulers: Part<String>) -> Part<TaskLine> {
        let mut lines = Vec::new();
        for name in schedulers? {
            let scheduler = self.backend.scheduler(&*name).map_err(told)?;
            let tasks = scheduler.tasks("", MAX_ENTRIES).await.map_err(told)?;
            lines.extend(tasks.into_iter().map(|task| TaskLine {
                scheduler: name.clone(),
                task,
            }));
        }
        // What is due first comes first; what never is, last.
        lines.sort_by_key(|line| {
            let next = line.task.next_at;
            (next.is_none(), next)
        });
        Ok(lines)
    }
}

fn part<T>(read: Result<Vec<T>, Error>) -> Part<T> {
    read.map_err(told)
}

#[allow(clippy::needless_pass_by_value, reason = "it is mapped over errors")]
fn told(error: Error) -> String {
    error.to_string()
}
