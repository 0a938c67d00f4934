//! Limits that a task uses alone, in all ways that there are, so that each answer is known.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use lockapi::ErrorKind;
use lockapi::Key;
use lockapi::limit::{Basis, Decision, Outage, PermitRequest, Policy, Quota, RateLimiter};

use super::Context;
use crate::history::{Level, Sent};
use crate::runtime::Time;

/// Six at once, then one in 100 ms.
const QUOTA: Quota = Quota::per_second(10).burst(6);
const SLIDING: Quota = Quota::new(4, Duration::from_millis(800)).sliding_window();
/// The model counts the time of limits from a day later.
const AHEAD: Duration = Duration::from_secs(24 * 3600);
/// Who waits is admitted within so much more time than it takes.
const ADMITTED: i64 = 1_200_000_000;
/// How many permits a block has.
const BLOCK: u64 = 4;

/// A limit of one task.
struct Own {
    context: Context,
    limiter: Arc<dyn RateLimiter>,
    key: String,
    level: Level,
    /// Whether what is taken is not known any more.
    unsure: bool,
}

pub(super) async fn run(context: Context) {
    let open = |policy: Policy| context.backend().rate_limiter(policy).expect("a quota");
    let limiters = [
        open(QUOTA.into()),
        open(Policy::new(QUOTA).shadow()),
        open(Policy::new(QUOTA).outage(Outage::Open)),
        open(Policy::new(QUOTA).outage(Outage::Closed)),
    ];
    while !context.is_ending() {
        match context.runtime.draw(|random| random.usize(..8)) {
            at @ 0..2 => slide(&context, at == 0).await,
            at @ 2..4 => use_blocks(&context, at == 2).await,
            at => {
                let limiter = Arc::clone(&limiters[at - 4]);
                let number = context.runtime.draw(|random| random.u64(..));
                let own = Own {
                    context: context.clone(),
                    limiter,
                    key: format!("own-{number:x}"),
                    level: Level::new(QUOTA),
                    unsure: false,
                };
                use_alone(own).await;
            }
        }
        context.rest(Duration::from_millis(300)).await;
    }
}

/// Until one of the calls is not answered.
async fn use_alone(mut own: Own) -> Option<()> {
    for _ in 0..own.context.runtime.draw(|random| random.usize(1..12)) {
        if own.context.is_ending() {
            return None;
        }
        match own.context.runtime.draw(|random| random.u8(..12)) {
            0 => own.block().await?,
            1 => own.reset().await?,
            2 => own.peek().await?,
            3 | 4 => own.wait().await?,
            5 => own.check_two().await?,
            _ => own.check().await?,
        }
        own.context.rest(Duration::from_millis(250)).await;
    }
    None
}

impl Own {
    fn now(&self) -> i64 {
        let since = self.context.server.time().duration_since(UNIX_EPOCH);
        let since = since.unwrap_or_default() + AHEAD;
        i64::try_from(since.as_nanos()).unwrap_or_default()
    }

    fn request(&self) -> (PermitRequest, u64) {
        let cost = self.context.runtime.draw(|random| random.u64(1..=3));
        (PermitRequest::new(&*self.key).cost(cost), cost)
    }

    /// What the policy for outages decides is not an error, and what it decides follows from it.
    fn check_policy(&self, decision: &Decision) {
        let policy = self.limiter.policy();
        if decision.basis() == Basis::Outage {
            self.context
                .runtime
                .looks_at("the policy decides in an outage");
        }
        if decision.basis() == Basis::Outage
            && decision.is_allowed() == (policy == Policy::new(QUOTA).outage(Outage::Closed))
        {
            let promise = "the policy decides in an outage";
            let what = format!("{policy:?}: {decision:?}");
            self.context.runtime.violate(promise, what);
        }
        if policy == Policy::new(QUOTA).shadow() && !decision.is_allowed() {
            let promise = "who only watches a limit is not refused";
            self.context
                .runtime
                .violate(promise, format!("{decision:?}"));
        }
    }

    /// What is told of it agrees with what was told before.
    fn decided(&mut self, decision: &Decision, sent: Sent, looks: bool) {
        self.check_policy(decision);
        // A server that has taken over may have forgotten, and one whose clock is set counts otherwise.
        self.unsure |= decision.basis() == Basis::Outage;
        if self.unsure || self.context.history.may_be_kept() {
            return;
        }
        let (before, exact) = (self.level, self.context.history.is_plain());
        if let Some(promise) = self.level.decided(decision, sent, (looks, exact)) {
            let what = format!("{} {decision:?} of {sent:?}, {before:?}", self.key);
            self.context.runtime.violate(promise, what);
        }
    }

