//! [`Semaphore`](crate::Semaphore) for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::{LeaseGuard, block_on};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::wait::held_throughout;

/// A [semaphore](crate::Semaphore) for blocking callers.
///
/// ```
/// use std::time::Duration;
/// use lockapi::{blocking, lease::LeaseOptions, memory::Database};
///
/// let backend = blocking::Backend::connect(Database::new().connect())?;
/// let imports = backend.semaphore("imports", 2, LeaseOptions::new(Duration::from_secs(30)))?;
/// let both = imports.acquire_many(2)?;
/// assert!(imports.try_acquire()?.is_none());
/// both.release()?;
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(Arc<dyn crate::Semaphore>);

impl From<Arc<dyn crate::Semaphore>> for Semaphore {
    fn from(semaphore: Arc<dyn crate::Semaphore>) -> Self {
        Self(semaphore)
    }
}

impl Semaphore {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// How many permits there are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.0.permits()
    }

    /// Acquires a permit if one is free; `None` when others hold all.
    ///
    /// # Errors
    /// As for [`try_acquire_many`](Self::try_acquire_many).
    pub fn try_acquire(&self) -> Result<Option<LeaseGuard>> {
        self.try_acquire_many(1)
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// As for [`try_acquire_many`](Self::try_acquire_many).
    pub fn acquire(&self) -> Result<LeaseGuard> {
        self.acquire_many(1)
    }

    /// Waits for a permit for at most `timeout`.
    ///
    /// # Errors
    /// As for [`acquire_many_timeout`](Self::acquire_many_timeout).
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<LeaseGuard> {
        self.acquire_many_timeout(1, timeout)
    }

    /// Acquires this number of permits if they are free, all of them or none.
    ///
    /// # Errors
    /// As for [`Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<LeaseGuard>> {
        Ok(block_on(self.0.try_acquire_many(permits))?.map(LeaseGuard::from))
    }

    /// Waits until this number of permits is acquired, all at once.
    ///
    /// # Errors
    /// As for [`Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    pub fn acquire_many(&self, permits: u32) -> Result<LeaseGuard> {
        block_on(self.0.acquire_many(permits)).map(LeaseGuard::from)
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Semaphore::acquire_many_timeout`](crate::Semaphore::acquire_many_timeout).
    pub fn acquire_many_timeout(&self, permits: u32, timeout: Duration) -> Result<LeaseGuard> {
        block_on(self.0.acquire_many_timeout(permits, timeout)).map(LeaseGuard::from)
    }

    /// Runs `work` while holding a permit; `None`, without running it, when others hold all.
    ///
    /// Blocking work cannot be stopped when the permit is lost; let it look at
    /// [`LeaseGuard::is_lost`] between its steps. It is released also when `work` panics.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the permit was lost before it was released; otherwise as for
    /// [`try_acquire`](Self::try_acquire).
    pub fn run_permitted<T, E>(
        &self,
        work: impl FnOnce(&LeaseGuard) -> Result<T, E>,
    ) -> Result<Option<T>, E>
    where
        E: From<Error>,
    {
        let Some(permit) = self.try_acquire()? else {
            return Ok(None);
        };
        let outcome = work(&permit);
        held_throughout("run_permitted", Some(outcome), permit.release()).map(Some)
    }

    /// Waits for a permit and runs `work` while holding it.
    ///
    /// # Errors
    /// As for [`run_permitted`](Self::run_permitted).
    pub fn run_permitted_wait<T, E>(
        &self,
        work: impl FnOnce(&LeaseGuard) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        let permit = self.acquire()?;
        let outcome = work(&permit);
        held_throughout("run_permitted_wait", Some(outcome), permit.release())
    }
}
