//! Optimistic locking of the program's own rows.

use std::error::Error as StdError;

use diesel::connection::{AnsiTransactionManager, TransactionManager};
use diesel::pg::{Pg, PgConnection};
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{BigInt, Nullable};
use diesel::{QueryResult, RunQueryDsl};
use lockapi::versioned::{Attempt, BoxError, Outcome, Retry, frame};

use crate::failure::{failed, sqlstate_of};

/// Runs a versioned update that is made with the program's own `table!`: what locks the row and
/// reads its version, and what writes it if the version is still the one that was seen. It takes one
/// round trip, in the transaction that is open on `connection` or in one of its own, and blocks.
///
/// ```no_run
/// use lockapi_diesel::update_versioned;
/// use diesel::prelude::*;
/// use lockapi::versioned::Outcome;
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
/// use account::{balance, version};
///
/// let row = account::table.find(7);
/// let (had, seen): (i64, i64) = row.select((balance, version)).first(conn)?;
/// let found = row.select(version).for_no_key_update();
/// let written = diesel::update(row.filter(version.eq(seen)))
///     .set((balance.eq(had + 1), version.eq(version + 1)))
///     .returning(version);
/// match update_versioned(conn, seen, found, written)? {
///     Outcome::Updated(now) => println!("version {now}"),
///     Outcome::Stale { current } => println!("somebody wrote version {current}"),
///     Outcome::Gone => println!("no such account"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// Both have one column, the version, which is an integer, and are about the same row; `seen` is the
/// version that the second one looks for.
///
/// # Errors
/// `Unsupported` when a trigger or a policy of the table suppressed the write; those of the connection.
pub fn update_versioned<F, W>(
    connection: &mut PgConnection,
    seen: i64,
    found: F,
    written: W,
) -> lockapi::Result<Outcome>
where
    F: QueryFragment<Pg>,
    W: QueryFragment<Pg>,
{
    let query = Versioned { found, written };
    let rows: QueryResult<Vec<(Option<i64>, Option<i64>)>> = query.load(connection);
    let rows = rows.map_err(|error| failed(error).error("update_versioned"))?;
    let (found, written) = rows.first().copied().unwrap_or_default();
    Outcome::of(seen, found, written)
}

/// Both parts in one statement; see [`frame`].
struct Versioned<F, W> {
    found: F,
    written: W,
}

impl<F: QueryFragment<Pg>, W: QueryFragment<Pg>> QueryFragment<Pg> for Versioned<F, W> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let [before, between, after] = frame();
        out.push_sql(before);
        self.found.walk_ast(out.reborrow())?;
        out.push_sql(between);
        self.written.walk_ast(out.reborrow())?;
        out.push_sql(after);
        Ok(())
    }
}

impl<F, W> QueryId for Versioned<F, W> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<F, W> Query for Versioned<F, W> {
    type SqlType = (Nullable<BigInt>, Nullable<BigInt>);
}

impl<F, W> RunQueryDsl<PgConnection> for Versioned<F, W> {}

/// Runs `work` in a transaction and commits it, and does it again, in a new transaction, after a
/// conflict: a row that was written since it was read, a serialization failure or a deadlock, also
/// at the commit. `keys` name the rows that it writes; see [`Retry`]. It blocks.
///
/// ```no_run
/// use lockapi_diesel::{transact, update_versioned};
/// use diesel::prelude::*;
/// use lockapi::versioned::{BoxError, Retry};
///
/// diesel::table! {
///     counter (id) {
///         id -> BigInt,
///         value -> BigInt,
///         version -> BigInt,
///     }
/// }
///
/// fn increment(conn: &mut PgConnection, retry: &Retry) -> Result<i64, BoxError> {
///     use counter::{value, version};
///
///     transact(conn, retry, &["counter/7"], |conn, attempt| {
///         let row = counter::table.find(7);
///         let read = row.select((value, version));
///         let (had, seen): (i64, i64) = if attempt.locks() {
///             read.for_no_key_update().first(conn)?
///         } else {
///             read.first(conn)?
///         };
///         let written = diesel::update(row.filter(version.eq(seen)))
///             .set((value.eq(had + 1), version.eq(version + 1)))
///             .returning(version);
///         let found = row.select(version).for_no_key_update();
///         update_versioned(conn, seen, found, written)?.updated()?;
///         Ok(had + 1)
///     })
/// }
/// ```
///
/// # Guarantees
/// Work whose commit ended without an answer is not done again.
///
/// # Errors
/// The error of `work` if it is no conflict, or of the last attempt; those of connection and commit.
pub fn transact<T>(
    connection: &mut PgConnection,
    retry: &Retry,
    keys: &[&str],
    mut work: impl FnMut(&mut PgConnection, Attempt) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    retry.run_blocking(keys, is_conflict, |attempt| {
        AnsiTransactionManager::begin_transaction(connection)?;
        match work(connection, attempt) {
            Ok(value) => {
                let committed = AnsiTransactionManager::commit_transaction(connection);
                committed.map_err(|error| failed(error).error("commit"))?;
                Ok(value)
            }
            Err(error) => {
                AnsiTransactionManager::rollback_transaction(connection)?;
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
        let error = error.downcast_ref::<diesel::result::Error>()?;
        sqlstate_of(error).map(str::to_owned)
    })
}
