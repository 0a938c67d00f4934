//! The suite on diesel-async, through one face: its own connections are those of tokio-postgres, which has them all.

#[path = "drivers/diesel_async.rs"]
mod driver;

use std::sync::Arc;

use lockapi_conformance::{Face, Postgres};

fn main() {
    let backend = Postgres::new(driver::DieselAsync);
    lockapi_conformance::run_through(&[Face::Dyn], &[Arc::new(backend)]);
}
