//! The libraries, for the suite.

pub(crate) mod diesel;
pub(crate) mod diesel_async;
pub(crate) mod sqlx;
pub(crate) mod sync;
pub(crate) mod tokio_postgres;

/// The version of sqlx that the driver is for.
mod version {
    pub(crate) use ::{lockapi_sqlx, sqlx};
}
