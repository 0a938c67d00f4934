//! What the database knows, as a value.

mod locks;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use rustc_hash::{FxHashMap, FxHashSet};

use locks::Holder;

use crate::admin::{ForceRelease, Notes};
use crate::engine::Heard;
use crate::id;
use crate::idempotency::model::Answers;
use crate::key::LockId;
use crate::lease::{Abandon, Acquire, Acquired, Peeked, Release, Renew, Table, Take, Taken};
use crate::limit::{Level, Limits};
use crate::mutex::{LockMode, SKIPPED};
use crate::queue::Jobs;
use crate::schedule::Schedules;

const DAY: i64 = 24 * 3600 * 1_000_000;

/// When epochs are counted from, in seconds since 1970.
const YEAR_2025: i64 = 1_735_689_600;
/// Where the clock is behind the epoch before, the next is so much later, in seconds.
const EPOCH_GAP: i64 = 32_768;
/// Unless it is less than that behind: then the next is the following number.
const NEAR: i64 = 60;
/// Ids start so far ahead of an epoch's beginning, in milliseconds.
const ID_LEAD: i64 = 90_000;
/// And so much further if it follows upon another at once; each 16 ms between them make up for one.
const ID_LEAD_STEP: i64 = 2500;
/// For each second of an epoch's number the sequences go on by a power of two.
const SECOND_BITS: u32 = 21;
/// And those of jobs by another.
const JOB_BITS: u32 = 24;

/// The time of limits starts a day after 1970, so that the beginning of a model is not its zero.
const LIMITS_SINCE: i64 = DAY;

/// The state that operations change: the model of the tables and of the server's lock table.
///
/// It never reads a clock; set [`now`](Self::now) before running an operation.
#[derive(Clone, Debug, Default)]
pub struct ModelState {
    /// What the server's clock shows, in microseconds since 1970. It may be set, as any clock of the
    /// time of day.
    pub now: i64,
    /// Whether waits are to time out.
    pub(crate) late: bool,
    epoch: Epoch,
    /// Whether the tokens that a crash took back were left out.
    since_crash: bool,
    fences: i64,
    /// The holders of locks; free locks are not listed.
    locks: FxHashMap<LockId, Vec<Holder>>,
    /// Sessions that wait for a lock, in the order of arrival.
    queues: FxHashMap<LockId, VecDeque<(u64, LockMode)>>,
    /// Locks that were given to a session while it waited, and that it does not know of yet.
    given: FxHashSet<(LockId, u64)>,
    /// Sessions whose wait is interrupted.
    interrupted: FxHashSet<u64>,
    pub(super) leases: Table,
    /// The highest token that was checked in, and when.
    pub(super) marks: BTreeMap<(String, String), (i64, i64)>,
    /// When sessions began.
    begun: FxHashMap<u64, i64>,
    markers: FxHashMap<u64, String>,
    /// The marks of sessions that hold locks.
    session_marks: FxHashMap<u64, i64>,
    /// Locks of transactions of the probe.
    trials: FxHashMap<u64, LockId>,
    pub(crate) jobs: Jobs,
    pub(crate) tasks: Schedules,
    pub(crate) notes: Notes,
    pub(crate) heard: Heard,
    limits: Limits,
    pub(crate) answers: Answers,
    pub(crate) ids: id::Tables,
}

/// What the server began that the state is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    /// Larger than that of each earlier epoch.
    pub(crate) number: i64,
    /// That of the first epoch.
    pub(crate) first: i64,
    /// When it began; the first, before which nothing was granted, always has.
    pub(crate) begun_at: i64,
    /// How far ahead of that ids start, in milliseconds.
    pub(crate) id_lead: i64,
}

impl Default for Epoch {
    fn default() -> Self {
        Self {
            number: 1,
            first: 1,
            begun_at: i64::MIN,
            id_lead: ID_LEAD,
        }
    }
}

impl ModelState {
    /// How many worker numbers of these ids are held.
    #[must_use]
    pub fn id_workers(&self, namespace: &str, name: &str) -> usize {
        self.ids.held(self.now, namespace, name)
    }

    /// The epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Enters the epoch: the first to do so after a crash leaves out the tokens that it took back.
    pub(crate) fn enter_epoch(&mut self) -> i64 {
        if !self.since_crash {
            self.since_crash = true;
            self.skip_fences(SKIPPED);
        }
        self.epoch.number
    }

