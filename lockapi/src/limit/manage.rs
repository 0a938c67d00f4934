//! Reading limits, giving back, blocking and forgetting.

use super::level::Level;
use crate::driver::columns::{all_answers, flag_rows, flags, ints, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::{SweepResult, decode_keys, key_params, key_row};

/// Reads the state of one limit.
#[derive(Clone, Debug)]
pub struct ReadLevel {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit.
    pub key: String,
}

/// The answer to a [`ReadLevel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentLevel {
    /// The state, without its reservations.
    pub level: Level,
    /// No reservation expires earlier.
    pub due: i64,
    /// The server's time, in nanoseconds.
    pub now: i64,
}

/// Creates the row of one limit if it has none.
#[derive(Clone, Debug)]
pub struct Ensure {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit.
    pub key: String,
}

/// Gives back what was taken of one limit; not to be repeated.
#[derive(Clone, Debug)]
pub struct Refund {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit.
    pub key: String,
    /// What is given back: nanoseconds, or permits of a window.
    pub price: i64,
    /// The length of the window in nanoseconds, or 0.
    pub window: i64,
    /// When it was taken, by the server's clock, in nanoseconds.
    pub at: i64,
}

/// Deletes the state of one limit.
#[derive(Clone, Debug)]
pub struct Reset {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit.
    pub key: String,
}

/// Refuses everything of one key for a time.
#[derive(Clone, Debug)]
pub struct Block {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit.
    pub key: String,
    /// Nanoseconds from now on.
    pub time: i64,
}

/// Deletes rows that have been idle for a minute, in a part of the table; a batch of one.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Namespace and key that the part comes after.
    pub after: (String, String),
    /// How many rows are read.
    pub most: i64,
}

impl Operation for ReadLevel {
    type Output = CurrentLevel;

    const STATEMENT: Statement = Statement {
        name: "limit.level",
        sql: include_str!("level.sql"),
        params: &[Type::Texts, Type::Texts],
        columns: &[Type::Int; 11],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<CurrentLevel>, Failure> {
        all_answers(batch.len(), rows, |row| {
            let level = Level {
                at: row.int(1)?,
                tat: row.int(2)?,
                started: row.int(3)?,
                span: row.int(4)?,
                used: row.int(5)?,
                before: row.int(6)?,
                slide: row.int(7)?,
                blocked_until: row.int(8)?,
                ..Level::default()
            };
            Ok(CurrentLevel {
                level,
                due: row.int(9)?,
                now: row.int(10)?,
            })
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        let rows = (1..).zip(batch).map(|(n, one)| {
            let (level, due) = limits.read_level(&one.namespace, &one.key);
            Row([
                n,
                level.at,
                level.tat,
                level.started,
                level.span,
                level.used,
                level.before,
                level.slide,
                level.blocked_until,
                due,
                now,
            ]
            .map(Value::Int)
            .into())
        });
        Some(rows.collect())
    }
}

impl Operation for Ensure {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "limit.ensure",
        sql: include_str!("ensure.sql"),
        params: &[Type::Texts, Type::Texts],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, _) = model.limits();
        let ensure = |one: &Self| {
            limits.ensure(&one.namespace, &one.key);
            true
        };
        Some(flag_rows(batch, ensure))
    }
}

impl Operation for Refund {
    /// Always true.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "limit.refund",
        sql: include_str!("refund.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints, Type::Ints, Type::Ints],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.price),
            ints(batch, |one| one.window),
            ints(batch, |one| one.at),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        limits.refund(batch, now);
        Some(flag_rows(batch, |_| true))
    }
}

impl Operation for Reset {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "limit.reset",
        sql: include_str!("reset.sql"),
        params: &[Type::Texts, Type::Texts],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, _) = model.limits();
        let reset = |one: &Self| {
            limits.reset(&one.namespace, &one.key);
            true
        };
        Some(flag_rows(batch, reset))
    }
}

impl Operation for Block {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "limit.block",
        sql: include_str!("block.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.time),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        let block = |one: &Self| {
            limits.block(one, now);
            true
        };
        Some(flag_rows(batch, block))
    }
}

impl Operation for Sweep {
    type Output = SweepResult<(String, String)>;

    const STATEMENT: Statement = Statement {
        name: "limit.sweep",
        sql: include_str!("sweep.sql"),
        params: &[Type::Text, Type::Text, Type::Int],
        columns: &[Type::Int, Type::Int, Type::Text, Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| key_params(&one.after, one.most);
        batch.iter().take(1).flat_map(of).collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        decode_keys(batch.first().map(|one| one.most), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (limits, now) = model.limits();
        let (deleted, part) = limits.sweep(&one.after, one.most, now);
        Some(vec![key_row(deleted, &part)])
    }
}
