//! Values of the driver in a query of Diesel.

use diesel::deserialize::{self, FromSql, QueryableByName};
use diesel::pg::{Pg, PgValue};
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::row::{Field, NamedRow};
use diesel::sql_types::{Array, BigInt, Binary, Bool, Nullable, Text};
use lockapi::Failure;
use lockapi::driver::{Row, Statement, Type, Value};

pub(crate) type Query<'t> = BoxedSqlQuery<'t, Pg, SqlQuery>;

/// The query with one more parameter.
pub(crate) fn bind(query: Query<'_>, value: Value) -> Query<'_> {
    match value {
        Value::Null(Type::Bool) => query.bind::<Nullable<Bool>, _>(None::<bool>),
        Value::Null(Type::Int) => query.bind::<Nullable<BigInt>, _>(None::<i64>),
        Value::Null(Type::Text) => query.bind::<Nullable<Text>, _>(None::<String>),
        Value::Null(Type::Bytes) => query.bind::<Nullable<Binary>, _>(None::<Vec<u8>>),
        Value::Null(Type::Bools) => query.bind::<Nullable<Array<Bool>>, _>(None::<Vec<bool>>),
        Value::Null(Type::Ints) => query.bind::<Nullable<Array<BigInt>>, _>(None::<Vec<i64>>),
        Value::Null(Type::Texts) => query.bind::<Nullable<Array<Text>>, _>(None::<Vec<String>>),
        Value::Bool(value) => query.bind::<Bool, _>(value),
        Value::Int(value) => query.bind::<BigInt, _>(value),
        Value::Text(value) => query.bind::<Text, _>(value),
        Value::Bytes(value) => query.bind::<Binary, _>(value),
        Value::Bools(values) => query.bind::<Array<Bool>, _>(values),
        Value::Ints(values) => query.bind::<Array<BigInt>, _>(values),
        Value::Texts(values) => query.bind::<Array<Text>, _>(values),
    }
}

/// The columns of a row, by their own types; `None` for a NULL, whose type Diesel does not tell.
pub(crate) struct Columns(Vec<Option<Column>>);

/// A value, or the object identifier of a type that no statement declares.
type Column = Result<Value, u32>;

impl QueryableByName<Pg> for Columns {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let columns = (0..row.field_count()).map(|at| {
            let field =
                diesel::row::Row::get(row, at).ok_or("a column of the answer is missing")?;
            field.value().map(read).transpose()
        });
        columns.collect::<deserialize::Result<_>>().map(Self)
    }
}

fn read(value: PgValue<'_>) -> deserialize::Result<Column> {
    Ok(Ok(match value.get_oid().get() {
        16 => Value::Bool(FromSql::<Bool, Pg>::from_sql(value)?),
        17 => Value::Bytes(FromSql::<Binary, Pg>::from_sql(value)?),
        20 => Value::Int(FromSql::<BigInt, Pg>::from_sql(value)?),
        25 => Value::Text(FromSql::<Text, Pg>::from_sql(value)?),
        1000 => Value::Bools(FromSql::<Array<Bool>, Pg>::from_sql(value)?),
        1009 => Value::Texts(FromSql::<Array<Text>, Pg>::from_sql(value)?),
        1016 => Value::Ints(FromSql::<Array<BigInt>, Pg>::from_sql(value)?),
        other => return Ok(Err(other)),
    }))
}

/// The row, if its columns are as `statement` declares them.
pub(crate) fn row(statement: &Statement, Columns(columns): Columns) -> Result<Row, Failure> {
    let oid = |column: &Column| {
        column
            .as_ref()
            .map_or_else(|oid| *oid, |value| value.type_of().oid())
    };
    statement.check_columns(columns.iter().map(|column| column.as_ref().map(oid)))?;
    let columns = statement.columns.iter().zip(columns);
    let values = columns.map(|(of, column)| match column {
        Some(Ok(value)) => value,
        Some(Err(_)) | None => Value::Null(*of),
    });
    Ok(Row(values.collect()))
}
