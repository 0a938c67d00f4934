//! Optimistic locking of the program's own rows.

use std::cell::Cell;
use std::error::Error as StdError;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::pg::{Pg, PgConnection};
use diesel::serialize::ToSql;
use diesel::sql_types::HasSqlType;
use diesel::{QueryResult, RunQueryDsl};
use lockapi::versioned::{Attempt, BoxError, Outcome, Retry, Table, Update, marked};
use lockapi::{Error, ErrorKind};
use lockapi_diesel_types::{Binding, Versions, not_encoded, outcome, update_query};

use crate::failure::failed;

const OPERATION: &str = "update_versioned";

/// A write to one row that succeeds only if the row still has the version that was seen.
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel::sql_types::BigInt;
/// use lockapi::versioned::{Outcome, Table};
/// use lockapi_diesel::VersionedUpdate;
///
/// diesel::table! {
///     account (id) {
///         id -> BigInt,
///         balance -> BigInt,
///         version -> BigInt,
///     }
/// }
///
/// # fn example(conn: &mut PgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// let accounts = Table::new("account", &["id"], "version")?;
/// let row = account::table.find(7).select((account::balance, account::version));
/// let (balance, version): (i64, i64) = row.first(conn)?;
/// let update = VersionedUpdate::of(&accounts)
///     .key::<BigInt, _>(7_i64)
///     .set::<BigInt, _>("balance", balance + 1);
/// match update.run(conn, version)? {
///     Outcome::Updated(version) => println!("version {version}"),
///     Outcome::Stale { current } => println!("somebody wrote version {current}"),
///     Outcome::Gone => println!("no such account"),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is written until it is run"]
#[derive(Debug)]
pub struct VersionedUpdate<'t>(Update<'t, Binding<'t>>);

impl<'t> VersionedUpdate<'t> {
    /// Of a row of this table.
    pub fn of(table: &'t Table) -> Self {
        Self(Update::of(table))
    }

    /// The value of the next column of the key, which has the SQL type `S`.
    pub fn key<S, V>(self, value: V) -> Self
    where
        S: Send + 't,
        V: ToSql<S, Pg> + Send + 't,
        Pg: HasSqlType<S>,
    {
        Self(self.0.key(Binding::new::<S, V>(value)))
    }

