//! Queues and workers against the raw driver, in one run.
//!
//! Prints a table and writes a line for each figure to `target/bench/figures.jsonl`. Absolute
//! numbers depend on the machine; the ratios are what to look at. Commits are durable on both sides.

mod common;
#[path = "common/one_core.rs"]
mod one_core;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Better, Report, Server, connect, median, rate, runtime};
use lockapi::queue::{Claim, Groups, Job, JobLimit};
use lockapi::worker::{Context, Worker};
use lockapi::{Backend, Queue, Stop};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::sync::mpsc;

const JOBS: u32 = 100_000;
/// How many jobs are done while a snapshot is held.
const DEAD: u32 = 1_500_000;
/// How many groups they are of.
const GROUPS: u32 = 1000;
/// How many jobs are pushed in one call.
const BATCH: u32 = 1000;

/// A table of the same shape for the raw driver.
const TABLE: &str = "CREATE TABLE bench_job (LIKE lockapi.job INCLUDING ALL)
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1)";
const PUSH: &str = "INSERT INTO bench_job (run_at, max_attempts, priority, namespace, queue, name, payload)
    SELECT now(), 20, 2, 'default', 'raw', w.name, w.payload::json FROM unnest($1::text[], $2::text[]) AS w (name, payload)";
const CLAIM: &str = "WITH c AS MATERIALIZED (
        SELECT id FROM bench_job
         WHERE namespace = 'default' AND queue = 'raw' AND priority = 2 AND run_at <= now() AND lease_until IS NULL
         ORDER BY run_at, id LIMIT 100 FOR UPDATE SKIP LOCKED)
    UPDATE bench_job AS j SET lease_until = now() + interval '30 s', attempt = attempt + 1
      FROM c WHERE j.id = c.id RETURNING j.id, j.payload::text";
const DELETE: &str = "DELETE FROM bench_job WHERE id = ANY ($1)";

fn main() {
    let mut report = Report::open("queue");
    report.of("sqlx");
    let arguments: Vec<String> = std::env::args().collect();
    let only = arguments.iter().skip(1).find(|one| !one.starts_with("--"));
    let only = only.cloned();
    if only.as_deref().is_none_or(|only| only == "claim") {
        report = one_core(report);
    }
    // On a worker, as the tasks of a service are.
    let report =
        runtime().block_on(async { tokio::spawn(all(report, only)).await.expect("the figures") });
    report.print();
}

fn one_core(mut report: Report) -> Report {
    one_core::on_one_core(|url| {
        let url = url.to_owned();
        runtime().block_on(async {
            tokio::spawn(async move {
                let backend = connect(&url).await;
                let mut raw = PgConnection::connect(&url).await.expect("a connection");
                claim(&mut report, &backend, &mut raw).await;
                report
            })
            .await
            .expect("the figures")
        })
    })
}

async fn all(mut report: Report, only: Option<String>) -> Report {
    let server = Server::start();
    let url = server.url();
    let backend = connect(url).await;
    let mut raw = PgConnection::connect(url).await.expect("a connection");
    for sql in ["DROP TABLE IF EXISTS bench_job", TABLE] {
        run(&mut raw, sql).await;
    }
    let wanted = |group: &str| only.as_deref().is_none_or(|only| only == group);
    if wanted("burn_down") {
        burn_down(&mut report, &backend, &mut raw).await;
    }
    if wanted("single") {
        single(&mut report, &backend, &mut raw).await;
    }
    if wanted("snapshot") {
        snapshot(&mut report, &backend, url).await;
    }
    if wanted("carried") {
        carried(&mut report, &backend).await;
        under_a_limit(&mut report, &backend).await;
    }
    if wanted("groups") {
        groups(&mut report, &backend, &mut raw).await;
        blocked(&mut report, &backend, &mut raw).await;
        large(&mut report, &backend, &mut raw).await;
    }
    if wanted("pick_up") {
        pick_up(&mut report, &backend, url).await;
    }
    report
}

