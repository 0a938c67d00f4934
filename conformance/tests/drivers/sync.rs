//! The blocking `postgres` crate, for the suite.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::admin::{Priority, Report};
use lockapi::idempotency::Execution;
use lockapi::limit::{PermitRequest, Verdict};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::table::{Table, TableMode, lock_table_in, try_lock_table_in};
use lockapi::versioned::{BoxError, Outcome, Retry};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use lockapi_conformance::{Accounts, BlockingTransaction, Driver, Problem, Steps, Transaction};
use lockapi_postgres::{VersionedUpdate, transact};
use r2d2_postgres::PostgresConnectionManager;
use r2d2_postgres::postgres::types::Type;
use r2d2_postgres::postgres::{self, Client, Config, GenericClient, NoTls};

pub(crate) struct Sync;

#[async_trait]
impl Driver for Sync {
    fn name(&self) -> &'static str {
        "sync"
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        lockapi_postgres::connect_url_with(url, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + std::marker::Sync>)>> {
        let config: Config = url.parse().expect("a URL");
        let manager = || PostgresConnectionManager::new(config.clone(), NoTls);
        let full = used_up(manager());
        let backend = lockapi_postgres::connect_manager(manager(), options).await?;
        Ok(Some((backend, Box::new(full))))
    }

    async fn accounts(&self, url: &str) -> Option<Box<dyn Accounts>> {
        Some(Box::new(At(url.to_owned())))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let url = url.to_owned();
        Steps::begin(move |steps| {
            let mut client = Client::connect(&url, NoTls).expect("a connection");
            let mut transaction = client.transaction().expect("a transaction");
            if steps.run(&mut Begun(&mut transaction)) {
                transaction.commit().expect("committed");
            } else {
                transaction.rollback().expect("rolled back");
            }
        })
    }
}

/// A pool whose only connection is in use, on a thread of its own, until the answer is dropped.
fn used_up(manager: PostgresConnectionManager<NoTls>) -> Sender<()> {
    let (full, end) = mpsc::channel();
    let (sender, ready) = mpsc::channel();
    thread::spawn(move || {
        let pool = r2d2::Pool::builder().max_size(1).build(manager);
        let only = pool.expect("a pool").get().expect("its connection");
        sender.send(()).expect("somebody waits");
        end.recv().expect_err("nothing is sent");
        drop(only);
    });
    ready.recv().expect("a full pool");
    full
}

struct Begun<'a, 'c>(&'a mut postgres::Transaction<'c>);

impl BlockingTransaction for Begun<'_, '_> {
    fn try_lock_in(&mut self, mutex: &dyn Mutex) -> Result<bool> {
        mutex.try_lock_in(self.0)
    }

    fn lock_in(&mut self, mutex: &dyn Mutex, timeout: Duration) -> Result<()> {
        mutex.lock_in(self.0, timeout)
    }

    fn check_in(&mut self, fence: &Fence) -> Result<()> {
        fence.check_in(self.0)
    }

    fn push_in(&mut self, queue: &dyn Queue, jobs: &[Job]) -> Result<Vec<Pushed>> {
        queue.push_in(self.0, jobs)
    }

    fn take_in(&mut self, queue: &dyn Queue, most: usize) -> Result<Vec<Taken>> {
        queue.take_in(self.0, most)
    }

    fn ack_in(&mut self, delivery: &Delivery) -> Result<()> {
        delivery.ack_in(self.0)
    }

    fn complete_in(&mut self, execution: &Execution, answer: Vec<u8>) -> Result<()> {
        execution.complete_in(self.0, answer)
    }

    fn check_all_in(
        &mut self,
        limiter: &dyn RateLimiter,
        requests: &[PermitRequest],
    ) -> Result<Verdict> {
        limiter.check_all_in(self.0, requests)
    }

    fn lock_table_in(
        &mut self,
        table: Table,
        mode: TableMode,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        match timeout {
            None => try_lock_table_in(self.0, table, mode),
            Some(timeout) => {
                lock_table_in(self.0, table, mode, timeout)?;
                Ok(true)
            }
        }
    }

