//! Releasing and trying locks on the session that holds them.

use crate::error::Failure;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::memory::World;
use crate::seam::{Operation, Row, Rows, Statement, Type, Value};

/// One request to the session lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The lock.
    pub lock: LockId,
    /// Release it, or try to take it.
    pub release: bool,
}

/// The answer to a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// The lock is now this session's, under this token.
    Taken(i64),
    /// Another session holds it.
    Contended,
    /// Released.
    Released,
    /// This session did not hold it.
    NotHeld,
}

impl Operation for Step {
    type Output = Stepped;

    const STATEMENT: Statement = Statement {
        name: "mutex.step",
        sql: include_str!("step.sql"),
        params: &[Type::Ints, Type::Bools, Type::Bools],
        columns: &[Type::Bools, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            Value::Ints(batch.iter().map(|step| step.lock.key).collect()),
            Value::Bools(batch.iter().map(|step| step.lock.pair).collect()),
            Value::Bools(batch.iter().map(|step| step.release).collect()),
        ]
    }

    fn decode(batch: &[Self], mut rows: Rows) -> Result<Vec<Stepped>, Failure> {
        let row = rows
            .first_mut()
            .ok_or_else(|| Failure::corrupt("mutex.step answered no row"))?;
        let done = row.bools(0)?;
        let fence = row.maybe_int(1)?;
        batch
            .iter()
            .zip(done)
            .map(|(step, ok)| match (step.release, ok, fence) {
                (true, true, _) => Ok(Stepped::Released),
                (true, false, _) => Ok(Stepped::NotHeld),
                (false, true, Some(fence)) => Ok(Stepped::Taken(fence << HAND_OVER_BITS)),
                (false, true, None) => Err(Failure::corrupt("a lock was taken without a token")),
                (false, false, _) => Ok(Stepped::Contended),
            })
            .collect()
    }

    fn model(batch: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        let done: Vec<bool> = batch
            .iter()
            .map(|step| {
                if step.release {
                    world.unlock(step.lock, session)
                } else {
                    world.try_lock(step.lock, session)
                }
            })
            .collect();
        let taken = batch
            .iter()
            .zip(&done)
            .any(|(step, ok)| *ok && !step.release);
        let fence = if taken {
            Value::Int(world.next_fence())
        } else {
            Value::Null(Type::Int)
        };
        Some(vec![Row(vec![Value::Bools(done), fence])])
    }
}
