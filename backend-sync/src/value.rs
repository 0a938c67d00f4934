//! Values of the seam as parameters and columns of the `postgres` crate.

use lockapi::Failure;
use lockapi::seam::{Row, Statement, Type, Value};
use postgres::types::{ToSql, Type as Native};

pub(crate) type Param = Box<dyn ToSql + Sync + Send>;

pub(crate) fn param(value: Value) -> Param {
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

pub(crate) fn native(of: Type) -> Native {
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

pub(crate) fn row(statement: &Statement, row: &postgres::Row) -> Result<Row, Failure> {
    if row.len() != statement.columns.len() {
        return Err(Failure::corrupt(format!(
            "{} answered {} columns instead of {}",
            statement.name,
            row.len(),
            statement.columns.len()
        )));
    }
    let columns = statement.columns.iter().enumerate();
    let values: Result<_, Failure> = columns
        .map(|(at, of)| column(statement, row, at, *of))
        .collect();
    Ok(Row(values?))
}

fn column(
    statement: &Statement,
    row: &postgres::Row,
    at: usize,
    of: Type,
) -> Result<Value, Failure> {
    let found = row.columns()[at].type_();
    let value = match of {
        // The driver reads some types as others; here only the declared one will do.
        _ if *found != native(of) => None,
        Type::Bool => get(row, at, of, Value::Bool),
        Type::Int => get(row, at, of, Value::Int),
        Type::Text => get(row, at, of, Value::Text),
        Type::Bytes => get(row, at, of, Value::Bytes),
        Type::Bools => get(row, at, of, Value::Bools),
        Type::Ints => get(row, at, of, Value::Ints),
        Type::Texts => get(row, at, of, Value::Texts),
    };
    value.ok_or_else(|| {
        Failure::corrupt(format!(
            "column {at} of {} is a {found} instead of {of:?} without NULL elements",
            statement.name
        ))
    })
}

fn get<'a, T>(row: &'a postgres::Row, at: usize, of: Type, wrap: fn(T) -> Value) -> Option<Value>
where
    T: postgres::types::FromSql<'a>,
{
    let value: Option<T> = row.try_get(at).ok()?;
    Some(value.map_or(Value::Null(of), wrap))
}
