//! Locks on tables of the program, inside its own transactions.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::sqlx;
use lockapi::admin::{Operated, Priority, Report};
use lockapi::table::{limit_waits_in, prioritize_in};
use sqlx::PgConnection;

/// What runs in a scope, on the connection that it is given.
pub type Work<'c, T, E> = Pin<Box<dyn Future<Output = std::result::Result<T, E>> + Send + 'c>>;

/// Runs `work` in the transaction that is open on `connection`, with no statement waiting longer than
/// `timeout` for a lock; afterwards the transaction's `lock_timeout` is what it was.
///
/// ```no_run
/// use std::time::Duration;
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// lockapi_sqlx::with_lock_timeout_in(&mut tx, Duration::from_secs(1), |conn| {
///     Box::pin(async move {
///         sqlx::query("ALTER TABLE orders ADD note text").execute(conn).await?;
///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
///     })
/// })
/// .await
/// .map_err(|error| error.to_string())?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// When dropped, the limit stays until the transaction ends.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for a `timeout` of zero or more than 24
/// days, and where no transaction is open, and those of the connection.
pub async fn with_lock_timeout_in<T, E, W>(
    connection: &mut PgConnection,
    timeout: Duration,
    work: W,
) -> std::result::Result<T, E>
where
    T: Send,
    E: From<lockapi::Error> + Send,
    W: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T, E> + Send,
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
/// # async fn example(pool: sqlx::PgPool, backend: std::sync::Arc<dyn lockapi::Backend>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// let priority = Priority::new("add a column to orders");
/// let (_, report) = lockapi_sqlx::with_priority_in(&*backend, &mut tx, priority, |conn| {
///     Box::pin(async move {
///         sqlx::query("ALTER TABLE orders ADD note text").execute(conn).await?;
///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
///     })
/// })
/// .await
/// .map_err(|error| error.to_string())?;
/// tx.commit().await?;
/// println!("{} sessions were in the way", report.signalled.len());
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// When dropped, nobody is hit any more, but for who is about to be.
///
/// # Errors
/// Those of `work`; as an error of this library, `Invalid` for times outside of their limits, and
/// those of the connection.
pub async fn with_priority_in<B, T, E, W>(
    backend: &B,
    connection: &mut PgConnection,
    priority: Priority,
    work: W,
) -> std::result::Result<(T, Report), E>
where
    B: Operated + Sync + ?Sized,
    T: Send,
    E: From<lockapi::Error> + Send,
    W: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T, E> + Send,
{
    let scope = prioritize_in(connection, backend.as_operator(), priority).await;
    let scope = scope.map_err(|error| error.during("with_priority_in"))?;
    let value = work(connection).await?;
    Ok((value, scope.finish().await))
}
