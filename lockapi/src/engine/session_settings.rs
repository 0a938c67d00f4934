//! The settings of a connection.

use std::sync::LazyLock;
use std::time::Duration;

use super::cancel::Process;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// What the name of a program is followed by where a session of this library shows it.
const SUFFIX: &str = " lockapi";

/// The length of an `application_name`, in bytes.
const NAME_BYTES: usize = 63;

/// Sets the settings of a connection; a batch of one. Answers whether the server is a standby, and which
/// of its processes serves the connection.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// For the open transaction only.
    pub local: bool,
    /// `lock_timeout`, with its unit.
    pub lock_timeout: String,
    /// `statement_timeout`, with its unit.
    pub statement_timeout: String,
    /// What `application_name` begins with where the program has not set it.
    pub program: String,
}

/// The answer to a [`SessionSettings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// What kind of server it is.
    pub server: ServerKind,
    /// The process that serves the connection, as far as the role may see it; none in memory.
    pub process: Option<Process>,
    /// Whether the database has a schema that knows epochs.
    pub epochs: bool,
    /// Whether the role may draw tokens, but not enter an epoch.
    pub unprivileged: bool,
}

/// What kind of server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// It can be written to.
    Primary,
    /// A hot standby.
    Standby,
    /// Configured as read-only.
    ReadOnly,
}

impl SessionSettings {
    /// For a session whose statements wait for a lock for `lock_timeout` at most, or without an end if
    /// that is zero, and whose client waits for an answer for `limit`.
    pub(crate) fn session(lock_timeout: Duration, limit: Duration) -> Self {
        // The server gives up first, so that a caller that gets an answer in time knows the outcome.
        let limit = limit / 10 * 9;
        Self {
            local: false,
            lock_timeout: format!("{}ms", lock_timeout.as_millis()),
            statement_timeout: format!("{}ms", limit.as_millis()),
            program: PROGRAM.clone(),
        }
    }

    /// As [`session`](Self::session), for the open transaction.
    pub(crate) fn transaction(lock_timeout: Duration, limit: Duration) -> Self {
        Self {
            local: true,
            ..Self::session(lock_timeout, limit)
        }
    }
}

/// The name of the program's file, as far as a server shows it.
static PROGRAM: LazyLock<String> = LazyLock::new(|| {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let shown = |it: char| if it.is_ascii_graphic() { it } else { '?' };
    name.chars().map(shown).take(NAME_BYTES).collect()
});

impl Operation for SessionSettings {
    type Output = ServerState;

    const STATEMENT: Statement = Statement {
        name: "engine.session_settings",
        sql: include_str!("session_settings.sql"),
        params: &[
            Type::Bool,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
        ],
        columns: &[
            Type::Bool,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
            Type::Bool,
            Type::Bool,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            [
                Value::Bool(one.local),
                Value::Text(one.lock_timeout.clone()),
                Value::Text(one.statement_timeout.clone()),
                Value::Text(one.program.clone()),
                Value::Text(SUFFIX.to_owned()),
                Value::Int((NAME_BYTES - SUFFIX.len()).try_into().unwrap_or(0)),
            ]
        };
        batch.iter().take(1).flat_map(of).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<ServerState>, Failure> {
        let state = |mut row: Row| {
            let (pid, started) = (row.int(2)?, row.maybe_int(3)?);
            // A session that acts as another role may not see when its own process began.
            let process = started.filter(|_| pid != 0);
            Ok(ServerState {
                server: match (row.bool(0)?, row.bool(6)?) {
                    (true, _) => ServerKind::Standby,
                    (_, true) => ServerKind::ReadOnly,
                    _ => ServerKind::Primary,
                },
                process: process.map(|started| Process { pid, started }),
                epochs: row.bool(4)?,
                unprivileged: row.bool(5)?,
            })
        };
        rows.into_iter().map(state).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        let none = || Value::Int(0);
        let row = vec![
            Value::Bool(false),
            none(),
            none(),
            none(),
            Value::Bool(true),
            Value::Bool(false),
            Value::Bool(false),
        ];
        Some(vec![Row(row)])
    }
}
