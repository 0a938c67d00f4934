//! What programs have counted of their jobs.

use crate::driver::columns::{ints, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::HistorySums;
use crate::sweep::SweepResult;

/// What was counted of the jobs of one name in a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPart {
    /// The queue.
    pub queue: String,
    /// When the minute began, in microseconds since 1970.
    pub minute: i64,
    /// The name of the jobs; empty for those of too many names.
    pub name: String,
    /// The counts.
    pub sums: HistorySums,
}

/// Stores what a program has counted; a batch of one.
#[derive(Clone, Debug)]
pub struct RecordHistory {
    /// Namespace of the backend.
    pub namespace: String,
    /// When it was taken out of the memory of the program, by the server's clock, in microseconds since 1970.
    pub taken_at: i64,
    /// A random number, the same in each repetition.
    pub part: i64,
    /// The counts, one for each queue, minute and name.
    pub parts: Vec<HistoryPart>,
}

/// Namespace, queue, minute, name and number.
pub type HistoryPartKey = (String, String, i64, String, i64);

/// Moves parts into their minutes and hours, in a range of the table.
#[derive(Clone, Debug)]
pub struct FoldHistory {
    /// Those behind this one.
    pub after: HistoryPartKey,
    /// How many are examined at most.
    pub most: i64,
}

/// Namespace, queue, whether it is an hour, time and name.
pub type HistoryKey = (String, String, bool, i64, String);

/// Deletes old minutes and hours, in a range of the table.
#[derive(Clone, Debug)]
pub struct SweepHistory {
    /// Those behind this one.
    pub after: HistoryKey,
    /// How many are examined at most.
    pub most: i64,
}

impl Operation for RecordHistory {
    /// Whether it was in time.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "queue.record_history",
        sql: include_str!("record_history.sql"),
        params: &[
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Texts,
            Type::Ints,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Texts,
        ],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let parts = &one.parts[..];
            let counts = |field: fn(&HistorySums) -> i64| ints(parts, |part| field(&part.sums));
            let lists = |field: fn(&HistorySums) -> &[i64]| {
                Value::Texts(parts.iter().map(|part| list(field(&part.sums))).collect())
            };
            vec![
                Value::Text(one.namespace.clone()),
                Value::Int(one.taken_at),
                Value::Int(one.part),
                texts(parts, |part| &part.queue),
                ints(parts, |part| part.minute),
                texts(parts, |part| &part.name),
                counts(|sums| sums.completed),
                counts(|sums| sums.failed),
                counts(|sums| sums.dead),
                counts(|sums| sums.waited),
                counts(|sums| sums.ran),
                lists(|sums| &sums.waits),
                lists(|sums| &sums.runs),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let in_time = model.jobs.history.record(now, batch.first()?);
        Some(vec![Row(vec![Value::Bool(in_time)])])
    }
}

/// As the server reads an array.
fn list(counts: &[i64]) -> String {
    let counts: Vec<_> = counts.iter().map(i64::to_string).collect();
    format!("{{{}}}", counts.join(","))
}

impl Operation for FoldHistory {
    type Output = SweepResult<HistoryPartKey>;

    const STATEMENT: Statement = Statement {
        name: "queue.fold_history",
        sql: include_str!("fold_history.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let (namespace, queue, minute, name, part) = one.after.clone();
            vec![
                Value::Text(namespace),
                Value::Text(queue),
                Value::Int(minute),
                Value::Text(name),
                Value::Int(part),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        crate::sweep::decode(batch.first().map(|one| one.most), rows, |row| {
            Ok((
                row.text(2)?,
                row.text(3)?,
                row.int(4)?,
                row.text(5)?,
                row.int(6)?,
            ))
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let (moved, seen, last) = model.jobs.history.fold(now, batch.first()?);
        let mut row = vec![Value::Int(moved), Value::Int(seen)];
        match last {
            Some((namespace, queue, minute, name, part)) => row.extend([
                Value::Text(namespace),
                Value::Text(queue),
                Value::Int(minute),
                Value::Text(name),
                Value::Int(part),
            ]),
            None => row.extend(
                Self::STATEMENT.columns[2..]
                    .iter()
                    .map(|of| Value::Null(*of)),
            ),
        }
        Some(vec![Row(row)])
    }
}

impl Operation for SweepHistory {
    type Output = SweepResult<HistoryKey>;

    const STATEMENT: Statement = Statement {
        name: "queue.sweep_history",
        sql: include_str!("sweep_history.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Bool,
            Type::Int,
            Type::Text,
            Type::Int,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Bool,
            Type::Int,
            Type::Text,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let (namespace, queue, hourly, at, name) = one.after.clone();
            vec![
                Value::Text(namespace),
                Value::Text(queue),
                Value::Bool(hourly),
                Value::Int(at),
                Value::Text(name),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        crate::sweep::decode(batch.first().map(|one| one.most), rows, |row| {
            Ok((
                row.text(2)?,
                row.text(3)?,
                row.bool(4)?,
                row.int(5)?,
                row.text(6)?,
            ))
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let (deleted, seen, last) = model.jobs.history.sweep(now, batch.first()?);
        let mut row = vec![Value::Int(deleted), Value::Int(seen)];
        match last {
            Some((namespace, queue, hourly, at, name)) => row.extend([
                Value::Text(namespace),
                Value::Text(queue),
                Value::Bool(hourly),
                Value::Int(at),
                Value::Text(name),
            ]),
            None => row.extend(
                Self::STATEMENT.columns[2..]
                    .iter()
                    .map(|of| Value::Null(*of)),
            ),
        }
        Some(vec![Row(row)])
    }
}
