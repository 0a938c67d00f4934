//! Operations inside the caller's own transaction.

use lockapi::driver::{BoxFuture, Library, Transaction};
use tokio_postgres::Client;

use crate::connector::Borrowed;

/// tokio-postgres, as the parameter of [`Transaction`].
#[derive(Clone, Copy, Debug)]
pub enum TokioPostgres {}

impl Library for TokioPostgres {
    type Outcome<'c, T: Send + 'c> = BoxFuture<'c, T>;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> BoxFuture<'c, T> {
        work
    }
}

macro_rules! transaction {
    ($([$($generics:tt)*] $connection:ty as $borrowed:ty;)*) => {$(
        impl<$($generics)*> Transaction<TokioPostgres> for $connection {
            type Connection<'c>
                = Borrowed<'c, $borrowed>
            where
                Self: 'c;

            fn connection(&mut self) -> Self::Connection<'_> {
                Borrowed(self)
            }
        }
    )*};
}

transaction! {
    [] Client as Client;
    ['t] tokio_postgres::Transaction<'t> as tokio_postgres::Transaction<'t>;
}

#[cfg(feature = "deadpool")]
transaction! {
    [] deadpool_postgres::Client as Client;
    [] deadpool_postgres::ClientWrapper as Client;
    ['t] deadpool_postgres::Transaction<'t> as tokio_postgres::Transaction<'t>;
}

#[cfg(feature = "bb8")]
transaction! {
    [M: bb8::ManageConnection<Connection = Client>] bb8::PooledConnection<'_, M> as Client;
}
