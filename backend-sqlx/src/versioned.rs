//! Optimistic locking of the program's own rows.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use lockapi::versioned::{Attempt, BoxError, Outcome, Retry, Table, Update, marked};
use lockapi::{Error, ErrorKind, Failure};
use sqlx::encode::Encode;
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::{Arguments, PgPool, Postgres, Row, Transaction, Type};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::connector::{failed, sqlstate};
use super::{assembled, fixed, sqlx, wrapped};

const OPERATION: &str = "update_versioned";

/// A write to one row that succeeds only if the row still has the version that was seen.
///
/// ```no_run
/// use lockapi_sqlx::VersionedUpdate;
/// use lockapi::versioned::{Outcome, Table};
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let accounts = Table::new("account", &["id"], "version")?;
/// let mut connection = pool.acquire().await?;
/// let (balance, version): (i64, i64) =
///     sqlx::query_as("SELECT balance, version FROM account WHERE id = 7").fetch_one(&mut *connection).await?;
/// let update = VersionedUpdate::of(&accounts).key(7_i64).set("balance", balance + 1);
/// match update.run(&mut connection, version).await? {
///     Outcome::Updated(version) => println!("version {version}"),
///     Outcome::Stale { current } => println!("somebody wrote version {current}"),
///     Outcome::Gone => println!("no such account"),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is written until it is run"]
#[derive(Debug)]
pub struct VersionedUpdate<'t> {
    update: Update<'t, Value<'t>>,
    persistent: bool,
}

/// Adds a value to the arguments.
struct Value<'t>(Box<Add<'t>>);

type Add<'t> = dyn FnOnce(&mut PgArguments) -> Result<(), BoxError> + Send + 't;

impl<'t> Value<'t> {
    fn new<V>(value: V) -> Self
    where
        V: for<'q> Encode<'q, Postgres> + Type<Postgres> + Send + 't,
    {
        Self(Box::new(move |arguments| arguments.add(value)))
    }

    fn add(self, arguments: &mut PgArguments) -> lockapi::Result<()> {
        (self.0)(arguments).map_err(unencodable)
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value")
    }
}

impl<'t> VersionedUpdate<'t> {
    /// Of a row of this table.
    pub fn of(table: &'t Table) -> Self {
        Self {
            update: Update::of(table),
            persistent: true,
        }
    }

    /// The value of the next column of the key.
    pub fn key<V>(mut self, value: V) -> Self
    where
        V: for<'q> Encode<'q, Postgres> + Type<Postgres> + Send + 't,
    {
        self.update = self.update.key(Value::new(value));
        self
    }

