//! Limits on how often something is done, for all processes together.
//!
//! ```
//! use lockapi::limit::Quota;
//!
//! # async fn example() -> lockapi::Result<()> {
//! let backend = lockapi::memory::Database::new().connect().await?;
//! let limiter = backend.rate_limiter(Quota::per_minute(100).burst(2))?;
//! assert!(limiter.check("user:123:api").await?.is_allowed());
//! assert!(limiter.check("user:123:api").await?.is_allowed());
//! let refused = limiter.check("user:123:api").await?;
//! assert!(!refused.is_allowed());
//! println!("try again after {:?}", refused.retry_after()); // 600 ms after the first
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

pub(crate) mod charge;
mod decision;
mod headers;
mod in_transaction;
pub(crate) mod level;
pub(crate) mod manage;
mod policy;
mod quota;
pub(crate) mod raw_decision;
pub(crate) mod reservation;
mod table;
pub(crate) mod take;

pub(crate) use charge::{Charge, ChargeLine};
pub(crate) use decision::duration;
pub use decision::{Basis, Decision, Verdict};
pub use headers::{Fields, fields};
pub(crate) use in_transaction::{charge, verdict};
pub(crate) use level::Level;
pub(crate) use manage::{Block, Ensure, ReadLevel, Refund, Reset, Sweep};
pub(crate) use policy::nanos;
pub use policy::{Outage, PermitRequest, Policy};
pub(crate) use quota::MAX_DEPTH;
pub use quota::{Algorithm, MAX_PERIOD, MAX_PERMITS, MIN_INTERVAL, Quota};
pub(crate) use raw_decision::{Outcome, RawDecision};
pub(crate) use reservation::{EndReservation, Expire};
pub(crate) use table::Limits;
pub(crate) use take::Take;

