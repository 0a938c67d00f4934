//! Sending notifications to other sessions, and reading those that arrive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::batcher::Queued;
use super::connection::apply_session_settings;
use super::epoch::Epochs;
use super::session_settings::SessionSettings;
use crate::driver::{Listener, Operation, Row, Rows, Script, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// How long a statement on a connection that listens may take at the server.
const LIMIT: Duration = Duration::from_secs(5);

/// Opens a connection that hears what is sent with [`Notify`], as the engine does: with its
/// settings set, and listening.
///
/// # Errors
/// Those of the connection, and one for a standby, where nobody can listen.
#[cfg(feature = "suite")]
pub async fn listen<C: crate::driver::Connector>(connector: &C) -> Result<C::Listener, Failure> {
    let mut listener = connector.listener().await?;
    prepare(&mut listener, &Epochs::default()).await?;
    Ok(listener)
}

/// Settles the settings of a connection, enters the epoch of its server, and has it listen: nothing that concerns this program
/// is sent by a server that another has replaced.
pub(super) async fn prepare<L: Listener>(listener: &mut L, epochs: &Epochs) -> Result<(), Failure> {
    let settings = SessionSettings::session(Duration::ZERO, LIMIT);
    let state = apply_session_settings(listener, settings).await?;
    epochs.enter(listener, state).await?;
    listener.script(Script::Listen).await
}

/// Notifies all who listen of a topic; the payload is its number.
#[derive(Clone, Copy, Debug)]
pub struct Notify(pub i64);

impl Operation for Notify {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "engine.notify",
        sql: include_str!("notify.sql"),
        params: &[Type::Ints],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![Value::Ints(batch.iter().map(|one| one.0).collect())]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        let sent = rows.into_iter().next().map(|mut row| row.int(0));
        match sent.transpose()? {
            Some(_) => Ok(vec![(); batch.len()]),
            None => Err(Failure::corrupt(
                "the number of answers differs from the number of notifications",
            )),
        }
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let sent = model.notify(batch.iter().map(|one| one.0));
        Some(vec![Row(vec![Value::Int(sent)])])
    }
}

impl Queued for Notify {
    /// Last: what is told of has been done.
    const NAME: &'static str = "notify";
}

/// What the sessions that listen have been sent and not yet read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    sessions: BTreeMap<u64, VecDeque<String>>,
    /// Whether something was sent since this was last looked at.
    pub(crate) rung: bool,
}

impl Heard {
    pub(crate) fn listen(&mut self, session: u64) {
        self.sessions.entry(session).or_default();
    }

    pub(crate) fn unlisten(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    pub(crate) fn next(&mut self, session: u64) -> Option<String> {
        self.sessions.get_mut(&session)?.pop_front()
    }

    /// Sends each topic once to all who listen; answers how many these are.
    pub(crate) fn send(&mut self, topics: impl IntoIterator<Item = i64>) -> i64 {
        let topics: BTreeSet<_> = topics.into_iter().collect();
        for payloads in self.sessions.values_mut() {
            payloads.extend(topics.iter().map(ToString::to_string));
        }
        self.rung |= !topics.is_empty();
        i64::try_from(topics.len()).unwrap_or(i64::MAX)
    }
}
