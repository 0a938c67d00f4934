//! RateLimiter against a function that guards a fixed window by an advisory lock, in one run.
//!
//! The function is called once a round trip over a pool of 16. Prints a table and writes a line for
//! each figure to `target/bench/figures.jsonl`; the ratios are what to look at.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Better, Report, SECONDS, Server, connect, plain, rate, runtime};
use lockapi::limit::{PermitRequest, Policy, Quota};
use lockapi::queue::Job;
use lockapi::worker::Worker;
use lockapi::{Backend, Stop};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

fn main() {
    let mut report = Report::open("limits");
    report.of("sqlx");
    // On a worker, as the tasks of a service are.
    let report =
        runtime().block_on(async { tokio::spawn(all(report)).await.expect("the figures") });
    report.print();
}

async fn all(mut report: Report) -> Report {
    let server = Server::start();
    let url = server.url();
    let backend = connect(url).await;
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(Duration::from_mins(1))
        .connect(url)
        .await
        .expect("a pool");
    sqlx::raw_sql(plain::WINDOWS)
        .execute(&pool)
        .await
        .expect("the function");
    let generous = Quota::per_second(10_000).burst(1_000_000_000);
    let scarce = Quota::per_hour(1);
    let endless = i32::MAX;

    let function = ours_and_function(
        &mut report,
        &backend,
        &pool,
        "hot_key.64",
        64,
        1,
        generous,
        endless,
    )
    .await;
    let relaxed = ours(&backend, Policy::new(generous).relaxed(), 64, 1).await;
    report.add(
        "limit.hot_key.64.relaxed",
        "checks/s",
        relaxed,
        function,
        "the function",
        Better::Higher,
    );
    ours_and_function(
        &mut report,
        &backend,
        &pool,
        "keys.1000",
        256,
        1000,
        generous,
        endless,
    )
    .await;
    denials(&mut report, &backend, &pool, scarce).await;
    permits(&mut report, &backend, function).await;
    user_and_tenant(&mut report, &backend).await;
    reservations(&mut report, &backend).await;
    neighbours(&mut report, &backend, &pool, url).await;
    report
}

