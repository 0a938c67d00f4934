//! Checking whether a lock has waiters.

use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::ModelState;

/// Checks whether any session waits for a lock.
#[derive(Clone, Copy, Debug)]
pub struct HasWaiters(pub LockId);

impl Operation for HasWaiters {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "mutex.has_waiters",
        sql: include_str!("has_waiters.sql"),
        params: &[Type::Ints, Type::Bools],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            Value::Ints(batch.iter().map(|one| one.0.key).collect()),
            Value::Bools(batch.iter().map(|one| one.0.pair).collect()),
        ]
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let has_waiters = |one: &Self| Row(vec![Value::Bool(model.waiting(one.0) > 0)]);
        Some(batch.iter().map(has_waiters).collect())
    }
}
