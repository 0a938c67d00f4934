//! Limiting how many callers work at the same time.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::{LeaseGuard, run_leased};

/// The most permits that a semaphore has.
pub const MAX_PERMITS: u32 = 1024;

/// A number of permits, each with one holder at a time among all programs that use the same
/// database.
///
/// A permit is a [lease](crate::Lease): it is a row in a table, is renewed while it is held, and is
/// free again after its time to live when its holder is gone.
///
/// ```
/// use std::time::Duration;
/// use lockapi::lease::LeaseOptions;
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = lockapi::memory::Database::new().connect().await?;
/// let imports = backend.semaphore("imports", 3, LeaseOptions::new(Duration::from_secs(30)))?;
/// let one = imports.acquire().await?;
/// let two = imports.try_acquire_many(2).await?.expect("two more");
/// assert!(imports.try_acquire().await?.is_none());
/// one.release().await?;
/// two.release().await?;
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
///
/// # Guarantees
/// - No more than [`permits`](Self::permits) are ever held at the same time, by the server's clock.
///   Permits are numbered, and a program takes those up to its own number only: if programs disagree,
///   each stays within its own number, and all together within the largest one.
/// - A holder learns of the end of its permits before another can acquire them, as with a
///   [`Lease`](crate::Lease). An acquisition that waited for an earlier one to end has a larger token;
///   tokens of acquisitions that overlap are in no order.
/// - Within a process waiters are served in the order of arrival, whatever number they request;
///   between processes they poll. A `try_` call does not queue.
/// - Where the answer to a request was lost, permits may stay taken until their time to live ends.
///
/// # Cancel safety
/// Every future may be dropped at any point: permits that were acquired meanwhile are released.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Semaphore: Send + Sync + fmt::Debug {
    /// The key.
    fn key(&self) -> &Key;

    /// How many permits there are.
    fn permits(&self) -> u32;

    /// Acquires this number of permits if they are free, all of them or none.
    ///
    /// # Errors
    /// `Invalid` for none, or more than there are; `Unavailable`; `Indeterminate` when the answer
    /// never arrived although the request was repeated: what was acquired then expires by itself.
    async fn try_acquire_many(&self, permits: u32) -> Result<Option<Box<dyn LeaseGuard>>>;

    /// Waits until this number of permits is acquired, all at once.
    ///
    /// # Errors
    /// As for [`try_acquire_many`](Self::try_acquire_many).
    async fn acquire_many(&self, permits: u32) -> Result<Box<dyn LeaseGuard>>;

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; otherwise as for [`try_acquire_many`](Self::try_acquire_many).
    async fn acquire_many_timeout(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Box<dyn LeaseGuard>>;
}

impl dyn Semaphore + '_ {
    /// Acquires a permit if one is free; `None` when others hold all.
    ///
    /// # Errors
    /// As for [`try_acquire_many`](Semaphore::try_acquire_many).
    pub async fn try_acquire(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        self.try_acquire_many(1).await
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// As for [`try_acquire`](#method.try_acquire).
    pub async fn acquire(&self) -> Result<Box<dyn LeaseGuard>> {
        self.acquire_many(1).await
    }

    /// Waits for a permit for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; otherwise as for [`try_acquire`](#method.try_acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        self.acquire_many_timeout(1, timeout).await
    }

    /// Runs `work` while holding a permit; `None`, without running it, when others hold all.
    ///
    /// The permit is released when `work` completes, panics, or is dropped. `work` is dropped when
    /// the permit is lost.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the permit was lost before it was released; otherwise as for
    /// [`try_acquire`](#method.try_acquire).
    pub async fn run_permitted<F, W, T, E>(&self, work: F) -> Result<Option<T>, E>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        match self.try_acquire().await? {
            Some(permit) => run_leased("run_permitted", permit, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits for a permit and runs `work` while holding it.
    ///
    /// # Errors
    /// As for [`run_permitted`](#method.run_permitted).
    pub async fn run_permitted_wait<F, W, T, E>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let permit = self.acquire().await?;
        run_leased("run_permitted_wait", permit, work).await
    }
}

/// Checks how many permits a semaphore is to have, or are requested of one that has `most`.
pub(crate) fn check_permits(permits: u32, most: u32) -> Result<i64> {
    if permits == 0 || permits > most {
        let message = format!("{permits} permits; allowed are 1 to {most}");
        return Err(Error::new(ErrorKind::Invalid, "check", message));
    }
    Ok(permits.into())
}
