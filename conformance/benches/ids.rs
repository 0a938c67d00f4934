//! Ids against a function in the database, and versioned updates against reading and comparing.
//!
//! Prints a table and writes a line for each figure to `target/bench/figures.jsonl`. Absolute
//! numbers depend on the machine; the ratios are what to look at.

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Better, Report, Server, median, rate, runtime};
use lockapi::id::{IdOptions, Layout};
use lockapi::versioned::{Retry, Table};
use lockapi_sqlx::VersionedUpdate;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

/// Ids of time, worker and sequence, one for each call, as a function in the database makes them. Who
/// makes ids with a worker number takes turns by a lock of the session.
const FUNCTION: &str = "
    CREATE SEQUENCE bench_id_seq;
    CREATE FUNCTION bench_next_id(worker int8) RETURNS int8 LANGUAGE plpgsql AS $$
    DECLARE
        millis int8;
        sequence int8;
    BEGIN
        PERFORM pg_advisory_lock(worker);
        sequence := nextval('bench_id_seq') % 4096;
        millis := floor(extract(epoch FROM now()) * 1000);
        PERFORM pg_advisory_unlock(worker);
        RETURN ((millis - 1609459200000) << 22) | (worker << 12) | sequence;
    END
    $$;";

/// Counts what is written to the table of worker numbers.
const COUNTED: &str = "
    CREATE SEQUENCE bench_writes;
    CREATE FUNCTION bench_write() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN PERFORM nextval('public.bench_writes'); RETURN NULL; END $$;
    CREATE TRIGGER bench_writes AFTER INSERT OR UPDATE ON lockapi.id_worker
        FOR EACH ROW EXECUTE FUNCTION bench_write();";

const COUNTERS: &str = "
    CREATE TABLE bench_counter (id int8 PRIMARY KEY, n int8 NOT NULL, version int8 NOT NULL);
    INSERT INTO bench_counter VALUES (1, 0, 1), (2, 0, 1);";

/// How long a generator runs at full speed: several renewals.
const SUSTAINED: Duration = Duration::from_secs(20);

fn main() {
    let only = std::env::args().skip(1).find(|one| !one.starts_with("--"));
    let wanted = |group: &str| only.as_deref().is_none_or(|only| only == group);
    let groups = [wanted("snowflake"), wanted("versioned")];
    let mut report = Report::open("ids");
    report.of("sqlx");
    let report = runtime().block_on(async {
        let work = tokio::spawn(all(report, groups));
        work.await.expect("the figures")
    });
    report.print();
}

async fn all(mut report: Report, groups: [bool; 2]) -> Report {
    let server = Server::private();
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .connect(server.url())
        .await
        .expect("a pool");
    if groups[0] {
        snowflake(&mut report, &pool).await;
    }
    if groups[1] {
        versioned(&mut report, &pool).await;
    }
    report
}

/// One generator, one task, id by id.
async fn snowflake(report: &mut Report, pool: &PgPool) {
    let backend = lockapi_sqlx::connect(pool).await.expect("a backend");
    backend.migrate().await.expect("tables");
    run(pool, FUNCTION).await;
    run(pool, COUNTED).await;
    let ids = backend
        .id_gen("bench", IdOptions::default())
        .expect("a generator");
    let mut last = ids.next().await.expect("an id");
    let before = writes(pool).await;
    let start = Instant::now();
    let mut made = 0u32;
    while start.elapsed() < SUSTAINED {
        // The clock is looked at seldom, since it takes as long as an id.
        for _ in 0..1000 {
            let id = ids.next().await.expect("an id");
            assert!(id > last);
            last = id;
        }
        made += 1000;
    }
    let took = start.elapsed().as_secs_f64();
    // Looking counts as well.
    let written = writes(pool).await - before - 1;
    let ours = f64::from(made) / took;
    report.add(
        "ids.one_generator",
        "ids/s",
        ours,
        function(pool, |_| 0).await,
        "a function with one worker number over 8 connections",
        Better::Higher,
    );
    report.add(
        "ids.one_generator.8",
        "ids/s",
        ours,
        function(pool, |connection| connection).await,
        "the same with a worker number for each connection",
        Better::Higher,
    );
    let layout = Layout::default();
    report.add(
        "ids.of_the_limit",
        "ids/s",
        ours,
        f64::from(1000u32 << layout.sequence_bits()),
        "what the layout has room for",
        Better::Higher,
    );
    report.add(
        "ids.statements",
        "a second",
        f64::from(written) / took,
        1.0,
        "one a second",
        Better::Lower,
    );
}

