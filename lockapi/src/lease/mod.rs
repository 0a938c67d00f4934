//! Locks that expire.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::key::{Key, check_name};
use crate::random;
use crate::wait::{held_throughout, unless};

pub(crate) mod manage;
mod model;
pub(crate) mod operations;
pub(crate) mod take;

pub(crate) use manage::{Abandon, Sweep};
#[cfg(feature = "suite")]
pub(crate) use model::RowKey;
pub(crate) use model::Table;
pub(crate) use operations::{Acquire, Acquired, Check, Peek, Peeked, Release, Renew};
pub(crate) use take::{Take, Taken};

/// The slots of a key that are not permits of a semaphore, which are numbered from 1.
pub(crate) mod slot {
    /// The lease.
    pub(crate) const LEASE: i64 = 0;
    /// The leader.
    pub(crate) const LEADER: i64 = -1;
    /// The leased mutex.
    pub(crate) const MUTEX: i64 = -2;
    /// The first permit of a semaphore.
    pub(crate) const FIRST_PERMIT: i64 = 1;

    /// The slot for which those who want this one wait: the first of several that are alike.
    pub(crate) fn line(slot: i64) -> i64 {
        slot.min(FIRST_PERMIT)
    }
}

/// The shortest time to live.
pub const MIN_TTL: Duration = Duration::from_millis(10);
/// The longest time to live: a leap year.
pub const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 3600);
/// The most bytes of data that a lease carries.
pub const MAX_DATA_BYTES: usize = 4096;

/// How a lease is held.
///
/// ```
/// use std::time::Duration;
/// use lockapi::lease::LeaseOptions;
///
/// let options = LeaseOptions::new(Duration::from_secs(30)).owner("worker-7").data(r#"{"port":8080}"#);
/// assert_eq!(options.ttl(), Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    ttl: Duration,
    minimum_hold: Duration,
    owner: Option<String>,
    data: String,
    renewed: bool,
}

impl LeaseOptions {
    /// Options with this time to live, with automatic renewal, without minimum hold.
    ///
    /// A holder that dies is replaced after `ttl`. Renewals happen three times in a `ttl`. With 2 s or
    /// more a lease survives a connection that falls silent, if a new one can be opened within a
    /// quarter of the `ttl`; a lease with a shorter `ttl` may be lost.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            minimum_hold: Duration::ZERO,
            owner: None,
            data: String::new(),
            renewed: true,
        }
    }

    /// Keeps the lease from others for this long after it was acquired, even when it is released
    /// earlier. Use it to run a short job once on nodes whose clocks differ. At most the `ttl`.
    #[must_use]
    pub fn minimum_hold(mut self, hold: Duration) -> Self {
        self.minimum_hold = hold;
        self
    }

    /// Names the holder for readers; the default identifies the process. At most 255 bytes.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Stores data that other processes can read, such as an address; at most [`MAX_DATA_BYTES`].
    #[must_use]
    pub fn data(mut self, data: impl Into<String>) -> Self {
        self.data = data.into();
        self
    }

    /// Leaves renewals to the caller: without [`LeaseGuard::renew`] it expires after its `ttl`. The first renewal opens a
    /// connection, for which there is a quarter of the `ttl`, and a quarter of a second at least.
    #[must_use]
    pub fn renewed_by_hand(mut self) -> Self {
        self.renewed = false;
        self
    }

    /// The time to live.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "check", message));
        if self.ttl < MIN_TTL || self.ttl > MAX_TTL {
            return invalid(format!(
                "a ttl of {:?}; allowed are {MIN_TTL:?} to 366 days",
                self.ttl
            ));
        }
        if self.minimum_hold > self.ttl {
            return invalid(format!(
                "a minimum hold of {:?}; allowed are at most the ttl, {:?}, after which the lease ends by itself",
                self.minimum_hold, self.ttl
            ));
        }
        if let Some(owner) = &self.owner {
            check_name("owner", owner, 0)?;
        }
        if self.data.len() > MAX_DATA_BYTES {
            return invalid(format!(
                "the data has {} bytes; allowed are at most {MAX_DATA_BYTES} bytes",
                self.data.len()
            ));
        }
        if self.data.contains('\0') {
            return invalid("the data has a NUL, which PostgreSQL cannot store in text".into());
        }
        Ok(())
    }

    /// The request that these options make; only after [`check`](Self::check).
    pub(crate) fn acquire(&self, namespace: &str, key: &str, slot: i64) -> Result<Acquire> {
        Ok(Acquire {
            namespace: namespace.to_owned(),
            key: key.to_owned(),
            slot,
            acquisition: random::number()?,
            ttl: micros(self.ttl),
            hold: micros(self.minimum_hold),
            owner: self.owner_or_process(),
            data: self.data.clone(),
        })
    }

    /// The request for `count` of the permits of a semaphore; only after [`check`](Self::check).
    pub(crate) fn take(
        &self,
        namespace: &str,
        key: &str,
        permits: i64,
        count: i64,
    ) -> Result<Take> {
        Ok(Take {
            namespace: namespace.to_owned(),
            key: key.to_owned(),
            permits,
            count,
            acquisition: random::number()?,
            ttl: micros(self.ttl),
            hold: micros(self.minimum_hold),
            owner: self.owner_or_process(),
            data: self.data.clone(),
        })
    }

    fn owner_or_process(&self) -> String {
        let process = || format!("pid {}", std::process::id());
        self.owner.clone().unwrap_or_else(process)
    }
}

