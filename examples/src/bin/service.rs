//! An HTTP service on axum and sqlx: rate limits for all instances, a POST that has one effect however often it is sent,
//! mails that are queued in its transaction and sent by a worker in the same process, readiness, and an orderly end.
//!
//! `DATABASE_URL=postgres://user@host/database LISTEN=127.0.0.1:8080 cargo run -p lockapi-examples --bin service`

use std::env;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use lockapi::idempotency::{Execution, IdempotencyOptions};
use lockapi::limit::{Outage, Policy, Quota};
use lockapi::queue::Job;
use lockapi::tower::{HttpRules, IdempotencyLayer, RateLimitLayer, Rule, peer, stored};
use lockapi::worker::{Context, Worker};
use lockapi::{Backend, Queue, Stop};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

type Problem = Box<dyn std::error::Error + Send + Sync>;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS account (
        id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, address text NOT NULL, welcomed bool NOT NULL DEFAULT false)";

#[derive(Clone)]
struct App {
    pool: PgPool,
    mails: Arc<dyn Queue>,
    stop: Stop,
}

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    let backend = lockapi_sqlx::connect(&pool).await?;
    backend.migrate().await?;
    // Two that create a table at the same time may fail.
    let guard = backend.mutex("tables")?.lock().await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    guard.unlock().await?;

    let mut terminate = signal(SignalKind::terminate())?;
    let stop = Stop::from(async move {
        terminate.recv().await;
    });
    let mails = backend.queue("mails")?;
    let app = App {
        pool,
        mails,
        stop: stop.clone(),
    };
    let (working, ended) = (app.clone(), stop.clone());
    let worker = tokio::spawn(async move {
        let worked = send_mails(working).await;
        // If it failed, the service ends as well: a mail that nobody sends is not to be promised.
        ended.stop();
        worked
    });

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let service = routes(&*backend, app)?.into_make_service_with_connect_info::<SocketAddr>();
    // Requests and jobs that have begun are finished, then what is held is given back.
    axum::serve(listener, service)
        .with_graceful_shutdown(async move { stop.stopped().await })
        .await?;
    worker.await??;
    backend.close().await?;
    Ok(())
}

fn routes(backend: &dyn Backend, app: App) -> lockapi::Result<Router> {
    let policy = Policy::new(Quota::per_minute(60).burst(10)).outage(Outage::Share(2));
    let address = peer(
        |head| Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip()),
        // The networks of your proxies.
        [],
    );
    let rules = HttpRules::<Body>::new([Rule::new("address", address)])?;
    let limits = RateLimitLayer::new(backend.rate_limiter(policy)?, rules);
    let requests = backend.idempotency(IdempotencyOptions::default())?;
    // Where users log in, keys are theirs; here they are those of an address.
    let idempotent = IdempotencyLayer::<Body>::new(requests, |head| {
        let from = head.extensions.get::<ConnectInfo<SocketAddr>>();
        from.map_or_else(String::new, |it| it.ip().to_string())
    });
    Ok(Router::new()
        .route("/accounts", post(sign_up))
        .layer(idempotent.required())
        .layer(limits)
        .route("/ready", get(ready))
        .with_state(app))
}

/// The account, its mail and the answer are there together, or not at all.
async fn sign_up(
    State(app): State<App>,
    Extension(execution): Extension<Arc<Execution>>,
    address: String,
) -> Result<http::Response<String>, Failed> {
    let mut tx = app.pool.begin().await?;
    let insert = "INSERT INTO account (address) VALUES ($1) RETURNING id";
    let id: i64 = sqlx::query_scalar(insert)
        .bind(&address)
        .fetch_one(&mut *tx)
        .await?;
    app.mails
        .push_in(&mut *tx, &[Job::new("welcome", &address)?])
        .await?;
    let answer = http::Response::builder()
        .status(StatusCode::CREATED)
        .body(id.to_string())?;
    execution.complete_in(&mut *tx, stored(&answer)).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Whether a load balancer should send requests.
async fn ready(State(app): State<App>) -> StatusCode {
    let asked = sqlx::query("SELECT 1").execute(&app.pool).await;
    if asked.is_ok() && !app.stop.is_stopped() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

async fn send_mails(app: App) -> lockapi::Result<()> {
    let worker = Worker::new(app.mails).data(app.pool);
    let worker = worker.handle("welcome", async |address: String, job: Context| {
        let mut tx = job.data::<PgPool>().begin().await?;
        let update = "UPDATE account SET welcomed = true WHERE address = $1";
        sqlx::query(update).bind(&address).execute(&mut *tx).await?;
        job.ack_in(&mut *tx).await?;
        tx.commit().await?;
        println!("welcome, {address}");
        Ok(())
    });
    worker.concurrency(4).run(app.stop).await.map(drop)
}

/// An error for the log, and a 500 without it for the client.
struct Failed(Problem);

impl<E: Into<Problem>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        eprintln!("a request failed: {}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
