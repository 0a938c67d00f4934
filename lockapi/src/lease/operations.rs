//! What leases do to the database.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::driver::columns::{answers, batch_index, flag_rows, flags, ints, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Acquires one lease.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the lease, as tables store it.
    pub key: String,
    /// Which slot of the key.
    pub slot: i64,
    /// Random number of this acquisition: repeating the request is then harmless.
    pub acquisition: i64,
    /// Time to live, in microseconds.
    pub ttl: i64,
    /// Minimum hold, in microseconds.
    pub hold: i64,
    /// Who acquires it.
    pub owner: String,
    /// What readers find.
    pub data: String,
}

/// The answer to an [`Acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It was acquired, with this token.
    Granted(i64),
    /// Another holds it, for at most this many microseconds unless it renews.
    Held(i64),
}

/// Renews one lease, of one or several slots.
#[derive(Clone, Debug)]
pub struct Renew {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the lease.
    pub key: String,
    /// The slots that were acquired together.
    pub slots: Arc<[i64]>,
    /// The holder's token.
    pub fence: i64,
    /// Time to live from now on, in microseconds.
    pub ttl: i64,
}

/// Releases one lease, of one or several slots.
#[derive(Clone, Debug)]
pub struct Release {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the lease.
    pub key: String,
    /// The slots that were acquired together.
    pub slots: Arc<[i64]>,
    /// The holder's token.
    pub fence: i64,
}

/// Reads who holds one lease.
#[derive(Clone, Debug)]
pub struct Peek {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the lease.
    pub key: String,
    /// Which slot of the key.
    pub slot: i64,
}

/// The answer to a [`Peek`] of a lease that is not free; times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Who holds it.
    pub owner: String,
    /// What the holder left for readers.
    pub data: String,
    /// The holder's token.
    pub fence: i64,
    /// How long it has been held.
    pub age: i64,
    /// How long it is still held if it is not renewed.
    pub remaining: i64,
    /// Whether it was released, and is only kept from others until its minimum hold ends.
    pub released: bool,
}

/// Checks one holder inside a transaction; a batch of one.
#[derive(Clone, Debug)]
pub struct Check {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the lease.
    pub key: String,
    /// The slots that were acquired together.
    pub slots: Arc<[i64]>,
    /// The holder's token.
    pub fence: i64,
}

impl Operation for Acquire {
    type Output = Acquired;

