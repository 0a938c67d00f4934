//! What is done to the answers of the database.

use std::fmt;

use super::hex;
use crate::driver::columns::{answers, flags, ints, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::{NamespacedKey, SweepResult, decode_keys, key_params, key_row};

/// Reads what was answered to a request.
#[derive(Clone, Debug)]
pub struct RecallAnswer {
    /// Namespace of the backend.
    pub namespace: String,
    /// The key.
    pub key: String,
}

/// What was answered.
#[derive(Clone, PartialEq, Eq)]
pub struct Recalled {
    /// The SHA-256 of the request.
    pub fingerprint: Vec<u8>,
    /// The answer.
    pub answer: Vec<u8>,
}

/// Without what belongs to the program.
impl fmt::Debug for Recalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recalled({} bytes)", self.answer.len())
    }
}

/// Records an answer.
#[derive(Clone)]
pub struct RecordAnswer {
    /// Namespace of the backend.
    pub namespace: String,
    /// The key.
    pub key: String,
    /// The token of who answers.
    pub fence: i64,
    /// The SHA-256 of the request.
    pub fingerprint: Vec<u8>,
    /// The answer.
    pub answer: Vec<u8>,
    /// For how long it is kept, in microseconds.
    pub retention: i64,
}

/// Without what belongs to the program.
impl fmt::Debug for RecordAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordAnswer({:?})", self.key)
    }
}

/// Records an answer in the transaction of its effect, while the lease of its key is held; a batch of one.
#[derive(Clone, Debug)]
pub struct CompleteAnswer {
    /// The key of the lease.
    pub lease: String,
    /// Its slot.
    pub slot: i64,
    /// The answer, with the namespace and the token of the lease.
    pub record: RecordAnswer,
}

/// Deletes answers whose time is over, in a part of the table; a batch of one.
#[derive(Clone, Debug)]
pub struct SweepAnswers {
    /// Namespace and key that the part comes after.
    pub after: NamespacedKey,
    /// How many rows are read.
    pub most: i64,
}

impl Operation for RecallAnswer {
    type Output = Option<Recalled>;

    const STATEMENT: Statement = Statement {
        name: "idempotency.recall",
        sql: include_str!("recall.sql"),
        params: &[Type::Texts, Type::Texts],
        columns: &[Type::Int, Type::Bytes, Type::Bytes],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Option<Recalled>>, Failure> {
        answers(batch.len(), rows, |row| {
            Ok(Recalled {
                fingerprint: row.bytes(1)?,
                answer: row.bytes(2)?,
            })
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let rows = (1..).zip(batch).filter_map(|(n, one)| {
            let recalled = model.answers.recall(&one.namespace, &one.key, model.now)?;
            Some(Row(vec![
                Value::Int(n),
                Value::Bytes(recalled.fingerprint),
                Value::Bytes(recalled.answer),
            ]))
        });
        Some(rows.collect())
    }
}

impl Operation for RecordAnswer {
    /// Whether the answer is that of the request.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "idempotency.record",
        sql: include_str!("record.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Texts,
            Type::Texts,
            Type::Ints,
        ],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        // There are no arrays of bytes.
        let hexed = |field: fn(&Self) -> &[u8]| {
            Value::Texts(batch.iter().map(|one| hex(field(one))).collect())
        };
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.key),
            ints(batch, |one| one.fence),
            hexed(|one| &one.fingerprint),
            hexed(|one| &one.answer),
            ints(batch, |one| one.retention),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let recorded = model.answers.record(batch, model.now).into_iter();
        let rows = (1..).zip(recorded);
        let rows = rows.map(|(n, own)| Row(vec![Value::Int(n), Value::Bool(own)]));
        Some(rows.collect())
    }
}

impl Operation for CompleteAnswer {
    /// Whether the lease is held, and the answer is that of the request.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "idempotency.complete",
        sql: include_str!("complete.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Bytes,
            Type::Bytes,
            Type::Int,
        ],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            [
                Value::Text(one.record.namespace.clone()),
                Value::Text(one.lease.clone()),
                Value::Int(one.slot),
                Value::Int(one.record.fence),
                Value::Text(one.record.key.clone()),
                Value::Bytes(one.record.fingerprint.clone()),
                Value::Bytes(one.record.answer.clone()),
                Value::Int(one.record.retention),
            ]
        };
        batch.iter().take(1).flat_map(of).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let record = &one.record;
        let held = model.peek_lease(&record.namespace, &one.lease, one.slot);
        let held = held.is_some_and(|held| held.fence == record.fence && !held.released);
        let now = model.now;
        let recorded = held && model.answers.record(std::slice::from_ref(record), now) == [true];
        Some(vec![Row(vec![Value::Bool(recorded)])])
    }
}

impl Operation for SweepAnswers {
    type Output = SweepResult<NamespacedKey>;

    const STATEMENT: Statement = Statement {
        name: "idempotency.sweep",
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
        let (deleted, part) = model.answers.sweep(&one.after, one.most, model.now);
        Some(vec![key_row(deleted, &part)])
    }
}
