//! Queues whose limits change while jobs run.

use std::time::Duration;

use lockapi::limit::Quota;
use lockapi::queue::{Groups, Job, JobLimit, Queue};

use super::{Context, asked, groups, jobs, workers};
use crate::plan::Fault;

pub(super) const QUEUE: &str = "limited";
/// How long after each other workers end.
const APART: Duration = Duration::from_secs(3);
/// So long it goes on in the end …
const LASTS: Duration = Duration::from_secs(60);
/// … and within this time a worker begins something that is due.
const TAKEN: Duration = Duration::from_secs(20);
/// The queue of many groups.
pub(super) const CROWDED: &str = "crowded";
/// How many of its jobs run at once at most, whatever its limit is at a time.
pub(super) const MOST: usize = 3;
/// More groups than one admission looks at.
const CROWD: usize = 400;

/// One of some rates.
pub(super) fn rate(context: &Context) -> Quota {
    let rates = [
        Quota::per_second(20).burst(4),
        Quota::per_second(5).burst(1),
        Quota::per_second(50).burst(2),
    ];
    rates[context.runtime.draw(|random| random.usize(..rates.len()))]
}

/// Sets another limit, not above the largest.
pub(super) async fn change(context: &Context, queue: &dyn Queue) -> Option<()> {
    let running = context.runtime.draw(|random| random.usize(1..=MOST));
    let limit = JobLimit::default().running(u32::try_from(running).unwrap_or(1));
    let limit = if context.coin() {
        limit.rate(rate(context))
    } else {
        limit
    };
    let began = asked(context);
    let setting = context.history.soon("set_limit", queue.set_limit(limit));
    context.call(setting).await?;
    context.history.set_limit(queue.name(), began);
    Some(())
}

/// Pushes jobs, and changes the limit.
pub(super) async fn push(context: Context) {
    let queue = context.backend().queue(QUEUE).expect("a queue");
    while change(&context, &*queue).await.is_none() {
        if context.is_ending() {
            return;
        }
    }
    while !context.is_ending() {
        if context.runtime.happens(0.05) {
            change(&context, &*queue).await;
        }
        if !context.has_backlog(QUEUE) {
            let number = context.history.push_limited((QUEUE, MOST));
            let job = jobs::job(&context, number);
            jobs::push_one(&context, &*queue, number, job).await;
        }
        context.rest(Duration::from_secs(1)).await;
    }
}

/// Claims by itself, or has a worker claim.
pub(super) async fn work(context: Context) {
    if !context.plan.by_workers && context.coin() {
        return jobs::work_on(&context, QUEUE).await;
    }
    workers::work_until_end(&context, QUEUE, takes_what_is_due(&context)).await;
}

/// How many jobs wait, and how many run or keep the place in which they ran, as what a transaction has locked.
fn counted(context: &Context) -> (usize, usize) {
    let seen = context.server.jobs();
    let jobs = seen.jobs.iter().filter(|job| job.queue == QUEUE);
    let (running, waiting): (Vec<_>, Vec<_>) = jobs.partition(|job| job.delivery.is_some());
    let locked = context.server.model(|model| {
        let jobs = model.state().jobs();
        let of_queue = jobs.sights().filter(|job| job.queue.queue == QUEUE);
        let delivered = of_queue.filter(|job| job.delivery.is_some());
        delivered.filter(|job| jobs.is_row_locked(job.id)).count()
    });
    (waiting.len(), running.len() + locked)
}

/// In the end a worker takes what is due as long as there is room.
async fn takes_what_is_due(context: &Context) {
    if !context.plan.has_kind("limited-push") {
        // Nobody sets a limit.
        return;
    }
    if context.history.is_closing() {
        return;
    }
    // One process after the other, so that the last has nobody beside it who would take what it does not.
    let nth = u32::try_from(context.program.0 % 8).unwrap_or_default();
    context.runtime.sleep(APART * nth).await;
    let queue = context.backend().queue(QUEUE).expect("a queue");
    let number = context.history.push_limited((QUEUE, MOST));
    let job = jobs::job(context, number);
    jobs::push_one(context, &*queue, number, job).await;
    let mut since = context.runtime.now();
    let until = since + LASTS;
    while context.runtime.now() < until {
        let (waiting, running) = counted(context);
        if waiting + running == 0 {
            return;
        }
        if running > 0 || context.plan.has(Fault::Step) {
            since = context.runtime.now();
        }
        if context.runtime.now() > since + TAKEN {
            let what = format!("jobs of {QUEUE} wait since {since:?}, and none runs");
            let promise = "a worker takes what is due";
            return context.runtime.violate(promise, what);
        }
        context.runtime.sleep(Duration::from_millis(100)).await;
    }
}

/// Pushes jobs of more groups than have a turn at once, and many of one; works on them.
pub(super) async fn crowd(context: Context) {
    let queue = context.backend().queue(CROWDED).expect("a queue");
    let limit = context.runtime.draw(|random| random.u32(1..=8));
    context
        .call(queue.set_groups(Groups::default().limit(limit)))
        .await;
    while !context.is_ending() {
        if context.runtime.happens(0.2) && context.history.begins_crowd() {
            let groups = context.runtime.draw(|random| random.usize(1..CROWD));
            let mut all = Vec::new();
            for group in 0..groups {
                let group = if context.runtime.happens(0.1) {
                    0
                } else {
                    group
                };
                let number = context.history.push();
                let job = Job::new("job", &number).expect("a job");
                all.push((number, job.max_attempts(10_000).group(format!("g{group}"))));
            }
            let (numbers, all): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            if let Some(outcome) = context.outcome(queue.push_all(all)).await {
                let outcome = outcome.map(drop);
                if let Err(error) = &outcome {
                    context.history.failed(error);
                }
                for number in numbers {
                    context.history.pushed(number, outcome.as_ref().copied());
                }
            }
        }
        jobs::work_once(&context, &*queue, 64).await;
    }
}

/// Takes the limits away.
pub(super) async fn audit(context: &Context) {
    for queue in [QUEUE, groups::LIMITED[0].queue] {
        let handle = context.backend().queue(queue).expect("a queue");
        if let Err(error) = handle.clear_limit().await {
            let what = format!("clear_limit: {error:?}");
            context.runtime.violate("all can be had in the end", what);
        }
    }
}
