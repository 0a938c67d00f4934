//! Reader-writer locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{LockOwner, MutexGuard};
use crate::error::Result;
use crate::key::Key;

/// A lock that either one writer holds, or any number of readers share, among all programs that use
/// the same database.
///
/// It is the same lock as the [`Mutex`](super::Mutex) of its key: a writer and the holder of the
/// mutex exclude each other, and readers exclude both.
///
/// ```
/// use lockapi::memory::Database;
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = Database::new().connect().await?;
/// let catalogue = backend.rw_lock("catalogue")?;
/// let (one, another) = (catalogue.read().await?, catalogue.read().await?);
/// assert!(catalogue.try_write().await?.is_none());
/// one.unlock().await?;
/// another.unlock().await?;
/// let writer = catalogue.write().await?;
/// println!("I am writer {}", writer.fence());
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
///
/// # Guarantees
/// - A writer is alone; readers hold it together, in one process or in several. See
///   [`Mutex`](super::Mutex) for what a lost connection means.
/// - All readers of a backend share a single lock in the server.
/// - Neither readers nor writers are starved. Within a process callers are served in the order of
///   arrival: readers that arrive behind a waiting writer wait until it was served. While another
///   process waits at the server, further readers join those of their process for about 32 ms and then
///   wait, too. A writer of another process is noticed while it has its turn on a connection for
///   waiting ([`BackendOptions::waiters`](crate::BackendOptions::waiters)).
/// - It is not re-entrant, and one kind of guard cannot be converted to the other: two readers that
///   waited to become writers would wait for each other. Unlock and lock again, and read again what
///   was read.
///
/// # Cancel safety
/// Every future may be dropped at any point: nothing stays locked without a guard, and readers behind a
/// writer that gave up continue.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait RwLock: Send + Sync + fmt::Debug {
    /// The key.
    fn key(&self) -> &Key;

    /// The namespace that a name is in.
    fn namespace(&self) -> &str;

    /// The same lock, taken by a [`LockOwner`].
    fn on(&self, owner: &LockOwner) -> Arc<dyn RwLock>;

    /// Tries to acquire a shared lock without waiting; `None` if a writer holds it or waits for it.
    ///
    /// # Errors
    /// As for [`Mutex::try_lock`](super::Mutex::try_lock).
    async fn try_read(&self) -> Result<Option<Box<dyn ReadGuard>>>;

    /// Waits for a shared lock.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](super::Mutex::lock).
    async fn read(&self) -> Result<Box<dyn ReadGuard>>;

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Mutex::lock_timeout`](super::Mutex::lock_timeout).
    async fn read_timeout(&self, timeout: Duration) -> Result<Box<dyn ReadGuard>>;

    /// Tries to lock it without waiting; `None` if a writer or a reader holds it.
    ///
    /// # Errors
    /// As for [`Mutex::try_lock`](super::Mutex::try_lock).
    async fn try_write(&self) -> Result<Option<Box<dyn MutexGuard>>>;

    /// Waits until it is locked.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](super::Mutex::lock).
    async fn write(&self) -> Result<Box<dyn MutexGuard>>;

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Mutex::lock_timeout`](super::Mutex::lock_timeout).
    async fn write_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>>;
}

/// Holds an [`RwLock`] for reading until it is unlocked or dropped.
///
/// It has no fencing token: tokens order holders, and readers hold the lock together. Protect data with
/// the writer's token.
///
/// Dropping it unlocks in the background; [`unlock`](Self::unlock) reports whether it was still
/// held.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[must_use = "a guard that is dropped unlocks at once"]
#[async_trait]
pub trait ReadGuard: Send + Sync + fmt::Debug {
    /// Whether the lock was lost because its session ended.
    fn is_lost(&self) -> bool;

    /// Returns once the lock is lost.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    async fn lost(&self);

    /// Unlocks; returns when the lock is free, or at once where other readers of this process
    /// share it.
    ///
    /// # Cancel safety
    /// When dropped, the lock is still released.
    ///
    /// # Errors
    /// `Lost` when the lock was no longer held, or its session ended before this was answered: then it may
    /// have been lost before.
    async fn unlock(self: Box<Self>) -> Result<()>;
}
