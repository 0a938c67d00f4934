//! The suite on diesel-async.

#[path = "drivers/diesel_async.rs"]
mod driver;

use std::sync::Arc;

use lockapi_conformance::Postgres;

fn main() {
    lockapi_conformance::run(&[Arc::new(Postgres::new(driver::DieselAsync))]);
}
