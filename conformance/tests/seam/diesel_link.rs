//! A connection of Diesel.

use diesel::connection::SimpleConnection;
use diesel::deserialize::{self, FromSql, QueryableByName};
use diesel::pg::{Pg, PgValue};
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::result::{DatabaseErrorKind, Error};
use diesel::row::{Field, NamedRow};
use diesel::sql_types::{Array, BigInt, Binary, Bool, Nullable, Text};
use diesel::{PgConnection, RunQueryDsl, sql_query};
use lockapi::Failure;
use lockapi::seam::{Call, Connection, Row, Rows, Type, Value};

pub(crate) struct DieselLink(pub(crate) PgConnection);

impl Connection for DieselLink {
    async fn run(&mut self, call: &dyn Call) -> Result<Rows, Failure> {
        let statement = call.statement();
        let mut query = sql_query(statement.sql).into_boxed::<Pg>();
        for param in call.params() {
            query = bind(query, param);
        }
        let rows: Vec<Columns> = query.load(&mut self.0).map_err(failed)?;
        rows.into_iter()
            .map(|Columns(columns)| {
                if columns.len() != statement.columns.len() {
                    return Err(Failure::corrupt("another number of columns"));
                }
                let columns = statement.columns.iter().zip(columns);
                let values = columns.map(|(of, value)| match value {
                    None => Ok(Value::Null(*of)),
                    Some(value) if value.type_of() == *of => Ok(value),
                    Some(_) => Err(Failure::corrupt(format!("a column is not {of:?}"))),
                });
                values.collect::<Result<_, _>>().map(Row)
            })
            .collect()
    }

    async fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        self.0.batch_execute(sql).map_err(failed)
    }
}

/// The columns of a row by their own types; Diesel does not tell the type of a NULL.
struct Columns(Vec<Option<Value>>);

impl QueryableByName<Pg> for Columns {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let columns = (0..row.field_count()).map(|at| {
            let field = diesel::row::Row::get(row, at).ok_or("a column is missing")?;
            field.value().map(decode).transpose()
        });
        columns.collect::<deserialize::Result<_>>().map(Self)
    }
}

fn decode(value: PgValue<'_>) -> deserialize::Result<Value> {
    Ok(match value.get_oid().get() {
        16 => Value::Bool(FromSql::<Bool, Pg>::from_sql(value)?),
        17 => Value::Bytes(FromSql::<Binary, Pg>::from_sql(value)?),
        20 => Value::Int(FromSql::<BigInt, Pg>::from_sql(value)?),
        25 => Value::Text(FromSql::<Text, Pg>::from_sql(value)?),
        1000 => Value::Bools(FromSql::<Array<Bool>, Pg>::from_sql(value)?),
        1009 => Value::Texts(FromSql::<Array<Text>, Pg>::from_sql(value)?),
        1016 => Value::Ints(FromSql::<Array<BigInt>, Pg>::from_sql(value)?),
        // Nothing that a statement declares; the comparison with its declaration fails.
        other => Value::Null(if other == 25 { Type::Int } else { Type::Bytes }),
    })
}

type Query<'f> = BoxedSqlQuery<'f, Pg, SqlQuery>;

fn bind(query: Query<'_>, param: Value) -> Query<'_> {
    match param {
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

fn failed(error: Error) -> Failure {
    let broken = matches!(
        error,
        Error::DatabaseError(DatabaseErrorKind::ClosedConnection, _)
            | Error::BrokenTransactionManager
    );
    Failure::statement(None, broken, error)
}
