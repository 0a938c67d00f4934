//! [`RwLock`](crate::RwLock) for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::{MutexGuard, block_on};
use crate::error::Result;
use crate::key::Key;
use crate::mutex::LockOwner;

/// A [lock that readers share](crate::RwLock) for blocking callers.
///
/// ```
/// use lockapi::{blocking, memory::Database};
///
/// let backend = blocking::Backend::connect(Database::new().connect())?;
/// let catalogue = backend.rw_lock("catalogue")?;
/// let reader = catalogue.read()?;
/// assert!(catalogue.try_write()?.is_none());
/// reader.unlock()?;
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RwLock(Arc<dyn crate::RwLock>);

impl From<Arc<dyn crate::RwLock>> for RwLock {
    fn from(lock: Arc<dyn crate::RwLock>) -> Self {
        Self(lock)
    }
}

impl RwLock {
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

    /// The same lock, taken by a [`LockOwner`].
    #[must_use]
    pub fn on(&self, owner: &LockOwner) -> Self {
        Self(self.0.on(owner))
    }

    /// Shares it if that is possible at once; `None` when a writer has it or waits for it.
    ///
    /// # Errors
    /// As for [`RwLock::try_read`](crate::RwLock::try_read).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(block_on(self.0.try_read())?.map(ReadGuard))
    }

    /// Waits until it is shared.
    ///
    /// # Errors
    /// As for [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Result<ReadGuard> {
        block_on(self.0.read()).map(ReadGuard)
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`RwLock::read_timeout`](crate::RwLock::read_timeout).
    pub fn read_timeout(&self, timeout: Duration) -> Result<ReadGuard> {
        block_on(self.0.read_timeout(timeout)).map(ReadGuard)
    }

    /// Locks it if that is possible at once; `None` when a writer or a reader has it.
    ///
    /// # Errors
    /// As for [`RwLock::try_write`](crate::RwLock::try_write).
    pub fn try_write(&self) -> Result<Option<MutexGuard>> {
        Ok(block_on(self.0.try_write())?.map(MutexGuard::from))
    }

    /// Waits until it is locked.
    ///
    /// # Errors
    /// As for [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Result<MutexGuard> {
        block_on(self.0.write()).map(MutexGuard::from)
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`RwLock::write_timeout`](crate::RwLock::write_timeout).
    pub fn write_timeout(&self, timeout: Duration) -> Result<MutexGuard> {
        block_on(self.0.write_timeout(timeout)).map(MutexGuard::from)
    }
}

/// Shares an [`RwLock`] until it is unlocked or dropped; see [`ReadGuard`](crate::ReadGuard).
#[derive(Debug)]
#[must_use = "a guard that is dropped unlocks at once"]
pub struct ReadGuard(Box<dyn crate::ReadGuard>);

impl ReadGuard {
    /// Whether the lock was lost because its session ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Returns once the lock is lost.
    pub fn lost(&self) {
        block_on(self.0.lost());
    }

    /// Unlocks; returns when the lock is free, or at once where other readers of this process
    /// share it.
    ///
    /// # Errors
    /// `Lost` when the lock was no longer held, or its session ended before this was answered: then it may
    /// have been lost before.
    pub fn unlock(self) -> Result<()> {
        block_on(self.0.unlock())
    }
}
