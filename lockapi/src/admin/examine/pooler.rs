//! Whether a connection leads through a pooler that shares sessions, and examining through one.

use std::fmt;
use std::time::Duration;

use super::{Fault, Finding, findings, start_timer};
use crate::driver::hosts::IsPrimary;
use crate::driver::{Call, Connection, Connector, Mode, Rows, Script};
use crate::engine::probe::{BEGIN, probe};
use crate::engine::{Driver, DriverConnection};
use crate::error::{ErrorKind, Failure, Result};
use crate::wait::unless;

/// How long the probe may take; it is a few dozen round trips.
const PATIENCE: Duration = Duration::from_secs(20);

/// Operators of the statements are not schema-qualified, so that of nobody else may be found first.
const SEARCH_PATH: &str = include_str!("search_path.sql");
const LOCAL_SEARCH_PATH: &str = include_str!("local_search_path.sql");

/// What a pooler answers to a transaction where its mode has none; a server never answers `BEGIN` with it.
const PROTOCOL_VIOLATION: &str = "08P01";
const TOO_MANY_CONNECTIONS: &str = "53300";

/// How a server is reached.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reached {
    /// To examine it; `None` where nothing but single statements gets through.
    pub connection: Option<ExaminedConnection>,
    /// What was found on the way.
    pub findings: Vec<Finding>,
}

/// A connection that can be examined, also where it leads through a pooler: then each statement is in a transaction of its
/// own.
///
/// # Guarantees
/// Its statements call nothing that other roles have made, whatever the `search_path` of the role is.
pub struct ExaminedConnection {
    connection: DriverConnection,
    mode: Mode,
    /// Whether the session has its path.
    is_set: bool,
}

impl ExaminedConnection {
    fn new(connection: DriverConnection, mode: Mode) -> Self {
        Self {
            connection,
            mode,
            is_set: false,
        }
    }

    async fn run_in_transaction(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let connection = &mut self.connection;
        connection.script(Script::Run(LOCAL_SEARCH_PATH)).await?;
        connection.run(call).await
    }
}

impl fmt::Debug for ExaminedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExaminedConnection")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl Connection for ExaminedConnection {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        if self.mode == Mode::Direct {
            if !self.is_set {
                self.script(Script::Run(SEARCH_PATH)).await?;
                self.is_set = true;
            }
            return self.connection.run(call).await;
        }
        self.script(Script::Begin(BEGIN)).await?;
        match self.run_in_transaction(call).await {
            Ok(rows) => {
                self.script(Script::Commit).await?;
                Ok(rows)
            }
            Err(mut failure) => {
                failure.broken |= self.script(Script::Rollback).await.is_err();
                Err(failure)
            }
        }
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.connection.script(script).await
    }
}

/// Connects, with the probe of a backend: two connections look for each other's marks, in a few dozen statements.
///
/// # Guarantees
/// It leaves nothing behind, except a setting of its own in a session of a pooler. A standby is reached as well.
///
/// # Cancel safety
/// Dropping the future closes the connections.
///
/// # Errors
/// `Unavailable` where the server cannot be reached.
pub async fn reach(connector: impl Connector) -> Result<Reached> {
    const OPERATION: &str = "connect";
    let driver = Driver::new(connector);
    let timer = start_timer()?;
    let probed = unless(timer.sleep(PATIENCE), probe(&driver, &timer)).await;
    let (mode, fault) = match probed {
        Some(Ok(Mode::Direct)) => (Mode::Direct, None),
        Some(Ok(Mode::Proxied)) => {
            let detail = "transactions of a connection run in different sessions, as behind a pooler in transaction mode";
            let fault = Fault::new("pooler", "the connection", detail);
            (Mode::Proxied, Some(fault))
        }
        None => {
            let message = format!("two connections were not served within {PATIENCE:?}");
            return Err(Failure::connect(None, message).error(OPERATION));
        }
        Some(Err(failure)) => match failure.sqlstate.as_deref() {
            Some(PROTOCOL_VIOLATION) => {
                let detail = format!(
                    "a transaction is refused, as by a pooler in statement mode; nothing else was examined ({})",
                    failure.message()
                );
                let fault = Fault::new("statement_pooler", "the connection", &detail);
                return Ok(Reached {
                    connection: None,
                    findings: findings(vec![fault]),
                });
            }
            Some(TOO_MANY_CONNECTIONS) => {
                let detail = format!("there was none for the probe: {}", failure.message());
                let fault = Fault::new("connections", "max_connections", &detail);
                (Mode::Proxied, Some(fault))
            }
            _ => {
                let error = failure.error(OPERATION);
                if error.kind() == ErrorKind::Unsupported {
                    let fault = Fault::new("refused_server", "the server", &error.to_string());
                    (Mode::Proxied, Some(fault))
                } else if is_standby(&driver).await {
                    // The probe refuses it, so what is on the way to it is not known. Transactions work in any case.
                    (Mode::Proxied, None)
                } else {
                    return Err(error);
                }
            }
        },
    };
    let connected = driver.connect(mode).await;
    let connection = connected.map_err(|failure| failure.error(OPERATION))?;
    Ok(Reached {
        connection: Some(ExaminedConnection::new(connection, mode)),
        findings: findings(fault.into_iter().collect()),
    })
}

async fn is_standby(driver: &Driver) -> bool {
    let Ok(connection) = driver.connect(Mode::Proxied).await else {
        return false;
    };
    let mut connection = ExaminedConnection::new(connection, Mode::Proxied);
    matches!(
        connection.perform(&[IsPrimary]).await.as_deref(),
        Ok([false])
    )
}
