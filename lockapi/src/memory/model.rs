//! What the database knows, as a value.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::admin::{ForceRelease, Notes};
use crate::engine::Heard;
use crate::id;
use crate::key::LockId;
use crate::lease::{Abandon, Acquire, Acquired, Peeked, Release, Renew, Table, Take, Taken};
use crate::limit::{Level, Limits};
use crate::mutex::LockMode;
use crate::queue::Jobs;
use crate::schedule::Schedules;

const DAY: i64 = 24 * 3600 * 1_000_000;

/// The time of limits starts a day after 1970, so that the beginning of a model is not its zero.
const LIMITS_SINCE: i64 = DAY;

/// The state that operations change: the model of the tables and of the server's lock table.
///
/// It never reads a clock; whoever runs an operation sets [`now`](Self::now) first.
#[derive(Debug, Default)]
pub struct ModelState {
    /// What the server's clock shows, in microseconds since 1970. It may be set, as any clock of the
    /// time of day.
    pub now: i64,
    /// Whether waits are to time out.
    pub(crate) late: bool,
    fences: i64,
    /// Who holds a lock; nobody is not listed.
    locks: FxHashMap<LockId, Vec<Holder>>,
    /// Sessions that wait for a lock, in the order of arrival.
    queues: FxHashMap<LockId, VecDeque<(u64, LockMode)>>,
    /// Locks that were given to a session while it waited, and that it does not know of yet.
    given: FxHashSet<(LockId, u64)>,
    /// Sessions that were told to give up their wait.
    interrupted: FxHashSet<u64>,
    leases: Table,
    /// The highest token that was checked in, and when.
    marks: BTreeMap<(String, String), (i64, i64)>,
    /// When sessions began.
    begun: FxHashMap<u64, i64>,
    markers: FxHashMap<u64, String>,
    pub(crate) jobs: Jobs,
    pub(crate) tasks: Schedules,
    pub(crate) notes: Notes,
    pub(crate) heard: Heard,
    limits: Limits,
    pub(crate) ids: id::Tables,
}

#[derive(Debug)]
struct Holder {
    session: u64,
    alone: u32,
    shared: u32,
}

impl Holder {
    fn times(&self, mode: LockMode) -> u32 {
        match mode {
            LockMode::Exclusive => self.alone,
            LockMode::Shared => self.shared,
        }
    }

    fn times_mut(&mut self, mode: LockMode) -> &mut u32 {
        match mode {
            LockMode::Exclusive => &mut self.alone,
            LockMode::Shared => &mut self.shared,
        }
    }
}

