//! The log of runs.

use super::{Name, TaskName, maybe_int, maybe_text};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::{self, SweepResult};

/// Reads runs of a task, the latest first.
#[derive(Clone, Debug)]
pub struct ReadRuns {
    /// The task.
    pub name: TaskName,
    /// Those that were due before this time, in microseconds since 1970.
    pub before: i64,
    /// How many at most.
    pub most: i64,
}

/// A run; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// When it was due.
    pub at: i64,
    /// Its status.
    pub status: String,
    /// The number of its job.
    pub job: Option<i64>,
    /// The worker that has or had the job.
    pub node: Option<String>,
    /// When it was last delivered.
    pub started_at: Option<i64>,
    /// When it ended.
    pub completed_at: Option<i64>,
    /// Why it failed or was skipped.
    pub error: Option<String>,
    /// The token of its latest delivery.
    pub token: Option<i64>,
    /// How often it was delivered.
    pub attempt: i64,
    /// How many due times before it have no run.
    pub missed: i64,
    /// The node that fired it.
    pub fired_by: String,
    /// When it was fired.
    pub fired_at: i64,
}

/// Deletes old runs.
#[derive(Clone, Debug)]
pub struct SweepRuns {
    /// The scheduler.
    pub name: Name,
    /// How long they are kept, in microseconds.
    pub keep: i64,
    /// How many are deleted at most.
    pub most: i64,
    /// The scheduler from which on, and when its first run was fired, in microseconds since 1970.
    pub from: (String, i64),
}

impl Operation for ReadRuns {
    type Output = Vec<RunRow>;

    const STATEMENT: Statement = Statement {
        name: "schedule.runs",
        sql: include_str!("runs.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Int, Type::Int],
        columns: &[
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.iter().take(1);
        one.flat_map(|one| {
            let mut params = one.name.params();
            params.extend([Value::Int(one.before), Value::Int(one.most)]);
            params
        })
        .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<RunRow>>, Failure> {
        let run = |mut row: Row| {
            Ok(RunRow {
                at: row.int(0)?,
                status: row.text(1)?,
                job: row.maybe_int(2)?,
                node: row.maybe_text(3)?,
                started_at: row.maybe_int(4)?,
                completed_at: row.maybe_int(5)?,
                error: row.maybe_text(6)?,
                token: row.maybe_int(7)?,
                attempt: row.int(8)?,
                missed: row.int(9)?,
                fired_by: row.text(10)?,
                fired_at: row.int(11)?,
            })
        };
        let runs: Result<_, Failure> = rows.into_iter().map(run).collect();
        Ok(vec![runs?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let runs = model.read_runs(batch.first()?);
        let row = |run: RunRow| {
            Row(vec![
                Value::Int(run.at),
                Value::Text(run.status),
                maybe_int(run.job),
                maybe_text(run.node.as_deref()),
                maybe_int(run.started_at),
                maybe_int(run.completed_at),
                maybe_text(run.error.as_deref()),
                maybe_int(run.token),
                Value::Int(run.attempt),
                Value::Int(run.missed),
                Value::Text(run.fired_by),
                Value::Int(run.fired_at),
            ])
        };
        Some(runs.into_iter().map(row).collect())
    }
}

impl Operation for SweepRuns {
    /// With the scheduler and the time of the last run.
    type Output = SweepResult<(String, i64)>;

    const STATEMENT: Statement = Statement {
        name: "schedule.sweep",
        sql: include_str!("sweep.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Int,
        ],
        columns: &[Type::Int, Type::Int, Type::Text, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.iter().take(1);
        one.flat_map(|one| {
            let mut params = one.name.params();
            let (scheduler, fired_at) = one.from.clone();
            params.extend([Value::Int(one.keep), Value::Int(one.most)]);
            params.extend([Value::Text(scheduler), Value::Int(fired_at)]);
            params
        })
        .collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        let most = batch.first().map(|one| one.most);
        sweep::decode(most, rows, |row| Ok((row.text(2)?, row.int(3)?)))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let part = model.sweep_runs(batch.first()?);
        let count = Value::Int(sweep::count(&part));
        let (scheduler, fired_at) = part.last().cloned().unzip();
        let row = Row(vec![
            count.clone(),
            count,
            maybe_text(scheduler.as_deref()),
            maybe_int(fired_at),
        ]);
        Some(vec![row])
    }
}
