//! The results of jobs: storing, reading and sweeping them.

use super::manage::Name;
use super::settle::{Ack, acked};
use crate::driver::columns::{answers, ints, maybe_int, maybe_text, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{JobResult, ResultValue, Ticket};
use crate::sweep::{SweepResult, decode};

/// Completes one delivery with a result.
#[derive(Clone, Debug)]
pub struct AckWithResult {
    /// The completion.
    pub ack: Ack,
    /// The result.
    pub result: ResultValue,
    /// How long it is kept, in microseconds.
    pub retention: i64,
}

/// Reads what became of a job.
#[derive(Clone, Debug)]
pub struct ReadResult {
    /// The queue.
    pub name: Name,
    /// The number of the job.
    pub id: i64,
}

/// Deletes the results whose time is over, in a part of the table.
#[derive(Clone, Copy, Debug)]
pub struct SweepResults {
    /// Those behind this number.
    pub after: i64,
    /// How many are examined at most.
    pub most: i64,
}

impl Operation for AckWithResult {
    /// Whether the delivery was the latest of its job.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "queue.ack_with_result",
        sql: include_str!("ack_with_result.sql"),
        params: &[Type::Ints, Type::Ints, Type::Ints, Type::Texts, Type::Ints],
        columns: &[Type::Ints],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            ints(batch, |one| one.ack.ticket.id),
            ints(batch, |one| one.ack.ticket.token),
            ints(batch, |one| one.ack.keep),
            texts(batch, |one| one.result.as_str()),
            ints(batch, |one| one.retention),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        let mut done = Vec::new();
        for mut row in rows {
            done.extend(row.ints(0)?);
        }
        let acks: Vec<_> = batch.iter().map(|one| one.ack).collect();
        Ok(acked(&acks, done))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let done = batch
            .iter()
            .filter(|one| model.jobs.ack_with_result(now, one));
        let done: Vec<Ticket> = done.map(|one| one.ack.ticket).collect();
        let ids = done.iter().map(|ticket| ticket.id);
        let tokens = done.iter().map(|ticket| ticket.token);
        Some(vec![Row(vec![Value::Ints(ids.chain(tokens).collect())])])
    }
}

impl Operation for ReadResult {
    type Output = JobResult<ResultValue>;

    const STATEMENT: Statement = Statement {
        name: "queue.read_result",
        sql: include_str!("read_result.sql"),
        params: &[Type::Ints, Type::Texts, Type::Texts],
        columns: &[Type::Int, Type::Int, Type::Text, Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            ints(batch, |one| one.id),
            texts(batch, |one| &one.name.namespace),
            texts(batch, |one| &one.name.queue),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<JobResult<ResultValue>>, Failure> {
        let found = answers(batch.len(), rows, |row| {
            Ok(match row.int(1)? {
                0 => JobResult::Pending,
                1 => JobResult::Value(ResultValue::stored(row.text(2)?)),
                2 => JobResult::NoValue,
                3 => JobResult::Failed {
                    error: row.maybe_text(3)?.unwrap_or_default(),
                },
                4 => JobResult::Cancelled,
                _ => return Err(Failure::corrupt("an unknown state of a job")),
            })
        })?;
        let found = found.into_iter();
        Ok(found.map(|one| one.unwrap_or(JobResult::Unknown)).collect())
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let read = |(n, one): (i64, &Self)| {
            let (state, result, error) = match model.jobs.result(now, one) {
                JobResult::Pending => (0, None, None),
                JobResult::Value(result) => (1, Some(result), None),
                JobResult::NoValue => (2, None, None),
                JobResult::Failed { error } => (3, None, Some(error)),
                JobResult::Cancelled => (4, None, None),
                JobResult::Unknown => return None,
            };
            Some(Row(vec![
                Value::Int(n),
                Value::Int(state),
                maybe_text(result.as_ref().map(ResultValue::as_str)),
                maybe_text(error.as_deref()),
            ]))
        };
        Some((1..).zip(batch).filter_map(read).collect())
    }
}

impl Operation for SweepResults {
    type Output = SweepResult<i64>;

    const STATEMENT: Statement = Statement {
        name: "queue.sweep_results",
        sql: include_str!("sweep_results.sql"),
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
        let now = model.now;
        let (deleted, seen, last) = model.jobs.sweep_results(now, batch.first()?);
        Some(vec![Row(vec![
            Value::Int(deleted),
            Value::Int(seen),
            maybe_int(last),
        ])])
    }
}
