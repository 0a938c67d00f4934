//! [`MutexSet`](crate::MutexSet) and [`Striped`](crate::Striped) for blocking callers.

use std::time::Duration;

use super::{Mutex, MutexGuard, block_on};
use crate::error::Result;
use crate::fence::Fence;
use crate::key::Key;
use crate::mutex::LockOwner;

/// [Mutexes that are locked together](crate::MutexSet) for blocking callers.
///
/// ```
/// use lockapi::{blocking, memory::Database};
///
/// let backend = blocking::Backend::connect(Database::new().connect())?;
/// let both = backend.mutex_set(["account/7", "account/3"])?.lock_all()?;
/// both.unlock()?;
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MutexSet(crate::MutexSet);

impl From<crate::MutexSet> for MutexSet {
    fn from(set: crate::MutexSet) -> Self {
        Self(set)
    }
}

impl MutexSet {
    /// The keys, in the order in which they are locked.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    /// The same set, locked by a [`LockOwner`].
    #[must_use]
    pub fn on(&self, owner: &LockOwner) -> Self {
        Self(self.0.on(owner))
    }

    /// Locks all of them if that is possible at once; `None` when one is held.
    ///
    /// # Errors
    /// As for [`MutexSet::try_lock_all`](crate::MutexSet::try_lock_all).
    pub fn try_lock_all(&self) -> Result<Option<MutexSetGuard>> {
        Ok(block_on(self.0.try_lock_all())?.map(MutexSetGuard))
    }

    /// Waits until all of them are locked.
    ///
    /// # Errors
    /// As for [`MutexSet::lock_all`](crate::MutexSet::lock_all).
    pub fn lock_all(&self) -> Result<MutexSetGuard> {
        block_on(self.0.lock_all()).map(MutexSetGuard)
    }

    /// Waits for at most `timeout`, for all of them together.
    ///
    /// # Errors
    /// As for [`MutexSet::lock_all_timeout`](crate::MutexSet::lock_all_timeout).
    pub fn lock_all_timeout(&self, timeout: Duration) -> Result<MutexSetGuard> {
        block_on(self.0.lock_all_timeout(timeout)).map(MutexSetGuard)
    }

    /// Locks as many as are free, `most` at most; `None` when all are held.
    ///
    /// # Errors
    /// As for [`MutexSet::try_lock_any`](crate::MutexSet::try_lock_any).
    pub fn try_lock_any(&self, most: usize) -> Result<Option<MutexSetGuard>> {
        Ok(block_on(self.0.try_lock_any(most))?.map(MutexSetGuard))
    }

    /// Locks as many as are free, `most` at most, and waits for one if all are held.
    ///
    /// # Errors
    /// As for [`MutexSet::lock_any`](crate::MutexSet::lock_any).
    pub fn lock_any(&self, most: usize) -> Result<MutexSetGuard> {
        block_on(self.0.lock_any(most)).map(MutexSetGuard)
    }

    /// As [`lock_any`](Self::lock_any), and waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`MutexSet::lock_any_timeout`](crate::MutexSet::lock_any_timeout).
    pub fn lock_any_timeout(&self, most: usize, timeout: Duration) -> Result<MutexSetGuard> {
        block_on(self.0.lock_any_timeout(most, timeout)).map(MutexSetGuard)
    }
}

/// Holds mutexes of a [`MutexSet`] until they are unlocked or dropped.
#[derive(Debug)]
#[must_use = "a guard that is dropped unlocks at once"]
pub struct MutexSetGuard(crate::MutexSetGuard);

impl MutexSetGuard {
    /// The fencing token of each, which also tells its key.
    pub fn fences(&self) -> impl Iterator<Item = Fence> {
        self.0.fences()
    }

    /// Whether one of them was lost because its session ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Returns once one of them is lost.
    pub fn lost(&self) {
        block_on(self.0.lost());
    }

    /// Unlocks all of them.
    ///
    /// # Errors
    /// `Lost` when one was no longer held; the others are released nevertheless.
    pub fn unlock(self) -> Result<()> {
        block_on(self.0.unlock())
    }

    /// The guards one by one, in the order of [`fences`](Self::fences).
    #[must_use]
    pub fn into_guards(self) -> Vec<MutexGuard> {
        let guards = self.0.into_guards().into_iter();
        guards.map(MutexGuard::from).collect()
    }
}

/// A [mutex that is cut into stripes](crate::Striped) for blocking callers.
#[derive(Clone, Debug)]
pub struct Striped(crate::Striped);

impl From<crate::Striped> for Striped {
    fn from(striped: crate::Striped) -> Self {
        Self(striped)
    }
}

impl Striped {
    /// The same stripes, locked by a [`LockOwner`].
    #[must_use]
    pub fn on(&self, owner: &LockOwner) -> Self {
        Self(self.0.on(owner))
    }

    /// The stripe for what is called `by`.
    #[must_use]
    pub fn stripe(&self, by: &str) -> Mutex {
        Mutex::from(std::sync::Arc::clone(self.0.stripe(by)))
    }

    /// Waits until the stripe for `by` is locked.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self, by: &str) -> Result<MutexGuard> {
        self.stripe(by).lock()
    }

    /// As [`lock`](Self::lock), and waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub fn lock_timeout(&self, by: &str, timeout: Duration) -> Result<MutexGuard> {
        self.stripe(by).lock_timeout(timeout)
    }

    /// Waits until all stripes are locked.
    ///
    /// # Errors
    /// As for [`MutexSet::lock_all`](crate::MutexSet::lock_all).
    pub fn lock_all(&self) -> Result<MutexSetGuard> {
        block_on(self.0.lock_all()).map(MutexSetGuard)
    }

    /// All stripes, as a set.
    #[must_use]
    pub fn all(&self) -> MutexSet {
        MutexSet(self.0.all().clone())
    }
}
