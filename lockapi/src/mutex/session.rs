//! The life of a session that holds locks: marking it and clearing it.

use crate::error::Failure;
use crate::key::LockId;
use crate::memory::World;
use crate::seam::{Operation, Row, Rows, Statement, Type, Value};

/// Marks a new session; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Enlist {
    /// The advisory lock key that is the session's mark.
    pub mark: i64,
}

impl Operation for Enlist {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "mutex.enlist",
        sql: include_str!("enlist.sql"),
        params: &[Type::Int],
        columns: &[Type::Bool, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|enlist| Value::Int(enlist.mark)).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        let marked = world.try_lock(mark_id(batch.first()?.mark), session);
        Some(vec![Row(vec![Value::Bool(marked), Value::Int(0)])])
    }
}

/// Releases everything but the mark; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Clear {
    /// The session's mark.
    pub mark: i64,
}

impl Operation for Clear {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "mutex.clear",
        sql: include_str!("clear.sql"),
        params: &[Type::Int],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|clear| Value::Int(clear.mark)).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        rows.into_iter()
            .map(|mut row| row.text(0).map(drop))
            .collect()
    }

    fn model(batch: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        world.end_session(session);
        let marked = world.try_lock(mark_id(batch.first()?.mark), session);
        Some(vec![Row(vec![Value::Text(marked.to_string())])])
    }
}

pub(crate) fn mark_id(mark: i64) -> LockId {
    LockId {
        key: mark,
        pair: false,
    }
}
