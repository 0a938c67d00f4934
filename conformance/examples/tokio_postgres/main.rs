//! A backend on tokio-postgres, and the suite on it.
//!
//! `backend.rs` and `transaction.rs` are the backend; this file mounts the suite.
//!
//! ```text
//! cargo nextest run -p lockapi-conformance --example tokio_postgres
//! cargo test -p lockapi-conformance --example tokio_postgres
//! ```

pub mod backend;
pub mod transaction;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::admin::{Priority, Report};
use lockapi::limit::{Verdict, Want};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::table::{
    Table, TableMode, limit_waits_in, lock_table_in, prioritize_in, try_lock_table_in,
};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use lockapi_conformance::{Driver, Face, Need, Postgres, Problem, Transaction};
use tokio_postgres::{Client, NoTls};

fn main() {
    // One face is enough for a connector; `lockapi_conformance::run` goes through all of them.
    lockapi_conformance::run_through(&[Face::Dyn], &[Arc::new(Postgres::new(TokioPostgres))]);
}

struct TokioPostgres;

#[async_trait]
impl Driver for TokioPostgres {
    fn name(&self) -> &'static str {
        "tokio-postgres"
    }

    fn offers(&self, need: Need) -> bool {
        !matches!(need, Need::Pool | Need::Accounts)
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        backend::connect_url(url, options).await
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let connected = tokio_postgres::connect(url, NoTls).await;
        let (client, socket) = connected.expect("a connection");
        // It ends with the client.
        drop(tokio::spawn(socket));
        client.batch_execute("BEGIN").await.expect("a transaction");
        Box::new(Begun(client))
    }
}

/// A client with an open transaction; a `tokio_postgres::Transaction` cannot own its client.
struct Begun(Client);

#[async_trait]
impl Transaction for Begun {
    async fn try_lock_in(&mut self, mutex: &Arc<dyn Mutex>) -> Result<bool> {
        mutex.try_lock_in(&mut self.0).await
    }

    async fn lock_in(&mut self, mutex: &Arc<dyn Mutex>, timeout: Duration) -> Result<()> {
        mutex.lock_in(&mut self.0, timeout).await
    }

    async fn check_in(&mut self, fence: &Fence) -> Result<()> {
        fence.check_in(&mut self.0).await
    }

    async fn push_in(&mut self, queue: &Arc<dyn Queue>, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        queue.push_in(&mut self.0, &jobs).await
    }

    async fn take_in(&mut self, queue: &Arc<dyn Queue>, most: usize) -> Result<Vec<Taken>> {
        queue.take_in(&mut self.0, most).await
    }

    async fn ack_in(&mut self, delivery: &Arc<Delivery>) -> Result<()> {
        delivery.ack_in(&mut self.0).await
    }

    async fn check_all_in(
        &mut self,
        limiter: &Arc<dyn RateLimiter>,
        wants: &[Want],
    ) -> Result<Verdict> {
        limiter.check_all_in(&mut self.0, wants).await
    }

    async fn lock_table_in(
        &mut self,
        table: Table,
        mode: TableMode,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        match timeout {
            None => try_lock_table_in(&mut self.0, table, mode).await,
            Some(timeout) => {
                lock_table_in(&mut self.0, table, mode, timeout).await?;
                Ok(true)
            }
        }
    }

    async fn with_lock_timeout_in(
        &mut self,
        timeout: Duration,
        sql: &'static str,
    ) -> Result<String, Problem> {
        const LIMITED: &str = "with_lock_timeout_in";
        let limited = limit_waits_in(&mut self.0, timeout).await;
        let limited = limited.map_err(|error| error.during(LIMITED))?;
        let row = self.0.query_one(sql, &[]).await;
        let lifted = limited.lift_in(&mut self.0).await;
        let answer = row?.get(0);
        lifted.map_err(|error| error.during(LIMITED))?;
        Ok(answer)
    }

    async fn with_priority_in(
        &mut self,
        backend: &Arc<dyn Backend>,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem> {
        let scope = prioritize_in(&mut self.0, backend.operator(), priority).await?;
        self.0.batch_execute(sql).await?;
        Ok(scope.finish().await)
    }

    async fn query(&mut self, sql: &'static str) -> String {
        self.0.query_one(sql, &[]).await.expect("a row").get(0)
    }

    async fn commit(self: Box<Self>) {
        self.0.batch_execute("COMMIT").await.expect("committed");
    }

    async fn rollback(self: Box<Self>) {
        self.0.batch_execute("ROLLBACK").await.expect("rolled back");
    }
}
