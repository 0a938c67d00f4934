//! Optimistic locking of the program's own rows.

use std::error::Error as StdError;
use std::num::NonZero;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::serialize::ToSql;
use diesel::sql_types::HasSqlType;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};
use lockapi::versioned::{Attempt, BoxError, Outcome, Retry, Table, Update, marked};
use lockapi::{Error, ErrorKind};
use lockapi_diesel_types::{Binding, Versions, not_encoded, outcome, update_query};

use crate::failure::failed_on;

const OPERATION: &str = "update_versioned";

/// A write to one row that succeeds only if the row still has the version that was seen.
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel::sql_types::BigInt;
/// use diesel_async::{AsyncPgConnection, RunQueryDsl};
/// use lockapi::versioned::{Outcome, Table};
/// use lockapi_diesel_async::VersionedUpdate;
///
/// diesel::table! {
///     account (id) {
///         id -> BigInt,
///         balance -> BigInt,
///         version -> BigInt,
///     }
/// }
///
/// # async fn example(conn: &mut AsyncPgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// let accounts = Table::new("account", &["id"], "version")?;
/// let row = account::table.find(7).select((account::balance, account::version));
/// let (balance, version): (i64, i64) = row.first(conn).await?;
/// let update = VersionedUpdate::of(&accounts)
///     .key::<BigInt, _>(7_i64)
///     .set::<BigInt, _>("balance", balance + 1);
/// match update.run(conn, version).await? {
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
    /// version `seen`; the version is then one higher. It takes two round trips: diesel-async prepares what
    /// it executes. Behind a transaction-pooling proxy that forgets prepared statements, run it in a transaction.
    ///
    /// # Cancel safety
    /// When dropped, the row may or may not be written.
    ///
    /// # Errors
    /// `Invalid` for columns that cannot be, a key that is not complete, a value that cannot be encoded,
    /// and one that the server refuses, such as by a constraint; `Unsupported` for a table or
    /// column that is not there, and when a trigger or a policy of the table suppressed the write; those of
    /// the connection.
    pub async fn run(
        self,
        connection: &mut AsyncPgConnection,
        seen: i64,
    ) -> lockapi::Result<Outcome> {
        let query = update_query(self.0, seen)?;
        let rows: QueryResult<Vec<Versions>> = query.load(connection).await;
        match rows {
            Ok(rows) => outcome(&rows, seen),
            Err(error) => match not_encoded(&error, OPERATION) {
                Some(error) => Err(error),
                None => Err(failed_on(connection, error)
                    .await
                    .error_of_program(OPERATION)),
            },
        }
    }
}

/// What runs in an attempt, on the connection that it is given.
pub type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'c>>;

