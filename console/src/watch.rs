//! What the screens show, read once for all who look.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lockapi::admin::{
    Filter, FoundQueue, HeldLease, HeldLock, LimitLevel, RunningJob, Waiter, WorkerNumber,
};
use lockapi::queue::Statistics;
use lockapi::schedule::TaskState;
use lockapi::{Backend, Error, ErrorKind};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Nothing is read again within this time, however many look.
const FRESH: Duration = Duration::from_secs(1);
/// Who looks waits no longer than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many points of the past a queue has.
const HISTORY: usize = 120;
/// The most queues, and schedulers, that are counted.
pub(crate) const MAX_QUEUES: usize = 50;
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
#[derive(Debug)]
pub(crate) struct Watch {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    latest: Option<(Instant, Arc<Snapshot>)>,
    history: BTreeMap<String, VecDeque<Sample>>,
}

impl Watch {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            state: Mutex::default(),
        }
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    #[cfg(feature = "web")]
    pub(crate) fn inspector(&self) -> Arc<dyn lockapi::admin::Inspector> {
        self.backend.inspector()
    }

    /// What is there now, or was up to a second ago.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be read in time.
    pub(crate) async fn look(&self) -> Result<Arc<Snapshot>, Error> {
        timeout(PATIENCE, self.look_now()).await.map_err(|_| {
            let message =
                format!("the database did not answer within {PATIENCE:?}; look again later");
            Error::new(ErrorKind::Unavailable, "look", message)
        })
    }

    /// After an action: what was read before it is old.
    pub(crate) async fn forget(&self) {
        self.state.lock().await.latest = None;
    }

    async fn look_now(&self) -> Arc<Snapshot> {
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
        let filter = Filter::new().limit(MAX_QUEUES);
        let queues = part(inspector.queues(&filter, None).await);
        let schedulers = part(inspector.schedulers("", MAX_QUEUES).await);
        let tasks = self.tasks(schedulers).await;
        let queues = self.count(queues, &mut state.history).await;
        let snapshot = Arc::new(Snapshot {
            namespace: self.backend.namespace().to_owned(),
            at: SystemTime::now(),
            locks: part(inspector.locks(&all).await),
            waiters: part(inspector.waiters(&all).await),
            leases: part(inspector.leases(&here).await),
            running: part(inspector.running(&here).await),
            limits: part(inspector.limits("", MAX_ENTRIES).await),
            workers: part(inspector.worker_numbers(MAX_ENTRIES).await),
            queues,
            tasks,
            took: started.elapsed(),
        });
        state.latest = Some((Instant::now(), Arc::clone(&snapshot)));
        snapshot
    }

    async fn count(
        &self,
        queues: Part<FoundQueue>,
        history: &mut BTreeMap<String, VecDeque<Sample>>,
    ) -> Part<QueueLine> {
        let queues = queues?;
        // What is gone has no past.
        history.retain(|name, _| queues.iter().any(|queue| queue.name == *name));
        let mut lines = Vec::with_capacity(queues.len());
        for queue in queues {
            let handle = self.backend.queue(&*queue.name).map_err(told)?;
            let statistics = handle.statistics().await.map_err(told)?;
            let past = history.entry(queue.name.clone()).or_default();
            if past.len() >= HISTORY {
                past.pop_front();
            }
            past.push_back(Sample {
                at: Instant::now(),
                ready: statistics.ready.count,
            });
            lines.push(QueueLine {
                queue,
                statistics,
                history: past.iter().copied().collect(),
            });
        }
        Ok(lines)
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
