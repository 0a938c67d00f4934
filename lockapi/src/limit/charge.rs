//! Charging several limits at once, all or nothing.

use std::collections::HashMap;

use super::level::Level;
use super::quota::Quota;
use super::raw_decision::{Outcome, RawDecision};
use crate::driver::columns::batch_index;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// A request of several lines, which are taken all or not at all, as often as they fit.
///
/// Lines of one key are taken together, each with the burst of its own quota, behind those before it; the windows
/// of their quotas are equal. No key occurs in two requests of a batch, and `relaxed` is that of the first one.
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

    /// What it takes of each key, and the place of each line's key in that.
    pub(crate) fn keys(&self) -> (Vec<OfKey<'_>>, Vec<usize>) {
        let mut keys: Vec<OfKey<'_>> = Vec::with_capacity(self.lines.len());
        let mut known = HashMap::with_capacity(self.lines.len());
        let mut places = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            let at = *known.entry(&*line.key).or_insert(keys.len());
            places.push(at);
            if at == keys.len() {
                keys.push(OfKey {
                    line,
                    price: 0,
                    depth: i64::MAX,
                });
            }
            if let Some(key) = keys.get_mut(at) {
                key.price = key.price.saturating_add(line.price());
                // How much may be taken before them, so that this one fits.
                let quota = &line.quota;
                let before = quota.price(quota.limit()).saturating_sub(key.price);
                key.depth = key.depth.min(before);
            }
        }
        for key in &mut keys {
            key.depth = key.depth.saturating_add(key.price);
        }
        (keys, places)
    }
}

/// What a request takes of one key.
pub(crate) struct OfKey<'a> {
    /// The first line of the key.
    pub(crate) line: &'a ChargeLine,
    /// What all of them cost together.
    pub(crate) price: i64,
    /// The burst that admits all of them if each fits behind those before it.
    pub(crate) depth: i64,
}

impl OfKey<'_> {
    /// How many times all of them fit at `now`.
    pub(crate) fn fits(&self, level: &Level, now: i64) -> i64 {
        let quota = &self.line.quota;
        if level.blocked_until > now {
            return 0;
        }
        let taken = quota.price(quota.limit()) - level.room(quota, now);
        ((self.depth - taken) / self.price).max(0)
    }
}

impl Operation for Charge {
    /// An answer for each line, the same for lines of one key.
    type Output = Vec<RawDecision>;

    const STATEMENT: Statement = Statement {
        name: "limit.charge",
        sql: include_str!("charge.sql"),
        params: &[
            Type::Text,
            Type::Ints,
            Type::Texts,
            Type::Ints,
            Type::Bools,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Bool,
        ],
        columns: &[Type::Int; 11],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let mut columns = Columns::default();
        for (nth, one) in (1..).zip(batch) {
            columns.add(nth, one);
        }
        let [
            request,
            length,
            price,
            depth,
            times,
            line,
            id,
            ttl,
            reserved,
        ] = columns.ints.map(Value::Ints);
        let namespace = batch.first().map(|one| one.namespace.clone());
        vec![
            Value::Text(namespace.unwrap_or_default()),
            request,
            Value::Texts(columns.keys),
            length,
            Value::Bools(columns.sliding),
            price,
            depth,
            times,
            line,
            id,
            ttl,
            reserved,
            Value::Bool(batch.iter().all(|one| one.relaxed)),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Vec<RawDecision>>, Failure> {
        let places: Vec<_> = batch.iter().map(|one| one.keys().1).collect();
        let keys = |places: &Vec<usize>| places.iter().max().map_or(0, |last| last + 1);
        let count = places.iter().map(keys).sum();
        let mut answers: Vec<_> = (0..count).map(|_| RawDecision::again()).collect();
        for mut row in rows {
            let at = batch_index(&mut row, answers.len())?;
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
                    reserved: row.int(9)?,
                    ..Level::default()
                },
                now: row.int(10)?,
            };
        }
        let mut answers = &answers[..];
        let of = |places: &Vec<usize>| {
            let (own, others) = answers.split_at(keys(places));
            answers = others;
            places.iter().map(|at| own[*at].clone()).collect()
        };
        Ok(places.iter().map(of).collect())
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        let decided = batch.iter().flat_map(|one| limits.charge(one, now));
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
                level.reserved,
                now,
            ]
            .map(Value::Int)
            .into())
        });
        Some(rows.collect())
    }
}

/// The parameters of charge.sql: a line for each key, and what is reserved.
#[derive(Default)]
struct Columns {
    keys: Vec<String>,
    sliding: Vec<bool>,
    /// Of each line its request, the window, the price, the depth and how often it is wanted; of each reservation
    /// the line, its number, its time to live and its price.
    ints: [Vec<i64>; 9],
}

impl Columns {
    fn add(&mut self, nth: i64, one: &Charge) {
        let before = self.keys.len();
        let (keys, places) = one.keys();
        for OfKey { line, price, depth } in keys {
            self.keys.push(line.key.clone());
            self.sliding.push(line.quota.is_sliding());
            let ints = [nth, line.quota.window(), price, depth, one.times];
            for (column, value) in self.ints.iter_mut().zip(ints) {
                column.push(value);
            }
        }
        let lines = one.lines.iter().zip(places);
        for (line, at) in lines.filter(|(line, _)| line.id != 0) {
            let at = i64::try_from(before + at + 1).unwrap_or(i64::MAX);
            let ints = [at, line.id, line.ttl, line.price()];
            for (column, value) in self.ints[5..].iter_mut().zip(ints) {
                column.push(value);
            }
        }
    }
}
