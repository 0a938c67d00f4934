//! Reading the dead letters of a queue; batches of one.

use serde_json::json;

use super::Name;
use crate::driver::columns::maybe_text;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::Headers;

/// Reads dead letters.
#[derive(Clone, Debug)]
pub struct ReadDeadLetters {
    /// The queue.
    pub name: Name,
    /// Those with larger numbers.
    pub after: i64,
    /// How many at most.
    pub most: i64,
}

/// A dead letter; times in microseconds since 1970.
#[derive(Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// The number of the job.
    pub id: i64,
    /// What kind of job it was.
    pub name: String,
    /// Its payload, as JSON.
    pub payload: String,
    /// Why its last attempt failed.
    pub error: String,
    /// How often it was delivered.
    pub attempt: i64,
    /// Who had it last.
    pub worker: String,
    /// When it was pushed.
    pub created_at: i64,
    /// When it failed for good.
    pub failed_at: i64,
    /// What became of its last attempts.
    pub errors: Vec<FailedAttempt>,
    /// Its headers.
    pub headers: Headers,
}

/// An attempt that failed, as the table has it; the time in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Which attempt it was.
    pub attempt: i64,
    /// When it failed.
    pub at: i64,
    /// Who had the job.
    pub worker: Option<String>,
    /// Why it failed, at most 1,000 characters.
    pub error: String,
}

/// Without the payload.
impl std::fmt::Debug for DeadLetterRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterRow")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Operation for ReadDeadLetters {
    type Output = Vec<DeadLetterRow>;

    const STATEMENT: Statement = Statement {
        name: "queue.dead_letters",
        sql: include_str!("dead_letters.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Int],
        columns: &[
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.extend([Value::Int(one.after), Value::Int(one.most)]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<DeadLetterRow>>, Failure> {
        let read = |mut row: Row| {
            Ok(DeadLetterRow {
                id: row.int(0)?,
                name: row.text(1)?,
                payload: row.text(2)?,
                error: row.maybe_text(3)?.unwrap_or_default(),
                attempt: row.int(4)?,
                worker: row.maybe_text(5)?.unwrap_or_default(),
                created_at: row.int(6)?,
                failed_at: row.int(7)?,
                errors: attempts(row.maybe_text(8)?)?,
                headers: Headers::read(row.maybe_text(9)?.as_deref()),
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let row = |row: DeadLetterRow| {
            Row(vec![
                Value::Int(row.id),
                Value::Text(row.name),
                Value::Text(row.payload),
                Value::Text(row.error),
                Value::Int(row.attempt),
                Value::Text(row.worker),
                Value::Int(row.created_at),
                Value::Int(row.failed_at),
                Value::Text(written(&row.errors)),
                maybe_text(row.headers.column().as_deref()),
            ])
        };
        let dead = model.jobs.dead_letters(batch.first()?);
        Some(dead.into_iter().map(row).collect())
    }
}

/// The attempts of a job, as its row has them.
pub(crate) fn attempts(text: Option<String>) -> Result<Vec<FailedAttempt>, Failure> {
    let text = text.unwrap_or_else(|| "[]".to_owned());
    let attempts: Option<Vec<_>> = serde_json::from_str(&text)
        .ok()
        .and_then(|rows: Vec<serde_json::Value>| rows.iter().map(attempt).collect());
    attempts.ok_or_else(|| Failure::corrupt("the attempts of a job cannot be read"))
}

fn attempt(row: &serde_json::Value) -> Option<FailedAttempt> {
    Some(FailedAttempt {
        attempt: row.get("attempt")?.as_i64()?,
        at: row.get("at")?.as_i64()?,
        worker: row.get("worker")?.as_str().map(str::to_owned),
        error: row.get("error")?.as_str()?.to_owned(),
    })
}

fn written(attempts: &[FailedAttempt]) -> String {
    let row = |it: &FailedAttempt| json!({ "attempt": it.attempt, "at": it.at, "worker": it.worker, "error": it.error });
    let rows: serde_json::Value = attempts.iter().map(row).collect();
    rows.to_string()
}
