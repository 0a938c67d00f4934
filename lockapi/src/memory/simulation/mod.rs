//! The server of a simulation: the model, with the sessions and the time that the simulation gives it.

mod transaction;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::ModelState;
use crate::BackendOptions;
use crate::backend::Backend;
use crate::driver::call::Meaning;
use crate::driver::{Call, Connector, Rows, Value};
use crate::engine::{Clock, DrivenClock, Driver, start_with};
use crate::error::Result;
use crate::lease::RowKey;
use transaction::Transaction;

/// Connects a backend whose time is that of the clock.
///
/// # Errors
/// As for [`start`](crate::engine::start).
pub async fn connect(
    connector: impl Connector,
    options: BackendOptions,
    clock: &DrivenClock,
) -> Result<Arc<dyn Backend>> {
    let clock = Clock::Driven(clock.clone());
    start_with("simulation", Driver::new(connector), options, clock).await
}

/// A statement on its way to the server.
pub struct Request {
    name: &'static str,
    meaning: Meaning,
    /// The rows of leases that it checks, for as long as its transaction lasts.
    checks: Vec<RowKey>,
    /// The key of the mutex whose mark it writes.
    marks: Option<(String, String)>,
}

impl Request {
    /// Of a call.
    #[must_use]
    pub fn new(call: Call<'_>) -> Self {
        let name = call.name();
        let (mut checks, mut marks) = (Vec::new(), None);
        match (name, call.query().1.as_slice()) {
            (
                "lease.check",
                [
                    Value::Text(namespace),
                    Value::Text(key),
                    Value::Ints(slots),
                    ..,
                ],
            ) => {
                let row_key = |slot: &i64| (namespace.clone(), key.clone(), *slot);
                checks.extend(slots.iter().map(row_key));
            }
            ("mutex.check", [_, Value::Text(namespace), Value::Text(key), ..]) => {
                marks = Some((namespace.clone(), key.clone()));
            }
            _ => {}
        }
        Self {
            name,
            meaning: call.meaning(),
            checks,
            marks,
        }
    }

    /// The name of the operation.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.name).finish()
    }
}

/// A server in memory whose sessions and time are given from outside.
#[derive(Debug, Default)]
pub struct Server {
    model: ModelState,
    /// The token that is known to be on disk.
    durable: i64,
    /// What sessions have open.
    transactions: BTreeMap<u64, Transaction>,
    /// What the standby has, which receives nothing any more.
    standby: Option<Box<ModelState>>,
}

impl Server {
    /// A session begins.
    pub fn begin_session(&mut self, session: u64, now: i64) {
        self.model.begin_session(session, now);
    }

    /// A session ends; what it had locked is released.
    pub fn end_session(&mut self, session: u64) {
        self.roll_back(session);
        self.model.end_session(session);
    }

    /// A session wants to be notified.
    pub fn listen(&mut self, session: u64) {
        self.model.heard.listen(session);
    }

    /// Whether there was a notification since the last call.
    pub fn has_notified(&mut self) -> bool {
        std::mem::take(&mut self.model.heard.rung)
    }

    /// The next notification for a session.
    pub fn notification(&mut self, session: u64) -> Option<String> {
        self.model.heard.next(session)
    }

    /// Runs a statement at a time of the server's clock, in microseconds since 1970. `None`: it waits for
    /// another session; ask again when something has changed, and once more with `late` when it
    /// has waited long enough. What a session does that has a [transaction](Self::begin) open takes effect when
    /// that is committed.
    pub fn run(
        &mut self,
        request: &Arc<Request>,
        session: u64,
        now: i64,
        late: bool,
    ) -> Option<Rows> {
        self.model.now = now;
        self.model.late = late;
        if self.transactions.contains_key(&session) {
            return self.run_in(request, session);
        }
        let rows = (request.meaning)(&mut self.model, session);
        // What sessions of mutexes do is on disk some time later.
        let name = request.name;
        if !name.starts_with("mutex.")
            || matches!(name, "mutex.mark_session" | "mutex.flush_tokens")
        {
            self.durable = self.model.last_fence();
        }
        rows
    }

    /// A transaction of another program locks the rows of these jobs, those that are free; answers which.
    pub fn lock_rows(&mut self, jobs: &[i64]) -> Vec<i64> {
        self.model.jobs.lock_rows(jobs)
    }

    /// The transactions that have locked the rows of these jobs end.
    pub fn unlock_rows(&mut self, jobs: &[i64]) {
        self.model.jobs.unlock_rows(jobs);
    }

    /// A transaction of another program locks a row of a lease, if that is there; answers whether.
    pub fn lock_lease(&mut self, row_key: &(String, String, i64)) -> bool {
        self.model.leases.lock_row(row_key)
    }

    /// The transaction has ended.
    pub fn unlock_lease(&mut self, row_key: &(String, String, i64)) {
        self.model.leases.unlock_row(row_key);
    }

    /// All sessions have ended, and of what was not on disk a part is lost, between 0 and 1.
    pub fn crash(&mut self, part: f64) {
        let last = self.model.last_fence();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "a part of some thousand tokens"
        )]
        let lost = ((last - self.durable) as f64 * part) as i64;
        self.model.skip_fences(-lost);
        self.model.crash();
    }

    /// From now on the standby receives nothing.
    pub fn cut_replication(&mut self) {
        self.standby = Some(Box::new(self.model.clone()));
    }

    /// All sessions have ended, and the standby takes over, at a time of its clock.
    pub fn fail_over(&mut self, now: i64) {
        if let Some(standby) = self.standby.take() {
            self.model = *standby;
        }
        // It has none of the transactions that were open.
        self.transactions.clear();
        self.model.jobs.unlock_all_rows();
        self.model.leases.unlock_all_rows();
        self.model.promote(now);
        self.durable = self.model.last_fence();
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        &self.model
    }
}
