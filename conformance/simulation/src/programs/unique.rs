//! Jobs with unique keys in all modes, several with idempotency keys in one push, and jobs that are kept when they are done: in a queue
//! that one task uses alone.

use std::sync::Arc;
use std::time::Duration;

use lockapi::Queue;
use lockapi::admin::{JobDetails, JobState};
use lockapi::queue::{Claim, Delivery, How, Job, Priority, Pushed, QueueOptions, Unique};

use super::{Context, asked};
use crate::runtime::Time;

const KEY: &str = "the only one";
/// Longer than a run.
const LATER: Duration = Duration::from_secs(5_000);
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// What is to be there.
#[derive(Clone, Debug)]
struct Wanted {
    id: i64,
    payload: u64,
    priority: Priority,
    /// When its time was set, and answered; the job is due so much later.
    set: (Time, Time),
    delay: Duration,
}

struct Own<'a> {
    context: &'a Context,
    queue: Arc<dyn Queue>,
    next: u64,
}

pub(super) async fn run(context: Context) {
    while !context.is_ending() {
        let number = context.runtime.draw(|random| random.u64(..));
        let options = QueueOptions::default().archive(KEPT);
        let queue = context
            .backend()
            .queue_with(format!("unique-{number:x}"), options);
        let mut own = Own {
            context: &context,
            queue: queue.expect("a queue"),
            next: 0,
        };
        if context.runtime.happens(0.3) {
            own.push_with_keys().await;
        } else {
            own.push_unique().await;
        }
        context.call(own.queue.purge()).await;
        context.rest(Duration::from_millis(800)).await;
    }
}

