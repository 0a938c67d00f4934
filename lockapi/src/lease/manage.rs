//! Background operations on leases: releasing abandoned ones, and deleting old rows.

use crate::driver::columns::{flag_rows, flags, ints, maybe_int, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::{SweepResult, decode, key_row};

/// Gives back what an acquisition got although its caller got no answer.
#[derive(Clone, Debug)]
pub struct Abandon {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the lease.
    pub key: String,
    /// The slots that it may have got: from this one …
    pub first: i64,
    /// … to this one.
    pub last: i64,
    /// The number of the acquisition.
    pub acquisition: i64,
    /// The token that its caller got, which stays granted; 0 if there is none.
    pub granted: i64,
}

/// Deletes rows of leases that ended long ago, in a part of the table; a batch of one.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Namespace, key and slot that the part comes after.
    pub after: (String, String, i64),
    /// How many rows are read.
    pub most: i64,
}

impl Operation for Abandon {
    /// Whether there was something to give back.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "lease.abandon",
        sql: include_str!("abandon.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
        ],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.first),
            ints(batch, |one| one.last),
            ints(batch, |one| one.acquisition),
            ints(batch, |one| one.granted),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(flag_rows(batch, |one| model.abandon_lease(one)))
    }
}

impl Operation for Sweep {
    type Output = SweepResult<(String, String, i64)>;

    const STATEMENT: Statement = Statement {
        name: "lease.sweep",
        sql: include_str!("sweep.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Int],
        columns: &[Type::Int, Type::Int, Type::Text, Type::Text, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let (namespace, key, slot) = one.after.clone();
            [
                Value::Text(namespace),
                Value::Text(key),
                Value::Int(slot),
                Value::Int(one.most),
            ]
        };
        batch.iter().take(1).flat_map(of).collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        let most = batch.first().map(|one| one.most);
        let last = |row: &mut Row| Ok((row.text(2)?, row.text(3)?, row.int(4)?));
        decode(most, rows, last)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (deleted, part) = model.sweep_leases(&one.after, one.most);
        let slot = part.last().map(|(.., slot)| *slot);
        let names: Vec<_> = part
            .into_iter()
            .map(|(space, key, _)| (space, key))
            .collect();
        let mut row = key_row(deleted, &names);
        row.0.push(maybe_int(slot));
        Some(vec![row])
    }
}
