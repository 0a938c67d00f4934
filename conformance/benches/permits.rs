//! Semaphores against committed updates of the raw driver.
//!
//! Prints a table and writes a line for each figure to `target/bench/figures.jsonl`.

mod common;
#[path = "common/one_core.rs"]
mod one_core;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Better, Report, Server, connect, median, rate, runtime};
use lockapi::Backend;
use lockapi::lease::LeaseOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS public.permit (id int8 PRIMARY KEY, holder int8) WITH (fillfactor = 50);
     INSERT INTO public.permit SELECT n, 0 FROM generate_series(1, 64) AS n ON CONFLICT DO NOTHING";
const UPDATE: &str = "UPDATE public.permit SET holder = $2 WHERE id = $1";
const PERMITS: u32 = 64;

fn main() {
    let mut report = Report::open("permits");
    report.of("sqlx");
    let report = one_core::on_one_core(|url| {
        let url = url.to_owned();
        runtime().block_on(async {
            let measured = tokio::spawn(async move {
                alone(&mut report, &url).await;
                report
            });
            measured.await.expect("the figures")
        })
    });
    let report = runtime().block_on(async {
        let measured = tokio::spawn(together(report));
        measured.await.expect("the figures")
    });
    report.print();
}

async fn connect_with_table(url: &str) -> Arc<dyn Backend> {
    let backend = connect(url).await;
    let mut raw = PgConnection::connect(url).await.expect("a connection");
    let table = sqlx::raw_sql(TABLE).execute(&mut raw).await;
    table.expect("a table of the driver's own");
    backend
}

fn options() -> LeaseOptions {
    LeaseOptions::new(Duration::from_mins(1))
}

/// One task: acquire and release against two updates, each committed.
async fn alone(report: &mut Report, url: &str) {
    let backend = connect_with_table(url).await;
    let semaphore = backend.semaphore("bench/alone", PERMITS, options());
    let semaphore = semaphore.expect("a semaphore");
    let mut raw = PgConnection::connect(url).await.expect("a connection");
    let (mut ours, mut baseline) = (Vec::new(), Vec::new());
    // Measured by turns, so that both see the same noise.
    for _ in 0..2000 {
        let start = Instant::now();
        let permit = semaphore.acquire().await.expect("a permit");
        permit.release().await.expect("released");
        ours.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        for holder in [1_i64, 0] {
            let update = sqlx::query(UPDATE).bind(1_i64).bind(holder);
            update.execute(&mut raw).await.expect("updated");
        }
        baseline.push(start.elapsed().as_secs_f64() * 1e6);
    }
    report.add(
        "semaphore.alone",
        "us/acquire+release",
        median(ours),
        median(baseline),
        "two committed updates",
        Better::Lower,
    );
}

/// 64 tasks on 64 permits, against as many updates of rows of their own through a pool of 16.
async fn together(mut report: Report) -> Report {
    let server = Server::private();
    let backend = connect_with_table(server.url()).await;
    let ours = rate(PERMITS as usize, |_, count, until| {
        let semaphore = backend.semaphore("bench/together", PERMITS, options());
        let semaphore = semaphore.expect("a semaphore");
        async move {
            while Instant::now() < until {
                let permit = semaphore.acquire().await.expect("a permit");
                permit.release().await.expect("released");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    let pool = PgPoolOptions::new().max_connections(16);
    let pool = pool.connect(server.url()).await.expect("a pool");
    let baseline = rate(PERMITS as usize, |task, count, until| {
        let pool = pool.clone();
        let id = i64::try_from(task).expect("a small number") + 1;
        async move {
            while Instant::now() < until {
                for holder in [1_i64, 0] {
                    let update = sqlx::query(UPDATE).bind(id).bind(holder);
                    update.execute(&pool).await.expect("updated");
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    report.add(
        "semaphore.together.64",
        "acquire+release/s",
        ours,
        baseline,
        "two committed updates through a pool of 16",
        Better::Higher,
    );
    report
}
