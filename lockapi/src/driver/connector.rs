//! What a backend crate implements.

use std::future::Future;
use std::pin::Pin;

use super::call::{AnyQuery, Call, Operation, Query};
use super::script::Script;
use super::value::Rows;
use crate::error::Failure;

/// A long-running task of the engine that the connector runs.
pub type BackgroundTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How the server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The connection is one server session: named prepared statements are welcome.
    Direct,
    /// Each transaction may run in another server session: no named prepared statements, and no state
    /// may be left in the session.
    Proxied,
}

/// Opens connections of one driver and runs tasks on its kind of thread.
///
/// A connector decides nothing about locking. It connects, runs statements, and describes failures.
pub trait Connector: Send + Sync + 'static {
    /// A connection of the driver, owned by one task.
    type Connection: Connection + 'static;

    /// A connection that also receives notifications; the same type if every connection does.
    type Listener: Listener + 'static;

    /// Whether there is a server, whose sessions can be listed and terminated.
    const SERVER: bool = true;

    /// Whether each task has a thread of its own, on which it delays no task of the program.
    const THREADS: bool = false;

    /// Opens a connection. The engine bounds the time it may take.
    ///
    /// # Errors
    /// [`Failure::connect`].
    fn connect(&self, mode: Mode)
    -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Opens a connection that can receive notifications, in [`Mode::Direct`]. The engine bounds the
    /// time it may take, sets its session parameters, and starts listening.
    ///
    /// # Errors
    /// [`Failure::connect`].
    fn listener(&self) -> impl Future<Output = Result<Self::Listener, Failure>> + Send;

    /// Runs `task` until it ends: as a task of an async driver, on a thread for a blocking one.
    ///
    /// When the runtime of the connector shuts down it drops the task, which fails its callers.
    fn spawn(&self, name: &'static str, task: BackgroundTask);
}

/// Runs statements, one at a time.
///
/// Dropping a running call makes the connection unusable; the engine then drops it as well, and
/// dropping a connection must close it without blocking.
pub trait Connection: Send {
    /// Runs one statement in a transaction of its own, or in the one that is open.
    ///
    /// # Errors
    /// [`Failure::statement`], with the server's code when it answered; [`Failure::corrupt`] when
    /// a column does not have its declared type.
    fn run(&mut self, call: Call<'_>) -> impl Future<Output = Result<Rows, Failure>> + Send;

    /// Runs a script and ignores its rows.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    fn script(&mut self, script: Script) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Notes that the engine refuses this server, because another one has taken over.
    fn superseded(&self) {}

    /// Runs a batch of one operation and reads its answers.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    #[doc(hidden)]
    fn perform<O: Operation>(
        &mut self,
        batch: &[O],
    ) -> impl Future<Output = Result<Vec<O::Output>, Failure>> + Send {
        async move {
            let mut query = Query::new(batch);
            run_query(self, &mut query).await?;
            Ok(query.into_answers())
        }
    }
}

/// Runs a batch and reads its answers.
pub(crate) async fn run_query<C: Connection + ?Sized>(
    connection: &mut C,
    query: &mut dyn AnyQuery,
) -> Result<(), Failure> {
    let mut rows = Rows::new();
    if let Some(simple) = Call::simple(query) {
        rows = connection.run(simple).await?;
    }
    if rows.is_empty() {
        rows = connection.run(Call::new(query)).await?;
    }
    query.read(rows)
}

impl<C: Connection> Connection for &mut C {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        (**self).run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        (**self).script(script).await
    }

    fn superseded(&self) {
        (**self).superseded();
    }
}

/// A connection that receives notifications.
pub trait Listener: Connection {
    /// Waits for the next notification on a channel that the session listens on, and returns its
    /// payload.
    ///
    /// Dropping it while it waits makes the connection unusable, as with a call.
    ///
    /// # Errors
    /// A failure of the connection, once it has ended: a listener does not reconnect by itself, because
    /// a missed notification would go unnoticed.
    fn next(&mut self) -> impl Future<Output = Result<String, Failure>> + Send;
}
