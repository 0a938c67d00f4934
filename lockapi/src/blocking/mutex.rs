//! [`Mutex`](crate::Mutex) for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::block_on;
use crate::driver::{Library, Transaction};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::mutex::LockOwner;
use crate::wait::held_throughout;

/// A [mutex](crate::Mutex) for blocking callers.
#[derive(Clone, Debug)]
pub struct Mutex(Arc<dyn crate::Mutex>);

impl From<Arc<dyn crate::Mutex>> for Mutex {
    fn from(mutex: Arc<dyn crate::Mutex>) -> Self {
        Self(mutex)
    }
}

impl Mutex {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// The namespace that a name is in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }

    /// Whether it is a lease instead of a session lock.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.0.is_leased()
    }

    /// The same mutex, locked by a [`LockOwner`].
    #[must_use]
    pub fn on(&self, owner: &LockOwner) -> Self {
        Self(self.0.on(owner))
    }

    /// Tries the lock for a transaction of the caller; see
    /// [`Mutex::try_lock_in`](../mutex/trait.Mutex.html#method.try_lock_in).
    ///
    /// # Errors
    /// As for the async method.
    pub fn try_lock_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
    ) -> L::Outcome<'c, Result<bool>> {
        self.0.try_lock_in(connection)
    }

    /// Waits for the lock for a transaction of the caller; see
    /// [`Mutex::lock_in`](../mutex/trait.Mutex.html#method.lock_in).
    ///
    /// # Errors
    /// As for the async method.
    pub fn lock_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        timeout: Duration,
    ) -> L::Outcome<'c, Result<()>> {
        self.0.lock_in(connection, timeout)
    }

    /// Tries to lock it without waiting; `None` if it is held.
    ///
    /// # Errors
    /// As for [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_lock(&self) -> Result<Option<MutexGuard>> {
        Ok(block_on(self.0.try_lock())?.map(MutexGuard))
    }

    /// Waits until it is locked.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self) -> Result<MutexGuard> {
        block_on(self.0.lock()).map(MutexGuard)
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub fn lock_timeout(&self, timeout: Duration) -> Result<MutexGuard> {
        block_on(self.0.lock_timeout(timeout)).map(MutexGuard)
    }

    /// Runs `work` while holding the lock; `None`, without running it, when another holds it.
    ///
    /// Blocking work cannot be stopped when the lock is lost; let it check [`MutexGuard::is_lost`] between
    /// its steps. The lock is released also when `work` panics.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the lock was lost before it was released; otherwise as for
    /// [`try_lock`](Self::try_lock).
    pub fn run_exclusive<T, E>(
        &self,
        work: impl FnOnce(&MutexGuard) -> Result<T, E>,
    ) -> Result<Option<T>, E>
    where
        E: From<Error>,
    {
        let Some(guard) = self.try_lock()? else {
            return Ok(None);
        };
        let outcome = work(&guard);
        held_throughout("run_exclusive", Some(outcome), guard.unlock()).map(Some)
    }

    /// Waits for the lock and runs `work` while holding it.
    ///
    /// # Errors
    /// As for [`run_exclusive`](Self::run_exclusive).
    pub fn run_exclusive_wait<T, E>(
        &self,
        work: impl FnOnce(&MutexGuard) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        let guard = self.lock()?;
        let outcome = work(&guard);
        held_throughout("run_exclusive_wait", Some(outcome), guard.unlock())
    }
}

/// Holds a [`Mutex`] until it is unlocked or dropped; see [`MutexGuard`](crate::MutexGuard).
#[derive(Debug)]
#[must_use = "a guard that is dropped unlocks at once"]
pub struct MutexGuard(Box<dyn crate::MutexGuard>);

impl From<Box<dyn crate::MutexGuard>> for MutexGuard {
    fn from(guard: Box<dyn crate::MutexGuard>) -> Self {
        Self(guard)
    }
}

impl MutexGuard {
    /// The holder's fencing token.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// Whether the lock was lost because its session ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Returns once the lock is lost.
    pub fn lost(&self) {
        block_on(self.0.lost());
    }

    /// Unlocks, and returns when the lock is free or another waiter of this process has it.
    ///
    /// # Errors
    /// `Lost` when the lock was no longer held, or its session ended before this was answered: then it may
    /// have been lost before.
    pub fn unlock(self) -> Result<()> {
        block_on(self.0.unlock())
    }
}
