//! Workers for several tenants, on tokio-postgres and deadpool: any number of processes, each tenant with a queue and a rate
//! of its own, so that none of them waits behind another.
//!
//! `DATABASE_URL=postgres://user@host/database cargo run -p lockapi-examples --bin fleet -- acme globex`

use std::env;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use lockapi::limit::{PermitRequest, Quota};
use lockapi::worker::{Context, Summary, Worker};
use lockapi::{Backend, RateLimiter, Stop};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_postgres::{Config, NoTls};

type Problem = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let config: Config = env::var("DATABASE_URL")?.parse()?;
    let backend = lockapi_tokio_postgres::connect_config(config.clone(), NoTls).await?;
    backend.migrate().await?;
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(8)
        .build()?;
    // Two that create a table at the same time may fail.
    let guard = backend.mutex("tables")?.lock().await?;
    let tables = "CREATE TABLE IF NOT EXISTS invoice (tenant text NOT NULL, number int8 NOT NULL)";
    pool.get().await?.batch_execute(tables).await?;
    guard.unlock().await?;
    // For all processes together.
    let rates = backend.rate_limiter(Quota::per_second(100))?;

    let mut terminate = signal(SignalKind::terminate())?;
    let stop = Stop::from(async move {
        terminate.recv().await;
    });
    println!("working");
    let mut workers = JoinSet::new();
    for tenant in env::args().skip(1) {
        let tenant = Tenant {
            name: tenant.into(),
            rates: Arc::clone(&rates),
            pool: pool.clone(),
        };
        workers.spawn(tenant.work(Arc::clone(&backend), stop.clone()));
    }
    while let Some(ended) = workers.join_next().await {
        let summary = ended??;
        println!(
            "{} done, {} to be tried again",
            summary.done, summary.failed
        );
    }
    backend.close().await?;
    Ok(())
}

struct Tenant {
    name: Arc<str>,
    rates: Arc<dyn RateLimiter>,
    pool: Pool,
}

impl Tenant {
    async fn work(self, backend: Arc<dyn Backend>, stop: Stop) -> lockapi::Result<Summary> {
        let queue = backend.queue(format!("invoices of {}", self.name))?;
        Worker::new(queue)
            .data(self)
            .handle("invoice", async |number: i64, job: Context| {
                let tenant = job.data::<Self>();
                let turn = PermitRequest::new(&*tenant.name);
                let _admitted = tenant
                    .rates
                    .until_ready(&turn, Duration::from_secs(30))
                    .await?;
                let mut client = tenant.pool.get().await?;
                let mut tx = client.transaction().await?;
                tx.execute(
                    "INSERT INTO invoice VALUES ($1, $2)",
                    &[&&*tenant.name, &number],
                )
                .await?;
                // The invoice is written once: with the end of its job, or not at all.
                job.ack_in(&mut tx).await?;
                tx.commit().await?;
                Ok(())
            })
            // Not more than this of a tenant at a time, in this process.
            .concurrency(4)
            .spawn_with(|work| drop(tokio::spawn(work)))
            .run(stop)
            .await
    }
}
