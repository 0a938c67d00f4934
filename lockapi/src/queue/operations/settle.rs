//! Completing, failing, returning and extending deliveries.

use std::collections::HashSet;

use crate::driver::columns::{batch_index, ints, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::lease::micros;
use crate::memory::ModelState;
use crate::queue::{MAX_DELAY, MAX_ERROR_BYTES, Outcome, Settled, Ticket};

/// Completes one delivery.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The delivery.
    pub ticket: Ticket,
    /// How long the job is kept in the archive, in microseconds; [`DELETED`] means not at all.
    pub keep: i64,
}

/// Settles one delivery in another way.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The delivery.
    pub ticket: Ticket,
    /// The number of the outcome, as in the statement.
    pub kind: i64,
    /// The time that goes with it, in microseconds.
    pub time: i64,
    /// The error that goes with it; an empty text means none.
    pub error: String,
    /// How long a dead letter is kept, in microseconds; [`FOR_EVER`] means until it is discarded.
    pub keep: i64,
}

/// A completed job is deleted at once.
pub const DELETED: i64 = -1;
/// What is in the archive is deleted by hand.
pub const FOR_EVER: i64 = -1;

/// The kind of an extension.
const EXTEND: i64 = 5;
/// The kind of a completion.
const COMPLETE: i64 = 6;

impl Settle {
    /// For how long the delivery is kept, in microseconds, if it is extended.
    pub(crate) fn extends(&self) -> Option<i64> {
        (self.kind == EXTEND).then_some(self.time)
    }

    /// Completes a delivery, without waiting if its row is locked.
    #[must_use]
    pub fn completion(ack: Ack) -> Self {
        Self {
            ticket: ack.ticket,
            kind: COMPLETE,
            time: 0,
            error: String::new(),
            keep: ack.keep,
        }
    }

    /// `None` for [`Outcome::Ack`], which is an [`Ack`], and the same with a result. A dead letter is kept for `keep`.
    #[must_use]
    pub fn new(ticket: Ticket, outcome: &Outcome, keep: i64) -> Option<Self> {
        let (kind, time, error) = match outcome {
            Outcome::Ack | Outcome::AckWithResult(_) => return None,
            Outcome::Nack { error, after } => (0, micros((*after).min(MAX_DELAY)), short(error)),
            Outcome::Reject { error } => (1, 0, short(error)),
            Outcome::Snooze(time) => (2, micros((*time).min(MAX_DELAY)), String::new()),
            Outcome::Release => (3, 0, String::new()),
            Outcome::Abandon => {
                let error = "the delivery was dropped without an answer";
                (4, 0, error.to_owned())
            }
            Outcome::Extend(time) => (EXTEND, micros(*time), String::new()),
            Outcome::Defer(time) => (7, micros((*time).min(MAX_DELAY)), String::new()),
            Outcome::Interrupt => (8, 0, String::new()),
        };
        Some(Self {
            ticket,
            kind,
            time,
            error,
            keep,
        })
    }
}

/// An error as it can be stored: without NUL, and cut off.
fn short(error: &str) -> String {
    let mut text = error.replace('\0', "\u{fffd}");
    if text.is_empty() {
        "no reason was given".clone_into(&mut text);
    }
    if text.len() > MAX_ERROR_BYTES {
        let mut end = MAX_ERROR_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

impl Operation for Ack {
    /// Whether the delivery was the latest of its job.
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "queue.ack",
        sql: include_str!("ack.sql"),
        params: &[Type::Ints, Type::Ints, Type::Ints],
        columns: &[Type::Ints],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        acks(batch)
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        let mut done = Vec::new();
        for mut row in rows {
            done.extend(row.ints(0)?);
        }
        Ok(acked(batch, done))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let done = model.ack_jobs(batch);
        Some(vec![Row(vec![Value::Ints(done)])])
    }
}

/// The parameters of completions.
pub(super) fn acks(batch: &[Ack]) -> Vec<Value> {
    vec![
        ints(batch, |one| one.ticket.id),
        ints(batch, |one| one.ticket.token),
        ints(batch, |one| one.keep),
    ]
}

/// Which of the completions are among those done, told by their numbers and behind them their tokens;
/// the second for one delivery never is.
pub(super) fn acked(batch: &[Ack], mut done: Vec<i64>) -> Vec<bool> {
    let tokens = done.split_off(done.len() / 2);
    let mut done: HashSet<(i64, i64)> = done.into_iter().zip(tokens).collect();
    batch
        .iter()
        .map(|one| done.remove(&(one.ticket.id, one.ticket.token)))
        .collect()
}

impl Operation for Settle {
    type Output = Settled;

    const STATEMENT: Statement = Statement {
        name: "queue.settle",
        sql: include_str!("settle.sql"),
        params: &[
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Ints,
        ],
        columns: &[Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![
            ints(batch, |one| one.ticket.id),
            ints(batch, |one| one.ticket.token),
            ints(batch, |one| one.kind),
            ints(batch, |one| one.time),
            texts(batch, |one| &one.error),
            ints(batch, |one| one.keep),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Settled>, Failure> {
        // A request that was not the first for its job in the batch has no row.
        let mut answers = vec![Settled::Locked; batch.len()];
        for mut row in rows {
            let at = batch_index(&mut row, batch.len())?;
            answers[at] = match row.int(1)? {
                0 => Settled::Done,
                1 => Settled::Dead,
                2 => Settled::Lost,
                3 => Settled::Locked,
                _ => return Err(Failure::corrupt("an unknown outcome")),
            };
        }
        Ok(answers)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let mut seen = HashSet::new();
        let mut rows = Rows::new();
        for (n, one) in (1..).zip(batch) {
            if seen.insert(one.ticket.id) {
                let settled = match model.jobs.settle(now, one) {
                    Settled::Done => 0,
                    Settled::Dead => 1,
                    Settled::Lost => 2,
                    Settled::Locked => 3,
                };
                rows.push(Row(vec![Value::Int(n), Value::Int(settled)]));
            }
        }
        Some(rows)
    }
}
