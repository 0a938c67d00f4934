//! Queues beside other queues on PostgreSQL, in one run, with the same payloads and durable commits: pgmq, the port of
//! graphile-worker to Rust, and awa.
//!
//! Each does what its documentation advises for high rates: pgmq reads and deletes a hundred at once, graphile-worker
//! has a local queue and completes in batches, awa has its storage for queues. Prints jobs per second.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use lockapi::queue::Job;
use lockapi::worker::{Context, Worker};
use lockapi::{Backend, Stop};
use lockapi_conformance::cluster::Cluster;
use pgmq::PGMQueueExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;

const QUEUE: &str = "bench";
/// How many jobs are done in one turn.
const JOBS: u64 = 50_000;
/// How many are pushed in one call.
const BATCH: u64 = 1000;
/// How many jobs are handled, and pushed one by one, at the same time.
const HANDLERS: usize = 16;
/// How many turns each has, after one of which nothing is counted.
const TURNS: usize = 3;

/// A text of 240 bytes as JSON.
fn payload() -> String {
    "x".repeat(238)
}

/// Counts what is handled, and wakes who waits for the last.
#[derive(Clone, Debug, Default)]
struct Counter(Arc<(AtomicU64, Notify)>);

impl Counter {
    fn add(&self, count: u64) {
        if self.0.0.fetch_add(count, Ordering::Relaxed) + count >= JOBS {
            self.0.1.notify_one();
        }
    }

    async fn all(&self) {
        while self.0.0.load(Ordering::Relaxed) < JOBS {
            self.0.1.notified().await;
        }
        self.0.0.store(0, Ordering::Relaxed);
    }
}

/// The best rates of the turns: pushed in batches, pushed by 16 callers, and done.
#[derive(Clone, Copy, Debug, Default)]
struct Rates([f64; 3]);

impl Rates {
    fn note(&mut self, what: usize, jobs: u64, time: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let rate = jobs as f64 / time.as_secs_f64();
        self.0[what] = self.0[what].max(rate);
    }
}

/// Calls a push from 16 tasks, each of which waits for its own.
async fn one_by_one<F: Future<Output = ()> + Send>(
    push: impl Fn() -> F + Clone + Send + 'static,
) -> (u64, Duration) {
    const EACH: u64 = 500;
    let start = Instant::now();
    let tasks: Vec<_> = (0..HANDLERS)
        .map(|_| {
            let push = push.clone();
            async move {
                for _ in 0..EACH {
                    push().await;
                }
            }
        })
        .map(tokio::spawn)
        .collect();
    for task in tasks {
        task.await.expect("pushed");
    }
    (EACH * HANDLERS as u64, start.elapsed())
}

async fn ours(url: &str, rates: &mut Rates) {
    let backend: Arc<dyn Backend> = lockapi_sqlx::connect_url(url).await.expect("a backend");
    backend.migrate().await.expect("tables");
    let queue = backend.queue(QUEUE).expect("a queue");
    let job = || Job::new("noop", &payload()).expect("a job");
    let single = Arc::clone(&queue);
    let push = move || {
        let queue = Arc::clone(&single);
        async move {
            queue.push(job()).await.expect("pushed");
        }
    };
    let (jobs, time) = one_by_one(push).await;
    rates.note(1, jobs, time);
    let start = Instant::now();
    for _ in 0..JOBS / BATCH {
        let batch = (0..BATCH).map(|_| job()).collect();
        queue.push_all(batch).await.expect("pushed");
    }
    rates.note(0, JOBS, start.elapsed());
    let (stop, count) = (Stop::new(), Arc::new(AtomicU64::new(0)));
    let (ended, all) = (stop.clone(), JOBS + jobs);
    let worker = Worker::new(queue).concurrency(HANDLERS).handle(
        "noop",
        move |_: String, _: Context| {
            if count.fetch_add(1, Ordering::Relaxed) + 1 == all {
                ended.stop();
            }
            async { Ok(()) }
        },
    );
    let start = Instant::now();
    worker.run(&stop).await.expect("a summary");
    rates.note(2, all, start.elapsed());
    backend.close().await.expect("closed");
}

async fn pgmq(url: &str, rates: &mut Rates) {
    let pool = sqlx::postgres::PgPoolOptions::new();
    let pool = pool.max_connections(20).connect(url).await.expect("a pool");
    let queue = PGMQueueExt::new_with_pool(pool).await;
    queue.install_sql_from_embedded().await.expect("its tables");
    queue.create(QUEUE).await.expect("a queue");
    queue.purge_queue(QUEUE).await.expect("empty");
    let single = Arc::new(queue.clone());
    let push = move || {
        let queue = Arc::clone(&single);
        async move {
            queue.send(QUEUE, &payload()).await.expect("sent");
        }
    };
    let (jobs, time) = one_by_one(push).await;
    rates.note(1, jobs, time);
    queue.purge_queue(QUEUE).await.expect("empty");
    let batch: Vec<String> = (0..BATCH).map(|_| payload()).collect();
    let start = Instant::now();
    for _ in 0..JOBS / BATCH {
        queue.send_batch(QUEUE, &batch).await.expect("sent");
    }
    rates.note(0, JOBS, start.elapsed());
    let start = Instant::now();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                loop {
                    let read = queue.read_batch::<String, Value>(QUEUE, 30, 100).await;
                    let ids: Vec<i64> = read.expect("read").iter().map(|one| one.msg_id).collect();
                    if ids.is_empty() {
                        break;
                    }
                    queue.delete_batch(QUEUE, &ids).await.expect("deleted");
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.expect("read");
    }
    rates.note(2, JOBS, start.elapsed());
}

