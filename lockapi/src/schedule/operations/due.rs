//! Finding what is to be done.

use super::{Name, maybe_int, recurrence, recurrence_columns};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::schedule::recurrence::Recurrence;

/// Reads the tasks of a scheduler that are due.
#[derive(Clone, Debug)]
pub struct ReadDueTasks {
    /// The scheduler.
    pub name: Name,
    /// The most due tasks to return.
    pub most: i64,
    /// The time and the name of a task; those before it, and itself, are left out.
    pub behind: Option<(i64, String)>,
}

/// The answer to a [`ReadDueTasks`]; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTasks {
    /// Tasks that are due.
    pub due: Vec<Due>,
    /// The time of the server.
    pub now: i64,
    /// When the next task that is not yet due is due.
    pub next: Option<i64>,
    /// Whether a run has lasted longer than its task allows.
    pub overdue: bool,
    /// Whether a run that is held back may be released.
    pub releasable: bool,
}

/// A task that is due; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Name of the task.
    pub name: String,
    /// What was read is valid as long as the task has this version.
    pub version: i64,
    /// The time that it has been due since.
    pub next: i64,
    /// The time of the server.
    pub now: i64,
    /// When it is due after that.
    pub recurrence: Recurrence,
    /// What becomes of missed times: 0 skip, 1 coalesce, 2 catch up.
    pub misfire: i64,
    /// The lateness that is too late, or the number of runs that make up for them.
    pub misfire_most: i64,
}

impl Operation for ReadDueTasks {
    type Output = DueTasks;

    const STATEMENT: Statement = Statement {
        name: "schedule.due",
        sql: include_str!("due.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Int, Type::Text],
        columns: &[
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Bool,
            Type::Bool,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.iter().take(1);
        one.flat_map(|one| {
            let mut params = one.name.params();
            let (at, task) = one.behind.clone().unwrap_or_default();
            params.extend([Value::Int(one.most), Value::Int(at), Value::Text(task)]);
            params
        })
        .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<DueTasks>, Failure> {
        let mut due = Vec::new();
        let mut tasks = None;
        for mut row in rows {
            let now = row.int(3)?;
            let Some(name) = row.maybe_text(0)? else {
                tasks = Some(DueTasks {
                    due: Vec::new(),
                    now,
                    next: row.maybe_int(2)?,
                    overdue: row.bool(9)?,
                    releasable: row.bool(10)?,
                });
                continue;
            };
            due.push(Due {
                name,
                version: row.int(1)?,
                next: row.int(2)?,
                now,
                recurrence: recurrence(row.maybe_int(4)?, row.maybe_text(5)?, row.maybe_text(6)?)?,
                misfire: row.int(7)?,
                misfire_most: row.int(8)?,
            });
        }
        let tasks =
            tasks.ok_or_else(|| Failure::corrupt("the last row of the answer is missing"))?;
        Ok(vec![DueTasks { due, ..tasks }])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let tasks = model.read_due_tasks(batch.first()?);
        let mut rows = Rows::new();
        for due in tasks.due {
            let mut row = vec![
                Value::Text(due.name),
                Value::Int(due.version),
                Value::Int(due.next),
                Value::Int(due.now),
            ];
            row.extend(recurrence_columns(&due.recurrence));
            row.extend([
                Value::Int(due.misfire),
                Value::Int(due.misfire_most),
                Value::Null(Type::Bool),
                Value::Null(Type::Bool),
            ]);
            rows.push(Row(row));
        }
        rows.push(Row(vec![
            Value::Null(Type::Text),
            Value::Null(Type::Int),
            maybe_int(tasks.next),
            Value::Int(tasks.now),
            Value::Null(Type::Int),
            Value::Null(Type::Text),
            Value::Null(Type::Text),
            Value::Null(Type::Int),
            Value::Null(Type::Int),
            Value::Bool(tasks.overdue),
            Value::Bool(tasks.releasable),
        ]));
        Some(rows)
    }
}
