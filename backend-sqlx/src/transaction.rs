//! Operations inside the caller's own transaction.

use lockapi::driver::{BoxFuture, Library, Transaction};
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};

use super::connector::Borrowed;
use super::sqlx;
use super::versioned::Begun;

/// sqlx, as the parameter of [`Transaction`].
#[derive(Clone, Copy, Debug)]
pub enum Sqlx {}

impl Library for Sqlx {
    type Outcome<'c, T: Send + 'c> = BoxFuture<'c, T>;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> BoxFuture<'c, T> {
        work
    }
}

macro_rules! transaction {
    ($($connection:ty),*) => {$(
        impl Transaction<Sqlx> for $connection {
            type Connection<'c>
                = Borrowed<'c>
            where
                Self: 'c;

            fn connection(&mut self) -> Borrowed<'_> {
                Borrowed(self)
            }
        }
    )*};
}

transaction!(
    PgConnection,
    PoolConnection<Postgres>,
    sqlx::Transaction<'_, Postgres>,
    Begun
);
