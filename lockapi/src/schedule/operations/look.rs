//! Finding what is to be done.

use super::{Name, cadence, cadence_columns, maybe_int};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::schedule::cadence::Cadence;

/// Reads the tasks of a scheduler that are due.
#[derive(Clone, Debug)]
pub struct Look {
    /// The scheduler.
    pub name: Name,
    /// The most due tasks to return.
    pub most: i64,
    /// The time and the name of a task; those before it, and itself, are left out.
    pub behind: Option<(i64, String)>,
}

/// The answer to a [`Look`]; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
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
    pub cadence: Cadence,
    /// What becomes of missed times: 0 skip, 1 coalesce, 2 catch up.
    pub misfire: i64,
    /// The lateness that is too late, or the number of runs that make up for them.
    pub misfire_most: i64,
}

impl Operation for Look {
    type Output = Looked;

    const STATEMENT: Statement = Statement {
        name: "schedule.look",
        sql: include_str!("look.sql"),
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

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Looked>, Failure> {
        let mut due = Vec::new();
        let mut looked = None;
        for mut row in rows {
            let now = row.int(3)?;
            let Some(name) = row.maybe_text(0)? else {
                looked = Some(Looked {
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
                cadence: cadence(row.maybe_int(4)?, row.maybe_text(5)?, row.maybe_text(6)?)?,
                misfire: row.int(7)?,
                misfire_most: row.int(8)?,
            });
        }
        let looked =
            looked.ok_or_else(|| Failure::corrupt("the last row of the answer is missing"))?;
        Ok(vec![Looked { due, ..looked }])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let looked = model.look_at_tasks(batch.first()?);
        let mut rows = Rows::new();
        for due in looked.due {
            let mut row = vec![
                Value::Text(due.name),
                Value::Int(due.version),
                Value::Int(due.next),
                Value::Int(due.now),
            ];
            row.extend(cadence_columns(&due.cadence));
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
            maybe_int(looked.next),
            Value::Int(looked.now),
            Value::Null(Type::Int),
            Value::Null(Type::Text),
            Value::Null(Type::Text),
            Value::Null(Type::Int),
            Value::Null(Type::Int),
            Value::Bool(looked.overdue),
            Value::Bool(looked.releasable),
        ]));
        Some(rows)
    }
}
