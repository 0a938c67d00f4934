//! Checking a mutex holder inside a transaction.

use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::mutex::session::mark_id;

/// Checks one holder; a batch of one.
#[derive(Clone, Debug)]
pub struct Check {
    /// The mark of the session that holds the lock.
    pub session: i64,
    /// Empty: a lock is the same in every namespace.
    pub namespace: String,
    /// The advisory lock, as tables store it.
    pub key: String,
    /// The holder's token.
    pub fence: i64,
}

impl Operation for Check {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "mutex.check",
        sql: include_str!("check.sql"),
        params: &[Type::Int, Type::Text, Type::Text, Type::Int],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|check| {
                [
                    Value::Int(check.session),
                    Value::Text(check.namespace.clone()),
                    Value::Text(check.key.clone()),
                    Value::Int(check.fence),
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let check = batch.first()?;
        let held = model.is_locked(mark_id(check.session))
            && model.mark_fence(&check.namespace, &check.key, check.fence);
        Some(vec![Row(vec![Value::Bool(held)])])
    }
}
