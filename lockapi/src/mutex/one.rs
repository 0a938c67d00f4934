//! A lone request to the session that holds locks: less work for the server than a batch.

use super::lock_request::{LockAnswer, LockMode};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::memory::ModelState;

/// Tries one lock in exclusive mode; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct TryOne(pub LockId);

/// Releases one lock that is held in exclusive mode; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseOne(pub LockId);

impl Operation for TryOne {
    type Output = LockAnswer;

    const STATEMENT: Statement = Statement {
        name: "mutex.try",
        sql: include_str!("try.sql"),
        params: &[Type::Int, Type::Bool],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        lock_params(batch.first().map(|one| one.0))
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<LockAnswer>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                let fence = row.maybe_int(0)?;
                Ok(fence.map_or(LockAnswer::Contended, |fence| {
                    LockAnswer::Taken(fence << HAND_OVER_BITS)
                }))
            })
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let fence = if model.try_lock(batch.first()?.0, LockMode::Exclusive, session) {
            Value::Int(model.next_fence())
        } else {
            Value::Null(Type::Int)
        };
        Some(vec![Row(vec![fence])])
    }
}

impl Operation for ReleaseOne {
    type Output = LockAnswer;

    const STATEMENT: Statement = Statement {
        name: "mutex.release",
        sql: include_str!("release.sql"),
        params: &[Type::Int, Type::Bool],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        lock_params(batch.first().map(|one| one.0))
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<LockAnswer>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                let released = row.bool(0)?;
                Ok(if released {
                    LockAnswer::Released
                } else {
                    LockAnswer::NotHeld
                })
            })
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let released = model.unlock(batch.first()?.0, LockMode::Exclusive, session);
        Some(vec![Row(vec![Value::Bool(released)])])
    }
}

pub(super) fn lock_params(lock: Option<LockId>) -> Vec<Value> {
    lock.map(|lock| vec![Value::Int(lock.key), Value::Bool(lock.pair)])
        .unwrap_or_default()
}
