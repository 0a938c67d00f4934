//! The attempts in memory, by the same rules as in `library/`.

use std::sync::Arc;

use async_trait::async_trait;
use lockapi::Scheduler;
use lockapi::driver::{Connector, Mode};
use lockapi::memory::Database;
use lockapi::queue::Delivery;
use tokio::sync::Mutex;

use super::state::{Entry, State, Status};
use crate::store::{Counts, Run, Store, Stored};

pub(super) struct Tables {
    database: Database,
    pub(super) scheduler: Arc<dyn Scheduler>,
    pub(super) state: Mutex<State>,
}

impl Tables {
    pub(super) fn new(database: Database, scheduler: Arc<dyn Scheduler>) -> Self {
        Self {
            database,
            scheduler,
            state: Mutex::default(),
        }
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

    async fn over(&self) -> Stored<bool> {
        let state = self.state.lock().await;
        let completed = |task: &str, due| {
            let mut log = state.log.iter();
            log.any(|one| one.status == Status::Completed && one.task == task && one.due == due)
        };
        let over = state.started.is_some() && state.now() > state.ends;
        Ok(over
            && state
                .due_times(state.ends)
                .all(|(task, due)| completed(task, due)))
    }

    async fn begin(&self, delivery: &Delivery, node: &str) -> Stored<Option<Run>> {
        let task = delivery.name();
        let runs = self.scheduler.runs(task, None, 1000).await?;
        let run = runs.iter().find(|run| run.job == Some(delivery.id()));
        let mut state = self.state.lock().await;
        let now = state.now();
        let (Some(run), Some(row)) = (run, state.tasks.get(task)) else {
            return Ok(None);
        };
        let (due, work) = (State::planned(run, row), row.task.work);
        if due > state.ends {
            return Ok(None);
        }
        let token = delivery.ticket().token;
        for entry in &mut state.log {
            let same = entry.task == task && entry.due == due;
            if same && entry.status == Status::Running && entry.token < token {
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
            token,
        });
        let id = i64::try_from(state.log.len() - 1).unwrap_or(i64::MAX);
        Ok(Some(Run { id, work }))
    }

    async fn complete(&self, run: &Run, delivery: Option<&Delivery>) -> Stored<()> {
        // The state is nobody else's until this has ended: what a transaction is elsewhere.
        let mut state = self.state.lock().await;
        if let Some(delivery) = delivery {
            let connected = Connector::connect(&self.database, Mode::Direct).await;
            let mut session = connected.map_err(|failure| failure.error("connect"))?;
            delivery.ack_in(&mut session).await?;
        }
        let now = state.now();
        let number = usize::try_from(run.id).unwrap_or(usize::MAX);
        if let Some(entry) = state.log.get_mut(number) {
            entry.status = Status::Completed;
            entry.completed = Some(now);
        }
        Ok(())
    }
}
