//! The suite on connections of a pool of the program.

#[path = "drivers/diesel.rs"]
mod diesel_driver;
#[path = "drivers/sync.rs"]
mod sync_driver;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use diesel::PgConnection;
use lockapi::BackendOptions;
use lockapi::{Backend, Result};
use lockapi_conformance::{Driver, Face, Need, Postgres, Transaction};
use r2d2::{ManageConnection, Pool};
use r2d2_postgres::PostgresConnectionManager;
use r2d2_postgres::postgres::NoTls;

fn main() {
    lockapi_conformance::run_through(
        &[Face::Dyn],
        &[
            Arc::new(Postgres::new(Diesel)),
            Arc::new(Postgres::new(Sync)),
        ],
    );
}

fn pool<M: ManageConnection>(manager: M, options: &BackendOptions) -> Pool<M> {
    Pool::builder()
        .max_size(u32::try_from(options.connections() + 1).expect("a small number"))
        .min_idle(Some(0))
        .connection_timeout(Duration::from_secs(2))
        .build(manager)
        .expect("a pool")
}

/// The pool keeps connections open, and gives none when it is used up.
fn offers(need: Need) -> bool {
    !matches!(need, Need::OwnConnections | Need::Pool | Need::Accounts)
}

struct Diesel;

#[async_trait]
impl Driver for Diesel {
    fn name(&self) -> &'static str {
        "diesel-pool"
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        let manager = diesel::r2d2::ConnectionManager::<PgConnection>::new(url);
        lockapi_diesel::connect_with(&pool(manager, &options), options).await
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        diesel_driver::Diesel.begin(url).await
    }

    /// The pool tests its connections with a prepared statement, which a proxy does not keep.
    fn offers(&self, need: Need) -> bool {
        offers(need) && need != Need::Proxy
    }
}

struct Sync;

#[async_trait]
impl Driver for Sync {
    fn name(&self) -> &'static str {
        "sync-pool"
    }

    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        let config = url.parse().expect("a URL");
        let manager = PostgresConnectionManager::new(config, NoTls);
        let pool = pool(manager, &options);
        let connected = lockapi_postgres::connect_with(&pool, options).await;
        // A blocking driver does not let its connections be closed on a task.
        let closed = tokio::task::spawn_blocking(move || drop(pool)).await;
        closed.expect("the pool is dropped");
        connected
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        sync_driver::Sync.begin(url).await
    }

    fn offers(&self, need: Need) -> bool {
        offers(need)
    }
}
