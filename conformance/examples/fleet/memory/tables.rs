//! Tasks and the log in memory, by the same rules as in `postgres/`.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockapi::Fence;
use lockapi::memory::Database;
use lockapi::seam::{Connector, Mode};
use tokio::sync::{Mutex, MutexGuard};

use crate::audit::Audit;
use crate::plan::Task;
use crate::store::{Busy, Counts, Pick, Run, Snapshot, Store, Stored};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Running,
    Completed,
    Failed,
}

struct Entry {
    task: String,
    due: Duration,
    node: String,
    status: Status,
    started: Duration,
    completed: Option<Duration>,
    fence: Option<i64>,
}

struct Row {
    task: Task,
    next: Duration,
}

#[derive(Default)]
struct State {
    started: Option<Instant>,
    ends: Duration,
    tasks: BTreeMap<String, Row>,
    log: Vec<Entry>,
    nodes: BTreeMap<String, Counts>,
    disturbances: Vec<(Duration, String)>,
}

impl State {
    /// Time since the start.
    fn now(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |start| start.elapsed())
    }

    fn is_due(&self, row: &Row) -> bool {
        row.task.enabled && row.next <= self.now().min(self.ends)
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.nodes.values() {
            sum.contended += counts.contended;
            sum.abandoned += counts.abandoned;
            sum.refused += counts.refused;
        }
        sum
    }

    fn busy(&self) -> Vec<Busy> {
        let mut busy: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for entry in &self.log {
            if entry.status == Status::Running {
                busy.entry(&entry.node)
                    .or_default()
                    .push(entry.task.clone());
            }
        }
        let mut busy: Vec<Busy> = busy
            .into_iter()
            .map(|(node, tasks)| Busy {
                node: node.to_owned(),
                tasks,
            })
            .collect();
        busy.sort_by_key(|busy| std::cmp::Reverse(busy.tasks.len()));
        busy
    }

    fn due_times(&self, until: Duration) -> impl Iterator<Item = (&str, Duration)> {
        let enabled = self.tasks.values().filter(|row| row.task.enabled);
        enabled.flat_map(move |row| {
            let times =
                std::iter::successors(Some(row.task.offset), |at| Some(*at + row.task.every));
            times
                .take_while(move |at| *at <= until)
                .map(|at| (row.task.name.as_str(), at))
        })
    }

    fn recoveries(&self) -> Vec<f64> {
        let mut seconds = Vec::new();
        for (number, lost) in self.log.iter().enumerate() {
            let Some(ended) = lost.completed.filter(|_| lost.status == Status::Failed) else {
                continue;
            };
            let disturbed = self
                .disturbances
                .iter()
                .filter(|(at, node)| *node == lost.node && (lost.started..=ended).contains(at));
            let again = self.log[number + 1..]
                .iter()
                .find(|next| next.task == lost.task && next.due == lost.due);
            if let (Some((at, _)), Some(again)) = (disturbed.max(), again) {
                seconds.push(again.started.saturating_sub(*at).as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        seconds
    }
}

pub(super) struct Tables {
    database: Database,
    state: Mutex<State>,
}

impl Tables {
    pub(super) fn new(database: Database) -> Self {
        Self {
            database,
            state: Mutex::default(),
        }
    }

    /// Opens a transaction: the state is nobody else's until it is dropped.
    async fn checked_in(&self, fence: Option<&Fence>) -> Stored<MutexGuard<'_, State>> {
        let state = self.state.lock().await;
        if let Some(fence) = fence {
            let connected = Connector::connect(&self.database, Mode::Direct).await;
            let mut session = connected.map_err(|failure| failure.error("connect"))?;
            fence.check_in_on(&mut session).await?;
        }
        Ok(state)
    }
}

#[async_trait]
impl Store for Tables {
    async fn report(&self, node: &str, counts: Counts) -> Stored<()> {
        self.state
            .lock()
            .await
            .nodes
            .insert(node.to_owned(), counts);
        Ok(())
    }

    async fn pick(&self, node: &str, limit: i64) -> Stored<Pick> {
        let state = self.state.lock().await;
        if state.started.is_none() {
            return Ok(Pick::default());
        }
        let order = |row: &&Row| {
            let mut hasher = DefaultHasher::new();
            (&row.task.name, node).hash(&mut hasher);
            let recent = row.next + Duration::from_secs(1) > state.now();
            (recent, hasher.finish())
        };
        let mut due: Vec<&Row> = state
            .tasks
            .values()
            .filter(|row| state.is_due(row))
            .collect();
        due.sort_by_cached_key(order);
        due.truncate(usize::try_from(limit).unwrap_or(0));
        Ok(Pick {
            due: due.iter().map(|row| row.task.name.clone()).collect(),
            over: due.is_empty() && state.now() > state.ends,
        })
    }

    async fn begin(&self, task: &str, node: &str, fence: Option<&Fence>) -> Stored<Option<Run>> {
        let mut state = self.checked_in(fence).await?;
        let now = state.now();
        let Some(row) = state.tasks.get(task).filter(|row| state.is_due(row)) else {
            return Ok(None);
        };
        let (due, work) = (row.next, row.task.work);
        let fence = fence.map(Fence::token);
        for entry in &mut state.log {
            if entry.task == task && entry.status == Status::Running && entry.fence < fence {
                entry.status = Status::Failed;
                entry.completed = Some(now);
            }
        }
        state.log.push(Entry {
            task: task.to_owned(),
            due,
            node: node.to_owned(),
            status: Status::Running,
            started: now,
            completed: None,
            fence,
        });
        let id = i64::try_from(state.log.len() - 1).unwrap_or(i64::MAX);
        Ok(Some(Run { id, work }))
    }

    async fn complete(&self, run: &Run, fence: Option<&Fence>) -> Stored<()> {
        let mut guard = self.checked_in(fence).await?;
        let state = &mut *guard;
        let now = state.now();
        let number = usize::try_from(run.id).unwrap_or(usize::MAX);
        if let Some(entry) = state.log.get_mut(number)
            && let Some(row) = state.tasks.get_mut(&entry.task)
        {
            entry.status = Status::Completed;
            entry.completed = Some(now);
            row.next = entry.due + row.task.every;
        }
        Ok(())
    }

    async fn nodes(&self) -> Stored<usize> {
        Ok(self.state.lock().await.nodes.len())
    }

    async fn open(&self, tasks: &[Task], time: Duration) -> Stored<()> {
        let mut state = self.state.lock().await;
        state.started = Some(Instant::now());
        state.ends = time;
        for task in tasks {
            let row = Row {
                task: task.clone(),
                next: task.offset,
            };
            state.tasks.insert(task.name.clone(), row);
        }
        Ok(())
    }

    async fn disturbed(&self, node: &str, _: &str, at: Instant) -> Stored<()> {
        let mut state = self.state.lock().await;
        let at = state.now().saturating_sub(at.elapsed());
        state.disturbances.push((at, node.to_owned()));
        Ok(())
    }

    async fn busy(&self) -> Stored<Vec<Busy>> {
        Ok(self.state.lock().await.busy())
    }

    async fn snapshot(&self) -> Stored<Snapshot> {
        let state = self.state.lock().await;
        let count = |status| {
            state
                .log
                .iter()
                .filter(|entry| entry.status == status)
                .count()
        };
        Ok(Snapshot {
            elapsed: state.now(),
            due: size(state.due_times(state.now().min(state.ends)).count()),
            completed: size(count(Status::Completed)),
            failed: size(count(Status::Failed)),
            counts: state.counts(),
            busy: state.busy(),
        })
    }

    async fn audit(&self) -> Stored<Audit> {
        let state = self.state.lock().await;
        let mut completed: HashMap<(&str, Duration), usize> = HashMap::new();
        let mut failed: HashMap<(&str, Duration), usize> = HashMap::new();
        for entry in &state.log {
            let counter = match entry.status {
                Status::Running => continue,
                Status::Completed => &mut completed,
                Status::Failed => &mut failed,
            };
            *counter.entry((&entry.task, entry.due)).or_default() += 1;
        }
        let disabled = state.tasks.values().filter(|row| !row.task.enabled).count();
        let recoveries = state.recoveries();
        let mut audit = Audit {
            tasks: size(state.tasks.len()),
            disabled: size(disabled),
            recovery_median: recoveries.get(recoveries.len() / 2).copied(),
            recovery_longest: recoveries.last().copied(),
            counts: state.counts(),
            ..Audit::default()
        };
        for at in state.due_times(state.ends) {
            audit.due += 1;
            match completed.remove(&at) {
                None => audit.missed += 1,
                Some(1) => {
                    audit.once += 1;
                    audit.recovered += i64::from(failed.contains_key(&at));
                }
                Some(_) => audit.twice += 1,
            }
        }
        // What is left belongs to no due time.
        audit.uncalled = size(completed.values().sum());
        Ok(audit)
    }
}

fn size(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
