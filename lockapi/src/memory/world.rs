//! What the database knows, as a value.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::engine::Heard;
use crate::id;
use crate::key::LockId;
use crate::lease::{Acquire, Acquired, Peeked, Release, Renew, Table, Take, Taken};
use crate::limit::{Level, Limits};
use crate::queue::Jobs;
use crate::schedule::Schedules;

const DAY: i64 = 24 * 3600 * 1_000_000;

/// The time of limits starts a day after 1970, so that the beginning of a world is not its zero.
const LIMITS_SINCE: i64 = DAY;

/// The state that operations change: the model of the tables and of the server's lock table.
///
/// It never reads a clock; whoever runs an operation sets [`now`](Self::now) first.
#[derive(Debug, Default)]
pub struct World {
    /// The time, in microseconds.
    pub now: i64,
    /// Whether who still waits is to be told that it was in vain.
    pub(crate) late: bool,
    fences: i64,
    locks: HashMap<LockId, Locked>,
    /// Sessions that wait for a lock, in the order of arrival.
    queues: HashMap<LockId, VecDeque<u64>>,
    /// Locks that were given to a session while it waited, and that it does not know of yet.
    given: HashSet<(LockId, u64)>,
    leases: Table,
    marks: BTreeMap<(String, String), i64>,
    markers: HashMap<u64, String>,
    pub(crate) jobs: Jobs,
    pub(crate) tasks: Schedules,
    pub(crate) heard: Heard,
    limits: Limits,
    /// How far the server's clock was set ahead, in microseconds.
    pub(crate) set_ahead: i64,
    pub(crate) ids: id::Tables,
}

#[derive(Debug)]
struct Locked {
    session: u64,
    times: u32,
}

impl World {
    /// What the server's clock shows, in microseconds since 1970.
    #[must_use]
    pub fn unix(&self) -> i64 {
        self.now.saturating_add(self.set_ahead)
    }

    /// How many worker numbers of these ids are held.
    #[must_use]
    pub fn id_workers(&self, namespace: &str, name: &str) -> usize {
        self.ids.held(self.unix(), namespace, name)
    }

    /// The next value of the token sequence.
    pub(crate) fn next_fence(&mut self) -> i64 {
        next(&mut self.fences)
    }

    /// Advisory locks are counted: a session can take its own lock again.
    pub(crate) fn try_lock(&mut self, lock: LockId, session: u64) -> bool {
        let locked = self
            .locks
            .entry(lock)
            .or_insert(Locked { session, times: 0 });
        if locked.session != session {
            return false;
        }
        locked.times += 1;
        true
    }

    /// Takes the lock, or waits for it behind those who came first: ask again until there is an
    /// answer, which is `false` when the time has run out.
    pub(crate) fn wait_lock(&mut self, lock: LockId, session: u64) -> Option<bool> {
        if self.given.remove(&(lock, session)) || self.try_lock(lock, session) {
            return Some(true);
        }
        if self.late {
            self.stop_waiting(session);
            return Some(false);
        }
        let queue = self.queues.entry(lock).or_default();
        if !queue.contains(&session) {
            queue.push_back(session);
        }
        None
    }

    /// The session gives up waiting.
    fn stop_waiting(&mut self, session: u64) {
        self.queues.retain(|_, queue| {
            queue.retain(|waiting| *waiting != session);
            !queue.is_empty()
        });
    }

    pub(crate) fn unlock(&mut self, lock: LockId, session: u64) -> bool {
        let Some(locked) = self
            .locks
            .get_mut(&lock)
            .filter(|own| own.session == session)
        else {
            return false;
        };
        locked.times -= 1;
        if locked.times == 0 {
            self.locks.remove(&lock);
            self.pass_on(lock);
        }
        true
    }

    /// A lock that is free goes to the first who waits: nobody can come in between.
    fn pass_on(&mut self, lock: LockId) {
        let Some(queue) = self.queues.get_mut(&lock) else {
            return;
        };
        let first = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&lock);
        }
        if let Some(session) = first {
            self.locks.insert(lock, Locked { session, times: 1 });
            self.given.insert((lock, session));
        }
    }

    /// Whether any session holds the lock.
    #[must_use]
    pub fn is_locked(&self, lock: LockId) -> bool {
        self.locks.contains_key(&lock)
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

    /// Releases what a session that ended had locked.
    pub fn end_session(&mut self, session: u64) {
        self.stop_waiting(session);
        self.release_all(session);
        self.markers.remove(&session);
        self.heard.unlisten(session);
    }

    pub(crate) fn release_all(&mut self, session: u64) {
        self.given.retain(|(_, to)| *to != session);
        let own = self.locks.iter().filter(|(_, by)| by.session == session);
        let own: Vec<LockId> = own.map(|(lock, _)| *lock).collect();
        for lock in own {
            self.locks.remove(&lock);
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
            .or_insert(fence);
        if *mark > fence {
            return false;
        }
        *mark = fence;
        true
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

    pub(crate) fn sweep_leases(&mut self, limit: i64) -> i64 {
        self.leases.sweep(self.now, limit)
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