    fn failed(&mut self, error: &lockapi::Error) {
        self.unsure = true;
        let unreachable = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Indeterminate
        );
        let outage = [Outage::Open, Outage::Closed].map(|it| Policy::new(QUOTA).outage(it));
        let decides = outage.contains(&self.limiter.policy());
        if unreachable && decides && !self.context.history.is_closing() {
            let promise = "the policy decides in an outage";
            self.context.runtime.violate(promise, format!("{error:?}"));
        }
        self.context.history.failed(error);
    }

    /// Takes some, and gives them back now and then.
    async fn check(&mut self) -> Option<()> {
        let ((request, _), asked) = (self.request(), self.now());
        let limiter = Arc::clone(&self.limiter);
        let checking = limiter.check_each(std::slice::from_ref(&request));
        let decision = match self.context.outcome(checking).await? {
            Ok(decisions) => decisions.into_iter().next()?,
            Err(error) => {
                self.failed(&error);
                return Some(());
            }
        };
        self.decided(&decision, (asked, self.now()), false);
        if self.context.runtime.happens(0.3) {
            self.context.rest(Duration::from_millis(150)).await;
            let asked = self.now();
            let refunded = self.context.call(limiter.refund(&decision)).await;
            let sent = (asked, self.now());
            self.level.refunded(&decision, sent, refunded.is_some());
            refunded?;
        }
        Some(())
    }

    /// Decides two requests in one call, each for itself.
    async fn check_two(&mut self) -> Option<()> {
        let other = format!("{}-beside", self.key);
        let (request, cost) = self.request();
        let whole = PermitRequest::new(&*other).cost(QUOTA.limit());
        let requests = [whole, request];
        let asked = self.now();
        let limiter = Arc::clone(&self.limiter);
        let decisions = self.context.call(limiter.check_each(&requests)).await?;
        let [beside, own] = decisions.try_into().ok()?;
        let promise = "decisions are in the order of their requests";
        self.context.runtime.looks_at(promise);
        if *beside.key() != Key::from(other) || own.cost() != cost {
            let what = format!("{beside:?}, {own:?}");
            self.context.runtime.violate(promise, what);
        }
        self.decided(&own, (asked, self.now()), false);
        Some(())
    }

    async fn peek(&mut self) -> Option<()> {
        let ((request, _), asked) = (self.request(), self.now());
        let limiter = Arc::clone(&self.limiter);
        let decision = self.context.call(limiter.peek(&request)).await?;
        self.decided(&decision, (asked, self.now()), true);
        Some(())
    }

    /// Waits for its permits.
    async fn wait(&mut self) -> Option<()> {
        let time = self
            .context
            .runtime
            .between(Duration::from_millis(1), Duration::from_secs(1));
        let ((request, cost), asked) = (self.request(), self.now());
        let waits = self.level.waits(cost, asked);
        let limiter = Arc::clone(&self.limiter);
        let waiting = limiter.until_ready(&request, time);
        let outcome = self.context.outcome(waiting).await?;
        let (answered, exact) = (self.now(), self.context.history.is_plain());
        let most = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let what = format!(
            "{}: {:?} after {asked}, {waits} of {most}",
            self.key, self.level
        );
        let decision = match outcome {
            Ok(decision) => decision,
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                if exact && waits + ADMITTED < most {
                    let promise = "who waits for permits is admitted";
                    self.context.runtime.violate(promise, what);
                }
                // What came too late is given back in a while, but for what is replenished until then.
                return None;
            }
            Err(error) => {
                self.failed(&error);
                return Some(());
            }
        };
        let promise = "who waits for permits is admitted";
        if exact {
            self.context.runtime.looks_at(promise);
        }
        if exact && (!decision.is_allowed() || answered - asked > waits + ADMITTED) {
            self.context.runtime.violate(promise, what);
        }
        self.decided(&decision, (asked, answered), false);
        Some(())
    }

    async fn block(&mut self) -> Option<()> {
        let time = self
            .context
            .runtime
            .between(Duration::from_millis(1), Duration::from_millis(500));
        let asked = self.now();
        let key = Key::from(&*self.key);
        let blocking = self.limiter.block(&key, time);
        self.context.call(blocking).await?;
        self.level.blocked((asked, self.now()), time);
        Some(())
    }

    async fn reset(&mut self) -> Option<()> {
        let key = Key::from(&*self.key);
        let resetting = self.limiter.reset(&key);
        self.context.call(resetting).await?;
        self.level.reset();
        Some(())
    }
}

