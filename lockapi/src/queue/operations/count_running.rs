//! Counting jobs that run.

use super::complete_and_claim::Floor;
use super::manage::Name;
use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Counts the jobs of a queue that run, in a part of it; a batch of one.
#[derive(Clone, Debug)]
pub struct CountRunning {
    /// The queue.
    pub name: Name,
    /// The numbers of the priorities, and after which place the part begins.
    pub priorities: Vec<(i64, Floor)>,
    /// How many jobs of each priority are examined at most.
    pub most: i64,
}

/// The answer to a [`CountRunning`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningPart {
    /// One for each priority.
    pub levels: Vec<RunningLevel>,
    /// Whether the queue is paused.
    pub paused: bool,
    /// When it was last paused or resumed, in microseconds since 1970.
    pub changed_at: i64,
    /// The transactions that may change jobs of any queue.
    pub transactions: Vec<i64>,
}

/// What was found of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningLevel {
    /// The number of the priority.
    pub priority: i64,
    /// How many jobs were examined.
    pub examined: i64,
    /// How many of them run.
    pub running: i64,
    /// The place of the last of them.
    pub reached: Option<Floor>,
}

impl Operation for CountRunning {
    type Output = RunningPart;

    const STATEMENT: Statement = Statement {
        name: "queue.count_running",
        sql: include_str!("count_running.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Int,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
            Type::Int,
            Type::Ints,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let levels = |field: fn(&(i64, Floor)) -> i64| {
            Value::Ints(one.priorities.iter().map(field).collect())
        };
        let mut params = one.name.params().to_vec();
        params.extend([
            levels(|level| level.0),
            levels(|level| level.1.0),
            levels(|level| level.1.1),
            Value::Int(one.most),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<RunningPart>, Failure> {
        let mut part = RunningPart::default();
        for mut row in rows {
            let place = (row.maybe_int(3)?, row.maybe_int(4)?);
            part.levels.push(RunningLevel {
                priority: row.int(0)?,
                examined: row.int(1)?,
                running: row.int(2)?,
                reached: place.0.zip(place.1),
            });
            part.paused = row.bool(5)?;
            part.changed_at = row.int(6)?;
            part.transactions = row.ints(7)?;
        }
        Ok(vec![part])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let paused = model.jobs.is_paused(model.now, &one.name);
        let changed_at = model.jobs.switched_at(&one.name);
        let levels = model.jobs.count_running(model.now, one);
        let row = |level: RunningLevel| {
            Row(vec![
                Value::Int(level.priority),
                Value::Int(level.examined),
                Value::Int(level.running),
                maybe_int(level.reached.map(|place| place.0)),
                maybe_int(level.reached.map(|place| place.1)),
                Value::Bool(paused),
                Value::Int(changed_at),
                Value::Ints(Vec::new()),
            ])
        };
        Some(levels.into_iter().map(row).collect())
    }
}
