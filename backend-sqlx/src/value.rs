//! Values of the driver as sqlx arguments and columns.

use super::sqlx;
use lockapi::Failure;
use lockapi::driver::{Row, Statement, Type, Value};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, Column, Row as _, ValueRef};

pub(crate) fn arguments(params: &[Value]) -> Result<PgArguments, Failure> {
    let mut arguments = PgArguments::default();
    for param in params {
        let added = match param {
            Value::Null(Type::Bool) => arguments.add(None::<bool>),
            Value::Null(Type::Int) => arguments.add(None::<i64>),
            Value::Null(Type::Text) => arguments.add(None::<&str>),
            Value::Null(Type::Bytes) => arguments.add(None::<&[u8]>),
            Value::Null(Type::Bools) => arguments.add(None::<&[bool]>),
            Value::Null(Type::Ints) => arguments.add(None::<&[i64]>),
            Value::Null(Type::Texts) => arguments.add(None::<&[String]>),
            Value::Bool(value) => arguments.add(value),
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
            Value::Bools(values) => arguments.add(values),
            Value::Ints(values) => arguments.add(values),
            Value::Texts(values) => arguments.add(values),
        };
        added
            .map_err(|error| Failure::corrupt(format!("a parameter cannot be encoded: {error}")))?;
    }
    Ok(arguments)
}

pub(crate) fn row(statement: &Statement, row: &PgRow) -> Result<Row, Failure> {
    let found = row.columns().iter().map(|column| {
        let oid = column.type_info().oid();
        oid.map_or(0, |oid| oid.0)
    });
    statement.check_columns(found.map(Some))?;
    let columns = statement.columns.iter().enumerate();
    let values: sqlx::Result<_> = columns.map(|(at, of)| column(row, at, *of)).collect();
    let values =
        values.map_err(|error| Failure::corrupt(format!("{}: {error}", statement.name)))?;
    Ok(Row(values))
}

fn column(row: &PgRow, at: usize, of: Type) -> sqlx::Result<Value> {
    if row.try_get_raw(at)?.is_null() {
        return Ok(Value::Null(of));
    }
    match of {
        Type::Bool => row.try_get(at).map(Value::Bool),
        Type::Int => row.try_get(at).map(Value::Int),
        Type::Text => row.try_get(at).map(Value::Text),
        Type::Bytes => row.try_get(at).map(Value::Bytes),
        Type::Bools => row.try_get(at).map(Value::Bools),
        Type::Ints => row.try_get(at).map(Value::Ints),
        Type::Texts => row.try_get(at).map(Value::Texts),
    }
}
