//! [`RateLimiter`] over the limits of a process.

use std::fmt;
use std::future::{Future, pending, ready};
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{Either, select};

use super::super::Core;
use super::lines::{Asked, InLine};
use super::reservation::Held;
use super::takes::{TRIES, expire};
use super::waiting::told;
use super::{Limits, first_part, hash, line, permits};
use crate::engine::clock::Time;
use crate::engine::sweeps::Sweeping as _;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::limit::{
    Block, ChargeLine, Decision, Look, MAX_WAITING, MAX_WANTS, Outcome, Permits, Policy, Quota,
    RateLimiter, RawDecision, Refund, Reservation, Reset, Verdict, Want, charge, duration, nanos,
    verdict,
};
use crate::random;
use crate::telemetry::{self, Kind, Stamp};
use crate::wait::unless;

/// A call that waits for a limit looks at it once in this time.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) fn open(core: &Arc<Core>, policy: Policy) -> Arc<dyn RateLimiter> {
    Arc::new(Limiter {
        core: Arc::clone(core),
        policy: RwLock::new(policy),
    })
}

struct Limiter {
    core: Arc<Core>,
    policy: RwLock<Policy>,
}

impl Limiter {
    fn limits(&self) -> &Arc<Limits> {
        &self.core.limits
    }

    fn namespace_and(&self, key: &Key) -> (String, String) {
        (self.core.namespace.to_string(), key.to_string())
    }

    fn policy_now(&self) -> Policy {
        *self.policy.read().unwrap_or_else(PoisonError::into_inner)
    }

    async fn decide_each(&self, policy: &Policy, wants: &[Want]) -> Result<Vec<Decision>> {
        if wants.len() > MAX_WANTS {
            let message = format!(
                "{} limits in a call; allowed are at most {MAX_WANTS}",
                wants.len()
            );
            return Err(Error::new(ErrorKind::Invalid, "check_each", message));
        }
        let lines = wants.iter().map(|want| line(want, policy));
        let lines = lines.collect::<Result<Vec<_>>>()?;
        let limits = self.limits();
        if limits.shares.is_out(policy, limits.timer.now()) {
            let now = limits.timer.now();
            let decide = |want| limits.shares.decide(want, policy, now);
            return Ok(telling(wants.iter().map(decide).collect()));
        }
        let takes: Vec<_> = lines
            .into_iter()
            .map(|line| {
                let key = (line.quota, hash(&line.key));
                (key, limits.take(line, 1, policy.relaxed))
            })
            .collect();
        let mut given = Undelivered {
            limiter: self,
            decisions: Vec::with_capacity(wants.len()),
        };
        let mut failed = None;
        // To the end also when one fails, so that all that was taken is known.
        for (want, ((quota, hash), waiting)) in wants.iter().zip(takes) {
            match waiting.await {
                Ok(decided) => {
                    limits.denied_keys.note(hash, &decided);
                    let mut decision = Decision::decided(&want.key, quota, want.cost, &decided);
                    decision.shadow = policy.shadow;
                    given.decisions.push(decision);
                }
                Err(error) => {
                    let now = limits.timer.now();
                    if !limits.shares.applies(policy, &error, now) {
                        failed.get_or_insert(error.on(&want.key));
                        continue;
                    }
                    let decision = limits.shares.decide(want, policy, now);
                    given.decisions.push(decision);
                }
            }
        }
        match failed {
            None => Ok(telling(std::mem::take(&mut given.decisions))),
            Some(error) => Err(error),
        }
    }

    fn refund_of(&self, decision: &Decision) -> Refund {
        let (namespace, key) = self.namespace_and(&decision.key);
        Refund {
            namespace,
            key,
            price: decision.quota.price(decision.cost),
            window: decision.quota.window(),
            at: decision.at,
        }
    }

