//! Jobs that are rejected, expire, have few attempts, and that operators change; and what is told of them.

use std::time::Duration;

use lockapi::queue::{DeadLetter, Delivery, JobResult};

use super::History;
use crate::runtime::Time;

/// What is known of such a job besides what is known of all.
#[expect(clippy::struct_excessive_bools, reason = "each is of its own")]
pub(super) struct Trial {
    /// How often it may be delivered: as it was pushed, and as it was changed since.
    pushed_most: u32,
    most: u32,
    /// For how long it is due before it expires, and how long after its push that is.
    ttl: Option<Duration>,
    delay: Duration,
    /// The deliveries whose completion was sent, each with its token as the result.
    sent: Vec<i64>,
    told: Option<i64>,
    rejected: bool,
    /// The last delivery whose handler has rejected it.
    rejected_under: i64,
    cancels: bool,
    /// Whether somebody may have put it back, or thrown it away.
    redriven: bool,
    discarded: bool,
    /// Whether somebody may have moved it, alone or with others; when it was put off, and until when.
    moved: bool,
    many: bool,
    put_off: Option<(Time, Time)>,
}

/// How a job is pushed.
#[derive(Clone, Copy)]
pub(crate) struct Trying {
    pub(crate) most: u32,
    pub(crate) ttl: Option<Duration>,
    pub(crate) delay: Duration,
    /// Whether somebody may cancel it with others.
    pub(crate) tagged: bool,
    /// How many attempts somebody may give it with others, who then may make it due as well.
    pub(crate) changed: Option<u32>,
}

impl History {
    /// Somebody is about to push such a job; answers what the payload has to be.
    pub(crate) fn push_trial(&self, trying: Trying) -> u64 {
        let now = self.runtime.now();
        let mut state = self.lock();
        let number = state.add_job(now, &[], None);
        let trial = Trial {
            pushed_most: trying.most,
            most: trying.changed.unwrap_or(trying.most),
            // The server counts whole microseconds.
            ttl: trying.ttl.map(whole),
            delay: whole(trying.delay),
            sent: Vec::new(),
            told: None,
            rejected: false,
            rejected_under: i64::MAX,
            cancels: trying.tagged,
            redriven: false,
            discarded: false,
            moved: trying.changed.is_some(),
            many: trying.changed.is_some(),
            put_off: None,
        };
        state.trials.insert(number, trial);
        drop(state);
        if trying.tagged {
            self.may_end(number);
        }
        number
    }

    fn change(&self, job: u64, change: impl FnOnce(&mut Trial)) {
        if let Some(trial) = self.lock().trials.get_mut(&job) {
            change(trial);
        }
    }

    /// A delivery is about to complete its job, with its token as the result.
    pub(crate) fn trial_completes(&self, job: u64, token: i64) {
        self.change(job, |trial| trial.sent.push(token));
    }

    /// The handler of a delivery is about to reject its job.
    pub(crate) fn trial_rejects(&self, job: u64, token: i64) {
        self.change(job, |trial| {
            (trial.rejected, trial.rejected_under) = (true, token);
        });
    }

    pub(crate) fn trial_cancels(&self, job: u64) {
        self.change(job, |trial| trial.cancels = true);
    }

    /// Somebody is about to put a job off, or back, or to make it due.
    pub(crate) fn moves_trial(&self, job: u64) {
        self.change(job, |trial| {
            trial.moved = true;
            trial.put_off = None;
        });
    }

    /// It was put off until then, if nobody else has moved it.
    pub(crate) fn put_off_trial(&self, job: u64, until: Time) {
        let now = self.runtime.now();
        self.change(job, |trial| {
            trial.put_off = (!trial.many).then_some((now, until));
        });
    }

    pub(crate) fn redrives_trial(&self, job: u64) {
        self.change(job, |trial| {
            trial.redriven = true;
            trial.put_off = None;
        });
    }

    pub(crate) fn discards_trial(&self, job: u64) {
        self.change(job, |trial| trial.discarded = true);
        self.may_end(job);
    }

