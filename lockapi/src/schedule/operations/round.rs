//! What a round does besides firing.

use super::{Name, number};
use crate::driver::{Operation, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Ends runs that last longer than their tasks allow.
#[derive(Clone, Debug)]
pub struct Expire(pub Name);

/// Releases runs that were held back.
#[derive(Clone, Debug)]
pub struct Release {
    /// The scheduler.
    pub name: Name,
    /// The topic of the queue.
    pub topic: i64,
}

impl Operation for Expire {
    /// How many were ended.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "schedule.expire",
        sql: include_str!("expire.sql"),
        params: &[Type::Text, Type::Text],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|one| one.0.params())
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(number(model.expire_runs(&batch.first()?.0)))
    }
}

impl Operation for Release {
    /// How many were released.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "schedule.release",
        sql: include_str!("release.sql"),
        params: &[Type::Text, Type::Text, Type::Ints],
        columns: &[Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.iter().take(1);
        one.flat_map(|one| {
            let mut params = one.name.params();
            params.push(Value::Ints(vec![one.topic]));
            params
        })
        .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let released = model.release_runs(&one.name);
        let notified = model.notify([one.topic]);
        let mut rows = number(released);
        rows[0].0.push(Value::Int(notified));
        Some(rows)
    }
}
