//! Diesel, for the suite.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use diesel::connection::SimpleConnection;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::sql_types::{BigInt, Text};
use diesel::{Connection, PgConnection, QueryDsl, QueryableByName, RunQueryDsl};
use lockapi::BackendOptions;
use lockapi::admin::{Priority, Report};
use lockapi::idempotency::Execution;
use lockapi::limit::{PermitRequest, Verdict};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::table::{Table, TableMode, lock_table_in, try_lock_table_in};
use lockapi::versioned::{BoxError, Outcome, Retry};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use lockapi_conformance::{Accounts, BlockingTransaction, Driver, Problem, Steps, Transaction};
use lockapi_diesel::{VersionedUpdate, transact};

pub(crate) struct Diesel;

#[async_trait]
impl Driver for Diesel {
    fn name(&self) -> &'static str {
        "diesel"
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        lockapi_diesel::connect_url_with(url, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        let manager = || ConnectionManager::<PgConnection>::new(url);
        let full = used_up(manager());
        let backend = lockapi_diesel::connect_manager(manager(), options).await?;
        Ok(Some((backend, Box::new(full))))
    }

    async fn accounts(&self, url: &str) -> Option<Box<dyn Accounts>> {
        Some(Box::new(At(url.to_owned())))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let url = url.to_owned();
        Steps::begin(move |steps| {
            let mut connection = PgConnection::establish(&url).expect("a connection");
            let ended = connection.transaction(|connection| {
                if steps.run(&mut Begun(connection)) {
                    Ok(())
                } else {
                    Err(diesel::result::Error::RollbackTransaction)
                }
            });
            let rolled_back = Err(diesel::result::Error::RollbackTransaction);
            assert!(ended == Ok(()) || ended == rolled_back, "{ended:?}");
        })
    }
}

/// A pool whose only connection is in use until the answer is dropped.
fn used_up(manager: ConnectionManager<PgConnection>) -> Sender<()> {
    let (full, end) = mpsc::channel();
    let (sender, ready) = mpsc::channel();
    thread::spawn(move || {
        let pool = Pool::builder().max_size(1).build(manager);
        let only = pool.expect("a pool").get().expect("its connection");
        sender.send(()).expect("somebody waits");
        end.recv().expect_err("nothing is sent");
        drop(only);
    });
    ready.recv().expect("a full pool");
    full
}

struct Begun<'a>(&'a mut PgConnection);

#[derive(QueryableByName)]
struct Answer {
    #[diesel(sql_type = Text)]
    answer: String,
}

impl BlockingTransaction for Begun<'_> {
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
        lockapi_diesel::with_lock_timeout_in(self.0, timeout, |connection| {
            let named = format!("SELECT q.answer::pg_catalog.text FROM ({sql}) AS q (answer)");
            let rows = diesel::sql_query(named).load::<Answer>(connection)?;
            let first = rows.into_iter().next().ok_or("no row")?;
            Ok(first.answer)
        })
    }

    fn with_priority_in(
        &mut self,
        backend: &dyn Backend,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem> {
        let run = |connection: &mut PgConnection| {
            diesel::sql_query(sql).execute(connection)?;
            Ok::<_, Problem>(())
        };
        let ((), report) = lockapi_diesel::with_priority_in(backend, self.0, priority, run)?;
        Ok(report)
    }

    fn query(&mut self, sql: &'static str) -> String {
        let named = format!("SELECT q.answer::pg_catalog.text FROM ({sql}) AS q (answer)");
        let rows = diesel::sql_query(named).load::<Answer>(self.0);
        rows.expect("a row").swap_remove(0).answer
    }
}

/// Calls that block run where they may.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work);
    done.await.expect("the work does not panic")
}

diesel::table! {
    conformance.account (id) {
        id -> BigInt,
        balance -> BigInt,
        version -> BigInt,
    }
}

/// Opens a connection for each piece of work.
#[derive(Clone)]
struct At(String);

impl At {
    fn open<T>(&mut self, work: impl FnOnce(&mut PgConnection) -> T) -> T {
        work(&mut PgConnection::establish(&self.0).expect("a connection"))
    }
}

fn write(connection: &mut PgConnection, id: i64, seen: i64, balance: i64) -> Result<Outcome> {
    let table =
        lockapi::versioned::Table::new("account", &["id"], "version")?.in_schema("conformance")?;
    let update = VersionedUpdate::of(&table)
        .key::<BigInt, _>(id)
        .set::<BigInt, _>("balance", balance);
    update.run(connection, seen)
}

fn transfer(
    connection: &mut PgConnection,
    retry: &Retry,
    (from, to): (i64, i64),
    amount: i64,
) -> Result<bool, BoxError> {
    let keys = [from, to].map(|id| format!("account/{id}"));
    transact(connection, retry, &[&keys[0], &keys[1]], |conn, attempt| {
        // In the order of the numbers, so that two never wait for each other.
        let mut rows = [(from, -amount), (to, amount)];
        rows.sort_unstable();
        let mut changes = Vec::new();
        for (id, change) in rows {
            let read = account::table
                .find(id)
                .select((account::balance, account::version));
            let (balance, version): (i64, i64) = if attempt.locks() {
                read.for_no_key_update().first(conn)?
            } else {
                read.first(conn)?
            };
            if balance + change < 0 {
                return Ok(false);
            }
            changes.push((id, version, balance + change));
        }
        for (id, seen, balance) in changes {
            write(conn, id, seen, balance)?.updated()?;
        }
        Ok(true)
    })
}

fn execute(connection: &mut PgConnection, retry: &Retry, sql: &str) -> (u32, Result<(), BoxError>) {
    let mut begun = 0;
    let done = transact(connection, retry, &[], |conn, _| {
        begun += 1;
        conn.batch_execute(sql)?;
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
