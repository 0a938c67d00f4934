//! Operations inside the caller's own transaction.

use lockapi::driver::{BoxFuture, Library, Transaction};
use tokio_postgres::Client;

use crate::backend::Borrowed;

/// tokio-postgres, as the parameter of [`Transaction`].
#[derive(Debug)]
pub enum TokioPostgres {}

impl Library for TokioPostgres {
    type Outcome<'c, T: Send + 'c> = BoxFuture<'c, T>;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> BoxFuture<'c, T> {
        work
    }
}

impl Transaction<TokioPostgres> for Client {
    type Connection<'c> = Borrowed<'c, Self>;

    fn connection(&mut self) -> Borrowed<'_, Self> {
        Borrowed(self)
    }
}

impl<'t> Transaction<TokioPostgres> for tokio_postgres::Transaction<'t> {
    type Connection<'c>
        = Borrowed<'c, tokio_postgres::Transaction<'t>>
    where
        Self: 'c;

    fn connection(&mut self) -> Self::Connection<'_> {
        Borrowed(self)
    }
}
