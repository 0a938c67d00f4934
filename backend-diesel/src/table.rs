//! Locks on tables of the program, inside its own transactions. All calls block.

use std::time::Duration;

use diesel::PgConnection;
use lockapi::admin::{Operated, Priority, Report};
use lockapi::table::{limit_waits_in, prioritize_in};

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
    const LIMITED: &str = "with_lock_timeout_in";
    let limited = limit_waits_in(connection, timeout).map_err(|error| error.during(LIMITED))?;
    // After an error the transaction is to be rolled back, with its settings.
    let value = work(connection);
    let lifted = limited.lift_in(connection);
    let value = value?;
    lifted.map_err(|error| error.during(LIMITED))?;
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
///     println!("{} sessions were in the way", report.signalled.len());
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
    let scope = prioritize_in(connection, backend.as_operator(), priority);
    let scope = scope.map_err(|error| error.during("with_priority_in"))?;
    let value = work(connection)?;
    Ok((value, scope.finish_blocking()))
}
