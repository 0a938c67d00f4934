//! Values of the driver in a Diesel query.

use diesel::deserialize::{self, FromSql, QueryableByName};
use diesel::pg::{Pg, PgValue};
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::row::{Field, NamedRow};
use diesel::sql_types::{Array, BigInt, Binary, Bool, Nullable, Text, Untyped};
use diesel::{QueryResult, RunQueryDsl};
use lockapi::Failure;
use lockapi::driver::{Row, Rows, Statement, Type, Value};

/// A statement with its parameters, as a query of Diesel.
///
/// Diesel numbers parameters itself, so one that occurs twice is sent twice.
#[derive(Debug)]
pub struct Bound<'a> {
    /// The statement.
    pub statement: &'a Statement,
    /// A value for each of its parameters.
    pub params: Vec<Value>,
    /// Whether it may stay on the connection as a prepared statement.
    pub cached: bool,
}

impl QueryFragment<Pg> for Bound<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        if !self.cached {
            out.unsafe_to_cache_prepared();
        }
        let mut pieces = self.statement.sql.split('$');
        out.push_sql(pieces.next().unwrap_or_default());
        for piece in pieces {
            let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
            let number: usize = piece[..digits].parse().unwrap_or_default();
            let param = self.params.get(number.wrapping_sub(1)).ok_or_else(|| {
                let message = format!("{} has no parameter {number}", self.statement.name);
                diesel::result::Error::QueryBuilderError(message.into())
            })?;
            bind(&mut out, param)?;
            out.push_sql(&piece[digits..]);
        }
        Ok(())
    }
}

fn bind<'b>(out: &mut AstPass<'_, 'b, Pg>, param: &'b Value) -> QueryResult<()> {
    match param {
        Value::Null(Type::Bool) => out.push_bind_param::<Nullable<Bool>, _>(&None::<bool>),
        Value::Null(Type::Int) => out.push_bind_param::<Nullable<BigInt>, _>(&None::<i64>),
        Value::Null(Type::Text) => out.push_bind_param::<Nullable<Text>, _>(&None::<String>),
        Value::Null(Type::Bytes) => out.push_bind_param::<Nullable<Binary>, _>(&None::<Vec<u8>>),
        Value::Null(Type::Bools) => {
            out.push_bind_param::<Nullable<Array<Bool>>, _>(&None::<Vec<bool>>)
        }
        Value::Null(Type::Ints) => {
            out.push_bind_param::<Nullable<Array<BigInt>>, _>(&None::<Vec<i64>>)
        }
        Value::Null(Type::Texts) => {
            out.push_bind_param::<Nullable<Array<Text>>, _>(&None::<Vec<String>>)
        }
        Value::Bool(value) => out.push_bind_param::<Bool, _>(value),
        Value::Int(value) => out.push_bind_param::<BigInt, _>(value),
        Value::Text(value) => out.push_bind_param::<Text, _>(value),
        Value::Bytes(value) => out.push_bind_param::<Binary, _>(value),
        Value::Bools(values) => out.push_bind_param::<Array<Bool>, _>(values),
        Value::Ints(values) => out.push_bind_param::<Array<BigInt>, _>(values),
        Value::Texts(values) => out.push_bind_param::<Array<Text>, _>(values),
    }
}

impl QueryId for Bound<'_> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Bound<'_> {
    type SqlType = Untyped;
}

impl<C> RunQueryDsl<C> for Bound<'_> {}

/// The columns of a row, by their own types.
#[derive(Debug)]
pub struct Columns(Vec<Column>);

#[derive(Debug)]
pub(crate) enum Column {
    /// Diesel does not tell the type of a NULL.
    Null,
    Value(Value),
    /// A type that no statement declares, by its object identifier.
    Other(u32),
}

impl QueryableByName<Pg> for Columns {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let columns = (0..row.field_count()).map(|at| {
            let field =
                diesel::row::Row::get(row, at).ok_or("a column of the answer is missing")?;
            field.value().map_or(Ok(Column::Null), read)
        });
        columns.collect::<deserialize::Result<_>>().map(Self)
    }
}

pub(crate) fn read(value: PgValue<'_>) -> deserialize::Result<Column> {
    Ok(Column::Value(match value.get_oid().get() {
        16 => Value::Bool(FromSql::<Bool, Pg>::from_sql(value)?),
        17 => Value::Bytes(FromSql::<Binary, Pg>::from_sql(value)?),
        20 => Value::Int(FromSql::<BigInt, Pg>::from_sql(value)?),
        25 => Value::Text(FromSql::<Text, Pg>::from_sql(value)?),
        1000 => Value::Bools(FromSql::<Array<Bool>, Pg>::from_sql(value)?),
        1009 => Value::Texts(FromSql::<Array<Text>, Pg>::from_sql(value)?),
        1016 => Value::Ints(FromSql::<Array<BigInt>, Pg>::from_sql(value)?),
        other => return Ok(Column::Other(other)),
    }))
}

/// The rows that answer a statement.
///
/// # Errors
/// `Corrupt` for columns that the statement does not have.
pub fn rows(statement: &Statement, rows: Vec<Columns>) -> Result<Rows, Failure> {
    let rows = rows.into_iter();
    rows.map(|columns| row(statement, columns)).collect()
}

/// The row, if its columns are as `statement` declares them.
fn row(statement: &Statement, Columns(columns): Columns) -> Result<Row, Failure> {
    statement.check_columns(columns.iter().map(|column| match column {
        Column::Null => None,
        Column::Value(value) => Some(value.type_of().oid()),
        Column::Other(oid) => Some(*oid),
    }))?;
    let columns = statement.columns.iter().zip(columns);
    let values = columns.map(|(of, column)| match column {
        Column::Value(value) => value,
        Column::Null | Column::Other(_) => Value::Null(*of),
    });
    Ok(Row(values.collect()))
}
