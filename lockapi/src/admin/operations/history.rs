//! Reading the history of a queue; batches of one.

use crate::driver::columns::maybe_text;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{HistoryPoint, HistorySums, Name};

/// Reads the minutes or hours of a queue.
#[derive(Clone, Debug)]
pub struct ReadHistory {
    /// The queue.
    pub name: Name,
    /// The name of the jobs, or all.
    pub job: Option<String>,
    /// Whether the hours are wanted.
    pub hourly: bool,
    /// How many rows of each table are read at most.
    pub most: i64,
}

impl Operation for ReadHistory {
    type Output = Vec<HistoryPoint>;

    const STATEMENT: Statement = Statement {
        name: "admin.history",
        sql: include_str!("history.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Bool, Type::Int],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Ints,
            Type::Ints,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.name.namespace.clone()),
                Value::Text(one.name.queue.clone()),
                maybe_text(one.job.as_deref()),
                Value::Bool(one.hourly),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<HistoryPoint>>, Failure> {
        let read = |mut row: Row| {
            let sums = HistorySums {
                completed: row.int(1)?,
                failed: row.int(2)?,
                dead: row.int(3)?,
                waited: row.int(4)?,
                ran: row.int(5)?,
                waits: row.ints(6)?,
                runs: row.ints(7)?,
            };
            Ok(HistoryPoint::new(row.int(0)?, &sums))
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let found = model.jobs.history.read(model.now, batch.first()?);
        let row = |(at, sums): (i64, HistorySums)| {
            Row(vec![
                Value::Int(at),
                Value::Int(sums.completed),
                Value::Int(sums.failed),
                Value::Int(sums.dead),
                Value::Int(sums.waited),
                Value::Int(sums.ran),
                Value::Ints(sums.waits),
                Value::Ints(sums.runs),
            ])
        };
        Some(found.into_iter().map(row).collect())
    }
}
