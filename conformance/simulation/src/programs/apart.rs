//! What a task does in a queue, or with a lease or a limit, that nobody else uses: the answers are known.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use lockapi::lease::LeaseOptions;
use lockapi::limit::{PermitRequest, Quota};
use lockapi::queue::{Claim, Delivery, Job, Pause};
use lockapi::{ErrorKind, Queue};

use super::Context;

const LATER: Duration = Duration::from_secs(3_000);
const NAMES: [&str; 2] = ["one", "other"];
/// Nothing of it is replenished.
const QUOTA: Quota = Quota::new(5, Duration::from_secs(100_000));

pub(super) async fn run(context: &Context) {
    match context.runtime.draw(|random| random.u8(..8)) {
        0 => {
            data(context).await;
        }
        1 => {
            leave(context).await;
        }
        at => {
            let number = context.runtime.draw(|random| random.u64(..));
            let queue = context.backend().queue(format!("apart-{number:x}"));
            let own = Own {
                context,
                queue: queue.expect("a queue"),
            };
            match at {
                2 | 3 => own.extend().await,
                4 => own.resume().await,
                5 => own.count().await,
                6 => own.snooze().await,
                _ => own.purge().await,
            };
            context.call(own.queue.purge()).await;
        }
    }
}

/// Where nothing fails, and nobody leaves, this holds.
fn check(context: &Context, promise: &'static str, is_kept: bool, what: impl std::fmt::Debug) {
    if context.history.is_plain() {
        context.runtime.looks_at(promise);
        if !is_kept {
            context.runtime.violate(promise, format!("{what:?}"));
        }
    }
}

/// What a holder stored is read.
async fn data(context: &Context) -> Option<()> {
    let number = context.runtime.draw(|random| random.u64(..));
    let options = LeaseOptions::new(Duration::from_secs(20)).data(number.to_string());
    let lease = context
        .backend()
        .lease(format!("apart-{number:x}"), options)
        .expect("a lease");
    let guard = context.call(lease.acquire()).await?;
    let holder = context.call(lease.peek()).await?;
    let is_read = holder
        .as_ref()
        .is_some_and(|it| it.data == number.to_string());
    check(context, "what a holder stored is read", is_read, &holder);
    context.call(guard.release()).await
}

/// Permits of calls that were dropped are given back.
async fn leave(context: &Context) -> Option<()> {
    let limiter = context.backend().rate_limiter(QUOTA).expect("a quota");
    let number = context.runtime.draw(|random| random.u64(..));
    let key = format!("apart-{number:x}");
    let waits = context.coin();
    let calls = (0..4).map(|_| {
        let time = context
            .runtime
            .between(Duration::from_micros(10), Duration::from_micros(800));
        let (limiter, key) = (&limiter, &*key);
        async move {
            let call = pin!(async {
                if waits {
                    let request = PermitRequest::new(key);
                    limiter.until_ready(&request, LATER).await
                } else {
                    limiter.check(key).await
                }
            });
            match select(call, pin!(context.runtime.sleep(time))).await {
                Either::Left((decided, _)) => Some(decided),
                Either::Right(_) => None,
            }
        }
    });
    let mut used = 0;
    for decided in join_all(calls).await.into_iter().flatten() {
        match decided {
            Ok(decision) => used += u64::from(decision.is_allowed()),
            Err(error) => context.history.failed(&error),
        }
    }
    context.runtime.sleep(Duration::from_secs(2)).await;
    let request = PermitRequest::new(&*key);
    let decision = context.call(limiter.peek(&request)).await?;
    let promise = "what is taken for a call that was left is given back";
    let taken = QUOTA.limit() - decision.remaining();
    check(context, promise, taken == used, (used, decision));
    Some(())
}

struct Own<'a> {
    context: &'a Context,
    queue: Arc<dyn Queue>,
}

