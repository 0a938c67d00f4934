//! Claiming and completing in a transaction of the caller.

use super::complete_and_claim::Claimed;
use crate::driver::columns::maybe_text;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{Headers, Ticket};

/// Claims and completes jobs of one queue; a batch of one.
#[derive(Clone, Debug)]
pub struct Take {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the queue.
    pub queue: String,
    /// How many jobs at most.
    pub most: i64,
    /// The numbers of the priorities in the order in which they are searched.
    pub priorities: Vec<i64>,
    /// Who takes them.
    pub worker: String,
    /// How long the jobs are kept in the archive, in microseconds; [`DELETED`](super::DELETED)
    /// means not at all.
    pub keep: i64,
}

impl Operation for Take {
    /// What was taken; the tokens are zero, and the attempts are those before. `None` if the queue has a limit.
    type Output = Option<Vec<Claimed>>;

    const STATEMENT: Statement = Statement {
        name: "queue.take",
        sql: include_str!("take.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Ints,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|one| {
                [
                    Value::Text(one.namespace.clone()),
                    Value::Text(one.queue.clone()),
                    Value::Int(one.most),
                    Value::Text(one.worker.clone()),
                    Value::Int(one.keep),
                    Value::Ints(one.priorities.clone()),
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Option<Vec<Claimed>>>, Failure> {
        let read = |mut row: Row| {
            let Some(id) = row.maybe_int(0)? else {
                return Ok(None);
            };
            Ok(Some(Claimed {
                ticket: Ticket { id, token: 0 },
                attempt: row.int(1)?,
                max_attempts: row.int(2)?,
                priority: row.int(3)?,
                run_at: row.int(4)?,
                created_at: row.int(5)?,
                name: row.text(6)?,
                payload: row.text(7)?,
                headers: Headers::read(row.maybe_text(8)?.as_deref()),
                group: row.maybe_text(9)?,
            }))
        };
        let taken: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![taken?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        if model.jobs.is_limited(one) {
            let (int, text) = (Value::Null(Type::Int), Value::Null(Type::Text));
            let columns = std::iter::repeat_n(int, 6).chain(std::iter::repeat_n(text, 4));
            return Some(vec![Row(columns.collect())]);
        }
        let taken = model.jobs.take(model.now, one);
        let row = |job: Claimed| {
            Row(vec![
                Value::Int(job.ticket.id),
                Value::Int(job.attempt),
                Value::Int(job.max_attempts),
                Value::Int(job.priority),
                Value::Int(job.run_at),
                Value::Int(job.created_at),
                Value::Text(job.name),
                Value::Text(job.payload),
                maybe_text(job.headers.column().as_deref()),
                maybe_text(job.group.as_deref()),
            ])
        };
        Some(taken.into_iter().map(row).collect())
    }
}
