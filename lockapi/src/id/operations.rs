//! What ids do to the database.

use crate::driver::columns::{all_answers, batch_index, flag_rows, flags, ints, maybe_int, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Claims one worker number; times in milliseconds since 1970 unless said otherwise.
#[derive(Clone, Debug)]
pub struct ClaimWorker {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the ids.
    pub name: String,
    /// Bits of worker.
    pub worker_bits: i64,
    /// Bits of sequence.
    pub sequence_bits: i64,
    /// What ids count from.
    pub epoch: i64,
    /// Random number of this claim, not 0.
    pub token: i64,
    /// How long it is kept, in microseconds.
    pub ttl: i64,
    /// How far ahead of the time the floor is stored, in milliseconds.
    pub reserve: i64,
    /// The earliest time that the claimer can use.
    pub least: i64,
    /// The owner of the claim.
    pub owner: String,
}

/// The answer to a [`ClaimWorker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimedWorker {
    /// The number is the claimer's.
    Granted {
        /// The number.
        worker: i64,
        /// Ids may be of this time and later, in milliseconds since 1970 …
        start: i64,
        /// … and earlier than this.
        floor: i64,
        /// The server's clock, in microseconds since 1970.
        now: i64,
    },
    /// All numbers are taken.
    Full,
    /// The epoch is in the future; the server's clock, in microseconds since 1970.
    TooEarly(i64),
    /// The name has another layout: bits of worker, bits of sequence, epoch.
    Other(i64, i64, i64),
    /// Another created the same row at the same time: repeat the request.
    Busy,
}

/// Renews one worker number.
#[derive(Clone, Debug)]
pub struct RenewWorker {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the ids.
    pub name: String,
    /// The number.
    pub worker: i64,
    /// The number of the claim.
    pub token: i64,
    /// How long it is kept, in microseconds.
    pub ttl: i64,
    /// How far ahead of the time the floor is stored, in milliseconds.
    pub reserve: i64,
    /// The time that the owner has reached, in milliseconds since 1970.
    pub least: i64,
}

/// The answer to a [`RenewWorker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewedWorker {
    /// Ids may be of times below this, in milliseconds since 1970; `None` when another has the
    /// number.
    pub floor: Option<i64>,
    /// The server's clock, in microseconds since 1970.
    pub now: i64,
}

/// Gives one worker number back.
#[derive(Clone, Debug)]
pub struct ReleaseWorker {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the ids.
    pub name: String,
    /// The number.
    pub worker: i64,
    /// The number of the claim.
    pub token: i64,
    /// No id was generated of this time or later, in milliseconds since 1970.
    pub floor: i64,
}

/// Takes a block of consecutive ids.
#[derive(Clone, Debug)]
pub struct NextBlock {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the ids.
    pub name: String,
    /// How many.
    pub size: i64,
}

impl Operation for ClaimWorker {
    type Output = ClaimedWorker;

    const STATEMENT: Statement = Statement {
        name: "id.claim",
        sql: include_str!("claim.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Bool,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.name),
            ints(batch, |one| one.worker_bits),
            ints(batch, |one| one.sequence_bits),
            ints(batch, |one| one.epoch),
            ints(batch, |one| one.token),
            ints(batch, |one| one.ttl),
            ints(batch, |one| one.reserve),
            ints(batch, |one| one.least),
            texts(batch, |one| &one.owner),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<ClaimedWorker>, Failure> {
        let mut answers = vec![ClaimedWorker::Busy; batch.len()];
        for mut row in rows {
            let at = batch_index(&mut row, batch.len())?;
            let one = &batch[at];
            let (worker, now, is_full) = (row.maybe_int(1)?, row.int(3)?, row.bool(4)?);
            let stored = match row.maybe_int(5)? {
                Some(bits) => Some((bits, row.int(6)?, row.int(7)?)),
                None => None,
            };
            answers[at] = match (worker, stored) {
                (Some(worker), _) => ClaimedWorker::Granted {
                    worker,
                    start: row.int(2)?,
                    floor: row.int(8)?,
                    now,
                },
                (None, Some(other)) if other != (one.worker_bits, one.sequence_bits, one.epoch) => {
                    ClaimedWorker::Other(other.0, other.1, other.2)
                }
                _ if one.epoch.saturating_mul(1000) > now => ClaimedWorker::TooEarly(now),
                _ if is_full => ClaimedWorker::Full,
                _ => ClaimedWorker::Busy,
            };
        }
        Ok(answers)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let rows = (1..).zip(batch).map(|(n, one)| {
            let layout = model.ids.layout(now, one);
            let claimed = (layout == Some((one.worker_bits, one.sequence_bits, one.epoch))
                && one.epoch.saturating_mul(1000) <= now)
                .then(|| model.ids.claim(now, model.epoch(), one));
            let claimed = claimed.map(|claimed| claimed.map(super::Allocation::columns));
            let [worker, start, floor] = claimed.flatten().unwrap_or_default();
            Row(vec![
                Value::Int(n),
                maybe_int(worker),
                maybe_int(start),
                Value::Int(now),
                Value::Bool(claimed == Some(None)),
                maybe_int(layout.map(|it| it.0)),
                maybe_int(layout.map(|it| it.1)),
                maybe_int(layout.map(|it| it.2)),
                maybe_int(floor),
            ])
        });
        Some(rows.collect())
    }
}

impl Operation for RenewWorker {
    type Output = RenewedWorker;

    const STATEMENT: Statement = Statement {
        name: "id.renew",
        sql: include_str!("renew.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
        ],
        columns: &[Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.name),
            ints(batch, |one| one.worker),
            ints(batch, |one| one.token),
            ints(batch, |one| one.ttl),
            ints(batch, |one| one.reserve),
            ints(batch, |one| one.least),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<RenewedWorker>, Failure> {
        all_answers(batch.len(), rows, |row| {
            Ok(RenewedWorker {
                floor: row.maybe_int(1)?,
                now: row.int(2)?,
            })
        })
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let rows = (1..).zip(batch).map(|(n, one)| {
            let floor = maybe_int(model.ids.renew(now, model.epoch().begun_at, one));
            Row(vec![Value::Int(n), floor, Value::Int(now)])
        });
        Some(rows.collect())
    }
}

impl Operation for ReleaseWorker {
    /// Whether the claim was still there.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "id.release",
        sql: include_str!("release.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints, Type::Ints, Type::Ints],
        columns: &[Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.name),
            ints(batch, |one| one.worker),
            ints(batch, |one| one.token),
            ints(batch, |one| one.floor),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        flags(batch.len(), rows)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let (now, begun_at) = (model.now, model.epoch().begun_at);
        Some(flag_rows(batch, |one| {
            model.ids.release(now, begun_at, one)
        }))
    }
}

impl Operation for NextBlock {
    /// The first of the ids; `None` when the numbers have run out.
    type Output = Option<i64>;

    const STATEMENT: Statement = Statement {
        name: "id.block",
        sql: include_str!("block.sql"),
        params: &[Type::Texts, Type::Texts, Type::Ints],
        columns: &[Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.name),
            ints(batch, |one| one.size),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Option<i64>>, Failure> {
        all_answers(batch.len(), rows, |row| row.maybe_int(1))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let firsts = model.ids.blocks(model.epoch(), batch);
        let rows = (1..)
            .zip(firsts)
            .map(|(n, first)| Row(vec![Value::Int(n), maybe_int(first)]));
        Some(rows.collect())
    }
}
