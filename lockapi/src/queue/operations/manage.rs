//! Operations on a queue as a whole; batches of one.

use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::{SweepResult, count, decode};

/// A queue by its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the queue.
    pub queue: String,
}

impl Name {
    pub(super) fn params(&self) -> [Value; 2] {
        [
            Value::Text(self.namespace.clone()),
            Value::Text(self.queue.clone()),
        ]
    }
}

/// Cancels jobs.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// The queue.
    pub name: Name,
    /// The numbers of the jobs.
    pub ids: Vec<i64>,
    /// For how long they are kept in the archive, in microseconds.
    pub keep: i64,
}

/// The answer to a [`Cancel`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cancelled {
    /// The numbers of those that were there.
    pub cancelled: Vec<i64>,
    /// The numbers of those that a transaction has locked.
    pub locked: Vec<i64>,
}

/// The place of a job in its queue: priority, time from which it is due, and number.
pub type QueuePlace = (i64, i64, i64);

/// Deletes jobs that wait, in a part of a queue; a batch of one.
#[derive(Clone, Debug)]
pub struct Purge {
    /// The queue.
    pub name: Name,
    /// The place that the part comes after.
    pub after: QueuePlace,
    /// How many jobs are examined at most.
    pub most: i64,
}

impl Purge {
    /// Before the place of any job.
    pub const FIRST: QueuePlace = (-1, 0, 0);
}

/// Deletes dead letters, in a part of them; a batch of one.
#[derive(Clone, Debug)]
pub struct Discard {
    /// The queue.
    pub name: Name,
    /// Their numbers; an empty list means all.
    pub ids: Vec<i64>,
    /// The number that the part comes after.
    pub after: i64,
    /// How many at most.
    pub most: i64,
}

/// Pauses or resumes a queue.
#[derive(Clone, Debug)]
pub struct SetPaused {
    /// The queue.
    pub name: Name,
    /// Whether it is paused from now on.
    pub paused: bool,
    /// For how long, in microseconds; 0 means until it is resumed.
    pub time: i64,
    /// The topic to notify.
    pub topic: i64,
}

/// Pauses or resumes the jobs of one name.
#[derive(Clone, Debug)]
pub struct SetNamePaused {
    /// The queue.
    pub name: Name,
    /// The name of the jobs.
    pub job: String,
    /// Whether it is paused from now on.
    pub paused: bool,
    /// For how long, in microseconds; 0 means until it is resumed.
    pub time: i64,
    /// The topic to notify.
    pub topic: i64,
}

/// Counts jobs.
#[derive(Clone, Debug)]
pub struct CountJobs {
    /// The queue.
    pub name: Name,
    /// How many of each priority and state are counted at most.
    pub most: i64,
}

/// The answer to a [`CountJobs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "they are columns")]
pub struct Counted {
    /// Due, and not running.
    pub ready: i64,
    /// Running, with a lease.
    pub running: i64,
    /// Not yet due.
    pub delayed: i64,
    /// Dead letters.
    pub dead: i64,
    /// How long the oldest ready one has been due, in microseconds.
    pub oldest: Option<i64>,
    /// Whether there are more ready or running ones.
    pub more_due: bool,
    /// Whether there are more delayed ones.
    pub more_delayed: bool,
    /// Whether there are more dead letters.
    pub more_dead: bool,
    /// Whether the queue is paused.
    pub paused: bool,
    /// For how long it still is, in microseconds; `None` where it is not, or until it is resumed.
    pub resumes_in: Option<i64>,
}

/// Deletes what has been in the archive of a namespace for long enough, and idempotency keys of all that are too old,
/// in a part of them; a batch of one.
#[derive(Clone, Debug)]
pub struct SweepQueues {
    /// Namespace of the backend.
    pub namespace: String,
    /// From when on jobs have expired, and keys were made, that belong to the part.
    pub from: (i64, i64),
    /// How many of each at most.
    pub most: i64,
}

impl Operation for Purge {
    type Output = SweepResult<QueuePlace>;

