//! Operations inside the caller's own transaction.

use std::time::Duration;

use lockapi::blocking::block_on;
use lockapi::driver::Inline;
use lockapi::limit::{Metered, Verdict, Want, check_all_on};
use lockapi::mutex::{LockName, lock_on, try_lock_on};
use lockapi::{Fence, Result};
use postgres::GenericClient;

use crate::connector::Borrowed;

/// Locks of a mutex that belong to a transaction of the caller.
///
/// There is no guard: commit or rollback releases the lock. It excludes the guards of the same
/// mutex on every backend. All calls block.
///
/// ```no_run
/// use lockapi_postgres::InTransaction;
/// # fn example(mut client: postgres::Client, mutex: lockapi::blocking::Mutex) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction()?;
/// if mutex.try_lock_in(&mut tx)? {
///     tx.execute("UPDATE account SET balance = balance + 1", &[])?;
/// }
/// tx.commit()?;
/// # Ok(())
/// # }
/// ```
pub trait InTransaction {
    /// Tries the lock for the transaction that is open on `connection`, without waiting. Where none
    /// is open the lock ends with the call.
    ///
    /// # Errors
    /// Those of the connection.
    fn try_lock_in<C: GenericClient + Send>(&self, connection: &mut C) -> Result<bool>;

    /// Waits for the lock for the transaction that is open on `connection`.
    ///
    /// # Guarantees
    /// After `TimedOut` the transaction can be used as before, and its `lock_timeout` and
    /// `statement_timeout` are what they were.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; `Invalid` for a timeout of zero or more than 24 days, and where
    /// no transaction is open; `Unsupported` where the tables are missing or the role may not use
    /// them; those of the connection. All but `TimedOut` end the transaction.
    fn lock_in<C: GenericClient + Send>(&self, connection: &mut C, timeout: Duration)
    -> Result<()>;
}

impl<M: LockName + Sync + ?Sized> InTransaction for M {
    fn try_lock_in<C: GenericClient + Send>(&self, connection: &mut C) -> Result<bool> {
        let connection = &mut Inline(Borrowed(connection));
        block_on(try_lock_on(connection, self))
    }

    fn lock_in<C: GenericClient + Send>(
        &self,
        connection: &mut C,
        timeout: Duration,
    ) -> Result<()> {
        let connection = &mut Inline(Borrowed(connection));
        block_on(lock_on(connection, self, timeout))
    }
}

/// Rejects a stale holder inside the transaction of its write.
///
/// ```no_run
/// use lockapi_postgres::CheckIn;
/// # fn example(mut client: postgres::Client, guard: lockapi::blocking::LeaseGuard) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction()?;
/// guard.fence().check_in(&mut tx)?;
/// tx.execute("UPDATE report SET done = true", &[])?;
/// tx.commit()?;
/// # Ok(())
/// # }
/// ```
pub trait CheckIn {
    /// Fails unless the holder still holds; see [`Fence::check_in_on`] for what is guaranteed
    /// until the transaction ends. It blocks.
    ///
    /// # Errors
    /// `Lost` when the holder no longer holds, and those of the connection.
    fn check_in<C: GenericClient + Send>(&self, connection: &mut C) -> Result<()>;
}

impl CheckIn for Fence {
    fn check_in<C: GenericClient + Send>(&self, connection: &mut C) -> Result<()> {
        block_on(self.check_in_on(&mut Inline(Borrowed(connection))))
    }
}

/// Limits inside a transaction of the caller.
///
/// ```no_run
/// use lockapi_postgres::LimitIn;
/// use lockapi::limit::Want;
/// # fn example(mut client: postgres::Client, limiter: lockapi::blocking::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction()?;
/// if limiter.check_all_in(&mut tx, &[Want::new("mail:123")])?.is_allowed() {
///     tx.execute("INSERT INTO mail (recipient) VALUES (123)", &[])?;
/// }
/// tx.commit()?;
/// # Ok(())
/// # }
/// ```
pub trait LimitIn {
    /// Takes of limits for the transaction that is open on `connection`, of all or of none. It is
    /// rolled back with the transaction; until that ends everybody else who wants permits of these
    /// keys waits. See [`check_all_on`]. It blocks.
    ///
    /// # Errors
    /// `Invalid` as for [`RateLimiter::check_all`](lockapi::RateLimiter::check_all), `Unavailable` when
    /// others were faster, and those of the connection.
    fn check_all_in<C: GenericClient + Send>(
        &self,
        connection: &mut C,
        wants: &[Want],
    ) -> Result<Verdict>;
}

impl<L: Metered + ?Sized> LimitIn for L {
    fn check_all_in<C: GenericClient + Send>(
        &self,
        connection: &mut C,
        wants: &[Want],
    ) -> Result<Verdict> {
        block_on(check_all_on(&mut Inline(Borrowed(connection)), self, wants))
    }
}