impl Own<'_> {
    fn check(&self, promise: &'static str, is_kept: bool, what: impl std::fmt::Debug) {
        check(self.context, promise, is_kept, (self.queue.name(), what));
    }

    async fn push(&self, name: &str) -> Option<()> {
        let job = Job::new(name, &0).expect("a job");
        self.context.call(self.queue.push(job)).await.map(drop)
    }

    async fn claim(&self, lease: Duration) -> Option<Option<Delivery>> {
        let claim = Claim::new(1).lease(lease).extended_by_hand();
        let claimed = self.context.call(self.queue.claim(&claim)).await?;
        Some(claimed.into_iter().next())
    }

    /// Whoever extends a lease has the job for that time, and not longer.
    async fn extend(&self) -> Option<()> {
        self.push(NAMES[0]).await?;
        let runtime = &self.context.runtime;
        let lease = runtime.between(Duration::from_secs(1), Duration::from_secs(3));
        let delivery = self.claim(lease).await??;
        for _ in 0..3 {
            if runtime.happens(0.2) {
                self.context
                    .call(self.queue.cancel(vec![delivery.id()]))
                    .await;
            }
            let time = runtime.between(Duration::from_millis(200), Duration::from_secs(4));
            match self.context.outcome(delivery.extend(time)).await? {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Lost => {
                    if !delivery.is_lost() {
                        let promise = "who is told of a loss has lost it";
                        self.context.runtime.violate(promise, format!("{error}"));
                    }
                    return None;
                }
                Err(error) => self.context.history.failed(&error),
            }
            let until = runtime.now() + time.mul_f64(1.5);
            while runtime.now() < until {
                if let Some(again) = self.claim(Duration::from_secs(1)).await? {
                    if !delivery.is_lost() && !self.context.history.may_be_kept() {
                        let what = format!("{:?} and {again:?}", delivery.ticket());
                        runtime.violate("a job has one worker", what);
                    }
                    return self.context.call(again.ack()).await;
                }
                self.context.rest(Duration::from_millis(300)).await;
            }
        }
        Some(())
    }

    /// A name that is paused is delivered once it is resumed, and not because another one is.
    async fn resume(&self) -> Option<()> {
        for name in NAMES {
            let pausing = self.queue.pause_name(name, Pause::UntilResumed);
            self.context.call(pausing).await?;
            self.push(name).await?;
        }
        let mut resumed = Vec::new();
        let mut names = NAMES;
        if self.context.coin() {
            names.reverse();
        }
        for name in names {
            self.context.call(self.queue.resume_name(name)).await?;
            resumed.push(name);
            while let Some(delivery) = self.claim(Duration::from_secs(10)).await? {
                if !resumed.contains(&delivery.name()) && !self.context.history.may_be_kept() {
                    let what = format!("{} after {resumed:?}", delivery.name());
                    let promise = "nothing of a paused queue is delivered";
                    self.context.runtime.violate(promise, what);
                }
                resumed.retain(|name| *name != delivery.name());
                self.context.call(delivery.ack()).await?;
            }
            self.check("what is resumed is delivered", resumed.is_empty(), &resumed);
        }
        Some(())
    }

    /// All jobs are counted, wherever they are.
    async fn count(&self) -> Option<()> {
        let late = Job::new(NAMES[1], &0).expect("a job").delay(LATER);
        self.context.call(self.queue.push(late)).await?;
        for _ in 0..2 {
            self.push(NAMES[0]).await?;
        }
        let delivery = self.claim(Duration::from_secs(20)).await??;
        self.counts([1, 1, 1, 0]).await?;
        self.context.call(delivery.reject("never")).await?;
        self.counts([1, 0, 1, 1]).await
    }

    async fn counts(&self, expected: [u64; 4]) -> Option<()> {
        let told = self.context.call(self.queue.statistics()).await?;
        let counted = [told.ready, told.running, told.delayed, told.dead].map(|it| it.count);
        let promise = "all jobs of a queue are counted";
        self.check(promise, counted == expected, (expected, told));
        Some(())
    }

    /// A job that is put off at its last attempt has it again.
    async fn snooze(&self) -> Option<()> {
        let job = Job::new(NAMES[0], &0).expect("a job").max_attempts(1);
        self.context.call(self.queue.push(job)).await?;
        for _ in 0..2 {
            let delivery = self.claim(Duration::from_secs(20)).await??;
            let snoozing = delivery.snooze(Duration::from_secs(1));
            self.context.call(snoozing).await?;
            self.counts([0, 0, 1, 0]).await?;
            self.context.runtime.sleep(Duration::from_secs(2)).await;
        }
        self.counts([1, 0, 0, 0]).await
    }

    /// What waits is purged, and what runs is not.
    async fn purge(&self) -> Option<()> {
        for _ in 0..2 {
            self.push(NAMES[0]).await?;
        }
        let delivery = self.claim(Duration::from_secs(20)).await??;
        let purged = self.context.call(self.queue.purge()).await?;
        self.check("what is purged is gone", purged == 1, purged);
        let done = self.context.outcome(delivery.ack()).await?;
        let is_lost = matches!(&done, Err(error) if error.kind() == ErrorKind::Lost);
        self.check("what runs is not purged", !is_lost, &done);
        if let Err(error) = &done {
            self.context.history.failed(error);
        }
        Some(())
    }
}
