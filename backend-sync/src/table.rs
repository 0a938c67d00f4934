//! Locks on tables of the program, inside its own transactions. All calls block.

use std::time::Duration;

use lockapi::admin::{Operated, Priority, Report};
use lockapi::driver::Transaction;
use lockapi::table::{limit_waits_in, prioritize_in};

use crate::transaction::Postgres;

/// Runs `work` in the transaction that is open on `connection`, with no statement waiting longer than
/// `timeout` for a lock; afterwards the transaction's `lock_timeout` is what it was.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for a `timeout` of zero or more than 24
/// days, and where no transaction is open, and those of the connection.
pub fn with_lock_timeout_in<C: Transaction<Postgres>, T, E, W>(
    connection: &mut C,
    timeout: Duration,
    work: W,
) -> std::result::Result<T, E>
where
    E: From<lockapi::Error>,
    W: FnOnce(&mut C) -> std::result::Result<T, E>,
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
/// use lockapi::admin::Priority;
/// # fn example(mut client: postgres::Client, backend: lockapi::blocking::Backend) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction()?;
/// let priority = Priority::new("add a column to orders");
/// let (_, report) = lockapi_postgres::with_priority_in(&backend, &mut tx, priority, |tx| {
///     tx.batch_execute("ALTER TABLE orders ADD note text")?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })?;
/// tx.commit()?;
/// println!("{} sessions were in the way", report.signalled.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for times outside of their limits, and
/// those of the connection.
pub fn with_priority_in<C: Transaction<Postgres>, B, T, E, W>(
    backend: &B,
    connection: &mut C,
    priority: Priority,
    work: W,
) -> std::result::Result<(T, Report), E>
where
    B: Operated + ?Sized,
    E: From<lockapi::Error>,
    W: FnOnce(&mut C) -> std::result::Result<T, E>,
{
    let scope = prioritize_in(connection, backend.as_operator(), priority);
    let scope = scope.map_err(|error| error.during("with_priority_in"))?;
    let value = work(connection)?;
    Ok((value, scope.finish_blocking()))
}
