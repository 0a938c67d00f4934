//! Waiting for a lock in the server's queue.

use super::step::{Stepped, Way, token};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::World;
use crate::seam::{Operation, Row, Rows, Statement, Type, Value};

/// Waits for one lock; always a batch of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The lock.
    pub lock: LockId,
    /// Alone or with others.
    pub way: Way,
    /// How long, in milliseconds; at least 1.
    pub millis: i64,
}

impl Operation for Wait {
    /// [`Stepped::Contended`] when the time ran out.
    type Output = Stepped;

    const STATEMENT: Statement = Statement {
        name: "mutex.wait",
        sql: include_str!("wait.sql"),
        params: &[Type::Int, Type::Bool, Type::Text, Type::Bool],
        columns: &[Type::Bool, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|wait| {
                [
                    Value::Int(wait.lock.key),
                    Value::Bool(wait.lock.pair),
                    Value::Text(format!("{}ms", wait.millis.max(1))),
                    Value::Bool(wait.way == Way::Shared),
                ]
            })
            .collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Stepped>, Failure> {
        rows.into_iter()
            .zip(batch)
            .map(|(mut row, wait)| {
                let (granted, fence) = (row.bool(0)?, row.maybe_int(1)?);
                match (granted, wait.way) {
                    (false, _) => Ok(Stepped::Contended),
                    (true, Way::Shared) => Ok(Stepped::Shared),
                    (true, Way::Alone) => token(fence),
                }
            })
            .collect()
    }

    fn model(batch: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        let wait = batch.first()?;
        let granted = world.wait_lock(wait.lock, wait.way, session)?;
        let fence = if granted && wait.way == Way::Alone {
            Value::Int(world.next_fence())
        } else {
            Value::Null(Type::Int)
        };
        Some(vec![Row(vec![Value::Bool(granted), fence])])
    }
}
