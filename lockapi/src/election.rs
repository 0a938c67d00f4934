//! Choosing one of many processes as the leader, and showing the others which one it is.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select;

use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::key::{Key, advisory_key};
use crate::lease::{Holder, LeaseGuard, run_leased};
use crate::stop::Stop;
use crate::wait::{unless, was_lost};

/// Between two attempts to lead while the database is unavailable.
const PAUSE: Duration = Duration::from_secs(1);

/// Makes one of the candidates the leader, for as long as it renews its term.
///
/// A term is a [lease](crate::Lease): releasing its guard resigns. A leader describes itself in its
/// [`LeaseOptions`](crate::lease::LeaseOptions): the owner, and data such as an address.
///
/// ```
/// use std::time::Duration;
/// use lockapi::lease::LeaseOptions;
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = lockapi::memory::Database::new().connect().await?;
/// let options = LeaseOptions::new(Duration::from_secs(10)).owner("node-7");
/// let election = backend.election("scheduler", options)?;
/// let mut leaders = election.observe();
/// assert!(leaders.next().await?.is_none(), "nobody leads");
/// let term = election.campaign().await?;
/// assert_eq!(leaders.next().await?.expect("a leader").owner, "node-7");
/// term.release().await?;
/// let token = election.lead(async |fence| Ok::<_, lockapi::Error>(fence.token())).await?;
/// # assert!(token > 0);
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
///
/// # Guarantees
/// - There is at most one term at a time, by the server's clock, and each has a larger token than
///   all earlier terms.
/// - A leader learns of the end of its term before another can begin, as with a
///   [`Lease`](crate::Lease): [`lead`](crate::Election#method.lead) drops the work then.
/// - Candidates of a process are served in the order of arrival. Between processes they poll, with
///   random pauses of at most 750 ms, and at once when they are notified of a leader's resignation.
///
/// # Cancel safety
/// Every future may be dropped at any point: a term that was won meanwhile ends.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
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

    /// Returns when the leader may have changed, or after this time.
    async fn changed(&self, at_most: Duration);
}

/// Sees the leaders of an [`Election`] change.
///
/// It polls twice a second, or every two seconds and when it is notified. A leader whose term began
/// and ended between two polls is not seen.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Observer: Send + fmt::Debug {
    /// Returns the leader: at once on the first call, then whenever it has changed, or there is
    /// none any more.
    ///
    /// # Cancel safety
    /// A change that was not returned is returned by the next call.
    ///
    /// # Errors
    /// `Unavailable`; the next call polls again.
    async fn next(&mut self) -> Result<Option<Holder>>;
}

impl dyn Election + '_ {
    /// Waits until it is the leader and runs `work` for as long as it is.
    ///
    /// It resigns when `work` completes, panics, or is dropped. `work` is dropped when the term
    /// ends, before another can begin.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the term ended before it was resigned; otherwise as for
    /// [`campaign`](Election::campaign).
    pub async fn lead<F, W, T, E>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let term = self.campaign().await?;
        run_leased("lead", term, work).await
    }

    /// Leads whenever it can until it is [stopped](Stop), and then returns `None`.
    ///
    /// `work` is run in each of its terms, and dropped when the term ends or when it is stopped;
    /// then it resigns. When `work` completes and the term lasts until it has resigned, the result of `work`
    /// is returned; when the term ended before, `work` is run again in the next one. While the database is
    /// unavailable, or after the backend was closed, it keeps trying.
    ///
    /// # Cancel safety
    /// When dropped, `work` is dropped, and it resigns in the background.
    ///
    /// # Errors
    /// Those of `work`, and those of [`campaign`](Election::campaign) that a retry does not fix.
    pub async fn lead_until<F, W, T, E>(
        &self,
        stop: impl Into<Stop>,
        mut work: F,
    ) -> Result<Option<T>, E>
    where
        F: FnMut(Fence) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let stop = stop.into();
        while let Some(term) = campaign_until(self, &stop).await? {
            let over = async {
                select(term.lost(), pin!(stop.stopped())).await;
            };
            let outcome = unless(over, work(term.fence())).await;
            let lost = was_lost(&term.release().await);
            if let Some(outcome) = outcome.filter(|_| !lost) {
                return outcome.map(Some);
            }
        }
        Ok(None)
    }
}

/// Becomes the leader unless it is stopped. Retries during outages.
pub(crate) async fn campaign_until<E: Election + ?Sized>(
    election: &E,
    stop: &Stop,
) -> Result<Option<Box<dyn LeaseGuard>>> {
    while !stop.is_stopped() {
        let campaign = async {
            match election.campaign().await {
                Err(error) if error.is_retryable() || error.kind() == ErrorKind::Indeterminate => {
                    election.changed(PAUSE).await;
                    Ok(None)
                }
                outcome => outcome.map(Some),
            }
        };
        let term = unless(stop.stopped(), campaign).await.transpose()?;
        if let Some(Some(term)) = term.filter(|_| !stop.is_stopped()) {
            return Ok(Some(term));
        }
    }
    Ok(None)
}

/// The topic that waiters for a change of the leader are notified of.
pub(crate) fn topic(namespace: &str, key: &str) -> i64 {
    advisory_key(namespace, &format!("leader of {key}"))
}
