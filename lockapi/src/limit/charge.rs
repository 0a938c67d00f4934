//! Charging several limits at once, all or nothing.

use std::collections::HashSet;

use super::level::Level;
use super::quota::Quota;
use super::raw_decision::{Outcome, RawDecision};
use crate::driver::columns::place;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// A request of several lines, which are taken all or not at all, as often as they fit.
///
/// No key occurs twice in a request. `relaxed` is that of the first one of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Namespace of the backend.
    pub namespace: String,
    /// What is to be taken.
    pub lines: Vec<ChargeLine>,
    /// The most times that it is taken; once if something is reserved.
    pub times: i64,
    /// Whether the commit need not wait for the disk.
    pub relaxed: bool,
}

/// What is taken of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeLine {
    /// Key of the limit, as tables store it.
    pub key: String,
    /// Its quota.
    pub quota: Quota,
    /// The number of permits.
    pub cost: u64,
    /// The random number of the reservation; 0 for none.
    pub id: i64,
    /// Nanoseconds until the reservation expires.
    pub ttl: i64,
}

impl ChargeLine {
    /// What it costs in the unit of the state.
    pub(crate) fn price(&self) -> i64 {
        self.quota.price(self.cost)
    }
}

impl Charge {
    /// Whether what is taken is reserved.
    pub(crate) fn reserves(&self) -> bool {
        self.lines.iter().any(|line| line.id != 0)
    }
}

impl Operation for Charge {
    /// An answer for each line.
    type Output = Vec<RawDecision>;

    const STATEMENT: Statement = Statement {
        name: "limit.charge",
        sql: include_str!("charge.sql"),
        params: &[
            Type::Ints,
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Bools,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Bool,
        ],
        columns: &[Type::Int; 10],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "limit.charge_disjoint",
        sql: include_str!("charge_disjoint.sql"),
        params: &[
            Type::Text,
            Type::Ints,
            Type::Texts,
            Type::Ints,
            Type::Bools,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Bool,
        ],
        columns: Self::STATEMENT.columns,
    });

    fn is_simple(batch: &[Self]) -> bool {
        let mut keys = HashSet::new();
        let mut lines = batch.iter().flat_map(|one| &one.lines);
        !batch.is_empty() && lines.all(|line| line.id == 0 && keys.insert(&*line.key))
    }

    fn simple_params(batch: &[Self]) -> Vec<Value> {
        let [
            request,
            _,
            key,
            length,
            sliding,
            price,
            depth,
            _,
            _,
            times,
            relaxed,
        ] = columns(batch);
        let namespace = batch.first().map(|one| one.namespace.clone());
        let namespace = Value::Text(namespace.unwrap_or_default());
        vec![
            namespace, request, key, length, sliding, price, depth, times, relaxed,
        ]
    }

    fn params(batch: &[Self]) -> Vec<Value> {
        columns(batch).into()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Vec<RawDecision>>, Failure> {
        let count = batch.iter().map(|one| one.lines.len()).sum();
        let mut answers: Vec<_> = (0..count).map(|_| RawDecision::again()).collect();
        for mut row in rows {
            let at = place(&mut row, count)?;
            answers[at] = RawDecision {
                outcome: Outcome::decode(row.int(1)?)?,
                level: Level {
                    tat: row.int(2)?,
                    started: row.int(3)?,
                    span: row.int(4)?,
                    used: row.int(5)?,
                    before: row.int(6)?,
                    slide: row.int(7)?,
                    blocked_until: row.int(8)?,
                    ..Level::default()
                },
                now: row.int(9)?,
            };
        }
        let mut answers = answers.into_iter();
        let of = |one: &Self| answers.by_ref().take(one.lines.len()).collect();
        Ok(batch.iter().map(of).collect())
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        let decided = limits.charge(batch, now).concat();
        let rows = (1..).zip(decided).map(|(n, decided)| {
            let RawDecision {
                outcome,
                level,
                now,
            } = decided;
            Row([
                n,
                outcome.code(),
                level.tat,
                level.started,
                level.span,
                level.used,
                level.before,
                level.slide,
                level.blocked_until,
                now,
            ]
            .map(Value::Int)
            .into())
        });
        Some(rows.collect())
    }
}

/// The parameters of charge.sql: an entry for each line.
fn columns(batch: &[Charge]) -> [Value; 11] {
    let lines = || {
        (1..)
            .zip(batch)
            .flat_map(|(nth, one)| one.lines.iter().map(move |line| (nth, one, line)))
    };
    let ints =
        |of: fn(&ChargeLine) -> i64| Value::Ints(lines().map(|(.., line)| of(line)).collect());
    [
        Value::Ints(lines().map(|(nth, ..)| nth).collect()),
        Value::Texts(lines().map(|(_, one, _)| one.namespace.clone()).collect()),
        Value::Texts(lines().map(|(.., line)| line.key.clone()).collect()),
        ints(|line| line.quota.window()),
        Value::Bools(lines().map(|(.., line)| line.quota.is_sliding()).collect()),
        ints(ChargeLine::price),
        ints(|line| line.quota.price(line.quota.limit())),
        ints(|line| line.id),
        ints(|line| line.ttl),
        Value::Ints(lines().map(|(_, one, _)| one.times).collect()),
        Value::Bool(batch.first().is_some_and(|one| one.relaxed)),
    ]
}
