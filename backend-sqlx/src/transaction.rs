//! Operations inside the caller's own transaction.

use std::future::Future;
use std::time::Duration;

use lockapi::limit::{Metered, Verdict, Want, check_all_on};
use lockapi::mutex::LockName;
use lockapi::{Fence, Result};
use sqlx::PgConnection;

use crate::connector::Borrowed;

/// Locks of a mutex that belong to a transaction of the caller.
///
/// There is no guard: commit or rollback releases the lock. It excludes the guards of the same
/// mutex on every backend.
///
/// ```no_run
/// use lockapi_sqlx::InTransaction;
/// # async fn example(pool: sqlx::PgPool, mutex: std::sync::Arc<dyn lockapi::Mutex>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// if mutex.try_lock_in(&mut tx).await? {
///     sqlx::query("UPDATE account SET balance = balance + 1").execute(&mut *tx).await?;
/// }
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
pub trait InTransaction {
    /// Tries the lock for the transaction that is open on `connection`, without waiting. Where none
    /// is open the lock ends with the call.
    ///
    /// # Cancel safety
    /// When dropped, the lock may be held until the transaction ends.
    ///
    /// # Errors
    /// Those of the connection.
    fn try_lock_in(
        &self,
        connection: &mut PgConnection,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Waits for the lock for the transaction that is open on `connection`.
    ///
    /// # Guarantees
    /// After `TimedOut` the transaction can be used as before, and its `lock_timeout` and
    /// `statement_timeout` are what they were.
    ///
    /// # Cancel safety
    /// When dropped, the lock may be held until the transaction ends, whose timeouts stay changed.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; `Invalid` for a timeout of zero or more than 24 days, and where
    /// no transaction is open; `Unsupported` where the tables are missing or the role may not use
    /// them; those of the connection. All but `TimedOut` end the transaction.
    fn lock_in(
        &self,
        connection: &mut PgConnection,
        timeout: Duration,
    ) -> impl Future<Output = Result<()>> + Send;
}

impl<M: LockName + Sync + ?Sized> InTransaction for M {
    async fn try_lock_in(&self, connection: &mut PgConnection) -> Result<bool> {
        let connection = &mut Borrowed(connection);
        lockapi::mutex::try_lock_on(connection, self).await
    }

    async fn lock_in(&self, connection: &mut PgConnection, timeout: Duration) -> Result<()> {
        let connection = &mut Borrowed(connection);
        lockapi::mutex::lock_on(connection, self, timeout).await
    }
}

/// Rejects a stale holder inside the transaction of its write.
///
/// ```no_run
/// use lockapi_sqlx::CheckIn;
/// # async fn example(pool: sqlx::PgPool, guard: Box<dyn lockapi::LeaseGuard>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// guard.fence().check_in(&mut tx).await?;
/// sqlx::query("UPDATE report SET done = true").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
pub trait CheckIn {
    /// Fails unless the holder still holds; see [`Fence::check_in_on`] for what is guaranteed
    /// until the transaction ends.
    ///
    /// # Cancel safety
    /// When dropped, the transaction goes on with or without the check.
    ///
    /// # Errors
    /// `Lost` when the holder no longer holds, and those of the connection.
    fn check_in(&self, connection: &mut PgConnection) -> impl Future<Output = Result<()>> + Send;
}

impl CheckIn for Fence {
    async fn check_in(&self, connection: &mut PgConnection) -> Result<()> {
        self.check_in_on(&mut Borrowed(connection)).await
    }
}

/// Limits inside a transaction of the caller.
///
/// ```no_run
/// use lockapi_sqlx::LimitIn;
/// use lockapi::limit::Want;
/// # async fn example(pool: sqlx::PgPool, limiter: std::sync::Arc<dyn lockapi::RateLimiter>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// if limiter.check_all_in(&mut tx, &[Want::new("mail:123")]).await?.is_allowed() {
///     sqlx::query("INSERT INTO mail (recipient) VALUES (123)").execute(&mut *tx).await?;
/// }
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
pub trait LimitIn {
    /// Takes of limits for the transaction that is open on `connection`, of all or of none. It is
    /// rolled back with the transaction; until that ends everybody else who wants permits of these
    /// keys waits. See [`check_all_on`].
    ///
    /// # Cancel safety
    /// When dropped, permits may be taken unless the transaction is rolled back.
    ///
    /// # Errors
    /// `Invalid` as for [`RateLimiter::check_all`](lockapi::RateLimiter::check_all), `Unavailable` when
    /// others were faster, and those of the connection.
    fn check_all_in(
        &self,
        connection: &mut PgConnection,
        wants: &[Want],
    ) -> impl Future<Output = Result<Verdict>> + Send;
}

impl<L: Metered + Sync + ?Sized> LimitIn for L {
    async fn check_all_in(&self, connection: &mut PgConnection, wants: &[Want]) -> Result<Verdict> {
        check_all_on(&mut Borrowed(connection), self, wants).await
    }
}
