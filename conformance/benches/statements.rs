//! What the statements of the hot paths cost the server, beside the smallest that could do the same.
//!
//! One connection on one core, for batches of 1, 16 and 256; commits do not wait for the disk, and the round
//! trip of `SELECT 1` is taken off. Prints a table and writes a line for each figure to
//! `target/bench/figures.jsonl`.

mod common;
#[path = "common/one_core.rs"]
mod one_core;

use std::collections::BTreeMap;
use std::time::Instant;

use common::{Better, Report, connect, median, plain};
use lockapi::LockId;
use lockapi::driver::{Connection, Transaction};
use lockapi::limit::Quota;
use lockapi::mutex::LockMode;
use lockapi::queue::Headers;
use lockapi::suite::driver::Operation;
use lockapi::suite::engine::SessionSettings;
use lockapi::suite::lease::{Acquire, Acquired, Release, Renew};
use lockapi::suite::limit::{Charge, ChargeLine, Ensure, Take};
use lockapi::suite::mutex::{LockRequest, MarkSession};
use lockapi::suite::queue::{NewJob, Push};
use lockapi_sqlx::Sqlx;
use sqlx::{Connection as _, Executor, PgConnection};
use tokio::runtime::Builder;

/// How often each is measured.
const ROUNDS: usize = 200;

/// Of the session.
const MARK: i64 = 7;

fn main() {
    let mut report = Report::open("statements");
    report.of("sqlx");
    let only = std::env::args().skip(1).find(|one| !one.starts_with("--"));
    let report = one_core::on_one_core(|url| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(all(report, url, only.as_deref().unwrap_or_default()))
    });
    report.print();
}

struct Bench {
    report: Report,
    connection: PgConnection,
    /// What a round trip takes, in microseconds.
    round_trip: f64,
    only: String,
    /// By the name of the statement, the times of ours and of the smallest one.
    figures: BTreeMap<&'static str, (Vec<f64>, Vec<f64>)>,
}

async fn all(report: Report, url: &str, only: &str) -> Report {
    let _backend = connect(url).await;
    let mut connection = PgConnection::connect(url).await.expect("a connection");
    for tables in [plain::LEASES, plain::LIMITS, plain::JOBS] {
        connection.execute(tables).await.expect("tables");
    }
    let settle = SessionSettings {
        local: false,
        lock_timeout: "1s".to_owned(),
        statement_timeout: "10s".to_owned(),
        program: "bench".to_owned(),
    };
    let mut bench = Bench {
        report,
        connection,
        round_trip: 0.0,
        only: only.to_owned(),
        figures: BTreeMap::new(),
    };
    bench.run(&[settle]).await;
    bench.run(&[MarkSession { mark: MARK }]).await;
    let relaxed = "SET synchronous_commit = off; SET search_path = public, pg_catalog";
    bench.connection.execute(relaxed).await.expect("settings");
    let mut took = Vec::new();
    for _ in 0..2000 {
        let began = Instant::now();
        let query = sqlx::query("SELECT 1");
        query.fetch_one(&mut bench.connection).await.expect("a row");
        took.push(began.elapsed().as_secs_f64() * 1e6);
    }
    bench.round_trip = median(took);
    for size in [1, 16, 256] {
        bench.measure(size).await;
    }
    bench.report
}

impl Bench {
    async fn run<O: Operation>(&mut self, batch: &[O]) -> Vec<O::Output> {
        let mut connection = Transaction::<Sqlx>::connection(&mut self.connection);
        connection.perform(batch).await.expect("an answer")
    }

    /// The time that an operation takes, in microseconds, without the way there and back.
    async fn ours<O: Operation>(&mut self, batch: &[O]) -> f64 {
        let began = Instant::now();
        self.run(batch).await;
        began.elapsed().as_secs_f64() * 1e6 - self.round_trip
    }

    async fn other(&mut self, sql: &'static str, keys: &[String]) -> f64 {
        let began = Instant::now();
        let query = sqlx::query(sql).bind(keys);
        query.fetch_all(&mut self.connection).await.expect("rows");
        began.elapsed().as_secs_f64() * 1e6 - self.round_trip
    }

    /// Measures an operation, and the smallest statement beside it.
    async fn both<O: Operation>(
        &mut self,
        name: &'static str,
        batch: &[O],
        other: &'static str,
        keys: &[String],
    ) {
        let ours = self.ours(batch).await;
        self.note(name, ours, other, keys).await;
    }

    async fn note(&mut self, name: &'static str, ours: f64, other: &'static str, keys: &[String]) {
        let other = self.other(other, keys).await;
        let figures = self.figures.entry(name).or_default();
        figures.0.push(ours);
        figures.1.push(other);
    }

