//! What a process knows of one queue: that something has arrived, and where claims start.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::clock::Time;
use crate::engine::keeper::Keeper;
use crate::queue::{Claimed, Floor, Priority, Turned};

/// How long claims start where the last one ended: what comes back into the queue before that place
/// waits for so long, as long as there is other work.
const FLOOR_LASTS: Duration = Duration::from_millis(250);
/// Listeners are told of pushes at most once in this time.
const QUIET: Duration = Duration::from_millis(5);
/// How many claims whose answers were lost are remembered: more than are sent in an outage, each of
/// which fails only after a while. It bounds the memory and the statement. A claim is not repeated
/// under its old number, since the lost one may be carried out after its repetition was answered.
const MOST_LOST: usize = 1024;
/// One claim in so many looks at the low priorities first.
const LOW_FIRST: u32 = 16;

#[derive(Default)]
struct State {
    floors: [Floor; Priority::ALL.len()],
    floors_until: Time,
    /// The timer for the job that is due next.
    due: Option<Time>,
    rung: Option<Time>,
    owed: bool,
    /// The numbers of claims whose answers were lost, and when their leases end: nobody has what they
    /// took.
    lost: VecDeque<(i64, Time)>,
}

/// One queue.
#[derive(Default)]
pub(in crate::engine) struct Topic {
    generation: AtomicU64,
    changed: Notify,
    claims: AtomicU32,
    state: Mutex<State>,
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

    /// Something came back, perhaps below where claims start.
    pub(super) fn returned(&self) {
        self.lock().floors = Default::default();
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
            changed.await;
        }
    }

    /// The priorities in the order of the next claim, and where it starts in each. Answers as well
    /// whether it leaves something out.
    pub(super) fn lanes(&self, now: Time) -> (Vec<(i64, Floor)>, bool) {
        let mut state = self.lock();
        if now >= state.floors_until {
            state.floors = Default::default();
        }
        let floors = state.floors;
        drop(state);
        let mut lanes: Vec<_> = Priority::ALL
            .into_iter()
            .map(Priority::number)
            .zip(floors)
            .collect();
        let nth = self.claims.fetch_add(1, Ordering::Relaxed);
        if nth % LOW_FIRST == LOW_FIRST - 1 {
            lanes.reverse();
        }
        (lanes, floors != <[Floor; Priority::ALL.len()]>::default())
    }

    /// The answer of a claim was lost: the next ones look for what it took, which is leased until
    /// `until`.
    pub(super) fn claim_lost(&self, claim: i64, until: Time) {
        let mut state = self.lock();
        if state.lost.len() == MOST_LOST {
            state.lost.pop_front();
        }
        state.lost.push_back((claim, until));
        drop(state);
        self.returned();
    }

    /// The claims whose answers were lost.
    pub(super) fn lost(&self) -> Vec<i64> {
        self.lock().lost.iter().map(|(claim, _)| *claim).collect()
    }

    /// A claim that was sent at `sent` has looked at the whole queue, also for the claims that were
    /// lost by then. The server may have carried one out later than that, until its lease ends. But
    /// the end of a lease is no reason to forget a claim that nobody has looked for: the last
    /// attempt of what it took would end without anybody having had it.
    pub(super) fn looked(&self, sent: Time) {
        self.lock().lost.retain(|(_, until)| sent < *until);
    }

    /// Takes notice of a claim of at most `most` jobs that was answered. Below the places that it
    /// reached there are only jobs that others have, and rows that wait for vacuum.
    pub(super) fn claimed(self: &Arc<Self>, keeper: &Keeper, most: i64, turned: &Turned) {
        let now = keeper.now();
        let mut state = self.lock();
        if turned.picked < most {
            state.floors = Default::default();
        } else {
            if state.floors == <[Floor; Priority::ALL.len()]>::default() {
                state.floors_until = now + FLOOR_LASTS;
            }
            for job in &turned.claimed {
                raise(&mut state.floors, job);
            }
        }
        let Some(next) = turned.next_due else {
            return;
        };
        let at = now + Duration::from_micros(next.max(0).unsigned_abs());
        if state.due.is_some_and(|due| now < due && due <= at) {
            return;
        }
        state.due = Some(at);
        drop(state);
        let this = Arc::downgrade(self);
        keeper.run_at(at, move || {
            if let Some(topic) = this.upgrade() {
                topic.bump();
            }
        });
    }

    /// Whether listeners are to be told with the next push. If not, because they have just been
    /// told, they are owed it: `Err` says when, if nobody sees to it yet.
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

    /// What was owed is told now.
    pub(super) fn rung(&self, now: Time) {
        let mut state = self.lock();
        state.rung = Some(now);
        state.owed = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn raise(floors: &mut [Floor], job: &Claimed) {
    let floor = usize::try_from(job.priority)
        .ok()
        .and_then(|at| floors.get_mut(at));
    if let Some(floor) = floor {
        *floor = (*floor).max((job.run_at, job.ticket.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_claims_are_looked_for_until_somebody_has_looked() {
        let topic = Topic::default();
        let lease = Duration::from_secs(5);
        let start = Time::default();
        for claim in 0..100 {
            topic.claim_lost(claim, start + lease);
        }
        topic.claim_lost(100, start + lease * 3);
        let all: Vec<i64> = (0..=100).collect();
        assert_eq!(topic.lost(), all, "an outage loses many");
        topic.looked(start + lease / 2);
        assert_eq!(topic.lost(), all, "the server may still work on them");
        topic.looked(start + lease * 2);
        assert_eq!(topic.lost(), [100]);
    }
}
