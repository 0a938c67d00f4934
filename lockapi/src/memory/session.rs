//! A session of a database in memory: it applies operations to the model, and receives notifications.

use std::fmt;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{Database, State};
use crate::driver::{BoxFuture, Call, Connection, Library, Listener, Rows, Script, Transaction};
use crate::error::Failure;
use crate::mutex::time_limit;

/// How long a session waits for a lock until it times out, unless the call tells how long.
const SLICE: Duration = Duration::from_millis(200);

/// A session of a database in memory.
pub struct Session {
    pub(super) database: Database,
    pub(super) id: u64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.id)
    }
}

impl Connection for Session {
    /// Blocks while the operation waits: tasks of this backend are threads.
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        loop {
            // Registered before the look, so that a change in between is not missed.
            let spoken = self.database.shared.spoken.notified();
            if let Some(outcome) = self.attempt(call) {
                return outcome;
            }
            spoken.await;
        }
    }

    /// The other scripts manage schemas and transactions, which have no meaning in memory.
    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        if script == Script::Listen {
            self.database.shared.lock().model.heard.listen(self.id);
        }
        Ok(())
    }
}

/// What has no transactions does each operation at once.
impl Transaction<Database> for Session {
    type Connection<'c> = &'c mut Self;

    fn connection(&mut self) -> &mut Self {
        self
    }
}

impl Library for Database {
    type Outcome<'c, T: Send + 'c> = BoxFuture<'c, T>;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> BoxFuture<'c, T> {
        work
    }
}

impl Listener for Session {
    async fn next(&mut self) -> Result<String, Failure> {
        let shared = &self.database.shared;
        loop {
            // Registered before the look, so that a change in between is not missed.
            let spoken = shared.spoken.notified();
            if let Some(outcome) = self.check(&mut shared.lock()) {
                return outcome;
            }
            spoken.await;
        }
    }
}

impl Session {
    /// What was sent to the session, if anything, or that it was ended.
    fn check(&self, state: &mut State) -> Option<Result<String, Failure>> {
        if state.is_silent(self.id) {
            return None;
        }
        if !state.sessions.contains_key(&self.id) {
            return Some(Err(ended()));
        }
        state.model.heard.next(self.id).map(Ok)
    }

    /// Runs the call; `None` while the database is silent.
    fn attempt(&self, call: Call<'_>) -> Option<Result<Rows, Failure>> {
        let shared = &self.database.shared;
        let activity = self.database.clock.activity();
        let until = Instant::now() + time_limit(&call).unwrap_or(SLICE);
        let mut state = shared.lock();
        loop {
            if state.is_silent(self.id) {
                return None;
            }
            if !state.sessions.contains_key(&self.id) {
                return Some(Err(ended()));
            }
            let left = until.saturating_duration_since(Instant::now());
            state.model.now = self.database.now(state.set_ahead);
            state.model.late = left.is_zero();
            if let Some(rows) = call.model(&mut state.model, self.id) {
                shared.changed.notify_all();
                if std::mem::take(&mut state.model.heard.rung) {
                    shared.spoken.notify_waiters();
                }
                return Some(Ok(rows));
            }
            // Who waits for the lock of another is not at work.
            if let Some(activity) = &activity {
                activity.end();
            }
            state = shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if let Some(activity) = &activity {
                activity.begin();
            }
        }
    }
}

/// Whether a session lives is looked at before a call runs, so the call did not.
fn ended() -> Failure {
    Failure::connect(Some("57P01".to_owned()), "the session was ended")
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = self.database.shared.lock();
        state.silent_sessions.remove(&self.id);
        if state.sessions.remove(&self.id).is_some() {
            state.model.end_session(self.id);
        }
        drop(state);
        self.database.shared.changed.notify_all();
    }
}
