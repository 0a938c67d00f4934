//! [`Scheduler`] over the batcher of jobs.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use crate::engine::Core;
use crate::engine::batcher::Queued;
use crate::engine::clock::Time;
use crate::engine::keyed_fifo::KeyedFifo;
use crate::engine::notifier::Subscription;
use crate::engine::queues::Topic;
use crate::engine::sweeps::{PART, Sweeping};
use crate::error::{Error, ErrorKind, Result};
use crate::key::advisory_key;
use crate::lease::micros;
use crate::queue;
use crate::schedule::{
    Decision, DueTasks, Expire, Fire, MAX_LIST, Name, ReadDueTasks, ReadRuns, ReadTasks, Release,
    RemoveTask, Request, Round, Run, RunNow, Scheduler, SchedulerOptions, SetTask, Status,
    SweepRuns, SwitchTask, Task, TaskName, TaskRow, TaskState, check_task,
};
use crate::sync::Mutex;
use crate::wait::{unless, yield_now};

/// How many due tasks are read in a round.
const MAX_DUE: i64 = 1000;
/// How many runs are fired in a statement, unless those of one task are more.
const MAX_RUNS: usize = 2000;
/// Old runs are deleted this often, in parts of this size.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

impl Sweeping for SweepRuns {
    const EVERY: Duration = SWEEP_EVERY;
    const PAUSE: Duration = Duration::from_millis(50);

    fn next(self, swept: Self::Output) -> Option<Self> {
        // What somebody has locked is no reason to go on.
        let goes_on = swept.deleted > 0 || swept.last.as_ref() != Some(&self.from);
        let last = swept.last.filter(|_| goes_on);
        last.map(|from| Self { from, ..self })
    }
}
/// After this pause is looked for what was due and was not fired.
const SOON: Duration = Duration::from_millis(200);
/// For so long after a run was held back, or released, it is looked as often whether the next one can be.
const RELEASING: Duration = Duration::from_secs(5);
/// How long it plans at a time.
const TURN: Duration = Duration::from_millis(5);
/// How often, and after which pause, a change is tried again that another one was in the way of.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// The last time that a log is read to: the end of the year 9999.
const LAST: i64 = 253_402_300_799_000_000;

pub(in crate::engine) fn open(
    core: &Arc<Core>,
    scheduler: String,
    options: SchedulerOptions,
) -> Arc<dyn Scheduler> {
    let number = advisory_key(&core.namespace, &format!("scheduler {scheduler}"));
    let queue_number = queue::topic(&core.namespace, &scheduler);
    Arc::new(SchedulerHandle(Arc::new(Handle {
        name: Name {
            namespace: core.namespace.to_string(),
            scheduler,
        },
        options,
        number,
        topic: core.queues.topic(number),
        queue_number,
        queue: core.queues.topic(queue_number),
        subscription: OnceLock::new(),
        swept: Mutex::default(),
        releasing: Mutex::default(),
        changes: KeyedFifo::default(),
        core: Arc::clone(core),
    })))
}

struct Handle {
    name: Name,
    options: SchedulerOptions,
    /// The topic that notifies waiting nodes of changes.
    number: i64,
    topic: Arc<Topic>,
    /// The topic that notifies waiting workers of jobs.
    queue_number: i64,
    queue: Arc<Topic>,
    /// Made by the first wait.
    subscription: OnceLock<Subscription>,
    swept: Mutex<Option<Time>>,
    /// Until when runs are looked for that may be released.
    releasing: Mutex<Time>,
    /// Callers that change the same task: of those that do so at the same time, one succeeds.
    changes: KeyedFifo<String>,
    core: Arc<Core>,
}

struct SchedulerHandle(Arc<Handle>);

impl Round {
    /// The next one follows after a short pause at the latest.
    fn again_soon(&mut self) {
        self.next = Some(self.next.map_or(SOON, |next| next.min(SOON)));
    }
}

impl Handle {
    fn failed(&self, operation: &'static str) -> impl Fn(Error) -> Error {
        move |error| error.during(operation).on(&self.name.scheduler)
    }

