//! The suite on the blocking `postgres` crate.

#[path = "drivers/sync.rs"]
mod driver;

use std::sync::Arc;

use lockapi_conformance::Postgres;

fn main() {
    lockapi_conformance::run(&[Arc::new(Postgres::new(driver::Sync))]);
}