    /// Sets a column.
    pub fn set<V>(mut self, column: &'t str, value: V) -> Self
    where
        V: for<'q> Encode<'q, Postgres> + Type<Postgres> + Send + 't,
    {
        self.update = self.update.set(column, Value::new(value));
        self
    }

    /// Whether the statement stays prepared on the connection, as by
    /// [`persistent`](sqlx::query::Query::persistent) of sqlx; it does by default. With `false` it takes two round trips,
    /// and goes behind a transaction-pooling proxy that forgets prepared statements, and on a connection on which the
    /// program runs `DISCARD ALL`.
    pub fn persistent(mut self, persistent: bool) -> Self {
        self.persistent = persistent;
        self
    }

    /// Writes, in the transaction that is open on `connection` or in one of its own, if the row has
    /// the version `seen`; the version is then one higher. It takes one round trip, and one more when the
    /// connection first prepares the statement.
    ///
    /// # Cancel safety
    /// When dropped, the row may or may not be written.
    ///
    /// # Errors
    /// `Invalid` for columns that cannot be, a key that is not complete, a value that cannot be encoded,
    /// and one that the server refuses, such as by a constraint; `Unsupported` for a table or
    /// column that is not there, and when a trigger or a policy of the table suppressed the write; those of
    /// the connection.
    pub async fn run(self, connection: &mut PgConnection, seen: i64) -> lockapi::Result<Outcome> {
        let (sql, values) = self.update.statement(Value::new(seen))?;
        let mut arguments = PgArguments::default();
        for value in values {
            value.add(&mut arguments)?;
        }
        let query = sqlx::query_with(assembled(&sql), arguments).persistent(self.persistent);
        let row = query.fetch_optional(connection).await;
        let row = row.map_err(refused)?;
        let Some(row) = row else {
            return Ok(Outcome::Gone);
        };
        let column = |at: usize| row.try_get::<Option<i64>, _>(at);
        match (column(0), column(1)) {
            (Ok(found), Ok(written)) => Outcome::of(seen, found, written),
            (Err(error), _) | (_, Err(error)) => {
                Err(Failure::corrupt(error.to_string()).error(OPERATION))
            }
        }
    }
}

/// What cannot be encoded was not sent.
fn refused(error: sqlx::Error) -> Error {
    match error {
        sqlx::Error::TypeNotFound { .. } | sqlx::Error::Encode(_) => unencodable(error),
        error => failed(error).error_of_program(OPERATION),
    }
}

fn unencodable(error: impl fmt::Display) -> Error {
    let message = format!("a value cannot be encoded: {error}");
    Error::new(ErrorKind::Invalid, OPERATION, message)
}

/// Runs `work` in a transaction and commits it, and does it again, in a new transaction, after a
/// conflict: a row that was written since it was read, a serialization failure or a deadlock, also
/// at the commit. `keys` name the rows that it writes; see [`Retry`].
///
/// ```no_run
/// use lockapi_sqlx::{VersionedUpdate, transact};
/// use lockapi::versioned::{BoxError, Retry, Table};
///
/// async fn increment(pool: &sqlx::PgPool, retry: &Retry, table: &Table) -> Result<i64, BoxError> {
///     transact(pool, retry, &["counter/7"], |mut tx| async move {
///         let read = if tx.attempt().locks() {
///             "SELECT value, version FROM counter WHERE id = 7 FOR NO KEY UPDATE"
///         } else {
///             "SELECT value, version FROM counter WHERE id = 7"
///         };
///         let (value, version): (i64, i64) = sqlx::query_as(read).fetch_one(&mut *tx).await?;
///         let update = VersionedUpdate::of(table).key(7_i64).set("value", value + 1);
///         update.run(&mut tx, version).await?.updated()?;
///         Ok(value + 1)
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
/// When dropped before the commit was sent, nothing is written, and the connection goes back to the pool
/// without a transaction. (Programs that call `pool.begin()` themselves: with sqlx 0.9.0 a future that is dropped
/// while BEGIN is under way leaves the connection of the pool in that transaction.)
///
/// # Errors
/// The error of `work` if it is no conflict, or of the last attempt; those of pool and commit; `Invalid` where `work`
/// kept the error of a statement to itself.
pub async fn transact<T, W>(
    pool: &PgPool,
    retry: &Retry,
    keys: &[&str],
    mut work: impl FnMut(Begun) -> W,
) -> Result<T, BoxError>
where
    W: Future<Output = Result<T, BoxError>>,
{
    let mut attempts = retry.begin(keys)?;
    loop {
        let attempt = attempts.next().await?;
        let transaction = Arc::new(Mutex::new(begin(pool).await?));
        let begun = Begun {
            transaction: Arc::clone(&transaction).lock_owned().await,
            attempt,
        };
        let outcome = work(begun).await;
        let Some(transaction) = Arc::into_inner(transaction) else {
            let message = "the work kept its transaction after it returned; drop it, so that it can be committed";
            return Err(Error::new(ErrorKind::Invalid, "transact", message).into());
        };
        let mut transaction = transaction.into_inner();
        let outcome = match outcome {
            Ok(value) => match marked::check(&mut *transaction).await {
                Ok(()) => Ok(value),
                Err(error) => Err(error.into()),
            },
            failed => failed,
        };
        let error = match outcome {
            Ok(value) => match transaction.commit().await {
                Ok(()) => return Ok(attempts.succeed(value)),
                Err(error) => failed(error).error_of_program("commit").into(),
            },
            Err(error) => {
                // The next attempt must not wait for what this one has locked. Where this fails the
                // connection has ended, and the transaction with it.
                let _ended = transaction.rollback().await;
                error
            }
        };
        let again = is_conflict(&*error);
        attempts.again(error, again)?;
    }
}

/// Begins a transaction, on a task of its own once there is a connection. sqlx 0.9.0 gives a connection
/// back to the pool as it is when its BEGIN is given up before the answer: the next user of the
/// connection would be in that transaction.
async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, BoxError> {
    let connection = pool.acquire().await?;
    let begun = tokio::spawn(Transaction::begin(connection, Some(fixed(marked::BEGIN))));
    Ok(begun.await??)
}

/// The transaction of an attempt, which is committed or rolled back when the work has ended.
pub struct Begun {
    transaction: OwnedMutexGuard<Transaction<'static, Postgres>>,
    attempt: Attempt,
}

impl Begun {
    /// The attempt.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun")
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl Deref for Begun {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.transaction
    }
}

impl DerefMut for Begun {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }
}

/// Whether work that failed with this error may be done again; see
/// [`is_conflict`](lockapi::versioned::is_conflict).
#[must_use]
pub fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
    lockapi::versioned::is_conflict(error, |error| {
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return sqlstate(error);
        }
        // Any code of a conflict.
        is_conflict(wrapped(error)?).then(|| "40001".to_owned())
    })
}
