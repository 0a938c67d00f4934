//! Transactions of other programs that lock rows: of jobs, of leases, and of limits.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Needs, RowKey, Server, State};

/// Of so many keys of limits, and so many leases, the last that were used, some are locked.
const KNOWN: usize = 64;
/// So many rows of a kind a transaction locks at most.
const MOST: usize = 8;

/// What is locked.
#[derive(Default)]
pub(super) struct Locked {
    transactions: BTreeMap<u64, Transaction>,
    keys: VecDeque<String>,
    leases: VecDeque<RowKey>,
}

/// What a transaction has locked.
struct Transaction {
    jobs: Vec<i64>,
    keys: Vec<String>,
    leases: Vec<RowKey>,
}

/// Notes what a statement uses.
fn note<T: Clone + PartialEq>(known: &mut VecDeque<T>, used: &[T]) {
    for one in used {
        if !known.contains(one) {
            known.push_back(one.clone());
        }
    }
    let surplus = known.len().saturating_sub(KNOWN);
    known.drain(..surplus);
}

impl State {
    /// Notes the keys of limits, and the leases, that a statement uses.
    pub(super) fn note_keys(&mut self, needs: &Needs) {
        match needs {
            Needs::Keys(keys) => note(&mut self.locked.keys, keys),
            Needs::Leases(leases) => note(&mut self.locked.leases, leases),
            Needs::Nothing | Needs::Deliveries(..) => {}
        }
    }

    /// Whether what a session runs waits for a row that somebody has locked.
    pub(super) fn waits_for_row(&self, session: u64) -> bool {
        let running = self.sessions.get(&session);
        let Some(running) = running.and_then(|it| it.running.as_ref()) else {
            return false;
        };
        let statement = &running.statement;
        let mut transactions = self.locked.transactions.values();
        let waits = match &statement.needs {
            Needs::Deliveries(ids, tokens) => {
                let jobs = self.model.state().jobs();
                jobs.waits_to_complete(ids, tokens)
            }
            Needs::Keys(keys) => {
                transactions.any(|it| keys.iter().any(|key| it.keys.contains(key)))
            }
            Needs::Leases(leases) => {
                transactions.any(|it| leases.iter().any(|lease| it.leases.contains(lease)))
            }
            Needs::Nothing => false,
        };
        waits || self.model.waits_for_mark(&statement.request, session)
    }

    /// All transactions of other programs have ended.
    pub(super) fn end_transactions(&mut self) {
        for transaction in std::mem::take(&mut self.locked.transactions).into_values() {
            self.unlock(&transaction);
        }
    }

    fn unlock(&mut self, transaction: &Transaction) {
        self.model.unlock_rows(&transaction.jobs);
        for lease in &transaction.leases {
            self.model.unlock_lease(lease);
        }
    }
}

impl Server {
    /// A transaction locks some rows for a time; whether there were any.
    pub(crate) fn lock_rows(&self, time: Duration) -> bool {
        let mut state = self.lock();
        let jobs = state.model.state().jobs().sights();
        let mut jobs: Vec<_> = jobs.map(|sight| sight.id).collect();
        jobs.sort_unstable();
        let keys = Vec::from(state.locked.keys.clone());
        let leases = Vec::from(state.locked.leases.clone());
        let (jobs, keys, mut leases) = self.runtime.draw(|random| {
            let many = random.usize(1..=MOST);
            (
                random.choose_multiple(jobs, many),
                random.choose_multiple(keys, many),
                random.choose_multiple(leases, many),
            )
        });
        let jobs = state.model.lock_rows(&jobs);
        leases.retain(|lease| state.model.lock_lease(lease));
        if jobs.is_empty() && keys.is_empty() && leases.is_empty() {
            return false;
        }
        state.next += 1;
        let number = state.next;
        let transaction = Transaction { jobs, keys, leases };
        state.locked.transactions.insert(number, transaction);
        drop(state);
        let server = self.clone();
        self.runtime
            .after(time, move |_| server.end_transaction(number));
        true
    }

    fn end_transaction(&self, number: u64) {
        let mut state = self.lock();
        let Some(transaction) = state.locked.transactions.remove(&number) else {
            return;
        };
        state.unlock(&transaction);
        drop(state);
        self.go_on(0);
    }

    /// A statement waits for a row no longer than its session allows.
    pub(super) fn limit_wait(&self, session: u64, number: u64) {
        let state = self.lock();
        let limit = state.sessions.get(&session).map(|it| it.lock_timeout);
        let Some(limit) = limit.filter(|limit| !limit.is_zero() && state.waits_for_row(session))
        else {
            return;
        };
        drop(state);
        let server = self.clone();
        self.runtime.after(limit, move |_| {
            if server.lock().waits_for_row(session) {
                let message = "canceling statement due to lock timeout";
                server.stop(session, number, ("55P03", message));
            }
        });
    }
}
