//! The limit of a queue; batches of one.

use super::manage::Name;
use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// The columns of a limit; what is `None` does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitRow {
    /// How many jobs run at once at most.
    pub running: Option<i64>,
    /// How many are claimed in a period.
    pub permits: Option<i64>,
    /// The period, in nanoseconds.
    pub period: Option<i64>,
    /// How many are claimed at once.
    pub burst: Option<i64>,
    /// The time between two permits, in nanoseconds.
    pub step: Option<i64>,
}

impl LimitRow {
    pub(super) fn numbers(&self) -> [Option<i64>; 5] {
        [
            self.running,
            self.permits,
            self.period,
            self.burst,
            self.step,
        ]
    }

    /// Parameters; what does not limit is -1.
    pub(super) fn params(&self) -> impl Iterator<Item = Value> {
        let numbers = self.numbers().into_iter();
        numbers.map(|number| Value::Int(number.unwrap_or(-1)))
    }
}

/// Sets the limit of a queue, or takes it away.
#[derive(Clone, Debug)]
pub struct SetQueueLimit {
    /// The queue.
    pub name: Name,
    /// The limit; `None` takes it away.
    pub limit: Option<LimitRow>,
    /// The topics to notify.
    pub topics: Vec<i64>,
}

/// Reads the limit of a queue.
#[derive(Clone, Debug)]
pub struct ReadQueueLimit {
    /// The queue.
    pub name: Name,
}

impl Operation for SetQueueLimit {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "queue.set_limit",
        sql: include_str!("set_limit.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Bool,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Ints,
        ],
        columns: &[Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let row = one.limit.unwrap_or_default();
        let mut params = one.name.params().to_vec();
        params.push(Value::Bool(one.limit.is_some()));
        params.extend(row.params());
        params.push(Value::Ints(one.topics.clone()));
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        rows.into_iter()
            .map(|mut row| row.int(0).map(drop))
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        model.jobs.set_limit(model.now, one);
        model.notify(one.topics.iter().copied());
        let set = Value::Int(i64::from(one.limit.is_some()));
        Some(vec![Row(vec![set, Value::Int(0)])])
    }
}

impl Operation for ReadQueueLimit {
    /// The limit, if there is one, and how many places are taken.
    type Output = Option<(LimitRow, i64)>;

    const STATEMENT: Statement = Statement {
        name: "queue.limit",
        sql: include_str!("read_limit.sql"),
        params: &[Type::Text, Type::Text],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.first();
        one.map_or_else(Vec::new, |one| one.name.params().to_vec())
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        let read = |mut row: Row| {
            let limit = LimitRow {
                running: row.maybe_int(0)?,
                permits: row.maybe_int(1)?,
                period: row.maybe_int(2)?,
                burst: row.maybe_int(3)?,
                step: row.maybe_int(4)?,
            };
            Ok((limit, row.int(5)?))
        };
        let read: Result<Vec<_>, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?.pop()])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let limit = model.jobs.limit(model.now, &batch.first()?.name);
        let row = |(row, taken): (LimitRow, i64)| {
            let numbers = row.numbers().into_iter().map(maybe_int);
            Row(numbers.chain([Value::Int(taken)]).collect())
        };
        Some(limit.into_iter().map(row).collect())
    }
}
