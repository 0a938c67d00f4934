//! [`Lease`](crate::Lease) for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::block_on;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::Holder;
use crate::wait::held_throughout;

/// A [lease](crate::Lease) for blocking callers.
#[derive(Clone, Debug)]
pub struct Lease(Arc<dyn crate::Lease>);

impl From<Arc<dyn crate::Lease>> for Lease {
    fn from(lease: Arc<dyn crate::Lease>) -> Self {
        Self(lease)
    }
}

impl Lease {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Acquires it if it is free; `None` when another holds it.
    ///
    /// # Errors
    /// As for [`Lease::try_acquire`](crate::Lease::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<LeaseGuard>> {
        Ok(block_on(self.0.try_acquire())?.map(LeaseGuard))
    }

    /// Waits until it is acquired.
    ///
    /// # Errors
    /// As for [`Lease::acquire`](crate::Lease::acquire).
    pub fn acquire(&self) -> Result<LeaseGuard> {
        block_on(self.0.acquire()).map(LeaseGuard)
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Lease::acquire_timeout`](crate::Lease::acquire_timeout).
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<LeaseGuard> {
        block_on(self.0.acquire_timeout(timeout)).map(LeaseGuard)
    }

    /// Reads who holds it; `None` when it is free.
    ///
    /// # Errors
    /// As for [`Lease::peek`](crate::Lease::peek).
    pub fn peek(&self) -> Result<Option<Holder>> {
        block_on(self.0.peek())
    }

    /// Runs `work` while holding the lease; `None`, without running it, when another holds it.
    ///
    /// Blocking work cannot be stopped when the lease is lost; let it check [`LeaseGuard::is_lost`] between
    /// its steps. It is released also when `work` panics.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the lease was lost before it was released; otherwise as for
    /// [`try_acquire`](Self::try_acquire).
    pub fn run_exclusive<T, E>(
        &self,
        work: impl FnOnce(&LeaseGuard) -> Result<T, E>,
    ) -> Result<Option<T>, E>
    where
        E: From<Error>,
    {
        let Some(guard) = self.try_acquire()? else {
            return Ok(None);
        };
        let outcome = work(&guard);
        held_throughout("run_exclusive", Some(outcome), guard.release()).map(Some)
    }

    /// Waits for the lease and runs `work` while holding it.
    ///
    /// # Errors
    /// As for [`run_exclusive`](Self::run_exclusive).
    pub fn run_exclusive_wait<T, E>(
        &self,
        work: impl FnOnce(&LeaseGuard) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        let guard = self.acquire()?;
        let outcome = work(&guard);
        held_throughout("run_exclusive_wait", Some(outcome), guard.release())
    }
}

/// Holds a [`Lease`] until it is released, dropped or lost; see [`LeaseGuard`](crate::LeaseGuard).
#[derive(Debug)]
#[must_use = "a guard that is dropped releases at once"]
pub struct LeaseGuard(Box<dyn crate::LeaseGuard>);

impl From<Box<dyn crate::LeaseGuard>> for LeaseGuard {
    fn from(guard: Box<dyn crate::LeaseGuard>) -> Self {
        Self(guard)
    }
}

impl LeaseGuard {
    /// The holder's fencing token.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// The time for which it is certainly still held, by the local clock; zero if lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Whether it was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Returns once it is lost.
    pub fn lost(&self) {
        block_on(self.0.lost());
    }

    /// Extends it to its time to live from now.
    ///
    /// # Errors
    /// As for [`LeaseGuard::renew`](crate::LeaseGuard::renew).
    pub fn renew(&self) -> Result<()> {
        block_on(self.0.renew())
    }

    /// Releases it.
    ///
    /// # Errors
    /// As for [`LeaseGuard::release`](crate::LeaseGuard::release).
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }
}
