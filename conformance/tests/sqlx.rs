//! The suite on sqlx.

#[path = "drivers/sqlx.rs"]
mod driver;

/// The version of sqlx that the driver is for.
mod version {
    pub(crate) use ::{lockapi_sqlx, sqlx};
}

use std::sync::Arc;

use lockapi_conformance::Postgres;

fn main() {
    lockapi_conformance::run(&[Arc::new(Postgres::new(driver::Sqlx))]);
}
