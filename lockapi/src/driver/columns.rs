//! Batches as columns, and rows as the answers to a batch.

use super::value::{Row, Rows, Type, Value};
use crate::error::Failure;

pub(crate) fn texts<O>(batch: &[O], field: impl Fn(&O) -> &str) -> Value {
    Value::Texts(batch.iter().map(|one| field(one).to_owned()).collect())
}

pub(crate) fn ints<O>(batch: &[O], field: impl Fn(&O) -> i64) -> Value {
    Value::Ints(batch.iter().map(field).collect())
}

pub(crate) fn maybe_int(value: Option<i64>) -> Value {
    value.map_or(Value::Null(Type::Int), Value::Int)
}

pub(crate) fn maybe_text(value: Option<&str>) -> Value {
    value.map_or(Value::Null(Type::Text), |text| Value::Text(text.to_owned()))
}

/// Which request of the batch a row answers; its first column counts from 1.
pub(crate) fn place(row: &mut Row, requests: usize) -> Result<usize, Failure> {
    usize::try_from(row.int(0)? - 1)
        .ok()
        .filter(|at| *at < requests)
        .ok_or_else(|| Failure::corrupt("a row answers no request of the batch"))
}

/// What the row of each request says; `None` where it has none.
pub(crate) fn answers<T>(
    requests: usize,
    rows: Rows,
    read: impl Fn(&mut Row) -> Result<T, Failure>,
) -> Result<Vec<Option<T>>, Failure> {
    let mut answers: Vec<_> = (0..requests).map(|_| None).collect();
    for mut row in rows {
        let at = place(&mut row, requests)?;
        answers[at] = Some(read(&mut row)?);
    }
    Ok(answers)
}

/// As [`answers`], where each request has a row.
pub(crate) fn all_answers<T>(
    requests: usize,
    rows: Rows,
    read: impl Fn(&mut Row) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let missing = || Failure::corrupt("a request of the batch has no row");
    let answers = answers(requests, rows, read)?.into_iter();
    answers.map(|one| one.ok_or_else(missing)).collect()
}

pub(crate) fn flags(requests: usize, rows: Rows) -> Result<Vec<bool>, Failure> {
    let answers = answers(requests, rows, |row| row.bool(1))?.into_iter();
    Ok(answers.map(Option::unwrap_or_default).collect())
}

pub(crate) fn flag_rows<O>(batch: &[O], mut flag: impl FnMut(&O) -> bool) -> Rows {
    (1..)
        .zip(batch)
        .map(|(n, one)| Row(vec![Value::Int(n), Value::Bool(flag(one))]))
        .collect()
}