    async fn measure(&mut self, size: usize) {
        let keys: Vec<_> = (0..size).map(|n| format!("k{n}")).collect();
        let window = |key: &String| format!("w{key}");
        let windows = keys.iter().map(window).chain(["tenant".to_owned()]);
        let ensure = |key| Ensure {
            namespace: String::new(),
            key,
        };
        self.run(&windows.map(ensure).collect::<Vec<_>>()).await;
        for round in 0..ROUNDS {
            self.leases(round, &keys).await;
            self.limits(&keys).await;
            self.locks(&keys).await;
            self.jobs(&keys).await;
        }
        for (name, (ours, other)) in std::mem::take(&mut self.figures) {
            if name.starts_with(&self.only) {
                let (ours, other) = (median(ours), median(other));
                let name = format!("statement.{name}.{size}");
                let is = "the smallest statement";
                self.report.add(&name, "us", ours, other, is, Better::Lower);
            }
        }
    }

    async fn leases(&mut self, round: usize, keys: &[String]) {
        let acquire = |(n, key): (usize, &String)| Acquire {
            namespace: String::new(),
            key: key.clone(),
            slot: 0,
            acquisition: i64::try_from(round * 1000 + n).expect("a number"),
            ttl: 60_000_000,
            hold: 0,
            owner: "me".to_owned(),
            data: String::new(),
        };
        let batch: Vec<_> = keys.iter().enumerate().map(acquire).collect();
        let began = Instant::now();
        let held = self.run(&batch).await;
        let ours = began.elapsed().as_secs_f64() * 1e6 - self.round_trip;
        self.note("acquire", ours, plain::ACQUIRE_ALL, keys).await;
        let fence = |held: &Acquired| match held {
            Acquired::Granted(fence) => *fence,
            Acquired::Held(_) => panic!("nobody else is there"),
        };
        let fences: Vec<_> = held.iter().map(fence).collect();
        let renew = |(key, fence): (&String, &i64)| Renew {
            namespace: String::new(),
            key: key.clone(),
            slots: [0].into(),
            fence: *fence,
            ttl: 60_000_000,
        };
        let batch: Vec<_> = keys.iter().zip(&fences).map(renew).collect();
        self.both("renew", &batch, plain::RENEW_ALL, keys).await;
        let release = |(key, fence): (&String, &i64)| Release {
            namespace: String::new(),
            key: key.clone(),
            slots: [0].into(),
            fence: *fence,
        };
        let batch: Vec<_> = keys.iter().zip(&fences).map(release).collect();
        self.both("release", &batch, plain::RELEASE_ALL, keys).await;
    }

    async fn limits(&mut self, keys: &[String]) {
        let take = |key: &String| Take {
            namespace: String::new(),
            key: key.clone(),
            price: 10,
            depth: 1_000_000_000_000,
            times: 1,
            relaxed: false,
            read_first: false,
        };
        let batch: Vec<_> = keys.iter().map(take).collect();
        self.both("take", &batch, plain::TAKE_ALL, keys).await;
        let line = |key: String| ChargeLine {
            key,
            quota: Quota::per_second(1_000_000_000).fixed_window(),
            cost: 1,
            id: 0,
            ttl: 0,
        };
        let charge = |lines| Charge {
            namespace: String::new(),
            lines,
            times: 1,
            relaxed: false,
        };
        let window = |key: &String| charge(vec![line(format!("w{key}"))]);
        let batch: Vec<_> = keys.iter().map(window).collect();
        self.both("window", &batch, plain::TAKE_ALL, keys).await;
        // As requests travel that have a key in common.
        let pair = |key: &String| [line(format!("w{key}")), line("tenant".to_owned())];
        let pairs = charge(keys.iter().flat_map(pair).collect());
        self.both("pair", &[pairs], plain::TAKE_ALL, keys).await;
    }

    async fn locks(&mut self, keys: &[String]) {
        let lock = |key: &String, release| LockRequest {
            lock: LockId {
                key: key
                    .bytes()
                    .fold(7, |hash, byte| hash * 31 + i64::from(byte)),
                pair: false,
            },
            mode: LockMode::Exclusive,
            release,
            session: MARK,
        };
        let batch: Vec<_> = keys.iter().map(|key| lock(key, false)).collect();
        self.both("try_lock", &batch, plain::LOCK_ALL, keys).await;
        let batch: Vec<_> = keys.iter().map(|key| lock(key, true)).collect();
        self.both("unlock", &batch, plain::UNLOCK_ALL, keys).await;
    }

    async fn jobs(&mut self, keys: &[String]) {
        let job = |_| NewJob {
            group: String::new(),
            headers: Headers::default(),
            name: "remind".to_owned(),
            payload: r#"{"customer": 4711}"#.to_owned(),
            priority: 0,
            at: 0,
            delay: 0,
            max_attempts: 3,
            ttl: 0,
        };
        let push = Push {
            namespace: String::new(),
            queue: "bench".to_owned(),
            jobs: keys.iter().map(job).collect(),
            topic: None,
        };
        self.both("push", &[push], plain::PUSH_ALL, keys).await;
    }
}
