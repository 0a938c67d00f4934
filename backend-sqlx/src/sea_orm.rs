//! Operations inside transactions of SeaORM.

use std::error::Error as StdError;
use std::fmt;

use ::sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, Statement,
    TransactionError, Value as OfOrm,
};
use lockapi::Failure;
use lockapi::driver::{Call, Connection, Rows, Script, Transaction, Type, Value};
use lockapi::versioned::BoxError;

use crate::connector::{is_broken, report};
use crate::transaction::Sqlx;
use crate::value;

/// A transaction of SeaORM as the engine sees one.
///
/// SeaORM does not give out its connection, so statements run through it. Like those of SeaORM, they stay prepared on the
/// connection.
pub struct BorrowedOrm<'a>(pub &'a DatabaseTransaction);

impl fmt::Debug for BorrowedOrm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedOrm").finish_non_exhaustive()
    }
}

impl BorrowedOrm<'_> {
    fn check(&self) -> Result<(), Failure> {
        match self.0.get_database_backend() {
            DbBackend::Postgres => Ok(()),
            other => {
                let message = format!("a transaction on {other:?}; allowed is PostgreSQL");
                Err(Failure::refused(Some("0A000".to_owned()), message))
            }
        }
    }
}

impl Connection for BorrowedOrm<'_> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        self.check()?;
        let (statement, params) = call.query();
        let params = params.into_iter().map(of_orm);
        let query = Statement::from_sql_and_values(DbBackend::Postgres, statement.sql, params);
        let rows = self.0.query_all_raw(query).await.map_err(failed)?;
        let rows = rows.iter().map(|row| {
            let row = row.try_as_pg_row();
            let row = row.ok_or_else(|| Failure::corrupt("a row is not one of PostgreSQL"))?;
            value::row(statement, row)
        });
        rows.collect()
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.check()?;
        let done = self.0.execute_unprepared(script.sql()).await;
        done.map(drop).map_err(failed)
    }
}

fn of_orm(value: Value) -> OfOrm {
    match value {
        Value::Null(Type::Bool) => None::<bool>.into(),
        Value::Null(Type::Int) => None::<i64>.into(),
        Value::Null(Type::Text) => None::<String>.into(),
        Value::Null(Type::Bytes) => None::<Vec<u8>>.into(),
        Value::Null(Type::Bools) => None::<Vec<bool>>.into(),
        Value::Null(Type::Ints) => None::<Vec<i64>>.into(),
        Value::Null(Type::Texts) => None::<Vec<String>>.into(),
        Value::Bool(value) => value.into(),
        Value::Int(value) => value.into(),
        Value::Text(value) => value.into(),
        Value::Bytes(value) => value.into(),
        Value::Bools(values) => values.into(),
        Value::Ints(values) => values.into(),
        Value::Texts(values) => values.into(),
    }
}

fn failed(error: DbErr) -> Failure {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(cause))
        | DbErr::Exec(RuntimeErr::SqlxError(cause))
        | DbErr::Query(RuntimeErr::SqlxError(cause)) => match report(&cause) {
            Some(report) => Failure::reported(report),
            None => Failure::statement(None, is_broken(&cause), cause),
        },
        error => Failure::statement(None, true, error),
    }
}

/// The error that one of SeaORM is made of, where that does not tell it as its source.
pub(crate) fn wrapped<'e>(
    error: &'e (dyn StdError + 'static),
) -> Option<&'e (dyn StdError + 'static)> {
    if let Some(RuntimeErr::SqlxError(error)) = error.downcast_ref() {
        return Some(&**error);
    }
    // Of `transaction`, by what the closures return.
    if let Some(error) = error.downcast_ref::<TransactionError<DbErr>>() {
        return Some(match error {
            TransactionError::Connection(error) | TransactionError::Transaction(error) => error,
        });
    }
    if let Some(error) = error.downcast_ref::<TransactionError<lockapi::Error>>() {
        return Some(match error {
            TransactionError::Connection(error) => error,
            TransactionError::Transaction(error) => error,
        });
    }
    let error = error.downcast_ref::<TransactionError<BoxError>>()?;
    Some(match error {
        TransactionError::Connection(error) => error,
        TransactionError::Transaction(error) => &**error,
    })
}

macro_rules! transaction {
    ($($transaction:ty),*) => {$(
        impl Transaction<Sqlx> for $transaction {
            type Connection<'c>
                = BorrowedOrm<'c>
            where
                Self: 'c;

            fn connection(&mut self) -> BorrowedOrm<'_> {
                BorrowedOrm(self)
            }
        }
    )*};
}

// SeaORM's closures have a shared reference.
transaction!(DatabaseTransaction, &DatabaseTransaction);