    async fn wait(&self, want: &Want, timeout: Duration) -> Result<Decision> {
        let limits = self.limits();
        let until = limits.timer.now().saturating_add(timeout);
        loop {
            let mut policy = self.policy_now();
            if policy.shadow {
                // Nothing is refused.
                let decided = self
                    .decide_each(&policy, std::slice::from_ref(want))
                    .await?;
                return decided.into_iter().next().ok_or_else(|| {
                    let message = "the server returned no decision for a limit of the call";
                    Error::new(ErrorKind::Corrupt, "until_ready", message).on(&want.key)
                });
            }
            let line = line(want, &policy).map_err(|error| error.during("until_ready"))?;
            policy.quota = line.quota;
            let (reply, told) = limits.answer(&line);
            let place = limits
                .lines
                .try_join(&line.key, policy, MAX_WAITING, want.cost, reply);
            let place = place.ok_or_else(|| {
                let message =
                    format!("{MAX_WAITING} calls of this backend wait in until_ready already; allowed are no more");
                Error::new(ErrorKind::Capacity, "until_ready", message).on(&want.key)
            })?;
            let time = (until, timeout);
            let asking = place.first(self.ask_for_line(&place, want, &line, &policy, time));
            // First the question: if it tells this caller too, nobody behind it hears earlier.
            match select(pin!(asking), told).await {
                Either::Right((decided, _)) => {
                    let decided = decided.map_err(|error| error.on(&want.key))?;
                    telemetry::decided(&want.key, true);
                    return Ok(Decision::decided(
                        &want.key, line.quota, want.cost, &decided,
                    ));
                }
                Either::Left((ended, _)) => {
                    if let Some(decision) = ended? {
                        return Ok(decision);
                    }
                }
            }
        }
    }

    /// Asks for the first of a line, and tells them, until this caller is told too: then this does not end. It ends
    /// with a decision that was made without the database, or with none when the policy has changed.
    async fn ask_for_line(
        &self,
        place: &InLine<'_>,
        want: &Want,
        own: &ChargeLine,
        policy: &Policy,
        (until, timeout): (Time, Duration),
    ) -> Result<Option<Decision>> {
        let (limits, quota) = (self.limits(), own.quota);
        // All that there ever is, until it is known to be less.
        let mut most = quota.limit();
        loop {
            let asked = place.asked(most);
            let (Some(first), true) = (asked.first(), place.is_waiting()) else {
                return pending().await;
            };
            let mut current = self.policy_now();
            let fits = want.check(current.quota);
            current.quota = fits.map_err(|error| error.during("until_ready"))?;
            if current != *policy {
                return Ok(None);
            }
            let line = ChargeLine {
                cost: asked.iter().map(|one| one.cost).sum(),
                ..own.clone()
            };
            let decided = self.take_unless_out(line, policy).await;
            let retry = if let Some(decided) = decided.map_err(|error| error.on(&want.key))? {
                limits.denied_keys.note(hash(&own.key), &decided);
                if matches!(decided.outcome, Outcome::Taken(_)) {
                    self.tell_line(place, own, &asked, decided);
                    most = quota.limit();
                    continue;
                }
                let left = decided.level.fits(&quota, quota.price(1), decided.now);
                let left = u64::try_from(left).unwrap_or(0);
                if asked.len() > 1 && left >= first.cost {
                    most = left;
                    continue;
                }
                // Next time probably no other fits.
                most = first.cost;
                telemetry::decided(&want.key, false);
                let price = quota.price(first.cost);
                duration(decided.level.wait_for(&quota, price, decided.now))
            } else {
                let decision = limits.shares.decide(want, policy, limits.timer.now());
                telemetry::decided(&want.key, decision.is_admitted());
                if decision.is_allowed() {
                    return Ok(Some(decision));
                }
                decision.retry_after()
            };
            if limits.timer.now().saturating_add(retry) > until {
                let message = format!("not admitted within {timeout:?}");
                let error = Error::new(ErrorKind::TimedOut, "until_ready", message);
                return Err(error.on(&want.key));
            }
            // A reset, a refund or the end of a block may admit it earlier.
            limits.timer.sleep(retry.min(LOOK_AGAIN)).await;
        }
    }

