//! Locks on tables of the program, inside its own transactions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::{Operated, Operator, Priority, PriorityScope, Report};
use crate::driver::{Connection, Library, Transaction};
use crate::engine::{CallerConnection, is_standby};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::mutex::{LOCK_TIMEOUT_LIMIT, Timeouts, Tried};
use crate::random;

pub(crate) mod operations;

pub(crate) use operations::{BackendPid, IsInTransaction, LockTable, SetLockTimeout};

/// The longest name of a table or schema, in bytes: the server cuts off what is longer.
pub const MAX_IDENTIFIER_BYTES: usize = 63;

/// The lock mode of a table, from the weakest to the strongest.
///
/// For conflicts between modes see the table of conflicting lock modes in the manual of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableMode {
    /// As a `SELECT` locks it.
    AccessShare,
    /// As a `SELECT … FOR UPDATE` locks it.
    RowShare,
    /// As a statement that writes locks it.
    RowExclusive,
    /// As `VACUUM` and `CREATE INDEX CONCURRENTLY` lock it.
    ShareUpdateExclusive,
    /// As `CREATE INDEX` locks it: blocks writers.
    Share,
    /// As `CREATE TRIGGER` locks it.
    ShareRowExclusive,
    /// Blocks writers and row locks, but not readers.
    Exclusive,
    /// As `ALTER TABLE` locks it: blocks everything.
    AccessExclusive,
}

impl TableMode {
    /// All of them, from the weakest to the strongest.
    pub const ALL: [Self; 8] = [
        Self::AccessShare,
        Self::RowShare,
        Self::RowExclusive,
        Self::ShareUpdateExclusive,
        Self::Share,
        Self::ShareRowExclusive,
        Self::Exclusive,
        Self::AccessExclusive,
    ];

    /// Its name in SQL.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AccessShare => "ACCESS SHARE",
            Self::RowShare => "ROW SHARE",
            Self::RowExclusive => "ROW EXCLUSIVE",
            Self::ShareUpdateExclusive => "SHARE UPDATE EXCLUSIVE",
            Self::Share => "SHARE",
            Self::ShareRowExclusive => "SHARE ROW EXCLUSIVE",
            Self::Exclusive => "EXCLUSIVE",
            Self::AccessExclusive => "ACCESS EXCLUSIVE",
        }
    }
}

/// A table by its exact name, without quotes: `Table::from("Order")` and `Table::from("order")` are
/// different tables. Without a schema it is found in the connection's `search_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    schema: String,
    name: String,
}

impl From<&str> for Table {
    fn from(name: &str) -> Self {
        Self {
            schema: String::new(),
            name: name.to_owned(),
        }
    }
}

/// A schema and the name of a table in it.
impl From<(&str, &str)> for Table {
    fn from((schema, name): (&str, &str)) -> Self {
        Self {
            schema: schema.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.schema.is_empty() {
            write!(f, "{}.", self.schema)?;
        }
        f.write_str(&self.name)
    }
}

impl Table {
    fn check(&self, operation: &'static str) -> Result<()> {
        let fits = |text: &str| text.len() <= MAX_IDENTIFIER_BYTES && !text.contains('\0');
        if self.name.is_empty() || !fits(&self.name) || !fits(&self.schema) {
            let message = format!(
                "the name of the table or its schema is empty, too long, or has a NUL; allowed are 1 to {MAX_IDENTIFIER_BYTES} bytes without NUL"
            );
            let about = self.to_string().replace('\0', "\u{fffd}");
            return Err(Error::new(ErrorKind::Invalid, operation, message).on(about));
        }
        Ok(())
    }
}

/// Tries to lock a table for the transaction that is open on `connection`, without waiting; `false` if
/// another transaction holds a conflicting lock.
///
/// # Cancel safety
/// When dropped, the table may be locked until the transaction ends.
///
/// # Errors
/// As for [`lock_table_in`], except `TimedOut`.
pub fn try_lock_table_in<L: Library, C: Transaction<L> + ?Sized>(
    connection: &mut C,
    table: impl Into<Table>,
    mode: TableMode,
) -> L::Outcome<'_, Result<bool>> {
    let (table, connection) = (table.into(), CallerConnection::new(connection));
    L::outcome(Box::pin(async move {
        lock(connection, "try_lock_table_in", &table, mode, None).await
    }))
}