/// Runs `work` in a transaction and commits it, and does it again, in a new transaction, after a
/// conflict: a row that was written since it was read, a serialization failure or a deadlock, also
/// at the commit. `keys` name the rows that it writes; see [`Retry`].
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel::sql_types::BigInt;
/// use diesel_async::{AsyncPgConnection, RunQueryDsl};
/// use lockapi::versioned::{BoxError, Retry, Table};
/// use lockapi_diesel_async::{VersionedUpdate, transact};
///
/// diesel::table! {
///     counter (id) {
///         id -> BigInt,
///         value -> BigInt,
///         version -> BigInt,
///     }
/// }
///
/// async fn increment(conn: &mut AsyncPgConnection, retry: &Retry, table: &Table) -> Result<i64, BoxError> {
///     transact(conn, retry, &["counter/7"], |conn, attempt| {
///         let table = table.clone();
///         Box::pin(async move {
///             let read = counter::table.find(7).select((counter::value, counter::version));
///             let (had, seen): (i64, i64) = if attempt.locks() {
///                 read.for_no_key_update().first(conn).await?
///             } else {
///                 read.first(conn).await?
///             };
///             let update = VersionedUpdate::of(&table)
///                 .key::<BigInt, _>(7_i64)
///                 .set::<BigInt, _>("value", had + 1);
///             update.run(conn, seen).await?.updated()?;
///             Ok(had + 1)
///         })
///     })
///     .await
/// }
/// ```
///
/// # Guarantees
/// `Ok` means that it is committed. Where a statement failed and `work` returned `Ok` all the same, PostgreSQL would roll
/// back and report the commit as done; one more statement before the commit finds that out, and that `work` has ended the
/// transaction itself, also if it has begun another one. (`RESET ALL` in `work` looks like that.)
///
/// Work whose commit ended without an answer is not done again: the error is `Indeterminate`.
///
/// # Cancel safety
/// When dropped before the commit was sent, nothing is written, and the next statement on the connection runs
/// outside of the transaction; so it does after a panic in `work`. (Programs that call `conn.transaction` themselves:
/// there the transaction stays open, with its locks. A pool of deadpool keeps such a connection until it is next asked
/// for one.)
///
/// # Errors
/// The error of `work` if it is no conflict, or of the last attempt; those of connection and commit; `Invalid` where `work`
/// kept the error of a statement to itself, or left a transaction open inside of its own, and where a transaction is open
/// on `connection`, unless it is a test transaction.
pub async fn transact<T>(
    connection: &mut AsyncPgConnection,
    retry: &Retry,
    keys: &[&str],
    mut work: impl for<'c> FnMut(&'c mut AsyncPgConnection, Attempt) -> Work<'c, T>,
) -> Result<T, BoxError> {
    // In it, a savepoint would be reported as committed.
    if AnsiTransactionManager::is_broken_transaction_manager(connection) {
        let message = "a transaction is open on the connection, perhaps one that was given up; end it first, or take another connection";
        return Err(Error::new(ErrorKind::Invalid, "transact", message).into());
    }
    let mut attempts = retry.begin(keys)?;
    let guarded = RollsBack::new(connection);
    let connection = &mut *guarded.connection;
    loop {
        let attempt = attempts.next().await?;
        let outer = depth(connection)?;
        begin(connection, outer).await?;
        let outcome = match work(&mut *connection, attempt).await {
            Ok(value) => check(connection, outer).await.map(|()| value),
            failed => failed,
        };
        let error = match outcome {
            Ok(value) => match AnsiTransactionManager::commit_transaction(connection).await {
                Ok(()) => return Ok(attempts.succeed(value)),
                Err(error) => failed_on(&mut *connection, error)
                    .await
                    .error_of_program("commit")
                    .into(),
            },
            Err(error) => {
                // The next attempt must not wait for what this one has locked. Where this fails the
                // connection has ended: there is no next attempt.
                if roll_back(connection, outer).await.is_err() {
                    return Err(error);
                }
                error
            }
        };
        let again = is_conflict(&*error);
        attempts.again(error, again)?;
    }
}

/// How many transactions are open within each other, for the library.
fn depth(connection: &mut AsyncPgConnection) -> QueryResult<usize> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
    let open = status.transaction_depth()?.map_or(0, NonZero::get);
    Ok(open as usize)
}

async fn begin(connection: &mut AsyncPgConnection, outer: usize) -> QueryResult<()> {
    if outer == 0 {
        return AnsiTransactionManager::begin_transaction_sql(connection, marked::BEGIN).await;
    }
    AnsiTransactionManager::begin_transaction(connection).await?;
    connection.batch_execute(marked::MARK).await
}

/// Checks that the commit will be that of the transaction that was begun.
async fn check(connection: &mut AsyncPgConnection, outer: usize) -> Result<(), BoxError> {
    marked::check_depth(outer + 1, depth(connection)?)?;
    Ok(marked::check(connection).await?)
}

/// Rolls back, with all that was begun within it.
async fn roll_back(connection: &mut AsyncPgConnection, outer: usize) -> QueryResult<()> {
    while depth(connection)? > outer {
        AnsiTransactionManager::rollback_transaction(connection).await?;
    }
    Ok(())
}

/// A connection whose transaction is rolled back if it is given up: a pool might keep the connection open, with the
/// locks of the transaction, until it gives it to somebody else.
struct RollsBack<'c> {
    connection: &'c mut AsyncPgConnection,
    /// In a transaction for tests, which is not ours to end.
    in_test: bool,
}

impl<'c> RollsBack<'c> {
    fn new(connection: &'c mut AsyncPgConnection) -> Self {
        let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
        let in_test = !matches!(status.transaction_depth(), Ok(None));
        Self {
            connection,
            in_test,
        }
    }
}

impl Drop for RollsBack<'_> {
    fn drop(&mut self) {
        let Self {
            connection,
            in_test,
        } = self;
        if *in_test || !AnsiTransactionManager::is_broken_transaction_manager(*connection) {
            return;
        }
        {
            // What the first poll sends comes before all that follows on the connection; nobody waits for its answer.
            let rollback = pin!(connection.batch_execute("ROLLBACK"));
            let _sent = rollback.poll(&mut Context::from_waker(Waker::noop()));
        }
        *connection.transaction_state() = AnsiTransactionManager::default();
    }
}

/// Whether work that failed with this error may be done again; see
/// [`is_conflict`](lockapi::versioned::is_conflict).
#[must_use]
pub fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
    lockapi_diesel_types::is_conflict(error)
}
