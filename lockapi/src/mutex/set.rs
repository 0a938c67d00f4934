//! Several mutexes at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{LockOwner, Mutex, MutexGuard};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::wait::unless;

/// Mutexes that are locked together: all of them, or as many as are free.
///
/// ```
/// use lockapi::memory::Database;
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = Database::new().connect().await?;
/// let accounts = backend.mutex_set(["account/7", "account/3"])?;
/// let both = accounts.lock_all().await?;
/// assert_eq!(both.fences().count(), 2);
/// both.unlock().await?;
///
/// let shards = backend.mutex_set(["shard/1", "shard/2", "shard/3"])?;
/// let mine = shards.lock_any(2).await?; // two, if two are free
/// for fence in mine.fences() {
///     println!("working on {:?}", fence.key());
/// }
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
///
/// # Guarantees
/// - Keys are sorted by the lock that they stand for in the server, and each is locked once however
///   often it was named. A caller waits only for a key that comes after all that it holds, so sets
///   never wait for each other in a cycle, in whichever order their keys were named.
/// - All or nothing: a call that ends in an error, or is dropped, holds nothing.
///
/// # Limits
/// 1 to [`MAX_KEYS`](Self::MAX_KEYS) keys.
#[derive(Clone, Debug)]
pub struct MutexSet {
    /// Sorted, without repetitions.
    mutexes: Arc<[Arc<dyn Mutex>]>,
}

impl MutexSet {
    /// The most keys that a set may have.
    pub const MAX_KEYS: usize = 1000;

    /// A set of mutexes, all of one backend.
    ///
    /// # Errors
    /// `Invalid` for none, or more than [`MAX_KEYS`](Self::MAX_KEYS).
    pub fn new(mutexes: Vec<Arc<dyn Mutex>>) -> Result<Self> {
        let mut mutexes = mutexes;
        let lock = |mutex: &Arc<dyn Mutex>| mutex.key().lock_id(mutex.namespace());
        mutexes.sort_by_key(lock);
        mutexes.dedup_by_key(|mutex| lock(mutex));
        if mutexes.is_empty() || mutexes.len() > Self::MAX_KEYS {
            let message = format!(
                "a set of {} keys; allowed are 1 to {}",
                mutexes.len(),
                Self::MAX_KEYS
            );
            return Err(Error::new(ErrorKind::Invalid, "mutex_set", message));
        }
        Ok(Self {
            mutexes: mutexes.into(),
        })
    }

