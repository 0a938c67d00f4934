//! [`Permits`] over the limits of a process.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use async_trait::async_trait;

use super::super::Core;
use super::super::clock::Time;
use super::Limits;
use super::answers::{certain, complete};
use crate::engine::is_closed;
use crate::error::Result;
use crate::key::Key;
use crate::limit::{ChargeLine, Decision, Outcome, Permits, Policy, RawDecision, Refund};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry;

/// This part is subtracted for the difference in speed of two clocks.
const DRIFT_PART: i64 = 50;

/// Room for so many blocks is little.
const FEW: usize = 16;

pub(super) fn open(
    core: &Arc<Core>,
    key: Key,
    line: ChargeLine,
    policy: &Policy,
) -> Arc<dyn Permits> {
    let (size, one) = (line.cost, ChargeLine { cost: 1, ..line });
    let shared = Arc::new(Shared {
        core: Arc::clone(core),
        key,
        size,
        one,
        policy: *policy,
        local: Mutex::default(),
        asking: tokio::sync::Mutex::default(),
    });
    core.limits.open_blocks.add(&shared);
    Arc::new(Blocks(shared))
}

/// The blocks that are not dropped.
#[derive(Default)]
pub(super) struct OpenBlocks(Mutex<Vec<Weak<Shared>>>);

impl OpenBlocks {
    /// Those that were dropped take no more room than the others.
    fn add(&self, block: &Arc<Shared>) {
        let mut blocks = self.lock();
        if blocks.len() == blocks.capacity() {
            blocks.retain(|block| block.strong_count() > 0);
            let many = blocks.len();
            blocks.reserve(many.max(FEW));
        }
        blocks.push(Arc::downgrade(block));
    }