    const STATEMENT: Statement = Statement {
        name: "lease.acquire",
        sql: include_str!("acquire.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Texts,
        ],
        columns: &[Type::Int, Type::Int, Type::Int],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "lease.acquire_one",
        sql: include_str!("acquire_one.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
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
            ints(batch, |one| one.slot),
            ints(batch, |one| one.acquisition),
            ints(batch, |one| one.ttl),
            ints(batch, |one| one.hold),
            texts(batch, |one| &one.owner),
            texts(batch, |one| &one.data),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Acquired>, Failure> {
        let mut answers = vec![None; batch.len()];
        for mut row in rows {
            let at = batch_index(&mut row, batch.len())?;
            answers[at] = Some(match row.maybe_int(1)? {
                Some(fence) => Acquired::Granted(fence),
                None => Acquired::Held(row.int(2)?),
            });
        }
        // A request that was not the first for its slot in the batch has no row: the slot is held by whoever holds it
        // after the first.
        let mut firsts = FxHashMap::default();
        if answers.contains(&None) {
            for (one, answer) in batch.iter().zip(&answers) {
                let left = match answer {
                    Some(Acquired::Granted(_)) => one.ttl,
                    Some(Acquired::Held(left)) => *left,
                    None => continue,
                };
                firsts.insert((&one.namespace, &one.key, one.slot), left);
            }
        }
        let later = |one: &Self| {
            let left = firsts.get(&(&one.namespace, &one.key, one.slot)).copied();
            Acquired::Held(left.unwrap_or(one.ttl))
        };
        let answers = answers.into_iter().zip(batch);
        Ok(answers
            .map(|(answer, one)| answer.unwrap_or_else(|| later(one)))
            .collect())
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let mut seen = std::collections::HashSet::new();
        let mut rows = Rows::new();
        for (n, one) in (1..).zip(batch) {
            if seen.insert((&one.namespace, &one.key, one.slot)) {
                let (fence, held_for) = match model.acquire_lease(one) {
                    Acquired::Granted(fence) => (Value::Int(fence), 0),
                    Acquired::Held(left) => (Value::Null(Type::Int), left),
                };
                rows.push(Row(vec![Value::Int(n), fence, Value::Int(held_for)]));
            }
        }
        Some(rows)
    }
}

impl Operation for Renew {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "lease.renew",
        sql: include_str!("renew.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints, Type::Ints, Type::Ints],
        columns: &[Type::Int, Type::Bool],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "lease.renew_one",
        sql: include_str!("renew_one.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Int, Type::Int],
        columns: Self::STATEMENT.columns,
    });

    fn is_simple(batch: &[Self]) -> bool {
        matches!(batch, [one] if one.slots.len() == 1)
    }

    fn params(batch: &[Self]) -> Vec<Value> {
        let each = each(batch, |one| &one.slots);
        vec![
            texts(&each, |(one, _)| &one.namespace),
            texts(&each, |(one, _)| &one.key),
            ints(&each, |(_, slot)| *slot),
            ints(&each, |(one, _)| one.fence),
            ints(&each, |(one, _)| one.ttl),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        all(batch, |one| &one.slots, rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let each = each(batch, |one| &one.slots);
        Some(flag_rows(&each, |(one, slot)| {
            model.renew_lease(one, *slot)
        }))
    }
}

impl Operation for Release {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "lease.release",
        sql: include_str!("release.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints, Type::Ints],
        columns: &[Type::Int, Type::Bool],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "lease.release_one",
        sql: include_str!("release_one.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Int],
        columns: Self::STATEMENT.columns,
    });

    fn is_simple(batch: &[Self]) -> bool {
        matches!(batch, [one] if one.slots.len() == 1)
    }

    fn params(batch: &[Self]) -> Vec<Value> {
        let each = each(batch, |one| &one.slots);
        vec![
            texts(&each, |(one, _)| &one.namespace),
            texts(&each, |(one, _)| &one.key),
            ints(&each, |(_, slot)| *slot),
            ints(&each, |(one, _)| one.fence),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        all(batch, |one| &one.slots, rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let each = each(batch, |one| &one.slots);
        Some(flag_rows(&each, |(one, slot)| {
            model.release_lease(one, *slot)
        }))
    }
}

impl Operation for Peek {
    type Output = Option<Peeked>;

    const STATEMENT: Statement = Statement {
        name: "lease.peek",
        sql: include_str!("peek.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints],
        columns: &[
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.slot),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Option<Peeked>>, Failure> {
        answers(batch.len(), rows, |row| {
            Ok(Peeked {
                owner: row.text(1)?,
                data: row.text(2)?,
                fence: row.int(3)?,
                age: row.int(4)?,
                remaining: row.int(5)?,
                released: row.bool(6)?,
            })
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let rows = (1..).zip(batch).filter_map(|(n, one)| {
            let held = model.peek_lease(&one.namespace, &one.key, one.slot)?;
            Some(Row(vec![
                Value::Int(n),
                Value::Text(held.owner),
                Value::Text(held.data),
                Value::Int(held.fence),
                Value::Int(held.age),
                Value::Int(held.remaining),
                Value::Bool(held.released),
            ]))
        });
        Some(rows.collect())
    }
}

impl Operation for Check {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "lease.check",
        sql: include_str!("check.sql"),
        params: &[Type::Text, Type::Text, Type::Ints, Type::Int],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|one| {
                [
                    Value::Text(one.namespace.clone()),
                    Value::Text(one.key.clone()),
                    Value::Ints(one.slots.to_vec()),
                    Value::Int(one.fence),
                ]
            })
            .collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        let held = |one: &Self| rows.len() == one.slots.len();
        Ok(batch.iter().map(held).collect())
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let held = one.slots.iter().filter(|slot| {
            let held = model.peek_lease(&one.namespace, &one.key, **slot);
            held.is_some_and(|held| held.fence == one.fence && !held.released)
        });
        Some(held.map(|_| Row(vec![Value::Bool(true)])).collect())
    }
}

/// The slots of a batch, each with its request.
fn each<O>(batch: &[O], slots: impl Fn(&O) -> &Arc<[i64]>) -> Vec<(&O, i64)> {
    let of = |one| slots(one).iter().map(move |slot| (one, *slot));
    batch.iter().flat_map(of).collect()
}

/// Whether the flags of all slots of a request are set.
fn all<O>(
    batch: &[O],
    slots: impl Fn(&O) -> &Arc<[i64]>,
    rows: Rows,
) -> Result<Vec<bool>, Failure> {
    let counts: Vec<_> = batch.iter().map(|one| slots(one).len()).collect();
    let mut each = flags(counts.iter().sum(), rows)?.into_iter();
    let all = |count: usize| each.by_ref().take(count).filter(|set| !set).count() == 0;
    Ok(counts.into_iter().map(all).collect())
}
