//! Statements whose answer is lost while the server goes on with them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::BackendExt;
use crate::backend::Backend;
use crate::blocking::block_on;
use crate::engine::{Options, start};
use crate::error::Failure;
use crate::lease::Terms;
use crate::memory::{Database, Session};
use crate::seam::{self, Call, Connection, Connector, Listener, Mode, Row, Rows, Type, Value};

/// What happens to the next runs of a statement.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<(&'static str, Run)>>>);

enum Run {
    /// The connection breaks.
    Cut,
    /// It is carried out, and answered with these rows.
    Answered(Rows),
}

impl Runs {
    fn next(&self, statement: &str) -> Option<Run> {
        let mut runs = self.0.lock().unwrap();
        let first = runs.iter().position(|(name, _)| *name == statement)?;
        Some(runs.remove(first).1)
    }

    /// The answer is lost, and it commits after the repetition, which meets locked rows, has failed.
    fn commits_late(&self, statement: &'static str, repetition: Row) {
        let mut runs = self.0.lock().unwrap();
        runs.push((statement, Run::Cut));
        runs.push((statement, Run::Answered(vec![repetition])));
    }
}

struct Late(Database, Runs);

struct Link(Session, Runs);

impl Connector for Late {
    type Connection = Link;
    type Listener = Link;

    async fn connect(&self, mode: Mode) -> Result<Link, Failure> {
        let session = Connector::connect(&self.0, mode).await?;
        Ok(Link(session, self.1.clone()))
    }

    async fn listener(&self) -> Result<Link, Failure> {
        Connector::connect(self, Mode::Direct).await
    }

    fn spawn(&self, name: &'static str, lane: seam::Lane) {
        self.0.spawn(name, lane);
    }
}

impl Connection for Link {
    async fn run(&mut self, call: &dyn Call) -> Result<Rows, Failure> {
        match self.1.next(call.statement().name) {
            None => self.0.run(call).await,
            Some(Run::Cut) => Err(Failure::statement(None, true, "cut by the test")),
            Some(Run::Answered(rows)) => self.0.run(call).await.map(|_| rows),
        }
    }

    async fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        self.0.script(sql).await
    }
}

impl Listener for Link {
    async fn next(&mut self) -> Result<String, Failure> {
        self.0.next().await
    }
}

fn connect() -> (Arc<dyn Backend>, Database, Runs) {
    let (database, runs) = (Database::new(), Runs::default());
    let late = Late(database.clone(), runs.clone());
    let backend = block_on(start("late", late, Options::default())).unwrap();
    (backend, database, runs)
}

fn hour() -> Terms {
    Terms::new(Duration::from_hours(1)).renewed_by_hand()
}

fn held(database: &Database) -> Vec<i64> {
    database.inspect(|world| {
        let held = world.held_leases().filter(|held| !held.3.released);
        held.map(|(_, _, slot, _)| slot).collect()
    })
}

fn soon_free(database: &Database) {
    let start = Instant::now();
    while !held(database).is_empty() {
        let held = held(database);
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "held by nobody: {held:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_lease_that_a_first_try_gets_after_its_repetition_was_refused_is_given_back() {
    let (backend, database, runs) = connect();
    let null = Value::Null(Type::Int);
    runs.commits_late(
        "lease.acquire",
        Row(vec![Value::Int(1), null, Value::Int(1)]),
    );
    let lease = backend.lease("a", hour()).unwrap();
    assert!(block_on(lease.try_acquire()).unwrap().is_none());
    assert!(runs.0.lock().unwrap().is_empty(), "it was repeated");
    soon_free(&database);
}

#[test]
fn permits_that_a_first_try_gets_after_its_repetition_was_refused_are_given_back() {
    let (backend, database, runs) = connect();
    let semaphore = backend.semaphore("a", 4, hour()).unwrap();
    // So that there are rows.
    let all = block_on(semaphore.try_acquire_many(4)).unwrap().unwrap();
    block_on(all.release()).unwrap();
    let (none, slots) = (Value::Null(Type::Int), Value::Null(Type::Ints));
    let refused = [
        Value::Int(1),
        none,
        slots,
        Value::Bool(false),
        Value::Int(1),
    ];
    runs.commits_late("lease.take", Row(refused.into()));
    assert!(block_on(semaphore.try_acquire_many(2)).unwrap().is_none());
    soon_free(&database);
}

#[test]
fn permits_that_a_first_try_gets_besides_those_of_its_repetition_are_given_back() {
    let (backend, database, runs) = connect();
    let semaphore = backend.semaphore("a", 4, hour()).unwrap();
    let all = block_on(semaphore.try_acquire_many(4)).unwrap().unwrap();
    block_on(all.release()).unwrap();
    let (fence, slots) = (Value::Int(1 << 40), Value::Ints(vec![3, 4]));
    let granted = [
        Value::Int(1),
        fence,
        slots,
        Value::Bool(false),
        Value::Null(Type::Int),
    ];
    runs.commits_late("lease.take", Row(granted.into()));
    let guard = block_on(semaphore.try_acquire_many(2)).unwrap().unwrap();
    soon_free(&database);
    drop(guard);
}

#[test]
fn what_a_repetition_got_stays_held() {
    let (backend, database, runs) = connect();
    runs.0.lock().unwrap().push(("lease.acquire", Run::Cut));
    let lease = backend.lease("a", hour()).unwrap();
    let guard = block_on(lease.try_acquire()).unwrap().unwrap();
    // The lane has asked for what else there is when it has answered this.
    assert!(block_on(lease.try_acquire()).unwrap().is_none());
    assert_eq!(held(&database).len(), 1);
    block_on(guard.renew()).unwrap();
}
