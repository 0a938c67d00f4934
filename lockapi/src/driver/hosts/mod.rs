//! Several hosts, one of which is the primary.

mod blocking;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::first_statement::{perform_first, perform_in_transaction};
use super::threaded::Attempts;
use super::{
    BackgroundTask, Call, Connection, Connector, Listener, Mode, Operation, Row, Rows, Script,
    Statement, Type, Value,
};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::memory::ModelState;
use crate::sync::atomic::{AtomicBool, Ordering};

pub use url::{each_host, not_understood};

/// How long each of several hosts has to answer: less than the usual time limit of the engine, which could
/// not tell what failed.
pub const HOST_LIMIT: Duration = Duration::from_secs(4);

/// Connects to the primary among several hosts, of one driver.
///
/// All are tried at the same time, so that a host that does not answer delays nothing. The first that
/// is the primary is taken, and the connections to the others are closed. A primary that the engine refused,
/// because another has taken over from it, is taken only where no other is one. Names are looked up each time.
///
/// Over a [`BlockingConnector`](super::BlockingConnector) it is one itself, and belongs inside
/// [`Threaded`](super::Threaded).
pub struct Hosts<C> {
    each: Vec<Arc<Host<C>>>,
}

struct Host<C> {
    connector: C,
    superseded: Arc<AtomicBool>,
    /// Those of a driver that blocks.
    attempts: Attempts,
}

impl<C> Hosts<C> {
    /// Of connectors to each of the hosts.
    ///
    /// # Errors
    /// `Invalid` without a host.
    pub fn new(each: Vec<C>) -> Result<Self> {
        if each.is_empty() {
            return Err(invalid("no host; allowed are 1 or more"));
        }
        let hosts = each.into_iter().map(|connector| {
            Arc::new(Host {
                connector,
                superseded: Arc::default(),
                attempts: Attempts::default(),
            })
        });
        Ok(Self {
            each: hosts.collect(),
        })
    }
}

impl<C> Host<C> {
    fn connection<N>(&self, connection: N) -> HostConnection<N> {
        HostConnection {
            connection,
            superseded: Arc::clone(&self.superseded),
        }
    }

    /// Answers the connection where the server is the primary.
    async fn if_primary<N: Connection>(
        &self,
        mut connection: N,
        mode: Mode,
    ) -> std::result::Result<Option<N>, Failure> {
        let asking = &mut connection;
        let writes = match mode {
            Mode::Direct => perform_first(asking, IsPrimary).await?,
            Mode::Proxied => perform_in_transaction(asking, &[IsPrimary]).await?,
        } == [true];
        if !writes {
            // As a standby it follows the other.
            self.superseded.store(false, Ordering::Relaxed);
        }
        Ok(writes.then_some(connection))
    }
}

impl<C: Connector> Hosts<C> {
    async fn first<N: Connection>(
        &self,
        connect: impl AsyncFn(&C) -> std::result::Result<N, Failure>,
        mode: Mode,
    ) -> std::result::Result<HostConnection<N>, Failure> {
        // One host needs no choice, and is asked by the engine.
        if let [host] = &self.each[..] {
            let connection = connect(&host.connector).await?;
            return Ok(host.connection(connection));
        }
        let trying = self.each.iter().map(|host| async {
            let connection = connect(&host.connector).await?;
            let primary = host.if_primary(connection, mode).await?;
            Ok(primary.map(|connection| host.connection(connection)))
        });
        let mut trying: FuturesUnordered<_> = trying.collect();
        let mut answers = Answers::default();
        while let Some(answer) = trying.next().await {
            if let Some(primary) = answers.add(answer) {
                return Ok(primary);
            }
        }
        answers.end(self.each.len())
    }
}

/// What hosts have answered.
struct Answers<N> {
    /// A primary that was superseded by another, which may be gone.
    superseded: Option<HostConnection<N>>,
    /// What the others said, each thing once.
    failures: Vec<Failure>,
}

impl<N> Default for Answers<N> {
    fn default() -> Self {
        Self {
            superseded: None,
            failures: Vec::new(),
        }
    }
}

impl<N> Answers<N> {
    /// Adds the connection to a primary, nothing for another server; answers what is to be taken.
    fn add(
        &mut self,
        answer: std::result::Result<Option<HostConnection<N>>, Failure>,
    ) -> Option<HostConnection<N>> {
        match answer {
            Ok(Some(primary)) if !primary.superseded.load(Ordering::Relaxed) => {
                return Some(primary);
            }
            Ok(Some(primary)) => self.superseded = Some(primary),
            Ok(None) => {}
            Err(failure) => {
                let message = failure.message();
                if self.failures.iter().all(|one| one.message() != message) {
                    self.failures.push(failure);
                }
            }
        }
        None
    }

    fn end(self, hosts: usize) -> std::result::Result<HostConnection<N>, Failure> {
        if let Some(primary) = self.superseded {
            // When the engine refuses it again, it is told again.
            primary.superseded.store(false, Ordering::Relaxed);
            return Ok(primary);
        }
        let mut message = format!("none of the {hosts} hosts is a primary that can be reached");
        let messages: Vec<_> = self.failures.iter().map(Failure::message).collect();
        if !messages.is_empty() {
            message = format!("{message}: {}", messages.join("; "));
        }
        let mut error = Error::new(ErrorKind::Unavailable, "connect", message);
        if let Some(last) = self.failures.into_iter().next_back() {
            error = error.caused(last.sqlstate, last.source);
        }
        Err(Failure::connect(None, error))
    }
}

impl<C> fmt::Debug for Hosts<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hosts({})", self.each.len())
    }
}

impl<C: Connector> Connector for Hosts<C> {
    type Connection = HostConnection<C::Connection>;
    type Listener = HostConnection<C::Listener>;

    const SERVER: bool = C::SERVER;
    const THREADS: bool = C::THREADS;

    fn connect(
        &self,
        mode: Mode,
    ) -> impl Future<Output = std::result::Result<Self::Connection, Failure>> + Send {
        self.first(async move |host: &C| host.connect(mode).await, mode)
    }

    fn listener(
        &self,
    ) -> impl Future<Output = std::result::Result<Self::Listener, Failure>> + Send {
        self.first(async |host: &C| host.listener().await, Mode::Direct)
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        if let Some(host) = self.each.first() {
            host.connector.spawn(name, task);
        }
    }
}

/// A connection to one of several hosts.
pub struct HostConnection<N> {
    connection: N,
    superseded: Arc<AtomicBool>,
}

impl<N> HostConnection<N> {
    fn note_superseded(&self) {
        self.superseded.store(true, Ordering::Relaxed);
    }
}

impl<N> fmt::Debug for HostConnection<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostConnection").finish_non_exhaustive()
    }
}

impl<N: Connection> Connection for HostConnection<N> {
    async fn run(&mut self, call: Call<'_>) -> std::result::Result<Rows, Failure> {
        self.connection.run(call).await
    }

    async fn script(&mut self, script: Script) -> std::result::Result<(), Failure> {
        self.connection.script(script).await
    }

    fn superseded(&self) {
        self.note_superseded();
    }
}

impl<L: Listener> Listener for HostConnection<L> {
    async fn next(&mut self) -> std::result::Result<String, Failure> {
        self.connection.next().await
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "connect", message.into())
}

/// Asks whether the server is the one to write to; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct IsPrimary;

impl Operation for IsPrimary {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "driver.primary",
        sql: include_str!("primary.sql"),
        params: &[],
        columns: &[Type::Bool],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> std::result::Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Bool(true)])])
    }
}

#[cfg(test)]
mod tests;
