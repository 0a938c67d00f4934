//! Reading rate limits and worker numbers; batches of one.

use std::time::Duration;

use crate::admin::{EXAMINED, LimitLevel, WorkerNumber, duration};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Lists rate limits.
#[derive(Clone, Debug)]
pub struct ListLimits {
    /// Namespace of the backend.
    pub namespace: String,
    /// Those whose keys come after this.
    pub after: String,
    /// How many at most.
    pub most: i64,
    /// Among so many rows.
    pub examined: i64,
}

/// Lists worker numbers that are held.
#[derive(Clone, Debug)]
pub struct ListWorkers {
    /// Namespace of the backend.
    pub namespace: String,
    /// How many at most.
    pub most: i64,
}

impl ListLimits {
    pub(crate) fn new(namespace: String, after: String, most: i64) -> Self {
        Self {
            namespace,
            after,
            most,
            examined: EXAMINED,
        }
    }
}

fn nanos(nanos: i64) -> Duration {
    Duration::from_nanos(nanos.max(0).unsigned_abs())
}

impl Operation for ListLimits {
    type Output = Vec<LimitLevel>;

    const STATEMENT: Statement = Statement {
        name: "admin.limits",
        sql: include_str!("limits.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Int],
        columns: &[
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.namespace.clone()),
                Value::Text(one.after.clone()),
                Value::Int(one.most),
                Value::Int(one.examined),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<LimitLevel>>, Failure> {
        let read = |mut row: Row| {
            Ok(LimitLevel {
                key: row.text(0)?,
                decided: nanos(row.int(1)?),
                backlog: nanos(row.int(2)?),
                window: row.maybe_int(3)?.filter(|span| *span > 0).map(nanos),
                used: row.int(4)?,
                before: row.int(5)?,
                blocked: row.maybe_int(6)?.map(nanos),
                reservations: row.int(7)?,
            })
        };
        let limits: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![limits?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        Some(limits.list(now, batch.first()?))
    }
}

impl Operation for ListWorkers {
    type Output = Vec<WorkerNumber>;

    const STATEMENT: Statement = Statement {
        name: "admin.workers",
        sql: include_str!("workers.sql"),
        params: &[Type::Text, Type::Int],
        columns: &[Type::Text, Type::Int, Type::Text, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| vec![Value::Text(one.namespace.clone()), Value::Int(one.most)];
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<WorkerNumber>>, Failure> {
        let read = |mut row: Row| {
            Ok(WorkerNumber {
                name: row.text(0)?,
                worker: row.int(1)?,
                owner: row.text(2)?,
                held_for: duration(row.int(3)?),
                remaining: duration(row.int(4)?),
            })
        };
        let workers: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![workers?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(model.ids.list(model.now, batch.first()?))
    }
}
