//! What handlers tell of their jobs.

use std::collections::HashSet;

use crate::driver::columns::{ints, maybe_int, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::Ticket;
use crate::sweep::{SweepResult, decode};

/// Stores what a handler told of its job.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its delivery.
    pub ticket: Ticket,
    /// How much is done, in millionths.
    pub millionths: i64,
    /// In the words of the handler.
    pub note: String,
}

/// Deletes the reports of jobs that are gone, in a part of the table.
#[derive(Clone, Copy, Debug)]
pub struct SweepProgress {
    /// Those behind this number.
    pub after: i64,
    /// How many are examined at most.
    pub most: i64,
}

impl Operation for Report {
    /// Whether it was stored: not if the delivery is not the latest, or its job is gone.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "queue.report",
        sql: include_str!("report.sql"),
        params: &[Type::Ints, Type::Ints, Type::Ints, Type::Texts],
        columns: &[Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            ints(batch, |one| one.ticket.id),
            ints(batch, |one| one.ticket.token),
            ints(batch, |one| one.millionths),
            texts(batch, |one| &one.note),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        let read = |mut row: Row| {
            Ok(Ticket {
                id: row.int(0)?,
                token: row.int(1)?,
            })
        };
        let stored: Result<HashSet<Ticket>, Failure> = rows.into_iter().map(read).collect();
        let stored = stored?;
        Ok(batch
            .iter()
            .map(|one| stored.contains(&one.ticket))
            .collect())
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let mut rows = Rows::new();
        for one in batch {
            if model.jobs.report(now, one) {
                let ticket = one.ticket;
                rows.push(Row(vec![Value::Int(ticket.id), Value::Int(ticket.token)]));
            }
        }
        Some(rows)
    }
}

impl Operation for SweepProgress {
    type Output = SweepResult<i64>;

    const STATEMENT: Statement = Statement {
        name: "queue.sweep_progress",
        sql: include_str!("sweep_progress.sql"),
        params: &[Type::Int, Type::Int],
        columns: &[Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| vec![Value::Int(one.after), Value::Int(one.most)];
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<SweepResult<i64>>, Failure> {
        decode(batch.first().map(|one| one.most), rows, |row| row.int(2))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (deleted, seen, last) = model.jobs.sweep_progress(batch.first()?);
        Some(vec![Row(vec![
            Value::Int(deleted),
            Value::Int(seen),
            maybe_int(last),
        ])])
    }
}