    /// What is to be given back of all of them, which are then used up.
    pub(super) fn leave(&self) -> Vec<Refund> {
        let blocks = std::mem::take(&mut *self.lock());
        let blocks = blocks.iter().filter_map(Weak::upgrade);
        blocks.filter_map(|block| block.leave()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block as it was taken.
#[derive(Clone, Copy, Debug, Default)]
struct LocalPermits {
    taken: i64,
    /// How many were left at the last call.
    left: i64,
    /// When the block was requested, by the local clock.
    taken_at: Time,
    /// When it was taken, by the server's clock.
    at: i64,
    /// Of windows: nanoseconds after `taken_at` until the window ends.
    ends_in: i64,
}

impl LocalPermits {
    /// How many permits can still be given out.
    ///
    /// The server replenishes one permit in each interval, so unused permits expire here at the same rate:
    /// otherwise they could be used in addition to the replenished ones. Expired permits are dropped, so
    /// that no permit is given out twice.
    fn left(&mut self, line: &ChargeLine, now: Time) -> i64 {
        let age = self.age(now);
        let age = age.saturating_add(age / DRIFT_PART);
        let worth = if line.quota.window() == 0 {
            self.taken - (age / line.quota.interval()) - i64::from(age % line.quota.interval() > 0)
        } else if age < self.ends_in {
            self.taken
        } else {
            0
        };
        self.left = self.left.min(worth).max(0);
        self.left
    }

    fn age(&self, now: Time) -> i64 {
        let age = now.saturating_sub(self.taken_at).as_nanos();
        i64::try_from(age).unwrap_or(i64::MAX / 2)
    }
}

pub(super) struct Shared {
    core: Arc<Core>,
    key: Key,
    size: u64,
    one: ChargeLine,
    policy: Policy,
    local: Mutex<LocalPermits>,
    /// One caller asks, the others wait in the order of arrival. Holds when the last request was sent, and why there was
    /// no block.
    asking: tokio::sync::Mutex<Option<(Time, Result<()>)>>,
}

impl Shared {
    fn limits(&self) -> &Arc<Limits> {
        &self.core.limits
    }

    fn try_now(&self) -> bool {
        let now = self.limits().timer.now();
        let mut local = self.lock();
        if local.left(&self.one, now) < 1 {
            return false;
        }
        local.left -= 1;
        true
    }

    /// Asks for a block, of which the caller has the first permit; answers whether there is one.
    ///
    /// Who came before a request was sent that got none has its answer: thousands that wait do not ask one after the other.
    async fn ask(&self) -> Result<bool> {
        let came_at = self.limits().timer.now();
        let mut asking = self.asking.lock().await;
        if self.try_now() {
            return Ok(true);
        }
        if let Some((sent_at, refused)) = &*asking
            && *sent_at > came_at
        {
            return refused.clone().map(|()| false);
        }
        let sent_at = self.limits().timer.now();
        let outcome = self.request(sent_at).await;
        let refused = match &outcome {
            Ok(true) => None,
            Ok(false) => Some(Ok(())),
            Err(error) => Some(Err(error.clone())),
        };
        *asking = refused.map(|refused| (sent_at, refused));
        outcome
    }

    /// Requests a block, at a time of the local clock.
    async fn request(&self, taken_at: Time) -> Result<bool> {
        let limits = self.limits();
        let decided = if self.one.quota.window() == 0 {
            let waiting = limits.take(self.one.clone(), self.size, self.policy.relaxed);
            waiting.await
        } else {
            self.ask_window().await
        };
        let decided = decided.map_err(|error| {
            // Checks of the same limit need not find it out again.
            limits
                .shares
                .applies(&self.policy, &error, limits.timer.now());
            error.during("permits").on(&self.key)
        })?;
        certain(&decided).map_err(|error| error.during("permits").on(&self.key))?;
        let Outcome::Taken(taken) = decided.outcome else {
            return Ok(false);
        };
        let window = self.one.quota.window();
        *self.lock() = LocalPermits {
            taken,
            left: taken - 1,
            taken_at,
            at: decided.now,
            ends_in: (decided.level.started + window.max(decided.level.span) - decided.now).max(0),
        };
        if limits.is_closing() {
            // It came after the others were given back.
            self.lock().left = taken;
            if let Some(refund) = self.leave() {
                limits.refund(refund, drop);
            }
            return Err(is_closed().error("permits").on(&self.key));
        }
        Ok(true)
    }

    /// A whole block of a window, or what is left of it.
    async fn ask_window(&self) -> Result<RawDecision> {
        let mut cost = self.size;
        let mut unknown = false;
        loop {
            let line = ChargeLine {
                cost,
                ..self.one.clone()
            };
            let mut decided = self.limits().take(line, 1, self.policy.relaxed).await?;
            if matches!(decided.outcome, Outcome::Taken(_)) {
                decided.outcome = Outcome::Taken(i64::try_from(cost).unwrap_or(i64::MAX));
                return Ok(decided);
            }
            let left = Decision::decided(&self.key, self.one.quota, 1, &decided).remaining();
            unknown |= decided.outcome == Outcome::Unknown;
            if left == 0 || left >= cost {
                if unknown {
                    decided.outcome = Outcome::Unknown;
                }
                return Ok(decided);
            }
            cost = left;
        }
    }

    /// What is to be given back of the block at hand, which is then used up.
    fn leave(&self) -> Option<Refund> {
        let now = self.limits().timer.now();
        let mut local = self.lock();
        let left = local.left(&self.one, now);
        local.left = 0;
        (left > 0).then(|| Refund {
            namespace: self.core.namespace.to_string(),
            key: self.one.key.clone(),
            price: self.one.price().saturating_mul(left),
            window: self.one.quota.window(),
            // Permits that were replenished until now are not among them.
            at: local.at.saturating_add(local.age(now)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, LocalPermits> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(refund) = self.leave() {
            self.core.limits.refund(refund, drop);
        }
    }
}

struct Blocks(Arc<Shared>);

#[async_trait]
impl Permits for Blocks {
    fn try_now(&self) -> bool {
        let admitted = self.0.try_now();
        // Otherwise nothing is at hand, which is no refusal.
        if admitted {
            telemetry::decided(&self.0.key, true);
        }
        admitted
    }

    async fn take(&self) -> Result<bool> {
        let admitted = self.0.try_now() || self.0.ask().await?;
        telemetry::decided(&self.0.key, admitted);
        Ok(admitted || self.0.policy.shadow)
    }

    async fn take_of_block(&self) -> Result<bool> {
        let admitted = self.0.try_now() || self.0.ask().await?;
        if admitted {
            telemetry::decided(&self.0.key, true);
        }
        Ok(admitted)
    }

    async fn give_back(&self) -> Result<()> {
        match self.0.leave() {
            Some(refund) => {
                let limits = self.0.limits();
                let refunded = complete("refund", |done| limits.refund(refund, done)).await;
                refunded.map_err(|error| error.on(&self.0.key))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Blocks {
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
    use crate::limit::level::Refunded;
    use crate::limit::{Level, Quota};

    fn block(permits: u64, quota: Quota) -> (ChargeLine, LocalPermits) {
        let line = ChargeLine {
            key: "key".to_owned(),
            quota,
            cost: 1,
            id: 0,
            ttl: 0,
        };
        let taken = i64::try_from(permits).unwrap();
        let local = LocalPermits {
            taken,
            left: taken,
            ..LocalPermits::default()
        };
        (line, local)
    }

    #[test]
    fn what_lies_about_loses_its_worth() {
        let (line, mut block) = block(10, Quota::per_second(10));
        let mut at = |millis| block.left(&line, Duration::from_millis(millis));
        assert_eq!((at(0), at(1)), (10, 9));
        assert_eq!((at(95), at(105), at(485)), (9, 8, 5));
        // The worthless ones are gone, whoever has used how many.
        block.left -= 5;
        let mut at = |millis| block.left(&line, Duration::from_millis(millis));
        assert_eq!((at(485), at(0)), (0, 0));
    }

    #[test]
    fn what_is_used_as_it_flows_back_is_no_loss() {
        let (line, mut block) = block(10, Quota::per_second(10));
        for nth in 0..9 {
            let left = block.left(&line, Duration::from_millis(nth * 97));
            assert!(left >= 1, "{nth}");
            block.left -= 1;
        }
    }

    #[test]
    fn no_window_holds_more_with_blocks_that_lie_about() {
        let quota = Quota::per_second(10).burst(8);
        let one = quota.price(1);
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut level, mut now, mut given) = (Level::default(), 1_000_000_000_000, Vec::new());
            let (line, mut local) = block(0, quota);
            for _ in 0..100 {
                now += random.i64(0..3) * random.i64(0..=one);
                let time = Duration::from_nanos(now.unsigned_abs());
                match random.u8(0..4) {
                    0 if level.fits(&quota, one, now) > 0 => {
                        level.take(&quota, one, now);
                        given.push(now);
                    }
                    1 if level.fits(&quota, one, now) > 0 => {
                        let left = local.left(&line, time);
                        let at = local.at.saturating_add(local.age(time));
                        let price = one * left;
                        level.give_back(
                            &[Refunded {
                                price,
                                window: 0,
                                at,
                            }],
                            now,
                        );
                        let taken = level.fits(&quota, one, now).min(5);
                        level.take(&quota, one * taken, now);
                        local = LocalPermits {
                            taken,
                            left: taken,
                            taken_at: time,
                            at: now,
                            ends_in: 0,
                        };
                    }
                    2 | 3 => {
                        while local.left(&line, time) > 0 && random.u8(0..4) > 0 {
                            local.left -= 1;
                            given.push(now);
                        }
                    }
                    _ => {}
                }
            }
            for (nth, from) in given.iter().enumerate() {
                for (many, until) in (1..).zip(&given[nth..]) {
                    assert!(
                        many <= 8 + (until - from) / one,
                        "{many}, {seed}: {given:?}"
                    );
                }
            }
        }
    }
}
