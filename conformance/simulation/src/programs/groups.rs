//! Jobs of groups, of which few run at once.

use std::time::Duration;

use lockapi::limit::Quota;
use lockapi::queue::{Groups, JobLimit};

use super::{Context, jobs};
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

impl Limited {
    fn groups(&self) -> Groups {
        if self.ordered {
            Groups::default().ordered()
        } else {
            let most = u32::try_from(self.most).expect("a small number");
            Groups::default()
                .limit(most)
                .rate(Quota::per_second(20).burst(4))
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

    fn any(context: &Context) -> &'static Self {
        &LIMITED[usize::from(context.coin())]
    }
}

/// Pushes jobs, now and then pauses a queue or a group, and gives a group another limit, not above its own.
pub(super) async fn push(context: Context) {
    for limited in &LIMITED {
        let queue = context.backend().queue(limited.queue).expect("a queue");
        while context
            .call(queue.set_groups(limited.groups()))
            .await
            .is_none()
        {
            if context.is_ending() {
                return;
            }
        }
    }
    while !context.is_ending() {
        let limited = Limited::any(&context);
        let queue = context.backend().queue(limited.queue).expect("a queue");
        let key = context.key();
        match context.runtime.draw(|random| random.u8(..50)) {
            0 => {
                let time = context
                    .runtime
                    .between(Duration::from_millis(1), Duration::from_secs(3));
                context.call(queue.pause_for(time)).await;
            }
            1 => {
                let most = context
                    .runtime
                    .draw(|random| random.usize(0..=limited.most));
                let most = u32::try_from(most).expect("a small number");
                context
                    .call(queue.set_group_limit(key, Some(JobLimit::default().running(most))))
                    .await;
            }
            2..4 => {
                context.call(queue.set_group_limit(key, None)).await;
            }
            _ => {}
        }
        let number = context.history.push_to(limited.group(key));
        let mut job = jobs::job(&context, number).group(key);
        if !limited.ordered && context.coin() {
            job = job.delay(
                context
                    .runtime
                    .between(Duration::from_millis(1), Duration::from_secs(3)),
            );
        }
        jobs::push_one(&context, &*queue, number, job).await;
        context.rest(Duration::from_secs(1)).await;
    }
}

pub(super) async fn work(context: Context) {
    let limited = Limited::any(&context);
    jobs::work_on(&context, limited.queue).await;
}

/// Gives all groups the limit of their queue again.
pub(super) async fn audit(context: &Context) {
    for limited in &LIMITED {
        let queue = context.backend().queue(limited.queue).expect("a queue");
        for key in Context::KEYS {
            if let Err(error) = queue.set_group_limit(key, None).await {
                let what = format!("set_group_limit: {error:?}");
                context.runtime.violate("all can be had in the end", what);
            }
        }
    }
}
