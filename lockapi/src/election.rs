//! Choosing one of many, and telling the others who it is.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::fence::Fence;
use crate::key::{Key, advisory_key};
use crate::lease::{Holder, LeaseGuard, run_leased};

/// Makes one of the candidates the leader, for as long as it renews its term.
///
/// A term is a [lease](crate::Lease): releasing its guard resigns. What a leader says of itself is
/// in its [`Terms`](crate::lease::Terms): the owner, and data such as an address.
///
/// ```
/// use std::time::Duration;
/// use lockapi::{BackendExt, ElectionExt, lease::Terms};
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = lockapi::memory::Database::new().connect().await?;
/// let terms = Terms::new(Duration::from_secs(10)).owner("node-7");
/// let election = backend.election("scheduler", terms)?;
/// let mut leaders = election.observe();
/// assert!(leaders.next().await?.is_none(), "nobody leads");
/// let term = election.campaign().await?;
/// assert_eq!(leaders.next().await?.expect("a leader").owner, "node-7");
/// term.release().await?;
/// let token = election.lead(async |fence| fence.token()).await?;
/// # assert!(token > 0);
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
///
/// # Guarantees
/// - There is at most one term at a time, as the server's clock has it, and each has a larger token
///   than all before it.
/// - A leader learns of the end of its term before anybody else can begin one, as with a
///   [`Lease`](crate::Lease): [`lead`](ElectionExt::lead) drops the work then.
/// - Candidates of a process are served in the order of arrival. Between processes they look, at
///   least twice a second, and at once when they are notified of a leader's resignation.
///
/// # Cancel safety
/// Every future may be dropped at any point: a term that was won meanwhile ends.
#[async_trait]
pub trait Election: Send + Sync + fmt::Debug {
    /// The key.
    fn key(&self) -> &Key;

    /// Becomes the leader if there is none; `None` when there is one.
    ///
    /// # Errors
    /// As for [`Lease::try_acquire`](crate::Lease::try_acquire).
    async fn try_campaign(&self) -> Result<Option<Box<dyn LeaseGuard>>>;

    /// Waits until it is the leader.
    ///
    /// # Errors
    /// As for [`try_campaign`](Self::try_campaign).
    async fn campaign(&self) -> Result<Box<dyn LeaseGuard>>;

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; otherwise as for [`try_campaign`](Self::try_campaign).
    async fn campaign_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>>;

    /// Reads who leads; `None` when nobody does.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn leader(&self) -> Result<Option<Holder>>;

    /// Observes who leads; nothing is sent before [`Observer::next`].
    fn observe(&self) -> Box<dyn Observer>;
}

/// Sees the leaders of an [`Election`] change.
///
/// It looks twice a second, or every two seconds and when it is notified. A leader whose term began
/// and ended between two looks is not seen.
#[async_trait]
pub trait Observer: Send + fmt::Debug {
    /// Answers the leader: at first at once, then whenever it is another one, or none any more.
    ///
    /// # Cancel safety
    /// A change that was not answered is answered by the next call.
    ///
    /// # Errors
    /// `Unavailable`; the next call looks again.
    async fn next(&mut self) -> Result<Option<Holder>>;
}

/// Conveniences over [`Election`].
#[async_trait]
pub trait ElectionExt: Election {
    /// Waits until it is the leader and runs `work` for as long as it is.
    ///
    /// It resigns when `work` ends, panics, or is dropped. `work` is dropped when the term ends,
    /// before another can begin.
    ///
    /// # Errors
    /// `Lost` when the term ended before `work` did; otherwise as for
    /// [`campaign`](Election::campaign).
    async fn lead<F, W, T>(&self, work: F) -> Result<T>
    where
        F: FnOnce(Fence) -> W + Send,
        W: Future<Output = T> + Send,
        T: Send,
    {
        let term = self.campaign().await?;
        run_leased("lead", term, work).await
    }
}

impl<E: Election + ?Sized> ElectionExt for E {}

/// What those who wait for a change of the leader are notified of.
pub(crate) fn topic(namespace: &str, key: &str) -> i64 {
    advisory_key(namespace, &format!("leader of {key}"))
}
