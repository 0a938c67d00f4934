//! The tables, for the program that watches the workers; by the same rules as in `postgres/`.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;

use super::state::{Row, Status};
use super::tables::Tables;
use crate::audit::Audit;
use crate::plan::{self, Task};
use crate::store::Stored;
use crate::watch::{Busy, Snapshot, Watch};

impl Tables {
    /// When a task is due first.
    async fn first_time(&self, task: &str) -> Stored<SystemTime> {
        let runs = self.scheduler.runs(task, None, 1000).await?;
        if let Some(first) = runs.last() {
            return Ok(first.fire_at);
        }
        let tasks = self.scheduler.list().await?;
        let of = tasks.into_iter().find(|one| one.name == task);
        Ok(of
            .and_then(|one| one.next_at)
            .unwrap_or(SystemTime::UNIX_EPOCH))
    }
}

#[async_trait]
impl Watch for Tables {
    async fn nodes(&self) -> Stored<usize> {
        Ok(self.state.lock().await.nodes.len())
    }

    async fn open(&self, tasks: &[Task], time: Duration) -> Stored<()> {
        let mut state = self.state.lock().await;
        state.started = Some(Instant::now());
        plan::set(&*self.scheduler, tasks).await?;
        // What the scheduler counts from is known by then, and the plan counts from the start.
        state.ends = time;
        for task in tasks {
            let first = self.first_time(&task.name).await?;
            let row = Row {
                task: task.clone(),
                first,
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