impl ModelState {
    /// How many worker numbers of these ids are held.
    #[must_use]
    pub fn id_workers(&self, namespace: &str, name: &str) -> usize {
        self.ids.held(self.now, namespace, name)
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

    /// Advisory locks are counted: a session can take its own lock again. Who does not have the lock
    /// that way yet stands back for those who wait for it.
    pub(crate) fn try_lock(&mut self, lock: LockId, mode: LockMode, session: u64) -> bool {
        let again = self
            .own(lock, session)
            .is_some_and(|own| own.times(mode) > 0);
        if !again && (self.is_wanted(lock, mode) || self.is_refused(lock, mode, session)) {
            return false;
        }
        self.grant(lock, mode, session);
        true
    }

    /// Takes the lock, or waits for it behind those who came first: ask again until there is an
    /// answer, which is `false` when the time has run out.
    pub(crate) fn wait_lock(&mut self, lock: LockId, mode: LockMode, session: u64) -> Option<bool> {
        if self.given.remove(&(lock, session)) {
            self.interrupted.remove(&session);
            return Some(true);
        }
        let waits = self.queues.get(&lock).is_some_and(|queue| {
            let mut waiting = queue.iter();
            waiting.any(|(waiting, _)| *waiting == session)
        });
        if !waits && self.try_lock(lock, mode, session) {
            return Some(true);
        }
        let interrupted = waits && self.interrupted.remove(&session);
        if self.late || interrupted {
            self.stop_waiting(session);
            return Some(false);
        }
        if !waits {
            let queue = self.queues.entry(lock).or_default();
            queue.push_back((session, mode));
        }
        None
    }

    /// Tells a session to give up its wait, if it waits.
    pub(crate) fn interrupt(&mut self, session: u64) {
        let mut waiting = self.queues.values().flatten();
        if waiting.any(|(waiting, _)| *waiting == session) {
            self.interrupted.insert(session);
        }
    }

    /// The session gives up waiting; those behind it may no longer have to.
    fn stop_waiting(&mut self, session: u64) {
        self.interrupted.remove(&session);
        let mut left = Vec::new();
        self.queues.retain(|lock, queue| {
            let waited = queue.len();
            queue.retain(|(waiting, _)| *waiting != session);
            if queue.len() < waited {
                left.push(*lock);
            }
            !queue.is_empty()
        });
        for lock in left {
            self.pass_on(lock);
        }
    }

    pub(crate) fn unlock(&mut self, lock: LockId, mode: LockMode, session: u64) -> bool {
        let Some(holders) = self.locks.get_mut(&lock) else {
            return false;
        };
        let own = holders.iter_mut().find(|own| own.session == session);
        let Some(times) = own
            .map(|own| own.times_mut(mode))
            .filter(|times| **times > 0)
        else {
            return false;
        };
        *times -= 1;
        if *times == 0 {
            holders.retain(|own| own.alone + own.shared > 0);
            if holders.is_empty() {
                self.locks.remove(&lock);
            }
            self.pass_on(lock);
        }
        true
    }

    /// A lock goes to those who wait for it and can have it, in their order: nobody can come in
    /// between.
    fn pass_on(&mut self, lock: LockId) {
        while let Some((session, mode)) = self.first_in_queue(lock) {
            if self.is_refused(lock, mode, session) {
                return;
            }
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.pop_front();
            }
            self.grant(lock, mode, session);
            self.given.insert((lock, session));
        }
        self.queues.remove(&lock);
    }

    fn first_in_queue(&self, lock: LockId) -> Option<(u64, LockMode)> {
        self.queues.get(&lock)?.front().copied()
    }

    fn grant(&mut self, lock: LockId, mode: LockMode, session: u64) {
        let holders = self.locks.entry(lock).or_default();
        let at = holders.iter().position(|own| own.session == session);
        let at = at.unwrap_or_else(|| {
            holders.push(Holder {
                session,
                alone: 0,
                shared: 0,
            });
            holders.len() - 1
        });
        *holders[at].times_mut(mode) += 1;
    }

    fn own(&self, lock: LockId, session: u64) -> Option<&Holder> {
        let mut holders = self.locks.get(&lock)?.iter();
        holders.find(|own| own.session == session)
    }

    /// Whether another session holds the lock in a way that does not go together with this one.
    fn is_refused(&self, lock: LockId, mode: LockMode, session: u64) -> bool {
        let mut holders = self.locks.get(&lock).into_iter().flatten();
        holders.any(|other| {
            other.session != session && (mode == LockMode::Exclusive || other.alone > 0)
        })
    }

    /// Whether somebody waits for the lock in a way that does not go together with this one.
    fn is_wanted(&self, lock: LockId, mode: LockMode) -> bool {
        let mut waiting = self.queues.get(&lock).into_iter().flatten();
        waiting.any(|(_, wanted)| mode == LockMode::Exclusive || *wanted == LockMode::Exclusive)
    }

    /// The locks that sessions which hold this one wait for.
    pub(crate) fn wanted_by_holders_of(&self, lock: LockId) -> Vec<LockId> {
        let waits = |queue: &VecDeque<(u64, LockMode)>| {
            let mut waiting = queue.iter();
            waiting.any(|(session, _)| self.own(lock, *session).is_some())
        };
        let wanted = self.queues.iter().filter(|(_, queue)| waits(queue));
        wanted.map(|(wanted, _)| *wanted).collect()
    }

    /// Whether any session holds the lock.
    #[must_use]
    pub fn is_locked(&self, lock: LockId) -> bool {
        self.locks.contains_key(&lock)
    }