/// How many ids a second the function in the database makes, called over 8 connections.
async fn function(pool: &PgPool, number: impl Fn(i64) -> i64) -> f64 {
    rate(8, |connection, count, until| {
        let pool = pool.clone();
        let worker = number(i64::try_from(connection).expect("a small number"));
        async move {
            let mut connection = pool.acquire().await.expect("a connection");
            while Instant::now() < until {
                let id: i64 = sqlx::query_scalar("SELECT bench_next_id($1)")
                    .bind(worker)
                    .fetch_one(&mut *connection)
                    .await
                    .expect("an id");
                assert!(id > 0);
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

/// How often worker numbers were written, and this was asked.
async fn writes(pool: &PgPool) -> i32 {
    sqlx::query_scalar("SELECT nextval('bench_writes')::int4")
        .fetch_one(pool)
        .await
        .expect("a count")
}

async fn run(pool: &PgPool, sql: &'static str) {
    sqlx::raw_sql(sql).execute(pool).await.expect("a script");
}

const READ: &str = "SELECT n, version FROM bench_counter WHERE id = $1";

/// Eight tasks that increment one row, against reading and comparing until it succeeds.
async fn versioned(report: &mut Report, pool: &PgPool) {
    run(pool, COUNTERS).await;
    let (mut ours, mut baseline) = (Vec::new(), Vec::new());
    // Measured by turns, so that both see the same noise.
    for _ in 0..3 {
        ours.push(ours_on_one_row(pool).await);
        baseline.push(compared_on_one_row(pool).await);
    }
    report.add(
        "versioned.one_row.8",
        "writes/s",
        median(ours),
        median(baseline),
        "read and compare until it succeeds",
        Better::Higher,
    );
}

async fn ours_on_one_row(pool: &PgPool) -> f64 {
    let table = Table::new("bench_counter", &["id"], "version").expect("a table");
    let retry = Retry::default()
        .attempts(1000)
        .deadline(Duration::from_mins(1))
        .budget(1_000_000);
    rate(8, |_, count, until| {
        let (pool, table, retry) = (pool.clone(), table.clone(), retry.clone());
        async move {
            let mut connection = pool.acquire().await.expect("a connection");
            while Instant::now() < until {
                let mut attempts = retry.begin(&["bench_counter/1"]).expect("attempts");
                loop {
                    attempts.next().await.expect("its turn");
                    let (n, version): (i64, i64) = sqlx::query_as(READ)
                        .bind(1_i64)
                        .fetch_one(&mut *connection)
                        .await
                        .expect("the row");
                    let update = VersionedUpdate::of(&table).key(1_i64).set("n", n + 1);
                    let outcome = update.run(&mut connection, version).await;
                    match outcome.expect("an outcome").updated() {
                        Ok(_) => break attempts.succeed(()),
                        Err(conflict) => attempts.again(conflict, true).expect("attempts are left"),
                    }
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

async fn compared_on_one_row(pool: &PgPool) -> f64 {
    rate(8, |_, count, until| {
        let pool = pool.clone();
        async move {
            let mut connection = pool.acquire().await.expect("a connection");
            while Instant::now() < until {
                let (n, version): (i64, i64) = sqlx::query_as(READ)
                    .bind(2_i64)
                    .fetch_one(&mut *connection)
                    .await
                    .expect("the row");
                let done = sqlx::query(
                    "UPDATE bench_counter SET n = $2, version = version + 1 WHERE id = 2 AND version = $1",
                )
                .bind(version)
                .bind(n + 1)
                .execute(&mut *connection)
                .await
                .expect("an outcome");
                count.fetch_add(done.rows_affected(), Ordering::Relaxed);
            }
        }
    })
    .await
}
