//! Epochs: a server that takes over from another begins one.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use super::cancel::Process;
use super::clock::Time;
use super::session_settings::ServerState;
use crate::driver::{Connection, Operation, Row, Rows, Statement, Type, Value};
use crate::error::{Error, ErrorKind, Failure};
use crate::memory::ModelState;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

/// Sessions of a proxy that are remembered to have entered their epoch.
const MOST: usize = 256;

/// A session that has entered its epoch enters it again after this time: what shows that another has to begin may
/// happen under it, by a restore or a clock that is set back.
const AGAIN: Duration = Duration::from_secs(10);

/// The epochs that the connections of a backend have entered.
///
/// A server whose epoch is earlier than one that was seen has been replaced: what it grants may be granted
/// by its successor too. No statement is sent to it any more.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    latest: AtomicI64,
    /// The latest of which the beginning is known to be committed; behind a proxy.
    committed: AtomicI64,
    /// Notified when a later one was entered.
    pub(super) advanced: Notify,
    /// Behind a proxy each transaction may be served by another session.
    entered: Mutex<HashMap<Process, Entered>>,
}

/// The epoch that a session has entered, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    pub(super) number: i64,
    pub(super) at: Time,
}

impl Entered {
    /// Whether it is to be entered again.
    pub(super) fn is_old(self, now: Time) -> bool {
        self.number > 0 && now.saturating_sub(self.at) >= AGAIN
    }
}

impl Epochs {
    /// Enters the epoch of the server on a connection whose settings are set, and answers its
    /// number; none as long as the database has no schema that knows epochs, or the role no right to it.
    pub(super) async fn enter<N: Connection>(
        &self,
        connection: &mut N,
        state: ServerState,
    ) -> Result<Option<i64>, Failure> {
        if !state.epochs {
            return Ok(None);
        }
        self.enter_again(connection).await.map(Some)
    }

    /// The same where the schema is known to know epochs.
    pub(super) async fn enter_again<N: Connection>(
        &self,
        connection: &mut N,
    ) -> Result<i64, Failure> {
        let answers = connection.perform(&[EnterEpoch]).await?;
        let [number] = answers[..] else {
            return Err(Failure::corrupt("the server returned no epoch"));
        };
        let before = self.latest.fetch_max(number, Ordering::AcqRel);
        if (1..number).contains(&before) {
            self.advanced.notify_waiters();
        }
        let checked = self.check(number);
        checked.inspect_err(|_| connection.superseded())?;
        Ok(number)
    }

    /// Whether it has begun, whatever becomes of the transaction that enters it now.
    pub(super) fn is_committed(&self, number: i64) -> bool {
        number == self.committed.load(Ordering::Acquire)
    }

    /// Whether the session that a proxy gave to a transaction has entered its epoch.
    pub(super) fn has_entered(&self, state: ServerState, now: Time) -> bool {
        let entered = state
            .process
            .and_then(|process| self.lock().get(&process).copied());
        // A later one may have begun on the same server.
        entered.is_some_and(|it| !it.is_old(now) && self.check(it.number).is_ok())
    }

    /// The session has entered the epoch, and that is committed.
    pub(super) fn remember(&self, process: Process, entered: Entered) {
        let mut sessions = self.lock();
        if sessions.len() >= MOST {
            sessions.retain(|_, it| !it.is_old(entered.at));
        }
        if sessions.len() >= MOST {
            sessions.clear();
        }
        sessions.insert(process, entered);
        self.committed.fetch_max(entered.number, Ordering::AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Process, Entered>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a connection that is in an earlier epoch than another.
    pub(super) fn check(&self, number: i64) -> Result<(), Failure> {
        if number == 0 || number >= self.latest.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = "the connection belongs to an earlier epoch: another server has taken over, or the database was restored, \
             since it was opened; connect to that server, or restart this program if that one is gone for good";
        let error = Error::new(ErrorKind::Unavailable, "connect", message);
        Err(Failure::connect(None, error))
    }
}

/// Enters the epoch of the server; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct EnterEpoch;

impl Operation for EnterEpoch {
    /// The number of the epoch.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "engine.epoch",
        sql: include_str!("epoch.sql"),
        params: &[],
        columns: &[Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Int(model.enter_epoch())])])
    }
}

#[cfg(test)]
mod tests;
