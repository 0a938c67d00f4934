//! A connection of sqlx.

use lockapi::Failure;
use lockapi::seam::{Call, Connection, Row, Rows, Type, Value};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{Arguments, Column, Executor, Row as _, ValueRef};

pub(crate) struct SqlxLink(pub(crate) PgConnection);

impl Connection for SqlxLink {
    async fn run(&mut self, call: &dyn Call) -> Result<Rows, Failure> {
        let statement = call.statement();
        let mut arguments = PgArguments::default();
        for param in call.params() {
            bind(&mut arguments, param).map_err(|error| Failure::corrupt(error.to_string()))?;
        }
        let query = sqlx::query_with(statement.sql, arguments);
        let rows = self.0.fetch_all(query).await.map_err(failed)?;
        rows.iter()
            .map(|row| {
                let columns = statement.columns.iter().enumerate();
                let values = columns.map(|(at, of)| column(row, at, *of));
                values.collect::<Result<_, _>>().map(Row)
            })
            .collect()
    }

    async fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        let outcome = sqlx::raw_sql(sql).execute(&mut self.0).await;
        outcome.map(drop).map_err(failed)
    }
}

fn failed(error: sqlx::Error) -> Failure {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .map(std::borrow::Cow::into_owned);
    let broken = code.is_none();
    Failure::statement(code, broken, error)
}

fn bind(arguments: &mut PgArguments, param: Value) -> Result<(), sqlx::error::BoxDynError> {
    match param {
        Value::Null(Type::Bool) => arguments.add(None::<bool>),
        Value::Null(Type::Int) => arguments.add(None::<i64>),
        Value::Null(Type::Text) => arguments.add(None::<String>),
        Value::Null(Type::Bytes) => arguments.add(None::<Vec<u8>>),
        Value::Null(Type::Bools) => arguments.add(None::<Vec<bool>>),
        Value::Null(Type::Ints) => arguments.add(None::<Vec<i64>>),
        Value::Null(Type::Texts) => arguments.add(None::<Vec<String>>),
        Value::Bool(value) => arguments.add(value),
        Value::Int(value) => arguments.add(value),
        Value::Text(value) => arguments.add(value),
        Value::Bytes(value) => arguments.add(value),
        Value::Bools(value) => arguments.add(value),
        Value::Ints(value) => arguments.add(value),
        Value::Texts(value) => arguments.add(value),
    }
}

fn column(row: &PgRow, at: usize, of: Type) -> Result<Value, Failure> {
    let wrong = || Failure::corrupt(format!("column {at} is not {of:?}"));
    let column = row.columns().get(at).ok_or_else(wrong)?;
    if column.type_info().oid().is_none_or(|oid| oid.0 != of.oid()) {
        return Err(wrong());
    }
    if row.try_get_raw(at).map_err(|_| wrong())?.is_null() {
        return Ok(Value::Null(of));
    }
    let value = match of {
        Type::Bool => row.try_get(at).map(Value::Bool),
        Type::Int => row.try_get(at).map(Value::Int),
        Type::Text => row.try_get(at).map(Value::Text),
        Type::Bytes => row.try_get(at).map(Value::Bytes),
        Type::Bools => row.try_get(at).map(Value::Bools),
        Type::Ints => row.try_get(at).map(Value::Ints),
        Type::Texts => row.try_get(at).map(Value::Texts),
    };
    value.map_err(|_| wrong())
}
