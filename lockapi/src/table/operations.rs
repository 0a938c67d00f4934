//! What locks on tables do to the database; batches of one.

use super::TableMode;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::mutex::Tried;

/// Locks a table for the transaction.
#[derive(Clone, Debug)]
pub struct LockTable {
    /// Its schema; empty finds it by the `search_path`.
    pub schema: String,
    /// Its name.
    pub table: String,
    /// How.
    pub mode: TableMode,
    /// Does not wait.
    pub no_wait: bool,
    /// What the transaction was marked with.
    pub mark: String,
}

/// Sets `lock_timeout` for the transaction, marks it, and answers the former one.
#[derive(Clone, Debug)]
pub struct SetLockTimeout {
    /// `lock_timeout`, with its unit.
    pub timeout: String,
    /// Marks the transaction.
    pub mark: String,
}

/// Tells whether the transaction that was marked is open.
#[derive(Clone, Debug)]
pub struct IsInTransaction {
    /// The mark.
    pub mark: String,
}

/// Tells the server's number of the session.
#[derive(Clone, Copy, Debug)]
pub struct BackendPid;

impl Operation for LockTable {
    type Output = Tried;

    const STATEMENT: Statement = Statement {
        name: "table.lock",
        sql: include_str!("lock.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Bool, Type::Text],
        columns: &[Type::Bool, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.schema.clone()),
                Value::Text(one.table.clone()),
                Value::Text(one.mode.name().to_owned()),
                Value::Bool(one.no_wait),
                Value::Text(one.mark.clone()),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Tried>, Failure> {
        rows.into_iter().map(Tried::read).collect()
    }

    /// There are no tables of the program in memory.
    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Null(Type::Bool), Value::Bool(false)])])
    }
}

impl Operation for SetLockTimeout {
    /// The former `lock_timeout`.
    type Output = String;

    const STATEMENT: Statement = Statement {
        name: "table.set_lock_timeout",
        sql: include_str!("set_lock_timeout.sql"),
        params: &[Type::Text, Type::Text],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.timeout.clone()),
                Value::Text(one.mark.clone()),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<String>, Failure> {
        rows.into_iter().map(|mut row| row.text(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        // Settings have no meaning in memory.
        Some(vec![Row(vec![Value::Text("0".to_owned())])])
    }
}

impl Operation for IsInTransaction {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "table.in_transaction",
        sql: include_str!("in_transaction.sql"),
        params: &[Type::Text],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let marks = batch.iter().take(1);
        marks.map(|one| Value::Text(one.mark.clone())).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Bool(false)])])
    }
}

impl Operation for BackendPid {
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "table.backend_pid",
        sql: include_str!("backend_pid.sql"),
        params: &[],
        columns: &[Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, session: u64) -> Option<Rows> {
        let pid = i64::try_from(session).unwrap_or(i64::MAX);
        Some(vec![Row(vec![Value::Int(pid)])])
    }
}
