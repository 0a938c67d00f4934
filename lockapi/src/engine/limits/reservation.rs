//! [`Reservation`] over the limits of a process.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use super::super::Core;
use super::answers::complete;
use crate::error::{Error, ErrorKind, Result};
use crate::limit::{Decision, Reservation};

type EndFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A reservation that its holder has not ended yet.
pub(super) struct OpenReservation {
    core: Arc<Core>,
    /// Its number; 0 where nothing was taken, in shadow mode.
    id: i64,
    decision: Decision,
    open: bool,
}

impl OpenReservation {
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

    /// Ends it at once, also when the future is dropped before its first poll; `used` permits stay taken.
    fn end(mut self: Box<Self>, operation: &'static str, used: u64) -> EndFuture {
        let Some(left) = self.decision.cost().checked_sub(used) else {
            let cost = self.decision.cost();
            let message = format!(
                "{used} permits were used; allowed are at most {cost}, which were reserved"
            );
            let error = Error::new(ErrorKind::Invalid, operation, message);
            return Box::pin(ready(Err(error.on(self.decision.key()))));
        };
        self.open = false;
        if self.id == 0 {
            return Box::pin(ready(Ok(())));
        }
        let ended = complete(operation, |done| self.send_end(left, done));
        Box::pin(async move {
            let named = |error: Error| error.during(operation).on(self.decision.key());
            if ended.await.map_err(named)? {
                return Ok(());
            }
            let message = "the reservation had expired, and its permits were given back";
            Err(named(Error::new(ErrorKind::Lost, operation, message)))
        })
    }

    fn send_end(&self, left: u64, done: impl FnOnce(Result<bool>) + Send + 'static) {
        let (limits, price) = (&self.core.limits, self.decision.quota().price(left));
        let key = self.decision.key().to_string();
        limits.end_reservation(limits.reservation_end(&key, self.id, price), done);
    }
}

#[async_trait]
impl Reservation for OpenReservation {
    fn decision(&self) -> &Decision {
        &self.decision
    }

    fn commit<'f>(
        self: Box<Self>,
        used: u64,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'f>>
    where
        Self: 'f,
    {
        self.end("commit", used)
    }

    fn cancel<'f>(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'f>>
    where
        Self: 'f,
    {
        self.end("cancel", 0)
    }
}

impl Drop for OpenReservation {
    fn drop(&mut self) {
        if self.open && self.id != 0 {
            self.send_end(self.decision.cost(), drop);
        }
    }
}

impl fmt::Debug for OpenReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("key", self.decision.key())
            .field("cost", &self.decision.cost())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::blocking::block_on;
    use crate::engine::ManualClock;
    use crate::limit::{PermitRequest, Quota};
    use crate::memory::Database;

    #[test]
    fn what_is_dropped_before_its_first_poll_is_done() {
        let clock = ManualClock::default();
        let backend = block_on(Database::with_clock(&clock).connect()).unwrap();
        let limiter = backend.rate_limiter(Quota::per_hour(10)).unwrap();
        let left = || {
            block_on(limiter.peek(&PermitRequest::new("door")))
                .unwrap()
                .remaining()
        };
        let request = PermitRequest::new("door").cost(8);
        let reserved = block_on(limiter.reserve(&request, Duration::from_secs(60)));
        drop(reserved.unwrap().unwrap().commit(5));
        // The next statement for the key comes after it.
        assert_eq!(left(), 5);
        let decision = block_on(limiter.check_cost("door", 3)).unwrap();
        assert_eq!(left(), 2);
        drop(limiter.refund(&decision));
        assert_eq!(left(), 5);
    }
}
