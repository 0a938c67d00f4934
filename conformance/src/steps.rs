//! Transactions of drivers that block.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::admin::{Priority, Report};
use lockapi::idempotency::Execution;
use lockapi::limit::{PermitRequest, Verdict};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::table::{Table, TableMode};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use tokio::sync::oneshot;

use crate::fixture::{Problem, Transaction};

/// A [`Transaction`] of a driver that blocks.
pub trait BlockingTransaction {
    /// Tries the lock of a mutex for the transaction.
    ///
    /// # Errors
    /// Those of the backend.
    fn try_lock_in(&mut self, mutex: &dyn Mutex) -> Result<bool>;

    /// Waits for the lock of a mutex for the transaction.
    ///
    /// # Errors
    /// Those of the backend.
    fn lock_in(&mut self, mutex: &dyn Mutex, timeout: Duration) -> Result<()>;

    /// Rejects a stale holder.
    ///
    /// # Errors
    /// Those of the backend.
    fn check_in(&mut self, fence: &Fence) -> Result<()>;

    /// Pushes jobs.
    ///
    /// # Errors
    /// Those of the backend.
    fn push_in(&mut self, queue: &dyn Queue, jobs: &[Job]) -> Result<Vec<Pushed>>;

    /// Takes jobs.
    ///
    /// # Errors
    /// Those of the backend.
    fn take_in(&mut self, queue: &dyn Queue, most: usize) -> Result<Vec<Taken>>;

    /// Completes a delivery.
    ///
    /// # Errors
    /// Those of the backend.
    fn ack_in(&mut self, delivery: &Delivery) -> Result<()>;
    /// Records the answer to a request in the transaction.
    ///
    /// # Errors
    /// Those of the backend.
    fn complete_in(&mut self, execution: &Execution, answer: Vec<u8>) -> Result<()>;
    /// Takes of limits for the transaction, of all or of none.
    ///
    /// # Errors
    /// Those of the backend.
    fn check_all_in(
        &mut self,
        limiter: &dyn RateLimiter,
        requests: &[PermitRequest],
    ) -> Result<Verdict>;

    /// Locks a table of the user; without a timeout it does not wait.
    ///
    /// # Errors
    /// Those of the backend.
    fn lock_table_in(
        &mut self,
        table: Table,
        mode: TableMode,
        timeout: Option<Duration>,
    ) -> Result<bool>;

    /// Runs a query of one text column, which waits no longer than that for a lock.
    ///
    /// # Errors
    /// Those of the backend and of the driver.
    fn with_lock_timeout_in(
        &mut self,
        timeout: Duration,
        sql: &'static str,
    ) -> Result<String, Problem>;

