//! Releasing and trying locks on the session that holds them.

use super::session::is_elsewhere;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::memory::ModelState;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockMode {
    /// By one holder.
    Exclusive,
    /// By several at the same time.
    Shared,
}

/// One request to the session that holds the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The lock.
    pub lock: LockId,
    /// How it is, or is to be, held.
    pub mode: LockMode,
    /// Release it, or try to take it.
    pub release: bool,
    /// The mark of the session that holds the locks.
    pub session: i64,
}

/// The answer to a [`LockRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAnswer {
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

impl LockRequest {
    /// What is to be done, as a number of lock_request.sql.
    fn code(self) -> i64 {
        i64::from(self.release)
            + if self.mode == LockMode::Shared { 2 } else { 0 }
            + if self.lock.pair { 4 } else { 0 }
    }
}

impl Operation for LockRequest {
    type Output = LockAnswer;

    const STATEMENT: Statement = Statement {
        name: "mutex.lock_request",
        sql: include_str!("lock_request.sql"),
        params: &[Type::Ints, Type::Ints, Type::Int],
        columns: &[Type::Bools, Type::Int],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "mutex.lock_request_one",
        sql: include_str!("lock_request_one.sql"),
        params: &[Type::Int, Type::Bool, Type::Int],
        columns: &[Type::Int],
    });

    fn is_simple(batch: &[Self]) -> bool {
        matches!(batch, [one] if one.mode == LockMode::Exclusive && !one.lock.pair)
    }

    fn simple_params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let (key, session) = (Value::Int(one.lock.key), Value::Int(one.session));
            [key, Value::Bool(one.release), session]
        };
        batch.iter().flat_map(of).collect()
    }

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            Value::Ints(batch.iter().map(|request| request.lock.key).collect()),
            Value::Ints(batch.iter().map(|request| request.code()).collect()),
            Value::Int(batch.first().map_or(0, |request| request.session)),
        ]
    }

    fn decode(batch: &[Self], mut rows: Rows) -> Result<Vec<LockAnswer>, Failure> {
        let row = rows.first_mut().ok_or_else(is_elsewhere)?;
        if let [one] = batch
            && row.0.len() == 1
        {
            let done = row.maybe_int(0)?;
            return Ok(vec![match (one.release, done) {
                (true, Some(_)) => LockAnswer::Released,
                (true, None) => LockAnswer::NotHeld,
                (false, Some(fence)) => LockAnswer::Taken(fence << HAND_OVER_BITS),
                (false, None) => LockAnswer::Contended,
            }]);
        }
        let done = row.bools(0)?;
        let fence = row.maybe_int(1)?;
        batch
            .iter()
            .zip(done)
            .map(|(request, ok)| match (request.release, ok, request.mode) {
                (true, true, _) => Ok(LockAnswer::Released),
                (true, false, _) => Ok(LockAnswer::NotHeld),
                (false, false, _) => Ok(LockAnswer::Contended),
                (false, true, LockMode::Shared) => Ok(LockAnswer::Shared),
                (false, true, LockMode::Exclusive) => token(fence),
            })
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        if batch
            .iter()
            .any(|one| !model.has_mark(session, one.session))
        {
            return Some(Vec::new());
        }
        let done: Vec<bool> = batch
            .iter()
            .map(|request| {
                if request.release {
                    model.unlock(request.lock, request.mode, session)
                } else {
                    model.try_lock(request.lock, request.mode, session)
                }
            })
            .collect();
        let taken = batch
            .iter()
            .zip(&done)
            .any(|(request, ok)| *ok && !request.release && request.mode == LockMode::Exclusive);
        let fence = if taken {
            Value::Int(model.next_fence())
        } else {
            Value::Null(Type::Int)
        };
        Some(vec![Row(vec![Value::Bools(done), fence])])
    }
}

/// The answer for a lock that was taken alone.
pub(super) fn token(fence: Option<i64>) -> Result<LockAnswer, Failure> {
    fence
        .map(|fence| LockAnswer::Taken(fence << HAND_OVER_BITS))
        .ok_or_else(|| Failure::corrupt("a lock was granted without a token"))
}
