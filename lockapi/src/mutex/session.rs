//! The life of a session that holds locks.

use super::lock_request::LockMode;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::ModelState;

/// How far a token may be above one that is known to be safe on disk, in values of the sequence.
pub const TOKENS_AT_RISK: i64 = 16_384;
/// How many values a new session skips: those at risk, and what the server logs ahead.
const SKIPPED: i64 = TOKENS_AT_RISK + 34;

/// Marks a new session; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Enlist {
    /// The advisory lock key that is the session's mark.
    pub mark: i64,
}

/// The answer to an [`Enlist`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enlisted {
    /// Whether the mark was free.
    pub marked: bool,
    /// A value of the token sequence that is safe on disk.
    pub safe: i64,
    /// The session's process at the server.
    pub process: i64,
}

/// Lets a session that is marked commit without waiting for the disk; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Relax;

/// Makes the tokens that all sessions drew so far safe on disk; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Flush;

impl Operation for Enlist {
    type Output = Enlisted;

    const STATEMENT: Statement = Statement {
        name: "mutex.enlist",
        sql: include_str!("enlist.sql"),
        params: &[Type::Int, Type::Int],
        columns: &[Type::Bool, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|enlist| [Value::Int(enlist.mark), Value::Int(SKIPPED)])
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Enlisted>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                Ok(Enlisted {
                    marked: row.bool(0)?,
                    safe: row.int(1)?,
                    process: row.int(2)?,
                })
            })
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let marked = model.try_lock(mark_id(batch.first()?.mark), LockMode::Exclusive, session);
        model.skip_fences(SKIPPED - 1);
        let safe = Value::Int(model.next_fence());
        let process = Value::Int(i64::try_from(session).unwrap_or_default());
        Some(vec![Row(vec![Value::Bool(marked), safe, process])])
    }
}

impl Operation for Relax {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "mutex.relax",
        sql: include_str!("relax.sql"),
        params: &[],
        columns: &[Type::Text],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        done(rows)
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Text("off".to_owned())])])
    }
}

impl Operation for Flush {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "mutex.flush",
        sql: include_str!("flush.sql"),
        params: &[],
        columns: &[Type::Text],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        done(rows)
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Text("on".to_owned())])])
    }
}

fn done(rows: Rows) -> Result<Vec<()>, Failure> {
    rows.into_iter()
        .map(|mut row| row.text(0).map(drop))
        .collect()
}

pub(crate) fn mark_id(mark: i64) -> LockId {
    LockId {
        key: mark,
        pair: false,
    }
}
