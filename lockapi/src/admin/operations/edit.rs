//! Changing jobs that wait; a batch of one.

use std::collections::BTreeSet;

use super::operate::JobMatch;
use crate::admin::{JobEdit, MAX_PAYLOAD_CHARS, Seen};
use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{Name, Priority};

/// Changes jobs that wait.
#[derive(Clone, Debug)]
pub struct EditJobs {
    /// The queue.
    pub name: Name,
    /// The numbers of the jobs.
    pub ids: Vec<i64>,
    /// Which of these; all, if that is not said.
    pub only: Option<JobMatch>,
    /// What is changed, as it was checked.
    pub edit: JobEdit,
    /// Whether jobs that have all that already are left.
    pub again: bool,
    /// The topic to notify.
    pub topic: i64,
    /// Why.
    pub reason: String,
}

/// The answer to an [`EditJobs`]; jobs that do not wait are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    /// How many are changed.
    pub jobs: i64,
    /// How many a claim, an admission or a transaction has locked.
    pub locked: i64,
    /// How many have been delivered at least as often as was to be allowed.
    pub used_up: i64,
    /// The most deliveries of one of these.
    pub attempts: Option<i64>,
    /// How many are left because they have all that already.
    pub same: i64,
}

impl Operation for EditJobs {
    type Output = Edited;

    const STATEMENT: Statement = Statement {
        name: "admin.edit_jobs",
        sql: include_str!("edit_jobs.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Ints,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Bool,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let edit = &one.edit;
            let nothing = Seen::default();
            let seen = edit.seen.as_ref();
            let due = seen.map_or(-1, |seen| seen.due);
            let seen = seen.unwrap_or(&nothing);
            let priority = edit.priority.map_or(-1, Priority::number);
            let mut params = vec![
                Value::Text(one.name.namespace.clone()),
                Value::Text(one.name.queue.clone()),
                Value::Ints(one.ids.clone()),
                Value::Text(one.reason.clone()),
                Value::Int(edit.at.unwrap_or(-1)),
                Value::Int(priority),
                Value::Int(edit.max_attempts.map_or(0, i64::from)),
                Value::Text(edit.payload.clone().unwrap_or_default()),
                Value::Ints(vec![one.topic]),
                Value::Text(edit.changes()),
                Value::Int(due),
                Value::Int(seen.priority),
                Value::Int(seen.max_attempts),
                Value::Int(seen.attempt),
                Value::Text(seen.payload.clone()),
                Value::Bool(one.again),
                Value::Int(i64::try_from(MAX_PAYLOAD_CHARS).unwrap_or(i64::MAX)),
            ];
            params.extend(JobMatch::params(one.only.as_ref()));
            params
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Edited>, Failure> {
        let read = |mut row: Row| {
            Ok(Edited {
                jobs: row.int(0)?,
                locked: row.int(1)?,
                used_up: row.int(2)?,
                attempts: row.maybe_int(3)?,
                same: row.int(4)?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let now = model.now;
        let wanted: BTreeSet<i64> = one.ids.iter().copied().collect();
        let mut edited = Edited::default();
        for id in wanted {
            let kind = model.jobs.kind(&one.name, id).map(str::to_owned);
            match model.jobs.edit(now, one, id) {
                Edit::Left => {}
                Edit::Same => edited.same += 1,
                Edit::UsedUp(attempt) => {
                    edited.used_up += 1;
                    edited.attempts = edited.attempts.max(Some(attempt));
                }
                Edit::Done => {
                    edited.jobs += 1;
                    let (queue, changes) = (&one.name.queue, one.edit.changes());
                    let target =
                        format!("{id} ({}) of {queue}: {changes}", kind.unwrap_or_default());
                    let namespace = &one.name.namespace;
                    model
                        .notes
                        .log(now, namespace, "edit job", target, &one.reason);
                }
            }
        }
        if edited.jobs > 0 {
            model.notify([one.topic]);
        }
        let row = vec![
            Value::Int(edited.jobs),
            Value::Int(0),
            Value::Int(edited.used_up),
            maybe_int(edited.attempts),
            Value::Int(edited.same),
            Value::Int(i64::from(edited.jobs > 0)),
            Value::Null(Type::Bool),
        ];
        Some(vec![Row(row)])
    }
}

/// What became of one of the jobs, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// It is changed.
    Done,
    /// It does not wait, or is not as it was seen.
    Left,
    /// It has all that already.
    Same,
    /// It has been delivered so often.
    UsedUp(i64),
}
