//! What is told of jobs that have ended, and queues that are drained.

use std::time::Duration;

use lockapi::queue::{Drained, JobResult};

use super::History;
use super::jobs::Job;
use super::uses::SOON;
use crate::runtime::Time;

/// Within this time of a completion whoever waits for the result has it, where nothing is in the way.
const TOLD: Duration = Duration::from_millis(2_500);

/// So long after nobody waits for its answer any more a message may arrive.
const UNDER_WAY: Duration = Duration::from_secs(60);

/// What is promised of a queue that is drained.
pub(super) const DELIVERS_NOTHING: &str = "a queue that is drained delivers nothing";
/// The queue whose jobs have results.
const QUEUE: &str = "results";

/// What is known of the result of a job.
#[derive(Default)]
pub(super) struct Results {
    /// The deliveries whose completion was sent, each with its token as the result.
    sent: Vec<i64>,
    told: Option<i64>,
}

/// Of the queue of these jobs, which is drained now and then.
#[derive(Default)]
pub(super) struct Drains {
    /// When a complete drain ended, if nobody has asked to resume the queue since.
    since: Option<Time>,
    /// Until when each attempt to resume it may have an effect; of those that go on nobody knows.
    resumes: Vec<Option<Time>>,
}

/// An attempt to resume a queue, until it is answered.
pub(crate) struct Resuming {
    history: History,
    number: usize,
    /// How long after its end it may have an effect.
    lasts: Duration,
}

impl Resuming {
    /// It was answered: it has no effect after that.
    pub(crate) fn done(mut self) {
        self.lasts = Duration::ZERO;
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        let until = self.history.runtime.now() + self.lasts;
        if let Some(attempt) = self.history.lock().drains.resumes.get_mut(self.number) {
            *attempt = Some(until);
        }
    }
}

impl Results {
    /// Whether what was told is wrong, of a job that was known to be pushed, or completed, before that was asked.
    fn are_wrong(&self, told: &JobResult<i64>, (pushed, completed): (bool, bool)) -> bool {
        match told {
            JobResult::Value(value) => {
                !self.sent.contains(value) || self.told.is_some_and(|before| before != *value)
            }
            JobResult::Pending => completed,
            JobResult::Unknown => pushed,
            // Nobody cancels or rejects it, and all who complete it set a result.
            _ => true,
        }
    }
}

impl History {
    /// Somebody is about to push a job that will have a result; answers what the payload has to be.
    pub(crate) fn push_with_result(&self) -> u64 {
        let now = self.runtime.now();
        let mut state = self.lock();
        let number = state.add_job(now, &[], None);
        state.results.insert(number, Results::default());
        number
    }

    /// A delivery is about to complete its job, with its token as the result.
    pub(crate) fn completes(&self, job: u64, token: i64) {
        if let Some(results) = self.lock().results.get_mut(&job) {
            results.sent.push(token);
        }
    }

    /// What became of a job was told to somebody who asked at `asked`, and waited for so long at most.
    pub(crate) fn told(&self, job: u64, (asked, at_most): (Time, Duration), told: &JobResult<i64>) {
        self.answered("result");
        let now = self.runtime.now();
        let mut state = self.lock();
        // An answer of the former primary may come late.
        if state.is_lost((asked, now)) {
            return;
        }
        let Some(known) = state.jobs.get(&job) else {
            return;
        };
        let pushed = known.is_pushed(asked, &state);
        let acked = known.acked(&state);
        let completed = acked.is_some_and(|at| at < asked);
        let Some(results) = state.results.get(&job) else {
            return;
        };
        // Clocks of processes differ by a hundredth.
        let early = told.is_pending() && now < asked + at_most.mul_f64(0.98);
        let wrong = early || results.are_wrong(told, (pushed, completed));
        let late = if told.is_pending() {
            self.undisturbed && now > asked + at_most.mul_f64(1.015) + SOON
        } else {
            self.in_order && acked.is_some_and(|at| now > at.max(asked) + TOLD)
        };
        let in_time = "who waits for a result is told in time";
        if self.in_order && acked.is_some() {
            self.runtime.looks_at(in_time);
        }
        let what = format!(
            "job {job}: {told:?} to a question of {asked:?}; {:?} were sent, {:?} was told before",
            results.sent, results.told
        );
        // What was told may be lost.
        let lasts = state.fail_overs.is_empty();
        if let (JobResult::Value(value), Some(results), true) =
            (told, state.results.get_mut(&job), lasts)
        {
            results.told = Some(*value);
        }
        drop(state);
        if wrong {
            self.runtime.violate("what is told is true", what);
        } else if late {
            self.runtime.violate(in_time, what);
        }
    }

    /// A complete drain of their queue was asked for at `asked`, and has ended.
    pub(crate) fn drained(&self, asked: Time) {
        let now = self.runtime.now();
        let mut state = self.lock();
        let drains = &mut state.drains;
        let ended = |until: &Option<Time>| until.is_some_and(|until| until < asked);
        // Somebody may have resumed it meanwhile, or another server has taken over that knows of no pause.
        if !drains.resumes.iter().all(ended) || self.replaced {
            return;
        }
        drains.since = Some(now);
        let with_results = state.results.keys().filter_map(|job| state.jobs.get(job));
        let running = with_results.filter(|job| job.runs(&self.runtime, &state));
        let running: Vec<_> = running.map(Job::holders).collect();
        let is_wanted = state.turns.claims(QUEUE).next().is_some();
        drop(state);
        self.answered("drain");
        if is_wanted {
            self.runtime.looks_at(DELIVERS_NOTHING);
        }
        self.runtime.looks_at("nothing of a drained queue runs");
        // Where the clock is set leases end before their holders know.
        if !running.is_empty() && !self.stepped {
            let what = format!("drained since {asked:?}, and {running:?} run");
            self.runtime
                .violate("nothing of a drained queue runs", what);
        }
    }

    /// A drain that was asked for at `asked` did not become complete, although all who have jobs of the queue end them.
    pub(crate) fn not_drained(&self, asked: Time, drained: &Drained) {
        let state = self.lock();
        let ended = |until: &Option<Time>| until.is_some_and(|until| until < asked);
        let is_alone = state.drains.resumes.iter().all(ended);
        drop(state);
        if is_alone {
            let what = format!("asked for at {asked:?}: {drained:?}");
            self.runtime.violate("a drain becomes complete", what);
        }
    }

    /// Somebody is about to resume it.
    pub(crate) fn resumes(&self) -> Resuming {
        let mut state = self.lock();
        let drains = &mut state.drains;
        drains.since = None;
        drains.resumes.push(None);
        let number = drains.resumes.len() - 1;
        drop(state);
        let history = self.clone();
        Resuming {
            history,
            number,
            lasts: UNDER_WAY,
        }
    }
}

/// What is wrong with a delivery to a claim that began at `asked`: the queue was drained.
pub(super) fn check_drained(drains: &Drains, asked: Time) -> Option<String> {
    let since = drains.since.filter(|since| *since < asked)?;
    Some(format!("drained at {since:?}, claimed at {asked:?}"))
}
