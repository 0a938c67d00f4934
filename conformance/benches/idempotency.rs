//! What an idempotency key costs a request that writes: the layer for tower services beside a transaction without
//! one, and beside a table of keys in the same transaction, which holds no duplicate back without a wait for a row.
//!
//! Prints a table and writes a line for each figure to `target/bench/figures.jsonl`.

mod common;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::body::Body;
use common::{Better, Report, Server, connect, rate, runtime};
use http::{Request, Response};
use lockapi::idempotency::{Execution, IdempotencyOptions};
use lockapi::tower::{IdempotencyLayer, stored};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower::{Layer, Service, ServiceExt, service_fn};

const CALLERS: [usize; 3] = [1, 64, 256];
const TABLES: &str =
    "CREATE TABLE payment (id int8 PRIMARY KEY GENERATED ALWAYS AS IDENTITY, note text);
     CREATE TABLE answered (key text PRIMARY KEY, answer bytea)";
const EFFECT: &str = "INSERT INTO payment (note) VALUES ($1) RETURNING id";

fn main() {
    let mut report = Report::open("idempotency");
    report.of("sqlx");
    let report = runtime().block_on(async {
        let measured = tokio::spawn(requests(report));
        measured.await.expect("the figures")
    });
    report.print();
}

async fn requests(mut report: Report) -> Report {
    let server = Server::private();
    let backend = connect(server.url()).await;
    let pool = PgPoolOptions::new().max_connections(16);
    let pool = pool.test_before_acquire(false);
    let pool = pool.connect(server.url()).await.expect("a pool");
    let tables = sqlx::raw_sql(TABLES).execute(&pool).await;
    tables.expect("tables of the program");
    let options = IdempotencyOptions::default();
    let keys = backend.idempotency(options).expect("idempotency keys");
    let effects = pool.clone();
    let service =
        IdempotencyLayer::<Body>::new(keys, |_: &lockapi::tower::Head<'_>| "of all".to_owned())
            .required()
            .layer(service_fn(move |request: Request<Body>| {
                let pool = effects.clone();
                async move {
                    let execution = request.extensions().get::<Arc<Execution>>();
                    let execution = execution.expect("a key");
                    Ok::<_, Infallible>(pay(&pool, execution).await)
                }
            }));
    for callers in CALLERS {
        let ours = new_keys(callers, &service).await;
        for (baseline, what) in [
            (without(callers, &pool).await, "without a key"),
            (by_hand(callers, &pool).await, "a table of keys"),
        ] {
            let figure = format!("idempotency.first.{callers}");
            report.add(&figure, "requests/s", ours, baseline, what, Better::Higher);
        }
        let ours = one_key(callers, &service).await;
        let baseline = replays_by_hand(callers, &pool).await;
        report.add(
            &format!("idempotency.replay.{callers}"),
            "requests/s",
            ours,
            baseline,
            "a select by key",
            Better::Higher,
        );
    }
    report
}

async fn pay(pool: &PgPool, execution: &Execution) -> Response<Body> {
    let mut tx = pool.begin().await.expect("a transaction");
    let effect = sqlx::query_scalar::<_, i64>(EFFECT).bind("a note");
    let id = effect.fetch_one(&mut *tx).await.expect("an effect");
    let answer = Response::new(id.to_string());
    let completed = execution.complete_in(&mut *tx, stored(&answer)).await;
    completed.expect("an answer");
    tx.commit().await.expect("committed");
    answer.map(Body::from)
}

fn request(key: &str) -> Request<Body> {
    let request = Request::post("/payments").header("Idempotency-Key", format!("\"{key}\""));
    request.body(Body::empty()).expect("a request")
}

/// Requests that each have a key of their own.
async fn new_keys<S>(callers: usize, service: &S) -> f64
where
    S: Service<Request<Body>, Response = Response<Body>, Error: std::fmt::Debug, Future: Send>,
    S: Clone + Send + 'static,
{
    let keys = Arc::new(AtomicU64::new(0));
    rate(callers, |_, count, until| {
        let (service, keys) = (service.clone(), Arc::clone(&keys));
        async move {
            while Instant::now() < until {
                let key = format!("{callers} {}", keys.fetch_add(1, Ordering::Relaxed));
                let answer = service.clone().oneshot(request(&key)).await;
                assert!(answer.expect("an answer").status().is_success());
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

/// Requests that were answered before.
async fn one_key<S>(callers: usize, service: &S) -> f64
where
    S: Service<Request<Body>, Response = Response<Body>, Error: std::fmt::Debug, Future: Send>,
    S: Clone + Send + 'static,
{
    rate(callers, |_, count, until| {
        let service = service.clone();
        async move {
            while Instant::now() < until {
                let answer = service.clone().oneshot(request("1 0")).await;
                let answer = answer.expect("an answer");
                assert!(answer.headers().contains_key("idempotency-replayed"));
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

/// The effect alone.
async fn without(callers: usize, pool: &PgPool) -> f64 {
    rate(callers, |_, count, until| {
        let pool = pool.clone();
        async move {
            while Instant::now() < until {
                let mut tx = pool.begin().await.expect("a transaction");
                let effect = sqlx::query_scalar::<_, i64>(EFFECT).bind("a note");
                effect.fetch_one(&mut *tx).await.expect("an effect");
                tx.commit().await.expect("committed");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

/// The effect, with a row of its key, which duplicates wait for, and its answer.
async fn by_hand(callers: usize, pool: &PgPool) -> f64 {
    let keys = Arc::new(AtomicU64::new(0));
    rate(callers, |_, count, until| {
        let (pool, keys) = (pool.clone(), Arc::clone(&keys));
        async move {
            while Instant::now() < until {
                let key = format!("{callers} {}", keys.fetch_add(1, Ordering::Relaxed));
                let mut tx = pool.begin().await.expect("a transaction");
                let claim =
                    sqlx::query("INSERT INTO answered (key) VALUES ($1) ON CONFLICT DO NOTHING");
                let claimed = claim.bind(&key).execute(&mut *tx).await.expect("a key");
                assert_eq!(claimed.rows_affected(), 1);
                let effect = sqlx::query_scalar::<_, i64>(EFFECT).bind("a note");
                let id = effect.fetch_one(&mut *tx).await.expect("an effect");
                let answer = sqlx::query("UPDATE answered SET answer = $2 WHERE key = $1");
                let answer = answer.bind(&key).bind(id.to_string().into_bytes());
                answer.execute(&mut *tx).await.expect("an answer");
                tx.commit().await.expect("committed");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

async fn replays_by_hand(callers: usize, pool: &PgPool) -> f64 {
    rate(callers, |_, count, until| {
        let pool = pool.clone();
        async move {
            while Instant::now() < until {
                let answer = sqlx::query_scalar::<_, Vec<u8>>(
                    "SELECT answer FROM answered WHERE key = '1 0'",
                );
                answer.fetch_one(&pool).await.expect("an answer");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}
