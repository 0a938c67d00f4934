//! A scheduler that one task uses alone: it runs tasks at once, disables and removes them, and lets runs last too long.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockapi::queue::{Claim, Delivery, Job};
use lockapi::schedule::{Misfire, Overlap, Run, Scheduler, Status, Task};
use lockapi::{ErrorKind, Queue};

use super::Context;

/// Between two due times.
const EVERY: Duration = Duration::from_millis(400);
/// Much longer.
const SELDOM: Duration = Duration::from_secs(100);
/// How late a time may be fired; what is later is skipped.
const LATE: Duration = Duration::from_millis(150);
/// How long a run may last.
const LASTS: Duration = Duration::from_millis(600);
const TASK: &str = "task";

/// A scheduler of one task.
struct Own<'a> {
    context: &'a Context,
    scheduler: Arc<dyn Scheduler>,
    queue: Arc<dyn Queue>,
    /// Whether its task is due with each second.
    by_seconds: bool,
}

pub(super) async fn run(context: Context) {
    while !context.is_ending() {
        let number = context.runtime.draw(|random| random.u64(..));
        let name = format!("timetable-{number:x}");
        let backend = context.backend();
        let own = Own {
            context: &context,
            scheduler: backend.scheduler(&*name).expect("a scheduler"),
            queue: backend.queue(&*name).expect("a queue"),
            by_seconds: context.coin(),
        };
        own.run().await;
        // What was removed leaves nothing behind.
        context.call(own.scheduler.remove(TASK)).await;
        context.call(own.queue.purge()).await;
        context.rest(Duration::from_secs(1)).await;
    }
}

