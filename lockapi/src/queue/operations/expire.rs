//! Moving jobs that expired before they were delivered to the dead letters.

use super::complete_and_claim::Floor;
use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::{SweepResult, count, decode};

/// Moves expired jobs of a namespace to the dead letters, in a part of them; a batch of one.
#[derive(Clone, Debug)]
pub struct ExpireJobs {
    /// Namespace of the backend.
    pub namespace: String,
    /// When the job that the part comes after expired, and its number.
    pub after: Floor,
    /// How many expired jobs are examined at most.
    pub most: i64,
    /// The most bytes of payload that are moved, except for the last job.
    pub bytes: i64,
    /// How long dead letters of these queues are kept, in microseconds;
    /// [`FOR_EVER`](super::FOR_EVER) means until they are discarded.
    pub retentions: Vec<(String, i64)>,
    /// How long those of other queues are kept.
    pub keep_dead: i64,
}

impl ExpireJobs {
    /// How long dead letters of a queue are kept.
    pub(crate) fn keep(&self, queue: &str) -> i64 {
        let mut retentions = self.retentions.iter();
        let own = retentions.find_map(|(name, keep)| (name == queue).then_some(*keep));
        own.unwrap_or(self.keep_dead)
    }
}

impl Operation for ExpireJobs {
    type Output = SweepResult<Floor>;

    const STATEMENT: Statement = Statement {
        name: "queue.expire",
        sql: include_str!("expire.sql"),
        params: &[
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Texts,
            Type::Ints,
            Type::Int,
        ],
        columns: &[Type::Int, Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let (queues, keeps) = one.retentions.iter().cloned().unzip();
            vec![
                Value::Text(one.namespace.clone()),
                Value::Int(one.after.0),
                Value::Int(one.after.1),
                Value::Int(one.most),
                Value::Int(one.bytes),
                Value::Texts(queues),
                Value::Ints(keeps),
                Value::Int(one.keep_dead),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<SweepResult<Floor>>, Failure> {
        let most = batch.first().map(|one| one.most);
        decode(most, rows, |row| Ok((row.int(2)?, row.int(3)?)))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (moved, examined, full) = model.jobs.expire(model.now, one);
        let (at, id) = examined.last().copied().unzip();
        Some(vec![Row(vec![
            Value::Int(moved),
            Value::Int(if full { one.most } else { count(&examined) }),
            maybe_int(at),
            maybe_int(id),
        ])])
    }
}