    /// The keys, in the order in which they are locked.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.mutexes.iter().map(|mutex| mutex.key())
    }

    /// The same set, locked by a [`LockOwner`]. Waiting for any of them counts as waiting for each.
    #[must_use]
    pub fn on(&self, owner: &LockOwner) -> Self {
        Self {
            mutexes: self.mutexes.iter().map(|mutex| mutex.on(owner)).collect(),
        }
    }

    /// Locks all of them if that is possible at once; `None` when one is held.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// As for [`Mutex::try_lock`].
    pub async fn try_lock_all(&self) -> Result<Option<MutexSetGuard>> {
        let guards = self.try_in_front(0).await?;
        Ok((guards.len() == self.mutexes.len()).then_some(MutexSetGuard { guards }))
    }

    /// Waits until all of them are locked.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// As for [`Mutex::lock`]; `Lost` when one was lost while another was waited for.
    pub async fn lock_all(&self) -> Result<MutexSetGuard> {
        self.all("lock_all", None).await
    }

    /// Waits for at most `timeout`, for all of them together, also where the server does not answer. With
    /// a timeout of zero each is tried once.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// `TimedOut`; otherwise as for [`lock_all`](Self::lock_all).
    pub async fn lock_all_timeout(&self, timeout: Duration) -> Result<MutexSetGuard> {
        self.all("lock_all_timeout", Some(timeout)).await
    }

    /// Locks as many as are free, `most` at most; `None` when all are held.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// `Invalid` when `most` is 0; otherwise as for [`Mutex::try_lock`].
    pub async fn try_lock_any(&self, most: usize) -> Result<Option<MutexSetGuard>> {
        check_most("try_lock_any", most)?;
        let mut guards = Vec::new();
        self.add_free(&mut guards, most).await?;
        Ok((!guards.is_empty()).then_some(MutexSetGuard { guards }))
    }

    /// Locks as many as are free, `most` at most, and waits for one if all are held.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// `Invalid` when `most` is 0; otherwise as for [`Mutex::lock`].
    pub async fn lock_any(&self, most: usize) -> Result<MutexSetGuard> {
        self.any("lock_any", most, None).await
    }

    /// As [`lock_any`](Self::lock_any), and waits for at most `timeout`: what is held by then is returned.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// `TimedOut`; otherwise as for [`lock_any`](Self::lock_any).
    pub async fn lock_any_timeout(&self, most: usize, timeout: Duration) -> Result<MutexSetGuard> {
        self.any("lock_any_timeout", most, Some(timeout)).await
    }

    async fn all(
        &self,
        operation: &'static str,
        timeout: Option<Duration>,
    ) -> Result<MutexSetGuard> {
        let limit = Limit::new(&*self.mutexes[0], timeout);
        let mut guards: Vec<Box<dyn MutexGuard>> = Vec::new();
        loop {
            // All the rest in one round trip, and then the wait for the first that is held.
            let more = limit.bound(self.try_in_front(guards.len())).await;
            let next = &self.mutexes[guards.len()];
            let more = more.unwrap_or_else(|| Err(limit.is_over(operation, &**next)));
            guards.extend(more.map_err(|error| error.during(operation))?);
            let Some(next) = self.mutexes.get(guards.len()) else {
                break;
            };
            let guard = wait(&**next, limit.left()).await;
            guards.push(guard.map_err(|error| error.during(operation))?);
            if guards.len() == self.mutexes.len() {
                break;
            }
        }
        let lost = guards.iter().find(|guard| guard.is_lost());
        if let Some(lost) = lost {
            let message = "it was lost while the set waited for another of its keys";
            let error = Error::new(ErrorKind::Lost, operation, message);
            return Err(error.on(lost.fence().key()));
        }
        Ok(MutexSetGuard { guards })
    }

    /// Tries all from the `from`-th on, and keeps those in front of the first that is held.
    async fn try_in_front(&self, from: usize) -> Result<Vec<Box<dyn MutexGuard>>> {
        let tried = join_all(self.mutexes[from..].iter().map(|mutex| mutex.try_lock())).await;
        let tried: Result<Vec<_>> = tried.into_iter().collect();
        Ok(tried?.into_iter().map_while(|guard| guard).collect())
    }

    async fn any(
        &self,
        operation: &'static str,
        most: usize,
        timeout: Option<Duration>,
    ) -> Result<MutexSetGuard> {
        check_most(operation, most)?;
        let first = &*self.mutexes[0];
        let limit = Limit::new(first, timeout);
        let mut guards = Vec::new();
        let tried = limit.bound(self.add_free(&mut guards, most)).await;
        match tried {
            Some(tried) => tried.map_err(|error| error.during(operation))?,
            None if guards.is_empty() => return Err(limit.is_over(operation, first)),
            None => {}
        }
        if guards.is_empty() {
            let left = limit.left();
            let waiting = self.mutexes.iter().map(|mutex| wait(&**mutex, left));
            let mut waiting: FuturesUnordered<_> = waiting.collect();
            let mut next = waiting.next().await;
            while let Some(guard) = next {
                match guard {
                    Ok(guard) => guards.push(guard),
                    Err(error) if guards.is_empty() => return Err(error.during(operation)),
                    // One is enough.
                    Err(_) => break,
                }
                next = if guards.len() < most {
                    waiting.next().now_or_never().flatten()
                } else {
                    None
                };
            }
            drop(waiting);
            // What is held stays so where others cannot be had in time, or at all.
            drop(limit.bound(self.add_free(&mut guards, most)).await);
        }
        Ok(MutexSetGuard { guards })
    }

    /// Adds those that are free, and never takes more than are wanted.
    async fn add_free(&self, guards: &mut Vec<Box<dyn MutexGuard>>, most: usize) -> Result<()> {
        let held: Vec<Fence> = guards.iter().map(|guard| guard.fence()).collect();
        // Not everybody begins with the same ones.
        let first = fastrand::usize(..self.mutexes.len());
        let (behind, front) = self.mutexes.split_at(first);
        let mut others = front
            .iter()
            .chain(behind)
            .filter(|mutex| !held.iter().any(|fence| fence.key() == mutex.key()));
        while guards.len() < most {
            let some: Vec<_> = others.by_ref().take(most - guards.len()).collect();
            if some.is_empty() {
                break;
            }
            for guard in join_all(some.into_iter().map(|mutex| mutex.try_lock())).await {
                guards.extend(guard?);
            }
        }
        Ok(())
    }
}

