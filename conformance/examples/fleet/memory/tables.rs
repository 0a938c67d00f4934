//! Tasks and the log in memory, by the same rules as in `library/`.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use async_trait::async_trait;
use lockapi::Fence;
use lockapi::memory::Database;
use lockapi::seam::{Connector, Mode};
use tokio::sync::{Mutex, MutexGuard};

use super::state::{Entry, Row, State, Status};
use crate::store::{Counts, Pick, Run, Store, Stored};

pub(super) struct Tables {
    database: Database,
    pub(super) state: Mutex<State>,
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

    async fn pick(&self, order: &str, limit: i64) -> Stored<Pick> {
        let state = self.state.lock().await;
        if state.started.is_none() {
            return Ok(Pick::default());
        }
        let key = |row: &&Row| {
            let mut hasher = DefaultHasher::new();
            (&row.task.name, order).hash(&mut hasher);
            let recent = row.next + Duration::from_secs(1) > state.now();
            (recent, hasher.finish())
        };
        let mut due: Vec<&Row> = state
            .tasks
            .values()
            .filter(|row| state.is_due(row))
            .collect();
        due.sort_by_cached_key(key);
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
}