/// Locks a table for the transaction that is open on `connection`; waits for at most `timeout`. The
/// examples of the backend crates show it for each library.
///
/// # Guarantees
/// In a transaction that is `REPEATABLE READ` or `SERIALIZABLE` the snapshot is that of its first statement, which may be this
/// one: what was committed while it waited is not seen. Begin with `LOCK TABLE` itself there. A partitioned table is locked
/// together with its partitions, one after the other: the time limit is that of each.
///
/// After `TimedOut` the transaction continues as if this had not been called. Its `lock_timeout` and
/// `statement_timeout` are the same afterwards. Any other error of the server ends the transaction.
///
/// # Cancel safety
/// When dropped, the table may be locked until the transaction ends, whose timeouts stay changed.
///
/// # Errors
/// `TimedOut`; `Invalid` for a bad name, for a `timeout` of zero or more than 24 days, and where no
/// transaction is open; `Unsupported` for a table that does not exist, or that the role may not lock;
/// `Unavailable` on a hot standby; and those of the connection.
pub fn lock_table_in<L: Library, C: Transaction<L> + ?Sized>(
    connection: &mut C,
    table: impl Into<Table>,
    mode: TableMode,
    timeout: Duration,
) -> L::Outcome<'_, Result<()>> {
    const OPERATION: &str = "lock_table_in";
    let (table, connection) = (table.into(), CallerConnection::new(connection));
    L::outcome(Box::pin(async move {
        check_timeout(OPERATION, timeout).map_err(|error| error.on(&table))?;
        if lock(connection, OPERATION, &table, mode, Some(timeout)).await? {
            return Ok(());
        }
        Err(Error::not_granted(OPERATION, timeout).on(&table))
    }))
}

async fn lock(
    mut connection: CallerConnection<'_>,
    operation: &'static str,
    table: &Table,
    mode: TableMode,
    timeout: Option<Duration>,
) -> Result<bool> {
    table.check(operation)?;
    let failed = |failure: Failure| failure.error(operation).on(table);
    let mark = random::text().map_err(|error| error.during(operation).on(table))?;
    let bounded = Timeouts {
        lock: millis(timeout.unwrap_or_default()),
        statement: "0".to_owned(),
        mark: mark.clone(),
    };
    let lock = LockTable {
        schema: table.schema.clone(),
        table: table.name.clone(),
        mode,
        no_wait: timeout.is_none(),
        mark,
    };
    let before = connection.perform(&[bounded]).await.map_err(failed)?;
    let granted = connection.perform(&[lock]).await;
    let granted = granted.map_err(|failure| match failure.sqlstate.as_deref() {
        // The table of the program, or its schema; whatever else is missing is a part of lockapi's.
        Some("42P01") => failure.error_of_program(operation).on(table),
        Some("3F000") if !table.schema.is_empty() => failure.error_of_program(operation).on(table),
        _ => failed(failure),
    })?;
    if granted == [Tried::NoTransaction] {
        return Err(no_transaction(operation).on(table));
    }
    connection.perform(&before).await.map_err(failed)?;
    if granted == [Tried::Standby] {
        return Err(failed(is_standby()));
    }
    Ok(granted == [Tried::Granted])
}

/// What `lock_timeout` was before it was limited; see [`limit_waits_in`].
#[derive(Clone, Debug)]
#[must_use = "the limit lasts until it is lifted or the transaction ends"]
pub struct WaitLimit {
    before: String,
}

/// Limits the wait of each statement for a lock to `timeout`, in the transaction that is open on
/// `connection`, until the limit is [lifted](WaitLimit::lift_in).
///
/// The backend crates have `with_lock_timeout_in`, which limits what runs in a scope.
///
/// # Cancel safety
/// When dropped, the limit may stay until the transaction ends.
///
/// # Errors
/// `Invalid` for a `timeout` of zero or more than 24 days, and where no transaction is open; those of
/// the connection.
pub fn limit_waits_in<L: Library, C: Transaction<L> + ?Sized>(
    connection: &mut C,
    timeout: Duration,
) -> L::Outcome<'_, Result<WaitLimit>> {
    let connection = CallerConnection::new(connection);
    L::outcome(Box::pin(limit(connection, "limit_waits_in", timeout)))
}

async fn limit(
    mut connection: CallerConnection<'_>,
    operation: &'static str,
    timeout: Duration,
) -> Result<WaitLimit> {
    check_timeout(operation, timeout)?;
    let failed = |failure: Failure| failure.error(operation);
    let mark = random::text().map_err(|error| error.during(operation))?;
    let limit = SetLockTimeout {
        timeout: millis(timeout),
        mark: mark.clone(),
    };
    let before = connection.perform(&[limit]).await.map_err(failed)?;
    let marked = connection.perform(&[IsInTransaction { mark }]).await;
    if marked.map_err(failed)? != [true] {
        return Err(no_transaction(operation));
    }
    let before = before.into_iter().next().unwrap_or_default();
    Ok(WaitLimit { before })
}

