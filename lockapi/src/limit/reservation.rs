//! Ending reservations.

use crate::driver::columns::{flag_rows, flags, ints, texts};
use crate::driver::{Operation, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// How many reservations of a key are ended at once.
pub(crate) const PART: usize = 1000;

/// Ends one reservation; not to be repeated.
#[derive(Clone, Debug)]
pub struct EndReservation {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit.
    pub key: String,
    /// Its random number.
    pub id: i64,
    /// What is given back of it: nanoseconds, or permits of a window.
    pub price: i64,
}

/// Ends reservations of one key that have expired, a bounded number of them, and moves its times back as far as the
/// clock was set back.
#[derive(Clone, Debug)]
pub struct Expire {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the limit.
    pub key: String,
}

impl Operation for EndReservation {
    /// Whether it was there and had not expired.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "limit.end_reservation",
        sql: include_str!("end_reservation.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints, Type::Ints],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.id),
            ints(batch, |one| one.price),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (limits, now) = model.limits();
        let mut ended = limits.end_reservation(batch, now).into_iter();
        Some(flag_rows(batch, |_| ended.next().unwrap_or(false)))
    }
}

impl Operation for Expire {
    /// Always true.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "limit.expire",
        sql: include_str!("expire.sql"),
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
        let (limits, now) = model.limits();
        let mut seen = std::collections::HashSet::new();
        let expire = |one: &Self| {
            if seen.insert((one.namespace.clone(), one.key.clone())) {
                limits.expire(one, now);
            }
            true
        };
        Some(flag_rows(batch, expire))
    }
}