    /// The server has crashed.
    pub(crate) fn crash(&mut self) {
        self.since_crash = false;
        self.jobs.forget_reports();
    }

    /// The state of a standby becomes that of the primary: no session has anything there, and an epoch
    /// begins.
    pub(crate) fn promote(&mut self, now: i64) {
        self.now = now;
        self.crash();
        self.locks.clear();
        self.queues.clear();
        self.given.clear();
        self.interrupted.clear();
        self.begun.clear();
        self.markers.clear();
        self.session_marks.clear();
        self.trials.clear();
        self.heard = Heard::default();
        let seconds = now / 1_000_000 - YEAR_2025;
        let former = self.epoch.number;
        self.epoch.number = if seconds > former {
            seconds
        } else if former - seconds < NEAR {
            former + 1
        } else {
            former + EPOCH_GAP
        };
        let since = now.saturating_sub(self.epoch.begun_at).max(0) / 1000;
        let lead = self.epoch.id_lead + ID_LEAD_STEP - since / 16;
        self.epoch.id_lead = lead.max(ID_LEAD);
        self.epoch.begun_at = now;
        let token = self.epoch.number << SECOND_BITS;
        self.fences = self.fences.max(token);
        let since_first = self.epoch.number - self.epoch.first;
        self.jobs.begin_epoch(token, since_first << JOB_BITS);
    }

    /// The next value of the token sequence.
    pub(crate) fn next_fence(&mut self) -> i64 {
        next(&mut self.fences)
    }

    /// Leaves out values of the token sequence.
    pub(crate) fn skip_fences(&mut self, values: i64) {
        self.fences += values;
    }

    /// The last value of the token sequence.
    #[cfg(feature = "suite")]
    pub(crate) fn last_fence(&self) -> i64 {
        self.fences
    }

    pub(crate) fn begin_session(&mut self, session: u64, now: i64) {
        self.begun.insert(session, now);
    }

    /// Releases what a session that ended had locked.
    pub fn end_session(&mut self, session: u64) {
        self.begun.remove(&session);
        self.stop_waiting(session);
        self.release_all(session);
        self.markers.remove(&session);
        self.session_marks.remove(&session);
        self.trials.remove(&session);
        self.heard.unlisten(session);
    }

    /// Whether the session has that mark.
    pub(crate) fn has_mark(&self, session: u64, mark: i64) -> bool {
        self.session_marks.get(&session) == Some(&mark)
    }

    /// Notes the mark of a session.
    pub fn set_mark(&mut self, session: u64, mark: i64) {
        self.session_marks.insert(session, mark);
    }

    /// Sets the session's marker unless `marker` is empty, and answers it.
    pub(crate) fn marker(&mut self, session: u64, marker: &str) -> String {
        let stored = self.markers.entry(session).or_default();
        match marker {
            "" => {}
            "-" => stored.clear(),
            marker => marker.clone_into(stored),
        }
        stored.clone()
    }

    /// The session has a lock for the transaction that it is in.
    pub(crate) fn begin_trial(&mut self, session: u64, lock: LockId) {
        self.trials.insert(session, lock);
    }

    /// Gives back what the session had for a transaction.
    pub(crate) fn end_trial(&mut self, session: u64) {
        if let Some(lock) = self.trials.remove(&session) {
            self.unlock(lock, LockMode::Exclusive, session);
        }
    }

    /// Notifies the sessions that listen; answers of how many topics.
    pub(crate) fn notify(&mut self, topics: impl IntoIterator<Item = i64>) -> i64 {
        self.heard.send(topics)
    }

    pub(crate) fn mark_fence(&mut self, namespace: &str, key: &str, fence: i64) -> bool {
        let mark = self
            .marks
            .entry((namespace.to_owned(), key.to_owned()))
            .or_insert((fence, self.now));
        if mark.0 > fence {
            return false;
        }
        *mark = (fence, self.now);
        true
    }

