//! diesel-async, for the suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use diesel::sql_types::{BigInt, Text};
use diesel::{QueryDsl, QueryableByName};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};
use lockapi::BackendOptions;
use lockapi::admin::{Priority, Report};
use lockapi::idempotency::Execution;
use lockapi::limit::{PermitRequest, Verdict};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::table::{Table, TableMode, lock_table_in, try_lock_table_in};
use lockapi::versioned::{BoxError, Outcome, Retry};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use lockapi_conformance::{Accounts, Driver, Problem, Transaction};
use lockapi_diesel_async::{VersionedUpdate, transact};
use tokio_postgres::NoTls;

pub(crate) struct DieselAsync;

#[async_trait]
impl Driver for DieselAsync {
    fn name(&self) -> &'static str {
        "diesel-async"
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        lockapi_diesel_async::connect_url_with(url, NoTls, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(url);
        let pool = Pool::builder(manager).max_size(1).build().expect("a pool");
        let only = pool.get().await.expect("its connection");
        let config = url.parse().expect("a URL");
        let connected = lockapi_diesel_async::connect_config_with(config, NoTls, options);
        Ok(Some((connected.await?, Box::new((pool, only)))))
    }

    async fn accounts(&self, url: &str) -> Option<Box<dyn Accounts>> {
        Some(Box::new(At(url.to_owned())))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let mut connection = open(url).await;
        let begun = AnsiTransactionManager::begin_transaction(&mut connection).await;
        begun.expect("a transaction");
        Box::new(Begun(connection))
    }
}

async fn open(url: &str) -> AsyncPgConnection {
    let connected = AsyncPgConnection::establish(url).await;
    connected.expect("a connection")
}

#[derive(QueryableByName)]
struct Answer {
    #[diesel(sql_type = Text)]
    answer: String,
}

async fn answer(connection: &mut AsyncPgConnection, sql: &str) -> diesel::QueryResult<String> {
    let named = format!("SELECT q.answer::pg_catalog.text FROM ({sql}) AS q (answer)");
    let answer: Answer = diesel::sql_query(named).get_result(connection).await?;
    Ok(answer.answer)
}

/// A connection with an open transaction.
struct Begun(AsyncPgConnection);

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
        wants: &[PermitRequest],
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
        let run = async |connection: &mut _| Ok(answer(connection, sql).await?);
        lockapi_diesel_async::with_lock_timeout_in(&mut self.0, timeout, run).await
    }

    async fn with_priority_in(
        &mut self,
        backend: &Arc<dyn Backend>,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem> {
        let run = async |connection: &mut AsyncPgConnection| {
            connection.batch_execute(sql).await?;
            Ok::<_, Problem>(())
        };
        let connection = &mut self.0;
        let ((), report) =
            lockapi_diesel_async::with_priority_in(&**backend, connection, priority, run).await?;
        Ok(report)
    }

    async fn query(&mut self, sql: &'static str) -> String {
        answer(&mut self.0, sql).await.expect("a row")
    }

    async fn commit(mut self: Box<Self>) {
        let committed = AnsiTransactionManager::commit_transaction(&mut self.0).await;
        committed.expect("committed");
    }

    async fn rollback(mut self: Box<Self>) {
        let rolled_back = AnsiTransactionManager::rollback_transaction(&mut self.0).await;
        rolled_back.expect("rolled back");
    }
}

diesel::table! {
    conformance.account (id) {
        id -> BigInt,
        balance -> BigInt,
        version -> BigInt,
    }
}

/// Opens a connection for each piece of work.
struct At(String);

async fn write(
    connection: &mut AsyncPgConnection,
    id: i64,
    seen: i64,
    balance: i64,
) -> Result<Outcome> {
    let table =
        lockapi::versioned::Table::new("account", &["id"], "version")?.in_schema("conformance")?;
    let update = VersionedUpdate::of(&table)
        .key::<BigInt, _>(id)
        .set::<BigInt, _>("balance", balance);
    update.run(connection, seen).await
}

#[async_trait]
impl Accounts for At {
    async fn write(&self, id: i64, seen: i64, balance: i64) -> Result<Outcome> {
        write(&mut open(&self.0).await, id, seen, balance).await
    }

    async fn transfer(
        &self,
        retry: &Retry,
        (from, to): (i64, i64),
        amount: i64,
        times: u32,
    ) -> Result<u32, BoxError> {
        let mut connection = open(&self.0).await;
        let keys = [from, to].map(|id| format!("account/{id}"));
        let keys = [keys[0].as_str(), keys[1].as_str()];
        let mut moved = 0;
        for _ in 0..times {
            let done = transact(&mut connection, retry, &keys, |conn, attempt| {
                Box::pin(async move {
                    // In the order of the numbers, so that two never wait for each other.
                    let mut rows = [(from, -amount), (to, amount)];
                    rows.sort_unstable();
                    let mut changes = Vec::new();
                    for (id, change) in rows {
                        let read = account::table
                            .find(id)
                            .select((account::balance, account::version));
                        let (balance, version): (i64, i64) = if attempt.locks() {
                            read.for_no_key_update().first(conn).await?
                        } else {
                            read.first(conn).await?
                        };
                        if balance + change < 0 {
                            return Ok(false);
                        }
                        changes.push((id, version, balance + change));
                    }
                    for (id, seen, balance) in changes {
                        write(conn, id, seen, balance).await?.updated()?;
                    }
                    Ok(true)
                })
            });
            moved += u32::from(done.await?);
        }
        Ok(moved)
    }

    async fn execute(&self, retry: &Retry, sql: &'static str) -> (u32, Result<(), BoxError>) {
        let mut connection = open(&self.0).await;
        let mut begun = 0;
        let done = transact(&mut connection, retry, &[], |conn, _| {
            begun += 1;
            Box::pin(async move {
                conn.batch_execute(sql).await?;
                Ok(())
            })
        });
        let done = done.await;
        (begun, done)
    }
}
