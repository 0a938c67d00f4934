//! Schedulers of recurring tasks, and whoever works on their runs.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use lockapi::queue::{Claim, Delivery, Job};
use lockapi::schedule::{
    MAX_LIST, Misfire, Overlap, Run, Scheduler, SchedulerOptions, Status, Task,
};
use lockapi::{Queue, Stop};

use super::jobs::{finish, shared, take};
use super::{Context, asked};
use crate::history::Delivered;
use crate::runtime::Time;

const NAME: &str = "maintenance";
/// So many that no run fails for good.
const ATTEMPTS: u32 = 10_000;

/// Within this time each task is fired again.
const GOES_ON: Duration = Duration::from_secs(100);

/// A recurring task.
struct Recurring {
    name: &'static str,
    every: Duration,
    misfire: Misfire,
    overlap: Overlap,
}

const TASKS: [Recurring; 3] = [
    Recurring {
        name: "allow",
        every: Duration::from_millis(700),
        misfire: Misfire::CatchUp(5),
        overlap: Overlap::Allow,
    },
    Recurring {
        name: "skip",
        every: Duration::from_millis(900),
        misfire: Misfire::Coalesce,
        overlap: Overlap::Skip,
    },
    Recurring {
        name: "queue",
        every: Duration::from_millis(1_100),
        misfire: Misfire::CatchUp(3),
        overlap: Overlap::Queue,
    },
];

impl Recurring {
    fn task(&self) -> Task {
        let job = Job::new("run", &self.name)
            .expect("a job")
            .max_attempts(ATTEMPTS);
        Task::every(self.name, self.every, job)
            .misfire(self.misfire)
            .overlap(self.overlap)
    }
}

fn scheduler(context: &Context) -> Arc<dyn Scheduler> {
    let options = SchedulerOptions::default().poll(Duration::from_millis(500));
    let backend = context.backend();
    backend.scheduler_with(NAME, options).expect("a scheduler")
}

/// Sets the tasks, runs the scheduler for a while, and works meanwhile.
pub(super) async fn run(context: Context) {
    let scheduler = scheduler(&context);
    while !context.is_ending() {
        for task in &TASKS {
            let setting = scheduler.set(task.task());
            context
                .call(context.history.soon_in_two("set", setting))
                .await;
        }
        let (stop, until) = (
            Stop::new(),
            context.runtime.now()
                + context
                    .runtime
                    .between(Duration::from_millis(100), Duration::from_secs(15)),
        );
        let rounds = async {
            let from = context.server.time();
            context.call(scheduler.run(&stop)).await;
            context.history.scheduled(from, context.server.time());
        };
        let work = async {
            while !context.is_ending() && context.runtime.now() < until {
                work(&context).await;
            }
            stop.stop();
        };
        // The scheduler may be left, or be stopped.
        match select(pin!(rounds), pin!(work)).await {
            Either::Left(((), work)) => work.await,
            Either::Right(((), rounds)) => rounds.await,
        }
    }
}

async fn work(context: &Context) {
    let queue = context.backend().queue(NAME).expect("a queue");
    let lease = context
        .runtime
        .between(Duration::from_secs(1), Duration::from_secs(10));
    let claim = Claim::new(context.runtime.draw(|random| random.usize(1..=3)))
        .lease(lease)
        .wait(Duration::from_secs(1));
    let began = asked(context);
    for delivery in context.call(queue.claim(&claim)).await.unwrap_or_default() {
        handle(context, delivery, began).await;
    }
}

async fn handle(context: &Context, delivery: Delivery, began: Time) {
    let recurring = delivery
        .decode::<String>()
        .ok()
        .and_then(|name| TASKS.iter().find(|it| it.name == name));
    let Some(recurring) = recurring else {
        let what = delivery.payload();
        return context
            .runtime
            .violate("what is delivered was pushed", what);
    };
    let run = Delivered {
        task: recurring.name,
        due: delivery.due_at(),
        job: delivery.id(),
        is_alone: recurring.overlap != Overlap::Allow,
    };
    let token = delivery.ticket().token;
    let (shared, held) = shared(delivery);
    let ran = context
        .history
        .ran(&run, context.program, (token, began), held);
    let Some((number, entry)) = ran else {
        return;
    };
    context.rest(Duration::from_secs(2)).await;
    let delivery = take(&shared);
    drop(entry);
    if let Some(delivery) = delivery {
        finish(context, number, delivery).await;
    }
}

