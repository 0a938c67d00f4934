//! [`Election`](crate::Election) for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::{LeaseGuard, block_on};
use crate::election::campaign_until;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::lease::Holder;
use crate::stop::Stop;
use crate::wait::{held_throughout, was_lost};

/// An [election](crate::Election) for blocking callers.
///
/// ```
/// use std::time::Duration;
/// use lockapi::{blocking, lease::LeaseOptions, memory::Database};
///
/// let backend = blocking::Backend::connect(Database::new().connect())?;
/// let election = backend.election("scheduler", LeaseOptions::new(Duration::from_secs(10)))?;
/// let token = election.lead(|term| Ok::<_, lockapi::Error>(term.fence().token()))?;
/// let term = election.campaign()?;
/// assert!(term.fence().token() > token);
/// assert_eq!(election.leader()?.expect("a leader").token, term.fence().token());
/// term.release()?;
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Election(Arc<dyn crate::Election>);

impl From<Arc<dyn crate::Election>> for Election {
    fn from(election: Arc<dyn crate::Election>) -> Self {
        Self(election)
    }
}

impl Election {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Becomes the leader if there is none; `None` when there is one.
    ///
    /// # Errors
    /// As for [`Election::try_campaign`](crate::Election::try_campaign).
    pub fn try_campaign(&self) -> Result<Option<LeaseGuard>> {
        Ok(block_on(self.0.try_campaign())?.map(LeaseGuard::from))
    }

    /// Waits until it is the leader.
    ///
    /// # Errors
    /// As for [`Election::campaign`](crate::Election::campaign).
    pub fn campaign(&self) -> Result<LeaseGuard> {
        block_on(self.0.campaign()).map(LeaseGuard::from)
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Election::campaign_timeout`](crate::Election::campaign_timeout).
    pub fn campaign_timeout(&self, timeout: Duration) -> Result<LeaseGuard> {
        block_on(self.0.campaign_timeout(timeout)).map(LeaseGuard::from)
    }

    /// Reads who leads; `None` when nobody does.
    ///
    /// # Errors
    /// As for [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Holder>> {
        block_on(self.0.leader())
    }

    /// Observes who leads; nothing is sent before [`Observer::next`].
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer(self.0.observe())
    }

    /// Returns when the leader may have changed, or after this time.
    pub fn changed(&self, at_most: Duration) {
        block_on(self.0.changed(at_most));
    }

    /// Waits until it is the leader and runs `work`; it resigns when `work` ends or panics.
    ///
    /// Blocking work cannot be stopped when the term ends; let it check [`LeaseGuard::is_lost`] between its
    /// steps.
    ///
    /// # Errors
    /// Those of `work`. `Lost` when the term ended before it was resigned; otherwise as for
    /// [`campaign`](Self::campaign).
    pub fn lead<T, E>(&self, work: impl FnOnce(&LeaseGuard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let term = self.campaign()?;
        let outcome = work(&term);
        held_throughout("lead", Some(outcome), term.release())
    }

    /// Leads whenever it can until it is [stopped](Stop), and then returns `None`; see
    /// [`Election::lead_until`](crate::Election#method.lead_until).
    ///
    /// Blocking work is not interrupted: let it check [`LeaseGuard::is_lost`] and [`Stop::is_stopped`]
    /// between its steps; the latter is set by [`Stop::stop`], but not by a future. Its result is returned
    /// unless the term had ended before; then it is run again.
    ///
    /// # Errors
    /// As for the async method.
    pub fn lead_until<T, E>(
        &self,
        stop: impl Into<Stop>,
        mut work: impl FnMut(&LeaseGuard) -> Result<T, E>,
    ) -> Result<Option<T>, E>
    where
        E: From<Error>,
    {
        let stop = stop.into();
        while let Some(term) = block_on(campaign_until(&*self.0, &stop))?.map(LeaseGuard::from) {
            let outcome = work(&term);
            if !was_lost(&term.release()) {
                return outcome.map(Some);
            }
        }
        Ok(None)
    }
}

/// An [observer](crate::Observer) for blocking callers.
#[derive(Debug)]
pub struct Observer(Box<dyn crate::Observer>);

impl Observer {
    /// Returns the leader: at once on the first call, then whenever it has changed, or there is none any
    /// more.
    ///
    /// # Errors
    /// As for [`Observer::next`](crate::Observer::next).
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, and it can fail"
    )]
    pub fn next(&mut self) -> Result<Option<Holder>> {
        block_on(self.0.next())
    }
}
