//! A connection of the blocking `postgres` crate.

use lockapi::Failure;
use lockapi::seam::{Call, Connection, Row, Rows, Type, Value};
use postgres::types::ToSql;
use postgres::{Client, NoTls};

pub(crate) struct PostgresLink(pub(crate) Client);

impl PostgresLink {
    pub(crate) fn connect(url: &str) -> Self {
        Self(Client::connect(url, NoTls).expect("a connection"))
    }
}

impl Connection for PostgresLink {
    async fn run(&mut self, call: &dyn Call) -> Result<Rows, Failure> {
        let statement = call.statement();
        let params: Vec<_> = call.params().into_iter().map(param).collect();
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| &**param as _).collect();
        let rows = self.0.query(statement.sql, &params).map_err(failed)?;
        rows.iter()
            .map(|row| {
                let columns = statement.columns.iter().enumerate();
                let values = columns.map(|(at, of)| column(row, at, *of));
                values.collect::<Result<_, _>>().map(Row)
            })
            .collect()
    }

    async fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        self.0.batch_execute(sql).map_err(failed)
    }
}

fn failed(error: postgres::Error) -> Failure {
    let code = error.code().map(|code| code.code().to_owned());
    let broken = error.is_closed();
    Failure::statement(code, broken, error)
}

fn param(value: Value) -> Box<dyn ToSql + Sync + Send> {
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

fn column(row: &postgres::Row, at: usize, of: Type) -> Result<Value, Failure> {
    let wrong = || Failure::corrupt(format!("column {at} is not {of:?}"));
    let column = row.columns().get(at).ok_or_else(wrong)?;
    if column.type_().oid() != of.oid() {
        return Err(wrong());
    }
    let value = match of {
        Type::Bool => row
            .try_get::<_, Option<_>>(at)
            .map(|it| it.map(Value::Bool)),
        Type::Int => row.try_get::<_, Option<_>>(at).map(|it| it.map(Value::Int)),
        Type::Text => row
            .try_get::<_, Option<_>>(at)
            .map(|it| it.map(Value::Text)),
        Type::Bytes => row
            .try_get::<_, Option<_>>(at)
            .map(|it| it.map(Value::Bytes)),
        Type::Bools => row
            .try_get::<_, Option<_>>(at)
            .map(|it| it.map(Value::Bools)),
        Type::Ints => row
            .try_get::<_, Option<_>>(at)
            .map(|it| it.map(Value::Ints)),
        Type::Texts => row
            .try_get::<_, Option<_>>(at)
            .map(|it| it.map(Value::Texts)),
    };
    Ok(value.map_err(|_| wrong())?.unwrap_or(Value::Null(of)))
}