/// Tasks are fired in the end, their runs can be done, and the log has all of them.
pub(super) async fn audit(context: &Context) {
    if let Err(error) = audited(context).await {
        let what = format!("{NAME}: {error:?}");
        context.runtime.violate("all can be had in the end", what);
    }
}

async fn audited(context: &Context) -> lockapi::Result<()> {
    let scheduler = scheduler(context);
    for task in scheduler.list().await? {
        goes_on(context, &*scheduler, &task.name).await?;
    }
    releases(context, &*scheduler).await?;
    for task in scheduler.list().await? {
        // Those that were due meanwhile have been fired.
        let now = context.server.time();
        scheduler.run_due().await?;
        let last = scheduler.runs(&task.name, None, 1).await?;
        let recurring = TASKS.iter().find(|it| it.name == task.name);
        if let (Some(recurring), Some(last)) = (recurring, last.first()) {
            context.history.check_fired(recurring.every, last, now);
        }
        scheduler.disable(&task.name).await?;
    }
    // Leases of workers that were killed have to end first.
    let until = context.runtime.now() + Duration::from_secs(30);
    let queue = context.backend().queue(NAME)?;
    while context.runtime.now() < until {
        complete(&*queue, Duration::from_secs(1)).await?;
    }
    for task in scheduler.list().await? {
        let recurring = TASKS.iter().find(|it| it.name == task.name);
        let log = log(&*scheduler, &task.name).await?;
        if let Some(it) = recurring {
            let rules = (it.every, it.misfire, it.overlap);
            context.history.check_log(&task.name, rules, &log);
        }
    }
    Ok(())
}

/// What is held back is released while others end.
async fn releases(context: &Context, scheduler: &dyn Scheduler) -> lockapi::Result<()> {
    let queue = context.backend().queue(NAME)?;
    let until = context.runtime.now() + GOES_ON;
    loop {
        let mut held = Vec::new();
        for task in &TASKS {
            let runs = scheduler.runs(task.name, None, MAX_LIST).await?;
            held.extend(runs.into_iter().filter(|run| run.status == Status::Held));
        }
        if held.is_empty() {
            return Ok(());
        }
        if context.runtime.now() > until {
            let promise = "what is held back is released";
            context.runtime.violate(promise, format!("{held:?}"));
            return Ok(());
        }
        complete(&*queue, Duration::from_millis(300)).await?;
        scheduler.run_due().await?;
    }
}

/// Completes the jobs that there are within this time.
async fn complete(queue: &dyn Queue, wait: Duration) -> lockapi::Result<()> {
    for delivery in queue.claim(&Claim::new(100).wait(wait)).await? {
        delivery.ack().await?;
    }
    Ok(())
}

/// A task is fired again soon, whatever the clock has been set to before.
async fn goes_on(context: &Context, scheduler: &dyn Scheduler, task: &str) -> lockapi::Result<()> {
    let before = scheduler.runs(task, None, 1).await?;
    let until = context.runtime.now() + GOES_ON;
    while context.runtime.now() < until {
        scheduler.run_due().await?;
        let last = scheduler.runs(task, None, 1).await?;
        let at = |runs: &[Run]| runs.first().map(|run| run.fired_at);
        if at(&last) != at(&before) {
            return Ok(());
        }
        context.runtime.sleep(Duration::from_secs(1)).await;
    }
    let what = format!("{task}: {before:?} was the last");
    context.runtime.violate("tasks go on", what);
    Ok(())
}

/// The earliest first.
async fn log(scheduler: &dyn Scheduler, task: &str) -> lockapi::Result<Vec<Run>> {
    let mut log = Vec::<Run>::new();
    loop {
        let before = log.last().map(|run| run.fire_at);
        let part = scheduler.runs(task, before, MAX_LIST).await?;
        let full = part.len() == MAX_LIST;
        log.extend(part);
        if !full {
            log.reverse();
            return Ok(log);
        }
    }
}