/// Windows that slide: nothing is refused when nothing was taken for two of them, and no more than two of them have is taken in one.
async fn slide(context: &Context, hurries: bool) {
    let limiter = context.backend().rate_limiter(SLIDING).expect("a quota");
    let number = context.runtime.draw(|random| random.u64(..));
    let key = format!("sliding-{number:x}");
    let mut taken = Vec::new();
    for _ in 0..10 {
        let asked = context.runtime.now();
        let Some(decision) = context.call(limiter.check(&*key)).await else {
            return;
        };
        let window = SLIDING.period();
        let since = |windows: u32| asked.saturating_sub(window * windows);
        let within = |time| taken.iter().filter(|at| **at > time).count() as u64;
        let (of_two, of_one) = (within(since(2)), within(since(1)));
        let wrong = if decision.is_allowed() {
            of_one >= 2 * SLIDING.limit()
        } else {
            of_two == 0
        };
        if !context.history.may_be_kept() {
            context.runtime.looks_at("windows that slide hold");
        }
        if wrong
            && !context.history.may_be_kept()
            && (decision.is_allowed() || context.history.is_plain())
        {
            let what = format!("{key}: {decision:?} at {asked:?}, {taken:?} were taken");
            context.runtime.violate("windows that slide hold", what);
        }
        if decision.is_allowed() {
            taken.push(context.runtime.now());
        }
        if !hurries {
            context.rest(window).await;
        }
    }
}

/// Permits that are taken in blocks: no more are used than there are.
async fn use_blocks(context: &Context, gives_back: bool) {
    let limiter = context.backend().rate_limiter(QUOTA).expect("a quota");
    let number = context.runtime.draw(|random| random.u64(..));
    let key = format!("blocks-{number:x}");
    let request = PermitRequest::new(&*key).cost(BLOCK);
    let permits = limiter.permits(&request).expect("a request");
    let begun = context.runtime.now();
    let mut used = Vec::new();
    let mut hurries = 0_u32;
    for _ in 0..16 {
        let asked = context.runtime.now();
        if permits.try_now() || context.call(permits.take()).await.unwrap_or_default() {
            used.push(asked);
        }
        let exceeded = exceeded(&used, context.runtime.now());
        if let Some((many, since)) = exceeded.filter(|_| !context.history.may_be_kept()) {
            let what = format!("{key}: {many} since {since:?}");
            return context.runtime.violate("limits hold", what);
        }
        hurries = hurries.saturating_sub(1);
        if hurries == 0 {
            context.rest(Duration::from_millis(60)).await;
        }
        if context.runtime.happens(0.1) {
            // What is left of a block is worth nothing then, and the limit is full.
            context.runtime.sleep(Duration::from_secs(1)).await;
            hurries = 10;
        }
    }
    if gives_back && context.call(permits.give_back()).await.is_some() {
        let promise = "what was given back is not used";
        context.runtime.looks_at(promise);
        if permits.try_now() && !context.history.may_be_kept() {
            return context.runtime.violate(promise, key);
        }
        drop(permits);
        context.runtime.sleep(Duration::from_millis(50)).await;
        let used = u64::try_from(used.len()).unwrap_or(u64::MAX);
        check_given_back(context, &*limiter, (&key, used, begun)).await;
    }
}

/// How many permits are replenished since then, at most; within two hundredths, by which the clocks differ.
fn replenished(since: Time, now: Time) -> u64 {
    let time = now.saturating_sub(since).mul_f64(1.03);
    u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX) + 1
}

/// Whether so many permits were used since one of these times as there were not, and since which.
fn exceeded(used: &[Time], now: Time) -> Option<(u64, Time)> {
    let mut since = used.iter().rev().zip(1..);
    since.find_map(|(since, many)| {
        (many > QUOTA.limit() + replenished(*since, now)).then_some((many, *since))
    })
}

/// Of a limit whose unused permits were given back as much is taken as was used, but for what was replenished.
async fn check_given_back(
    context: &Context,
    limiter: &dyn RateLimiter,
    (key, used, begun): (&str, u64, Time),
) {
    let Some(decision) = context.call(limiter.peek(&PermitRequest::new(key))).await else {
        return;
    };
    let missing = QUOTA.limit().saturating_sub(decision.remaining());
    let replenished = replenished(begun, context.runtime.now());
    let least = used.saturating_sub(replenished);
    if !context.history.is_plain() {
        return;
    }
    let promise = "permits that are given back are there";
    context.runtime.looks_at(promise);
    if !(least..=used).contains(&missing) {
        let what = format!("{key}: {used} were used since {begun:?}, {decision:?}");
        context.runtime.violate(promise, what);
    }
}