    /// How many sessions hold the lock.
    #[must_use]
    pub fn holders(&self, lock: LockId) -> usize {
        self.locks.get(&lock).map_or(0, Vec::len)
    }

    /// Whether the session holds the lock.
    pub(crate) fn holds(&self, lock: LockId, session: u64) -> bool {
        let holders = self.locks.get(&lock);
        holders.is_some_and(|holders| holders.iter().any(|one| one.session == session))
    }

    /// Locks that are held, with their sessions and whether they share them.
    pub(crate) fn held(&self) -> impl Iterator<Item = (LockId, u64, bool)> {
        self.locks.iter().flat_map(|(lock, holders)| {
            let of = |one: &Holder| (*lock, one.session, one.alone == 0);
            holders.iter().map(of)
        })
    }

    /// How many sessions wait for the lock.
    #[must_use]
    pub fn waiting(&self, lock: LockId) -> usize {
        self.queues.get(&lock).map_or(0, VecDeque::len)
    }

    /// How many advisory locks are held.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.locks.len()
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
        self.heard.unlisten(session);
    }

    pub(crate) fn release_all(&mut self, session: u64) {
        self.given.retain(|(_, to)| *to != session);
        let mut released = Vec::new();
        self.locks.retain(|lock, holders| {
            let held = holders.len();
            holders.retain(|own| own.session != session);
            if holders.len() < held {
                released.push(*lock);
            }
            !holders.is_empty()
        });
        for lock in released {
            self.pass_on(lock);
        }
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

    /// Notifies the sessions that listen; answers of how many topics.
    pub(crate) fn tell(&mut self, topics: impl IntoIterator<Item = i64>) -> i64 {
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
        let part: Vec<_> = part.map(|(place, (_, at))| (place.clone(), *at)).collect();
        let marks = self.marks.len();
        for (place, _) in part.iter().filter(|(_, at)| *at < before) {
            self.marks.remove(place);
        }
        let deleted = i64::try_from(marks - self.marks.len()).unwrap_or(i64::MAX);
        (deleted, part.into_iter().map(|(place, _)| place).collect())
    }

    pub(crate) fn acquire_lease(&mut self, want: &Acquire) -> Acquired {
        let fences = &mut self.fences;
        self.leases.acquire(self.now, || next(fences), want)
    }

    pub(crate) fn take_slots(&mut self, batch: &[Take]) -> Vec<Taken> {
        let fences = &mut self.fences;
        self.leases.take(self.now, || next(fences), batch)
    }

    pub(crate) fn renew_lease(&mut self, want: &Renew, slot: i64) -> bool {
        let place = (want.namespace.clone(), want.key.clone(), slot);
        self.leases.renew(self.now, &place, want.fence, want.ttl)
    }

    pub(crate) fn release_lease(&mut self, want: &Release, slot: i64) -> bool {
        let place = (want.namespace.clone(), want.key.clone(), slot);
        self.leases.release(self.now, &place, want.fence)
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
        let place = (namespace.to_owned(), key.to_owned(), slot);
        self.leases.peek(self.now, &place)
    }

    /// Leases that are held, with namespace, key and slot, in their order.
    pub(crate) fn held_leases(&self) -> impl Iterator<Item = (&str, &str, i64, Peeked)> {
        self.leases.all_held(self.now)
    }

    /// Takes a lease, in all its slots, from its holders, and answers who they were.
    pub(crate) fn force_release(&mut self, want: &ForceRelease) -> Vec<String> {
        let (now, fences) = (self.now, &mut self.fences);
        let owners = self
            .leases
            .force_release(now, || next(fences), &want.namespace, &want.key);
        for owner in &owners {
            let target = format!("{} of {owner}", want.key);
            self.notes
                .log(now, &want.namespace, "release lease", target, &want.reason);
        }
        owners
    }

    pub(crate) fn sweep_leases(
        &mut self,
        after: &(String, String, i64),
        most: i64,
    ) -> (i64, Vec<(String, String, i64)>) {
        self.leases.sweep(self.now, after, most)
    }

    pub(crate) fn abandon_lease(&mut self, want: &Abandon) -> bool {
        self.leases.abandon(self.now, want)
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
