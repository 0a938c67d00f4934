//! [`Election`](crate::Election) for blocking callers.

use std::sync::Arc;
use std::time::Duration;

use super::{LeaseGuard, block_on};
use crate::error::Result;
use crate::key::Key;
use crate::lease::Holder;
use crate::wait::unless_lost;

/// An [election](crate::Election) for blocking callers.
///
/// ```
/// use std::time::Duration;
/// use lockapi::{blocking, lease::Terms, memory::Database};
///
/// let backend = blocking::Backend::connect(Database::new().connect())?;
/// let election = backend.election("scheduler", Terms::new(Duration::from_secs(10)))?;
/// let token = election.lead(|term| term.fence().token())?;
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

    /// Waits until it is the leader and runs `work`; it resigns when `work` ends or panics.
    ///
    /// Blocking work cannot be stopped when the term ends; let it look at
    /// [`LeaseGuard::is_lost`] between its steps.
    ///
    /// # Errors
    /// `Lost` when the term ended before `work` did; otherwise as for
    /// [`campaign`](Self::campaign).
    pub fn lead<T>(&self, work: impl FnOnce(&LeaseGuard) -> T) -> Result<T> {
        let term = self.campaign()?;
        let value = work(&term);
        unless_lost(value, term.release())
    }
}

/// An [observer](crate::Observer) for blocking callers.
#[derive(Debug)]
pub struct Observer(Box<dyn crate::Observer>);

impl Observer {
    /// Answers the leader: at first at once, then whenever it is another one, or none any more.
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
