//! Connecting, running statements and classifying failures.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::ops::DerefMut;
use std::time::Duration;

use lockapi::Failure;
use lockapi::driver::{
    BlockingConnection, BlockingConnector, BlockingListener, BorrowedConnection, Mode, Rows,
    Script, Statement, Value,
};
use lockapi_postgres_types::{Param, decode, failed, native, not_connected, param};
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::ToSql;
use postgres::{Client, Error, GenericClient};
use r2d2::{ManageConnection, Pool, PooledConnection};

/// How long a connection of a pool is waited for, at most.
const POOL_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens connections of its own.
pub(crate) struct Opened<F>(pub(crate) F);

impl<F, E> BlockingConnector for Opened<F>
where
    F: Fn() -> Result<Client, E> + Send + Sync + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    type Connection = Owned<Box<Client>>;

    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let client = (self.0)().map_err(|error| {
            let error: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
            match error.downcast::<Error>() {
                Ok(error) => not_connected(*error),
                Err(error) => Failure::connect(None, error),
            }
        })?;
        Ok(Owned::new(Box::new(client), mode))
    }
}

/// Takes connections of a pool.
pub(crate) struct Pooled<M: ManageConnection>(pub(crate) Pool<M>);

impl<M: ManageConnection<Connection = Client>> BlockingConnector for Pooled<M> {
    type Connection = BorrowedConnection<Owned<PooledConnection<M>>>;

    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let timeout = self.0.connection_timeout().min(POOL_TIMEOUT);
        let pooled = self.0.get_timeout(timeout);
        let pooled = pooled.map_err(|error| Failure::connect(None, error))?;
        BorrowedConnection::take(Owned::new(pooled, mode), mode)
    }
}

/// A connection that a task owns; dropping it closes it, or gives it back to its pool.
pub(crate) struct Owned<C> {
    client: C,
    /// By the names of the statements; `None` where a proxy keeps no prepared statements.
    prepared: Option<HashMap<&'static str, postgres::Statement>>,
}

impl<C> Owned<C> {
    fn new(client: C, mode: Mode) -> Self {
        Self {
            client,
            prepared: (mode == Mode::Direct).then(HashMap::new),
        }
    }
}

impl<C: DerefMut<Target = Client> + Send> BlockingConnection for Owned<C> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        let Some(prepared) = &mut self.prepared else {
            return run_unprepared(&mut *self.client, statement, params);
        };
        if self.client.is_closed() {
            return Err(Failure::connect(None, "the connection was closed already"));
        }
        let query = match prepared.entry(statement.name) {
            Entry::Occupied(query) => query.into_mut(),
            Entry::Vacant(place) => {
                let types = statement.params.iter().map(|of| native(*of));
                let types: Vec<_> = types.collect();
                let query = self.client.prepare_typed(statement.sql, &types);
                place.insert(query.map_err(failed)?)
            }
        };
        let params: Vec<Param> = params.into_iter().map(param).collect();
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| &**param as _).collect();
        decode(statement, self.client.query(query, &params))
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.client.batch_execute(script.sql()).map_err(failed)
    }
}

impl<C: DerefMut<Target = Client> + Send> BlockingListener for Owned<C> {
    fn next(&mut self, at_most: Duration) -> Result<Option<String>, Failure> {
        let heard = {
            let mut notifications = self.client.notifications();
            let heard = notifications.timeout_iter(at_most).next();
            heard.map_err(failed)?
        };
        if heard.is_none() && self.client.is_closed() {
            return Err(Failure::connect(None, "the server closed the connection"));
        }
        Ok(heard.map(|notification| notification.payload().to_owned()))
    }
}

/// A client or a transaction of the caller as the engine sees one.
///
/// No prepared statement is left on it.
pub struct Borrowed<'a, C>(pub &'a mut C);

impl<C> fmt::Debug for Borrowed<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}

impl<C: GenericClient + Send> BlockingConnection for Borrowed<'_, C> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        run_unprepared(self.0, statement, params)
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.batch_execute(script.sql()).map_err(failed)
    }
}

/// Sends statement and parameters in one round trip, and leaves no prepared statement behind.
fn run_unprepared<C: GenericClient>(
    client: &mut C,
    statement: &Statement,
    params: Vec<Value>,
) -> Result<Rows, Failure> {
    let params: Vec<Param> = params.into_iter().map(param).collect();
    let params: Vec<_> = statement
        .params
        .iter()
        .zip(&params)
        .map(|(of, param)| (&**param as &(dyn ToSql + Sync), native(*of)))
        .collect();
    decode(statement, client.query_typed(statement.sql, &params))
}
