//! Mutex and Lease against the raw driver, in one run.
//!
//! Prints a table and writes a line for each figure to `target/bench/figures.jsonl`. Absolute
//! numbers depend on the machine; the ratios are what to look at.

mod common;
#[path = "common/one_core.rs"]
mod one_core;
#[path = "common/usage.rs"]
mod usage;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Better, Report, SECONDS, Server, connect, median, plain, rate, runtime};
use futures_util::future::join_all;
use lockapi::Backend;
use lockapi::lease::LeaseOptions;
use lockapi::{BackendOptions, LockOwner};
use sqlx::postgres::{PgAdvisoryLock, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use usage::{cpu_time, resident_bytes};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|one| one == "--child") {
        return runtime().block_on(child(&arguments[at + 1], &arguments[at + 2]));
    }
    let mut report = Report::open("locks");
    report.of("sqlx");
    let only = arguments.iter().skip(1).find(|one| !one.starts_with("--"));
    let wanted = |group: &str| only.is_none_or(|only| only == group);
    if wanted("uncontended") {
        report = one_core(report);
    }
    // On a worker, as the tasks of a service are.
    let groups = ["distinct", "one_key", "held", "leases", "readers", "owners"].map(wanted);
    let report = runtime().block_on(async {
        tokio::spawn(all(report, groups))
            .await
            .expect("the figures")
    });
    report.print();
}

fn one_core(mut report: Report) -> Report {
    one_core::on_one_core(|url| {
        let url = url.to_owned();
        runtime().block_on(async {
            tokio::spawn(async move {
                let backend = connect(&url).await;
                uncontended(&mut report, &backend, &url).await;
                report
            })
            .await
            .expect("the figures")
        })
    })
}

async fn all(mut report: Report, groups: [bool; 6]) -> Report {
    let server = Server::start();
    let url = server.url();
    let backend = connect(url).await;
    // First, while no memory that was freed before hides what they take.
    if groups[2] {
        held(&mut report, url).await;
    }
    if groups[0] {
        for tasks in [256, 1000] {
            distinct(&mut report, &backend, url, tasks).await;
        }
    }
    if groups[1] {
        one_key(&mut report, &backend, url).await;
        processes(&mut report, url).await;
    }
    if groups[3] {
        leases(&mut report, url).await;
    }
    if groups[4] {
        readers(&mut report, &backend, url).await;
    }
    if groups[5] {
        owners(&mut report, &backend).await;
    }
    report
}

