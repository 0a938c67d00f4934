//! Optimistic locking of the program's own rows.

use std::cell::Cell;
use std::error::Error as StdError;

use lockapi::versioned::{
    Attempt, BoxError, Outcome, Retry, Table, Update, check_before_commit, marked,
};
use lockapi_postgres_types::{Typed, check_outside, failed, outcome, refused, sqlstate, typed};
use postgres::types::{ToSql, Type};
use postgres::{Client, GenericClient, Transaction};

const OPERATION: &str = "update_versioned";

/// A write to one row that succeeds only if the row still has the version that was seen.
///
/// ```no_run
/// use lockapi_postgres::VersionedUpdate;
/// use lockapi::versioned::{Outcome, Table};
/// use postgres::types::Type;
/// # fn example(mut client: postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let accounts = Table::new("account", &["id"], "version")?;
/// let row = client.query_one("SELECT balance, version FROM account WHERE id = 7", &[])?;
/// let (balance, version): (i64, i64) = (row.get(0), row.get(1));
/// let update = VersionedUpdate::of(&accounts)
///     .key(7_i64, Type::INT8)
///     .set("balance", balance + 1, Type::INT8);
/// match update.run(&mut client, version)? {
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
    /// version `seen`; the version is then one higher. It takes one round trip, and blocks.
    ///
    /// # Errors
    /// `Invalid` for columns that cannot be, a key that is not complete, a value that cannot be encoded
    /// as its type, and one that the server refuses, such as by a constraint; `Unsupported` for a table or
    /// column that is not there, and when a trigger or a policy of the table suppressed the write; those of
    /// the connection.
    pub fn run<C: GenericClient>(self, client: &mut C, seen: i64) -> lockapi::Result<Outcome> {
        let (sql, values) = self.0.statement((Box::new(seen), Type::INT8))?;
        let rows = client.query_typed(&sql, &typed(&values));
        let rows = rows.map_err(|error| refused(error, OPERATION))?;
        outcome(&rows, seen, OPERATION)
    }
}

/// Runs `work` in a transaction and commits it, and does it again, in a new transaction, after a
/// conflict: a row that was written since it was read, a serialization failure or a deadlock, also
/// at the commit. `keys` name the rows that it writes; see [`Retry`]. It blocks.
///
/// ```no_run
/// use lockapi_postgres::{VersionedUpdate, transact};
/// use lockapi::versioned::{BoxError, Retry, Table};
/// use postgres::{Client, types::Type};
///
/// fn increment(client: &mut Client, retry: &Retry, table: &Table) -> Result<i64, BoxError> {
///     transact(client, retry, &["counter/7"], |tx, attempt| {
///         let read = if attempt.locks() {
///             "SELECT value, version FROM counter WHERE id = 7 FOR NO KEY UPDATE"
///         } else {
///             "SELECT value, version FROM counter WHERE id = 7"
///         };
///         let row = tx.query_one(read, &[])?;
///         let value = row.get::<_, i64>(0) + 1;
///         let update = VersionedUpdate::of(table)
///             .key(7_i64, Type::INT8)
///             .set("value", value, Type::INT8);
///         update.run(tx, row.get(1))?.updated()?;
///         Ok(value)
///     })
/// }
/// ```
///
/// # Guarantees
/// `Ok` means that it is committed. Where a statement failed and `work` returned `Ok` all the same, PostgreSQL would roll
/// back and report the commit as done; one more statement before the commit finds that out, and that `work` has ended the
/// transaction itself. It does not find out that `work` has begun another one by statements of its own.
///
/// Work whose commit ended without an answer is not done again: the error is `Indeterminate`.
///
/// # Errors
/// The error of `work` if it is no conflict, or of the last attempt; those of connection and commit; `Invalid` where `work`
/// kept the error of a statement to itself, and where a transaction is open on `client`, which one more round trip finds out.
pub fn transact<T>(
    client: &mut Client,
    retry: &Retry,
    keys: &[&str],
    mut work: impl FnMut(&mut Transaction<'_>, Attempt) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    check_outside(client.simple_query(marked::OUTSIDE))?;
    // After that there is no next attempt.
    let ended = Cell::new(false);
    let is_conflict = |error: &(dyn StdError + 'static)| !ended.get() && is_conflict(error);
    retry.run_blocking(keys, is_conflict, |attempt| {
        let mut transaction = client.transaction()?;
        let outcome = work(&mut transaction, attempt).and_then(|value| {
            check_before_commit(&mut transaction)?;
            Ok(value)
        });
        match outcome {
            Ok(value) => {
                let committed = transaction.commit();
                committed.map_err(|error| failed(error).error_of_program("commit"))?;
                Ok(value)
            }
            Err(error) => {
                // Where this fails the connection has ended, and the transaction with it.
                ended.set(transaction.rollback().is_err());
                Err(error)
            }
        }
    })
}

/// Whether work that failed with this error may be done again; see
/// [`is_conflict`](lockapi::versioned::is_conflict).
#[must_use]
pub fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
    lockapi::versioned::is_conflict(error, |error| {
        error.downcast_ref::<postgres::Error>().and_then(sqlstate)
    })
}