/// The most limits in one call.
pub const MAX_PERMIT_REQUESTS: usize = 1000;
/// The most reservations of a key that are open at once.
pub const MAX_RESERVATIONS: usize = 10_000;
/// The longest time that a key is blocked or a reservation lasts.
pub const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// Limits how often something is done, among all programs that use the same database.
///
/// A limit is a row in a table, named by its key, and a [`Quota`] that every call passes. The key
/// should name what is limited and for whom, as in `user:123:api`. Programs that use one key should
/// agree on its quota; if they do not, each quota is enforced separately, as described below.
///
/// # Guarantees
/// - With [`Algorithm::Gcra`], in any time `t` no more than `burst + rate * t` permits are taken under
///   a quota, over all processes and backends, regardless of what is taken of the key under other
///   quotas. All quotas of one rate together take no more than the largest burst and the rate allow.
///   Windows keep to their definitions.
/// - The server's clock alone decides. When it is set back, what was taken counts as it did at the
///   latest decision before, so that nothing is forgotten and nothing counts for longer; when it is set
///   forward, one further burst or window can be taken. A block ends by the server's clock.
/// - A refused call takes nothing. It writes nothing either, unless the server's clock was set back,
///   and it locks the row only if the row had room when the statement began.
/// - A check whose connection is lost before its answer came is sent once more: its permits may then be taken twice. If it is
///   refused then, its first try may have taken what there was: that is `Indeterminate`, and no refusal. A reservation is not
///   sent again, and [`until_ready`](Self::until_ready) waits on.
/// - The permits of an admitted call are on disk when it returns, unless the policy is
///   [relaxed](Policy::relaxed): a crash of the server can then forget what was taken during the last
///   three `wal_writer_delay` (0.6 s by default).
/// - A quota may be changed at any time. Permits stay taken until they are replenished under the quota
///   that took them: after a change to a smaller quota the key can refuse everything for the time in
///   which the burst of the larger one is replenished, and no longer. A window lasts as long as the
///   longest quota that took permits in it, and as the longest sliding one that took permits in the
///   previous window, which still counts. [`reset`](Self::reset) ends the wait.
/// - A change between [`Algorithm::Gcra`] and windows starts from zero: each counts only what it
///   admitted itself. A change back does not admit again what was taken before.
///
/// Calls for one key that arrive in one process while a statement is under way are decided by the next one, in the
/// order of arrival, each by its own quota; one goes together with an equal one before it, also across calls for several limits.
///
/// # Cancel safety
/// Every future may be dropped at any point: permits that were taken for it are given back.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait RateLimiter: Send + Sync + fmt::Debug {
    /// The namespace that its keys are in.
    fn namespace(&self) -> &str;

    /// The policy, with the current quota.
    fn policy(&self) -> Policy;

    /// The time on the monotonic clock that its backend counts by, from an arbitrary start: in tests that of their
    /// [clock](crate::engine::ManualClock).
    fn now(&self) -> Duration;

    /// Changes the quota for the calls from now on, on this limiter only.
    ///
    /// # Errors
    /// `Invalid` for a quota outside its limits.
    fn set_quota(&self, quota: Quota) -> Result<()>;

    /// Decides several requests separately, in one round trip; the decisions are in their order.
    ///
    /// # Errors
    /// `Invalid` for bad keys, for costs of 0 or more than the quota's [limit](Quota::limit), and
    /// for more than [`MAX_PERMIT_REQUESTS`]. When the database cannot be reached, the policy decides, unless
    /// set with `Unavailable`; `TimedOut` when a transaction that has taken permits of a key stayed
    /// open for [`BackendOptions::timeout`](crate::BackendOptions::timeout); `Indeterminate` when
    /// the answer never arrived: permits may have been taken.
    async fn check_each(&self, requests: &[PermitRequest]) -> Result<Vec<Decision>>;

    /// Takes permits of several limits together, all or none.
    ///
    /// # Errors
    /// As for [`check_each`](Self::check_each); `Invalid` if one key is requested under two quotas.
    async fn check_all(&self, requests: &[PermitRequest]) -> Result<Verdict>;

    /// Returns what would be decided now; takes nothing.
    ///
    /// # Errors
    /// As for [`check_each`](Self::check_each), but no policy applies.
    async fn peek(&self, request: &PermitRequest) -> Result<Decision>;

    /// Waits until it is admitted, at most for `timeout`. No connection is held meanwhile. The decision is
    /// always [allowed](Decision::is_allowed), and contains the permits that are left.
    ///
    /// # Guarantees
    /// Calls that wait for a key in one process, by one policy and one quota, are admitted in the order of
    /// arrival, and as many of them by one statement as fit. No call waits behind calls of another policy or
    /// quota; when the quota is changed, waiting calls queue again under the new one. In shadow mode nothing
    /// waits.
    ///
    /// If the first of these calls cannot be admitted within its timeout, its wait ends at once. It asks
    /// again once a second, because a reset, a refund, the end of a block or another quota may admit it
    /// early.
    ///
    /// The first call of a queue asks for those behind it. So a future that is kept and not polled delays all
    /// calls behind it, as with the semaphore of tokio: drop it, or poll it to completion.
    ///
    /// # Errors
    /// `TimedOut`, and always so for a timeout of zero; `Capacity` when [`MAX_WAITING`] calls wait already, whatever
    /// their keys; `Invalid` when the cost does not fit into a quota that was set meanwhile; otherwise as for
    /// [`check_each`](Self::check_each).
    async fn until_ready(&self, request: &PermitRequest, timeout: Duration) -> Result<Decision>;

    /// Takes permits that can be given back in part when the actual cost is known; `Err` of the inner
    /// result is the refusal.
    ///
    /// A reservation that is neither committed nor cancelled within `ttl` is cancelled by the next
    /// call for the key; so is one whose answer was lost.
    ///
    /// # Errors
    /// `Invalid` for a `ttl` of zero or more than [`MAX_TIME`]; `Capacity` if the permits are
    /// available, but [`MAX_RESERVATIONS`] of the key are open; otherwise as for [`peek`](Self::peek).
    async fn reserve(
        &self,
        request: &PermitRequest,
        ttl: Duration,
    ) -> Result<std::result::Result<Box<dyn Reservation>, Decision>>;

    /// Gives back the permits of a decision, once, except those that have been replenished since, so
    /// that what others have taken meanwhile stays taken. What was replenished is subtracted from one
    /// refund, not from each of those that were open meanwhile. A decision that took nothing gives
    /// back nothing.
    ///
    /// # Cancel safety
    /// When dropped, it is still given back.
    ///
    /// # Errors
    /// `Unavailable`; `Indeterminate`: do not repeat it, because the permits may be given back twice.
    async fn refund(&self, decision: &Decision) -> Result<()>;

    /// Deletes the state of a key: permits taken, reservations, a block. Do not [refund](Self::refund)
    /// earlier decisions after that: their permits are free already.
    ///
    /// # Errors
    /// `Invalid` for a bad key, `Unavailable`.
    async fn reset(&self, key: &Key) -> Result<()>;

    /// Refuses all calls for a key for `time`, as a penalty; zero ends that. Permits that were taken
    /// stay taken.
    ///
    /// # Errors
    /// `Invalid` for a bad key or a time of more than [`MAX_TIME`], `Unavailable`.
    async fn block(&self, key: &Key, time: Duration) -> Result<()>;

    /// Opens a block of permits: the cost of the request is taken in advance, and used in this process
    /// without a round trip; see [`Permits`]. Nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key or a cost outside the quota's limits.
    fn permits(&self, request: &PermitRequest) -> Result<Arc<dyn Permits>>;

    /// Deletes rows of the database that have been idle for a minute, at most 1,000; returns how
    /// many. This also happens automatically every five to ten minutes while limits are used, on a
    /// connection of its own.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn sweep(&self) -> Result<u64>;
}

