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
pub(crate) fn batch_index(row: &mut Row, requests: usize) -> Result<usize, Failure> {
    let place = row.int(0)?.checked_sub(1);
    place
        .and_then(|at| usize::try_from(at).ok())
        .filter(|at| *at < requests)
        .ok_or_else(|| Failure::corrupt("a row of the answer belongs to no request of the batch"))
}

/// What the row of each request says; `None` where it has none.
pub(crate) fn answers<T>(
    requests: usize,
    rows: Rows,
    read: impl Fn(&mut Row) -> Result<T, Failure>,
) -> Result<Vec<Option<T>>, Failure> {
    let mut answers: Vec<_> = (0..requests).map(|_| None).collect();
    for mut row in rows {
        let at = batch_index(&mut row, requests)?;
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
    let missing = || Failure::corrupt("a request of the batch has no row in the answer");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_of_the_batch_are_corrupt() {
        for number in [i64::MIN, -1, 0, 3, i64::MAX] {
            let rows = vec![Row(vec![Value::Int(number), Value::Bool(true)])];
            assert!(flags(2, rows).is_err(), "{number}");
        }
        let rows = vec![Row(vec![Value::Int(2), Value::Bool(true)])];
        assert_eq!(flags(2, rows).unwrap(), [false, true]);
    }
}
