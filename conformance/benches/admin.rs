//! What an inspector and a person with psql wait for, while much is held and more is queued.
//!
//! Prints a table and writes a line for each figure to `target/bench/figures.jsonl`. One session holds
//! 10,000 advisory locks whose names and ages are noted, among 100,000 names; there are as many
//! leases, a million jobs in a hundred queues of which a few hundred run, and twenty sessions wait.

mod common;

use std::time::{Duration, Instant};

use common::{Better, Report, Server, connect, median, runtime};
use lockapi::admin::{Filter, Inspector, MAX_ENTRIES};
use sqlx::{Connection, PgConnection, Row};

const ROUNDS: usize = 31;
const WAITERS: usize = 20;

/// What one answer may take, in milliseconds.
const LIMIT: f64 = 50.0;

const SCENE: &[&str] = &[
    "INSERT INTO lockapi.lock_session (mark, backend, namespace, owner) VALUES (7, 7, 'default', 'pid 7')",
    "INSERT INTO lockapi.lock_name (lock_key, namespace, name)
     SELECT n, 'default', 'lock ' || n FROM generate_series(1000001, 1100000) AS n",
    "INSERT INTO lockapi.lock_note (backend, lock_key, pair, waits, fence, since)
     SELECT 7, n, false, false, n, now() FROM generate_series(1000001, 1010000) AS n",
    "INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, expires_at)
     SELECT 'default', 'lease ' || n, 0, n, n, 'node-7', '', now(), now(), now() + interval '1 day'
       FROM generate_series(1, 10000) AS n",
    "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, token, lease_until,
                              started_at, attempt, worker)
     SELECT now() - interval '1 hour' + n * interval '1 ms', 20, n % 4, 'default', 'queue ' || n / 4 % 100, 'send', '1',
            CASE WHEN n <= 400 THEN n END, CASE WHEN n <= 400 THEN now() + interval '1 day' END, now(), 1, 'node-7'
       FROM generate_series(1, 1000000) AS n",
    "SELECT pg_advisory_lock(7), count(pg_advisory_lock(n)) FROM generate_series(1000001, 1010000) AS n",
];

/// What a person asks, each by its name.
const VIEWS: &[(&str, &str)] = &[
    ("lock_view", "SELECT count(held_for) FROM lockapi.lock_view"),
    (
        "lock_view.name",
        "SELECT count(held_for) FROM lockapi.lock_view WHERE namespace = 'default' AND name = 'lock 1000007'",
    ),
    (
        "wait_view",
        "SELECT count(blocker_statement) FROM lockapi.wait_view",
    ),
    (
        "lease_view",
        "SELECT count(expires_in) FROM lockapi.lease_view WHERE held",
    ),
    (
        "running_view",
        "SELECT count(lease_left) FROM lockapi.running_view",
    ),
];

fn main() {
    let mut report = Report::open("admin");
    report.of("sqlx");
    let report =
        runtime().block_on(async { tokio::spawn(measured(report)).await.expect("the figures") });
    report.print();
}

async fn measured(mut report: Report) -> Report {
    // Nobody else's locks are to be seen.
    let server = Server::private();
    let url = server.url();
    let backend = connect(url).await;
    let mut holder = PgConnection::connect(url).await.expect("a connection");
    for sql in SCENE {
        sqlx::query(*sql).execute(&mut holder).await.expect("done");
    }
    let mut person = PgConnection::connect(url).await.expect("a connection");
    let waiters = wait(url, &mut person).await;
    inspect(&mut report, &*backend.inspector()).await;
    for (name, sql) in VIEWS {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let row = sqlx::query(*sql).fetch_one(&mut person).await;
            times.push(millis(start));
            assert!(row.expect("a count").get::<i64, _>(0) > 0, "{name}");
        }
        add(&mut report, name, times);
    }
    for waiter in waiters {
        waiter.abort();
    }
    report
}

/// Lets sessions wait for locks that are held.
async fn wait(url: &str, person: &mut PgConnection) -> Vec<tokio::task::JoinHandle<()>> {
    let mut waiters = Vec::new();
    for n in 0..WAITERS {
        let mut waiter = PgConnection::connect(url).await.expect("a connection");
        waiters.push(tokio::spawn(async move {
            let lock = i64::try_from(1_000_001 + n / 2).expect("a small number");
            let asked = sqlx::query("SELECT pg_advisory_lock($1)").bind(lock);
            asked
                .execute(&mut waiter)
                .await
                .expect("granted in the end");
        }));
    }
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    loop {
        let count = sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *person);
        if usize::try_from(count.await.expect("a count")) == Ok(WAITERS) {
            return waiters;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn inspect(report: &mut Report, inspector: &dyn Inspector) {
    let (some, one) = (Filter::new(), Filter::key(1_000_007));
    let most = Filter::new().limit(MAX_ENTRIES);
    let everywhere = Filter::new().everywhere().limit(MAX_ENTRIES);
    /// Repeats a question and checks how many entries its answer has.
    macro_rules! asked {
        ($name:literal, $ask:ident($filter:expr) $count:pat) => {
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                let start = Instant::now();
                let entries = inspector.$ask($filter).await.expect("an answer");
                times.push(millis(start));
                assert!(
                    matches!(entries.len(), $count),
                    "{}: {}",
                    $name,
                    entries.len()
                );
            }
            add(report, $name, times);
        };
    }
    asked!("locks", locks(&some) 1000);
    asked!("locks.10000", locks(&most) 10_000);
    asked!("locks.everywhere", locks(&everywhere) 10_000);
    asked!("locks.key", locks(&one) 1);
    asked!("waiters", waiters(&some) WAITERS);
    asked!("waiters.everywhere", waiters(&everywhere) WAITERS);
    asked!("leases", leases(&some) 1000);
    asked!("leases.10000", leases(&most) 10_000);
    asked!("leases.key", leases(&Filter::key("lease 77")) 1);
    asked!("running", running(&some) 400);
    asked!("running.everywhere", running(&everywhere) 400);
    asked!("running.queue", running(&Filter::queue("queue 7")) 1..=8);
    asked!("audit", audit(&some) 0);
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn add(report: &mut Report, name: &str, times: Vec<f64>) {
    report.add(
        &format!("admin.{name}.p50"),
        "ms",
        median(times),
        LIMIT,
        "the limit of 50 ms",
        Better::Lower,
    );
}
