//! The suite on Diesel.

#[path = "drivers/diesel.rs"]
mod driver;

use std::sync::Arc;

use conformance::Postgres;

fn main() {
    conformance::run(&[Arc::new(Postgres::new(driver::Diesel))]);
}
