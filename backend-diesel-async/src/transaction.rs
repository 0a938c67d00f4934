//! Operations inside the caller's own transaction.

use std::fmt;

use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use lockapi::Failure;
use lockapi::driver::{BoxFuture, Call, Connection, Library, Rows, Script, Transaction};

use lockapi_diesel_types::Bound;

use crate::failure::failed_on;

/// diesel-async, as the parameter of [`Transaction`].
#[derive(Clone, Copy, Debug)]
pub enum DieselAsync {}

impl Library for DieselAsync {
    type Outcome<'c, T: Send + 'c> = BoxFuture<'c, T>;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> BoxFuture<'c, T> {
        work
    }
}

/// A connection of the caller as the engine sees one.
///
/// No prepared statement is left on it.
pub struct Borrowed<'a>(pub &'a mut AsyncPgConnection);

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}

impl Connection for Borrowed<'_> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let (statement, params) = call.query();
        // diesel-async prepares it, and closes it before the next statement.
        let query = Bound {
            statement,
            params,
            cached: false,
        };
        match query.load(self.0).await {
            Ok(rows) => lockapi_diesel_types::rows(statement, rows),
            Err(error) => Err(failed_on(self.0, error).await),
        }
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        match self.0.batch_execute(script.sql()).await {
            Ok(()) => Ok(()),
            Err(error) => Err(failed_on(self.0, error).await),
        }
    }
}

macro_rules! transaction {
    ($($connection:ty),*) => {$(
        impl Transaction<DieselAsync> for $connection {
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

transaction!(AsyncPgConnection);

#[cfg(feature = "bb8")]
transaction!(diesel_async::pooled_connection::bb8::PooledConnection<'_, AsyncPgConnection>);

#[cfg(feature = "deadpool")]
transaction!(diesel_async::pooled_connection::deadpool::Object<AsyncPgConnection>);
