//! What the history of queues costs: workers with and without it, in one run, by turns; and what its statements write and read.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Better, Report, Server, median, runtime};
use lockapi::driver::{Connection as _, Connector};
use lockapi::queue::{HistoryStep, Job};
use lockapi::suite::queue::{FoldHistory, HistoryPart, RecordHistory};
use lockapi::worker::{Context, Worker};
use lockapi::{Backend, BackendOptions, Queue, Stop};
use sqlx::{Connection as _, PgConnection};

const JOBS: u32 = 100_000;
const BATCH: u32 = 1000;
const ROUNDS: usize = 3;

fn main() {
    let mut report = Report::open("history");
    report.of("sqlx");
    let report =
        runtime().block_on(async { tokio::spawn(all(report)).await.expect("the figures") });
    report.print();
}

async fn all(mut report: Report) -> Report {
    let server = Server::start();
    let url = server.url();
    let connect = async |history| -> Arc<dyn Backend> {
        let options = BackendOptions::default().history(history);
        let backend = lockapi_sqlx::connect_url_with(url, options).await;
        backend.expect("a backend")
    };
    let (with, without) = (connect(true).await, connect(false).await);
    with.migrate().await.expect("tables");
    let mut raw = PgConnection::connect(url).await.expect("a connection");
    burn_down(&mut report, &with, &without, &mut raw).await;
    written(&mut report, url, &mut raw).await;
    read(&mut report, &with, &mut raw).await;
    report
}

/// One after the other, because several at once are a transaction, in which nothing is vacuumed.
async fn run(raw: &mut PgConnection, statements: &'static str) {
    for sql in statements.split(';') {
        sqlx::raw_sql(sql).execute(&mut *raw).await.expect("done");
    }
}

async fn number(raw: &mut PgConnection, sql: &'static str) -> f64 {
    let number = sqlx::query_scalar(sql).fetch_one(raw).await;
    number.expect("a number")
}

async fn wal(raw: &mut PgConnection) -> f64 {
    number(raw, "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8").await
}

/// Jobs in a second, and bytes of WAL for a job.
async fn work_off(backend: &Arc<dyn Backend>, raw: &mut PgConnection) -> (f64, f64) {
    let queue: Arc<dyn Queue> = backend.queue("bench/history").expect("a queue");
    for _ in 0..JOBS / BATCH {
        let job = Job::new("noop", &"x".repeat(238)).expect("a job");
        let jobs = vec![job; BATCH as usize];
        queue.push_all(jobs).await.expect("pushed");
    }
    run(raw, "VACUUM ANALYZE lockapi.job; CHECKPOINT").await;
    let (before, start) = (wal(raw).await, Instant::now());
    let stop = Stop::new();
    let count = Arc::new(AtomicU64::new(0));
    let (ended, handled) = (stop.clone(), Arc::clone(&count));
    let handler = move |_: String, _: Context| {
        if handled.fetch_add(1, Ordering::Relaxed) + 1 == u64::from(JOBS) {
            ended.stop();
        }
        async { Ok(()) }
    };
    let worker = Worker::new(Arc::clone(&queue)).concurrency(16);
    let summary = worker.handle("noop", handler).run(&stop).await;
    assert_eq!(summary.expect("a summary").done, u64::from(JOBS));
    let rate = f64::from(JOBS) / start.elapsed().as_secs_f64();
    (rate, (wal(raw).await - before) / f64::from(JOBS))
}

async fn burn_down(
    report: &mut Report,
    with: &Arc<dyn Backend>,
    without: &Arc<dyn Backend>,
    raw: &mut PgConnection,
) {
    let mut rates = [Vec::new(), Vec::new()];
    let mut bytes = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let (rate, wal) = work_off([with, without][which], raw).await;
            eprintln!("{}: {rate:.0} jobs/s", ["with", "without"][which]);
            rates[which].push(rate);
            bytes[which].push(wal);
        }
    }
    let [ours, theirs] = rates.map(median);
    let is = "without a history";
    report.add(
        "history.burn_down.16",
        "jobs/s",
        ours,
        theirs,
        is,
        Better::Higher,
    );
    let [ours, theirs] = bytes.map(median);
    report.add(
        "history.burn_down.wal",
        "bytes/job",
        ours,
        theirs,
        is,
        Better::Lower,
    );
}