/// Calls that have one of two keys in common.
async fn user_and_tenant(report: &mut Report, backend: &Arc<dyn Backend>) {
    let quota = Quota::per_second(10_000).burst(1_000_000_000);
    let limiter = backend.rate_limiter(quota).expect("a limiter");
    let ask = |together: bool| {
        let limiter = Arc::clone(&limiter);
        rate(64, move |task, count, until| {
            let limiter = Arc::clone(&limiter);
            async move {
                let user = format!("bench/user/{task}");
                let requests = [
                    PermitRequest::new(&*user),
                    PermitRequest::new("bench/tenant"),
                ];
                while Instant::now() < until {
                    if together {
                        limiter.check_all(&requests).await.map(drop)
                    } else {
                        limiter.check_each(&requests).await.map(drop)
                    }
                    .expect("a decision");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    let (each, all) = (ask(false).await, ask(true).await);
    report.add(
        "limit.user_and_tenant.64",
        "calls/s",
        all,
        each,
        "check_each of the same",
        Better::Higher,
    );
}

/// What a caller of another key waits, beside so many who are refused on one window.
async fn neighbours(report: &mut Report, backend: &Arc<dyn Backend>, pool: &PgPool, url: &str) {
    let quota = Quota::per_second(10_000).burst(1_000_000_000);
    let calm = backend.rate_limiter(quota).expect("a limiter");
    // Has the runtime and the server in common with the flood, but no connection.
    let idle = lockapi_sqlx::connect_url(url).await.expect("a backend");
    let idle = idle.rate_limiter(quota).expect("a limiter");
    let window = Quota::per_hour(1).fixed_window();
    let busy = backend.rate_limiter(window).expect("a limiter");
    let alone = slowest(&calm).await;
    for calls in [64, 5000, 100_000] {
        let stop = Arc::new(AtomicU64::new(0));
        let flood: Vec<_> = (0..calls)
            .map(|_| {
                let (busy, stop) = (Arc::clone(&busy), Arc::clone(&stop));
                tokio::spawn(async move {
                    while stop.load(Ordering::Relaxed) == 0 {
                        let _refused = busy.check("bench/flood").await.expect("a decision");
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let beside = slowest(&calm).await;
        let on_idle = slowest(&idle).await;
        if calls == 100_000 {
            heartbeat(report, backend, pool).await;
        }
        stop.store(1, Ordering::Relaxed);
        for one in flood {
            one.await.expect("it ends");
        }
        report.add(
            &format!("limit.neighbour.p99.{calls}"),
            "us",
            beside,
            alone,
            "alone",
            Better::Lower,
        );
        report.add(
            &format!("limit.neighbour.p99.{calls}.idle"),
            "us",
            beside,
            on_idle,
            "on an idle backend beside the same",
            Better::Lower,
        );
    }
}

/// How late the heartbeats of a delivery are at most, while others queue calls, and push forty times 10,000 jobs.
async fn heartbeat(report: &mut Report, backend: &Arc<dyn Backend>, pool: &PgPool) {
    const LEASE: Duration = Duration::from_secs(5);
    const LEFT: &str =
        "SELECT (extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::int8
        FROM lockapi.job WHERE queue = 'bench/heartbeat' AND lease_until IS NOT NULL";
    let queue = backend.queue("bench/heartbeat").expect("a queue");
    queue
        .push(Job::new("long", &()).expect("a job"))
        .await
        .expect("pushed");
    let stop = Stop::new();
    let worker = Worker::new(queue)
        .lease(LEASE)
        .handle("long", |(): (), _| async {
            tokio::time::sleep(LEASE * 2).await;
            Ok(())
        });
    let stopped = stop.clone();
    let working = tokio::spawn(async move { worker.run(stopped).await });
    let others = backend.queue("bench/many").expect("a queue");
    let pushing = tokio::spawn(async move {
        for _ in 0..40 {
            let jobs = (0..10_000).map(|one| Job::new("noop", &one).expect("a job"));
            others.push_all(jobs.collect()).await.expect("pushed");
        }
        others.purge().await.expect("purged");
    });
    let mut least = LEASE;
    let until = Instant::now() + LEASE * 19 / 10;
    while Instant::now() < until {
        let left: Option<i64> = sqlx::query_scalar(LEFT)
            .fetch_optional(pool)
            .await
            .expect("a row");
        if let Some(left) = left.and_then(|left| u64::try_from(left).ok()) {
            least = least.min(Duration::from_micros(left));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pushing.await.expect("all are pushed");
    stop.stop();
    working.await.expect("a worker").expect("a summary");
    // A third of the lease has passed when the next one is due.
    let late = (LEASE * 2 / 3).saturating_sub(least).as_secs_f64() * 1e3;
    report.add(
        "limit.neighbour.heartbeat.late",
        "ms",
        late,
        LEASE.as_secs_f64() * 100.0,
        "a tenth of its lease of 5 s",
        Better::Lower,
    );
}

/// Reservations of one key that end, of few and of many that are open.
async fn reservations(report: &mut Report, backend: &Arc<dyn Backend>) {
    let quota = Quota::per_second(10_000).burst(1_000_000_000);
    let limiter = backend.rate_limiter(quota).expect("a limiter");
    let request = PermitRequest::new("bench/reserved");
    let settled = async |open: usize| {
        let calls = (0..open).map(|_| limiter.reserve(&request, Duration::from_mins(10)));
        let reserved = futures_util::future::join_all(calls).await;
        let reserved = reserved.into_iter();
        let reserved: Vec<_> = reserved
            .map(|one| one.expect("an answer").expect("admitted"))
            .collect();
        let began = Instant::now();
        let ends = reserved.into_iter().map(lockapi::Reservation::cancel);
        for end in futures_util::future::join_all(ends).await {
            end.expect("it was there");
        }
        let many = u32::try_from(open).expect("a small number");
        f64::from(many) / began.elapsed().as_secs_f64()
    };
    let few = settled(500).await;
    report.add(
        "limit.settle.8000",
        "ends/s",
        settled(8000).await,
        few,
        "of 500 that are open",
        Better::Higher,
    );
}

/// The 99th percentile of lone calls, in microseconds.
async fn slowest(limiter: &Arc<dyn lockapi::RateLimiter>) -> f64 {
    let mut took = Vec::new();
    let until = Instant::now() + SECONDS;
    while Instant::now() < until {
        let began = Instant::now();
        let _decision = limiter.check("bench/calm").await.expect("a decision");
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took[took.len() * 99 / 100].as_secs_f64() * 1e6
}

/// Both with so many tasks on so many keys; answers what the function did.
#[allow(clippy::too_many_arguments, reason = "what is measured")]
async fn ours_and_function(
    report: &mut Report,
    backend: &Arc<dyn Backend>,
    pool: &PgPool,
    figure: &str,
    tasks: usize,
    keys: usize,
    quota: Quota,
    limit: i32,
) -> f64 {
    let function = function(pool, tasks, keys, limit).await;
    let ours = ours(backend, quota.into(), tasks, keys).await;
    report.add(
        &format!("limit.{figure}"),
        "checks/s",
        ours,
        function,
        "the function over a pool of 16",
        Better::Higher,
    );
    function
}

async fn ours(backend: &Arc<dyn Backend>, policy: Policy, tasks: usize, keys: usize) -> f64 {
    let limiter = backend.rate_limiter(policy).expect("a limiter");
    rate(tasks, |task, count, until| {
        let limiter = Arc::clone(&limiter);
        async move {
            let mut draw = fastrand::Rng::with_seed(u64::try_from(task).expect("a small number"));
            while Instant::now() < until {
                let key = format!("bench/{keys}/{}", draw.usize(..keys));
                let _decision = limiter.check(key).await.expect("a decision");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

async fn function(pool: &PgPool, tasks: usize, keys: usize, limit: i32) -> f64 {
    rate(tasks, |task, count, until| {
        let pool = pool.clone();
        async move {
            let mut draw = fastrand::Rng::with_seed(u64::try_from(task).expect("a small number"));
            while Instant::now() < until {
                let key = format!("bench/{keys}/{limit}/{}", draw.usize(..keys));
                let query = sqlx::query_scalar::<_, bool>(plain::CHECK_HOUR);
                let query = query.bind(key).bind(limit);
                query.fetch_one(&pool).await.expect("a row");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

/// What is refused: how fast, and how much is written.
async fn denials(report: &mut Report, backend: &Arc<dyn Backend>, pool: &PgPool, quota: Quota) {
    for keys in [1, 1000] {
        for tasks in [0, 256] {
            // First all are used up.
            let limiter = backend.rate_limiter(quota).expect("a limiter");
            for key in 0..keys {
                let key = format!("bench/{keys}/{key}");
                let _taken = limiter
                    .check_each(&[PermitRequest::new(key)])
                    .await
                    .expect("a decision");
            }
            if tasks == 0 {
                continue;
            }
            let function = function(pool, tasks, keys, 1).await;
            let before = wal(pool).await;
            let ours = ours(backend, quota.into(), tasks, keys).await;
            let written = wal(pool).await - before;
            report.add(
                &format!("limit.denials.{keys}"),
                "checks/s",
                ours,
                function,
                "the function over a pool of 16",
                Better::Higher,
            );
            report.add(
                &format!("limit.denials.{keys}.wal"),
                "bytes/denial",
                written / (ours * SECONDS.as_secs_f64()),
                0.01,
                "the budget of next to nothing",
                Better::Lower,
            );
        }
    }
}

/// How many bytes of log the server has written.
async fn wal(pool: &PgPool) -> f64 {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8";
    sqlx::query_scalar(sql)
        .fetch_one(pool)
        .await
        .expect("a position")
}

/// Blocks of 100 permits, one for each task, of one key.
async fn permits(report: &mut Report, backend: &Arc<dyn Backend>, function: f64) {
    let quota = Quota::per_second(1000).burst(1_000_000_000);
    let limiter = backend.rate_limiter(quota).expect("a limiter");
    let refused = Arc::new(AtomicU64::new(0));
    let ours = rate(64, |_, count, until| {
        let request = PermitRequest::new("bench/permits").cost(100);
        let permits = limiter.permits(&request).expect("permits");
        let refused = Arc::clone(&refused);
        async move {
            while Instant::now() < until {
                for _ in 0..100 {
                    let admitted = permits.take().await.expect("an answer");
                    refused.fetch_add(u64::from(!admitted), Ordering::Relaxed);
                }
                count.fetch_add(100, Ordering::Relaxed);
            }
        }
    })
    .await;
    assert_eq!(refused.load(Ordering::Relaxed), 0, "there were enough");
    report.add(
        "limit.permits.100",
        "checks/s",
        ours,
        1_000_000.0,
        "the budget of a million",
        Better::Higher,
    );
    report.add(
        "limit.permits.100.function",
        "checks/s",
        ours,
        function,
        "the function over a pool of 16, hot key",
        Better::Higher,
    );
}
