//! [`Permits`] over the limits of a process.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::super::Core;
use super::super::clock::Time;
use super::Limits;
use crate::error::Result;
use crate::key::Key;
use crate::limit::{Decision, Judged, Line, Outcome, Permits, Refund};
use crate::seam::Connector;

/// This part is given up for the difference in speed of two clocks.
const DRIFT_PART: i64 = 50;

pub(super) fn open<C: Connector>(
    core: &Arc<Core<C>>,
    key: Key,
    line: Line,
    relaxed: bool,
) -> Arc<dyn Permits> {
    let (size, one) = (line.cost, Line { cost: 1, ..line });
    Arc::new(Blocks(Arc::new(Shared {
        core: Arc::clone(core),
        key,
        size,
        one,
        relaxed,
        at_hand: Mutex::default(),
        asking: tokio::sync::Mutex::default(),
    })))
}

/// A block as it was taken.
#[derive(Clone, Copy, Debug, Default)]
struct AtHand {
    taken: i64,
    used: i64,
    /// When it was asked for, by the local clock.
    asked: Time,
    /// When it was taken, by the server's clock.
    at: i64,
    /// Of windows: nanoseconds after `asked` until the window ends.
    ends_in: i64,
}

impl AtHand {
    /// How many permits can still be given out.
    ///
    /// As one flows back at the server in each interval, what lies here loses its worth: otherwise
    /// it could be used on top of those that have flowed back.
    fn left(&self, line: &Line, now: Time) -> i64 {
        let age = now.saturating_sub(self.asked).as_nanos();
        let age = i64::try_from(age).unwrap_or(i64::MAX / 2);
        let age = age.saturating_add(age / DRIFT_PART);
        let worth = if line.quota.window() == 0 {
            self.taken - (age / line.quota.interval()) - i64::from(age % line.quota.interval() > 0)
        } else if age < self.ends_in {
            self.taken
        } else {
            0
        };
        worth.min(self.taken - self.used)
    }
}

struct Shared<C: Connector> {
    core: Arc<Core<C>>,
    key: Key,
    size: u64,
    one: Line,
    relaxed: bool,
    at_hand: Mutex<AtHand>,
    /// One caller asks, the others wait in the order of arrival.
    asking: tokio::sync::Mutex<()>,
}

impl<C: Connector> Shared<C> {
    fn limits(&self) -> &Arc<Limits<C>> {
        &self.core.limits
    }

    fn try_now(&self) -> bool {
        let now = self.limits().keeper.now();
        let mut at_hand = self.lock();
        if at_hand.left(&self.one, now) < 1 {
            return false;
        }
        at_hand.used += 1;
        true
    }

    /// Asks for a block, of which the caller has the first permit; answers whether there is one.
    async fn ask(&self) -> Result<bool> {
        let limits = self.limits();
        let asked = limits.keeper.now();
        let judged = if self.one.quota.window() == 0 {
            let waiting = limits.take(self.one.clone(), self.size, self.relaxed);
            waiting.await
        } else {
            self.ask_window().await
        };
        let judged = judged.map_err(|error| error.during("permits").on(&self.key))?;
        let Outcome::Taken(taken) = judged.outcome else {
            return Ok(false);
        };
        let window = self.one.quota.window();
        *self.lock() = AtHand {
            taken,
            used: 1,
            asked,
            at: judged.now,
            ends_in: (judged.level.started + window - judged.now).max(0),
        };
        Ok(true)
    }

    /// A whole block of a window, or what is left of it.
    async fn ask_window(&self) -> Result<Judged> {
        let mut cost = self.size;
        loop {
            let line = Line {
                cost,
                ..self.one.clone()
            };
            let mut judged = self.limits().take(line, 1, self.relaxed).await?;
            if matches!(judged.outcome, Outcome::Taken(_)) {
                judged.outcome = Outcome::Taken(i64::try_from(cost).unwrap_or(i64::MAX));
                return Ok(judged);
            }
            let left = Decision::judged(&self.key, self.one.quota, 1, &judged).remaining();
            if left == 0 || left >= cost {
                return Ok(judged);
            }
            cost = left;
        }
    }

    /// What is to be given back of the block at hand, which is then used up.
    fn leave(&self) -> Option<Refund> {
        let mut at_hand = self.lock();
        let left = at_hand.taken - at_hand.used;
        at_hand.used = at_hand.taken;
        (left > 0).then(|| Refund {
            namespace: self.core.namespace.to_string(),
            key: self.one.key.clone(),
            price: self.one.price().saturating_mul(left),
            window: self.one.quota.window(),
            at: at_hand.at,
        })
    }

    fn lock(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connector> Drop for Shared<C> {
    fn drop(&mut self) {
        if let Some(refund) = self.leave() {
            self.core.limits.refund_later(refund);
        }
    }
}

struct Blocks<C: Connector>(Arc<Shared<C>>);

#[async_trait]
impl<C: Connector> Permits for Blocks<C> {
    fn try_now(&self) -> bool {
        self.0.try_now()
    }

    async fn take(&self) -> Result<bool> {
        if self.0.try_now() {
            return Ok(true);
        }
        let _asking = self.0.asking.lock().await;
        Ok(self.0.try_now() || self.0.ask().await?)
    }

    async fn give_back(&self) -> Result<()> {
        match self.0.leave() {
            Some(refund) => {
                let refunded = self.0.limits().refund(refund).await;
                refunded.map_err(|error| error.on(&self.0.key))
            }
            None => Ok(()),
        }
    }
}

impl<C: Connector> fmt::Debug for Blocks<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits")
            .field("key", &self.0.key)
            .field("size", &self.0.size)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::Quota;

    #[test]
    fn what_lies_about_loses_its_worth() {
        let line = Line {
            key: "key".to_owned(),
            quota: Quota::per_second(10),
            cost: 1,
            id: 0,
            ttl: 0,
        };
        let mut block = AtHand {
            taken: 10,
            used: 1,
            ..AtHand::default()
        };
        let left = |block: &AtHand, millis| block.left(&line, Duration::from_millis(millis));
        assert_eq!((left(&block, 0), left(&block, 1)), (9, 9));
        assert_eq!((left(&block, 95), left(&block, 105)), (9, 8));
        assert_eq!((left(&block, 970), left(&block, 990)), (0, -1));
        // What is used at the rate at which it flows back is no loss.
        block.used = 5;
        assert_eq!(left(&block, 485), 5);
    }
}