    const STATEMENT: Statement = Statement {
        name: "queue.purge",
        sql: include_str!("purge.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
        columns: &[Type::Int, Type::Int, Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let (priority, time, id) = one.after;
        let mut params = one.name.params().to_vec();
        params.extend([priority, time, id, one.most].map(Value::Int));
        params
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<SweepResult<QueuePlace>>, Failure> {
        let most = batch.first().map(|one| one.most);
        decode(most, rows, |row| {
            Ok((row.int(2)?, row.int(3)?, row.int(4)?))
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (deleted, part) = model.jobs.purge(batch.first()?);
        let last = part.last();
        Some(vec![Row(vec![
            Value::Int(deleted),
            Value::Int(count(&part)),
            maybe_int(last.map(|place| place.0)),
            maybe_int(last.map(|place| place.1)),
            maybe_int(last.map(|place| place.2)),
        ])])
    }
}

impl Operation for Discard {
    type Output = SweepResult<i64>;

    const STATEMENT: Statement = Statement {
        name: "queue.discard",
        sql: include_str!("discard.sql"),
        params: &[Type::Text, Type::Text, Type::Ints, Type::Int, Type::Int],
        columns: &[Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.push(Value::Ints(one.ids.clone()));
        params.extend([one.after, one.most].map(Value::Int));
        params
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<SweepResult<i64>>, Failure> {
        let most = batch.first().map(|one| one.most);
        decode(most, rows, |row| row.int(2))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let ids = model.jobs.discard(batch.first()?);
        let (many, last) = (Value::Int(count(&ids)), maybe_int(ids.last().copied()));
        Some(vec![Row(vec![many.clone(), many, last])])
    }
}

impl Operation for SweepQueues {
    type Output = SweepResult<(i64, i64)>;

    const STATEMENT: Statement = Statement {
        name: "queue.sweep",
        sql: include_str!("sweep.sql"),
        params: &[Type::Text, Type::Int, Type::Int, Type::Int],
        columns: &[Type::Int, Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.namespace.clone()),
                Value::Int(one.from.0),
                Value::Int(one.from.1),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<SweepResult<(i64, i64)>>, Failure> {
        let most = batch.first().map(|one| one.most);
        decode(most, rows, |row| Ok((row.int(2)?, row.int(3)?)))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let row = model.jobs.sweep(model.now, one);
        Some(vec![Row(row.map(Value::Int).to_vec())])
    }
}

impl Operation for Cancel {
    type Output = Cancelled;

    const STATEMENT: Statement = Statement {
        name: "queue.cancel",
        sql: include_str!("cancel.sql"),
        params: &[Type::Text, Type::Text, Type::Ints, Type::Int],
        columns: &[Type::Ints, Type::Ints],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.extend([Value::Ints(one.ids.clone()), Value::Int(one.keep)]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Cancelled>, Failure> {
        let read = |mut row: Row| {
            Ok(Cancelled {
                cancelled: row.ints(0)?,
                locked: row.ints(1)?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let Cancelled { cancelled, locked } = model.jobs.cancel(model.now, batch.first()?);
        Some(vec![Row(vec![Value::Ints(cancelled), Value::Ints(locked)])])
    }
}

impl Operation for SetPaused {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "queue.set_paused",
        sql: include_str!("set_paused.sql"),
        params: &[Type::Text, Type::Text, Type::Bool, Type::Ints, Type::Int],
        columns: &[Type::Bool, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.extend([
            Value::Bool(one.paused),
            Value::Ints(vec![one.topic]),
            Value::Int(one.time),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        model.jobs.set_paused(model.now, one);
        model.notify([one.topic]);
        Some(vec![Row(vec![Value::Bool(one.paused), Value::Int(0)])])
    }
}

impl Operation for SetNamePaused {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "queue.set_name_paused",
        sql: include_str!("set_name_paused.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Bool,
            Type::Int,
            Type::Ints,
        ],
        columns: &[Type::Bool, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.extend([
            Value::Text(one.job.clone()),
            Value::Bool(one.paused),
            Value::Int(one.time),
            Value::Ints(vec![one.topic]),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        model.jobs.set_name_paused(model.now, one);
        model.notify([one.topic]);
        Some(vec![Row(vec![Value::Bool(one.paused), Value::Int(0)])])
    }
}

impl Operation for CountJobs {
    type Output = Counted;

    const STATEMENT: Statement = Statement {
        name: "queue.statistics",
        sql: include_str!("statistics.sql"),
        params: &[Type::Text, Type::Text, Type::Int],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
            Type::Bool,
            Type::Bool,
            Type::Bool,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.push(Value::Int(one.most));
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Counted>, Failure> {
        let read = |mut row: Row| {
            Ok(Counted {
                ready: row.int(0)?,
                running: row.int(1)?,
                delayed: row.int(2)?,
                dead: row.int(3)?,
                oldest: row.maybe_int(4)?,
                more_due: row.bool(5)?,
                more_delayed: row.bool(6)?,
                more_dead: row.bool(7)?,
                paused: row.bool(8)?,
                resumes_in: row.maybe_int(9)?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let counted = model.jobs.count(model.now, one);
        Some(vec![Row(vec![
            Value::Int(counted.ready),
            Value::Int(counted.running),
            Value::Int(counted.delayed),
            Value::Int(counted.dead),
            maybe_int(counted.oldest),
            Value::Bool(counted.more_due),
            Value::Bool(counted.more_delayed),
            Value::Bool(counted.more_dead),
            Value::Bool(counted.paused),
            maybe_int(counted.resumes_in),
        ])])
    }
}
