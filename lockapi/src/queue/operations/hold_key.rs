//! Waiting for the job of a key.

use super::Name;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Locks the job of a unique key, if it waits, for the rest of the transaction.
#[derive(Clone, Debug)]
pub struct HoldKey {
    /// The queue.
    pub name: Name,
    /// The key.
    pub key: String,
}

impl Operation for HoldKey {
    /// How many jobs are locked.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "queue.hold_key",
        sql: include_str!("hold_key.sql"),
        params: &[Type::Text, Type::Text, Type::Text],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.push(Value::Text(one.key.clone()));
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let waits = model.jobs.waits_with_unique_key(&one.name, &one.key);
        Some(vec![Row(vec![Value::Int(i64::from(waits))])])
    }
}
