//! Optimistic locking of the program's own rows.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use lockapi::versioned::{Attempt, BoxError, Outcome, Retry, Table, Update, marked};
use lockapi_postgres_types::{Typed, check_outside, failed, outcome, refused, sqlstate, typed};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Transaction};

use crate::connector::check_open;

const OPERATION: &str = "update_versioned";

/// A write to one row that succeeds only if the row still has the version that was seen.
///
/// ```no_run
/// use lockapi_tokio_postgres::VersionedUpdate;
/// use lockapi::versioned::{Outcome, Table};
/// use tokio_postgres::types::Type;
/// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let accounts = Table::new("account", &["id"], "version")?;
/// let row = client.query_one("SELECT balance, version FROM account WHERE id = 7", &[]).await?;
/// let (balance, version): (i64, i64) = (row.get(0), row.get(1));
/// let update = VersionedUpdate::of(&accounts)
///     .key(7_i64, Type::INT8)
///     .set("balance", balance + 1, Type::INT8);
/// match update.run(&client, version).await? {
///     Outcome::Updated(version) => println!("version {version}"),
///     Outcome::Stale { current } => println!("somebody wrote version {current}"),
///     Outcome::Gone => println!("no such account"),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is written until it is run"]
#[derive(Debug)]
pub struct VersionedUpdate<'t>(Update<'t, Typed<'t>>);

impl<'t> VersionedUpdate<'t> {
    /// Of a row of this table.
    pub fn of(table: &'t Table) -> Self {
        Self(Update::of(table))
    }

    /// The value of the next column of the key, and its type.
    pub fn key(self, value: impl ToSql + Sync + Send + 't, of: Type) -> Self {
        Self(self.0.key((Box::new(value), of)))
    }

    /// Sets a column, which has this type.
    pub fn set(self, column: &'t str, value: impl ToSql + Sync + Send + 't, of: Type) -> Self {
        Self(self.0.set(column, (Box::new(value), of)))
    }

    /// Writes, in the transaction that is open on `client` or in one of its own, if the row has the
    /// version `seen`; the version is then one higher. It takes one round trip.
    ///
    /// # Cancel safety
    /// When dropped, the row may or may not be written.
    ///
    /// # Errors
    /// `Invalid` for columns that cannot be, a key that is not complete, a value that cannot be encoded
    /// as its type, and one that the server refuses, such as by a constraint; `Unsupported` for a table or
    /// column that is not there, and when a trigger or a policy of the table suppressed the write; those of
    /// the connection.
    pub async fn run<C: GenericClient + Sync>(
        self,
        client: &C,
        seen: i64,
    ) -> lockapi::Result<Outcome> {
        let (sql, values) = self.0.statement((Box::new(seen), Type::INT8))?;
        check_open(client.client()).map_err(|failure| failure.error(OPERATION))?;
        let rows = client.query_typed(&sql, &typed(&values)).await;
        let rows = rows.map_err(|error| refused(error, OPERATION))?;
        outcome(&rows, seen, OPERATION)
    }
}

/// What runs in an attempt, on the transaction that it is given.
pub type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'c>>;

/// Runs `work` in a transaction and commits it, and does it again, in a new transaction, after a
/// conflict: a row that was written since it was read, a serialization failure or a deadlock, also
/// at the commit. `keys` name the rows that it writes; see [`Retry`].
///
/// ```no_run
/// use lockapi_tokio_postgres::{VersionedUpdate, transact};
/// use lockapi::versioned::{BoxError, Retry, Table};
/// use tokio_postgres::{Client, types::Type};
///
/// async fn increment(client: &mut Client, retry: &Retry, table: &Table) -> Result<i64, BoxError> {
///     transact(client, retry, &["counter/7"], |tx, attempt| {
///         let table = table.clone();
///         Box::pin(async move {
///             let read = if attempt.locks() {
///                 "SELECT value, version FROM counter WHERE id = 7 FOR NO KEY UPDATE"
///             } else {
///                 "SELECT value, version FROM counter WHERE id = 7"
///             };
///             let row = tx.query_one(read, &[]).await?;
///             let value = row.get::<_, i64>(0) + 1;
///             let update = VersionedUpdate::of(&table)
///                 .key(7_i64, Type::INT8)
///                 .set("value", value, Type::INT8);
///             update.run(tx, row.get(1)).await?.updated()?;
///             Ok(value)
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
/// When dropped before the commit was sent, nothing is written, and the next statement on the client runs
/// outside of the transaction.
///
/// # Errors
/// The error of `work` if it is no conflict, or of the last attempt; those of connection and commit; `Invalid` where `work`
/// kept the error of a statement to itself, and where a transaction is open on `client`, which one more round trip finds out.
pub async fn transact<T>(
    client: &mut Client,
    retry: &Retry,
    keys: &[&str],
    mut work: impl for<'c, 't> FnMut(&'c mut Transaction<'t>, Attempt) -> Work<'c, T>,
) -> Result<T, BoxError> {
    let mut attempts = retry.begin(keys)?;
    check_outside(client.simple_query(marked::OUTSIDE).await)?;
    loop {
        let attempt = attempts.next().await?;
        let mut transaction = client.transaction().await?;
        mark(&transaction);
        let worked = match work(&mut transaction, attempt).await {
            Ok(value) => match marked::check(&mut transaction).await {
                Ok(()) => Ok(value),
                Err(error) => Err(error.into()),
            },
            failed => failed,
        };
        let error = match worked {
            Ok(value) => match transaction.commit().await {
                Ok(()) => return Ok(attempts.succeed(value)),
                Err(error) => failed(error).error_of_program("commit").into(),
            },
            Err(error) => {
                // The next attempt must not wait for what this one has locked. Where this fails the
                // connection has ended: there is no next attempt.
                if transaction.rollback().await.is_err() {
                    return Err(error);
                }
                error
            }
        };
        let again = is_conflict(&*error);
        attempts.again(error, again)?;
    }
}

/// Marks the transaction, for the check before its commit. What the first poll sends comes before all that follows on the
/// client; nobody waits for its answer. If it fails, the check does.
fn mark(transaction: &Transaction<'_>) {
    let mark = pin!(transaction.batch_execute(marked::MARK));
    let _sent = mark.poll(&mut Context::from_waker(Waker::noop()));
}

/// Whether work that failed with this error may be done again; see
/// [`is_conflict`](lockapi::versioned::is_conflict).
#[must_use]
pub fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
    lockapi::versioned::is_conflict(error, |error| {
        error
            .downcast_ref::<tokio_postgres::Error>()
            .and_then(sqlstate)
    })
}
