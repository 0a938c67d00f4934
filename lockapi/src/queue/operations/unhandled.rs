//! Jobs that wait for a handler.

use super::Name;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Finds jobs that are due and have none of some names; a batch of one.
#[derive(Clone, Debug)]
pub struct ReadUnhandled {
    /// The queue.
    pub name: Name,
    /// The names to leave out.
    pub names: Vec<String>,
    /// How many jobs of each priority are read.
    pub most: i64,
}

/// Jobs of one name that wait for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnhandledRow {
    /// The name.
    pub name: String,
    /// How many.
    pub jobs: i64,
    /// How long the first has been due, in microseconds.
    pub waited: i64,
}

impl Operation for ReadUnhandled {
    type Output = Vec<UnhandledRow>;

    const STATEMENT: Statement = Statement {
        name: "queue.unhandled",
        sql: include_str!("unhandled.sql"),
        params: &[Type::Text, Type::Text, Type::Texts, Type::Int],
        columns: &[Type::Text, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.iter().take(1);
        one.flat_map(|one| {
            let [namespace, queue] = one.name.params();
            let names = Value::Texts(one.names.clone());
            [namespace, queue, names, Value::Int(one.most)]
        })
        .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        let mut found = Vec::new();
        for mut row in rows {
            found.push(UnhandledRow {
                name: row.text(0)?,
                jobs: row.int(1)?,
                waited: row.int(2)?,
            });
        }
        Ok(vec![found])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let rows = model.jobs.unhandled(model.now, batch.first()?);
        let row = |(name, (jobs, waited))| {
            Row(vec![
                Value::Text(name),
                Value::Int(jobs),
                Value::Int(waited),
            ])
        };
        Some(rows.into_iter().map(row).collect())
    }
}
