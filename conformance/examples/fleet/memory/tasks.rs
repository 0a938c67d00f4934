//! Workers as tasks of this process.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use lockapi::memory::Database;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::tables::Tables;
use crate::Result;
use crate::args::Safety;
use crate::conduct::{Fleet, Member, State, node_name};
use crate::worker::{Node, tasks::Worker};

pub(super) struct Tasks {
    database: Database,
    tables: Arc<Tables>,
    safety: Safety,
    workers: Mutex<Vec<Task>>,
}

struct Task {
    node: String,
    state: State,
    stopped: watch::Sender<bool>,
    handle: JoinHandle<bool>,
}

impl Tasks {
    pub(super) fn new(database: Database, tables: Arc<Tables>, safety: Safety) -> Self {
        Self {
            database,
            tables,
            safety,
            workers: Mutex::default(),
        }
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Task>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, node: &str, state: State) -> Result<()> {
        let mut workers = self.workers();
        let task = workers.iter_mut().find(|task| task.node == node);
        let task = task.ok_or("no such worker")?;
        task.state = state;
        task.stopped.send_replace(state == State::Stopped);
        if state == State::Killed {
            // Drops the worker with its backend, whose sessions end.
            task.handle.abort();
        }
        Ok(())
    }
}

#[async_trait]
impl Fleet for Tasks {
    fn start(&self, _: Option<&str>) -> Result<String> {
        let mut workers = self.workers();
        let node = node_name("worker", workers.len() + 1);
        let (stopped, receiver) = watch::channel(false);
        let work = work(
            Node::new(node.clone(), self.safety),
            self.database.clone(),
            Arc::clone(&self.tables),
        );
        workers.push(Task {
            node: node.clone(),
            state: State::Running,
            stopped,
            handle: tokio::spawn(unless_stopped(receiver, work)),
        });
        Ok(node)
    }

    fn kill(&self, node: &str) -> Result<()> {
        self.change(node, State::Killed)
    }

    fn stop(&self, node: &str) -> Result<()> {
        self.change(node, State::Stopped)
    }

    fn resume(&self, node: &str) -> Result<()> {
        self.change(node, State::Running)
    }

    /// The database can only end all sessions there are.
    async fn end_sessions(&self, _: &str) -> Result<Vec<String>> {
        self.database.sever();
        let all = self.workers();
        Ok(all.iter().map(|task| task.node.clone()).collect())
    }

    fn members(&self) -> Result<Vec<Member>> {
        let mut members = Vec::new();
        for task in self.workers().iter_mut() {
            if task.handle.is_finished() && task.state != State::Killed {
                task.state = State::Done;
            }
            members.push(Member {
                node: task.node.clone(),
                state: task.state,
            });
        }
        Ok(members)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.workers().iter() {
            task.handle.abort();
        }
    }
}

async fn work(node: Node, database: Database, tables: Arc<Tables>) -> bool {
    let Ok(backend) = database.connect().await else {
        return false;
    };
    Worker::new(node, backend, tables).work().await.is_ok()
}

/// Does not let a future go on while it is stopped.
async fn unless_stopped<F: Future>(mut stopped: watch::Receiver<bool>, work: F) -> F::Output {
    let mut work = pin!(work);
    loop {
        // The sender lives as long as the fleet, which ends this task with it.
        if stopped.wait_for(|stopped| !stopped).await.is_err() {
            return work.await;
        }
        tokio::select! {
            biased;
            _ = stopped.changed() => {}
            done = &mut work => return done,
        }
    }
}
