//! The seam on every driver that backends are written for: one small connection each.

mod diesel_link;
mod differential;
mod operations;
mod postgres_link;
mod sqlx_link;
mod statements;

use conformance::cluster::Cluster;
use lockapi::{BackendExt, MIGRATIONS};

/// The URL of a server whose database has the tables.
fn url() -> String {
    let url = match Cluster::shared() {
        Ok(cluster) => cluster.url().to_owned(),
        Err(error) => panic!("no server: {error}"),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let backend = backend_sqlx::connect_url(&url).await.expect("a backend");
        backend.migrate().await.expect("migrated");
        assert!(backend.mutex("seam").is_ok() && !MIGRATIONS.is_empty());
    });
    url
}