impl Own<'_> {
    /// Looks at a promise, and whether it is broken.
    fn judge(&self, promise: &'static str, is_broken: bool, what: impl std::fmt::Debug) {
        // Another server may have forgotten.
        if self.context.history.may_be_kept() {
            return;
        }
        self.context.runtime.looks_at(promise);
        if is_broken {
            let what = format!("{}: {what:?}", self.queue.name());
            self.context.runtime.violate(promise, what);
        }
    }

    fn job(&mut self) -> (u64, Job) {
        self.next += 1;
        (self.next, Job::new("one", &self.next).expect("a job"))
    }

    /// Pushes one under the key; answers what is to be there.
    async fn push(
        &mut self,
        before: Option<&Wanted>,
        mode: Unique,
        delay: Duration,
    ) -> Option<(How, Wanted)> {
        let (payload, job) = self.job();
        let priority = Priority::ALL[self.context.runtime.draw(|random| random.usize(..4))];
        let job = job.priority(priority).delay(delay).unique(KEY, mode);
        let began = asked(self.context);
        let Pushed { id, how, .. } = self.context.call(self.queue.push(job)).await?;
        let new = Wanted {
            id,
            payload,
            priority,
            set: (began, asked(self.context)),
            delay,
        };
        let wanted = match (before, mode) {
            (None, _) | (Some(_), Unique::Replace) => new,
            (Some(before), Unique::Keep) => Wanted {
                payload,
                ..before.clone()
            },
            (Some(before), _) => before.clone(),
        };
        Some((how, wanted))
    }

    async fn push_unique(&mut self) -> Option<()> {
        let (how, mut wanted) = self.push(None, Unique::Skip, LATER).await?;
        self.judge(
            "a key that nobody has is free",
            how != How::New,
            (how, &wanted),
        );
        for _ in 0..self.context.runtime.draw(|random| random.usize(..4)) {
            let modes = [Unique::Skip, Unique::Replace, Unique::Keep];
            let mode = modes[self.context.runtime.draw(|random| random.usize(..3))];
            let (how, now) = self.push(Some(&wanted), mode, LATER).await?;
            let right = match mode {
                Unique::Skip => How::Existing,
                _ => How::Changed,
            };
            self.judge(
                "one job has a unique key",
                how != right || now.id != wanted.id,
                (mode, how, &now, &wanted),
            );
            wanted = now;
            self.look(&wanted).await?;
        }
        let (_, wanted) = self
            .push(Some(&wanted), Unique::Replace, Duration::ZERO)
            .await?;
        let delivery = self.claim(&wanted).await?;
        let (how, _) = self.push(Some(&wanted), Unique::Replace, LATER).await?;
        // It is lost if a process is held up.
        self.judge(
            "a job that runs is not changed",
            how != How::Running && self.context.history.is_plain(),
            (how, &wanted),
        );
        self.complete(delivery, &wanted).await
    }

    /// It is as it was pushed.
    async fn look(&self, wanted: &Wanted) -> Option<JobDetails> {
        let inspector = self.context.backend().inspector();
        let found = self.context.call(inspector.job(wanted.id, true)).await?;
        let Some(found) = found else {
            self.judge("what was pushed is there", true, wanted);
            return None;
        };
        let server = self.context.server.time();
        // The server's time that belongs to one of the runtime.
        let now = asked(self.context);
        let at = |time: Time| server - now.saturating_sub(time) + wanted.delay;
        let margin = Duration::from_micros(2);
        let in_time = at(wanted.set.0) - margin..=at(wanted.set.1) + margin;
        let is_same = found.payload.as_deref() == Some(&*wanted.payload.to_string())
            && found.job.priority == wanted.priority
            && in_time.contains(&found.job.run_at);
        self.judge(
            "what was pushed is there",
            !is_same,
            (&found, &found.payload, wanted),
        );
        Some(found)
    }

    async fn claim(&self, wanted: &Wanted) -> Option<Delivery> {
        let claim = Claim::new(2).lease(Duration::from_secs(20));
        let claimed = self.context.call(self.queue.claim(&claim)).await?;
        let payloads = claimed.iter().map(Delivery::payload);
        let payloads: Vec<_> = payloads.map(str::to_owned).collect();
        let is_it = payloads == [wanted.payload.to_string()];
        self.judge(
            "one job has a unique key",
            !is_it && (self.context.history.is_plain() || !payloads.is_empty()),
            (payloads, wanted),
        );
        claimed.into_iter().next()
    }

    /// It is kept when it is done, with its result, and its key is free.
    async fn complete(&mut self, delivery: Delivery, wanted: &Wanted) -> Option<()> {
        delivery.set_result(&wanted.payload).expect("a number");
        self.context.call(delivery.ack()).await?;
        let inspector = self.context.backend().inspector();
        let found = self.context.call(inspector.job(wanted.id, true)).await?;
        let is_kept = found.as_ref().is_some_and(|found| {
            found.job.state == JobState::Completed
                && found.result.as_deref() == Some(&*wanted.payload.to_string())
        });
        self.judge("a job that is done is kept", !is_kept, (&found, wanted));
        let (how, again) = self.push(None, Unique::Skip, LATER).await?;
        self.judge(
            "the key of a job that is done is free",
            how != How::New || again.id == wanted.id,
            (how, &again, wanted),
        );
        Some(())
    }

    /// Each key refers to the job of its first push, also where others of the same push are new.
    async fn push_with_keys(&mut self) -> Option<()> {
        let mut keyed = |key: &str| self.job().1.delay(LATER).idempotency_key(key);
        let (first, second) = (
            [keyed("a"), keyed("b")],
            [keyed("b"), keyed("c"), keyed("a")],
        );
        let first = self.context.call(self.queue.push_all(first.into())).await?;
        let second = self
            .context
            .call(self.queue.push_all(second.into()))
            .await?;
        let ids = |pushed: &[Pushed]| pushed.iter().map(|it| it.id).collect::<Vec<_>>();
        let hows = |pushed: &[Pushed]| pushed.iter().map(|it| it.how).collect::<Vec<_>>();
        let (before, after) = (ids(&first), ids(&second));
        let is_same = before.len() == 2
            && after.len() == 3
            && [after[2], after[0]] == before[..]
            && !before.contains(&after[1]);
        let is_told = hows(&first) == [How::New; 2]
            && hows(&second) == [How::Existing, How::New, How::Existing];
        // What was sent again finds what it has pushed before.
        let is_broken = !is_same || (self.context.history.is_plain() && !is_told);
        let promise = "a key always refers to the job of its first push";
        self.judge(promise, is_broken, (first, second));
        Some(())
    }
}