    /// Takes all of a line or nothing; `None` when the policy for outages decides.
    async fn take_unless_out(
        &self,
        line: ChargeLine,
        policy: &Policy,
    ) -> Result<Option<RawDecision>> {
        let limits = self.limits();
        if limits.shares.is_out(policy, limits.timer.now()) {
            return Ok(None);
        }
        match limits.take(line, 1, policy.relaxed).await {
            Ok(decided) => Ok(Some(decided)),
            Err(error) if limits.shares.applies(policy, &error, limits.timer.now()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells those for whom was taken together, as if they had been decided one by one. What was taken for those that
    /// have left is given back.
    fn tell_line(
        &self,
        place: &InLine<'_>,
        own: &ChargeLine,
        asked: &[Asked],
        mut decided: RawDecision,
    ) {
        let all: i64 = asked.iter().map(|one| own.quota.price(one.cost)).sum();
        let state = |decided: &mut RawDecision, by: i64| match own.quota.window() {
            0 => decided.level.tat += by,
            _ => decided.level.used += by,
        };
        state(&mut decided, -all);
        for one in asked {
            state(&mut decided, own.quota.price(one.cost));
            if !place.tell(*one, decided.clone()) {
                let line = ChargeLine {
                    cost: one.cost,
                    ..own.clone()
                };
                self.limits().undo(&line, 1, decided.now);
            }
        }
    }
}

#[async_trait]
impl RateLimiter for Limiter {
    fn namespace(&self) -> &str {
        &self.core.namespace
    }

    fn policy(&self) -> Policy {
        self.policy_now()
    }

    fn now(&self) -> Duration {
        self.limits().timer.now()
    }

    fn set_quota(&self, quota: Quota) -> Result<()> {
        quota.check().map_err(|error| error.during("set_quota"))?;
        let mut policy = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        policy.quota = quota;
        Ok(())
    }

    async fn check_each(&self, wants: &[Want]) -> Result<Vec<Decision>> {
        self.decide_each(&self.policy_now(), wants).await
    }

    async fn check_all(&self, wants: &[Want]) -> Result<Verdict> {
        let policy = self.policy_now();
        let charge = charge(&self.core.namespace, &policy, wants)?;
        let limits = self.limits();
        let outcome = if limits.shares.is_out(&policy, limits.timer.now()) {
            None
        } else {
            match limits.charge(charge.clone()).await {
                Ok(decided) => Some(decided),
                Err(error) if limits.shares.applies(&policy, &error, limits.timer.now()) => None,
                Err(error) => return Err(error.during("check_all")),
            }
        };
        if let Some(decided) = outcome {
            let verdict = verdict(wants, &policy, &charge, &decided);
            tell(&verdict);
            return Ok(verdict);
        }
        let now = limits.timer.now();
        let decisions = limits.shares.decide_all(wants, &policy, now);
        let verdict = Verdict {
            admitted: decisions.iter().all(Decision::is_admitted),
            shadow: policy.shadow,
            decisions,
        };
        tell(&verdict);
        Ok(verdict)
    }

    async fn peek(&self, want: &Want) -> Result<Decision> {
        let policy = self.policy_now();
        let line = line(want, &policy)?;
        let (namespace, key) = self.namespace_and(&want.key);
        let look = Look { namespace, key };
        let batcher = self.limits().batcher(&line.key);
        let named = |error: Error| error.on(&want.key);
        let mut looked = batcher.call(look.clone()).await.map_err(named)?;
        for _ in 0..TRIES {
            if looked.due > looked.now {
                break;
            }
            let ended = batcher.call(expire(&look.namespace, &look.key)).await;
            ended.map_err(|error| named(error.during("peek")))?;
            looked = batcher.call(look.clone()).await.map_err(named)?;
        }
        let (level, now) = (looked.level, looked.now);
        let mut decision = Decision::of(&want.key, line.quota, want.cost, &level, now);
        decision.shadow = policy.shadow;
        Ok(decision)
    }

    async fn until_ready(&self, want: &Want, timeout: Duration) -> Result<Decision> {
        let policy = self.policy_now();
        want.check(policy.quota)
            .map_err(|error| error.during("until_ready"))?;
        let timer = &self.limits().timer;
        let subject = self.core.subject(Kind::RateLimiter, &want.key);
        let since = Stamp::take(timer);
        let waiting = async {
            let waiting = self.wait(want, timeout);
            let decision = unless(timer.sleep(timeout), waiting).await;
            decision.unwrap_or_else(|| {
                let message = format!("not admitted within {timeout:?}");
                Err(Error::new(ErrorKind::TimedOut, "until_ready", message).on(&want.key))
            })
        };
        let decision = telemetry::acquiring(subject, "until_ready", waiting).await?;
        telemetry::waited(subject, since);
        Ok(decision)
    }

    async fn reserve(
        &self,
        want: &Want,
        ttl: Duration,
    ) -> Result<std::result::Result<Box<dyn Reservation>, Decision>> {
        let policy = self.policy_now();
        let mut charge = charge(&self.core.namespace, &policy, std::slice::from_ref(want))?;
        let ttl = nanos("ttl", ttl).map_err(|error| error.during("reserve").on(&want.key))?;
        if ttl == 0 {
            let message = "a ttl of zero; allowed are 1 ns to 366 days";
            return Err(Error::new(ErrorKind::Invalid, "reserve", message).on(&want.key));
        }
        let id = random::positive().map_err(|error| error.during("reserve").on(&want.key))?;
        for line in &mut charge.lines {
            (line.id, line.ttl) = (id, ttl);
        }
        let charged = self.limits().charge(charge.clone()).await;
        let decided = charged.map_err(|error| error.during("reserve").on(&want.key))?;
        let mut verdict = verdict(std::slice::from_ref(want), &policy, &charge, &decided);
        tell(&verdict);
        let admitted = verdict.admitted;
        let decision = verdict.decisions.pop().ok_or_else(|| {
            let message = "the server returned no decision for a limit of the call";
            Error::new(ErrorKind::Corrupt, "reserve", message).on(&want.key)
        })?;
        Ok(if admitted {
            Ok(Held::open(&self.core, id, decision))
        } else if policy.shadow {
            Ok(Held::of_nothing(&self.core, decision))
        } else {
            Err(decision)
        })
    }

    // What an `async fn` would do before its first poll only is done here at once.
    fn refund<'l, 'd, 'f>(
        &'l self,
        decision: &'d Decision,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'f>>
    where
        'l: 'f,
        'd: 'f,
    {
        if decision.at == 0 {
            return Box::pin(ready(Ok(())));
        }
        let (limits, refund) = (self.limits(), self.refund_of(decision));
        let refunded = told("refund", |done| limits.refund(refund, done));
        Box::pin(async move { refunded.await.map_err(|error| error.on(&decision.key)) })
    }

    async fn reset(&self, key: &Key) -> Result<()> {
        key.check().map_err(|error| error.during("reset"))?;
        let (namespace, text) = self.namespace_and(key);
        let reset = Reset {
            namespace,
            key: text.clone(),
        };
        let done = self.limits().batcher(&text).call(reset).await;
        done.map(drop).map_err(|error| error.on(key))
    }

    async fn block(&self, key: &Key, time: Duration) -> Result<()> {
        let named = |error: Error| error.during("block").on(key);
        key.check().map_err(named)?;
        let time = nanos("block", time).map_err(named)?;
        let (namespace, text) = self.namespace_and(key);
        let block = Block {
            namespace,
            key: text.clone(),
            time,
        };
        let done = self.limits().batcher(&text).call(block).await;
        done.map(drop).map_err(named)
    }

    fn permits(&self, want: &Want) -> Result<Arc<dyn Permits>> {
        let policy = self.policy_now();
        let line = line(want, &policy).map_err(|error| error.during("permits"))?;
        Ok(permits::open(&self.core, want.key.clone(), line, &policy))
    }

    async fn sweep(&self) -> Result<u64> {
        let mut part = first_part();
        loop {
            let swept = self.limits().sweeps.batcher().call(part.clone()).await?;
            let deleted = u64::try_from(swept.deleted).unwrap_or(0);
            match part.next(swept) {
                Some(next) if deleted == 0 => part = next,
                _ => return Ok(deleted),
            }
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimiter")
            .field(&self.policy_now())
            .finish()
    }
}

/// Decisions that are on the way to their caller. Who does not get them has not taken anything.
struct Undelivered<'a> {
    limiter: &'a Limiter,
    decisions: Vec<Decision>,
}

impl Drop for Undelivered<'_> {
    fn drop(&mut self) {
        for decision in self.decisions.iter().filter(|decision| decision.at != 0) {
            let refund = self.limiter.refund_of(decision);
            self.limiter.limits().refund(refund, drop);
        }
    }
}

/// Tells of decisions that stand for themselves.
fn telling(decisions: Vec<Decision>) -> Vec<Decision> {
    for decision in &decisions {
        telemetry::decided(decision.key(), decision.is_admitted());
    }
    decisions
}

/// Tells which limits were charged, or which of them refused.
fn tell(verdict: &Verdict) {
    for decision in &verdict.decisions {
        if verdict.admitted || !decision.is_admitted() {
            telemetry::decided(decision.key(), verdict.admitted);
        }
    }
}
