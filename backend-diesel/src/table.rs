//! Locks on tables of the program, inside its own transactions. All calls block.

use std::time::Duration;

use diesel::PgConnection;
use lockapi::Result;
use lockapi::admin::{Operated, Priority, Report};
use lockapi::blocking::block_on;
use lockapi::driver::Inline;
use lockapi::table::{
    Table, TableMode, limit_waits_on, lock_table_on, prioritize_on, try_lock_table_on,
};

use crate::connector::Borrowed;

/// Locks a table for the transaction that is open on `connection`, without waiting; `false` when
/// another is in the way. See [`try_lock_table_on`].
///
/// # Errors
/// As for [`lock_table_in`], but for `TimedOut`.
pub fn try_lock_table_in(
    connection: &mut PgConnection,
    table: impl Into<Table>,
    mode: TableMode,
) -> Result<bool> {
    let connection = &mut Inline(Borrowed(connection));
    block_on(try_lock_table_on(connection, &table.into(), mode))
}

/// Locks a table for the transaction that is open on `connection`, and waits for that at most
/// `timeout`. See [`lock_table_on`].
///
/// ```no_run
/// use std::time::Duration;
/// use diesel::prelude::*;
/// use lockapi::table::TableMode;
/// # fn example(mut conn: PgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// conn.transaction(|conn| {
///     lockapi_diesel::lock_table_in(conn, "orders", TableMode::Share, Duration::from_secs(5))?;
///     Ok::<_, Box<dyn std::error::Error>>(()) // unlocks it
/// })
/// # }
/// ```
///
/// # Errors
/// `TimedOut`; `Invalid` for a bad name, for a `timeout` of zero or more than 24 days, and where no
/// transaction is open; `Unsupported` for a table that is not there, or that the role may not lock;
/// and those of the connection.
pub fn lock_table_in(
    connection: &mut PgConnection,
    table: impl Into<Table>,
    mode: TableMode,
    timeout: Duration,
) -> Result<()> {
    let connection = &mut Inline(Borrowed(connection));
    block_on(lock_table_on(connection, &table.into(), mode, timeout))
}

/// Runs `work` in the transaction that is open on `connection`, with no statement waiting longer than
/// `timeout` for a lock; afterwards the transaction's `lock_timeout` is what it was.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for a `timeout` of zero or more than 24
/// days, and where no transaction is open, and those of the connection.
pub fn with_lock_timeout_in<T, E, W>(
    connection: &mut PgConnection,
    timeout: Duration,
    work: W,
) -> std::result::Result<T, E>
where
    E: From<lockapi::Error>,
    W: FnOnce(&mut PgConnection) -> std::result::Result<T, E>,
{
    let limiting = &mut Inline(Borrowed(&mut *connection));
    let limited = block_on(limit_waits_on(limiting, timeout))?;
    // After an error the transaction is to be rolled back, with its settings.
    let value = work(&mut *connection);
    let lifted = block_on(limited.lift_on(&mut Inline(Borrowed(connection))));
    let value = value?;
    lifted?;
    Ok(value)
}

/// Runs `work` in the transaction that is open on `connection` with priority: who is in its way is
/// cancelled, and after a grace period ended. Answers who was hit as well. See
/// [`Operator::prioritize`](lockapi::admin::Operator::prioritize); `backend` looks and strikes.
///
/// ```no_run
/// use diesel::prelude::*;
/// use lockapi::admin::Priority;
/// # fn example(mut conn: PgConnection, backend: lockapi::blocking::Backend) -> Result<(), Box<dyn std::error::Error>> {
/// conn.transaction(|conn| {
///     let priority = Priority::new("add a column to orders");
///     let (_, report) = lockapi_diesel::with_priority_in(&backend, conn, priority, |conn| {
///         diesel::sql_query("ALTER TABLE orders ADD note text").execute(conn)?;
///         Ok::<_, Box<dyn std::error::Error>>(())
///     })?;
///     println!("{} sessions were in the way", report.hits.len());
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for times outside of their limits, and
/// those of the connection.
pub fn with_priority_in<B, T, E, W>(
    backend: &B,
    connection: &mut PgConnection,
    priority: Priority,
    work: W,
) -> std::result::Result<(T, Report), E>
where
    B: Operated + ?Sized,
    E: From<lockapi::Error>,
    W: FnOnce(&mut PgConnection) -> std::result::Result<T, E>,
{
    let starting = &mut Inline(Borrowed(&mut *connection));
    let scope = block_on(prioritize_on(starting, backend, priority))?;
    let value = work(connection)?;
    Ok((value, block_on(scope.finish())))
}