#[derive(Deserialize, Serialize)]
struct Noop {
    text: String,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(counter) = context.get_ext::<Counter>() {
            counter.add(1);
        }
        Ok::<(), String>(())
    }
}

async fn graphile(url: &str, rates: &mut Rates) {
    let pool = sqlx::postgres::PgPoolOptions::new();
    let pool = pool.max_connections(20).connect(url).await.expect("a pool");
    let schema = "graphile_worker";
    let utils = Arc::new(WorkerUtils::new(pool.clone(), schema));
    utils.migrate().await.expect("its tables");
    let job = || RawJobSpec {
        identifier: "noop".to_owned(),
        payload: json!({ "text": payload() }),
        spec: JobSpec::default(),
    };
    let single = Arc::clone(&utils);
    let push = move || {
        let utils = Arc::clone(&single);
        async move {
            let text = payload();
            let added = utils.add_job(Noop { text }, JobSpec::default()).await;
            added.expect("added");
        }
    };
    let (jobs, time) = one_by_one(push).await;
    rates.note(1, jobs, time);
    sqlx::query("TRUNCATE graphile_worker._private_jobs CASCADE")
        .execute(&pool)
        .await
        .expect("empty");
    let start = Instant::now();
    for _ in 0..JOBS / BATCH {
        let batch: Vec<_> = (0..BATCH).map(|_| job()).collect();
        utils.add_raw_jobs(&batch).await.expect("added");
    }
    rates.note(0, JOBS, start.elapsed());
    let counter = Counter::default();
    let worker = WorkerOptions::default()
        .database(pool.clone())
        .schema(schema)
        .concurrency(HANDLERS)
        .poll_interval(Duration::from_millis(10))
        .complete_job_batch_delay(Duration::from_millis(2))
        .local_queue(LocalQueueConfig::default().with_size(500))
        .add_extension(counter.clone())
        .define_job::<Noop>()
        .init()
        .await
        .expect("a worker");
    let worker = Arc::new(worker);
    let running = Arc::clone(&worker);
    let start = Instant::now();
    let running = tokio::spawn(async move { running.run().await });
    counter.all().await;
    rates.note(2, JOBS, start.elapsed());
    worker.request_shutdown();
    running.await.expect("a task").expect("a worker");
    pool.close().await;
}

#[derive(Deserialize, Serialize, awa::JobArgs)]
struct Text {
    text: String,
}

async fn awa_queue(url: &str, rates: &mut Rates) {
    let pool = sqlx_08::postgres::PgPoolOptions::new();
    let pool = pool.max_connections(20).connect(url).await.expect("a pool");
    awa::migrations::run(&pool).await.expect("its tables");
    let options = || awa::InsertOpts {
        queue: QUEUE.to_owned(),
        ..awa::InsertOpts::default()
    };
    let single = pool.clone();
    let push = move || {
        let pool = single.clone();
        async move {
            let text = payload();
            let inserted = awa::insert_with(&pool, &Text { text }, options()).await;
            inserted.expect("inserted");
        }
    };
    let (jobs, time) = one_by_one(push).await;
    rates.note(1, jobs, time);
    let start = Instant::now();
    for _ in 0..JOBS / BATCH {
        let text = payload();
        let one = |_| awa::model::insert::params_with(&Text { text: text.clone() }, options());
        let batch: Result<Vec<_>, _> = (0..BATCH).map(one).collect();
        let batch = batch.expect("arguments");
        let inserted = awa::model::insert_many_copy_from_pool(&pool, &batch).await;
        inserted.expect("inserted");
    }
    rates.note(0, JOBS, start.elapsed());
    let counter = Counter::default();
    let handled = counter.clone();
    let config = awa::QueueConfig {
        max_workers: u32::try_from(HANDLERS).expect("few"),
        poll_interval: Duration::from_millis(10),
        ..awa::QueueConfig::default()
    };
    let client = awa::Client::builder(pool.clone())
        .queue(QUEUE, config)
        .register::<Text, _, _>(move |_, _| {
            let counter = handled.clone();
            async move {
                counter.add(1);
                Ok(awa::JobResult::Completed)
            }
        })
        .build()
        .expect("a client");
    let start = Instant::now();
    client.start().await.expect("started");
    counter.all().await;
    rates.note(2, JOBS, start.elapsed());
    client.shutdown(Duration::from_secs(10)).await;
    pool.close().await;
}

async fn all(url: &str) {
    let names = ["lockapi", "pgmq", "graphile_worker", "awa"];
    let mut rates = [Rates::default(); 4];
    // By turns, so that all see the same noise.
    for turn in 0..TURNS {
        ours(url, &mut rates[0]).await;
        pgmq(url, &mut rates[1]).await;
        graphile(url, &mut rates[2]).await;
        awa_queue(url, &mut rates[3]).await;
        if turn == 0 {
            rates = Default::default();
        }
    }
    println!("jobs per second, and how many times as many lockapi did\n");
    println!(
        "{:<20}{:>22}{:>22}{:>22}",
        "", "pushed by the 1,000", "by 16 callers", "done by 16 handlers"
    );
    for (name, rate) in names.iter().zip(&rates) {
        print!("{name:<20}");
        for (rate, own) in rate.0.iter().zip(&rates[0].0) {
            print!("{rate:>14.0} ({:>5.2})", own / rate);
        }
        println!();
    }
}

fn main() {
    let cluster = Cluster::private(&[]).unwrap_or_else(|error| panic!("{error}"));
    let url = cluster.url().to_owned();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(all(&url));
}
