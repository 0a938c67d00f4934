//! Whoever changes limits, and pauses queues, groups and names.

use lockapi::queue::{Drained, Groups, JobLimit, Pause};
use lockapi::{Queue, Result};

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{
    ALL, GROUPED, GROUPS, LIMITED, NAMES, OF_GROUPS, OF_QUEUE, ORDERED, PACED, RATED, paced_groups,
    rate_of_queue,
};
use crate::log::{Answer, Op, Paused};
use crate::programs::{Context, Phase, pick, rest};

/// Changes limits while there is work, and takes back in the end what would be in its way.
pub(in crate::programs) async fn change(context: Context) {
    let changes = Changes {
        queues: ALL.map(|name| context.backend.queue(name).expect("a queue")),
        context,
    };
    while changes.is_work() {
        rest(8000).await;
        if changes.is_work() && changes.one().await.is_err() {
            rest(300).await;
        }
    }
    while !changes.context.is_over() && changes.take_back().await.is_err() {
        rest(300).await;
    }
}

struct Changes {
    context: Context,
    queues: [Arc<dyn Queue>; ALL.len()],
}

impl Changes {
    fn is_work(&self) -> bool {
        self.context.phase.load(Ordering::Relaxed) == Phase::Work as u8
    }

    fn queue(&self, name: &str) -> &dyn Queue {
        let found = self.queues.iter().find(|queue| queue.name() == name);
        &**found.expect("one of all")
    }

    async fn one(&self) -> Result<()> {
        match fastrand::u8(..8) {
            0 => {
                let most = fastrand::u32(1..=OF_GROUPS);
                let groups = Groups::default().limit(most);
                let setting = self.queue(GROUPED).set_groups(groups);
                self.set(GROUPED, None, Some(most), setting).await
            }
            1 | 2 => {
                let (queue, group) = (pick(&[GROUPED, ORDERED]), pick(&GROUPS));
                let most = fastrand::u32(..=OF_GROUPS);
                self.set_group(queue, group, Some(most)).await?;
                rest(4000).await;
                while self.set_group(queue, group, None).await.is_err() {
                    if !self.is_work() {
                        break;
                    }
                    rest(300).await;
                }
                Ok(())
            }
            3 => {
                let most = fastrand::u32(2..=OF_QUEUE);
                let setting = self
                    .queue(LIMITED)
                    .set_limit(JobLimit::default().running(most));
                self.set(LIMITED, None, Some(most), setting).await
            }
            4 => {
                // Nothing that was taken is given back.
                let queue = pick(&[RATED, PACED]);
                let op = Op::SetRate {
                    queue: queue.to_owned(),
                };
                let setting = async {
                    if queue == RATED {
                        self.queue(RATED).set_limit(rate_of_queue()).await
                    } else {
                        self.queue(PACED).set_groups(paced_groups()).await
                    }
                };
                self.context.call(op, setting, |()| Answer::Done).await.1
            }
            which => {
                let (queue, time) = (pick(&ALL), fastrand::u64(100..3000));
                let name = (which == 5).then_some(NAMES[1]);
                let how = [Paused::UntilResumed, Paused::ForMillis(time)][fastrand::usize(..2)];
                let how = if which == 7 {
                    Paused::Drained(time)
                } else {
                    how
                };
                // Where that has failed it may be paused all the same.
                let paused = self.pause(queue, name, how).await;
                rest(4000).await;
                while self.pause(queue, name, Paused::No).await.is_err() {
                    if !self.is_work() {
                        break;
                    }
                    rest(300).await;
                }
                paused
            }
        }
    }

    async fn set(
        &self,
        queue: &str,
        group: Option<&str>,
        most: Option<u32>,
        setting: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let op = Op::SetLimit {
            queue: queue.to_owned(),
            group: group.map(str::to_owned),
            most,
        };
        self.context.call(op, setting, |()| Answer::Done).await.1
    }

    async fn set_group(&self, queue: &str, group: &str, most: Option<u32>) -> Result<()> {
        let limit = most.map(|most| JobLimit::default().running(most));
        let setting = self.queue(queue).set_group_limit(group, limit);
        self.set(queue, Some(group), most, setting).await
    }

    async fn pause(&self, queue: &str, name: Option<&str>, how: Paused) -> Result<()> {
        let op = Op::Pause {
            queue: queue.to_owned(),
            name: name.map(str::to_owned),
            how,
        };
        let queue = self.queue(queue);
        let pause = match how {
            Paused::No => None,
            Paused::UntilResumed => Some(Pause::UntilResumed),
            Paused::ForMillis(time) => Some(Pause::For(Duration::from_millis(time))),
            Paused::Drained(time) => {
                let draining = queue.drain(Pause::UntilResumed, Duration::from_millis(time));
                return self.context.call(op, draining, drained).await.1.map(drop);
            }
        };
        let pausing = async {
            match name {
                Some(name) => queue.set_name_paused(name, pause).await,
                None => queue.set_paused(pause).await,
            }
        };
        self.context.call(op, pausing, |()| Answer::Done).await.1
    }

    /// Whoever paused something may have been killed since.
    async fn take_back(&self) -> Result<()> {
        for group in GROUPS {
            self.set_group(GROUPED, group, None).await?;
            self.set_group(ORDERED, group, None).await?;
        }
        for queue in ALL {
            self.pause(queue, Some(NAMES[1]), Paused::No).await?;
            self.pause(queue, None, Paused::No).await?;
        }
        Ok(())
    }
}

/// Complete, or how many jobs still run; nothing if somebody has resumed it meanwhile.
fn drained(drained: &Drained) -> Answer {
    match i64::try_from(drained.running.count).unwrap_or(i64::MAX) {
        _ if drained.is_complete() => Answer::Done,
        _ if !drained.paused => Answer::Nothing,
        running => Answer::Number(running),
    }
}
