//! Connecting and running statements.

use std::fmt;
use std::ops::DerefMut;
use std::thread;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::r2d2::{ManageConnection, Pool, PooledConnection};
use diesel::{PgConnection, RunQueryDsl};
use lockapi::Failure;
use lockapi::driver::{
    BlockingConnection, BlockingConnector, BlockingListener, BorrowedConnection, Mode, Rows,
    Script, Statement, Value,
};

use lockapi_diesel_types::{Bound, Columns};

use crate::failure::{failed, not_connected};

/// How long a connection of a pool is waited for, at most.
const POOL_TIMEOUT: Duration = Duration::from_secs(3);

/// How often a connection that listens is looked at: Diesel cannot wait for what comes in.
const LOOK: Duration = Duration::from_millis(100);

/// Opens connections of its own.
pub(crate) struct Opened<F>(pub(crate) F);

impl<F, E> BlockingConnector for Opened<F>
where
    F: Fn() -> Result<PgConnection, E> + Send + Sync + 'static,
    E: std::error::Error + 'static,
{
    type Connection = Owned<Box<PgConnection>>;

    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let connection = (self.0)().map_err(|error| not_connected(&error))?;
        Ok(Owned::new(Box::new(connection), mode))
    }
}

/// Takes connections of a pool.
pub(crate) struct Pooled<M: ManageConnection>(pub(crate) Pool<M>);

impl<M: ManageConnection<Connection = PgConnection>> BlockingConnector for Pooled<M> {
    type Connection = BorrowedConnection<Owned<PooledConnection<M>>>;

    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let timeout = self.0.connection_timeout().min(POOL_TIMEOUT);
        let pooled = self.0.get_timeout(timeout);
        let pooled = pooled.map_err(|error| not_connected(&error))?;
        BorrowedConnection::take(Owned::new(pooled, mode), mode)
    }
}

/// A connection that a task owns; dropping it closes it, or gives it back to its pool.
pub(crate) struct Owned<C> {
    connection: C,
    cached: bool,
}

impl<C> Owned<C> {
    fn new(connection: C, mode: Mode) -> Self {
        let cached = mode == Mode::Direct;
        Self { connection, cached }
    }
}

impl<C: DerefMut<Target = PgConnection> + Send> BlockingConnection for Owned<C> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        run(&mut self.connection, statement, params, self.cached)
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.connection
            .deref_mut()
            .batch_execute(script.sql())
            .map_err(failed)
    }
}

impl<C: DerefMut<Target = PgConnection> + Send> BlockingListener for Owned<C> {
    fn next(&mut self, at_most: Duration) -> Result<Option<String>, Failure> {
        let heard = self.connection.notifications_iter().next().transpose();
        // Nothing was sent, so whatever went wrong did so with the connection.
        let heard = heard.map_err(|error| Failure::connect(None, error))?;
        if heard.is_none() {
            thread::sleep(at_most.min(LOOK));
        }
        Ok(heard.map(|notification| notification.payload))
    }
}

/// A connection of the caller as the engine sees one.
///
/// No prepared statement is left on it.
pub struct Borrowed<'a>(pub &'a mut PgConnection);

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}

impl BlockingConnection for Borrowed<'_> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        run(self.0, statement, params, false)
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.batch_execute(script.sql()).map_err(failed)
    }
}

fn run(
    connection: &mut PgConnection,
    statement: &'static Statement,
    params: Vec<Value>,
    cached: bool,
) -> Result<Rows, Failure> {
    let query = Bound {
        statement,
        params,
        cached,
    };
    let rows: Vec<Columns> = query.load(connection).map_err(failed)?;
    lockapi_diesel_types::rows(statement, rows)
}
