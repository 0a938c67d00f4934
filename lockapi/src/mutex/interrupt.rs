//! Interrupting a session that waits.

use super::session::mark_id;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Ends the wait of another session.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    /// The session's mark.
    pub mark: i64,
    /// Its process at the server.
    pub process: i64,
}

impl Operation for Interrupt {
    /// Whether the session was alive and was interrupted.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "mutex.interrupt",
        sql: include_str!("interrupt.sql"),
        params: &[Type::Ints, Type::Ints],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            Value::Ints(batch.iter().map(|one| one.mark).collect()),
            Value::Ints(batch.iter().map(|one| one.process).collect()),
        ]
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let interrupt = |one: &Self| {
            let session = u64::try_from(one.process).unwrap_or_default();
            let lives = model.holds(mark_id(one.mark), session);
            if lives {
                model.interrupt(session);
            }
            Row(vec![Value::Bool(lives)])
        };
        Some(batch.iter().map(interrupt).collect())
    }
}
