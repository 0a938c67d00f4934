//! Finding callers that wait for each other across processes.

use super::lock_request::{LockMode, LockRequest};
use super::session::of_session;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::ModelState;

/// What turns a lock into the note that its holder waits.
const NOTE: i64 = 7_309_453_129_462_714_281;

/// Notes that holders of some locks are about to wait for another, and checks whether that closes a
/// cycle; a batch of one.
#[derive(Clone, Debug)]
pub struct DeadlockCheck {
    /// The lock that is to be waited for.
    pub lock: LockId,
    /// What is held meanwhile.
    pub holding: Vec<LockId>,
    /// The mark of the session that is to wait.
    pub session: i64,
}

impl DeadlockCheck {
    /// The steps that remove the notes again.
    #[must_use]
    pub fn forget(&self) -> Vec<LockRequest> {
        let forget = |lock: &LockId| LockRequest {
            lock: note(*lock),
            mode: LockMode::Shared,
            release: true,
            session: self.session,
        };
        self.holding.iter().map(forget).collect()
    }
}

impl Operation for DeadlockCheck {
    /// The locks held that the cycle goes through; none when there is no cycle.
    type Output = Vec<LockId>;

    const STATEMENT: Statement = Statement {
        name: "mutex.deadlock",
        sql: include_str!("deadlock.sql"),
        params: &[Type::Int, Type::Bool, Type::Ints, Type::Bools, Type::Int],
        columns: &[Type::Ints, Type::Bools],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|cycle| {
                [
                    Value::Int(cycle.lock.key),
                    Value::Bool(cycle.lock.pair),
                    Value::Ints(cycle.holding.iter().map(|lock| lock.key).collect()),
                    Value::Bools(cycle.holding.iter().map(|lock| lock.pair).collect()),
                    Value::Int(cycle.session),
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<LockId>>, Failure> {
        of_session(rows)?
            .into_iter()
            .map(|mut row| {
                let (keys, pairs) = (row.ints(0)?, row.bools(1)?);
                let locks = keys.into_iter().zip(pairs);
                Ok(locks.map(|(key, pair)| LockId { key, pair }).collect())
            })
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let cycle = batch.first()?;
        if !model.has_mark(session, cycle.session) {
            return Some(Vec::new());
        }
        for lock in &cycle.holding {
            model.try_lock(note(*lock), LockMode::Shared, session);
        }
        let mut reached = vec![cycle.lock];
        let mut next = 0;
        while let Some(lock) = reached.get(next).copied() {
            next += 1;
            for wanted in model.wanted_by_holders_of(note(lock)) {
                if !reached.contains(&wanted) {
                    reached.push(wanted);
                }
            }
        }
        reached.retain(|lock| cycle.holding.contains(lock));
        Some(vec![Row(vec![
            Value::Ints(reached.iter().map(|lock| lock.key).collect()),
            Value::Bools(reached.iter().map(|lock| lock.pair).collect()),
        ])])
    }
}

fn note(lock: LockId) -> LockId {
    LockId {
        key: lock.key ^ NOTE,
        pair: lock.pair,
    }
}
