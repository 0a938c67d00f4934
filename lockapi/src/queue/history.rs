//! How many jobs a queue has done, and how long they waited and ran, by the minute and by the hour.

use std::time::{Duration, SystemTime};

use super::{Outcome, Settled, point};

/// How many counts of durations there are at most: up to 1 ms, 2 ms, 4 ms and so on, and the last of all that is longer.
pub(crate) const BUCKETS: usize = 24;

/// The steps of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HistoryStep {
    /// The minutes of the last hour.
    Minute,
    /// The hours of the last week.
    Hour,
}

impl HistoryStep {
    /// How long one is.
    #[must_use]
    pub const fn duration(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(60),
            Self::Hour => Duration::from_secs(3600),
        }
    }

    /// How many there are at most.
    #[must_use]
    pub const fn points(self) -> usize {
        match self {
            Self::Minute => 60,
            Self::Hour => 168,
        }
    }
}

/// How an attempt at a job ended, as its history counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempted {
    /// It completed the job.
    Completed,
    /// It failed.
    Failed,
    /// It failed, and the job is a dead letter.
    Dead,
}

impl Attempted {
    /// What is counted where this was the answer to an outcome.
    pub(crate) fn of(outcome: &Outcome, settled: Settled) -> Option<Self> {
        match (outcome, settled) {
            (_, Settled::Lost | Settled::Locked) => None,
            (Outcome::Ack | Outcome::AckWithResult(_), _) => Some(Self::Completed),
            (Outcome::Reject { .. }, _)
            | (Outcome::Nack { .. } | Outcome::Abandon, Settled::Dead) => Some(Self::Dead),
            (Outcome::Nack { .. } | Outcome::Abandon, Settled::Done) => Some(Self::Failed),
            _ => None,
        }
    }
}

/// What was counted of the jobs of a name in a minute or an hour; times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistorySums {
    /// Jobs that were completed.
    pub completed: i64,
    /// Attempts that failed.
    pub failed: i64,
    /// Those of them after which the job was a dead letter.
    pub dead: i64,
    /// How long the jobs had been due when the attempts began.
    pub waited: i64,
    /// How long the attempts ran.
    pub ran: i64,
    /// How many attempts waited for up to 1 ms, 2 ms, 4 ms and so on, without zeros at the end.
    pub waits: Vec<i64>,
    /// How many ran for so long.
    pub runs: Vec<i64>,
}

impl HistorySums {
    pub(crate) fn count(&mut self, how: Attempted, waited: i64, ran: i64) {
        match how {
            Attempted::Completed => self.completed += 1,
            Attempted::Failed => self.failed += 1,
            Attempted::Dead => {
                self.failed += 1;
                self.dead += 1;
            }
        }
        self.waited = self.waited.saturating_add(waited);
        self.ran = self.ran.saturating_add(ran);
        for (counts, time) in [(&mut self.waits, waited), (&mut self.runs, ran)] {
            let bucket = bucket(time);
            if counts.len() <= bucket {
                counts.resize(bucket + 1, 0);
            }
            counts[bucket] += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.completed, other.completed),
            (&mut self.failed, other.failed),
            (&mut self.dead, other.dead),
            (&mut self.waited, other.waited),
            (&mut self.ran, other.ran),
        ] {
            *sum = sum.saturating_add(more);
        }
        for (counts, more) in [
            (&mut self.waits, &other.waits),
            (&mut self.runs, &other.runs),
        ] {
            counts.resize(counts.len().max(more.len()), 0);
            for (sum, more) in counts.iter_mut().zip(more) {
                *sum = sum.saturating_add(*more);
            }
        }
    }
}

/// Which count a duration belongs to.
fn bucket(micros: i64) -> usize {
    let millis = micros.max(0).unsigned_abs().div_ceil(1000).max(1);
    let doubled = u64::BITS - (millis - 1).leading_zeros();
    usize::try_from(doubled).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// What became of the attempts at jobs that ended in a minute or an hour; see
/// [`Inspector::history`](crate::admin::Inspector::history).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryPoint {
    /// When it began, by the server's clock.
    pub at: SystemTime,
    /// Jobs that were completed.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Those of them after which the job was a dead letter.
    pub dead: u64,
    /// How long the jobs had been due when the attempts began, together.
    pub waited: Duration,
    /// How long the attempts ran, together.
    pub ran: Duration,
    waits: Vec<u64>,
    runs: Vec<u64>,
}