    /// A job arrives as it was pushed, in time, and as often as it may; `nth` is which of all deliveries it is, and when
    /// the server made it.
    pub(crate) fn arrived(&self, job: u64, delivery: &Delivery, nth: usize, made: Time) {
        let now = self.runtime.now();
        let state = self.lock();
        let (Some(trial), Some(known)) = (state.trials.get(&job), state.jobs.get(&job)) else {
            return;
        };
        let most = trial.most;
        let header = delivery.header("number");
        let is_same = header == Some(&*job.to_string())
            && (trial.pushed_most..=most).contains(&delivery.max_attempts());
        // The server's times are those of the runtime, unless its clock is set; a push came before it was answered.
        let unset = !self.stepped && !self.replaced;
        let expires = trial
            .ttl
            .filter(|_| unset && nth == 1 && !trial.moved && !trial.redriven)
            .map(|ttl| known.pushed.1 + trial.delay + ttl);
        let is_pushed = known.is_pushed(now, &state);
        let expired = expires.filter(|at| is_pushed && *at < made);
        let early = trial
            .put_off
            .filter(|(since, until)| unset && *since < made && now < *until);
        let what = || {
            format!(
                "job {job}, delivered at {made:?} the {nth}th time: {delivery:?}, {:?}",
                trial.put_off
            )
        };
        let token = delivery.ticket().token;
        // In plans in which somebody leaves, the answer may not be sent.
        let rejected = self.is_plain() && trial.rejected_under < token && !trial.redriven;
        let wrong = if rejected {
            Some(("what is rejected is not delivered again", what()))
        } else if !is_same {
            Some(("a job arrives as it was pushed", what()))
        } else if expired.is_some() {
            Some(("what has expired is not delivered", what()))
        } else {
            early.map(|_| ("no job is delivered before its time", what()))
        };
        if trial.ttl.is_some() && unset && nth == 1 {
            self.runtime.looks_at("what has expired is not delivered");
        }
        if trial.put_off.is_some() && unset {
            self.runtime.looks_at("no job is delivered before its time");
        }
        drop(state);
        self.attempted(job, delivery.attempt(), most);
        if let Some((promise, what)) = wrong {
            self.runtime.violate(promise, what);
        }
    }

    /// A dead letter was rejected, had its attempts, or has expired.
    pub(crate) fn check_dead(&self, job: u64, letter: &DeadLetter) {
        self.answered("dead letter");
        let state = self.lock();
        let Some(trial) = state.trials.get(&job) else {
            return;
        };
        let age = letter.failed_at.duration_since(letter.created_at);
        let expires = trial.ttl.map(|ttl| trial.delay + ttl);
        let is_in_time = expires.is_some_and(|at| trial.moved || age.is_ok_and(|age| age >= at));
        let may_die = if letter.attempts == 0 {
            is_in_time || self.stepped
        } else {
            trial.rejected || letter.attempts >= trial.pushed_most
        };
        let is_same = letter.headers.get("number") == Some(&*job.to_string());
        let what = format!(
            "job {job}: {letter:?}, {} attempts, {:?}",
            trial.pushed_most, trial.ttl
        );
        drop(state);
        if !may_die || !is_same {
            self.runtime.violate("no job dies that was not tried", what);
        }
    }

    /// What became of a job was told to somebody who asked at `asked`, and waited for so long at most.
    pub(crate) fn told_of_trial(
        &self,
        job: u64,
        (asked, at_most): (Time, Duration),
        told: &JobResult<i64>,
    ) {
        self.answered("outcome");
        let now = self.runtime.now();
        let mut state = self.lock();
        // An answer of the former primary may come late.
        if state.is_lost((asked, now)) {
            return;
        }
        let (Some(trial), Some(known)) = (state.trials.get(&job), state.jobs.get(&job)) else {
            return;
        };
        let pushed = known.is_pushed(asked, &state);
        let tried = known.deliveries >= u64::from(trial.pushed_most) || !self.is_plain();
        let wrong = match told {
            JobResult::Value(value) => {
                !trial.sent.contains(value) || trial.told.is_some_and(|before| before != *value)
            }
            // Clocks of processes differ by a hundredth.
            JobResult::Pending => now < asked + at_most.mul_f64(0.98),
            JobResult::Failed { .. } => !trial.rejected && !tried && trial.ttl.is_none(),
            JobResult::Cancelled => !trial.cancels,
            JobResult::Unknown => pushed && !trial.discarded,
            _ => true,
        };
        let what = format!(
            "job {job}: {told:?} to a question of {asked:?}; {:?} were sent, {:?} was told before, {} deliveries of {}",
            trial.sent, trial.told, known.deliveries, trial.pushed_most
        );
        let lasts = state.fail_overs.is_empty();
        if let (JobResult::Value(value), Some(trial), true) =
            (told, state.trials.get_mut(&job), lasts)
        {
            trial.told = Some(*value);
        }
        drop(state);
        if wrong {
            self.runtime.violate("what is told is true", what);
        }
    }
}

fn whole(time: Duration) -> Duration {
    time.saturating_sub(Duration::from_nanos(u64::from(time.subsec_nanos() % 1000)))
}
