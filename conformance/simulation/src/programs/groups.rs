//! Jobs of groups, of which few run at once.

use std::time::Duration;

use lockapi::queue::{Groups, JobLimit, Queue};

use super::{Context, asked, jobs, limited};
use crate::history::Group;

/// How the groups of a queue are limited.
pub(super) struct Limited {
    pub(super) queue: &'static str,
    most: usize,
    ordered: bool,
}

pub(super) const LIMITED: [Limited; 2] = [
    Limited {
        queue: "grouped",
        most: 2,
        ordered: false,
    },
    Limited {
        queue: "ordered",
        most: 1,
        ordered: true,
    },
];

/// A key that jobs of all groups may be limited by.
const SHARED: &str = "shared";
/// How many jobs with it run at once at most, whatever its limit is at a time.
const MOST: usize = 2;

impl Limited {
    /// One of the ways in which they are limited at a time.
    fn groups(&self, context: &Context) -> Groups {
        let groups = if self.ordered {
            Groups::default().ordered()
        } else {
            let most = context.runtime.draw(|random| random.usize(1..=self.most));
            Groups::default().limit(u32::try_from(most).expect("a small number"))
        };
        if self.ordered || context.runtime.happens(0.2) {
            groups
        } else {
            groups.rate(limited::rate(context))
        }
    }

    /// The limit of one group of its own.
    fn own(&self, context: &Context) -> JobLimit {
        let most = context.runtime.draw(|random| random.usize(0..=self.most));
        let limit = JobLimit::default().running(u32::try_from(most).expect("a small number"));
        if context.coin() {
            limit.rate(limited::rate(context))
        } else {
            limit
        }
    }

    fn group(&self, key: &'static str) -> Group {
        Group {
            queue: self.queue,
            key,
            most: self.most,
            ordered: self.ordered,
        }
    }

    /// A key for a job, if it has one: one that is that of a group as well only where these have no order. Turns of groups are
    /// judged where there are no keys, in every second plan.
    fn key(&self, context: &Context) -> Option<Group> {
        if context.plan.seed % 2 == 1 || context.coin() {
            return None;
        }
        let of_group = !self.ordered && context.coin();
        let key = if of_group { context.key() } else { SHARED };
        Some(Group {
            queue: self.queue,
            key,
            most: MOST,
            ordered: false,
        })
    }

    fn any(context: &Context) -> &'static Self {
        &LIMITED[usize::from(context.coin())]
    }
}

/// Pushes jobs, now and then pauses a queue or a group, and gives a group another limit, not above its own.
pub(super) async fn push(context: Context) {
    for of in &LIMITED {
        let queue = context.backend().queue(of.queue).expect("a queue");
        loop {
            let began = asked(&context);
            let set = context.call(queue.set_groups(of.groups(&context)));
            if set.await.is_some() {
                context.history.set_order(of.queue, began);
                break;
            }
            if context.is_ending() {
                return;
            }
        }
    }
    while !context.is_ending() {
        let of = Limited::any(&context);
        let queue = context.backend().queue(of.queue).expect("a queue");
        let key = context.key();
        match context.runtime.draw(|random| random.u8(..50)) {
            0 => {
                let time = context
                    .runtime
                    .between(Duration::from_millis(1), Duration::from_secs(3));
                let pause = context.history.pauses(of.queue, time);
                if context.call(queue.pause_for(time)).await.is_some() {
                    context.history.paused(of.queue, pause);
                }
            }
            1 => {
                let own = of.own(&context);
                context.call(queue.set_group_limit(key, Some(own))).await;
            }
            2..4 => {
                context.call(queue.set_group_limit(key, None)).await;
            }
            4 => {
                let groups = of.groups(&context);
                context.call(queue.set_groups(groups)).await;
            }
            5 | 6 => {
                let most = context.runtime.draw(|random| random.u32(0..=2));
                let own = JobLimit::default().running(most);
                context.call(queue.set_group_limit(SHARED, Some(own))).await;
            }
            7 if !of.ordered => {
                limited::change(&context, &*queue).await;
            }
            _ => {}
        }
        // Now and then more than a rate allows at once.
        let many = if context.runtime.happens(0.1) { 6 } else { 1 };
        let many = if context.has_backlog(of.queue) {
            0
        } else {
            many
        };
        for _ in 0..many {
            push_one(&context, &*queue, of, key).await;
        }
        context.rest(Duration::from_secs(1)).await;
    }
}

async fn push_one(context: &Context, queue: &dyn Queue, of: &Limited, key: &'static str) {
    let by = of.key(context);
    let by = by.filter(|by| by.key != key);
    let groups: Vec<_> = std::iter::once(of.group(key)).chain(by).collect();
    let number = context.history.push_to(&groups);
    let mut job = jobs::job(context, number).group(key);
    if let Some(by) = by {
        job = job.limit_by(by.key);
    }
    if !of.ordered && context.coin() {
        job = job.delay(
            context
                .runtime
                .between(Duration::from_millis(1), Duration::from_secs(3)),
        );
    }
    jobs::push_one(context, queue, number, job).await;
}

pub(super) async fn work(context: Context) {
    let of = Limited::any(&context);
    jobs::work_on(&context, of.queue).await;
}

/// Gives all groups the limit of their queue again.
pub(super) async fn audit(context: &Context) {
    for of in &LIMITED {
        let queue = context.backend().queue(of.queue).expect("a queue");
        for key in Context::KEYS.into_iter().chain([SHARED]) {
            if let Err(error) = queue.set_group_limit(key, None).await {
                let what = format!("set_group_limit: {error:?}");
                context.runtime.violate("all can be had in the end", what);
            }
        }
    }
}