/// One task, one key: lock and unlock against two round trips of the driver.
async fn uncontended(report: &mut Report, backend: &Arc<dyn Backend>, url: &str) {
    let mutex = backend.mutex("bench/uncontended").expect("a mutex");
    let mut raw = PgConnection::connect(url).await.expect("a connection");
    let mut ours = Vec::new();
    let mut baseline = Vec::new();
    let mut dropped = Vec::new();
    // Measured by turns, so that both see the same noise.
    for _ in 0..4000 {
        let start = Instant::now();
        let guard = mutex.lock().await.expect("the lock");
        guard.unlock().await.expect("unlocked");
        ours.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        for sql in plain::LOCK {
            let query = sqlx::query(sql).bind(1_i64);
            query.fetch_one(&mut raw).await.expect("a row");
        }
        baseline.push(start.elapsed().as_secs_f64() * 1e6);
    }
    for _ in 0..1000 {
        let guard = mutex.lock().await.expect("the lock");
        let start = Instant::now();
        drop(guard);
        dropped.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let baseline = median(baseline);
    report.add(
        "mutex.uncontended",
        "us/pair",
        median(ours),
        baseline,
        "two round trips of sqlx",
        Better::Lower,
    );
    report.add(
        "mutex.drop",
        "us",
        median(dropped),
        baseline / 2.0,
        "one round trip of sqlx",
        Better::Lower,
    );
}

/// Many tasks, a key each, against sqlx's own lock over a pool of 16.
async fn distinct(report: &mut Report, backend: &Arc<dyn Backend>, url: &str, tasks: usize) {
    let ours = rate(tasks, |task, count, until| {
        let mutex = backend
            .mutex(format!("bench/distinct/{task}"))
            .expect("a mutex");
        async move {
            while Instant::now() < until {
                let guard = mutex.lock().await.expect("the lock");
                guard.unlock().await.expect("unlocked");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(Duration::from_mins(1))
        .connect(url)
        .await
        .expect("a pool");
    let baseline = rate(tasks, |task, count, until| {
        let pool = pool.clone();
        async move {
            let lock = PgAdvisoryLock::new(format!("bench/distinct/{task}"));
            while Instant::now() < until {
                let connection = pool.acquire().await.expect("a connection");
                let guard = lock.acquire(connection).await.expect("the lock");
                guard.release_now().await.expect("unlocked");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    report.add(
        &format!("mutex.distinct.{tasks}"),
        "pairs/s",
        ours,
        baseline,
        "PgAdvisoryLock over a pool of 16",
        Better::Higher,
    );
}

/// Many lock owners, each of which holds a lock of its own, that read under one key at once, against as many without an
/// owner: what looking for deadlocks costs. It grows with their number and not with its square.
async fn owners(report: &mut Report, backend: &Arc<dyn Backend>) {
    for owners in [500, 2000] {
        let (mut theirs, mut plain) = (Vec::new(), Vec::new());
        let owned: Vec<LockOwner> = (0..owners).map(|_| LockOwner::new()).collect();
        let mut held = Vec::new();
        for (number, owner) in owned.iter().enumerate() {
            let mutex = backend
                .mutex(format!("bench/owned/{number}"))
                .expect("a mutex");
            held.push(owner.lock(&*mutex).await.expect("a free lock"));
        }
        for _ in 0..5 {
            let rw_lock = backend.rw_lock("bench/owners").expect("a lock");
            let start = Instant::now();
            let guards = join_all(owned.iter().map(|owner| {
                let rw_lock = rw_lock.on(owner);
                async move { rw_lock.read().await.expect("the lock") }
            }));
            drop(guards.await);
            theirs.push(start.elapsed().as_secs_f64() * 1e3);
            let start = Instant::now();
            let guards = join_all(owned.iter().map(|_| async {
                let guard = rw_lock.read().await;
                guard.expect("the lock")
            }));
            drop(guards.await);
            plain.push(start.elapsed().as_secs_f64() * 1e3);
        }
        drop(held);
        report.add(
            &format!("rw_lock.owners.{owners}"),
            "ms",
            median(theirs),
            median(plain),
            "readers without an owner",
            Better::Lower,
        );
    }
}

/// Many tasks that read under one key, against shared locks of the server over a pool of 16.
async fn readers(report: &mut Report, backend: &Arc<dyn Backend>, url: &str) {
    const TASKS: usize = 256;
    let ours = rate(TASKS, |_, count, until| {
        let rw_lock = backend.rw_lock("bench/readers").expect("a lock");
        async move {
            while Instant::now() < until {
                let guard = rw_lock.read().await.expect("the lock");
                guard.unlock().await.expect("unlocked");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(Duration::from_mins(1));
    let pool = pool.connect(url).await.expect("a pool");
    let baseline = rate(TASKS, |_, count, until| {
        let pool = pool.clone();
        async move {
            while Instant::now() < until {
                let mut connection = pool.acquire().await.expect("a connection");
                for sql in [
                    "SELECT pg_advisory_lock_shared(3)",
                    "SELECT pg_advisory_unlock_shared(3)",
                ] {
                    let query = sqlx::query(sql).fetch_one(&mut *connection);
                    query.await.expect("a row");
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    report.add(
        "rw_lock.readers.256",
        "pairs/s",
        ours,
        baseline,
        "pg_advisory_lock_shared over a pool of 16",
        Better::Higher,
    );
}

/// Eight tasks of one process on one key, against `pg_advisory_lock` on eight connections.
async fn one_key(report: &mut Report, backend: &Arc<dyn Backend>, url: &str) {
    let ours = rate(8, |_, count, until| {
        let mutex = backend.mutex("bench/one").expect("a mutex");
        async move {
            while Instant::now() < until {
                let guard = mutex.lock().await.expect("the lock");
                count.fetch_add(1, Ordering::Relaxed);
                guard.unlock().await.expect("unlocked");
            }
        }
    })
    .await;
    let baseline = raw_one_key(url).await;
    report.add(
        "mutex.one_key.8",
        "hand-overs/s",
        ours,
        baseline,
        "pg_advisory_lock on 8 connections",
        Better::Higher,
    );
}

async fn raw_one_key(url: &str) -> f64 {
    rate(8, |_, count, until| {
        let url = url.to_owned();
        async move {
            let mut raw = PgConnection::connect(&url).await.expect("a connection");
            while Instant::now() < until {
                for sql in ["SELECT pg_advisory_lock(2)", "SELECT pg_advisory_unlock(2)"] {
                    sqlx::query(sql).fetch_one(&mut raw).await.expect("a row");
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

/// Four processes with two tasks each on one key.
async fn processes(report: &mut Report, url: &str) {
    let program = std::env::current_exe().expect("this program");
    let children: Vec<_> = (0..4)
        .map(|_| {
            Command::new(&program)
                .args(["--child", url, "bench/processes"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("a child")
        })
        .collect();
    let mut counts = Vec::new();
    for child in children {
        let output = child.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout);
        counts.push(text.trim().parse::<f64>().expect("a count"));
    }
    let total: f64 = counts.iter().sum();
    let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
    let baseline = raw_one_key(url).await;
    report.add(
        "mutex.one_key.4_processes",
        "hand-overs/s",
        total / SECONDS.as_secs_f64(),
        baseline,
        "pg_advisory_lock on 8 connections",
        Better::Higher,
    );
    report.add(
        "mutex.one_key.least_share",
        "of the total",
        least / total,
        0.25,
        "an equal share for 4 processes",
        Better::Higher,
    );
}

async fn child(url: &str, key: &str) {
    let backend = lockapi_sqlx::connect_url(url).await.expect("a backend");
    let count = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + SECONDS;
    let tasks = (0..2).map(|_| {
        let mutex = backend.mutex(key).expect("a mutex");
        let count = Arc::clone(&count);
        tokio::spawn(async move {
            while Instant::now() < until {
                let guard = mutex.lock().await.expect("the lock");
                count.fetch_add(1, Ordering::Relaxed);
                guard.unlock().await.expect("unlocked");
            }
        })
    });
    join_all(tasks).await;
    println!("{}", count.load(Ordering::Relaxed));
}

/// Ten thousand locks at once: memory, and connections.
async fn held(report: &mut Report, url: &str) {
    const LOCKS: u32 = 10_000;
    let options = BackendOptions::default().max_locks(LOCKS as usize + 1);
    let backend = lockapi_sqlx::connect_url_with(url, options)
        .await
        .expect("a backend");
    let first = backend.mutex("bench/held").expect("a mutex");
    let first = first.lock().await.expect("the lock");
    let mutexes: Vec<_> = (0..LOCKS)
        .map(|n| backend.mutex(format!("bench/held/{n}")).expect("a mutex"))
        .collect();
    let before = resident_bytes();
    let mut guards = Vec::with_capacity(LOCKS as usize);
    for mutex in &mutexes {
        guards.push(mutex.lock().await.expect("the lock"));
    }
    let grown = resident_bytes().saturating_sub(before);
    report.add(
        "mutex.held.10000.memory",
        "bytes/lock",
        f64::from(u32::try_from(grown).unwrap_or(u32::MAX)) / f64::from(LOCKS),
        1024.0,
        "the budget of 1 KiB",
        Better::Lower,
    );
    let mut raw = PgConnection::connect(url).await.expect("a connection");
    let sessions: i32 = sqlx::query_scalar(
        "SELECT count(*)::int4 FROM (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
            GROUP BY pid HAVING count(*) > 1) AS holders",
    )
    .fetch_one(&mut raw)
    .await
    .expect("a count");
    report.add(
        "mutex.held.10000.sessions",
        "connections",
        f64::from(sessions),
        1.0,
        "the budget of one",
        Better::Lower,
    );
    drop((first, guards));
}

/// Ten thousand leases: how long a round of renewals takes, and what it costs.
async fn leases(report: &mut Report, url: &str) {
    const LEASES: u32 = 10_000;
    let options = BackendOptions::default().namespace("bench");
    let backend = lockapi_sqlx::connect_url_with(url, options)
        .await
        .expect("a backend");
    let before = resident_bytes();
    let guards = join_all((0..LEASES).map(|n| {
        let options = LeaseOptions::new(Duration::from_secs(30)).renewed_by_hand();
        let lease = backend
            .lease(format!("bench/{n}"), options)
            .expect("a lease");
        async move { lease.acquire().await.expect("the lease") }
    }))
    .await;
    let grown = resident_bytes().saturating_sub(before);
    report.add(
        "lease.held.10000.memory",
        "bytes/lease",
        f64::from(u32::try_from(grown).unwrap_or(u32::MAX)) / f64::from(LEASES),
        1024.0,
        "the budget of 1 KiB",
        Better::Lower,
    );
    let mut rounds = Vec::new();
    let cpu = cpu_time();
    for _ in 0..10 {
        let start = Instant::now();
        for renewed in join_all(guards.iter().map(|guard| guard.renew())).await {
            renewed.expect("renewed");
        }
        rounds.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let cpu = cpu_time().saturating_sub(cpu).as_secs_f64() / 10.0;
    report.add(
        "lease.renew.10000",
        "ms/round",
        median(rounds),
        150.0,
        "the budget of 150 ms",
        Better::Lower,
    );
    report.add(
        "lease.renew.10000.cpu",
        "of a core at 30 s ttl",
        cpu / 10.0,
        0.02,
        "the budget of 2 %",
        Better::Lower,
    );
}