impl HistoryPoint {
    pub(crate) fn new(at: i64, sums: &HistorySums) -> Self {
        let count = |count: i64| count.max(0).unsigned_abs();
        let counts = |counts: &[i64]| counts.iter().copied().map(count).collect();
        Self {
            at: point(at),
            completed: count(sums.completed),
            failed: count(sums.failed),
            dead: count(sums.dead),
            waited: Duration::from_micros(count(sums.waited)),
            ran: Duration::from_micros(count(sums.ran)),
            waits: counts(&sums.waits),
            runs: counts(&sums.runs),
        }
    }

    /// How many attempts there were.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.completed.saturating_add(self.failed)
    }

    /// How long jobs had been due when an attempt began, on average.
    #[must_use]
    pub fn mean_wait(&self) -> Option<Duration> {
        mean(self.waited, self.attempts())
    }

    /// How long attempts ran, on average.
    #[must_use]
    pub fn mean_run(&self) -> Option<Duration> {
        mean(self.ran, self.attempts())
    }

    /// The time that this fraction of the attempts waited for at most: 0.5 is the median. It is estimated from counts whose
    /// bounds double, from 1 ms to 70 minutes, and so between half and twice the exact value; what waited for longer counts as up to
    /// 140 minutes.
    #[must_use]
    pub fn wait_quantile(&self, fraction: f64) -> Option<Duration> {
        quantile(&self.waits, fraction)
    }

    /// The time that this fraction of the attempts ran for at most, as [`wait_quantile`](Self::wait_quantile).
    #[must_use]
    pub fn run_quantile(&self, fraction: f64) -> Option<Duration> {
        quantile(&self.runs, fraction)
    }
}

fn mean(sum: Duration, attempts: u64) -> Option<Duration> {
    let micros = u64::try_from(sum.as_micros()).unwrap_or(u64::MAX);
    Some(Duration::from_micros(micros.checked_div(attempts)?))
}

/// As `lockapi.history_quantile`.
#[allow(clippy::cast_precision_loss, reason = "an estimate")]
fn quantile(counts: &[u64], fraction: f64) -> Option<Duration> {
    let total: f64 = counts.iter().map(|count| *count as f64).sum();
    let wanted = fraction.clamp(0.0, 1.0) * total;
    let (mut before, mut low, mut high) = (0.0, 0.0, 1.0);
    for count in counts.iter().map(|count| *count as f64) {
        if count > 0.0 && before + count >= wanted {
            let millis = low + (high - low) * (wanted - before).max(0.0) / count;
            return Some(Duration::from_secs_f64(millis / 1000.0));
        }
        before += count;
        low = high;
        high *= 2.0;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_bounds_that_double() {
        for (micros, expected) in [
            (i64::MIN, 0),
            (0, 0),
            (1000, 0),
            (1001, 1),
            (2000, 1),
            (2001, 2),
            (4000, 2),
            (1 << 22, 13),
            (1000 << 22, 22),
            ((1000 << 22) + 1, 23),
            (i64::MAX, 23),
        ] {
            assert_eq!(bucket(micros), expected, "{micros}");
        }
    }

    #[test]
    fn quantiles_are_near() {
        let mut sums = HistorySums::default();
        for millis in 1..=1000 {
            sums.count(Attempted::Completed, millis * 1000, 0);
        }
        let point = HistoryPoint::new(0, &sums);
        for fraction in [0.01, 0.1, 0.5, 0.9, 0.95, 1.0] {
            let exact = fraction;
            let found = point.wait_quantile(fraction).unwrap().as_secs_f64();
            assert!(
                found >= exact / 2.0 && found <= exact * 2.0,
                "{fraction}: {found}"
            );
        }
        assert_eq!(point.mean_wait(), Some(Duration::from_micros(500_500)));
        assert!(point.run_quantile(1.0).unwrap() <= Duration::from_millis(1));
        let none = HistoryPoint::new(0, &HistorySums::default());
        assert_eq!((none.mean_run(), none.run_quantile(0.5)), (None, None));
    }
}
