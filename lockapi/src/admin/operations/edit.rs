//! Changing a job that waits; a batch of one.

use crate::admin::JobEdit;
use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{Name, Priority};

/// Changes a job that waits.
#[derive(Clone, Debug)]
pub struct EditJob {
    /// The queue.
    pub name: Name,
    /// The number of the job.
    pub id: i64,
    /// What is changed, as it was checked.
    pub edit: JobEdit,
    /// The topic to notify.
    pub topic: i64,
    /// Why.
    pub reason: String,
}

/// The answer to an [`EditJob`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// It is changed.
    Done,
    /// It does not wait.
    Left,
    /// Somebody has its row locked.
    Locked,
    /// It has been delivered so often, at least as often as it was to be allowed.
    UsedUp(i64),
}

impl Operation for EditJob {
    type Output = Edited;

    const STATEMENT: Statement = Statement {
        name: "admin.edit_job",
        sql: include_str!("edit_job.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Ints,
            Type::Text,
        ],
        columns: &[Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let edit = &one.edit;
            let priority = edit.priority.map_or(-1, Priority::number);
            vec![
                Value::Text(one.name.namespace.clone()),
                Value::Text(one.name.queue.clone()),
                Value::Int(one.id),
                Value::Text(one.reason.clone()),
                Value::Int(edit.at.unwrap_or(-1)),
                Value::Int(priority),
                Value::Int(edit.max_attempts.map_or(0, i64::from)),
                Value::Text(edit.payload.clone().unwrap_or_default()),
                Value::Ints(vec![one.topic]),
                Value::Text(edit.changes()),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Edited>, Failure> {
        let read = |mut row: Row| {
            let (edited, attempt) = (row.int(0)?, row.maybe_int(1)?);
            match (edited, attempt) {
                (0, _) => Ok(Edited::Done),
                (1, _) => Ok(Edited::Left),
                (2, _) => Ok(Edited::Locked),
                (3, Some(attempt)) => Ok(Edited::UsedUp(attempt)),
                _ => Err(Failure::corrupt(format!("an edit answered {edited}"))),
            }
        };
        rows.into_iter().map(read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let now = model.now;
        let kind = model.jobs.kind(one.id).map(str::to_owned);
        let edited = model.jobs.edit(now, one);
        if let (Edited::Done, Some(kind)) = (edited, kind) {
            let (queue, changes) = (&one.name.queue, one.edit.changes());
            let target = format!("{} ({kind}) of {queue}: {changes}", one.id);
            let namespace = &one.name.namespace;
            model
                .notes
                .log(now, namespace, "edit job", target, &one.reason);
            model.notify([one.topic]);
        }
        let (edited, attempt) = match edited {
            Edited::Done => (0, None),
            Edited::Left => (1, None),
            Edited::Locked => (2, None),
            Edited::UsedUp(attempt) => (3, Some(attempt)),
        };
        let row = vec![Value::Int(edited), maybe_int(attempt), Value::Int(0)];
        Some(vec![Row(row)])
    }
}