    /// Runs a statement with priority over whoever is in its way.
    ///
    /// # Errors
    /// Those of the backend and of the driver.
    fn with_priority_in(
        &mut self,
        backend: &dyn Backend,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem>;

    /// Runs a query of one text column and answers its first row.
    fn query(&mut self, sql: &'static str) -> String;
}

type Work = dyn FnOnce(&mut dyn BlockingTransaction) + Send;

enum Command {
    Do(Box<Work>),
    End { commit: bool },
}

/// What a case does in a transaction, step by step.
pub struct Steps(Receiver<Command>);

impl Steps {
    /// Begins a transaction on a thread of its own: `work` opens it, has the steps
    /// [run](Self::run), and then commits or rolls back, as it is told.
    pub fn begin(work: impl FnOnce(Self) + Send + 'static) -> Box<dyn Transaction> {
        let (steps, queue) = mpsc::channel();
        let (sender, ended) = oneshot::channel();
        thread::spawn(move || {
            work(Self(queue));
            // A case that failed does not wait.
            let _failed = sender.send(());
        });
        Box::new(OnThread { steps, ended })
    }

    /// Runs the steps; answers whether the transaction is to be committed.
    pub fn run(self, transaction: &mut dyn BlockingTransaction) -> bool {
        for step in self.0 {
            match step {
                Command::Do(step) => step(transaction),
                Command::End { commit } => return commit,
            }
        }
        false
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

/// The side of the case.
struct OnThread {
    steps: Sender<Command>,
    ended: oneshot::Receiver<()>,
}

impl OnThread {
    async fn ask<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut dyn BlockingTransaction) -> T + Send + 'static,
    ) -> T {
        let (sender, answer) = oneshot::channel();
        let step = Command::Do(Box::new(move |transaction| {
            drop(sender.send(step(transaction)));
        }));
        self.steps.send(step).expect("the transaction is open");
        answer.await.expect("the step does not panic")
    }

    async fn end(self, commit: bool) {
        let step = Command::End { commit };
        self.steps.send(step).expect("the transaction is open");
        self.ended.await.expect("the transaction ends");
    }
}

#[async_trait]
impl Transaction for OnThread {
    async fn try_lock_in(&mut self, mutex: &Arc<dyn Mutex>) -> Result<bool> {
        let mutex = Arc::clone(mutex);
        self.ask(move |transaction| transaction.try_lock_in(&*mutex))
            .await
    }

    async fn lock_in(&mut self, mutex: &Arc<dyn Mutex>, timeout: Duration) -> Result<()> {
        let mutex = Arc::clone(mutex);
        self.ask(move |transaction| transaction.lock_in(&*mutex, timeout))
            .await
    }

    async fn check_in(&mut self, fence: &Fence) -> Result<()> {
        let fence = fence.clone();
        self.ask(move |transaction| transaction.check_in(&fence))
            .await
    }

    async fn push_in(&mut self, queue: &Arc<dyn Queue>, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        let queue = Arc::clone(queue);
        self.ask(move |transaction| transaction.push_in(&*queue, &jobs))
            .await
    }

    async fn take_in(&mut self, queue: &Arc<dyn Queue>, most: usize) -> Result<Vec<Taken>> {
        let queue = Arc::clone(queue);
        self.ask(move |transaction| transaction.take_in(&*queue, most))
            .await
    }

    async fn ack_in(&mut self, delivery: &Arc<Delivery>) -> Result<()> {
        let delivery = Arc::clone(delivery);
        self.ask(move |transaction| transaction.ack_in(&delivery))
            .await
    }

    async fn complete_in(&mut self, execution: &Arc<Execution>, answer: Vec<u8>) -> Result<()> {
        let execution = Arc::clone(execution);
        self.ask(move |transaction| transaction.complete_in(&execution, answer))
            .await
    }

    async fn check_all_in(
        &mut self,
        limiter: &Arc<dyn RateLimiter>,
        requests: &[PermitRequest],
    ) -> Result<Verdict> {
        let (limiter, requests) = (Arc::clone(limiter), requests.to_vec());
        self.ask(move |transaction| transaction.check_all_in(&*limiter, &requests))
            .await
    }

    async fn lock_table_in(
        &mut self,
        table: Table,
        mode: TableMode,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        self.ask(move |transaction| transaction.lock_table_in(table, mode, timeout))
            .await
    }

    async fn with_lock_timeout_in(
        &mut self,
        timeout: Duration,
        sql: &'static str,
    ) -> Result<String, Problem> {
        self.ask(move |transaction| transaction.with_lock_timeout_in(timeout, sql))
            .await
    }

    async fn with_priority_in(
        &mut self,
        backend: &Arc<dyn Backend>,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem> {
        let backend = Arc::clone(backend);
        self.ask(move |transaction| transaction.with_priority_in(&*backend, priority, sql))
            .await
    }

    async fn query(&mut self, sql: &'static str) -> String {
        self.ask(move |transaction| transaction.query(sql)).await
    }

    async fn commit(self: Box<Self>) {
        self.end(true).await;
    }

    async fn rollback(self: Box<Self>) {
        self.end(false).await;
    }
}