/// The name of a program unless it sets one.
pub(crate) fn this_process() -> String {
    format!("pid {}", std::process::id())
}

/// A duration in microseconds, rounded down; [`MAX_TTL`] fits many times.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A lock that expires unless its holder renews it.
///
/// It is a row in a table. It survives a lost connection and a restart of the server, works behind a
/// transaction-pooling proxy, and can be acquired by others after its time to live if the holder is
/// gone; in exchange every acquisition and renewal is a committed write.
///
/// # Guarantees
/// - The server's clock alone decides when a lease expires.
/// - A holder learns of the end from its own monotonic clock, counted from before the request was sent
///   and shortened by 2 %, hence before another holder can acquire it, as long as the two clocks run at
///   the same speed. It learns of it also while the network is silent and while the async runtime is
///   starved. A process that is stopped learns of it when it continues: protect writes with the
///   [`Fence`].
/// - Automatic renewal never revives a lease that has ended.
/// - A lease that was granted although its caller got no answer, or got it too late, is released at
///   once, even if it has a minimum hold.
///
/// # When the server's clock is set
/// When it is set forward, leases expire early by the step. Another process may then be granted one
/// while its former holder still believes that it holds it, until that holder renews, which is within a
/// third of the ttl, or checks in: the former holder's [`Fence`] is refused from then on. When it is
/// set back, leases that were granted or renewed before last longer by the step: no other process
/// acquires them in that time, and a lease whose holder died is free only afterwards. A renewal counts
/// from the new time.
///
/// # Cancel safety
/// Every future may be dropped at any point: a lease that was acquired meanwhile is released.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Lease: Send + Sync + fmt::Debug {
    /// The key.
    fn key(&self) -> &Key;

    /// Acquires it if it is free; `None` when another holds it.
    ///
    /// # Errors
    /// `Unavailable`, also when it was granted too late, after its time to live as counted here, and
    /// released. `Indeterminate` when the answer never arrived although the request was repeated: if it
    /// was acquired it is released in the background, or expires by itself after its time to live.
    async fn try_acquire(&self) -> Result<Option<Box<dyn LeaseGuard>>>;

    /// Waits until it is acquired.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    async fn acquire(&self) -> Result<Box<dyn LeaseGuard>>;

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; otherwise as for [`try_acquire`](Self::try_acquire).
    async fn acquire_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>>;

    /// Reads its holder; `None` if the database has none. A lease that was [released](Holder::released)
    /// before its minimum hold ended is not free yet. For one time to live after a fail-over there may
    /// be a holder that the database does not know.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn peek(&self) -> Result<Option<Holder>>;
}

