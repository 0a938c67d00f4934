//! tokio-postgres, for the suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use lockapi::BackendOptions;
use lockapi::admin::{Priority, Report};
use lockapi::idempotency::Execution;
use lockapi::limit::{PermitRequest, Verdict};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::table::{Table, TableMode, lock_table_in, try_lock_table_in};
use lockapi::versioned::{BoxError, Outcome, Retry};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use lockapi_conformance::{Accounts, Driver, Problem, Transaction};
use lockapi_tokio_postgres::{VersionedUpdate, transact};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, NoTls};

pub(crate) struct TokioPostgres;

#[async_trait]
impl Driver for TokioPostgres {
    fn name(&self) -> &'static str {
        "tokio-postgres"
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        lockapi_tokio_postgres::connect_url_with(url, NoTls, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let manager = Manager::new(config.clone(), NoTls);
        let pool = Pool::builder(manager).max_size(1).build().expect("a pool");
        let only = pool.get().await.expect("its connection");
        let connected = lockapi_tokio_postgres::connect_config_with(config, NoTls, options);
        Ok(Some((connected.await?, Box::new((pool, only)))))
    }

    async fn accounts(&self, url: &str) -> Option<Box<dyn Accounts>> {
        Some(Box::new(At(url.to_owned())))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let client = open(url).await;
        client.batch_execute("BEGIN").await.expect("a transaction");
        Box::new(Begun(client))
    }
}

async fn open(url: &str) -> Client {
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (client, socket) = connected.expect("a connection");
    // It ends with the client.
    drop(tokio::spawn(socket));
    client
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

    async fn complete_in(&mut self, execution: &Arc<Execution>, answer: Vec<u8>) -> Result<()> {
        execution.complete_in(&mut self.0, answer).await
    }

    async fn check_all_in(
        &mut self,
        limiter: &Arc<dyn RateLimiter>,
        requests: &[PermitRequest],
    ) -> Result<Verdict> {
        limiter.check_all_in(&mut self.0, requests).await
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
        let run = async |client: &mut Client| Ok(client.query_one(sql, &[]).await?.get(0));
        lockapi_tokio_postgres::with_lock_timeout_in(&mut self.0, timeout, run).await
    }

    async fn with_priority_in(
        &mut self,
        backend: &Arc<dyn Backend>,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem> {
        let run = async |client: &mut Client| {
            client.batch_execute(sql).await?;
            Ok::<_, Problem>(())
        };
        let client = &mut self.0;
        let ((), report) =
            lockapi_tokio_postgres::with_priority_in(&**backend, client, priority, run).await?;
        Ok(report)
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

/// Opens a connection for each piece of work.
struct At(String);

fn table() -> Result<lockapi::versioned::Table> {
    lockapi::versioned::Table::new("account", &["id"], "version")?.in_schema("conformance")
}

async fn write<C: GenericClient + Sync>(
    client: &C,
    id: i64,
    seen: i64,
    balance: i64,
) -> Result<Outcome> {
    let table = table()?;
    let update =
        VersionedUpdate::of(&table)
            .key(id, Type::INT8)
            .set("balance", balance, Type::INT8);
    update.run(client, seen).await
}

#[async_trait]
impl Accounts for At {
    async fn write(&self, id: i64, seen: i64, balance: i64) -> Result<Outcome> {
        write(&open(&self.0).await, id, seen, balance).await
    }

    async fn transfer(
        &self,
        retry: &Retry,
        (from, to): (i64, i64),
        amount: i64,
        times: u32,
    ) -> Result<u32, BoxError> {
        const READ: &str = "SELECT balance, version FROM conformance.account WHERE id = $1";
        const LOCK: &str =
            "SELECT balance, version FROM conformance.account WHERE id = $1 FOR NO KEY UPDATE";
        let mut client = open(&self.0).await;
        let keys = [from, to].map(|id| format!("account/{id}"));
        let keys = [keys[0].as_str(), keys[1].as_str()];
        let mut moved = 0;
        for _ in 0..times {
            let done = transact(&mut client, retry, &keys, |tx, attempt| {
                Box::pin(async move {
                    // In the order of the numbers, so that two never wait for each other.
                    let mut rows = [(from, -amount), (to, amount)];
                    rows.sort_unstable();
                    let mut changes = Vec::new();
                    for (id, change) in rows {
                        let read = if attempt.locks() { LOCK } else { READ };
                        let row = tx.query_one(read, &[&id]).await?;
                        let (balance, version): (i64, i64) = (row.get(0), row.get(1));
                        if balance + change < 0 {
                            return Ok(false);
                        }
                        changes.push((id, version, balance + change));
                    }
                    for (id, seen, balance) in changes {
                        write(tx, id, seen, balance).await?.updated()?;
                    }
                    Ok(true)
                })
            });
            moved += u32::from(done.await?);
        }
        Ok(moved)
    }

    async fn execute(&self, retry: &Retry, sql: &'static str) -> (u32, Result<(), BoxError>) {
        let mut client = open(&self.0).await;
        let mut begun = 0;
        let done = transact(&mut client, retry, &[], |tx, _| {
            begun += 1;
            Box::pin(async move {
                tx.batch_execute(sql).await?;
                Ok(())
            })
        });
        let done = done.await;
        (begun, done)
    }
}
