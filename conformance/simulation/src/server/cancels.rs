//! Statements that are cancelled because their clients have left.

use super::{Server, Statement};
use lockapi::driver::{Row, Rows, Value};

/// What tells a client which process its session has, and since when: here its number, and no time.
const SETTINGS: &str = "engine.session_settings";

/// With the process of the session, if that is what is asked for; the model has none.
pub(super) fn with_process(statement: &Statement, session: u64, rows: Rows) -> Rows {
    if statement.request.name() != SETTINGS {
        return rows;
    }
    let process = |mut row: Row| {
        let process = Value::Int(i64::try_from(session).unwrap_or_default());
        if let Some(place) = row.0.get_mut(2) {
            *place = process;
        }
        row
    };
    rows.into_iter().map(process).collect()
}

impl Server {
    /// Cancels what these sessions run: all of their clients have left.
    pub(super) fn cancel(&self, processes: &[i64]) {
        for process in processes {
            let session = process.unsigned_abs();
            let mut state = self.lock();
            let Some(it) = state.sessions.get(&session) else {
                continue;
            };
            let Some(running) = &it.running else {
                continue;
            };
            let (left, number) = (it.left, running.number);
            let what = running.statement.request.name();
            *state.struck.entry("cancelled").or_default() += 1;
            drop(state);
            let promise = "nothing is cancelled of whoever waits for it";
            self.runtime.looks_at(promise);
            if !left {
                self.runtime.violate(promise, what);
            }
            self.stop(session, number, ("57014", "cancelled by a client"));
        }
    }
}
