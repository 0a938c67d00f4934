//! Of the jobs of a queue that are due, those of the higher priority are claimed first.

use std::collections::BTreeMap;
use std::time::Duration;

use lockapi::queue::Priority;

use super::History;
use crate::runtime::Time;

/// A claim may have begun so long before its deliveries were made.
const MARGIN: Duration = Duration::from_millis(50);
/// One claim in so many may begin with the low priorities, by chance; the documentation says sixteen. So many more may in any
/// history.
const LOW_FIRST: usize = 4;
const BY_CHANCE: usize = 4;

/// The jobs of a queue that have a priority.
#[derive(Default)]
pub(super) struct Prioritized {
    jobs: BTreeMap<u64, Ready>,
    /// What was claimed at a time.
    claims: BTreeMap<Time, Vec<Priority>>,
}

/// A job that waits.
struct Ready {
    priority: Priority,
    delay: Duration,
    /// When its push was answered, and when it was claimed first.
    since: Option<Time>,
    until: Option<Time>,
}

impl Prioritized {
    /// A push was answered.
    pub(super) fn pushed(&mut self, job: u64, at: Time) {
        if let Some(ready) = self.jobs.get_mut(&job) {
            ready.since.get_or_insert(at);
        }
    }
}

impl History {
    /// A job of this priority is about to be pushed, to be done after a delay.
    pub(crate) fn prioritizes(&self, job: u64, priority: Priority, delay: Duration) {
        let ready = Ready {
            priority,
            delay,
            since: None,
            until: None,
        };
        self.lock().prioritized.jobs.insert(job, ready);
    }

    /// It was delivered by a claim that the server did at that time.
    pub(crate) fn claimed(&self, job: u64, at: Time) {
        let mut state = self.lock();
        let prioritized = &mut state.prioritized;
        if let Some(ready) = prioritized.jobs.get_mut(&job) {
            ready.until = Some(ready.until.map_or(at, |until| until.min(at)));
            let claim = prioritized.claims.entry(at).or_default();
            claim.push(ready.priority);
        }
    }

    /// In the end: few claims left a job of a higher priority to a later one.
    pub(crate) fn check_priorities(&self) {
        // A claim whose answer nobody reads, or that is rolled back, has jobs of which nothing is known.
        if !self.tells_all || self.checks_in || self.stepped {
            return;
        }
        let state = self.lock();
        let all = &state.prioritized;
        let promise = "higher priorities are claimed first";
        let claims = all.claims.len();
        if claims > 0 {
            self.runtime.looks_at(promise);
        }
        let is_inverted = |(at, claimed): &(&Time, &Vec<Priority>)| {
            let last = claimed.iter().max();
            all.jobs.values().any(|job| {
                let was_ready = job
                    .since
                    .is_some_and(|since| since + job.delay + MARGIN < **at);
                let stayed = job.until.is_some_and(|until| until > **at);
                was_ready && stayed && Some(&job.priority) < last
            })
        };
        let inverted = all.claims.iter().filter(is_inverted).count();
        drop(state);
        if inverted > claims / LOW_FIRST + BY_CHANCE {
            let what = format!("{inverted} of {claims} claims left jobs of higher priorities");
            self.runtime.violate(promise, what);
        }
    }
}
