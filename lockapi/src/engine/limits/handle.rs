//! [`RateLimiter`] over the limits of a process.

use std::fmt;
use std::future::{Future, pending, ready};
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{Either, select};

use super::super::Core;
use super::answers::{certain, complete};
use super::reservation::OpenReservation;
use super::takes::{TRIES, expire};
use super::wait_queues::{QueuePosition, WaitingCall};
use super::{Limits, first_part, hash, line, permits};
use crate::engine::clock::Time;
use crate::engine::sweeps::Sweeping as _;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::limit::{
    Block, ChargeLine, Decision, MAX_PERMIT_REQUESTS, MAX_WAITING, Outage, Outcome, PermitRequest,
    Permits, Policy, Quota, RateLimiter, RawDecision, ReadLevel, Refund, Reservation, Reset,
    Verdict, charge, duration, nanos, verdict,
};
use crate::random;
use crate::sync::RwLock;
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

    async fn decide_each(
        &self,
        policy: &Policy,
        requests: &[PermitRequest],
    ) -> Result<Vec<Decision>> {
        if requests.len() > MAX_PERMIT_REQUESTS {
            let message = format!(
                "{} limits in a call; allowed are at most {MAX_PERMIT_REQUESTS}",
                requests.len()
            );
            return Err(Error::new(ErrorKind::Invalid, "check_each", message));
        }
        let lines = requests.iter().map(|request| line(request, policy));
        let lines = lines.collect::<Result<Vec<_>>>()?;
        let limits = self.limits();
        if limits.is_out(policy) {
            let now = limits.timer.now();
            let decide = |request| limits.shares.decide(request, policy, now);
            return Ok(record_each(requests.iter().map(decide).collect()));
        }
        let takes: Vec<_> = lines
            .into_iter()
            .map(|line| {
                let key = (line.quota, hash(&line.key));
                (key, limits.take(line, 1, policy.relaxed))
            })
            .collect();
        let mut given = UndeliveredDecisions {
            limiter: self,
            decisions: Vec::with_capacity(requests.len()),
        };
        let mut failed = None;
        // To the end also when one fails, so that all that was taken is known.
        for (request, ((quota, hash), waiting)) in requests.iter().zip(takes) {
            match waiting.await {
                Ok(decided) => {
                    limits.shares.answered(policy);
                    limits.denied_keys.note(hash, &decided);
                    if let Err(error) = certain(&decided) {
                        if policy.outage == Outage::Fail {
                            failed.get_or_insert(error.on(&request.key));
                        } else {
                            let now = limits.timer.now();
                            let decision = limits.shares.decide(request, policy, now);
                            given.decisions.push(decision);
                        }
                        continue;
                    }
                    let mut decision =
                        Decision::decided(&request.key, quota, request.cost, &decided);
                    decision.shadow = policy.shadow;
                    given.decisions.push(decision);
                }
                Err(error) => {
                    if !limits.applies(policy, &error) {
                        failed.get_or_insert(error.on(&request.key));
                        continue;
                    }
                    let now = limits.timer.now();
                    let decision = limits.shares.decide(request, policy, now);
                    given.decisions.push(decision);
                }
            }
        }
        match failed {
            None => Ok(record_each(std::mem::take(&mut given.decisions))),
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

    async fn wait(&self, request: &PermitRequest, timeout: Duration) -> Result<Decision> {
        let limits = self.limits();
        let until = limits.timer.now().saturating_add(timeout);
        loop {
            let mut policy = self.policy_now();
            if policy.shadow {
                // Nothing is refused.
                let decided = self
                    .decide_each(&policy, std::slice::from_ref(request))
                    .await?;
                return decided.into_iter().next().ok_or_else(|| {
                    let message = "the server returned no decision for a limit of the call";
                    Error::new(ErrorKind::Corrupt, "until_ready", message).on(&request.key)
                });
            }
            let line = line(request, &policy).map_err(|error| error.during("until_ready"))?;
            policy.quota = line.quota;
            let (reply, answered) = limits.answer(&line);
            let position =
                limits
                    .wait_queues
                    .try_join(&line.key, policy, MAX_WAITING, request.cost, reply);
            let position = position.ok_or_else(|| {
                let message =
                    format!("{MAX_WAITING} calls of this backend wait in until_ready already; allowed are no more");
                Error::new(ErrorKind::Capacity, "until_ready", message).on(&request.key)
            })?;
            let time = (until, timeout);
            let asking = self.ask_for_queue(&position, request, &line, &policy, time);
            let asking = position.first(Box::pin(asking));
            // First the question: if it tells this caller too, nobody behind it hears earlier.
            match select(pin!(asking), answered).await {
                Either::Right((decided, _)) => {
                    let decided = decided.map_err(|error| error.on(&request.key))?;
                    telemetry::decided(&request.key, true);
                    return Ok(Decision::decided(
                        &request.key,
                        line.quota,
                        request.cost,
                        &decided,
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

    /// Asks for the first of a line, and tells them, until this caller is answered too: then this does not end. It ends
    /// with a decision that was made without the database, or with none when the policy has changed.
    async fn ask_for_queue(
        &self,
        position: &QueuePosition<'_>,
        request: &PermitRequest,
        own: &ChargeLine,
        policy: &Policy,
        (until, timeout): (Time, Duration),
    ) -> Result<Option<Decision>> {
        let (limits, quota) = (self.limits(), own.quota);
        // All that there ever is, until it is known to be less.
        let mut most = quota.limit();
        loop {
            let calls = position.first_calls(most);
            let (Some(first), true) = (calls.first(), position.is_waiting()) else {
                return pending().await;
            };
            let mut current = self.policy_now();
            let fits = request.check(current.quota);
            current.quota = fits.map_err(|error| error.during("until_ready"))?;
            if current != *policy {
                return Ok(None);
            }
            let line = ChargeLine {
                cost: calls.iter().map(|one| one.cost).sum(),
                ..own.clone()
            };
            position.attempts();
            let decided = self.take_unless_out(line, policy).await;
            if let Err(error) = &decided {
                position.refused(error);
            }
            let retry = if let Some(decided) = decided.map_err(|error| error.on(&request.key))? {
                limits.denied_keys.note(hash(&own.key), &decided);
                if matches!(decided.outcome, Outcome::Taken(_)) {
                    self.answer_queue(position, own, &calls, decided);
                    most = quota.limit();
                    continue;
                }
                let left = decided.level.fits(&quota, quota.price(1), decided.now);
                let left = u64::try_from(left).unwrap_or(0);
                if calls.len() > 1 && left >= first.cost {
                    most = left;
                    continue;
                }
                // Next time probably no other fits.
                most = first.cost;
                telemetry::decided(&request.key, false);
                let price = quota.price(first.cost);
                duration(decided.level.wait_for(&quota, price, decided.now))
            } else {
                let decision = limits.shares.decide(request, policy, limits.timer.now());
                telemetry::decided(&request.key, decision.is_admitted());
                if decision.is_allowed() {
                    return Ok(Some(decision));
                }
                decision.retry_after()
            };
            if limits.timer.now().saturating_add(retry) > until {
                let message = format!("not admitted within {timeout:?}");
                let error = Error::new(ErrorKind::TimedOut, "until_ready", message);
                return Err(error.on(&request.key));
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
        if limits.is_out(policy) {
            return Ok(None);
        }
        match limits.take(line, 1, policy.relaxed).await {
            Ok(decided) => {
                limits.shares.answered(policy);
                Ok(Some(decided))
            }
            Err(error) if limits.applies(policy, &error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells those for whom was taken together, as if they had been decided one by one. What was taken for those that
    /// have left is given back.
    fn answer_queue(
        &self,
        position: &QueuePosition<'_>,
        own: &ChargeLine,
        calls: &[WaitingCall],
        mut decided: RawDecision,
    ) {
        let all: i64 = calls.iter().map(|one| own.quota.price(one.cost)).sum();
        let state = |decided: &mut RawDecision, by: i64| match own.quota.window() {
            0 => decided.level.tat += by,
            _ => decided.level.used += by,
        };
        state(&mut decided, -all);
        for one in calls {
            state(&mut decided, own.quota.price(one.cost));
            if !position.answer(*one, decided.clone()) {
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

    async fn check_each(&self, requests: &[PermitRequest]) -> Result<Vec<Decision>> {
        self.decide_each(&self.policy_now(), requests).await
    }

    async fn check_all(&self, requests: &[PermitRequest]) -> Result<Verdict> {
        let policy = self.policy_now();
        let charge = charge(&self.core.namespace, &policy, requests)?;
        let limits = self.limits();
        let outcome = if limits.is_out(&policy) {
            None
        } else {
            match limits.charge(charge.clone()).await {
                Ok(decided) => {
                    limits.shares.answered(&policy);
                    match decided.iter().try_for_each(certain) {
                        Ok(()) => Some(decided),
                        Err(_) if policy.outage != Outage::Fail => None,
                        Err(error) => return Err(error.during("check_all")),
                    }
                }
                Err(error) if limits.applies(&policy, &error) => None,
                Err(error) => return Err(error.during("check_all")),
            }
        };
        if let Some(decided) = outcome {
            let verdict = verdict(requests, &policy, &charge, &decided);
            record_verdict(&verdict);
            return Ok(verdict);
        }
        let now = limits.timer.now();
        let decisions = limits.shares.decide_all(requests, &policy, now);
        let verdict = Verdict {
            admitted: decisions.iter().all(Decision::is_admitted),
            shadow: policy.shadow,
            decisions,
        };
        record_verdict(&verdict);
        Ok(verdict)
    }

    async fn peek(&self, request: &PermitRequest) -> Result<Decision> {
        let policy = self.policy_now();
        let line = line(request, &policy)?;
        let (namespace, key) = self.namespace_and(&request.key);
        let read = ReadLevel { namespace, key };
        let batcher = self.limits().batcher(&line.key);
        let named = |error: Error| error.on(&request.key);
        let mut current = batcher.call(read.clone()).await.map_err(named)?;
        for _ in 0..TRIES {
            if current.due > current.now {
                break;
            }
            let ended = batcher.call(expire(&read.namespace, &read.key)).await;
            ended.map_err(|error| named(error.during("peek")))?;
            current = batcher.call(read.clone()).await.map_err(named)?;
        }
        let (level, now) = (current.level, current.now);
        let mut decision = Decision::of(&request.key, line.quota, request.cost, &level, now);
        decision.shadow = policy.shadow;
        Ok(decision)
    }

    async fn until_ready(&self, request: &PermitRequest, timeout: Duration) -> Result<Decision> {
        let policy = self.policy_now();
        request
            .check(policy.quota)
            .map_err(|error| error.during("until_ready"))?;
        let timer = &self.limits().timer;
        let subject = self.core.subject(Kind::RateLimiter, &request.key);
        let since = Stamp::take(timer);
        let waiting = async {
            let waiting = self.wait(request, timeout);
            let decision = unless(timer.sleep(timeout), waiting).await;
            decision.unwrap_or_else(|| {
                let message = format!("not admitted within {timeout:?}");
                Err(Error::new(ErrorKind::TimedOut, "until_ready", message).on(&request.key))
            })
        };
        let decision = telemetry::acquiring(subject, "until_ready", waiting).await?;
        telemetry::waited(subject, since);
        Ok(decision)
    }

    async fn reserve(
        &self,
        request: &PermitRequest,
        ttl: Duration,
    ) -> Result<std::result::Result<Box<dyn Reservation>, Decision>> {
        let policy = self.policy_now();
        let mut charge = charge(&self.core.namespace, &policy, std::slice::from_ref(request))?;
        let ttl = nanos("ttl", ttl).map_err(|error| error.during("reserve").on(&request.key))?;
        if ttl == 0 {
            let message = "a ttl of zero; allowed are 1 ns to 366 days";
            return Err(Error::new(ErrorKind::Invalid, "reserve", message).on(&request.key));
        }
        let id = random::positive().map_err(|error| error.during("reserve").on(&request.key))?;
        for line in &mut charge.lines {
            (line.id, line.ttl) = (id, ttl);
        }
        let charged = self.limits().charge(charge.clone()).await;
        let decided = charged.map_err(|error| error.during("reserve").on(&request.key))?;
        let mut verdict = verdict(std::slice::from_ref(request), &policy, &charge, &decided);
        record_verdict(&verdict);
        let admitted = verdict.admitted;
        let decision = verdict.decisions.pop().ok_or_else(|| {
            let message = "the server returned no decision for a limit of the call";
            Error::new(ErrorKind::Corrupt, "reserve", message).on(&request.key)
        })?;
        Ok(if admitted {
            Ok(OpenReservation::open(&self.core, id, decision))
        } else if policy.shadow {
            Ok(OpenReservation::of_nothing(&self.core, decision))
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
        let refunded = complete("refund", |done| limits.refund(refund, done));
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

    fn permits(&self, request: &PermitRequest) -> Result<Arc<dyn Permits>> {
        let policy = self.policy_now();
        let line = line(request, &policy).map_err(|error| error.during("permits"))?;
        Ok(permits::open(
            &self.core,
            request.key.clone(),
            line,
            &policy,
        ))
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
struct UndeliveredDecisions<'a> {
    limiter: &'a Limiter,
    decisions: Vec<Decision>,
}

impl Drop for UndeliveredDecisions<'_> {
    fn drop(&mut self) {
        for decision in self.decisions.iter().filter(|decision| decision.at != 0) {
            let refund = self.limiter.refund_of(decision);
            self.limiter.limits().refund(refund, drop);
        }
    }
}

/// Tells of decisions that stand for themselves.
fn record_each(decisions: Vec<Decision>) -> Vec<Decision> {
    for decision in &decisions {
        telemetry::decided(decision.key(), decision.is_admitted());
    }
    decisions
}

/// Tells which limits were charged, or which of them refused.
fn record_verdict(verdict: &Verdict) {
    for decision in &verdict.decisions {
        if verdict.admitted || !decision.is_admitted() {
            telemetry::decided(decision.key(), verdict.admitted);
        }
    }
}
