//! [`Reservation`] over the limits of a process.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::super::Core;
use super::waiting::told;
use crate::error::{Error, ErrorKind, Result};
use crate::limit::{Decision, Reservation};

/// A reservation that its holder has not ended yet.
pub(super) struct Held {
    core: Arc<Core>,
    /// Its number; 0 where nothing was taken, in shadow mode.
    id: i64,
    decision: Decision,
    open: bool,
}

impl Held {
    pub(super) fn open(core: &Arc<Core>, id: i64, decision: Decision) -> Box<dyn Reservation> {
        Box::new(Self {
            core: Arc::clone(core),
            id,
            decision,
            open: true,
        })
    }

    /// What shadow mode answers instead of a refusal: there is nothing to end.
    pub(super) fn of_nothing(core: &Arc<Core>, decision: Decision) -> Box<dyn Reservation> {
        Self::open(core, 0, decision)
    }

    /// Ends it; `used` permits stay taken.
    async fn end(mut self: Box<Self>, operation: &'static str, used: u64) -> Result<()> {
        let Some(left) = self.decision.cost().checked_sub(used) else {
            let cost = self.decision.cost();
            let message = format!(
                "{used} permits were used; allowed are at most {cost}, which were reserved"
            );
            let error = Error::new(ErrorKind::Invalid, operation, message);
            return Err(error.on(self.decision.key()));
        };
        self.open = false;
        if self.id == 0 {
            return Ok(());
        }
        let named = |error: Error| error.during(operation).on(self.decision.key());
        let settled = told(operation, |done| self.settle(left, done)).await;
        if settled.map_err(named)? {
            return Ok(());
        }
        let message = "the reservation had expired, and its permits were given back";
        Err(named(Error::new(ErrorKind::Lost, operation, message)))
    }

    fn settle(&self, left: u64, done: impl FnOnce(Result<bool>) + Send + 'static) {
        let (limits, price) = (&self.core.limits, self.decision.quota().price(left));
        let key = self.decision.key().to_string();
        limits.settle(limits.settlement(&key, self.id, price), done);
    }
}

#[async_trait]
impl Reservation for Held {
    fn decision(&self) -> &Decision {
        &self.decision
    }

    async fn commit(self: Box<Self>, used: u64) -> Result<()> {
        self.end("commit", used).await
    }

    async fn cancel(self: Box<Self>) -> Result<()> {
        self.end("cancel", 0).await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.open && self.id != 0 {
            self.settle(self.decision.cost(), drop);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("key", self.decision.key())
            .field("cost", &self.decision.cost())
            .finish_non_exhaustive()
    }
}
