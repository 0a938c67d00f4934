//! Waiting for a lock in the server's queue.

use std::time::Duration;

use super::lock_request::{LockAnswer, LockMode, token};
use super::session::of_session;
use crate::driver::{Call, Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::ModelState;

/// Waits for one lock; always a batch of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The lock.
    pub lock: LockId,
    /// Exclusive or shared.
    pub mode: LockMode,
    /// How long, in milliseconds; at least 1.
    pub millis: i64,
    /// The mark of the session that waits.
    pub session: i64,
}

/// How long the call waits for a lock in the server's queue, if it does.
#[must_use]
pub fn time_limit(call: &Call<'_>) -> Option<Duration> {
    if call.name() != Wait::STATEMENT.name {
        return None;
    }
    match call.query().1.into_iter().nth(2)? {
        Value::Text(time) => time
            .strip_suffix("ms")?
            .parse()
            .ok()
            .map(Duration::from_millis),
        _ => None,
    }
}

impl Operation for Wait {
    /// [`LockAnswer::Contended`] when the time limit expired.
    type Output = LockAnswer;

    const STATEMENT: Statement = Statement {
        name: "mutex.wait",
        sql: include_str!("wait.sql"),
        params: &[Type::Int, Type::Bool, Type::Text, Type::Bool, Type::Int],
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
                    Value::Bool(wait.mode == LockMode::Shared),
                    Value::Int(wait.session),
                ]
            })
            .collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<LockAnswer>, Failure> {
        of_session(rows)?
            .into_iter()
            .zip(batch)
            .map(|(mut row, wait)| {
                let (granted, fence) = (row.bool(0)?, row.maybe_int(1)?);
                match (granted, wait.mode) {
                    (false, _) => Ok(LockAnswer::Contended),
                    (true, LockMode::Shared) => Ok(LockAnswer::Shared),
                    (true, LockMode::Exclusive) => token(fence),
                }
            })
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let wait = batch.first()?;
        if !model.has_mark(session, wait.session) {
            return Some(Vec::new());
        }
        let granted = model.wait_lock(wait.lock, wait.mode, session)?;
        let fence = if granted && wait.mode == LockMode::Exclusive {
            Value::Int(model.next_fence())
        } else {
            Value::Null(Type::Int)
        };
        Some(vec![Row(vec![Value::Bool(granted), fence])])
    }
}
