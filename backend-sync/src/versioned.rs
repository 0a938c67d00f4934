//! Optimistic locking of the program's own rows.

use std::error::Error as StdError;

use lockapi::versioned::{Attempt, BoxError, Outcome, Retry, Table};
use lockapi::{Error, ErrorKind, Failure};
use postgres::types::{ToSql, Type};
use postgres::{Client, GenericClient, Transaction};

use crate::connector::{failed, sqlstate};

/// A value as [`GenericClient::query_typed`] takes it.
pub type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

/// Writes columns of one row if it has the version `seen`; the version is then one higher. It takes
/// one round trip, in the transaction that is open on `client` or in one of its own, and blocks.
///
/// ```no_run
/// use lockapi_postgres::update_versioned;
/// use lockapi::versioned::{Outcome, Table};
/// use postgres::types::Type;
/// # fn example(mut client: postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let accounts = Table::new("account", &["id"], "version")?;
/// let row = client.query_one("SELECT balance, version FROM account WHERE id = 7", &[])?;
/// let (balance, version): (i64, i64) = (row.get(0), row.get(1));
/// let key = [(&7_i64 as _, Type::INT8)];
/// let set = [("balance", (&(balance + 1) as _, Type::INT8))];
/// match update_versioned(&mut client, &accounts, &key, version, &set)? {
///     Outcome::Updated(version) => println!("version {version}"),
///     Outcome::Stale { current } => println!("somebody wrote version {current}"),
///     Outcome::Gone => println!("no such account"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Invalid` for columns that cannot be, and a key that is not complete; `Unsupported` when a trigger or
/// a policy of the table suppressed the write; those of the connection.
pub fn update_versioned<C: GenericClient>(
    client: &mut C,
    table: &Table,
    key: &[Typed<'_>],
    seen: i64,
    set: &[(&str, Typed<'_>)],
) -> lockapi::Result<Outcome> {
    const OPERATION: &str = "update_versioned";
    if key.len() != table.key_columns() {
        let message = format!(
            "{} values for the key, which has {} columns",
            key.len(),
            table.key_columns()
        );
        return Err(Error::new(ErrorKind::Invalid, OPERATION, message));
    }
    let columns: Vec<_> = set.iter().map(|(column, _)| *column).collect();
    let sql = table.update(&columns)?;
    let version: Typed<'_> = (&seen, Type::INT8);
    let values = set.iter().map(|(_, value)| value);
    let params: Vec<Typed<'_>> = key
        .iter()
        .chain([&version])
        .chain(values)
        .cloned()
        .collect();
    let rows = client.query_typed(&sql, &params);
    let rows = rows.map_err(|error| failed(error).error(OPERATION))?;
    let Some(row) = rows.first() else {
        return Ok(Outcome::Gone);
    };
    match (row.try_get(0), row.try_get(1)) {
        (Ok(found), Ok(written)) => Outcome::of(seen, found, written),
        (Err(error), _) | (_, Err(error)) => {
            Err(Failure::corrupt(error.to_string()).error(OPERATION))
        }
    }
}

/// Runs `work` in a transaction and commits it, and does it again, in a new transaction, after a
/// conflict: a row that was written since it was read, a serialization failure or a deadlock, also
/// at the commit. `keys` name the rows that it writes; see [`Retry`]. It blocks.
///
/// ```no_run
/// use lockapi_postgres::{transact, update_versioned};
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
///         let set = [("value", (&value as _, Type::INT8))];
///         update_versioned(tx, table, &[(&7_i64, Type::INT8)], row.get(1), &set)?.updated()?;
///         Ok(value)
///     })
/// }
/// ```
///
/// # Guarantees
/// Work whose commit ended without an answer is not done again: the error is `Indeterminate`.
///
/// # Errors
/// The error of `work` if it is no conflict, or of the last attempt; those of connection and commit.
pub fn transact<T>(
    client: &mut Client,
    retry: &Retry,
    keys: &[&str],
    mut work: impl FnMut(&mut Transaction<'_>, Attempt) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    retry.run_blocking(keys, is_conflict, |attempt| {
        let mut transaction = client.transaction()?;
        let value = work(&mut transaction, attempt)?;
        let committed = transaction.commit();
        committed.map_err(|error| failed(error).error("commit"))?;
        Ok(value)
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
