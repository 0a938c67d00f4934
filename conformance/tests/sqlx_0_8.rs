//! The suite on sqlx 0.8, through one face: the other ones do not depend on the version.

#[path = "drivers/sqlx.rs"]
mod driver;

/// The version of sqlx that the driver is for.
mod version {
    pub(crate) use ::lockapi_sqlx::v0_8 as lockapi_sqlx;
    pub(crate) use ::sqlx_08 as sqlx;
}

use std::sync::Arc;

use lockapi_conformance::{Face, Postgres};

fn main() {
    lockapi_conformance::run_through(&[Face::Dyn], &[Arc::new(Postgres::new(driver::Sqlx))]);
}
