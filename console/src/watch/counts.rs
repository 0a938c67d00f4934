//! How many jobs queues have, and had lately.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(any(feature = "web", test))]
use std::time::Duration;
use std::time::Instant;

use lockapi::admin::FoundQueue;
use lockapi::queue::Statistics;
use lockapi::{Backend, Error};

use super::{QueueLine, Sample};

/// How many points of the past a queue has.
const HISTORY: usize = 120;
/// What was counted within this time is shown where one queue is.
#[cfg(feature = "web")]
const RECENT: Duration = Duration::from_secs(2);

/// The latest counts of the queues that are shown.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    queues: BTreeMap<String, Counted>,
    /// What was asked for before something was forgotten is not kept.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Counted {
    latest: Option<(Instant, Statistics)>,
    history: VecDeque<Sample>,
}

impl Counts {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a queue now.
    pub(super) async fn count(
        &self,
        backend: &dyn Backend,
        name: &str,
    ) -> Result<Statistics, Error> {
        let before = self.known().forgotten;
        let statistics = backend.queue(name)?.statistics().await?;
        let mut known = self.known();
        if known.forgotten == before {
            let counted = known.queues.entry(name.to_owned()).or_default();
            let at = Instant::now();
            counted.latest = Some((at, statistics));
            if counted.history.len() >= HISTORY {
                counted.history.pop_front();
            }
            let ready = statistics.ready.count;
            counted.history.push_back(Sample { at, ready });
        }
        Ok(statistics)
    }

    /// What is gone has no past.
    pub(super) fn retain(&self, queues: &[FoundQueue]) {
        let mut known = self.known();
        known
            .queues
            .retain(|name, _| queues.iter().any(|queue| queue.name == *name));
    }

    /// Those that were not counted yet, or not since something was done.
    pub(super) fn missing(&self, queues: &[FoundQueue]) -> Vec<String> {
        let known = self.known();
        let latest = |name: &str| known.queues.get(name).and_then(|counted| counted.latest);
        let missing = queues.iter().filter(|queue| latest(&queue.name).is_none());
        missing.map(|queue| queue.name.clone()).collect()
    }

    /// Those that something was done to have to be counted again.
    pub(super) fn forget(&self, which: impl Fn(&str) -> bool) {
        let mut known = self.known();
        known.forgotten += 1;
        for (name, counted) in &mut known.queues {
            if which(name) {
                counted.latest = None;
            }
        }
    }

    #[cfg(feature = "web")]
    pub(super) fn recent(&self, name: &str) -> Option<Statistics> {
        let known = self.known();
        let (at, statistics) = known.queues.get(name)?.latest?;
        (at.elapsed() < RECENT).then_some(statistics)
    }

    /// Whether a queue was counted at a time or later.
    pub(super) fn counted_since(&self, name: &str, since: Instant) -> bool {
        let known = self.known();
        let latest = known.queues.get(name).and_then(|counted| counted.latest);
        latest.is_some_and(|(at, _)| at >= since)
    }

    /// Those that were counted, with what they were lately.
    pub(super) fn lines(&self, queues: Vec<FoundQueue>) -> Vec<QueueLine> {
        let known = self.known();
        let line = |queue: FoundQueue| {
            let counted = known.queues.get(&queue.name)?;
            let (_, statistics) = counted.latest?;
            let history = counted.history.iter().copied().collect();
            Some(QueueLine {
                queue,
                statistics,
                history,
            })
        };
        queues.into_iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_counted_since_is_known() {
        let backend = lockapi::memory::Database::new().connect().await.unwrap();
        let counts = Counts::default();
        let before = Instant::now();
        assert!(!counts.counted_since("mails", before));
        counts.count(&*backend, "mails").await.unwrap();
        // However long ago.
        assert!(counts.counted_since("mails", before));
        let after = Instant::now() + Duration::from_nanos(1);
        assert!(!counts.counted_since("mails", after));
        counts.forget(|name| name == "mails");
        assert!(!counts.counted_since("mails", before));
    }
}
