//! How the work on jobs ends: what costs an attempt, and that a delivery does not stay once its handler has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use super::History;
use crate::runtime::{ProgramId, Time};
use crate::server::Seen;

/// Within this time the server knows how a handler has ended.
const SETTLED: Duration = Duration::from_secs(2);

/// The deliveries whose handlers have ended, by token, and when they did.
pub(super) type Ended = BTreeMap<i64, Time>;

/// A handler of a worker: if this is dropped before it ends, so was the handler.
pub(crate) struct Attempt {
    history: History,
    job: u64,
    token: i64,
    program: ProgramId,
    has_ended: bool,
}

impl Attempt {
    /// It ends now, with an answer or a panic.
    pub(crate) fn ends(&mut self) {
        self.has_ended = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.history.runtime.is_alive(self.program) {
            return;
        }
        if !self.has_ended {
            self.history.uncounted(self.job);
        }
        let now = self.history.runtime.now();
        self.history.lock().ended.insert(self.token, now);
    }
}

impl History {
    /// A handler of a worker begins. One that somebody else runs may be dropped after its job was given back.
    pub(crate) fn attempt(
        &self,
        (job, token): (u64, i64),
        program: ProgramId,
        spawned: bool,
    ) -> Attempt {
        if spawned {
            self.may_end_unseen(job);
        }
        Attempt {
            history: self.clone(),
            job,
            token,
            program,
            has_ended: false,
        }
    }

    /// This delivery of a job, which is known by now, was told to be for this attempt: of those before it, all were
    /// attempts that were neither released nor put off without a failure.
    pub(crate) fn counts(&self, job: u64, attempt: u32) {
        // What is done in a transaction may be undone.
        if !self.answers || self.checks_in {
            return;
        }
        let state = self.lock();
        let Some(known) = state.jobs.get(&job) else {
            return;
        };
        let attempts = known.deliveries.saturating_sub(known.uncounted);
        let is_known = !known.has_unknown;
        drop(state);
        let promise = "what is released or snoozed is no attempt, and all else is";
        if is_known && attempts > 1 {
            self.runtime.looks_at(promise);
        }
        if is_known && attempts != u64::from(attempt) {
            let what = format!("job {job}: attempt {attempt}, with which {attempts} were made");
            self.runtime.violate(promise, what);
        }
    }

    /// It was delivered to somebody of whom it is not known when he begins, and when he ends.
    pub(crate) fn may_end_unseen(&self, job: u64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.has_unknown = true;
        }
    }

    /// Its latest delivery is about to be released or put off, which costs no attempt.
    pub(crate) fn uncounted(&self, job: u64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.uncounted += 1;
        }
    }

    /// Whoever was to complete it has left the call: it is completed nevertheless, unless the delivery was lost.
    pub(crate) fn left_ack(&self, job: u64, token: i64) {
        if let Some(known) = self.lock().jobs.get_mut(&job)
            && !known.by_hand.contains(&token)
        {
            known.handled = Some(token);
        }
    }

    /// Looks at the deliveries that are open: none is of a handler that has ended.
    pub(super) fn check_settled(&self, seen: &Seen) {
        if !self.in_order || self.checks_in || !self.flawless {
            return;
        }
        let now = self.runtime.now();
        let state = self.lock();
        let tokens = seen.jobs.iter().filter_map(|job| job.delivery);
        let promise = "what a handler has ended is done, or goes back";
        if !state.ended.is_empty() {
            self.runtime.looks_at(promise);
        }
        let ended = tokens.filter_map(|(token, _)| Some((token, *state.ended.get(&token)?)));
        let mut late = ended.filter(|(_, at)| now.saturating_sub(*at) > SETTLED);
        let what = late
            .next()
            .map(|(token, at)| format!("{token}: its handler ended at {at:?}"));
        drop(state);
        if let Some(what) = what {
            self.runtime.violate(promise, what);
        }
    }
}
