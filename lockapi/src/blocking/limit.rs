//! [`RateLimiter`](crate::RateLimiter) for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::block_on;
use crate::driver::{Library, Transaction};
use crate::error::Result;
use crate::key::Key;
use crate::limit::{Decision, PermitRequest, Policy, Quota, Verdict};

/// A [rate limiter](crate::RateLimiter) for blocking callers.
#[derive(Clone, Debug)]
pub struct RateLimiter(Arc<dyn crate::RateLimiter>);

impl From<Arc<dyn crate::RateLimiter>> for RateLimiter {
    fn from(limiter: Arc<dyn crate::RateLimiter>) -> Self {
        Self(limiter)
    }
}

impl RateLimiter {
    /// The namespace that its keys are in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }

    /// The policy, with the quota of now.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.0.policy()
    }

    /// As [`RateLimiter::now`](crate::RateLimiter::now).
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.now()
    }

    /// Changes the quota for the calls from now on, on this limiter and its clones.
    ///
    /// # Errors
    /// As for [`RateLimiter::set_quota`](crate::RateLimiter::set_quota).
    pub fn set_quota(&self, quota: Quota) -> Result<()> {
        self.0.set_quota(quota)
    }

    /// Takes one permit if it is there.
    ///
    /// # Errors
    /// As for [`RateLimiter::check`](crate::RateLimiter#method.check).
    pub fn check(&self, key: impl Into<Key>) -> Result<Decision> {
        self.check_cost(key, 1)
    }

    /// Takes `cost` permits if they are available.
    ///
    /// # Errors
    /// As for [`RateLimiter::check_cost`](crate::RateLimiter#method.check_cost).
    pub fn check_cost(&self, key: impl Into<Key>, cost: u64) -> Result<Decision> {
        let key: Key = key.into();
        block_on(self.0.check_cost(key, cost))
    }

    /// Decides several requests separately, in one round trip.
    ///
    /// # Errors
    /// As for [`RateLimiter::check_each`](crate::RateLimiter::check_each).
    pub fn check_each(&self, requests: &[PermitRequest]) -> Result<Vec<Decision>> {
        block_on(self.0.check_each(requests))
    }

    /// Takes permits of several limits together, all or none.
    ///
    /// # Errors
    /// As for [`RateLimiter::check_all`](crate::RateLimiter::check_all).
    pub fn check_all(&self, requests: &[PermitRequest]) -> Result<Verdict> {
        block_on(self.0.check_all(requests))
    }

    /// Returns what would be decided now; takes nothing.
    ///
    /// # Errors
    /// As for [`RateLimiter::peek`](crate::RateLimiter::peek).
    pub fn peek(&self, request: &PermitRequest) -> Result<Decision> {
        block_on(self.0.peek(request))
    }

    /// Waits until it is admitted, at most for `timeout`.
    ///
    /// # Errors
    /// As for [`RateLimiter::until_ready`](crate::RateLimiter::until_ready).
    pub fn until_ready(&self, request: &PermitRequest, timeout: Duration) -> Result<Decision> {
        block_on(self.0.until_ready(request, timeout))
    }

    /// Takes permits that can be given back in part; `Err` of the inner result is the decision that
    /// refuses.
    ///
    /// # Errors
    /// As for [`RateLimiter::reserve`](crate::RateLimiter::reserve).
    pub fn reserve(
        &self,
        request: &PermitRequest,
        ttl: Duration,
    ) -> Result<std::result::Result<Reservation, Decision>> {
        Ok(block_on(self.0.reserve(request, ttl))?.map(Reservation))
    }

    /// Gives back the permits of a decision.
    ///
    /// # Errors
    /// As for [`RateLimiter::refund`](crate::RateLimiter::refund).
    pub fn refund(&self, decision: &Decision) -> Result<()> {
        block_on(self.0.refund(decision))
    }

    /// Deletes the state of a key.
    ///
    /// # Errors
    /// As for [`RateLimiter::reset`](crate::RateLimiter::reset).
    pub fn reset(&self, key: impl Into<Key>) -> Result<()> {
        block_on(self.0.reset(&key.into()))
    }

    /// Refuses all calls for a key for `time`; zero ends that.
    ///
    /// # Errors
    /// As for [`RateLimiter::block`](crate::RateLimiter::block).
    pub fn block(&self, key: impl Into<Key>, time: Duration) -> Result<()> {
        block_on(self.0.block(&key.into(), time))
    }

    /// Opens a block of permits; nothing is sent.
    ///
    /// # Errors
    /// As for [`RateLimiter::permits`](crate::RateLimiter::permits).
    pub fn permits(&self, request: &PermitRequest) -> Result<Permits> {
        self.0.permits(request).map(Permits)
    }

    /// Takes permits in a transaction of the caller; see
    /// [`RateLimiter::check_all_in`](../limit/trait.RateLimiter.html#method.check_all_in).
    ///
    /// # Errors
    /// As for the async method.
    pub fn check_all_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        requests: &'c [PermitRequest],
    ) -> L::Outcome<'c, Result<Verdict>> {
        self.0.check_all_in(connection, requests)
    }

    /// Deletes rows of the database that have been idle for a minute, at most 1,000; returns how many.
    ///
    /// # Errors
    /// As for [`RateLimiter::sweep`](crate::RateLimiter::sweep).
    pub fn sweep(&self) -> Result<u64> {
        block_on(self.0.sweep())
    }
}

/// Permits that are taken, and given back in part; see [`Reservation`](crate::Reservation).
#[derive(Debug)]
#[must_use = "a reservation that is dropped is cancelled at once"]
pub struct Reservation(Box<dyn crate::Reservation>);

impl Reservation {
    /// The decision that admitted it.
    pub fn decision(&self) -> &Decision {
        self.0.decision()
    }

    /// Uses this number of its permits and gives back the others.
    ///
    /// # Errors
    /// As for [`Reservation::commit`](crate::Reservation::commit).
    pub fn commit(self, used: u64) -> Result<()> {
        block_on(self.0.commit(used))
    }

    /// Gives back all of it.
    ///
    /// # Errors
    /// As for [`Reservation::cancel`](crate::Reservation::cancel).
    pub fn cancel(self) -> Result<()> {
        block_on(self.0.cancel())
    }
}

/// A block of permits that was taken in advance; see [`Permits`](crate::Permits).
#[derive(Clone, Debug)]
pub struct Permits(Arc<dyn crate::Permits>);

impl Permits {
    /// Takes one permit of the current block, without a query to the database; `false` when there is none.
    #[must_use]
    pub fn try_now(&self) -> bool {
        self.0.try_now()
    }

    /// Takes one permit, and requests a new block when the current one is used up; `false` when the database
    /// refuses.
    ///
    /// # Errors
    /// As for [`Permits::take`](crate::Permits::take).
    pub fn take(&self) -> Result<bool> {
        // Without parking, most of the time.
        if self.0.try_now() {
            return Ok(true);
        }
        block_on(self.0.take())
    }

    /// Gives back the unused permits.
    ///
    /// # Errors
    /// As for [`Permits::give_back`](crate::Permits::give_back).
    pub fn give_back(&self) -> Result<()> {
        block_on(self.0.give_back())
    }
}
