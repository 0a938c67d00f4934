//! The suite on sqlx.

#[path = "drivers/sqlx.rs"]
mod driver;

use std::sync::Arc;

use lockapi_conformance::Postgres;

fn main() {
    lockapi_conformance::run(&[Arc::new(Postgres::new(driver::Sqlx))]);
}