/// Who holds a lease, as it was in the database a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner, as named in its [options](LeaseOptions::owner).
    pub owner: String,
    /// The data that the holder stored.
    pub data: String,
    /// The holder's fencing token.
    pub token: i64,
    /// How long it has been held.
    pub age: Duration,
    /// How long it is still held if it is not renewed.
    pub remaining: Duration,
    /// Whether the holder has released it, and it is only kept from others until its
    /// [minimum hold](LeaseOptions::minimum_hold) ends.
    pub released: bool,
}

impl From<Peeked> for Holder {
    fn from(peeked: Peeked) -> Self {
        let duration = |micros: i64| Duration::from_micros(micros.max(0).unsigned_abs());
        Self {
            owner: peeked.owner,
            data: peeked.data,
            token: peeked.fence,
            age: duration(peeked.age),
            remaining: duration(peeked.remaining),
            released: peeked.released,
        }
    }
}

/// Holds a [`Lease`] until it is released, dropped or lost.
///
/// Dropping it releases in the background, without blocking and without reporting whether it was
/// still held; [`release`](Self::release) reports that.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[must_use = "a guard that is dropped releases at once"]
#[async_trait]
pub trait LeaseGuard: Send + Sync + fmt::Debug {
    /// The holder's fencing token.
    fn fence(&self) -> Fence;

    /// The time for which it is certainly still held, by the local clock; zero if lost.
    fn remaining(&self) -> Duration;

    /// Whether it was lost.
    fn is_lost(&self) -> bool;

    /// Returns once it is lost.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    async fn lost(&self);

    /// Extends it to its time to live from now.
    ///
    /// # Errors
    /// `Lost` when it is no longer held. After `Unavailable` or `Indeterminate` it is still held
    /// for the [`remaining`](Self::remaining) time.
    async fn renew(&self) -> Result<()>;

    /// Releases it.
    ///
    /// # Cancel safety
    /// When dropped, the lease is still released.
    ///
    /// # Errors
    /// `Lost` when it was no longer held. `Indeterminate` when no answer came, and when it was held as this
    /// was called but not when the server came to it: the release was repeated, or came after the lease
    /// had ended. After any error but `Lost` it may be held for the rest of its time; what failed is
    /// repeated in the background until then.
    async fn release(self: Box<Self>) -> Result<()>;
}

impl dyn Lease + '_ {
    /// Runs `work` while holding the lease; `None`, without running it, when another holds it.
    ///
    /// The lease is released when `work` completes, panics, or is dropped. `work` is dropped when
    /// the lease is lost.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the lease was lost before it was released; otherwise as for
    /// [`try_acquire`](Lease::try_acquire).
    pub async fn run_exclusive<F, W, T, E>(&self, work: F) -> Result<Option<T>, E>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        match self.try_acquire().await? {
            Some(guard) => run_leased("run_exclusive", guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits for the lease and runs `work` while holding it.
    ///
    /// # Errors
    /// As for [`run_exclusive`](#method.run_exclusive).
    pub async fn run_exclusive_wait<F, W, T, E>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let guard = self.acquire().await?;
        run_leased("run_exclusive_wait", guard, work).await
    }
}

pub(crate) async fn run_leased<F, W, T, E>(
    operation: &'static str,
    guard: Box<dyn LeaseGuard>,
    work: F,
) -> Result<T, E>
where
    F: FnOnce(Fence) -> W,
    W: Future<Output = Result<T, E>>,
    E: From<Error>,
{
    let outcome = unless(guard.lost(), work(guard.fence())).await;
    held_throughout(operation, outcome, guard.release().await)
}
