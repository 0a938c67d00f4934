//! Jobs that expire although no worker claims them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::Topic;
use super::exchange::MAX_BYTES;
use super::handle::Handle;
use crate::driver::SweepResult;
use crate::engine::sweeps::{PART, Sweeping};
use crate::queue::{ExpireJobs, FOR_EVER, Floor, QueueOptions};
use crate::sync::{Mutex, MutexGuard};

impl Sweeping for ExpireJobs {
    const EVERY: Duration = Duration::from_secs(300);
    const PAUSE: Duration = Duration::from_millis(50);

    fn next(self, swept: SweepResult<Floor>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

/// How long dead letters are kept, by the queues that this process has open.
#[derive(Default)]
pub(super) struct Retentions(Mutex<BTreeMap<i64, Retention>>);

struct Retention {
    queue: String,
    /// The longest time of its handles, in the form that statements use.
    keep_dead: i64,
    topic: Weak<Topic>,
}

impl Retention {
    fn is_open(&self) -> bool {
        self.topic.strong_count() > 0
    }
}

impl Retentions {
    /// A handle was opened.
    pub(super) fn opened(&self, number: i64, queue: &str, keep_dead: i64, topic: &Arc<Topic>) {
        let mut retentions = self.lock();
        if let Some(retention) = retentions
            .get_mut(&number)
            .filter(|retention| retention.is_open())
        {
            retention.keep_dead = longer(retention.keep_dead, keep_dead);
            return;
        }
        retentions.retain(|_, retention| retention.is_open());
        let retention = Retention {
            queue: queue.to_owned(),
            keep_dead,
            topic: Arc::downgrade(topic),
        };
        retentions.insert(number, retention);
    }

    /// Those that are not `usual`.
    fn unusual(&self, usual: i64) -> Vec<(String, i64)> {
        let retentions = self.lock();
        let open = retentions.values().filter(|retention| retention.is_open());
        open.filter(|retention| retention.keep_dead != usual)
            .map(|retention| (retention.queue.clone(), retention.keep_dead))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, Retention>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn longer(one: i64, other: i64) -> i64 {
    if one == FOR_EVER || other == FOR_EVER {
        FOR_EVER
    } else {
        one.max(other)
    }
}

impl Handle {
    /// Moves expired jobs to the dead letters from time to time, as long as queues are used: one sweep for
    /// all queues of the namespace, also those that no worker claims from.
    pub(super) fn expire_later(&self) {
        let namespace = Arc::clone(&self.core.namespace);
        let queues = Arc::downgrade(&self.core.queues);
        self.core.sweeps.later(0, move || {
            let keep_dead = QueueOptions::default().keep_dead();
            let queues = queues.upgrade();
            ExpireJobs {
                namespace: namespace.to_string(),
                after: (0, 0),
                most: PART,
                bytes: MAX_BYTES,
                retentions: queues
                    .map_or_else(Vec::new, |queues| queues.retentions.unusual(keep_dead)),
                keep_dead,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_keeps_its_dead_letters_for_the_longest_time_of_its_handles() {
        let retentions = Retentions::default();
        let (one, other) = (Arc::new(Topic::default()), Arc::new(Topic::default()));
        let sorted = || {
            let mut retentions = retentions.unusual(30);
            retentions.sort_unstable();
            retentions
        };
        retentions.opened(1, "one", 10, &one);
        retentions.opened(2, "other", 30, &other);
        assert_eq!(sorted(), [("one".to_owned(), 10)]);
        retentions.opened(1, "one", 30, &one);
        retentions.opened(1, "one", 20, &one);
        assert_eq!(sorted(), []);
        retentions.opened(2, "other", FOR_EVER, &other);
        retentions.opened(2, "other", 40, &other);
        assert_eq!(sorted(), [("other".to_owned(), FOR_EVER)]);
        drop(other);
        assert_eq!(sorted(), []);
        let other = Arc::new(Topic::default());
        retentions.opened(2, "other", 40, &other);
        assert_eq!(sorted(), [("other".to_owned(), 40)]);
    }
}
