//! Setting, switching, removing and reading tasks.

use super::{Name, maybe_int, recurrence, recurrence_columns};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{Headers, NewJob};
use crate::schedule::recurrence::Recurrence;

/// A task by its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName {
    /// The scheduler.
    pub of: Name,
    /// Name of the task.
    pub task: String,
}

impl TaskName {
    pub(super) fn params(&self) -> Vec<Value> {
        let mut params = self.of.params();
        params.push(Value::Text(self.task.clone()));
        params
    }
}

/// A task; times in microseconds, points in time since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRow {
    /// Its name.
    pub name: String,
    /// Counts changes and fires.
    pub version: i64,
    /// When it is due next.
    pub next: Option<i64>,
    /// The time of the server.
    pub now: i64,
    /// Whether it is fired when it is due.
    pub enabled: bool,
    /// When it is due.
    pub recurrence: Recurrence,
    /// How long a delivery of a run may last; 0 is without limit.
    pub timeout: i64,
    /// What becomes of missed times: 0 skip, 1 coalesce, 2 catch up.
    pub misfire: i64,
    /// The lateness that is too late, or the number of runs that make up for them.
    pub misfire_most: i64,
    /// What becomes of runs that overlap: 0 allow, 1 skip, 2 queue.
    pub overlap: i64,
    /// The job of a run.
    pub job: NewJob,
    /// When its latest run in the log was due.
    pub last: Option<i64>,
}

/// Adds a task, or changes it.
#[derive(Clone, Debug)]
pub struct SetTask {
    /// The task.
    pub name: TaskName,
    /// What it is to be.
    pub row: TaskRow,
    /// The topic of the scheduler.
    pub topic: i64,
}

/// Enables or disables a task.
#[derive(Clone, Debug)]
pub struct SwitchTask {
    /// The task.
    pub name: TaskName,
    /// Whether it is fired from now on.
    pub enabled: bool,
    /// When it is due next.
    pub next: Option<i64>,
    /// The version that it was found with.
    pub version: i64,
    /// The topic of the scheduler.
    pub topic: i64,
}

/// Removes a task.
#[derive(Clone, Debug)]
pub struct RemoveTask {
    /// Which.
    pub task: TaskName,
    /// Whether it was removed before, and only its runs are skipped that are held back.
    pub again: bool,
}

/// Reads tasks.
#[derive(Clone, Debug)]
pub struct ReadTasks {
    /// The scheduler.
    pub name: Name,
    /// Name of the task; empty are all.
    pub task: String,
    /// Those whose names come after this.
    pub after: String,
    /// How many at most.
    pub most: i64,
}

/// The answer to a [`ReadTasks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// The tasks, in the order of their names.
    pub tasks: Vec<TaskRow>,
    /// The time of the server.
    pub now: i64,
}

