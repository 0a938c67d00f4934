//! sqlx, for the suite.

use std::sync::Arc;
use std::time::Duration;

use super::version::{lockapi_sqlx, sqlx};
use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::admin::{Priority, Report};
use lockapi::idempotency::Execution;
use lockapi::limit::{PermitRequest, Verdict};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::table::{Table, TableMode, lock_table_in, try_lock_table_in};
use lockapi::versioned::{BoxError, Outcome, Retry};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use lockapi_conformance::{Accounts, Driver, Problem, Transaction};
use lockapi_sqlx::{VersionedUpdate, transact};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool, Postgres as Database};

pub(crate) struct Sqlx;

#[async_trait]
impl Driver for Sqlx {
    fn name(&self) -> &'static str {
        "sqlx"
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        lockapi_sqlx::connect_url_with(url, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(1))
            .connect(url)
            .await
            .expect("a pool");
        let only = pool.acquire().await.expect("its connection");
        let backend = lockapi_sqlx::connect_with(&pool, options).await?;
        Ok(Some((backend, Box::new((pool, only)))))
    }

    async fn accounts(&self, url: &str) -> Option<Box<dyn Accounts>> {
        let pool = PgPoolOptions::new().max_connections(6).connect(url).await;
        Some(Box::new(InPool(pool.expect("a pool"))))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let pool = PgPool::connect(url).await.expect("a pool");
        let transaction = pool.begin().await.expect("a transaction");
        Box::new(Begun(transaction))
    }
}

struct Begun(sqlx::Transaction<'static, Database>);

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
        lockapi_sqlx::with_lock_timeout_in(&mut self.0, timeout, |connection| {
            Box::pin(async move { Ok(sqlx::query_scalar(sql).fetch_one(connection).await?) })
        })
        .await
    }

    async fn with_priority_in(
        &mut self,
        backend: &Arc<dyn Backend>,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem> {
        let ((), report) =
            lockapi_sqlx::with_priority_in(&**backend, &mut self.0, priority, |connection| {
                Box::pin(async move {
                    sqlx::query(sql).execute(connection).await?;
                    Ok::<_, Problem>(())
                })
            })
            .await?;
        Ok(report)
    }

    async fn query(&mut self, sql: &'static str) -> String {
        sqlx::query_scalar(sql)
            .fetch_one(&mut *self.0)
            .await
            .expect("a row")
    }

    async fn commit(self: Box<Self>) {
        self.0.commit().await.expect("committed");
    }

    async fn rollback(self: Box<Self>) {
        self.0.rollback().await.expect("rolled back");
    }
}

struct InPool(PgPool);

fn table() -> Result<lockapi::versioned::Table> {
    lockapi::versioned::Table::new("account", &["id"], "version")?.in_schema("conformance")
}

async fn read(
    connection: &mut PgConnection,
    id: i64,
    locked: bool,
) -> Result<(i64, i64), sqlx::Error> {
    const READ: &str = "SELECT balance, version FROM conformance.account WHERE id = $1";
    const LOCK: &str =
        "SELECT balance, version FROM conformance.account WHERE id = $1 FOR NO KEY UPDATE";
    let read = sqlx::query_as(if locked { LOCK } else { READ });
    read.bind(id).fetch_one(connection).await
}

#[async_trait]
impl Accounts for InPool {
    async fn write(&self, id: i64, seen: i64, balance: i64) -> Result<Outcome> {
        let table = table()?;
        let mut connection = self.0.acquire().await.expect("a connection");
        let update = VersionedUpdate::of(&table).key(id).set("balance", balance);
        update.run(&mut connection, seen).await
    }

    async fn transfer(
        &self,
        retry: &Retry,
        (from, to): (i64, i64),
        amount: i64,
        times: u32,
    ) -> Result<u32, BoxError> {
        let table = &table()?;
        let keys = [from, to].map(|id| format!("account/{id}"));
        let keys = [keys[0].as_str(), keys[1].as_str()];
        let mut moved = 0;
        for _ in 0..times {
            let done = transact(&self.0, retry, &keys, |mut tx| async move {
                let locked = tx.attempt().locks();
                // In the order of the numbers, so that two never wait for each other.
                let mut rows = [(from, -amount), (to, amount)];
                rows.sort_unstable();
                let mut changes = Vec::new();
                for (id, change) in rows {
                    let (balance, version) = read(&mut tx, id, locked).await?;
                    if balance + change < 0 {
                        return Ok(false);
                    }
                    changes.push((id, version, balance + change));
                }
                for (id, seen, balance) in changes {
                    let update = VersionedUpdate::of(table).key(id).set("balance", balance);
                    update.run(&mut tx, seen).await?.updated()?;
                }
                Ok(true)
            });
            moved += u32::from(done.await?);
        }
        Ok(moved)
    }

    async fn execute(&self, retry: &Retry, sql: &'static str) -> (u32, Result<(), BoxError>) {
        let mut begun = 0;
        let done = transact(&self.0, retry, &[], |mut tx| {
            begun += 1;
            async move {
                sqlx::query(sql).execute(&mut *tx).await?;
                Ok(())
            }
        });
        let done = done.await;
        (begun, done)
    }
}