    /// Answers how many were deleted, and what was looked at.
    pub(crate) fn sweep_marks(
        &mut self,
        after: &(String, String),
        most: i64,
    ) -> (i64, Vec<(String, String)>) {
        let begun = |session| self.begun.get(session).copied().unwrap_or(i64::MIN);
        let holders = self.locks.values().flatten();
        let oldest = holders.map(|one| begun(&one.session)).min();
        let before = oldest.unwrap_or(i64::MAX).min(self.now).saturating_sub(DAY);
        let most = usize::try_from(most).unwrap_or_default();
        let part = self.marks.range((Excluded(after), Unbounded)).take(most);
        let part: Vec<_> = part
            .map(|(row_key, (_, at))| (row_key.clone(), *at))
            .collect();
        let marks = self.marks.len();
        for (row_key, _) in part.iter().filter(|(_, at)| *at < before) {
            self.marks.remove(row_key);
        }
        let deleted = i64::try_from(marks - self.marks.len()).unwrap_or(i64::MAX);
        (
            deleted,
            part.into_iter().map(|(row_key, _)| row_key).collect(),
        )
    }

    pub(crate) fn acquire_lease(&mut self, request: &Acquire) -> Acquired {
        let fences = &mut self.fences;
        let begun_at = self.epoch.begun_at;
        self.leases
            .acquire(self.now, begun_at, || next(fences), request)
    }

    pub(crate) fn take_slots(&mut self, batch: &[Take]) -> Vec<Taken> {
        let fences = &mut self.fences;
        let begun_at = self.epoch.begun_at;
        self.leases.take(self.now, begun_at, || next(fences), batch)
    }

    pub(crate) fn renew_lease(&mut self, request: &Renew, slot: i64) -> bool {
        let row_key = (request.namespace.clone(), request.key.clone(), slot);
        self.leases
            .renew(self.now, &row_key, request.fence, request.ttl)
    }

    pub(crate) fn release_lease(&mut self, request: &Release, slot: i64) -> bool {
        let row_key = (request.namespace.clone(), request.key.clone(), slot);
        self.leases
            .release(self.now, self.epoch.begun_at, &row_key, request.fence)
    }

    /// The slots of a key that are held now, and by whom: 0 is the lease, 1 and more are the permits
    /// of a semaphore, -1 is the leader, -2 a leased mutex.
    #[must_use]
    pub fn slots_held(&self, namespace: &str, key: &str) -> Vec<(i64, Peeked)> {
        self.leases.held(self.now, namespace, key)
    }

    /// Who holds a lease now.
    #[must_use]
    pub fn lease_held(&self, namespace: &str, key: &str) -> Option<Peeked> {
        self.peek_lease(namespace, key, 0)
    }

    pub(crate) fn peek_lease(&self, namespace: &str, key: &str, slot: i64) -> Option<Peeked> {
        let row_key = (namespace.to_owned(), key.to_owned(), slot);
        self.leases.peek(self.now, &row_key)
    }

    /// The rows of leases, with namespace, key and slot, and with what is held of them.
    pub(crate) fn all_leases(&self) -> impl Iterator<Item = (&str, &str, i64, Option<Peeked>)> {
        self.leases.all(self.now)
    }

    /// Takes a lease, in all its slots, from its holders, and answers who they were.
    pub(crate) fn force_release(&mut self, request: &ForceRelease) -> Vec<String> {
        let (now, fences) = (self.now, &mut self.fences);
        let begun_at = self.epoch.begun_at;
        let next = || next(fences);
        let owners =
            self.leases
                .force_release(now, begun_at, next, &request.namespace, &request.key);
        for owner in &owners {
            let target = format!("{} of {owner}", request.key);
            self.notes.log(
                now,
                &request.namespace,
                "release lease",
                target,
                &request.reason,
            );
        }
        owners
    }

    pub(crate) fn sweep_leases(
        &mut self,
        after: &(String, String, i64),
        most: i64,
    ) -> (i64, Vec<(String, String, i64)>) {
        self.leases
            .sweep(self.now, self.epoch.begun_at, after, most)
    }

    pub(crate) fn abandon_lease(&mut self, request: &Abandon) -> bool {
        self.leases.abandon(self.now, self.epoch.begun_at, request)
    }

    /// The limits, and the time in nanoseconds.
    pub(crate) fn limits(&mut self) -> (&mut Limits, i64) {
        let now = self.now.saturating_add(LIMITS_SINCE).saturating_mul(1000);
        (&mut self.limits, now)
    }

    /// The state of a limit; `None` when it has no row.
    #[must_use]
    pub fn limit(&self, namespace: &str, key: &str) -> Option<Level> {
        self.limits.row_of(namespace, key)
    }
}

/// The next value of the token sequence.
fn next(fences: &mut i64) -> i64 {
    *fences += 1;
    *fences
}
