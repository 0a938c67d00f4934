//! What a process knows of one queue: that something has arrived, and where claims start.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::combining::WaitingClaims;
use super::floors::{Floors, Found, PriorityFloors, Search, Start};
use super::groups::Admission;
use super::limiting::Gate;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

use crate::engine::clock::Time;
use crate::engine::contained;
use crate::engine::timer::Timer;
use crate::queue::in_transaction::LOW_FIRST;
use crate::queue::{
    Claimed, CompletedAndClaimed, Floor, Name, Priority, SearchBelowFloors, SearchResult,
};

/// Listeners are notified of pushes at most once in this time.
const QUIET: Duration = Duration::from_millis(5);
/// A process whose last notifications led to nothing waits for a random time before it claims: up to this
/// time after the first of them, and up to twice as long after each further one.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);
/// A job is due so much later, or by a hundredth of the time that is left, than another at most before its time has a timer of
/// its own.
const SLACK: Duration = Duration::from_millis(10);
/// How often that is doubled: up to 16 ms.
const DOUBLINGS: u32 = 4;
/// How many claims whose answers were lost are remembered: more than are sent in an outage, each of
/// which fails only after a while. It bounds the memory and the statement. A claim is not repeated
/// under its old number, since the lost one may be carried out after its repetition was answered.
const MOST_LOST: usize = 1024;
/// So long after its lease has ended nobody looks for what a lost claim took.
const LOST_FOR: Duration = Duration::from_secs(600);
/// For how many sets of names places are remembered.
const MOST_SETS: usize = 64;

#[derive(Default)]
struct State {
    /// Where claims start, by the names that they take.
    floors: FxHashMap<Arc<[String]>, Floors>,
    /// The timer for the job that is due next.
    due: Option<Time>,
    rung: Option<Time>,
    owed: bool,
    /// How many notifications in a row led to nothing.
    fruitless: u32,
    /// When a notification came, if no claim was sent since and answered.
    notified: Option<Time>,
    /// Whether a timer runs for a notification that is acted upon later.
    delayed: bool,
    /// Claims whose answers were lost: nobody has what they took.
    lost: VecDeque<LostClaim>,
}

struct LostClaim {
    number: i64,
    /// When its leases end.
    until: Time,
    /// What it took has one of these names, or any if there are none.
    names: Arc<[String]>,
}

/// One queue.
#[derive(Default)]
pub(in crate::engine) struct Topic {
    generation: AtomicU64,
    changed: Notify,
    claims: AtomicU32,
    state: Mutex<State>,
    admission: Mutex<Admission>,
    pub(super) gate: Mutex<Gate>,
    pub(super) waiting_claims: Mutex<WaitingClaims>,
}

