//! The driver on every library: operations, their types, and the same answers everywhere.

mod concurrent;
mod connection;
mod differential;
mod epochs;
mod ids;
mod limits;
mod listeners;
mod marks;
mod operations;
mod plans;
mod probe;
mod queue_limits;
mod sessions;
mod statements;
mod statistics;
mod versioned;

use lockapi::MIGRATIONS;
use lockapi_conformance::cluster::Cluster;

/// The URL of a server whose database has the tables, and a runtime for sqlx.
fn server() -> (String, tokio::runtime::Runtime) {
    let url = match Cluster::shared() {
        Ok(cluster) => cluster.url().to_owned(),
        Err(error) => panic!("no server: {error}"),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let backend = lockapi_sqlx::connect_url(&url).await.expect("a backend");
        backend.migrate().await.expect("migrated");
        assert!(backend.mutex("driver").is_ok() && !MIGRATIONS.is_empty());
    });
    (url, runtime)
}