/// The time that a call has for all of its keys, by the clock of their backend.
struct Limit<'a> {
    clock: &'a dyn Mutex,
    timeout: Option<Duration>,
    from: Duration,
}

impl<'a> Limit<'a> {
    fn new(clock: &'a dyn Mutex, timeout: Option<Duration>) -> Self {
        Self {
            clock,
            timeout,
            from: clock.now(),
        }
    }

    fn left(&self) -> Option<Duration> {
        let spent = self.clock.now().saturating_sub(self.from);
        self.timeout.map(|timeout| timeout.saturating_sub(spent))
    }

    /// Nothing where the time is over before the work is done.
    async fn bound<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.left() {
            // Without time to wait each is tried once, which takes as long as an attempt does.
            None => Some(work.await),
            Some(_) if self.timeout == Some(Duration::ZERO) => Some(work.await),
            Some(left) => unless(self.clock.sleep(left), work).await,
        }
    }

    fn is_over(&self, operation: &'static str, mutex: &dyn Mutex) -> Error {
        let timeout = self.timeout.unwrap_or(Duration::MAX);
        Error::not_granted(operation, timeout).on(mutex.key())
    }
}

/// Holds mutexes of a [`MutexSet`] until they are unlocked or dropped.
///
/// Dropping it unlocks in the background; [`unlock`](Self::unlock) reports whether all were still
/// held.
#[derive(Debug)]
#[must_use = "a guard that is dropped unlocks at once"]
pub struct MutexSetGuard {
    guards: Vec<Box<dyn MutexGuard>>,
}

impl MutexSetGuard {
    /// The fencing token of each, which also has its key.
    pub fn fences(&self) -> impl Iterator<Item = Fence> {
        self.guards.iter().map(|guard| guard.fence())
    }

    /// Whether one of them was lost because its session ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_lost())
    }

    /// Returns once one of them is lost.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    pub async fn lost(&self) {
        select_all(self.guards.iter().map(|guard| guard.lost())).await;
    }

    /// Unlocks all of them.
    ///
    /// # Cancel safety
    /// When dropped, all are still released.
    ///
    /// # Errors
    /// `Lost` when one was no longer held; the others are released nevertheless.
    pub async fn unlock(self) -> Result<()> {
        let unlocked = join_all(self.guards.into_iter().map(MutexGuard::unlock)).await;
        unlocked.into_iter().collect()
    }

    /// The guards one by one, in the order of [`fences`](Self::fences).
    #[must_use]
    pub fn into_guards(self) -> Vec<Box<dyn MutexGuard>> {
        self.guards
    }
}

async fn wait(mutex: &dyn Mutex, timeout: Option<Duration>) -> Result<Box<dyn MutexGuard>> {
    match timeout {
        None => mutex.lock().await,
        Some(timeout) => mutex.lock_timeout(timeout).await,
    }
}

fn check_most(operation: &'static str, most: usize) -> Result<()> {
    if most == 0 {
        let message = "at most 0 locks; allowed are 1 or more";
        return Err(Error::new(ErrorKind::Invalid, operation, message));
    }
    Ok(())
}
