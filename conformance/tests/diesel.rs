//! The suite on Diesel.

#[path = "drivers/diesel.rs"]
mod driver;

use std::sync::Arc;

use lockapi_conformance::Postgres;

fn main() {
    lockapi_conformance::run(&[Arc::new(Postgres::new(driver::Diesel))]);
}
