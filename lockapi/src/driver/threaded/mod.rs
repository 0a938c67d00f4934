//! Blocking drivers: their calls run on the threads of the tasks.

mod attempts;
mod host;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::call::{Call, Statement};
use super::connector::{BackgroundTask, Connection, Connector, Listener, Mode};
use super::script::Script;
use super::value::{Rows, Value};
use crate::error::Failure;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, thread};
pub(super) use attempts::{Attempt, Attempts};
use host::{Host, call};

/// How many attempts to connect may hang before others are rare.
const MOST_HANGING: usize = 16;

/// How many calls may be left behind unanswered before connections are opened once a second: more than a
/// backend has connections, as all of them are lost with their server.
const MOST_STUCK: usize = 256;
const STUCK_PAUSE: Duration = Duration::from_secs(1);

/// How long a listener waits in one call: it ends about so soon after it is dropped.
const SLICE: Duration = Duration::from_millis(250);

/// Opens connections of a driver whose calls block; [`Threaded`] makes a [`Connector`] of it.
///
/// All of its values are created, used and dropped on threads of the engine.
pub trait BlockingConnector: Send + Sync + 'static {
    /// A connection of the driver.
    type Connection: BlockingListener + 'static;

    /// Opens a connection. The engine goes on without it when it takes too long.
    ///
    /// # Errors
    /// [`Failure::connect`].
    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure>;
}

/// Runs statements, one at a time, on the calling thread.
///
/// Dropping it closes the connection.
pub trait BlockingConnection: Send {
    /// Runs one statement in a transaction of its own, or in the one that is open.
    ///
    /// # Errors
    /// As for [`Connection::run`].
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure>;

    /// Runs a script of several statements without parameters and ignores its rows.
    ///
    /// # Errors
    /// As for [`Connection::run`].
    fn script(&mut self, script: Script) -> Result<(), Failure>;

    /// As [`Connection::superseded`]; it does not block.
    fn superseded(&self) {}
}

/// A connection that receives notifications.
pub trait BlockingListener: BlockingConnection {
    /// Waits for at most `at_most` for a notification on a channel that the session listens on,
    /// and answers its payload. It may answer earlier that there is none, but not at once: it is
    /// asked again.
    ///
    /// # Errors
    /// As for [`Listener::next`].
    fn next(&mut self, at_most: Duration) -> Result<Option<String>, Failure>;
}

/// A [`Connector`] over a driver that blocks.
///
/// Each task has a thread, which runs the calls of the task between the polls of it; so callers get the
/// server's answers before the next call blocks. If a call is not answered, another thread takes the
/// task over, and the call is left behind with its connection until it returns.
pub struct Threaded<C: Send + Sync + 'static> {
    /// `None` when it is dropped.
    connector: Option<Arc<C>>,
    stuck: Arc<AtomicUsize>,
    attempts: Attempts,
}

impl<C: BlockingConnector> Threaded<C> {
    /// Hosts a connector.
    pub fn new(connector: C) -> Self {
        Self {
            connector: Some(Arc::new(connector)),
            stuck: Arc::default(),
            attempts: Attempts::default(),
        }
    }
}

impl<C: Send + Sync + 'static> Drop for Threaded<C> {
    /// A connector may own a pool, whose connections must not be dropped on a thread of a runtime.
    fn drop(&mut self) {
        if let Some(connector) = self.connector.take().and_then(Arc::into_inner) {
            let name = thread::Builder::new().name("lockapi-end".to_owned());
            drop(name.spawn(move || drop(connector)));
        }
    }
}

impl<C: Send + Sync + 'static> fmt::Debug for Threaded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threaded").finish_non_exhaustive()
    }
}

impl<C: BlockingConnector> Connector for Threaded<C> {
    type Connection = ThreadedConnection<C::Connection>;
    type Listener = Self::Connection;

    const THREADS: bool = true;

    async fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let stuck = self.stuck.load(Ordering::Relaxed);
        let least = if stuck >= MOST_STUCK {
            STUCK_PAUSE
        } else {
            Duration::ZERO
        };
        let begun = self.attempts.begin(Instant::now(), MOST_HANGING, least);
        let attempt = begun.map_err(|pause| {
            let message = format!(
                "{stuck} calls to the server are unanswered; the next connection is opened {pause:?} after the last at the earliest; try again later"
            );
            Failure::connect(None, message)
        })?;
        let connector = self.connector.clone();
        let connection = call(move || {
            let Some(connector) = connector else {
                return Err(Failure::connect(None, "the backend is closed"));
            };
            let connected = connector.connect(mode);
            attempt.answered();
            // Already threaded: when nobody waits for it any more it is dropped as a job, too.
            connected.map(|connection| ThreadedConnection(Some(connection)))
        });
        connection.await
    }

    async fn listener(&self) -> Result<Self::Listener, Failure> {
        self.connect(Mode::Direct).await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        Host::run(name, task, Arc::clone(&self.stuck));
    }
}

/// A connection that is used on the threads of the task that owns it.
pub struct ThreadedConnection<N: BlockingConnection + 'static>(Option<N>);

impl<N: BlockingConnection + 'static> Drop for ThreadedConnection<N> {
    /// What is dropped may talk to the server, so it is dropped as a job.
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            Host::defer(move || drop(connection));
        }
    }
}

impl<N: BlockingConnection + 'static> fmt::Debug for ThreadedConnection<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadedConnection").finish_non_exhaustive()
    }
}

impl<N: BlockingConnection + 'static> ThreadedConnection<N> {
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut N) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let Some(mut connection) = self.0.take() else {
            let message = "an earlier call on this connection was abandoned, so the connection can no longer be used";
            return Err(Failure::statement(None, true, message));
        };
        let (mut back, outcome) = call(move || {
            let outcome = work(&mut connection);
            (Self(Some(connection)), outcome)
        })
        .await;
        self.0 = back.0.take();
        outcome
    }
}

impl<N: BlockingConnection + 'static> Connection for ThreadedConnection<N> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let (statement, params) = call.query();
        self.with(move |connection| connection.run(statement, params))
            .await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.with(move |connection| connection.script(script)).await
    }

    fn superseded(&self) {
        if let Some(connection) = &self.0 {
            connection.superseded();
        }
    }
}

impl<N: BlockingListener + 'static> Listener for ThreadedConnection<N> {
    async fn next(&mut self) -> Result<String, Failure> {
        loop {
            let heard = self.with(|connection| connection.next(SLICE)).await?;
            if let Some(payload) = heard {
                return Ok(payload);
            }
        }
    }
}

/// A blocking connection that is used where it is: its futures block, and are ready when polled.
///
/// It serves operations inside a transaction of the caller; see
/// [`block_on`](crate::blocking::block_on).
#[derive(Debug)]
pub struct Inline<N>(pub N);

impl<N: BlockingConnection> Connection for Inline<N> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let (statement, params) = call.query();
        self.0.run(statement, params)
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.script(script)
    }
}

impl<N: BlockingConnection> BlockingConnection for &mut N {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        (**self).run(statement, params)
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        (**self).script(script)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