    async fn call<O: Queued>(&self, request: O) -> Result<O::Output> {
        let answer = self.core.jobs.call(request).await;
        answer.map_err(|error| error.on(&self.name.scheduler))
    }

    fn task(&self, task: &str) -> TaskName {
        TaskName {
            of: self.name.clone(),
            task: task.to_owned(),
        }
    }

    /// Reads one task, with the time of the server.
    async fn read(&self, task: &str) -> Result<(Option<TaskRow>, i64)> {
        let read = ReadTasks {
            name: self.name.clone(),
            task: task.to_owned(),
            after: String::new(),
            most: 1,
        };
        let mut read = self.call(read).await?;
        Ok((read.tasks.pop(), read.now))
    }

    async fn pause(&self) {
        let timer = &self.core.connections.timer;
        timer.sleep(PAUSE.mul_f64(fastrand::f64())).await;
    }

    fn busy(operation: &'static str, task: &str) -> Error {
        let message =
            "the task was changed or fired during each attempt; nothing was done: try again";
        Error::new(ErrorKind::Unavailable, operation, message).on(task)
    }

    /// Answers nothing where the task was changed or fired during each attempt.
    async fn set_enabled(&self, task: &str, enabled: bool) -> Result<Option<bool>> {
        for _ in 0..TRIES {
            let (Some(row), now) = self.read(task).await? else {
                return Ok(Some(false));
            };
            let next = if enabled {
                let next = row.recurrence.next(row.next.unwrap_or(now), now);
                next.map_err(|error| error.during("set_enabled").on(task))?
            } else {
                row.next
            };
            let switch = SwitchTask {
                name: self.task(task),
                enabled,
                next,
                version: row.version,
                topic: self.number,
            };
            if self.call(switch).await? {
                self.topic.bump();
                return Ok(Some(true));
            }
            self.pause().await;
        }
        Ok(None)
    }

    /// Answers nothing where the task was changed or fired during each attempt.
    async fn run_now(&self, task: &str) -> Result<Option<Option<Decision>>> {
        for _ in 0..TRIES {
            let (Some(row), _) = self.read(task).await? else {
                return Ok(Some(None));
            };
            let run = RunNow {
                name: self.task(task),
                version: row.version,
                node: self.options.node_name(),
                topic: self.queue_number,
            };
            if let Some(fired) = self.call(run).await? {
                self.queue.bump();
                return Ok(Some(Some(fired.into())));
            }
            self.pause().await;
        }
        Ok(None)
    }

    fn check_list(&self, operation: &'static str, most: usize) -> Result<i64> {
        if most > MAX_LIST {
            let message = format!("{most} entries in one call; allowed are at most {MAX_LIST}");
            let error = Error::new(ErrorKind::Invalid, operation, message);
            return Err(error.on(&self.name.scheduler));
        }
        Ok(i64::try_from(most).unwrap_or(i64::MAX))
    }

    /// Hears of changes by other nodes from now on.
    fn listen(&self) {
        self.subscription.get_or_init(|| {
            let topic = Arc::downgrade(&self.topic);
            self.core.notifier.subscribe(self.number, move || {
                if let Some(topic) = topic.upgrade() {
                    topic.bump();
                }
            })
        });
    }

    /// Reads what is due, from behind a task on.
    async fn read_due(&self, behind: Option<(i64, String)>) -> Result<DueTasks> {
        self.call(ReadDueTasks {
            name: self.name.clone(),
            most: MAX_DUE,
            behind,
        })
        .await
    }

