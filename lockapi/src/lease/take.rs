//! Taking permits: several slots of a key at once, and several takers in one statement.

use std::sync::Arc;

use crate::driver::columns::{all_answers, ints, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Takes some of the slots of a key that are numbered from 1.
#[derive(Clone, Debug)]
pub struct Take {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the semaphore, as tables store it.
    pub key: String,
    /// The largest slot.
    pub permits: i64,
    /// How many slots: all of them or none.
    pub count: i64,
    /// Random number of this acquisition: repeating the request is then harmless.
    pub acquisition: i64,
    /// Time to live, in microseconds.
    pub ttl: i64,
    /// Minimum hold, in microseconds.
    pub hold: i64,
    /// Who takes them.
    pub owner: String,
    /// What readers find.
    pub data: String,
}

impl Take {
    pub(super) fn same_key(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.key == other.key
    }
}

/// The answer to a [`Take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// These slots were acquired, all with this token.
    Granted {
        /// The token.
        fence: i64,
        /// The slots.
        slots: Arc<[i64]>,
    },
    /// There are not enough.
    Refused {
        /// Some had to be created first: they are free now.
        again: bool,
        /// The first that others hold is held for at most this many microseconds unless it is
        /// renewed.
        held_for: i64,
    },
}

impl Operation for Take {
    type Output = Taken;

    const STATEMENT: Statement = Statement {
        name: "lease.take",
        sql: include_str!("take.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Texts,
        ],
        columns: &[Type::Int, Type::Int, Type::Ints, Type::Bool, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.permits),
            ints(batch, |one| one.count),
            ints(batch, |one| one.acquisition),
            ints(batch, |one| one.ttl),
            ints(batch, |one| one.hold),
            texts(batch, |one| &one.owner),
            texts(batch, |one| &one.data),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Taken>, Failure> {
        all_answers(batch.len(), rows, |row| {
            Ok(match row.maybe_int(1)? {
                Some(fence) => Taken::Granted {
                    fence,
                    slots: row.ints(2)?.into(),
                },
                None => Taken::Refused {
                    again: row.bool(3)?,
                    held_for: row.int(4)?,
                },
            })
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let rows = (1..).zip(model.take_slots(batch)).map(|(n, taken)| {
            let (fence, slots, again, held_for) = match taken {
                Taken::Granted { fence, slots } => (
                    Value::Int(fence),
                    Value::Ints(slots.to_vec()),
                    false,
                    Value::Null(Type::Int),
                ),
                Taken::Refused { again, held_for } => (
                    Value::Null(Type::Int),
                    Value::Null(Type::Ints),
                    again,
                    Value::Int(held_for),
                ),
            };
            Row(vec![
                Value::Int(n),
                fence,
                slots,
                Value::Bool(again),
                held_for,
            ])
        });
        Some(rows.collect())
    }
}
