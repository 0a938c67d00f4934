//! Batches as columns, and rows as the answers to a batch.

use super::value::{Row, Rows, Value};
use crate::error::Failure;

pub(crate) fn texts<O>(batch: &[O], field: impl Fn(&O) -> &str) -> Value {
    Value::Texts(batch.iter().map(|one| field(one).to_owned()).collect())
}

pub(crate) fn ints<O>(batch: &[O], field: impl Fn(&O) -> i64) -> Value {
    Value::Ints(batch.iter().map(field).collect())
}

/// Which request of the batch a row answers; its first column counts from 1.
pub(crate) fn place(row: &mut Row, requests: usize) -> Result<usize, Failure> {
    usize::try_from(row.int(0)? - 1)
        .ok()
        .filter(|at| *at < requests)
        .ok_or_else(|| Failure::corrupt("a row answers no request of the batch"))
}

pub(crate) fn flags(requests: usize, rows: Rows) -> Result<Vec<bool>, Failure> {
    let mut answers = vec![false; requests];
    for mut row in rows {
        let at = place(&mut row, requests)?;
        answers[at] = row.bool(1)?;
    }
    Ok(answers)
}

pub(crate) fn flag_rows<O>(batch: &[O], mut flag: impl FnMut(&O) -> bool) -> Rows {
    (1..)
        .zip(batch)
        .map(|(n, one)| Row(vec![Value::Int(n), Value::Bool(flag(one))]))
        .collect()
}