/// The most calls that wait in [`RateLimiter::until_ready`] of one backend, for all keys together.
pub const MAX_WAITING: usize = 10_000;

impl dyn RateLimiter + '_ {
    /// Takes one permit if it is available.
    ///
    /// # Errors
    /// As for [`RateLimiter::check_each`].
    pub async fn check<K: Into<Key> + Send>(&self, key: K) -> Result<Decision> {
        self.check_cost(key, 1).await
    }

    /// Takes `cost` permits if they are available.
    ///
    /// # Errors
    /// As for [`RateLimiter::check_each`].
    pub async fn check_cost<K: Into<Key> + Send>(&self, key: K, cost: u64) -> Result<Decision> {
        let request = PermitRequest::new(key).cost(cost);
        let mut decisions = self.check_each(std::slice::from_ref(&request)).await?;
        decisions.pop().ok_or_else(|| {
            let message = "the server returned no decision for a limit of the call";
            Error::new(ErrorKind::Corrupt, "check", message).on(&request.key)
        })
    }
}

/// Permits that are taken, and can be given back in part.
///
/// Dropping it cancels in the background.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[must_use = "a reservation that is dropped is cancelled at once"]
#[async_trait]
pub trait Reservation: Send + Sync + fmt::Debug {
    /// The decision that admitted it.
    fn decision(&self) -> &Decision;

    /// Uses this number of its permits and gives back the others, except those that have been
    /// replenished since.
    ///
    /// # Cancel safety
    /// When dropped, it is still committed.
    ///
    /// # Errors
    /// `Invalid` for more than were reserved, which cancels it; `Lost` when it had expired and was
    /// given back; `Unavailable`; `Indeterminate`. If it did not happen the reservation expires.
    async fn commit(self: Box<Self>, used: u64) -> Result<()>;

    /// Gives back all of it.
    ///
    /// # Cancel safety
    /// When dropped, it is still cancelled.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    async fn cancel(self: Box<Self>) -> Result<()>;
}

/// A block of permits that was taken in advance.
///
/// # Guarantees
/// - No more is ever admitted than the quota allows, counted at the time when a permit is used. Unused
///   permits expire as the server refills the limit: a block of `n` is empty after the time of `n`
///   permits, or when its window ends. This assumes that the local monotonic clock runs like the
///   server's, within 2 %.
/// - Unused permits are given back when it is dropped, and when the backend is closed; after a crash they are lost to the caller.
/// - The next block is requested when the last one is used up. If less is left than a block the
///   block is smaller.
/// - After [`RateLimiter::reset`], and after a change of the quota, the rest of a block can be used
///   in addition to the new permits.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Permits: Send + Sync + fmt::Debug {
    /// Takes one permit of the current block, without a query to the database; `false` when there
    /// is none, which is no refusal: [`take`](Self::take) requests a new block.
    fn try_now(&self) -> bool;

    /// Takes one permit, and requests a new block when the current one is used up; `false` when the
    /// database refuses, unless in [shadow mode](Policy::shadow).
    ///
    /// # Cancel safety
    /// When dropped, a block that was requested is given back. One caller requests a block for those that wait behind it: a future that is
    /// kept and not polled delays these, as with the mutex of tokio.
    ///
    /// # Errors
    /// `Unavailable`, `Indeterminate`; no outage policy applies.
    async fn take(&self) -> Result<bool>;

    /// As [`take`](Self::take), for a caller who asks otherwise where no block is granted: that is told as no decision, and
    /// `false` also in [shadow mode](Policy::shadow).
    #[doc(hidden)]
    async fn take_of_block(&self) -> Result<bool> {
        self.take().await
    }

    /// Gives back the unused permits.
    ///
    /// # Errors
    /// As for [`RateLimiter::refund`].
    async fn give_back(&self) -> Result<()>;
}
