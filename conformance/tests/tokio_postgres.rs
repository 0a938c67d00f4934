//! The suite on tokio-postgres.

#[path = "drivers/tokio_postgres.rs"]
mod driver;

use std::sync::Arc;

use lockapi_conformance::Postgres;

fn main() {
    lockapi_conformance::run(&[Arc::new(Postgres::new(driver::TokioPostgres))]);
}
