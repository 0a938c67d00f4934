//! Taking permits of one limit, the common case.

use super::level::Level;
use super::manage::CurrentLevel;
use super::raw_decision::{Outcome, RawDecision};
use crate::driver::columns::{batch_index, ints, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Takes permits by the generic cell rate algorithm, several times if they fit.
///
/// Of the requests of a batch no two are for one key, and `relaxed` is that of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit, as tables store it.
    pub key: String,
    /// What it costs each time, in nanoseconds.
    pub price: i64,
    /// The burst, in nanoseconds.
    pub depth: i64,
    /// The most times that it is taken.
    pub times: i64,
    /// Whether the commit need not wait for the disk.
    pub relaxed: bool,
    /// Whether it is probably refused, so that reading is enough.
    pub read_first: bool,
}

impl Take {
    /// Whether a state leaves no permit, and nothing that has to be put right.
    pub(crate) fn is_refused(&self, current: &CurrentLevel) -> bool {
        let level = &current.level;
        let full =
            level.debt(current.now) + self.price > self.depth && !level.is_ahead(current.now);
        current.due > current.now && (full || level.blocked_until > current.now)
    }
}

impl Operation for Take {
    type Output = RawDecision;

    const STATEMENT: Statement = Statement {
        name: "limit.take",
        sql: include_str!("take.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Bool,
        ],
        columns: &[Type::Int, Type::Int, Type::Int, Type::Int, Type::Int],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "limit.take_one",
        sql: include_str!("take_one.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
        ],
        columns: Self::STATEMENT.columns,
    });

    fn is_simple(batch: &[Self]) -> bool {
        batch.len() == 1
    }

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.price),
            ints(batch, |one| one.depth),
            ints(batch, |one| one.times),
            Value::Bool(batch.iter().all(|one| one.relaxed)),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<RawDecision>, Failure> {
        let mut answers: Vec<_> = batch.iter().map(|_| RawDecision::again()).collect();
        for mut row in rows {
            let at = batch_index(&mut row, batch.len())?;
            answers[at] = RawDecision {
                outcome: Outcome::decode(row.int(1)?)?,
                level: Level {
                    tat: row.int(2)?,
                    blocked_until: row.int(3)?,
                    ..Level::default()
                },
                now: row.int(4)?,
            };
        }
        Ok(answers)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        let rows = (1..).zip(batch).map(|(n, one)| {
            let decided = limits.take(one, now);
            Row([
                n,
                decided.outcome.code(),
                decided.level.tat,
                decided.level.blocked_until,
                decided.now,
            ]
            .map(Value::Int)
            .into())
        });
        Some(rows.collect())
    }
}
