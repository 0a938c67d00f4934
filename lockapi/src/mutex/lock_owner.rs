//! Owners of several locks, whose deadlocks are detected.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Mutex, MutexGuard};
use crate::error::Result;

/// Owns several locks that are taken one after the other, as a transfer or a request does.
///
/// Locks that are taken through it ([`lock`](Self::lock), or any lock [`on`](Mutex::on) it) belong
/// to it until their guards are dropped. A wait that could never end is then an error at once.
/// Neither a task nor a thread can be the owner: branches that run together in one task may well
/// wait for each other.
///
/// If locks are taken in one order, or as a [set](super::MutexSet), no owner is needed.
///
/// ```
/// use lockapi::{ErrorKind, LockOwner, memory::Database};
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = Database::new().connect().await?;
/// let (left, right) = (backend.mutex("left")?, backend.mutex("right")?);
/// let (one, other) = (LockOwner::new(), LockOwner::new());
/// let _left = one.lock(&*left).await?;
/// let _right = other.lock(&*right).await?;
/// let waiting = one.lock(&*right); // for the other
/// # let mut waiting = std::pin::pin!(waiting);
/// # assert!(futures_util::FutureExt::now_or_never(&mut waiting).is_none());
/// let refused = other.lock(&*left).await.unwrap_err(); // which would wait for the first
/// assert_eq!(refused.kind(), ErrorKind::Deadlock);
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
///
/// # Guarantees
/// - Waiting for a lock that the owner itself holds, or that closes a cycle of owners of this
///   backend, is [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock) before anything is sent.
/// - A cycle that goes through owners of other processes is detected by the process that closes it
///   before it waits, or within about a second; one of them gets the error. A wait is only visible to
///   other processes while it has its turn on a connection for waiting
///   ([`BackendOptions::waiters`](crate::BackendOptions::waiters)): with more keys to wait for than connections it takes
///   some turns until a cycle is detected; without such connections it never is.
/// - After the error nothing of that wait is held. Guards that the owner held before stay valid:
///   release them, so that the others can continue, and start again.
///
/// # Limits
/// - When an owner that holds something gives up a wait, others of its process that wait for the same lock go to the end
///   of the queue of the server.
/// - An owner that waits in several branches, such as those of `select!` or
///   [`MutexSet::lock_any`](crate::MutexSet::lock_any), waits for all of them, until each is granted or dropped: a
///   deadlock may be reported that one of the branches would have ended.
/// - A cycle through a lock that was taken without an owner is not detected, nor one that is closed by
///   a grant to one branch of an owner while another branch waits, nor one of several processes in which somebody waits for a
///   lock that others of his own process share, before these release it.
#[derive(Clone, PartialEq, Eq)]
pub struct LockOwner(OwnerId);

/// Which owner it is, in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OwnerId(u64);

static LAST: AtomicU64 = AtomicU64::new(0);

impl LockOwner {
    /// A new owner, which holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self(OwnerId(LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// Waits until a mutex is locked; as [`Mutex::on`] and [`Mutex::lock`].
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// `Deadlock`; otherwise as for [`Mutex::lock`].
    pub async fn lock(&self, mutex: &dyn Mutex) -> Result<Box<dyn MutexGuard>> {
        mutex.on(self).lock().await
    }

    pub(crate) fn id(&self) -> OwnerId {
        self.0
    }
}

impl Default for LockOwner {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockOwner({})", self.0.0)
    }
}