    /// Plans what is due; what this node does not understand is left to others. An expression takes a
    /// while after a long outage, so others have their turn in between.
    async fn plan(&self, tasks: &DueTasks, round: &mut Round) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        let timer = &self.core.connections.timer;
        let mut since = timer.now();
        for due in &tasks.due {
            if timer.now().saturating_sub(since) >= TURN {
                yield_now().await;
                since = timer.now();
            }
            match due.recurrence.fire(due) {
                Ok(firing) => requests.push(Request {
                    task: due.name.clone(),
                    version: due.version,
                    due: due.next,
                    next: firing.next,
                    runs: firing.runs,
                }),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) =>
                {
                    round.left.push(due.name.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(requests)
    }

    async fn fire(&self, requests: Vec<Request>, round: &mut Round) -> Result<()> {
        let wanted = requests.iter().filter(|request| !request.runs.is_empty());
        let wanted: Vec<_> = wanted.map(|request| request.task.clone()).collect();
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let mut part: Vec<Request> = Vec::new();
            let mut runs = 0;
            while let Some(request) =
                requests.next_if(|request| part.is_empty() || runs + request.runs.len() <= MAX_RUNS)
            {
                runs += request.runs.len();
                part.push(request);
            }
            let fire = Fire {
                name: self.name.clone(),
                requests: part,
                node: self.options.node_name(),
                topic: self.queue_number,
            };
            let fired = self.call(fire).await?;
            let decisions = fired.into_iter().map(Decision::from);
            round.decisions.extend(decisions);
        }
        let fired = round.decisions.iter().map(|it| it.task.as_str());
        let fired: HashSet<&str> = fired.collect();
        if wanted.iter().any(|task| !fired.contains(task.as_str())) {
            // Another node has fired it, or it was changed, or is locked: then it is still due.
            round.again_soon();
        }
        Ok(())
    }

    /// Runs that are held back follow each other sooner than tasks are due, or they would never be fewer.
    fn release_soon(&self, round: &mut Round) {
        let now = self.core.connections.timer.now();
        let mut decisions = round.decisions.iter();
        let held = decisions.any(|decision| decision.status == Status::Held);
        let mut until = self
            .releasing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if held || round.released > 0 {
            *until = now.saturating_add(RELEASING);
        }
        if now < *until {
            round.again_soon();
        }
    }

    fn sweep_if_due(&self) {
        let now = self.core.connections.timer.now();
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.is_some_and(|swept| now < swept + SWEEP_EVERY) {
            return;
        }
        *swept = Some(now + Duration::from_secs(60).mul_f64(fastrand::f64()));
        drop(swept);
        let first = SweepRuns {
            name: self.name.clone(),
            keep: micros(self.options.keep),
            most: PART,
            from: (String::new(), 0),
        };
        self.core.sweeps.now(self.number, first);
    }
}

#[async_trait]
impl Scheduler for SchedulerHandle {
    fn name(&self) -> &str {
        &self.0.name.scheduler
    }

    fn namespace(&self) -> &str {
        &self.0.name.namespace
    }

    fn options(&self) -> &SchedulerOptions {
        &self.0.options
    }

    async fn set(&self, task: Task) -> Result<bool> {
        let handle = &self.0;
        task.check().map_err(|error| error.during("set"))?;
        let (_, now) = handle.read(task.name()).await?;
        let set: SetTask = task
            .row(handle.task(task.name()), now, handle.number)
            .map_err(|error| error.during("set").on(task.name()))?;
        let changed = handle.call(set).await?;
        handle.topic.bump();
        Ok(changed)
    }

    async fn remove(&self, task: &str) -> Result<bool> {
        check_task(task).map_err(self.0.failed("remove"))?;
        let remove = |again| {
            let task = self.0.task(task);
            self.0.call(RemoveTask { task, again })
        };
        let found = remove(false).await?;
        if found {
            // A node may have held back a run while it waited for the task. If this fails the task is removed all the
            // same: the run waits until a task of the name is set, or removed, once more.
            drop(remove(true).await);
        }
        Ok(found)
    }

    async fn set_enabled(&self, task: &str, enabled: bool) -> Result<bool> {
        const OPERATION: &str = "set_enabled";
        let handle = &self.0;
        check_task(task).map_err(handle.failed(OPERATION))?;
        let change = handle.changes.join(task.to_owned());
        let changed = change.attempt(handle.set_enabled(task, enabled)).await;
        let changed = changed.map_err(|error| error.during(OPERATION))?;
        changed.ok_or_else(|| Handle::busy(OPERATION, task))
    }