impl WaitLimit {
    /// Restores `lock_timeout`. If the transaction has failed, its rollback restores it instead.
    ///
    /// # Cancel safety
    /// When dropped, the limit may stay until the transaction ends.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn lift_in<L: Library, C: Transaction<L> + ?Sized>(
        self,
        connection: &mut C,
    ) -> L::Outcome<'_, Result<()>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(self.lift(connection, "lift_in")))
    }

    async fn lift(
        self,
        mut connection: CallerConnection<'_>,
        operation: &'static str,
    ) -> Result<()> {
        let former = SetLockTimeout {
            timeout: self.before,
            mark: String::new(),
        };
        let lifted = connection.perform(&[former]).await;
        lifted.map(drop).map_err(|failure| failure.error(operation))
    }
}

/// Runs `work` in the transaction that is open on `connection`, with no statement waiting longer than
/// `timeout` for a lock; afterwards the transaction's `lock_timeout` is what it was.
///
/// For async libraries; the crates of the others, and that of sqlx, have their own.
///
/// # Cancel safety
/// When dropped, the limit stays until the transaction ends.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for a `timeout` of zero or more than 24
/// days, and where no transaction is open, and those of the connection.
pub async fn with_lock_timeout_in<L: Library, C: Transaction<L>, T, E>(
    connection: &mut C,
    timeout: Duration,
    work: impl AsyncFnOnce(&mut C) -> std::result::Result<T, E>,
) -> std::result::Result<T, E>
where
    E: From<Error>,
{
    const OPERATION: &str = "with_lock_timeout_in";
    let limited = limit(CallerConnection::new(connection), OPERATION, timeout).await?;
    // After an error the transaction is to be rolled back, with its settings.
    let value = work(connection).await;
    let connection = CallerConnection::new(connection);
    let lifted = limited.lift(connection, OPERATION).await;
    let value = value?;
    lifted?;
    Ok(value)
}

/// Gives priority to the session of `connection` until the scope ends; see [`Operator::prioritize`].
///
/// The backend crates have `with_priority_in`, which gives priority to what runs in a scope.
///
/// # Cancel safety
/// When dropped, no session is cancelled or terminated.
///
/// # Errors
/// `Invalid` for times outside of their limits; those of the connection.
pub fn prioritize_in<L: Library, C: Transaction<L> + ?Sized>(
    connection: &mut C,
    operator: Arc<dyn Operator>,
    priority: Priority,
) -> L::Outcome<'_, Result<PriorityScope>> {
    let connection = CallerConnection::new(connection);
    L::outcome(Box::pin(clear(
        connection,
        "prioritize_in",
        operator,
        priority,
    )))
}

async fn clear(
    mut connection: CallerConnection<'_>,
    operation: &'static str,
    operator: Arc<dyn Operator>,
    priority: Priority,
) -> Result<PriorityScope> {
    let pid = connection.perform(&[BackendPid]).await;
    let pid = pid.map_err(|failure| failure.error(operation))?;
    let pid = pid.first().copied().unwrap_or_default();
    let scope = operator.prioritize(pid, priority);
    scope.map_err(|error| error.during(operation))
}

/// Runs `work` in the transaction that is open on `connection` with priority: the statements of sessions that
/// block it are cancelled and, after a grace period, these sessions are terminated. Also returns which
/// sessions were signalled. `backend` finds and signals them; see [`Operator::prioritize`].
///
/// For async libraries; the crates of the others, and that of sqlx, have their own.
///
/// # Cancel safety
/// When dropped, no further session is signalled, except by a statement that runs already.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for times outside of their limits, and
/// those of the connection.
pub async fn with_priority_in<B, L: Library, C: Transaction<L>, T, E>(
    backend: &B,
    connection: &mut C,
    priority: Priority,
    work: impl AsyncFnOnce(&mut C) -> std::result::Result<T, E>,
) -> std::result::Result<(T, Report), E>
where
    B: Operated + ?Sized,
    E: From<Error>,
{
    let (caller, operator) = (CallerConnection::new(connection), backend.as_operator());
    let scope = clear(caller, "with_priority_in", operator, priority).await?;
    let value = work(connection).await?;
    Ok((value, scope.finish().await))
}

pub(crate) fn check_timeout(operation: &'static str, timeout: Duration) -> Result<()> {
    if timeout.is_zero() || timeout > LOCK_TIMEOUT_LIMIT {
        let message = format!(
            "a timeout of {timeout:?}; allowed are 1 ns to 24 days, rounded up to milliseconds"
        );
        return Err(Error::new(ErrorKind::Invalid, operation, message));
    }
    Ok(())
}

fn millis(timeout: Duration) -> String {
    format!("{}ms", timeout.as_nanos().div_ceil(1_000_000))
}

pub(crate) fn no_transaction(operation: &'static str) -> Error {
    let message = "no transaction is open on the connection; begin one first";
    Error::new(ErrorKind::Invalid, operation, message)
}
