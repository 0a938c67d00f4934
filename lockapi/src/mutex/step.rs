//! Releasing and trying locks on the session that holds them.

use crate::error::Failure;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::memory::World;
use crate::seam::{Operation, Row, Rows, Statement, Type, Value};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By one session.
    Alone,
    /// Together with others that share it.
    Shared,
}

/// One request to the session lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The lock.
    pub lock: LockId,
    /// How it is, or is to be, held.
    pub way: Way,
    /// Release it, or try to take it.
    pub release: bool,
}

/// The answer to a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// The lock is now this session's alone, under this token.
    Taken(i64),
    /// The lock is now shared by this session.
    Shared,
    /// Another session holds it.
    Contended,
    /// Released.
    Released,
    /// This session did not hold it.
    NotHeld,
}

impl Step {
    /// What is to be done, as a number of step.sql.
    fn code(self) -> i64 {
        i64::from(self.release)
            + if self.way == Way::Shared { 2 } else { 0 }
            + if self.lock.pair { 4 } else { 0 }
    }
}

impl Operation for Step {
    type Output = Stepped;

    const STATEMENT: Statement = Statement {
        name: "mutex.step",
        sql: include_str!("step.sql"),
        params: &[Type::Ints, Type::Ints],
        columns: &[Type::Bools, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            Value::Ints(batch.iter().map(|step| step.lock.key).collect()),
            Value::Ints(batch.iter().map(|step| step.code()).collect()),
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
            .map(|(step, ok)| match (step.release, ok, step.way) {
                (true, true, _) => Ok(Stepped::Released),
                (true, false, _) => Ok(Stepped::NotHeld),
                (false, false, _) => Ok(Stepped::Contended),
                (false, true, Way::Shared) => Ok(Stepped::Shared),
                (false, true, Way::Alone) => token(fence),
            })
            .collect()
    }

    fn model(batch: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        let done: Vec<bool> = batch
            .iter()
            .map(|step| {
                if step.release {
                    world.unlock(step.lock, step.way, session)
                } else {
                    world.try_lock(step.lock, step.way, session)
                }
            })
            .collect();
        let taken = batch
            .iter()
            .zip(&done)
            .any(|(step, ok)| *ok && !step.release && step.way == Way::Alone);
        let fence = if taken {
            Value::Int(world.next_fence())
        } else {
            Value::Null(Type::Int)
        };
        Some(vec![Row(vec![Value::Bools(done), fence])])
    }
}

/// The answer for a lock that was taken alone.
pub(super) fn token(fence: Option<i64>) -> Result<Stepped, Failure> {
    fence
        .map(|fence| Stepped::Taken(fence << HAND_OVER_BITS))
        .ok_or_else(|| Failure::corrupt("a lock was taken without a token"))
}