fn parts(names: usize, minute: i64) -> Vec<HistoryPart> {
    let part = |name| HistoryPart {
        queue: "bench/parts".to_owned(),
        minute,
        name: format!("job {name}"),
        sums: lockapi::suite::queue::HistorySums {
            completed: 1000,
            failed: 10,
            dead: 1,
            waited: 12_345_678,
            ran: 23_456_789,
            waits: vec![100; 12],
            runs: vec![100; 10],
        },
    };
    (0..names).map(part).collect()
}

/// What a minute of a program writes, and what moving it writes.
async fn written(report: &mut Report, url: &str, raw: &mut PgConnection) {
    let connector = lockapi_sqlx::connector_url(url).expect("a connector");
    let mut session = connector
        .connect(lockapi::driver::Mode::Direct)
        .await
        .expect("a session");
    run(raw, "CHECKPOINT").await;
    let mut number_of = 0;
    for names in [1, 10, 100, 1000] {
        let mut written = Vec::new();
        let mut times = Vec::new();
        for minute in 0..20 {
            number_of += 1;
            let record = RecordHistory {
                namespace: "default".to_owned(),
                taken_at: i64::MAX / 2,
                part: number_of,
                parts: parts(names, minute * 60_000_000),
            };
            let (before, start) = (wal(raw).await, Instant::now());
            session.perform(&[record]).await.expect("written");
            times.push(start.elapsed().as_secs_f64() * 1000.0);
            written.push(wal(raw).await - before);
        }
        let (bytes, time) = (median(written), median(times));
        let figure = format!("history.minute.{names}");
        report.add(
            &figure,
            "bytes of WAL",
            bytes,
            1.0,
            "nothing",
            Better::Lower,
        );
        report.add(&figure, "ms", time, 1.0, "nothing", Better::Lower);
    }
    run(raw, "UPDATE lockapi.job_history_part SET written_at = written_at - interval '1 hour'; VACUUM lockapi.job_history_part; CHECKPOINT").await;
    let (before, start) = (wal(raw).await, Instant::now());
    let mut fold = FoldHistory {
        after: Default::default(),
        most: 1000,
    };
    let mut moved = 0;
    loop {
        let folded = session.perform(&[fold.clone()]).await.expect("folded");
        moved += folded[0].deleted;
        let Some(after) = folded[0].last.clone() else {
            break;
        };
        fold.after = after;
    }
    let many = f64::from(i32::try_from(moved).expect("few"));
    let millis = start.elapsed().as_secs_f64() * 1000.0;
    let bytes = wal(raw).await - before;
    report.add(
        "history.fold",
        "bytes of WAL for a part",
        bytes / many,
        1.0,
        "nothing",
        Better::Lower,
    );
    report.add(
        "history.fold",
        "ms for 1000 parts",
        millis / many * 1000.0,
        1.0,
        "nothing",
        Better::Lower,
    );
    for (figure, sql) in [
        (
            "history.row",
            "SELECT avg(pg_column_size(h.*))::float8 FROM lockapi.job_history AS h WHERE queue = 'bench/parts'",
        ),
        (
            "history.row.with_index",
            "SELECT pg_total_relation_size('lockapi.job_history')::float8 / count(*) FROM lockapi.job_history",
        ),
    ] {
        let bytes = number(raw, sql).await;
        report.add(figure, "bytes", bytes, 1.0, "nothing", Better::Lower);
    }
}

/// What a reader waits for.
async fn read(report: &mut Report, backend: &Arc<dyn Backend>, raw: &mut PgConnection) {
    run(
        raw,
        "INSERT INTO lockapi.job_history (at, completed, failed, dead, waited, ran, hourly, waits, runs, namespace, queue, name)
         SELECT date_trunc('hour', now()) - n * interval '1 hour', 1, 1, 1, 1, 1, true, '{1,2,3,4,5,6,7,8,9,10}', '{1,2,3,4,5,6,7,8,9,10}',
                'default', 'bench/' || m, 'job ' || k
           FROM (VALUES (1), (10), (100)) AS o (m), generate_series(0, 167) AS n, generate_series(1, o.m) AS k;
         VACUUM ANALYZE lockapi.job_history",
    )
    .await;
    let inspector = backend.inspector();
    for names in [1, 10, 100] {
        let mut times = Vec::new();
        let queue = format!("bench/{names}");
        for _ in 0..30 {
            let start = Instant::now();
            let points = inspector.history(&queue, None, HistoryStep::Hour).await;
            assert_eq!(points.expect("a history").len(), 168);
            times.push(start.elapsed().as_secs_f64() * 1000.0);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let figure = format!("history.week.{names}");
        report.add(&figure, "ms", median(times), 1.0, "nothing", Better::Lower);
    }
}
