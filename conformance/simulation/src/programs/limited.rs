//! Queues whose limits change while jobs run.

use std::time::Duration;

use lockapi::limit::Quota;
use lockapi::queue::{Groups, Job, JobLimit, Queue};

use super::{Context, groups, jobs};

pub(super) const QUEUE: &str = "limited";
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
    context.call(queue.set_limit(limit)).await
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

pub(super) async fn work(context: Context) {
    jobs::work_on(&context, QUEUE).await;
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
