//! Operations inside the caller's own transaction.

use diesel::PgConnection;
use diesel::r2d2::{ManageConnection, PooledConnection};
use lockapi::blocking::block_on;
use lockapi::driver::{BoxFuture, Inline, Library, Transaction};

use crate::connector::Borrowed;

/// Diesel, as the parameter of [`Transaction`].
#[derive(Clone, Copy, Debug)]
pub enum Diesel {}

impl Library for Diesel {
    type Outcome<'c, T: Send + 'c> = T;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> T {
        block_on(work)
    }
}

impl Transaction<Diesel> for PgConnection {
    type Connection<'c> = Inline<Borrowed<'c>>;

    fn connection(&mut self) -> Self::Connection<'_> {
        Inline(Borrowed(self))
    }
}

impl<M: ManageConnection<Connection = PgConnection>> Transaction<Diesel> for PooledConnection<M> {
    type Connection<'c> = Inline<Borrowed<'c>>;

    fn connection(&mut self) -> Self::Connection<'_> {
        Inline(Borrowed(self))
    }
}
