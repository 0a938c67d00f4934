//! What is notified is acted on at once: whoever waits for a push, or for a lock, has it before the next poll.

use std::collections::BTreeMap;
use std::time::Duration;

use super::turns::FREE;
use super::{History, State};
use crate::runtime::Time;
use crate::server::Seen;

/// Within this time of a push its job goes to whoever waits.
const PUSHED: Duration = Duration::from_millis(300);
/// Within this time of its release a lock goes to whoever waits at the server …
const RELEASED: Duration = Duration::from_millis(950);
/// … and if a process waits for more locks than it has sessions to wait, for each of them so much later.
const TURN: Duration = Duration::from_millis(282);

/// What is promised then.
pub(super) const NOTIFIED: &str = "what is notified is acted on before the next poll";

/// What is there for those who wait.
#[derive(Default)]
pub(super) struct Waits {
    /// Jobs that nobody has ever had, and since when they are due.
    jobs: BTreeMap<i64, Time>,
    /// Locks that nobody holds, and since when.
    pub(super) locks: BTreeMap<(&'static str, String), Time>,
}

impl History {
    /// Whether nothing is in the way of notifications; in some plans they are lost.
    pub(super) fn is_notified(&self) -> bool {
        self.in_order && !self.deaf && self.flawless
    }

    /// Looks at the jobs that are due, and at the locks that nobody holds.
    pub(super) fn check_waits(&self, seen: &Seen) {
        if !self.is_notified() {
            return;
        }
        let mut state = self.lock();
        let what = self.job_waits(&mut state, seen);
        let what = what.or_else(|| self.lock_waits(&mut state));
        let waits = &state.waits;
        let job_waits = !waits.jobs.is_empty() && state.turns.claims(FREE).next().is_some();
        drop(state);
        if job_waits {
            self.runtime.looks_at(NOTIFIED);
        }
        if let Some(what) = what {
            self.runtime.violate(NOTIFIED, what);
        }
    }

    /// A job that was pushed while somebody waited.
    fn job_waits(&self, state: &mut State, seen: &Seen) -> Option<String> {
        // What a transaction has taken is there again once it is rolled back, and nobody is told; what it pushes is
        // there later than it is due. The next poll finds both.
        if self.checks_in {
            return None;
        }
        let now = self.runtime.now();
        let new = seen.jobs.iter().filter(|job| job.queue == FREE);
        let new = new.filter_map(|job| Some((job.id, now.saturating_sub(job.new_for?))));
        let jobs: BTreeMap<_, _> = new.collect();
        let late = |since: &Time| now.saturating_sub(*since) > PUSHED;
        let job = jobs.iter().find(|(_, since)| late(since));
        let job = job.map(|(job, since)| (*job, *since));
        state.waits.jobs = jobs;
        let mut claims = state.turns.claims(FREE);
        let claim = claims.find(late)?;
        let (job, since) = job?;
        Some(format!(
            "job {job} is due since {since:?}, and claimed since {claim:?}"
        ))
    }

    /// A lock that was released while somebody waited.
    fn lock_waits(&self, state: &mut State) -> Option<String> {
        let most = RELEASED + TURN * self.locks_waited_for?;
        let now = self.runtime.now();
        let is_free = |name: &(&'static str, String)| {
            let place = state.places.get(name);
            place.is_none_or(|place| place.open.is_empty())
        };
        let known = &state.waits.locks;
        let waiters = state.turns.waiters();
        let free = waiters.filter(|(name, since)| is_free(name) && *since < now);
        let free = free.map(|(name, since)| {
            let free = known.get(name).copied().unwrap_or(now);
            (name.clone(), free.max(since))
        });
        let locks: BTreeMap<_, _> = free.collect();
        let mut late = locks.iter();
        let late = late.find(|(_, since)| now.saturating_sub(**since) > most);
        let what = late.map(|(name, since)| format!("{name:?} is free since {since:?}"));
        state.waits.locks = locks;
        what
    }
}
