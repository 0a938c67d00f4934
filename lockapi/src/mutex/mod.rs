//! Mutual exclusion that lasts as long as a connection.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::wait::{held_throughout, unless};

pub(crate) mod check;
pub(crate) mod deadlock;
pub(crate) mod has_waiters;
pub(crate) mod in_transaction;
pub(crate) mod interrupt;
mod lock_owner;
pub(crate) mod lock_request;
pub(crate) mod marks;
mod rw_lock;
pub(crate) mod session;
mod set;
mod striped;
pub(crate) mod wait;

pub(crate) use check::Check;
pub(crate) use deadlock::DeadlockCheck;
pub(crate) use has_waiters::HasWaiters;
pub(crate) use in_transaction::{Timeouts, Tried};
pub(crate) use interrupt::Interrupt;
pub use lock_owner::LockOwner;
pub(crate) use lock_owner::OwnerId;
pub use lock_request::LockMode;
pub(crate) use lock_request::{LockAnswer, LockRequest};
pub(crate) use marks::SweepMarks;
pub use rw_lock::{ReadGuard, RwLock};
pub(crate) use session::{
    AsyncCommit, FlushTokens, MarkSession, MarkedSession, Ping, SKIPPED, TOKENS_AT_RISK, is_taken,
    mark_id,
};
pub use set::{MutexSet, MutexSetGuard};
pub use striped::Striped;
pub(crate) use wait::{Wait, time_limit};

/// The longest time that a lock can be waited for: PostgreSQL counts milliseconds in 32 bits.
pub(crate) const LOCK_TIMEOUT_LIMIT: Duration = Duration::from_secs(24 * 24 * 3600);

/// A lock that has one holder at a time, among all programs that use the same database.
///
/// It is a session-level advisory lock of PostgreSQL on one connection that all mutexes of a backend
/// share. Use it if a dead holder must be replaced at once, and if the work ends with the connection;
/// use a [`Lease`](crate::lease::Lease) where the holder must survive a lost connection.
///
/// # Guarantees
/// - Two guards of one key never exist at the same time, in one process or in several, as the
///   server sees it. A holder whose connection broke learns of it within the heartbeat
///   ([`BackendOptions::heartbeat`](crate::BackendOptions::heartbeat)); until then it may still
///   believe that it holds the lock: protect writes with the [`Fence`].
/// - Within a process waiters are served in the order of arrival. Between processes the server's queue
///   decides; a process hands the lock over to its own callers for a bounded time only.
/// - It is not re-entrant: locking a key again waits, also in the same task.
///
/// # Cancel safety
/// Every future may be dropped at any point: nothing stays locked without a guard.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Mutex: Send + Sync + fmt::Debug {
    /// The key.
    fn key(&self) -> &Key;

    /// The namespace that a name is in.
    fn namespace(&self) -> &str;

    /// Whether it is a lease instead of a session lock: see
    /// [`leased_mutex`](crate::Backend#method.leased_mutex).
    fn is_leased(&self) -> bool;

    /// The same mutex, locked by an [owner](LockOwner). For a leased mutex cycles are not detected:
    /// bound its waits.
    fn on(&self, owner: &LockOwner) -> Arc<dyn Mutex>;

    /// Tries to lock it without waiting; `None` if it is held.
    ///
    /// # Errors
    /// `Unavailable`, `Capacity`, `Unsupported` behind a transaction-pooling proxy.
    async fn try_lock(&self) -> Result<Option<Box<dyn MutexGuard>>>;

    /// Waits until it is locked.
    ///
    /// # Errors
    /// `Deadlock` for a [`LockOwner`]; otherwise as for [`try_lock`](Self::try_lock).
    async fn lock(&self) -> Result<Box<dyn MutexGuard>>;

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; otherwise as for [`lock`](Self::lock).
    async fn lock_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>>;

    /// The time since some moment, by the clock that timeouts go by.
    #[doc(hidden)]
    fn now(&self) -> Duration;

    /// Returns after this time, by the same clock.
    #[doc(hidden)]
    async fn sleep(&self, time: Duration);
}

/// Holds a [`Mutex`] until it is unlocked or dropped.
///
/// Dropping it unlocks in the background, without blocking and without reporting whether it was
/// still held; [`unlock`](Self::unlock) reports that.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[must_use = "a guard that is dropped unlocks at once"]
#[async_trait]
pub trait MutexGuard: Send + Sync + fmt::Debug {
    /// The holder's fencing token.
    fn fence(&self) -> Fence;

    /// Whether the lock was lost because its session ended.
    fn is_lost(&self) -> bool;

    /// Returns once the lock is lost.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    async fn lost(&self);

    /// Unlocks, and returns when the lock is free or another waiter of this process holds it.
    ///
    /// # Cancel safety
    /// When dropped, the lock is still released.
    ///
    /// # Errors
    /// `Lost` when the lock was no longer held, or its session ended before this was answered: then it may
    /// have been lost before. For a leased mutex as for [`LeaseGuard::release`](crate::LeaseGuard::release).
    async fn unlock(self: Box<Self>) -> Result<()>;
}

impl dyn Mutex + '_ {
    /// Runs `work` while holding the lock; `None`, without running it, when another holds it.
    ///
    /// The lock is released when `work` completes, panics, or is dropped. `work` is dropped when
    /// the lock is lost.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the lock was lost before it was released; otherwise as for
    /// [`try_lock`](Mutex::try_lock).
    pub async fn run_exclusive<F, W, T, E>(&self, work: F) -> Result<Option<T>, E>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        match self.try_lock().await? {
            Some(guard) => run_locked("run_exclusive", guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits for the lock and runs `work` while holding it.
    ///
    /// # Errors
    /// As for [`run_exclusive`](#method.run_exclusive).
    pub async fn run_exclusive_wait<F, W, T, E>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let guard = self.lock().await?;
        run_locked("run_exclusive_wait", guard, work).await
    }
}

async fn run_locked<F, W, T, E>(
    operation: &'static str,
    guard: Box<dyn MutexGuard>,
    work: F,
) -> Result<T, E>
where
    F: FnOnce(Fence) -> W,
    W: Future<Output = Result<T, E>>,
    E: From<Error>,
{
    let outcome = unless(guard.lost(), work(guard.fence())).await;
    held_throughout(operation, outcome, guard.unlock().await)
}