    /// Sets a column, which has the SQL type `S`.
    pub fn set<S, V>(self, column: &'t str, value: V) -> Self
    where
        S: Send + 't,
        V: ToSql<S, Pg> + Send + 't,
        Pg: HasSqlType<S>,
    {
        Self(self.0.set(column, Binding::new::<S, V>(value)))
    }

    /// Writes, in the transaction that is open on `connection` or in one of its own, if the row has the
    /// version `seen`; the version is then one higher. It takes one round trip, and blocks.
    ///
    /// # Errors
    /// `Invalid` for columns that cannot be, a key that is not complete, a value that cannot be encoded,
    /// and one that the server refuses, such as by a constraint; `Unsupported` for a table or
    /// column that is not there, and when a trigger or a policy of the table suppressed the write; those of
    /// the connection.
    pub fn run(self, connection: &mut PgConnection, seen: i64) -> lockapi::Result<Outcome> {
        let rows: QueryResult<Vec<Versions>> = update_query(self.0, seen)?.load(connection);
        let rows = rows.map_err(|error| {
            not_encoded(&error, OPERATION)
                .unwrap_or_else(|| failed(error).error_of_program(OPERATION))
        })?;
        outcome(&rows, seen)
    }
}

/// Runs `work` in a transaction and commits it, and does it again, in a new transaction, after a
/// conflict: a row that was written since it was read, a serialization failure or a deadlock, also
/// at the commit. `keys` name the rows that it writes; see [`Retry`]. It blocks.
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel::sql_types::BigInt;
/// use lockapi::versioned::{BoxError, Retry, Table};
/// use lockapi_diesel::{VersionedUpdate, transact};
///
/// diesel::table! {
///     counter (id) {
///         id -> BigInt,
///         value -> BigInt,
///         version -> BigInt,
///     }
/// }
///
/// fn increment(conn: &mut PgConnection, retry: &Retry, table: &Table) -> Result<i64, BoxError> {
///     transact(conn, retry, &["counter/7"], |conn, attempt| {
///         let read = counter::table.find(7).select((counter::value, counter::version));
///         let (had, seen): (i64, i64) = if attempt.locks() {
///             read.for_no_key_update().first(conn)?
///         } else {
///             read.first(conn)?
///         };
///         let update = VersionedUpdate::of(table)
///             .key::<BigInt, _>(7_i64)
///             .set::<BigInt, _>("value", had + 1);
///         update.run(conn, seen)?.updated()?;
///         Ok(had + 1)
///     })
/// }
/// ```
///
/// # Guarantees
/// `Ok` means that it is committed. Where a statement failed and `work` returned `Ok` all the same, PostgreSQL would roll
/// back and report the commit as done; one more statement before the commit finds that out, and that `work` has ended the
/// transaction itself, also if it has begun another one. (`RESET ALL` in `work` looks like that.)
///
/// Work whose commit ended without an answer is not done again.
///
/// # Errors
/// The error of `work` if it is no conflict, or of the last attempt; those of connection and commit; `Invalid` where `work`
/// kept the error of a statement to itself, or left a transaction open inside of its own, and where a transaction is open
/// on `connection`, unless it is a test transaction.
pub fn transact<T>(
    connection: &mut PgConnection,
    retry: &Retry,
    keys: &[&str],
    mut work: impl FnMut(&mut PgConnection, Attempt) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    // In it, a savepoint would be reported as committed.
    if AnsiTransactionManager::is_broken_transaction_manager(connection) {
        let message = "a transaction is open on the connection, perhaps one that was given up; end it first, or take another connection";
        return Err(Error::new(ErrorKind::Invalid, "transact", message).into());
    }
    // After that there is no next attempt.
    let ended = Cell::new(false);
    let is_conflict = |error: &(dyn StdError + 'static)| !ended.get() && is_conflict(error);
    retry.run_blocking(keys, is_conflict, |attempt| {
        let outer = depth(connection)?;
        begin(connection, outer)?;
        // The panic goes on once nothing is open any more: it may be caught, and the connection used again.
        let done = catch_unwind(AssertUnwindSafe(|| work(connection, attempt)));
        let done = done.unwrap_or_else(|panic| {
            let _ended = roll_back(connection, outer);
            resume_unwind(panic)
        });
        let outcome = done.and_then(|value| {
            marked::check_depth(outer + 1, depth(connection)?)?;
            marked::check(connection)?;
            Ok(value)
        });
        match outcome {
            Ok(value) => {
                let committed = AnsiTransactionManager::commit_transaction(connection);
                committed.map_err(|error| failed(error).error_of_program("commit"))?;
                Ok(value)
            }
            Err(error) => {
                // Where this fails the connection has ended, and the transaction with it.
                ended.set(roll_back(connection, outer).is_err());
                Err(error)
            }
        }
    })
}

/// How many transactions are open within each other, for the library.
fn depth(connection: &mut PgConnection) -> QueryResult<usize> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
    let open = status.transaction_depth()?.map_or(0, NonZero::get);
    Ok(open as usize)
}

fn begin(connection: &mut PgConnection, outer: usize) -> QueryResult<()> {
    if outer == 0 {
        return AnsiTransactionManager::begin_transaction_sql(connection, marked::BEGIN);
    }
    AnsiTransactionManager::begin_transaction(connection)?;
    connection.batch_execute(marked::MARK)
}

/// Rolls back, with all that was begun within it.
fn roll_back(connection: &mut PgConnection, outer: usize) -> QueryResult<()> {
    while depth(connection)? > outer {
        AnsiTransactionManager::rollback_transaction(connection)?;
    }
    Ok(())
}

/// Whether work that failed with this error may be done again; see
/// [`is_conflict`](lockapi::versioned::is_conflict).
#[must_use]
pub fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
    lockapi_diesel_types::is_conflict(error)
}
