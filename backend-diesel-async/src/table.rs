//! Locks on tables of the program, inside its own transactions.

use std::time::Duration;

use lockapi::admin::{Operated, Priority, Report};
use lockapi::driver::Transaction;
use lockapi::table::{limit_waits_in, prioritize_in};

use crate::transaction::DieselAsync;

/// Runs `work` in the transaction that is open on `connection`, with no statement waiting longer than
/// `timeout` for a lock; afterwards the transaction's `lock_timeout` is what it was.
///
/// ```no_run
/// use std::time::Duration;
/// use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
/// use lockapi::versioned::BoxError;
/// # async fn example(mut conn: AsyncPgConnection) -> Result<(), BoxError> {
/// conn.transaction::<_, BoxError, _>(async |conn| {
///     lockapi_diesel_async::with_lock_timeout_in(conn, Duration::from_secs(1), async |conn| {
///         conn.batch_execute("ALTER TABLE orders ADD note text").await?;
///         Ok(())
///     })
///     .await
/// })
/// .await
/// # }
/// ```
///
/// # Cancel safety
/// When dropped, the limit stays until the transaction ends.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for a `timeout` of zero or more than 24
/// days, and where no transaction is open, and those of the connection.
pub async fn with_lock_timeout_in<C: Transaction<DieselAsync>, T, E>(
    connection: &mut C,
    timeout: Duration,
    work: impl AsyncFnOnce(&mut C) -> Result<T, E>,
) -> Result<T, E>
where
    E: From<lockapi::Error>,
{
    const LIMITED: &str = "with_lock_timeout_in";
    let limited = limit_waits_in(connection, timeout).await;
    let limited = limited.map_err(|error| error.during(LIMITED))?;
    // After an error the transaction is to be rolled back, with its settings.
    let value = work(connection).await;
    let lifted = limited.lift_in(connection).await;
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
/// use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
/// use lockapi::versioned::BoxError;
/// # async fn example(mut conn: AsyncPgConnection, backend: std::sync::Arc<dyn lockapi::Backend>) -> Result<(), BoxError> {
/// conn.transaction::<_, BoxError, _>(async |conn| {
///     let priority = Priority::new("add a column to orders");
///     let (_, report) = lockapi_diesel_async::with_priority_in(&*backend, conn, priority, async |conn| {
///         conn.batch_execute("ALTER TABLE orders ADD note text").await?;
///         Ok::<_, BoxError>(())
///     })
///     .await?;
///     println!("{} sessions were in the way", report.signalled.len());
///     Ok(())
/// })
/// .await
/// # }
/// ```
///
/// # Cancel safety
/// When dropped, nobody is hit any more, but for who is about to be.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for times outside of their limits, and
/// those of the connection.
pub async fn with_priority_in<B, C: Transaction<DieselAsync>, T, E>(
    backend: &B,
    connection: &mut C,
    priority: Priority,
    work: impl AsyncFnOnce(&mut C) -> Result<T, E>,
) -> Result<(T, Report), E>
where
    B: Operated + ?Sized,
    E: From<lockapi::Error>,
{
    let scope = prioritize_in(connection, backend.as_operator(), priority).await;
    let scope = scope.map_err(|error| error.during("with_priority_in"))?;
    let value = work(connection).await?;
    Ok((value, scope.finish().await))
}
