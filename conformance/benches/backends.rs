//! The backends side by side: one caller against the bare driver, and many callers.

mod common;
#[path = "common/one_core.rs"]
mod one_core;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use common::{Better, Report, SECONDS, Server, median, plain, rate, runtime};
use diesel::connection::SimpleConnection;
use diesel::{Connection, PgConnection, RunQueryDsl, select};
use lockapi::{Backend, blocking};
use postgres::{Client, NoTls};

const CALLERS: usize = 256;
const NAMES: [&str; 3] = ["sqlx", "diesel", "sync"];

fn main() {
    let mut report = Report::open("backends");
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with("--"))
        .collect();
    let wanted = |group: &str| only.is_empty() || only.iter().any(|one| one == group);
    if wanted("alone") {
        let server = Server::private();
        all_alone(&mut report, "", server.url());
        one_core::on_one_core(|url| all_alone(&mut report, ".one_core", url));
    }
    if wanted("merged") {
        let server = Server::private();
        merged(&mut report, server.url());
    }
    report.print();
}

async fn connect(name: &str, url: &str) -> lockapi::Result<Arc<dyn Backend>> {
    let backend = match name {
        "diesel" => lockapi_diesel::connect_url(url).await,
        "sync" => lockapi_postgres::connect_url(url).await,
        _ => lockapi_sqlx::connect_url(url).await,
    }?;
    backend.migrate().await?;
    Ok(backend)
}

/// Two round trips: take an advisory lock and release it.
type RoundTrips = Box<dyn FnMut()>;

fn raw_postgres(url: &str) -> RoundTrips {
    let mut client = Client::connect(url, NoTls).expect("a connection");
    let statements = plain::LOCK.map(|sql| client.prepare(sql).expect("prepared"));
    Box::new(move || {
        for statement in &statements {
            client.query_one(statement, &[&1_i64]).expect("a row");
        }
    })
}

/// The two functions as Diesel calls them, which it prepares once.
#[allow(missing_docs, reason = "the macro leaves no room for them")]
mod functions {
    use diesel::define_sql_function;
    use diesel::sql_types::BigInt;

    define_sql_function! { fn pg_try_advisory_lock(key: BigInt) -> Bool }
    define_sql_function! { fn pg_advisory_unlock(key: BigInt) -> Bool }
}

fn raw_diesel(url: &str) -> RoundTrips {
    use functions::{pg_advisory_unlock, pg_try_advisory_lock};
    let mut connection = PgConnection::establish(url).expect("a connection");
    connection.batch_execute("SELECT 1").expect("connected");
    Box::new(move || {
        let locked = select(pg_try_advisory_lock(1_i64)).get_result::<bool>(&mut connection);
        let unlocked = select(pg_advisory_unlock(1_i64)).get_result::<bool>(&mut connection);
        assert!(locked.expect("a row") && unlocked.expect("a row"));
    })
}

fn all_alone(report: &mut Report, suffix: &str, url: &str) {
    alone(report, "sync", suffix, url, raw_postgres);
    alone(report, "diesel", suffix, url, raw_diesel);
}

/// One thread, one key, by blocking calls, against two round trips of the driver.
///
/// How long either takes depends on which cores the threads and the servers of the sessions happen
/// to be on, so this is measured in rounds with new sessions.
fn alone(
    report: &mut Report,
    name: &'static str,
    suffix: &str,
    url: &str,
    raw: fn(&str) -> RoundTrips,
) {
    let (mut ours, mut baseline) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let (round, raw) = (round(name, url), raw(url));
        let (one, other) = turn_by_turn(round, raw);
        ours.push(one);
        baseline.push(other);
    }
    report.of(name);
    report.add(
        &format!("mutex.alone.{name}{suffix}"),
        "us/pair",
        mean(&ours),
        mean(&baseline),
        "two round trips of the driver",
        Better::Lower,
    );
}

fn mean(values: &[f64]) -> f64 {
    let count = u32::try_from(values.len()).expect("a few");
    values.iter().sum::<f64>() / f64::from(count)
}

fn round(name: &str, url: &str) -> RoundTrips {
    let backend = blocking::Backend::connect(connect(name, url)).expect("a backend");
    let mutex = backend.mutex("bench/alone").expect("a mutex");
    Box::new(move || {
        let guard = mutex.lock().expect("the lock");
        guard.unlock().expect("unlocked");
    })
}

/// The medians of both in microseconds, measured by turns, so that both see the same noise. A turn
/// lasts long enough that neither finds a core awake because of the other.
fn turn_by_turn(mut one: RoundTrips, mut other: RoundTrips) -> (f64, f64) {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        for (work, times) in [(&mut one, &mut ones), (&mut other, &mut others)] {
            for _ in 0..100 {
                let start = Instant::now();
                work();
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    (median(ones), median(others))
}

/// Many callers, a key each, on each backend in turn.
fn merged(report: &mut Report, url: &str) {
    let runtime = runtime();
    let mut rates = NAMES.map(|_| Vec::new());
    for _ in 0..3 {
        for (name, rates) in NAMES.iter().zip(&mut rates) {
            let (name, url) = ((*name).to_owned(), url.to_owned());
            let measured = runtime.spawn(async move { tasks(&name, &url).await });
            rates.push(runtime.block_on(measured).expect("a rate"));
        }
    }
    let by_threads = NAMES.map(|name| threads(name, url));
    for (callers, rates) in [("", rates.map(median)), ("_threads", by_threads)] {
        for (name, ours) in NAMES.iter().zip(rates) {
            report.of(name);
            report.add(
                &format!("mutex.merged.{CALLERS}{callers}.{name}"),
                "pairs/s",
                ours,
                rates[0],
                "sqlx in the same run",
                Better::Higher,
            );
        }
    }
}

async fn tasks(name: &str, url: &str) -> f64 {
    let backend = connect(name, url).await.expect("a backend");
    rate(CALLERS, |task, count, until| {
        let mutex = backend
            .mutex(format!("bench/merged/{task}"))
            .expect("a mutex");
        async move {
            while Instant::now() < until {
                let guard = mutex.lock().await.expect("the lock");
                guard.unlock().await.expect("unlocked");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

fn threads(name: &str, url: &str) -> f64 {
    let backend = blocking::Backend::connect(connect(name, url)).expect("a backend");
    let count = AtomicU64::new(0);
    let start = Instant::now();
    let until = start + SECONDS;
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let mutex = backend.mutex(format!("bench/merged/{caller}"));
            let mutex = mutex.expect("a mutex");
            let count = &count;
            scope.spawn(move || {
                while Instant::now() < until {
                    let guard = mutex.lock().expect("the lock");
                    guard.unlock().expect("unlocked");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let count = u32::try_from(count.into_inner()).expect("fewer than four billion");
    f64::from(count) / start.elapsed().as_secs_f64()
}
