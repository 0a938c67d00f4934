//! The suite on the blocking `postgres` crate.

#[path = "drivers/sync.rs"]
mod driver;

use std::sync::Arc;

use conformance::Postgres;

fn main() {
    conformance::run(&[Arc::new(Postgres::new(driver::Sync))]);
}