impl Operation for SetTask {
    /// Whether that changed anything.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "schedule.set",
        sql: include_str!("set.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
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
            Type::Ints,
        ],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let row = &one.row;
        let (every, expression, zone) = match &row.recurrence {
            Recurrence::Every(every) => (*every, "", ""),
            Recurrence::Cron { expression, zone } => (0, &**expression, &**zone),
        };
        let mut params = one.name.params();
        params.extend([
            Value::Int(row.next.unwrap_or(-1)),
            Value::Int(every),
            Value::Int(row.timeout),
            Value::Int(row.misfire),
            Value::Int(row.misfire_most),
            Value::Int(row.overlap),
            Value::Int(row.job.max_attempts),
            Value::Int(row.job.priority),
            Value::Text(expression.to_owned()),
            Value::Text(zone.to_owned()),
            Value::Text(row.job.name.clone()),
            Value::Text(row.job.payload.clone()),
            Value::Ints(vec![one.topic]),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        Ok(vec![!rows.is_empty()])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        if !model.tasks.set(model.now, one) {
            return Some(Rows::new());
        }
        let notified = model.notify([one.topic]);
        Some(super::number(notified))
    }
}

impl Operation for SwitchTask {
    /// Whether there is such a task of that version.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "schedule.switch",
        sql: include_str!("switch.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Bool,
            Type::Int,
            Type::Int,
            Type::Ints,
        ],
        columns: &[Type::Bool, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params();
        params.extend([
            Value::Bool(one.enabled),
            Value::Int(one.next.unwrap_or(-1)),
            Value::Int(one.version),
            Value::Ints(vec![one.topic]),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (found, changed) = model.tasks.switch(model.now, one);
        let notified = if changed {
            model.notify([one.topic])
        } else {
            0
        };
        Some(vec![Row(vec![Value::Bool(found), Value::Int(notified)])])
    }
}

impl Operation for RemoveTask {
    /// Whether there was one.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "schedule.remove",
        sql: include_str!("remove.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Bool],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.iter().take(1);
        one.flat_map(|one| {
            one.task
                .params()
                .into_iter()
                .chain([Value::Bool(one.again)])
        })
        .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let found = model.tasks.remove(&one.task, one.again);
        Some(vec![Row(vec![Value::Bool(found)])])
    }
}

impl Operation for ReadTasks {
    type Output = Tasks;

    const STATEMENT: Statement = Statement {
        name: "schedule.tasks",
        sql: include_str!("tasks.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Text, Type::Int],
        columns: &[
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let one = batch.iter().take(1);
        one.flat_map(|one| {
            let mut params = one.name.params();
            params.extend([
                Value::Text(one.task.clone()),
                Value::Text(one.after.clone()),
                Value::Int(one.most),
            ]);
            params
        })
        .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Tasks>, Failure> {
        let mut tasks = Vec::new();
        let mut time = None;
        for mut row in rows {
            let now = row.int(3)?;
            let Some(name) = row.maybe_text(0)? else {
                time = Some(now);
                continue;
            };
            tasks.push(TaskRow {
                name,
                version: row.int(1)?,
                next: row.maybe_int(2)?,
                now,
                enabled: row.bool(4)?,
                recurrence: recurrence(row.maybe_int(5)?, row.maybe_text(6)?, row.maybe_text(7)?)?,
                timeout: row.int(8)?,
                misfire: row.int(9)?,
                misfire_most: row.int(10)?,
                overlap: row.int(11)?,
                job: NewJob {
                    group: String::new(),
                    headers: Headers::default(),
                    ttl: 0,
                    max_attempts: row.int(12)?,
                    priority: row.int(13)?,
                    name: row.text(14)?,
                    payload: row.text(15)?,
                    at: 0,
                    delay: 0,
                },
                last: row.maybe_int(16)?,
            });
        }
        tasks.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let now = time.ok_or_else(|| Failure::corrupt("the last row of the answer is missing"))?;
        Ok(vec![Tasks { tasks, now }])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let now = Value::Int(model.now);
        let mut rows = Rows::new();
        for task in model.tasks.read(one) {
            let mut row = vec![
                Value::Text(task.name),
                Value::Int(task.version),
                maybe_int(task.next),
                now.clone(),
                Value::Bool(task.enabled),
            ];
            row.extend(recurrence_columns(&task.recurrence));
            row.extend([
                Value::Int(task.timeout),
                Value::Int(task.misfire),
                Value::Int(task.misfire_most),
                Value::Int(task.overlap),
                Value::Int(task.job.max_attempts),
                Value::Int(task.job.priority),
                Value::Text(task.job.name),
                Value::Text(task.job.payload),
                maybe_int(task.last),
            ]);
            rows.push(Row(row));
        }
        let columns = Self::STATEMENT.columns.iter();
        let mut last: Vec<_> = columns.map(|of| Value::Null(*of)).collect();
        last[3] = now;
        rows.push(Row(last));
        Some(rows)
    }
}
