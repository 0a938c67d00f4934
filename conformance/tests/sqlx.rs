//! The suite on sqlx.

#[path = "drivers/sqlx.rs"]
mod driver;

use std::sync::Arc;

use conformance::Postgres;

fn main() {
    conformance::run(&[Arc::new(Postgres::new(driver::Sqlx))]);
}
