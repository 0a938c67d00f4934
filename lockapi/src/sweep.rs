//! What the sweep of a part of a table answers.

use crate::driver::{Row, Rows, Type, Value};
use crate::error::Failure;

/// What was done in a part of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepResult<K> {
    /// How many rows were deleted.
    pub deleted: i64,
    /// The last key that was looked at, unless the table ended before.
    pub last: Option<K>,
}

/// Namespace and key of a row.
pub(crate) type NamespacedKey = (String, String);

/// Reads the one row: how many were deleted, how many were looked at, and the last key.
pub(crate) fn decode<K>(
    most: Option<i64>,
    rows: Rows,
    last: impl Fn(&mut Row) -> Result<K, Failure>,
) -> Result<Vec<SweepResult<K>>, Failure> {
    let read = |mut row: Row| {
        let full = Some(row.int(1)?) >= most;
        Ok(SweepResult {
            deleted: row.int(0)?,
            last: if full { Some(last(&mut row)?) } else { None },
        })
    };
    rows.into_iter().map(read).collect()
}

/// As [`decode`], of a table whose rows have names.
pub(crate) fn decode_keys(
    most: Option<i64>,
    rows: Rows,
) -> Result<Vec<SweepResult<NamespacedKey>>, Failure> {
    decode(most, rows, |row| Ok((row.text(2)?, row.text(3)?)))
}

/// The parameters of a part of a table whose rows have names.
pub(crate) fn key_params(after: &NamespacedKey, most: i64) -> [Value; 3] {
    let (namespace, key) = after.clone();
    [Value::Text(namespace), Value::Text(key), Value::Int(most)]
}

/// The row that [`decode_keys`] reads.
pub(crate) fn key_row(deleted: i64, part: &[NamespacedKey]) -> Row {
    let text = |value: Option<String>| value.map_or(Value::Null(Type::Text), Value::Text);
    let (namespace, key) = part.last().cloned().unzip();
    Row(vec![
        Value::Int(deleted),
        Value::Int(count(part)),
        text(namespace),
        text(key),
    ])
}

pub(crate) fn count<K>(part: &[K]) -> i64 {
    i64::try_from(part.len()).unwrap_or(i64::MAX)
}
