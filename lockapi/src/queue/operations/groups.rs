//! Groups of jobs: their limits, and admitting what has room.

use super::limit::LimitRow;
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
    /// When the next job will be due, whether or not its group has room then, or the next permit of a group comes, in
    /// microseconds from now; only set when none was admitted.
    pub next_due: Option<i64>,
}

/// Sets how the groups of a queue are limited.
#[derive(Clone, Debug)]
pub struct SetGroups {
    /// The queue.
    pub name: Name,
    /// What a group is limited to; how many of its jobs run at once is always set.
    pub limit: LimitRow,
    /// Whether they run in order.
    pub ordered: bool,
    /// The topic to notify.
    pub topic: i64,
}

/// Gives a group a limit of its own, or takes it away.
#[derive(Clone, Debug)]
pub struct SetGroupLimit {
    /// The queue.
    pub name: Name,
    /// The group.
    pub group: String,
    /// The limit, and what it does not set is as in other groups; `None` takes it away.
    pub limit: Option<LimitRow>,
    /// The topic to notify.
    pub topic: i64,
}

impl Operation for Admit {
    /// Nothing while another session admits jobs of the queue.
    type Output = Option<Admitted>;

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

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Option<Admitted>>, Failure> {
        let read = |mut row: Row| {
            let Some(jobs) = row.maybe_int(0)? else {
                return Ok(None);
            };
            Ok(Some(Admitted {
                jobs,
                examined: row.int(1)?,
                next_due: row.maybe_int(2)?,
            }))
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
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "queue.set_groups",
        sql: include_str!("set_groups.sql"),
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
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.push(Value::Bool(one.ordered));
        params.extend(one.limit.params());
        params.push(Value::Ints(vec![one.topic]));
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        rows.into_iter()
            .map(|mut row| row.int(0).map(drop))
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        model.jobs.set_groups(one);
        model.notify([one.topic]);
        Some(vec![Row(vec![Value::Int(0)])])
    }
}

impl Operation for SetGroupLimit {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "queue.set_group_limit",
        sql: include_str!("set_group_limit.sql"),
        params: &[
            Type::Text,
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
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.push(Value::Text(one.group.clone()));
        params.push(Value::Bool(one.limit.is_some()));
        params.extend(one.limit.unwrap_or_default().params());
        params.push(Value::Ints(vec![one.topic]));
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        rows.into_iter()
            .map(|mut row| row.int(0).map(drop))
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        model.jobs.set_group_limit(one);
        model.notify([one.topic]);
        Some(vec![Row(vec![Value::Int(0)])])
    }
}