    async fn run_now(&self, task: &str) -> Result<Option<Decision>> {
        const OPERATION: &str = "run_now";
        let handle = &self.0;
        check_task(task).map_err(handle.failed(OPERATION))?;
        let change = handle.changes.join(task.to_owned());
        let fired = change.attempt(handle.run_now(task)).await;
        let fired = fired.map_err(|error| error.during(OPERATION))?;
        fired.ok_or_else(|| Handle::busy(OPERATION, task))
    }

    async fn tasks(&self, after: &str, most: usize) -> Result<Vec<TaskState>> {
        let read = ReadTasks {
            name: self.0.name.clone(),
            task: String::new(),
            after: after.to_owned(),
            most: self.0.check_list("tasks", most)?,
        };
        let read = self.0.call(read).await?;
        Ok(read.tasks.into_iter().map(TaskState::from).collect())
    }

    async fn runs(&self, task: &str, before: Option<SystemTime>, most: usize) -> Result<Vec<Run>> {
        check_task(task).map_err(self.0.failed("runs"))?;
        let before = before.map_or(LAST, |time| {
            let since = time.duration_since(UNIX_EPOCH);
            since.map_or(0, micros).min(LAST)
        });
        let read = ReadRuns {
            name: self.0.task(task),
            before,
            most: self.0.check_list("runs", most)?,
        };
        let rows = self.0.call(read).await?;
        let runs: std::result::Result<_, _> = rows.into_iter().map(Run::try_from).collect();
        runs.map_err(|failure: crate::Failure| failure.error("runs").on(task))
    }

    async fn tick(&self) -> Result<Round> {
        let handle = &self.0;
        let mut round = Round {
            seen: handle.topic.generation(),
            ..Round::default()
        };
        handle.sweep_if_due();
        let mut tasks = handle.read_due(None).await?;
        // First what makes room for further runs.
        if tasks.overdue {
            let expired = handle.call(Expire(handle.name.clone())).await?;
            round.expired = expired.max(0).unsigned_abs();
        }
        if tasks.releasable || round.expired > 0 {
            let release = Release {
                name: handle.name.clone(),
                topic: handle.queue_number,
            };
            let released = handle.call(release).await?;
            round.released = released.max(0).unsigned_abs();
        }
        if round.released > 0 {
            // Their versions have changed.
            tasks = handle.read_due(None).await?;
        }
        let planned = handle.plan(&tasks, &mut round).await;
        let mut requests = planned.map_err(handle.failed("tick"))?;
        let is_full =
            |tasks: &DueTasks| i64::try_from(tasks.due.len()).is_ok_and(|due| due >= MAX_DUE);
        // Those that are left to others must not hide the rest.
        while is_full(&tasks) && !round.left.is_empty() {
            let last = tasks.due.last();
            tasks = handle
                .read_due(last.map(|due| (due.next, due.name.clone())))
                .await?;
            let planned = handle.plan(&tasks, &mut round).await;
            requests.extend(planned.map_err(handle.failed("tick"))?);
        }
        let next = requests.iter().filter_map(|request| request.next);
        let next = next.chain(tasks.next).min();
        round.next = next.map(|next| {
            let left = next.saturating_sub(tasks.now).max(0);
            Duration::from_micros(left.unsigned_abs())
        });
        if is_full(&tasks) {
            round.next = Some(Duration::ZERO);
        }
        handle.fire(requests, &mut round).await?;
        handle.release_soon(&mut round);
        if round.released > 0 || !round.decisions.is_empty() {
            handle.queue.bump();
        }
        Ok(round)
    }

    async fn changed(&self, seen: u64, at_most: Duration) {
        let handle = &self.0;
        handle.listen();
        let sleep = handle.core.connections.timer.sleep(at_most);
        if seen == u64::MAX {
            sleep.await;
        } else {
            unless(sleep, handle.topic.arrival(seen)).await;
        }
    }
}

impl fmt::Debug for SchedulerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scheduler")
            .field(&self.0.name.scheduler)
            .finish()
    }
}
