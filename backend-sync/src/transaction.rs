//! Operations inside the caller's own transaction.

use lockapi::blocking::block_on;
use lockapi::driver::{BoxFuture, Inline, Library, Transaction};
use postgres::Client;
use r2d2::{ManageConnection, PooledConnection};

use crate::connector::Borrowed;

/// The `postgres` crate, as the parameter of [`Transaction`].
#[derive(Clone, Copy, Debug)]
pub enum Postgres {}

impl Library for Postgres {
    type Outcome<'c, T: Send + 'c> = T;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> T {
        block_on(work)
    }
}

impl Transaction<Postgres> for Client {
    type Connection<'c> = Inline<Borrowed<'c, Self>>;

    fn connection(&mut self) -> Self::Connection<'_> {
        Inline(Borrowed(self))
    }
}

impl<'t> Transaction<Postgres> for postgres::Transaction<'t> {
    type Connection<'c>
        = Inline<Borrowed<'c, postgres::Transaction<'t>>>
    where
        Self: 'c;

    fn connection(&mut self) -> Self::Connection<'_> {
        Inline(Borrowed(self))
    }
}

impl<M: ManageConnection<Connection = Client>> Transaction<Postgres> for PooledConnection<M> {
    type Connection<'c> = Inline<Borrowed<'c, Client>>;

    fn connection(&mut self) -> Self::Connection<'_> {
        Inline(Borrowed(self))
    }
}
