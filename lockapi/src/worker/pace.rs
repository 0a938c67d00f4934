//! How far ahead a worker claims, and how long it waits.

use std::time::Duration;

/// How much a new measurement counts against those before.
const WEIGHT: f64 = 0.125;
/// How many jobs are claimed ahead at most for each handler, unless another bound is set. Only jobs
/// that take less than a round trip come near it: for them the cost of a statement is what counts.
pub(super) const AHEAD: usize = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(3600);

/// How long handlers and round trips take.
///
/// Handlers end at the rate `concurrency / duration`; by Little's law so many end during a round
/// trip as have to be there for none to wait. Twice as many are claimed ahead, since neither time is
/// constant. Where a job takes longer than that it is less than one, and nothing waits in this
/// process that another could begin.
#[derive(Default)]
pub(super) struct Pace {
    duration: Option<f64>,
    round: Option<f64>,
}

impl Pace {
    pub(super) fn handled(&mut self, took: Duration) {
        blend(&mut self.duration, took);
    }

    pub(super) fn exchanged(&mut self, took: Duration) {
        blend(&mut self.round, took);
    }

    /// What was claimed ahead could not begin within this time.
    pub(super) fn stalled(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.duration = Some(self.duration.map_or(time, |mean| mean.max(time)));
    }

    /// How many jobs should be claimed beyond those that can begin at once.
    pub(super) fn ahead(&self, concurrency: usize, most: usize) -> usize {
        let (Some(duration), Some(round)) = (self.duration, self.round) else {
            return 0;
        };
        let many = 2.0 * as_f64(concurrency) * round;
        (1..=most)
            .take_while(|ahead| as_f64(*ahead) * duration <= many)
            .count()
    }
}

fn as_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

fn blend(mean: &mut Option<f64>, took: Duration) {
    let took = took.as_secs_f64();
    *mean = Some(mean.map_or(took, |mean| mean + WEIGHT * (took - mean)));
}

/// How long what was claimed ahead may wait for a handler before it goes back to the queue; a third of
/// the lease where that is less.
pub(super) const BEGUN_WITHIN: Duration = Duration::from_secs(1);

/// About how long a job waits that was claimed by a worker without a handler for it.
pub(super) const UNHANDLED: Duration = Duration::from_secs(30);

/// The pauses after failures in a row.
#[derive(Default)]
pub(super) struct Pauses(u32);

impl Pauses {
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.0.min(16));
        self.0 = self.0.saturating_add(1);
        pause.min(LAST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(super) fn end(&mut self) {
        self.0 = 0;
    }
}

/// The backoff unless another is set: doubles from a second to an hour, of which up to half is left
/// to chance.
pub(super) fn exponential(attempt: u32) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1 << attempt.saturating_sub(1).min(16));
    doubled.min(LAST_RETRY).mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(duration: Duration, round: Duration) -> Pace {
        let mut pace = Pace::default();
        pace.handled(duration);
        pace.exchanged(round);
        pace
    }

    #[test]
    fn long_jobs_are_not_claimed_ahead() {
        let (ms, second) = (Duration::from_millis(1), Duration::from_secs(1));
        assert_eq!(Pace::default().ahead(16, 16), 0, "nothing is known yet");
        assert_eq!(pace(second, ms).ahead(16, 16), 0);
        assert_eq!(pace(ms * 8, ms).ahead(16, 16), 4);
        assert_eq!(pace(Duration::ZERO, ms).ahead(16, 10), 10);
    }

    #[test]
    fn backoff_grows_and_is_bounded() {
        for attempt in [1, 2, 10, 1000, u32::MAX] {
            let time = exponential(attempt);
            assert!(time >= FIRST_RETRY / 2 && time <= LAST_RETRY, "{time:?}");
        }
        assert!(exponential(9) > exponential(4));
    }
}
