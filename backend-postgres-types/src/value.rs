//! Values of statements as parameters, and rows of answers.

use lockapi::Failure;
use lockapi::driver::{Row, Rows, Statement, Type, Value};
use lockapi::versioned::Outcome;
use tokio_postgres::types::{FromSql, ToSql, Type as Native};
use tokio_postgres::{Error as PgError, Row as PgRow};

/// A parameter.
pub type Param = Box<dyn ToSql + Sync + Send>;

/// The parameter for a value.
#[must_use]
pub fn param(value: Value) -> Param {
    match value {
        Value::Null(Type::Bool) => Box::new(None::<bool>),
        Value::Null(Type::Int) => Box::new(None::<i64>),
        Value::Null(Type::Text) => Box::new(None::<String>),
        Value::Null(Type::Bytes) => Box::new(None::<Vec<u8>>),
        Value::Null(Type::Bools) => Box::new(None::<Vec<bool>>),
        Value::Null(Type::Ints) => Box::new(None::<Vec<i64>>),
        Value::Null(Type::Texts) => Box::new(None::<Vec<String>>),
        Value::Bool(value) => Box::new(value),
        Value::Int(value) => Box::new(value),
        Value::Text(value) => Box::new(value),
        Value::Bytes(value) => Box::new(value),
        Value::Bools(values) => Box::new(values),
        Value::Ints(values) => Box::new(values),
        Value::Texts(values) => Box::new(values),
    }
}

/// The type of a parameter or column.
#[must_use]
pub fn native(of: Type) -> Native {
    match of {
        Type::Bool => Native::BOOL,
        Type::Int => Native::INT8,
        Type::Text => Native::TEXT,
        Type::Bytes => Native::BYTEA,
        Type::Bools => Native::BOOL_ARRAY,
        Type::Ints => Native::INT8_ARRAY,
        Type::Texts => Native::TEXT_ARRAY,
    }
}

fn row(statement: &Statement, row: &PgRow) -> Result<Row, Failure> {
    let found = row.columns().iter().map(|column| column.type_().oid());
    statement.check_columns(found.map(Some))?;
    let columns = statement.columns.iter().enumerate();
    let values: Result<_, PgError> = columns.map(|(at, of)| column(row, at, *of)).collect();
    let values =
        values.map_err(|error| Failure::corrupt(format!("{}: {error}", statement.name)))?;
    Ok(Row(values))
}

fn column(row: &PgRow, at: usize, of: Type) -> Result<Value, PgError> {
    match of {
        Type::Bool => get(row, at, of, Value::Bool),
        Type::Int => get(row, at, of, Value::Int),
        Type::Text => get(row, at, of, Value::Text),
        Type::Bytes => get(row, at, of, Value::Bytes),
        Type::Bools => get(row, at, of, Value::Bools),
        Type::Ints => get(row, at, of, Value::Ints),
        Type::Texts => get(row, at, of, Value::Texts),
    }
}

fn get<'a, T: FromSql<'a>>(
    row: &'a PgRow,
    at: usize,
    of: Type,
    wrap: fn(T) -> Value,
) -> Result<Value, PgError> {
    let value: Option<T> = row.try_get(at)?;
    Ok(value.map_or(Value::Null(of), wrap))
}

/// The rows that answer a statement.
///
/// # Errors
/// What the server or the connection has reported; `Corrupt` for columns that the statement does not have.
pub fn decode(statement: &Statement, rows: Result<Vec<PgRow>, PgError>) -> Result<Rows, Failure> {
    let rows = rows.map_err(crate::failed)?;
    rows.iter().map(|found| row(statement, found)).collect()
}

/// A value of the program, and its type at the server.
pub type Typed<'t> = (Box<dyn ToSql + Sync + Send + 't>, Native);

/// The values as parameters of `query_typed`.
#[must_use]
pub fn typed<'v>(values: &'v [Typed<'_>]) -> Vec<(&'v (dyn ToSql + Sync), Native)> {
    let values = values.iter();
    values
        .map(|(value, of)| (&**value as _, of.clone()))
        .collect()
}

/// What an update of a versioned row has done, that was seen with version `seen`.
///
/// # Errors
/// `Corrupt` for columns of other types, and versions that cannot be.
pub fn outcome(rows: &[PgRow], seen: i64, operation: &'static str) -> lockapi::Result<Outcome> {
    let Some(row) = rows.first() else {
        return Ok(Outcome::Gone);
    };
    match (row.try_get(0), row.try_get(1)) {
        (Ok(found), Ok(written)) => Outcome::of(seen, found, written),
        (Err(error), _) | (_, Err(error)) => {
            Err(Failure::corrupt(error.to_string()).error(operation))
        }
    }
}