    fn with_lock_timeout_in(
        &mut self,
        timeout: Duration,
        sql: &'static str,
    ) -> Result<String, Problem> {
        lockapi_postgres::with_lock_timeout_in(self.0, timeout, |connection| {
            Ok(connection.query_one(sql, &[])?.get(0))
        })
    }

    fn with_priority_in(
        &mut self,
        backend: &dyn Backend,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem> {
        let run = |connection: &mut postgres::Transaction<'_>| {
            connection.batch_execute(sql)?;
            Ok::<_, Problem>(())
        };
        let ((), report) = lockapi_postgres::with_priority_in(backend, self.0, priority, run)?;
        Ok(report)
    }

    fn query(&mut self, sql: &'static str) -> String {
        self.0.query_one(sql, &[]).expect("a row").get(0)
    }
}

/// Calls that block run where they may.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work);
    done.await.expect("the work does not panic")
}

/// Opens a connection for each piece of work.
#[derive(Clone)]
struct At(String);

impl At {
    fn open<T>(&mut self, work: impl FnOnce(&mut Client) -> T) -> T {
        work(&mut Client::connect(&self.0, NoTls).expect("a connection"))
    }
}

fn write<C: GenericClient>(client: &mut C, id: i64, seen: i64, balance: i64) -> Result<Outcome> {
    let table =
        lockapi::versioned::Table::new("account", &["id"], "version")?.in_schema("conformance")?;
    let update =
        VersionedUpdate::of(&table)
            .key(id, Type::INT8)
            .set("balance", balance, Type::INT8);
    update.run(client, seen)
}

fn transfer(
    client: &mut Client,
    retry: &Retry,
    (from, to): (i64, i64),
    amount: i64,
) -> Result<bool, BoxError> {
    const READ: &str = "SELECT balance, version FROM conformance.account WHERE id = $1";
    const LOCK: &str =
        "SELECT balance, version FROM conformance.account WHERE id = $1 FOR NO KEY UPDATE";
    let keys = [from, to].map(|id| format!("account/{id}"));
    transact(client, retry, &[&keys[0], &keys[1]], |tx, attempt| {
        // In the order of the numbers, so that two never wait for each other.
        let mut rows = [(from, -amount), (to, amount)];
        rows.sort_unstable();
        let mut changes = Vec::new();
        for (id, change) in rows {
            let read = if attempt.locks() { LOCK } else { READ };
            let row = tx.query_one(read, &[&id])?;
            let (balance, version): (i64, i64) = (row.get(0), row.get(1));
            if balance + change < 0 {
                return Ok(false);
            }
            changes.push((id, version, balance + change));
        }
        for (id, seen, balance) in changes {
            write(tx, id, seen, balance)?.updated()?;
        }
        Ok(true)
    })
}

fn execute(client: &mut Client, retry: &Retry, sql: &str) -> (u32, Result<(), BoxError>) {
    let mut begun = 0;
    let done = transact(client, retry, &[], |tx, _| {
        begun += 1;
        tx.batch_execute(sql)?;
        Ok(())
    });
    (begun, done)
}

#[async_trait]
impl Accounts for At {
    async fn write(&self, id: i64, seen: i64, balance: i64) -> Result<Outcome> {
        let mut connection = self.clone();
        off_runtime(move || connection.open(|it| write(it, id, seen, balance))).await
    }

    async fn transfer(
        &self,
        retry: &Retry,
        pair: (i64, i64),
        amount: i64,
        times: u32,
    ) -> Result<u32, BoxError> {
        let (mut connection, retry) = (self.clone(), retry.clone());
        off_runtime(move || {
            connection.open(|it| {
                let mut moved = 0;
                for _ in 0..times {
                    moved += u32::from(transfer(it, &retry, pair, amount)?);
                }
                Ok(moved)
            })
        })
        .await
    }

    async fn execute(&self, retry: &Retry, sql: &'static str) -> (u32, Result<(), BoxError>) {
        let (mut connection, retry) = (self.clone(), retry.clone());
        off_runtime(move || connection.open(|it| execute(it, &retry, sql))).await
    }
}
