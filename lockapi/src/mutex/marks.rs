//! Deleting tokens that were checked in and that no stale holder can be behind any more.

use crate::driver::{Operation, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::{SweepResult, decode_keys, key_params, key_row};

/// Goes through a part of the tokens that were checked in; a batch of one.
#[derive(Clone, Debug)]
pub struct SweepMarks {
    /// Namespace and key that the part comes after.
    pub after: (String, String),
    /// How many rows are read.
    pub most: i64,
}

impl Operation for SweepMarks {
    type Output = SweepResult<(String, String)>;

    const STATEMENT: Statement = Statement {
        name: "mutex.sweep_marks",
        sql: include_str!("sweep_marks.sql"),
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
        let (deleted, part) = model.sweep_marks(&one.after, one.most);
        Some(vec![key_row(deleted, &part)])
    }
}