impl Topic {
    /// Counts arrivals.
    pub(in crate::engine) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Something may have arrived.
    pub(in crate::engine) fn bump(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// A notification of another process has come. Of many idle processes, those that found nothing recently
    /// wait a little, and claim once for all notifications that came meanwhile: whoever takes the jobs need not
    /// share the server with all others.
    pub(super) fn notified(self: &Arc<Self>, timer: &Timer) {
        let mut state = self.lock();
        state.notified.get_or_insert(timer.now());
        if state.delayed {
            return;
        }
        if state.fruitless == 0 || !timer.is_running() {
            drop(state);
            return self.bump();
        }
        state.delayed = true;
        let longest = SHORTEST_DELAY * (1 << (state.fruitless - 1));
        drop(state);
        let this = Arc::downgrade(self);
        let at = timer.now() + longest.mul_f64(fastrand::f64());
        timer.run_at(at, move || {
            if let Some(topic) = this.upgrade() {
                topic.lock().delayed = false;
                topic.bump();
            }
        });
    }

    /// Something came back, perhaps below where claims start.
    pub(super) fn returned(&self) {
        self.lock().floors.values_mut().for_each(Floors::reset);
        self.bump();
    }

    /// Returns once something has arrived since `seen`.
    pub(in crate::engine) async fn arrival(&self, seen: u64) {
        loop {
            // Created before the count is read, so an arrival in between still wakes it.
            let changed = self.changed.notified();
            if self.generation() != seen {
                return;
            }
            contained(changed).await;
        }
    }

    /// Where the next claim starts, with how many jobs it takes at most where that is known, and the priorities in its order.
    pub(super) fn priorities(
        &self,
        now: Time,
        names: &Arc<[String]>,
    ) -> (Start, Vec<(i64, Floor)>) {
        let mut state = self.lock();
        if state.floors.len() >= MOST_SETS && !state.floors.contains_key(names) {
            // Others learn their places anew with the first claim.
            state.floors.retain(|_, floors| floors.is_costly());
            if state.floors.len() >= MOST_SETS {
                state.floors.clear();
            }
        }
        let floors = state.floors.entry(Arc::clone(names)).or_default();
        let start = floors.start(now);
        drop(state);
        let mut priorities: Vec<_> = Priority::ALL
            .into_iter()
            .map(Priority::number)
            .zip(start.places)
            .collect();
        let nth = self.claims.fetch_add(1, Ordering::Relaxed);
        if nth % LOW_FIRST == LOW_FIRST - 1 {
            priorities.reverse();
        }
        (start, priorities)
    }

    /// What to search now, for jobs that became due again.
    pub(super) fn next_search(
        &self,
        now: Time,
        name: &Name,
        names: &Arc<[String]>,
    ) -> Option<(Search, SearchBelowFloors)> {
        let mut state = self.lock();
        let (search, priorities) = state.floors.get_mut(names)?.next_search(now)?;
        let request = SearchBelowFloors {
            lost: state.lost.iter().map(|claim| claim.number).collect(),
            name: name.clone(),
            names: names.to_vec(),
            priorities,
        };
        Some((search, request))
    }

    /// A search was answered, or failed. Answers when to search again, where that does not wait for a claim.
    pub(super) fn search_ended(
        &self,
        now: Time,
        names: &Arc<[String]>,
        search: Search,
        result: Option<&SearchResult>,
    ) -> Option<Time> {
        let mut state = self.lock();
        let floors = state.floors.get_mut(names)?;
        let found = floors.search_ended(now, search, result);
        let again = floors.search_again(now);
        drop(state);
        if found {
            self.bump();
        }
        again
    }

    /// A claim of these names, which began at these places, took longer than a statement may.
    pub(super) fn claim_timed_out(
        &self,
        now: Time,
        names: &Arc<[String]>,
        started: &PriorityFloors,
    ) {
        if let Some(floors) = self.lock().floors.get_mut(names) {
            floors.timed_out(now, started);
        }
    }

    /// The answer of a claim of these names was lost: the next ones look for what it took, which is leased
    /// until `until`.
    pub(super) fn claim_lost(&self, number: i64, until: Time, names: &Arc<[String]>) {
        let mut state = self.lock();
        if state.lost.len() == MOST_LOST {
            state.lost.pop_front();
        }
        let names = Arc::clone(names);
        state.lost.push_back(LostClaim {
            number,
            until,
            names,
        });
        state.floors.clear();
        drop(state);
        self.bump();
    }

    /// The claims whose answers were lost.
    pub(super) fn lost(&self) -> Vec<i64> {
        self.lock().lost.iter().map(|claim| claim.number).collect()
    }

    /// A claim of these names that was sent at `sent` has looked at all of the queue that has them, also for the
    /// claims that were lost by then. The server may have carried one out later than that, until its lease
    /// ends. But the end of a lease is no reason to forget a claim that nobody has looked for: the last
    /// attempt of what it took would end without anybody having had it.
    pub(super) fn looked(&self, sent: Time, names: &Arc<[String]>) {
        self.lock().lost.retain(|lost| {
            let found = names.is_empty() || *names == lost.names;
            let until = if found {
                lost.until
            } else {
                lost.until + LOST_FOR
            };
            sent < until
        });
    }

    /// A claim that did not look at the whole queue leaves out those that looks beside it must have found
    /// by now.
    pub(super) fn looked_in_part(&self, sent: Time) {
        let mut state = self.lock();
        state.lost.retain(|lost| sent < lost.until + LOST_FOR);
    }

    /// Takes notice of a claim of at most `most` jobs of these names, which started at `started`, took priorities in this `order`, and
    /// was answered. Below the places that it reached there are only jobs that others have, and rows that
    /// wait for vacuum. Answers whether the next claim looks where this one did not.
    pub(super) fn claimed(
        self: &Arc<Self>,
        timer: &Timer,
        names: &Arc<[String]>,
        (started, sent, order): (PriorityFloors, Time, &[i64]),
        most: i64,
        turned: &CompletedAndClaimed,
    ) -> bool {
        let now = timer.now();
        let mut state = self.lock();
        let answered = state.notified.take_if(|at| *at <= sent).is_some();
        if !turned.claimed.is_empty() {
            state.fruitless = 0;
        } else if answered {
            state.fruitless = (state.fruitless + 1).min(DOUBLINGS + 1);
        }
        let again = state.floors.get_mut(names).is_some_and(|floors| {
            let claimed = turned.claimed.iter();
            let places = claimed.map(|job| (job.priority, (job.run_at, job.ticket.id)));
            let found = Found {
                started,
                full: turned.picked >= most || turned.is_held_back(),
                exhausted: exhausted(order, turned),
                read: turned.read,
                paused: turned.paused,
                at: turned.now,
                sent,
            };
            floors.claimed(now, &found, places)
        });
        // What comes next where a limit held jobs back is a permit.
        let Some(next) = turned.next_due.filter(|_| !turned.waits_for_permit()) else {
            return again;
        };
        drop(state);
        self.due_in(timer, next);
        again
    }

    /// A job is due in so many microseconds.
    pub(super) fn due_in(self: &Arc<Self>, timer: &Timer, next: i64) {
        let now = timer.now();
        let at = now + Duration::from_micros(next.max(0).unsigned_abs());
        // Estimates of one time differ, and each timer that is set stays until its time.
        let near = at + (at.saturating_sub(now) / 100).min(SLACK);
        let mut state = self.lock();
        if state.due.is_some_and(|due| now < due && due <= near) {
            return;
        }
        state.due = Some(at);
        drop(state);
        let this = Arc::downgrade(self);
        timer.run_at(at, move || {
            if let Some(topic) = this.upgrade() {
                topic.bump();
            }
        });
    }

    /// Whether to notify listeners of a push now. If they have just been notified, the notification is
    /// owed: `Err` contains its time, unless it is scheduled already.
    pub(super) fn ring(&self, now: Time) -> Result<(), Option<Time>> {
        let mut state = self.lock();
        match state.rung {
            Some(rung) if now < rung + QUIET => {
                let at = (!std::mem::replace(&mut state.owed, true)).then_some(rung + QUIET);
                Err(at)
            }
            _ => {
                state.rung = Some(now);
                Ok(())
            }
        }
    }

    /// The owed notification is sent now.
    pub(super) fn rung(&self, now: Time) {
        let mut state = self.lock();
        state.rung = Some(now);
        state.owed = false;
    }

    pub(super) fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The priorities of which a claim got all that was due: those before the last of which it got a job. A limit holds back jobs of any.
fn exhausted(order: &[i64], turned: &CompletedAndClaimed) -> Vec<i64> {
    let of = |job: &Claimed| order.iter().position(|it| *it == job.priority);
    let last = turned.claimed.iter().filter_map(of).max().unwrap_or(0);
    // Where there is a limit, what was lost goes before all others.
    if turned.limited.is_some() {
        return Vec::new();
    }
    order[..last].to_vec()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::engine::clock::Clock;
    use crate::engine::is_woken_beside_a_panic;
    use crate::queue::{Headers, Limited, Ticket};

    /// The answer to a claim that found this number of jobs.
    fn answer(jobs: i64) -> CompletedAndClaimed {
        let job = |id| Claimed {
            ticket: Ticket { id, token: id },
            attempt: 1,
            max_attempts: 1,
            priority: 0,
            run_at: 0,
            created_at: 0,
            name: String::new(),
            payload: String::new(),
            headers: Headers::default(),
            group: None,
        };
        CompletedAndClaimed {
            acked: Vec::new(),
            claimed: (1..=jobs).map(job).collect(),
            picked: jobs,
            paused: None,
            read: Some(jobs),
            now: 0,
            next_due: None,
            limited: None,
            parked: false,
        }
    }

    #[test]
    fn whoever_found_nothing_lately_asks_once_for_many_notifications() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let topic = Arc::new(Topic::default());
        let names: Arc<[String]> = Arc::default();
        let claimed = |jobs| {
            let (start, _) = topic.priorities(timer.now(), &names);
            let looks = (start.places, timer.now(), &[0, 1, 2, 3][..]);
            topic.claimed(&timer, &names, looks, 10, &answer(jobs));
        };
        for _ in 0..100 {
            let before = topic.generation();
            topic.notified(&timer);
            assert_eq!(topic.generation(), before + 1, "at once");
            claimed(1);
            // Who looks by itself, and finds nothing, has not been woken for nothing.
            claimed(0);
        }
        for _ in 0..10 {
            topic.notified(&timer);
            claimed(0);
        }
        let before = topic.generation();
        let start = Instant::now();
        let mut told = 0;
        while start.elapsed() < Duration::from_millis(200) {
            topic.notified(&timer);
            told += 1;
        }
        let woken = topic.generation() - before;
        assert!((1..=told / 10).contains(&woken), "{woken} of {told}");
        claimed(1);
        assert_eq!(topic.lock().fruitless, 0);
    }

    #[test]
    fn priorities_before_the_last_of_a_claim_are_exhausted() {
        let order = [0, 1, 2, 3];
        let mut turned = answer(2);
        assert!(exhausted(&order, &turned).is_empty());
        turned.claimed[1].priority = 2;
        assert_eq!(exhausted(&order, &turned), [0, 1]);
        assert_eq!(exhausted(&[3, 2, 1, 0], &turned), [3, 2, 1]);
        turned.limited = Some(Limited::No);
        assert!(exhausted(&order, &turned).is_empty());
    }

    #[test]
    fn lost_claims_are_looked_for_until_somebody_has_looked() {
        let topic = Topic::default();
        let lease = Duration::from_secs(5);
        let start = Time::default();
        let names = Arc::default();
        for claim in 0..100 {
            topic.claim_lost(claim, start + lease, &names);
        }
        topic.claim_lost(100, start + lease * 3, &names);
        let all: Vec<i64> = (0..=100).collect();
        assert_eq!(topic.lost(), all, "an outage loses many");
        topic.looked(start + lease / 2, &names);
        assert_eq!(topic.lost(), all, "the server may still work on them");
        topic.looked(start + lease * 2, &names);
        assert_eq!(topic.lost(), [100]);
    }

    #[test]
    fn whoever_takes_other_names_has_not_looked_for_a_lost_claim() {
        let topic = Topic::default();
        let lease = Duration::from_secs(5);
        let start = Time::default();
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (mails, reports): (Arc<[String]>, Arc<[String]>) = (of(&["mail"]), of(&["report"]));
        topic.claim_lost(1, start + lease, &mails);
        topic.looked(start + lease * 2, &reports);
        assert_eq!(topic.lost(), [1]);
        topic.looked(start + lease * 2, &mails);
        assert!(topic.lost().is_empty());
        topic.claim_lost(2, start + lease, &mails);
        topic.looked(start + lease * 2, &Arc::default());
        assert!(topic.lost().is_empty(), "one that takes all has");
    }

    #[test]
    fn waker_that_panics_keeps_no_claim_from_being_woken() {
        let topic = Topic::default();
        let seen = topic.generation();
        let waits = (topic.arrival(seen), topic.arrival(seen));
        assert!(is_woken_beside_a_panic(waits.0, waits.1, || topic.bump()));
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use crate::sync::{explore, thread};

    #[test]
    fn who_waits_is_told_of_what_arrives_after_the_look() {
        explore(|| {
            let topic = Arc::new(Topic::default());
            let jobs = Arc::new(AtomicU32::new(0));
            let waiting = [(); 2].map(|()| {
                let (topic, jobs) = (Arc::clone(&topic), Arc::clone(&jobs));
                thread::spawn(move || {
                    loop {
                        let seen = topic.generation();
                        if jobs.load(Ordering::Acquire) == 2 {
                            return;
                        }
                        shuttle::future::block_on(topic.arrival(seen));
                    }
                })
            });
            let (other, pushed) = (Arc::clone(&topic), Arc::clone(&jobs));
            let pushes = thread::spawn(move || {
                pushed.fetch_add(1, Ordering::AcqRel);
                other.bump();
            });
            jobs.fetch_add(1, Ordering::AcqRel);
            topic.bump();
            for thread in waiting {
                thread.join().unwrap();
            }
            pushes.join().unwrap();
            assert_eq!(topic.generation(), 2, "each is counted");
        });
    }

    /// One in so many claims takes the low priorities first, whoever claims.
    #[test]
    fn claims_beside_each_other_take_turns() {
        explore(|| {
            let topic = Arc::new(Topic::default());
            let names: Arc<[String]> = Arc::default();
            let claim = |topic: &Topic, names: &Arc<[String]>| {
                let (_, priorities) = topic.priorities(Time::ZERO, names);
                u32::from(priorities[0].0 > priorities[1].0)
            };
            let (other, of) = (Arc::clone(&topic), Arc::clone(&names));
            let other =
                thread::spawn(move || (0..LOW_FIRST / 2).map(|_| claim(&other, &of)).sum::<u32>());
            let own: u32 = (LOW_FIRST / 2..LOW_FIRST)
                .map(|_| claim(&topic, &names))
                .sum();
            let low_first = own + other.join().unwrap();
            assert!(low_first == 1 || low_first == LOW_FIRST - 1, "{low_first}");
        });
    }
}
