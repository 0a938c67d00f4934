//! Groups of jobs: their limits, and admitting what has room.

use super::manage::Name;
use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// A parked job has this time, which never comes, in microseconds since 1970: the beginning of the year 20000.
pub(crate) const NEVER: i64 = 568_971_820_800_000_000;

/// Admits parked jobs; a batch of one.
#[derive(Clone, Debug)]
pub struct Admit {
    /// The queue.
    pub name: Name,
    /// How many groups are looked at, at most.
    pub groups: i64,
}

/// The answer to an [`Admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// How many jobs were admitted.
    pub jobs: i64,
    /// How many groups were looked at; fewer than requested only when there are no more with jobs that are due.
    pub examined: i64,
    /// When the next job will be due, in microseconds from now, whether or not its group has room then; only set
    /// when none was admitted.
    pub next_due: Option<i64>,
}

/// Sets how the groups of a queue are limited.
#[derive(Clone, Debug)]
pub struct SetGroups {
    /// The queue.
    pub name: Name,
    /// How many jobs of a group run at once, at most.
    pub most: i64,
    /// Whether they run in order.
    pub ordered: bool,
    /// The topic to notify.
    pub topic: i64,
}

/// Gives a group a limit of its own.
#[derive(Clone, Debug)]
pub struct SetGroupLimit {
    /// The queue.
    pub name: Name,
    /// The group.
    pub group: String,
    /// How many of its jobs run at once, at most; -1 means as in other groups.
    pub most: i64,
    /// The topic to notify.
    pub topic: i64,
}

impl Operation for Admit {
    type Output = Admitted;

    const STATEMENT: Statement = Statement {
        name: "queue.admit",
        sql: include_str!("admit.sql"),
        params: &[Type::Text, Type::Text, Type::Int],
        columns: &[Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.push(Value::Int(one.groups));
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Admitted>, Failure> {
        let read = |mut row: Row| {
            Ok(Admitted {
                jobs: row.int(0)?,
                examined: row.int(1)?,
                next_due: row.maybe_int(2)?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let admitted = model.jobs.admit(model.now, batch.first()?);
        Some(vec![Row(vec![
            Value::Int(admitted.jobs),
            Value::Int(admitted.examined),
            maybe_int(admitted.next_due),
        ])])
    }
}

impl Operation for SetGroups {
    /// The limit.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "queue.set_groups",
        sql: include_str!("set_groups.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Bool, Type::Ints],
        columns: &[Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.extend([
            Value::Int(one.most),
            Value::Bool(one.ordered),
            Value::Ints(vec![one.topic]),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        model.jobs.set_groups(one);
        model.notify([one.topic]);
        Some(vec![Row(vec![Value::Int(one.most), Value::Int(0)])])
    }
}

impl Operation for SetGroupLimit {
    /// The limit.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "queue.set_group_limit",
        sql: include_str!("set_group_limit.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Int, Type::Ints],
        columns: &[Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.extend([
            Value::Text(one.group.clone()),
            Value::Int(one.most),
            Value::Ints(vec![one.topic]),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        model.jobs.set_group_limit(one);
        model.notify([one.topic]);
        Some(vec![Row(vec![Value::Int(one.most), Value::Int(0)])])
    }
}
