//! Transactions of users: what is pushed, completed, taken and checked in them takes effect when they commit.

use std::sync::Arc;

use super::{Request, Server};
use crate::driver::{Row, Rows, Value};
use crate::lease::RowKey;

/// The namespace and key of a mark, and what it was.
type Former = ((String, String), Option<(i64, i64)>);

/// What a session has done in a transaction that is open.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    staged: Vec<Staged>,
    /// Marks of mutexes as they were before.
    marks: Vec<Former>,
    /// The rows of leases that it has checked in.
    leases: Vec<RowKey>,
}

/// A statement that changes jobs, of which the session knows the answer.
#[derive(Debug)]
struct Staged {
    request: Arc<Request>,
    at: i64,
    /// The jobs that it takes or completes; their rows are locked.
    jobs: Vec<i64>,
    /// The number before those of the jobs that it pushes.
    after: i64,
    rows: Rows,
}

impl Server {
    /// A session begins a transaction.
    pub fn begin(&mut self, session: u64) {
        self.transactions.entry(session).or_default();
    }

    /// Whether a session has a transaction open.
    #[must_use]
    pub fn is_in_transaction(&self, session: u64) -> bool {
        self.transactions.contains_key(&session)
    }

    /// What a session did in its transaction takes effect.
    ///
    /// # Errors
    /// Where what is done now is not what the session was answered.
    pub fn commit(&mut self, session: u64, now: i64) -> Result<(), String> {
        let Some(transaction) = self.transactions.remove(&session) else {
            return Ok(());
        };
        self.unlock(&transaction);
        for staged in transaction.staged {
            self.model.now = staged.at;
            let last = self.model.jobs.last_number();
            self.model.jobs.set_last_number(staged.after);
            let others = self.model.jobs.lock_all_but(&staged.jobs);
            let rows = (staged.request.meaning)(&mut self.model, session);
            self.model.jobs.unlock_rows(&others);
            self.model.jobs.set_last_number(last);
            if rows.as_ref() != Some(&staged.rows) {
                let name = staged.request.name;
                return Err(format!(
                    "{name} answered {:?} and did {rows:?}",
                    staged.rows
                ));
            }
        }
        self.model.now = now;
        self.durable = self.model.last_fence();
        Ok(())
    }

    /// What a session did in its transaction is undone.
    pub fn roll_back(&mut self, session: u64) {
        let Some(transaction) = self.transactions.remove(&session) else {
            return;
        };
        self.unlock(&transaction);
        for (key, mark) in transaction.marks.into_iter().rev() {
            match mark {
                Some(mark) => self.model.marks.insert(key, mark),
                None => self.model.marks.remove(&key),
            };
        }
    }

    /// Whether another session has a transaction open that has written the mark that this one writes.
    #[must_use]
    pub fn waits_for_mark(&self, request: &Request, session: u64) -> bool {
        let Some(wanted) = &request.marks else {
            return false;
        };
        let others = self.transactions.iter().filter(|(of, _)| **of != session);
        let mut marks = others.flat_map(|(_, it)| &it.marks);
        marks.any(|(key, _)| key == wanted)
    }

    fn unlock(&mut self, transaction: &Transaction) {
        for staged in &transaction.staged {
            self.model.jobs.unlock_rows(&staged.jobs);
        }
        for row_key in &transaction.leases {
            self.model.leases.unlock_row(row_key);
        }
    }

    /// Runs a statement in the transaction that a session has open.
    pub(super) fn run_in(&mut self, request: &Arc<Request>, session: u64) -> Option<Rows> {
        if !request.name.starts_with("queue.") {
            return self.check_in(request, session);
        }
        // What it does is done to a copy now, and to the tables when the transaction commits.
        let before = self.model.jobs.numbers();
        let after = self.model.jobs.last_number();
        let mut jobs = std::mem::take(&mut self.model.jobs);
        let mut trial = self.model.clone();
        trial.jobs = jobs.trial();
        self.model.jobs = jobs;
        let rows = (request.meaning)(&mut trial, session)?;
        let left = trial.jobs.numbers();
        let gone: Vec<_> = before.difference(&left).copied().collect();
        let staged = Staged {
            request: Arc::clone(request),
            at: self.model.now,
            jobs: self.model.jobs.lock_rows_of(&gone),
            after,
            rows: rows.clone(),
        };
        let last = trial.jobs.last_number();
        self.model.jobs.set_last_number(last);
        let transaction = self.transactions.get_mut(&session)?;
        if last > after || !staged.jobs.is_empty() {
            transaction.staged.push(staged);
        }
        Some(rows)
    }

    /// What it checks stays locked until the transaction ends.
    fn check_in(&mut self, request: &Request, session: u64) -> Option<Rows> {
        let mark = request.marks.as_ref();
        let mark = mark.map(|key| (key.clone(), self.model.marks.get(key).copied()));
        let rows = (request.meaning)(&mut self.model, session)?;
        let transaction = self.transactions.get_mut(&session)?;
        if rows == [Row(vec![Value::Bool(true)])] {
            transaction.marks.extend(mark);
        }
        if rows.len() == request.checks.len() {
            let locked = request.checks.iter();
            let locked = locked.filter(|row_key| self.model.leases.lock_row(row_key));
            transaction.leases.extend(locked.cloned());
        }
        Some(rows)
    }
}