async fn run(raw: &mut PgConnection, sql: &'static str) {
    sqlx::query(sql).execute(raw).await.expect("done");
}

async fn wal(raw: &mut PgConnection) -> f64 {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8";
    sqlx::query_scalar(sql)
        .fetch_one(raw)
        .await
        .expect("a place in the log")
}

/// A text of 240 bytes.
fn payload() -> String {
    "x".repeat(238)
}

fn jobs(count: u32) -> Vec<Job> {
    let payload = payload();
    (0..count)
        .map(|_| Job::new("noop", &payload).expect("a job"))
        .collect()
}

fn per_second(count: u32, start: Instant) -> f64 {
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// A worker of 16 handlers that do nothing, from the first push to the last completion.
async fn burn_down(report: &mut Report, backend: &Arc<dyn Backend>, raw: &mut PgConnection) {
    let queue = backend.queue("bench/burn").expect("a queue");
    run(raw, "CHECKPOINT").await;
    let (mut ours, mut theirs) = (Duration::ZERO, Duration::ZERO);
    let before = wal(raw).await;
    let mut others = 0.0;
    let text = serde_json::to_string(&payload()).expect("JSON");
    let (names, texts) = (vec!["noop"; BATCH as usize], vec![text; BATCH as usize]);
    // Measured by turns, so that both see the same noise.
    for _ in 0..JOBS / BATCH {
        let batch = jobs(BATCH);
        let start = Instant::now();
        queue.push_all(batch).await.expect("pushed");
        ours += start.elapsed();
        let mark = wal(raw).await;
        let start = Instant::now();
        let push = sqlx::query(PUSH).bind(&names).bind(&texts);
        push.execute(&mut *raw).await.expect("pushed");
        theirs += start.elapsed();
        others += wal(raw).await - mark;
    }
    report.add(
        "queue.push.1000",
        "jobs/s",
        f64::from(JOBS) / ours.as_secs_f64(),
        f64::from(JOBS) / theirs.as_secs_f64(),
        "INSERT … SELECT unnest",
        Better::Higher,
    );
    for table in ["VACUUM ANALYZE lockapi.job", "VACUUM ANALYZE bench_job"] {
        let mark = wal(raw).await;
        run(raw, table).await;
        others += wal(raw).await - mark;
    }
    let start = Instant::now();
    work_off(&queue, JOBS).await;
    let ours = per_second(JOBS, start);
    let written = wal(raw).await - before - others;
    let start = Instant::now();
    let mut done = 0;
    while done < JOBS {
        let claimed = sqlx::query(CLAIM).fetch_all(&mut *raw).await;
        let claimed = claimed.expect("claimed");
        let ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
        let deleted = sqlx::query(DELETE).bind(&ids).execute(&mut *raw).await;
        let deleted = deleted.expect("deleted").rows_affected();
        done += u32::try_from(deleted).expect("at most 100");
    }
    report.add(
        "worker.burn_down.16",
        "jobs/s",
        ours,
        per_second(JOBS, start),
        "claim 100 and delete 100 in a loop",
        Better::Higher,
    );
    report.add(
        "queue.wal",
        "bytes/job",
        written / f64::from(JOBS),
        1000.0,
        "the budget of 1,000",
        Better::Lower,
    );
}

async fn work_off(queue: &Arc<dyn Queue>, jobs: u32) {
    let stop = Stop::new();
    let count = Arc::new(AtomicU64::new(0));
    let (ended, handled) = (stop.clone(), Arc::clone(&count));
    let worker = Worker::new(Arc::clone(queue)).concurrency(16).handle(
        "noop",
        move |_: String, _: Context| {
            if handled.fetch_add(1, Ordering::Relaxed) + 1 == u64::from(jobs) {
                ended.stop();
            }
            async { Ok(()) }
        },
    );
    let summary = worker.run(&stop).await.expect("a summary");
    assert_eq!(summary.done, u64::from(jobs));
}

/// Pushes of jobs with a header and two tags, and completions with a result, beside those without.
async fn carried(report: &mut Report, backend: &Arc<dyn Backend>) {
    let queue = backend.queue("bench/carried").expect("a queue");
    let batch = |carried: bool| -> Vec<Job> {
        let with = |job: Job| {
            let job = job.header("request", "8f1c0a52-77d1-4a52-9f0e-0f1b7c3f0a11");
            job.tag("nightly").tag("customer")
        };
        let jobs = jobs(BATCH).into_iter();
        jobs.map(|job| if carried { with(job) } else { job })
            .collect()
    };
    let mut took = [Duration::ZERO; 4];
    // By turns, so that all see the same noise.
    for _ in 0..JOBS / BATCH {
        for carried in [false, true] {
            let jobs = batch(carried);
            let start = Instant::now();
            queue.push_all(jobs).await.expect("pushed");
            took[usize::from(carried)] += start.elapsed();
            let mut left = BATCH;
            while left > 0 {
                let claimed = queue.claim(&Claim::new(100)).await.expect("claimed");
                let start = Instant::now();
                let acks = claimed.into_iter().map(|delivery| {
                    if carried {
                        delivery.set_result(&"done").expect("a result");
                    }
                    delivery.ack()
                });
                let done = futures_util::future::join_all(acks).await;
                took[2 + usize::from(carried)] += start.elapsed();
                left -= u32::try_from(done.len()).expect("at most 100");
                for done in done {
                    done.expect("completed");
                }
            }
        }
    }
    let rate = |took: Duration| f64::from(JOBS) / took.as_secs_f64();
    for (name, at, baseline) in [
        ("queue.push.carried", 0, "without headers and tags"),
        ("queue.ack.with_result", 2, "without a result"),
    ] {
        report.add(
            name,
            "jobs/s",
            rate(took[at + 1]),
            rate(took[at]),
            baseline,
            Better::Higher,
        );
    }
}

/// A burn-down of a queue with a limit that never holds anything back.
async fn under_a_limit(report: &mut Report, backend: &Arc<dyn Backend>) {
    let mut best = [0.0_f64; 2];
    for _ in 0..3 {
        for limited in [false, true] {
            let queue = backend.queue("bench/limited").expect("a queue");
            if limited {
                let limit = JobLimit::default().running(1000);
                queue.set_limit(limit).await.expect("a limit");
            } else {
                queue.clear_limit().await.expect("no limit");
            }
            for _ in 0..JOBS / BATCH {
                queue.push_all(jobs(BATCH)).await.expect("pushed");
            }
            let start = Instant::now();
            work_off(&queue, JOBS).await;
            let best = &mut best[usize::from(limited)];
            *best = best.max(per_second(JOBS, start));
        }
    }
    report.add(
        "worker.burn_down.limited",
        "jobs/s",
        best[1],
        best[0],
        "without a limit",
        Better::Higher,
    );
}

/// As many jobs as are pushed in one call, of one group after the other.
fn grouped(first: u32) -> impl Iterator<Item = Job> {
    let jobs = jobs(BATCH).into_iter().zip(first..);
    jobs.map(|(job, nth)| job.group(format!("group {}", nth % GROUPS)))
}

/// A worker of 16 handlers that do nothing, on jobs of groups.
async fn groups(report: &mut Report, backend: &Arc<dyn Backend>, raw: &mut PgConnection) {
    let plain = backend.queue("bench/groups/none").expect("a queue");
    let start = Instant::now();
    for _ in 0..JOBS / BATCH {
        plain.push_all(jobs(BATCH)).await.expect("pushed");
    }
    let pushed = per_second(JOBS, start);
    run(raw, "VACUUM ANALYZE lockapi.job").await;
    let start = Instant::now();
    work_off(&plain, JOBS).await;
    let without = per_second(JOBS, start);
    for (name, options) in [
        ("1", Groups::default()),
        ("10", Groups::default().limit(10)),
        ("ordered", Groups::default().ordered()),
    ] {
        let queue = backend
            .queue(format!("bench/groups/{name}"))
            .expect("a queue");
        queue.set_groups(options).await.expect("set");
        let before = wal(raw).await;
        let start = Instant::now();
        for part in 0..JOBS / BATCH {
            queue
                .push_all(grouped(part * BATCH).collect())
                .await
                .expect("pushed");
        }
        let rate = per_second(JOBS, start);
        let name = |what: &str| format!("groups.{what}.{name}");
        report.add(
            &name("push"),
            "jobs/s",
            rate,
            pushed,
            "without groups",
            Better::Higher,
        );
        let mark = wal(raw).await;
        run(raw, "VACUUM ANALYZE lockapi.job").await;
        let others = wal(raw).await - mark;
        let start = Instant::now();
        work_off(&queue, JOBS).await;
        let rate = per_second(JOBS, start);
        report.add(
            &name("burn_down"),
            "jobs/s",
            rate,
            without,
            "without groups",
            Better::Higher,
        );
        let written = (wal(raw).await - before - others) / f64::from(JOBS);
        report.add(
            &name("wal"),
            "bytes/job",
            written,
            2000.0,
            "2,000",
            Better::Lower,
        );
    }
}

/// What claims of other jobs cost beside those that are blocked.
async fn blocked(report: &mut Report, backend: &Arc<dyn Backend>, raw: &mut PgConnection) {
    let mut times = Vec::new();
    for blocked in [false, true] {
        let queue = backend
            .queue(format!("bench/groups/blocked {blocked}"))
            .expect("a queue");
        let mut held = Vec::new();
        if blocked {
            for _ in 0..JOBS / BATCH {
                let jobs = jobs(BATCH).into_iter().map(|job| job.group("one"));
                queue.push_all(jobs.collect()).await.expect("pushed");
            }
            run(raw, "VACUUM ANALYZE lockapi.job").await;
            held = queue.claim(&Claim::new(1)).await.expect("claimed");
        }
        let mut took = Vec::new();
        for _ in 0..1000 {
            queue.push_all(jobs(1)).await.expect("pushed");
            let start = Instant::now();
            let claimed = queue.claim(&Claim::new(1)).await.expect("claimed");
            took.push(start.elapsed().as_secs_f64() * 1e6);
            for delivery in claimed {
                delivery.ack().await.expect("done");
            }
        }
        times.push(median(took));
        drop(held);
    }
    let compared = "with none";
    report.add(
        "groups.claim.100000_blocked.p50",
        "us",
        times[1],
        times[0],
        compared,
        Better::Lower,
    );
}

/// How soon groups with a job each are done beside one that has all the others.
async fn large(report: &mut Report, backend: &Arc<dyn Backend>, raw: &mut PgConnection) {
    let mut times = Vec::new();
    for large in [false, true] {
        let queue = backend
            .queue(format!("bench/groups/large {large}"))
            .expect("a queue");
        queue
            .set_groups(Groups::default().limit(4))
            .await
            .expect("set");
        for part in 0..JOBS / BATCH {
            let jobs = grouped(part * BATCH);
            let jobs = jobs.map(|job| if large { job.group("large") } else { job });
            queue.push_all(jobs.collect()).await.expect("pushed");
        }
        let few = (1..GROUPS).map(|nth| {
            let job = Job::new("few", &payload()).expect("a job");
            job.group(format!("few {nth}"))
        });
        queue.push_all(few.collect()).await.expect("pushed");
        run(raw, "VACUUM ANALYZE lockapi.job").await;
        times.push(few_done(&queue).await);
        queue.purge().await.expect("purged");
    }
    let compared = "beside an even mix";
    report.add(
        "groups.999_of_one.done",
        "s",
        times[1],
        times[0],
        compared,
        Better::Lower,
    );
}

/// How long a worker of 16 takes to do the jobs of the groups that have one each.
async fn few_done(queue: &Arc<dyn Queue>) -> f64 {
    let stop = Stop::new();
    let count = Arc::new(AtomicU64::new(0));
    let ended = stop.clone();
    let few = move |_: String, _: Context| {
        if count.fetch_add(1, Ordering::Relaxed) + 2 == u64::from(GROUPS) {
            ended.stop();
        }
        async { Ok(()) }
    };
    let worker = Worker::new(Arc::clone(queue))
        .concurrency(16)
        .handle("few", few);
    let worker = worker.handle("noop", |_: String, _: Context| async { Ok(()) });
    let start = Instant::now();
    worker.run(&stop).await.expect("a summary");
    start.elapsed().as_secs_f64()
}

/// What an old snapshot that somebody holds costs, while vacuum can remove nothing of what was done.
async fn snapshot(report: &mut Report, backend: &Arc<dyn Backend>, url: &str) {
    let queue = backend.queue("bench/snapshot").expect("a queue");
    let mut bystander = PgConnection::connect(url).await.expect("a connection");
    let mut holder = PgConnection::connect(url).await.expect("a connection");
    let fresh = loaded(&queue, &mut bystander).await;
    run(&mut holder, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    run(&mut holder, "SELECT FROM lockapi.queue").await;
    for _ in 0..DEAD / JOBS {
        for _ in 0..JOBS / BATCH {
            queue.push_all(jobs(BATCH)).await.expect("pushed");
        }
        work_off(&queue, JOBS).await;
    }
    let held = loaded(&queue, &mut bystander).await;
    run(&mut holder, "COMMIT").await;
    for (at, (name, unit, better)) in [
        ("snapshot.claim.p50", "us", Better::Lower),
        ("snapshot.claim.p99", "us", Better::Lower),
        ("snapshot.burn_down.16", "jobs/s", Better::Higher),
        ("snapshot.bystander.p50", "us", Better::Lower),
    ]
    .into_iter()
    .enumerate()
    {
        report.add(
            name,
            unit,
            held[at],
            fresh[at],
            "without the snapshot",
            better,
        );
    }
}

/// Claims of a lone job, the rate of a worker, and what a query of somebody else takes beside a worker
/// that does a thousand jobs a second.
async fn loaded(queue: &Arc<dyn Queue>, bystander: &mut PgConnection) -> [f64; 4] {
    let mut times = Vec::new();
    for _ in 0..500 {
        queue.push_all(jobs(1)).await.expect("pushed");
        let start = Instant::now();
        let claimed = queue.claim(&Claim::new(1)).await.expect("claimed");
        times.push(start.elapsed().as_secs_f64() * 1e6);
        for delivery in claimed {
            delivery.ack().await.expect("done");
        }
    }
    times.sort_by(f64::total_cmp);
    let (half, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    for _ in 0..JOBS / 2 / BATCH {
        queue.push_all(jobs(BATCH)).await.expect("pushed");
    }
    let start = Instant::now();
    work_off(queue, JOBS / 2).await;
    let rate = per_second(JOBS / 2, start);
    let pushed = Arc::clone(queue);
    let feeding = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        for _ in 0..500 {
            tick.tick().await;
            pushed.push_all(jobs(10)).await.expect("pushed");
        }
    });
    let worked = Arc::clone(queue);
    let working = tokio::spawn(async move { work_off(&worked, 5000).await });
    let mut times = Vec::new();
    while !feeding.is_finished() {
        let start = Instant::now();
        run(bystander, "SELECT count(*) FROM generate_series(1, 10000)").await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    feeding.await.expect("all are pushed");
    working.await.expect("all are done");
    [half, most, rate, median(times)]
}

/// Many tasks that push a job each, against one statement and one commit after the other.
async fn single(report: &mut Report, backend: &Arc<dyn Backend>, raw: &mut PgConnection) {
    let queue = backend.queue("bench/single").expect("a queue");
    let ours = rate(256, |_, count, until| {
        let queue = Arc::clone(&queue);
        async move {
            let payload = payload();
            while Instant::now() < until {
                let job = Job::new("noop", &payload).expect("a job");
                queue.push(job).await.expect("pushed");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    let text = serde_json::to_string(&payload()).expect("JSON");
    let start = Instant::now();
    let mut pushed = 0;
    while start.elapsed() < common::SECONDS {
        let push = sqlx::query(PUSH).bind(["noop"]).bind([&text]);
        push.execute(&mut *raw).await.expect("pushed");
        pushed += 1;
    }
    report.add(
        "queue.push.single.256",
        "jobs/s",
        ours,
        per_second(pushed, start),
        "a commit each on one connection",
        Better::Higher,
    );
    queue.purge().await.expect("purged");
    run(raw, "TRUNCATE bench_job").await;
}

/// From the push of a lone job in another process to the begin of its handler.
async fn pick_up(report: &mut Report, backend: &Arc<dyn Backend>, url: &str) {
    let there = lockapi_sqlx::connect_url(url).await.expect("a backend");
    let there = there.queue("bench/pick_up").expect("a queue");
    let (sender, mut begun) = mpsc::unbounded_channel();
    let stop = Stop::new();
    let stopped = stop.clone();
    let worker = Worker::new(backend.queue("bench/pick_up").expect("a queue"))
        .poll(Duration::from_mins(1))
        .handle("noop", move |_: u32, _| {
            // The figures are complete when nobody listens any more.
            let _late = sender.send(Instant::now());
            async { Ok(()) }
        });
    let running = tokio::spawn(async move { worker.run(stopped).await });
    let mut times = Vec::new();
    for round in 0..300 {
        // Idle, and not in step with anything.
        tokio::time::sleep(Duration::from_millis(15 + round % 7)).await;
        let start = Instant::now();
        there
            .push(Job::new("noop", &round).expect("a job"))
            .await
            .expect("pushed");
        let at = begun.recv().await.expect("a worker");
        times.push(at.saturating_duration_since(start).as_secs_f64() * 1e3);
    }
    stop.stop();
    running.await.expect("a worker").expect("a summary");
    report.add(
        "worker.pick_up.p50",
        "ms",
        median(times),
        5.0,
        "the budget of 5 ms",
        Better::Lower,
    );
}

/// A claim of ten with many and with few jobs that wait.
async fn claim(report: &mut Report, backend: &Arc<dyn Backend>, raw: &mut PgConnection) {
    let mut medians = Vec::new();
    for (name, waiting) in [("bench/few", 1000), ("bench/many", 1_000_000)] {
        let queue = backend.queue(name).expect("a queue");
        let fill = format!(
            "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
             SELECT now(), 20, 2, 'default', '{name}', 'noop', '{{}}' FROM generate_series(1, {waiting})"
        );
        let fill = sqlx::query(AssertSqlSafe(fill));
        fill.execute(&mut *raw).await.expect("filled");
        run(raw, "VACUUM ANALYZE lockapi.job").await;
        let mut times = Vec::new();
        for _ in 0..400 {
            let start = Instant::now();
            let claimed = queue.claim(&Claim::new(2)).await.expect("claimed");
            times.push(start.elapsed().as_secs_f64() * 1e6);
            assert_eq!(claimed.len(), 2);
            for delivery in claimed {
                delivery.ack().await.expect("done");
            }
        }
        medians.push(median(times));
    }
    report.add(
        "queue.claim.1000000.p50",
        "us",
        medians[1],
        medians[0],
        "with 1,000 waiting",
        Better::Lower,
    );
}