impl Own<'_> {
    /// Looks at a promise, and whether it is broken.
    fn judge(&self, promise: &'static str, is_broken: bool, what: impl std::fmt::Debug) {
        // Another server may have forgotten what was fired, and a clock that is set makes times due.
        if self.context.history.may_be_kept() {
            return;
        }
        self.context.runtime.looks_at(promise);
        if is_broken {
            let what = format!("{}: {what:?}", self.scheduler.name());
            self.context.runtime.violate(promise, what);
        }
    }

    /// Until a call is not answered, or was to do something else.
    async fn run(&self) -> Option<()> {
        self.set(EVERY).await?;
        for _ in 0..self.context.runtime.draw(|random| random.usize(1..5)) {
            if self.context.is_ending() {
                return None;
            }
            match self.context.runtime.draw(|random| random.u8(..5)) {
                0 => self.run_at_once().await?,
                1 => self.disable().await?,
                2 => self.lasts_too_long().await?,
                3 => self.recur_otherwise().await?,
                _ => self.skip().await?,
            }
        }
        self.remove().await
    }

    async fn set(&self, every: Duration) -> Option<()> {
        let job = Job::new(TASK, &0).expect("a job");
        let task = if self.by_seconds && every == EVERY {
            Task::cron(TASK, "* * * * * *", "UTC", job)
        } else {
            Task::every(TASK, every, job)
        };
        let task = task
            .misfire(Misfire::Skip { late: LATE })
            .overlap(Overlap::Allow)
            .timeout(LASTS);
        self.context.call(self.scheduler.set(task)).await.map(drop)
    }

    /// A task that is set to recur otherwise is due by that.
    async fn recur_otherwise(&self) -> Option<()> {
        let before = self.context.server.time();
        self.context.runtime.looks_at("a task recurs as it was set");
        self.set(SELDOM).await?;
        let next = self.next().await?;
        self.judge(
            "a task recurs as it was set",
            next.is_none_or(|next| next < before + SELDOM / 2),
            (before, next),
        );
        self.set(EVERY).await?;
        let next = self.next().await?;
        let after = self.context.server.time();
        self.judge(
            "a task recurs as it was set",
            next.is_none_or(|next| next > after + SELDOM / 2),
            (after, next),
        );
        Some(())
    }

    /// The run has a job, and the time at which the task is due next is as before.
    async fn run_at_once(&self) -> Option<()> {
        let before = self.next().await?;
        let fired = self.context.call(self.scheduler.run_now(TASK)).await?;
        let after = self.next().await?;
        let job = fired.as_ref().and_then(|fired| fired.job);
        self.judge(
            "a task is run at once",
            job.is_none() || before != after,
            (fired, before, after),
        );
        let delivery = self.claim().await?;
        if let Some(delivery) = delivery {
            self.context.call(delivery.ack()).await?;
        }
        Some(())
    }

    async fn next(&self) -> Option<Option<SystemTime>> {
        let tasks = self.context.call(self.scheduler.tasks("", 10)).await?;
        Some(tasks.into_iter().next().and_then(|task| task.next_at))
    }

    /// The first job that is there; in plain plans there is one.
    async fn claim(&self) -> Option<Option<Delivery>> {
        let claim = Claim::new(1).lease(Duration::from_secs(10));
        let claimed = self.context.call(self.queue.claim(&claim)).await?;
        if self.context.history.is_plain() {
            self.judge(
                "a task that was fired has a job",
                claimed.is_empty(),
                &claimed,
            );
        }
        Some(claimed.into_iter().next())
    }

    /// Nothing is fired while it is disabled, and what was due then is not afterwards.
    async fn disable(&self) -> Option<()> {
        self.context.call(self.scheduler.disable(TASK)).await?;
        self.context.rest(EVERY * 3).await;
        let fired = self.context.call(self.scheduler.run_due()).await?;
        self.judge(
            "nothing of a disabled task is fired",
            !fired.is_empty(),
            fired,
        );
        let since = self.context.server.time();
        self.context.call(self.scheduler.enable(TASK)).await?;
        let fired = self.context.call(self.scheduler.run_due()).await?;
        self.judge(
            "what was due of a disabled task is not caught up",
            fired.iter().any(|fired| fired.fire_at < since),
            fired,
        );
        self.complete().await
    }

    /// What is too late is skipped, and nothing else.
    async fn skip(&self) -> Option<()> {
        self.context.rest(EVERY * 3).await;
        let (before, fired) = (
            self.context.server.time(),
            self.context.call(self.scheduler.run_due()).await?,
        );
        let after = self.context.server.time();
        for one in &fired {
            let since = one.fire_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            if self.by_seconds {
                let is_between = since.subsec_nanos() != 0;
                self.judge("a task is due when its expression says", is_between, one);
            }
            // The latest that was due by then may be fired, unless it was late already.
            let certainly_late = one.fire_at + LATE < before;
            let certainly_early = one.fire_at + LATE > after;
            let is_fired = one.status == Status::Pending;
            self.judge(
                "what is too late is skipped",
                (is_fired && certainly_late) || (!is_fired && certainly_early),
                (one, before, after),
            );
        }
        if self.context.history.is_plain() {
            self.judge("what was missed is not caught up", fired.len() > 2, &fired);
        }
        self.complete().await
    }

    /// A run that lasts too long has failed, and its worker has lost it.
    async fn lasts_too_long(&self) -> Option<()> {
        self.complete().await?;
        self.context.call(self.scheduler.run_now(TASK)).await?;
        let Some(delivery) = self.claim().await? else {
            return Some(());
        };
        let lasts = self.context.coin();
        if lasts {
            self.context.runtime.sleep(LASTS * 2).await;
        }
        self.context.call(self.scheduler.tick()).await?;
        let (id, was_lost) = (delivery.id(), delivery.is_lost());
        let outcome = self.context.outcome(delivery.ack()).await?;
        let runs = self.context.call(self.scheduler.runs(TASK, None, 100));
        let run = runs.await?.into_iter().find(|run| run.job == Some(id));
        self.check_lasted(lasts, (was_lost, outcome), run.as_ref());
        Some(())
    }

    fn check_lasted(
        &self,
        lasts: bool,
        (was_lost, outcome): (bool, lockapi::Result<()>),
        run: Option<&Run>,
    ) {
        let status = run.map(|run| run.status);
        let is_lost = matches!(&outcome, Err(error) if error.kind() == ErrorKind::Lost);
        let wrong = match &outcome {
            Ok(()) => status != Some(Status::Completed),
            Err(_) if is_lost && lasts => status != Some(Status::Failed),
            Err(_) => false,
        };
        if lasts {
            let is_kept = outcome.is_ok();
            self.judge("a run that lasts too long is lost", is_kept, run);
        }
        self.judge("the log has what became of a run", wrong, run);
        if !lasts && self.context.history.is_plain() {
            let what = (&outcome, was_lost);
            self.judge("nothing is lost without a cause", is_lost, what);
        }
        if let Err(error) = &outcome
            && !is_lost
        {
            self.context.history.failed(error);
        }
    }

    /// Completes what there is.
    async fn complete(&self) -> Option<()> {
        loop {
            let claim = Claim::new(10).lease(Duration::from_secs(10));
            let claimed = self.context.call(self.queue.claim(&claim)).await?;
            if claimed.is_empty() {
                return Some(());
            }
            for delivery in claimed {
                self.context.call(delivery.ack()).await?;
            }
        }
    }

    /// What was removed is not run.
    async fn remove(&self) -> Option<()> {
        let was_there = self.context.call(self.scheduler.remove(TASK)).await?;
        let fired = self.context.call(self.scheduler.run_now(TASK)).await?;
        let tasks = self.context.call(self.scheduler.list()).await?;
        let is_missed = !was_there && self.context.history.is_plain();
        let is_there = fired.is_some() || !tasks.is_empty();
        let what = (was_there, fired, tasks.len());
        let promise = "a task that was removed is not there";
        self.judge(promise, is_there || is_missed, what);
        Some(())
    }
}
