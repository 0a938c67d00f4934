//! Waiting for a lock in the server's queue.

use crate::error::Failure;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::memory::World;
use crate::seam::{Operation, Row, Rows, Statement, Type, Value};

/// Waits for one lock; always a batch of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The lock.
    pub lock: LockId,
    /// How long, in milliseconds; at least 1.
    pub millis: i64,
}

impl Operation for Wait {
    /// The token; `None` when the time ran out.
    type Output = Option<i64>;

    const STATEMENT: Statement = Statement {
        name: "mutex.wait",
        sql: include_str!("wait.sql"),
        params: &[Type::Int, Type::Bool, Type::Text],
        columns: &[Type::Int],
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
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Option<i64>>, Failure> {
        rows.into_iter()
            .map(|mut row| Ok(row.maybe_int(0)?.map(|value| value << HAND_OVER_BITS)))
            .collect()
    }

    fn model(batch: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        let wait = batch.first()?;
        let fence = if world.wait_lock(wait.lock, session)? {
            Value::Int(world.next_fence())
        } else {
            Value::Null(Type::Int)
        };
        Some(vec![Row(vec![fence])])
    }
}
