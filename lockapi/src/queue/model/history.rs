//! What programs have counted of their jobs.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::admin::ReadHistory;
use crate::queue::HistorySums;
use crate::queue::operations::{
    FoldHistory, HistoryKey, HistoryPartKey, RecordHistory, SweepHistory,
};

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// The tables of the history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// With the time at which they were written.
    parts: BTreeMap<HistoryPartKey, (i64, HistorySums)>,
    kept: BTreeMap<HistoryKey, HistorySums>,
}

/// The beginning of the hour or minute that a time is in.
fn floor(at: i64, step: i64) -> i64 {
    at - at.rem_euclid(step)
}

fn count<T>(part: &[T]) -> i64 {
    i64::try_from(part.len()).unwrap_or(i64::MAX)
}

impl History {
    /// How many rows there are of programs, and how many minutes and hours.
    #[must_use]
    pub fn rows(&self) -> (usize, usize) {
        (self.parts.len(), self.kept.len())
    }

    /// Answers whether it was in time.
    pub(crate) fn record(&mut self, now: i64, want: &RecordHistory) -> bool {
        if now >= want.taken_at.saturating_add(4 * MINUTE) {
            return false;
        }
        for part in &want.parts {
            let key = (
                want.namespace.clone(),
                part.queue.clone(),
                part.minute,
                part.name.clone(),
                want.part,
            );
            let new = || (now, part.sums.clone());
            self.parts.entry(key).or_insert_with(new);
        }
        true
    }

    /// Answers how many were moved, how many were looked at, and the last of them.
    pub(crate) fn fold(
        &mut self,
        now: i64,
        want: &FoldHistory,
    ) -> (i64, i64, Option<HistoryPartKey>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let part = self.parts.range((Excluded(&want.after), Unbounded));
        let part: Vec<_> = part.take(most).map(|(key, _)| key.clone()).collect();
        let mut moved = 0;
        for key in &part {
            if self.parts[key].0 > now - 5 * MINUTE {
                continue;
            }
            let Some((_, sums)) = self.parts.remove(key) else {
                continue;
            };
            moved += 1;
            let (namespace, queue, minute, name, _) = key.clone();
            for (hourly, at) in [(false, minute), (true, floor(minute, HOUR))] {
                let key = (namespace.clone(), queue.clone(), hourly, at, name.clone());
                self.kept.entry(key).or_default().add(&sums);
            }
        }
        (moved, count(&part), part.last().cloned())
    }

    /// Answers how many were deleted, how many were looked at, and the last of them.
    pub(crate) fn sweep(
        &mut self,
        now: i64,
        want: &SweepHistory,
    ) -> (i64, i64, Option<HistoryKey>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let part = self.kept.range((Excluded(&want.after), Unbounded));
        let part: Vec<_> = part.take(most).map(|(key, _)| key.clone()).collect();
        let mut deleted = 0;
        for key in &part {
            let keep = if key.2 { 169 * HOUR } else { 61 * MINUTE };
            if key.3 < now - keep {
                self.kept.remove(key);
                deleted += 1;
            }
        }
        (deleted, count(&part), part.last().cloned())
    }

    /// What is there of each minute or hour.
    pub(crate) fn read(&self, now: i64, want: &ReadHistory) -> BTreeMap<i64, HistorySums> {
        let (step, since) = if want.hourly {
            (HOUR, floor(now, HOUR) - 167 * HOUR)
        } else {
            (MINUTE, floor(now, MINUTE) - 59 * MINUTE)
        };
        let most = usize::try_from(want.most).unwrap_or(0);
        let is_wanted = |namespace: &str, queue: &str, name: &str| {
            namespace == want.name.namespace
                && queue == want.name.queue
                && want.job.as_deref().is_none_or(|job| job == name)
        };
        let mut found: BTreeMap<i64, HistorySums> = BTreeMap::new();
        let kept = self.kept.iter().rev().filter(|(key, _)| {
            is_wanted(&key.0, &key.1, &key.4) && key.2 == want.hourly && key.3 >= since
        });
        for (key, sums) in kept.take(most) {
            found.entry(key.3).or_default().add(sums);
        }
        let parts = self.parts.iter().rev();
        let parts = parts.filter(|(key, _)| is_wanted(&key.0, &key.1, &key.3) && key.2 >= since);
        for (key, (_, sums)) in parts.take(most) {
            found.entry(floor(key.2, step)).or_default().add(sums);
        }
        found
    }
}
