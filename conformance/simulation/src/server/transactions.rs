//! Transactions of users.

use std::time::Duration;

use lockapi::driver::{Row, Rows, Value};
use lockapi::{Failure, Report};

use super::{Answer, Server, clock};

/// How long a statement of theirs waits for a row.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a check answers that its holder holds.
pub(super) fn holds(rows: &Rows) -> bool {
    rows.first() == Some(&Row(vec![Value::Bool(true)]))
}

impl Server {
    /// A session begins a transaction.
    pub(super) fn begin(&self, session: u64, answer: Answer) {
        let mut state = self.lock();
        state.model.begin(session);
        if let Some(it) = state.sessions.get_mut(&session) {
            it.failed = false;
            it.checked.clear();
            it.lock_timeout = LOCK_TIMEOUT;
        }
        drop(state);
        self.answer(session, answer, Ok(Rows::new()));
    }

    /// A session ends its transaction, and is answered whether that was committed.
    pub(super) fn end_transaction_of(&self, session: u64, commits: bool, answer: Answer) {
        let now = self.runtime.now();
        let received = self.runtime.happens(0.3);
        let mut state = self.lock();
        let at = clock(&state, now);
        let Some(it) = state.sessions.get_mut(&session) else {
            return;
        };
        let commits = commits && !std::mem::take(&mut it.failed);
        let checked = std::mem::take(&mut it.checked);
        let mut broken = None;
        if commits {
            if let Err(what) = state.model.commit(session, at) {
                broken = Some(("a transaction does what it answered", what));
            }
            let stale = state.judges.wrote(checked).err();
            let super::State { model, judges, .. } = &mut *state;
            let ran = judges.ran(model.state().jobs(), ("queue.commit", None), (now, at));
            broken = broken.or(stale).or(ran.err());
            state.calls += 1;
            state.committed("commit", received);
        } else {
            state.model.roll_back(session);
        }
        drop(state);
        if let Some((promise, what)) = broken {
            self.runtime.violate(promise, what);
        }
        let rows = vec![Row(vec![Value::Bool(commits)])];
        self.answer(session, answer, Ok(rows));
        self.notify();
        self.go_on(session);
    }

    /// A statement of a session has failed, and with it the transaction that it has open.
    pub(super) fn fail_transaction(&self, session: u64) {
        let mut state = self.lock();
        if !state.model.is_in_transaction(session) {
            return;
        }
        state.model.roll_back(session);
        if let Some(it) = state.sessions.get_mut(&session) {
            it.failed = true;
        }
        drop(state);
        self.go_on(session);
    }

    /// A statement in a transaction that has failed does nothing.
    pub(super) fn refuse_in_failed(&self, session: u64, answer: Answer) {
        let message = "current transaction is aborted";
        let report = Report::new(Some("25P02".to_owned()), message);
        self.answer(session, answer, Err(Failure::reported(report)));
    }

    /// Whether a session has a transaction open in which nothing has failed.
    pub(crate) fn is_in_transaction(&self, session: u64) -> bool {
        self.lock().model.is_in_transaction(session)
    }
}
