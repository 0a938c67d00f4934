//! Callers that wait until they are admitted, in the order of arrival.
//!
//! Those of one key and one policy are a line. The first of a line asks for as many of them as there may be room
//! for, and tells each of them, itself included: so thousands are admitted by one statement.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use rustc_hash::FxHashMap;

use super::waiting::Undoing;
use crate::engine::batcher::{Answer as _, Repeated};
use crate::engine::keyed_fifo::{KeyedFifo, Place};
use crate::limit::{Policy, RawDecision};
use crate::sync::{Mutex, MutexGuard};

/// What callers of one line wait for.
type Of = (String, Policy);

/// The lines that are not empty.
#[derive(Default)]
pub(super) struct Lines {
    turns: KeyedFifo<Of>,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    /// By their numbers, which are in the order of arrival.
    lines: FxHashMap<Of, BTreeMap<u64, Waiter>>,
}

struct Waiter {
    cost: u64,
    reply: Undoing<RawDecision>,
}

/// A place in a line, until this is dropped.
pub(super) struct InLine<'a> {
    lines: &'a Lines,
    of: Of,
    number: u64,
    place: Place<'a, Of>,
}

/// One of those that are asked for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) cost: u64,
}

impl Lines {
    /// Takes the last place of a line, unless this number of callers wait already, in any line.
    pub(super) fn try_join(
        &self,
        key: &str,
        policy: Policy,
        most: usize,
        cost: u64,
        reply: Undoing<RawDecision>,
    ) -> Option<InLine<'_>> {
        let of = (key.to_owned(), policy);
        let mut waiters = self.lock();
        let place = self.turns.try_join(of.clone(), most)?;
        let number = waiters.next;
        waiters.next += 1;
        let line = waiters.lines.entry(of.clone()).or_default();
        line.insert(number, Waiter { cost, reply });
        Some(InLine {
            lines: self,
            of,
            number,
            place,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InLine<'_> {
    /// Runs `work` once it is the turn of this caller to ask.
    pub(super) async fn first<T>(&self, work: impl Future<Output = T>) -> T {
        self.place.first(work).await
    }

    /// The first of the line: one at least, and more as long as all of them cost no more than this.
    pub(super) fn asked(&self, most: u64) -> Vec<Asked> {
        let waiters = self.lines.lock();
        let line = waiters.lines.get(&self.of).into_iter().flatten();
        let mut sum = 0_u64;
        let fits = |(place, (number, waiter)): (usize, (&u64, &Waiter))| {
            sum = sum.saturating_add(waiter.cost);
            (place == 0 || sum <= most).then_some(Asked {
                number: *number,
                cost: waiter.cost,
            })
        };
        line.enumerate().map_while(fits).collect()
    }

    /// Tells one of the line that it is admitted. Returns whether it was still there.
    pub(super) fn tell(&self, one: Asked, decided: RawDecision) -> bool {
        let told = self.lines.lock().remove(&self.of, one.number);
        let there = told.is_some();
        if let Some(waiter) = told {
            Box::new(waiter.reply).answer(Ok(decided), Repeated(false));
        }
        there
    }

    /// Whether this caller was not told yet.
    pub(super) fn is_waiting(&self) -> bool {
        let waiters = self.lines.lock();
        let line = waiters.lines.get(&self.of);
        line.is_some_and(|line| line.contains_key(&self.number))
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let left = self.lines.lock().remove(&self.of, self.number);
        // The reply is dropped without the lock.
        drop(left);
    }
}

impl Waiters {
    fn remove(&mut self, of: &Of, number: u64) -> Option<Waiter> {
        let line = self.lines.get_mut(of)?;
        let waiter = line.remove(&number);
        if line.is_empty() {
            self.lines.remove(of);
        }
        waiter
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::engine::limits::waiting::{Waiting, answer};
    use crate::limit::{Outcome, Quota};

    fn join(lines: &Lines, quota: Quota, cost: u64) -> (InLine<'_>, Waiting<RawDecision>) {
        let (reply, told) = answer(|_| ());
        let place = lines.try_join("door", Policy::new(quota), 9, cost, reply);
        (place.unwrap(), told)
    }

    fn costs(place: &InLine<'_>, most: u64) -> Vec<u64> {
        place.asked(most).iter().map(|one| one.cost).collect()
    }

    #[test]
    fn the_first_asks_for_those_behind_it_and_tells_them() {
        let lines = Lines::default();
        let (quota, other) = (Quota::per_hour(9), Quota::per_hour(8));
        let (one, _told) = join(&lines, quota, 4);
        let (two, told) = join(&lines, quota, 1);
        let (three, _) = join(&lines, quota, 2);
        let (apart, _) = join(&lines, other, 5);
        assert_eq!(costs(&one, 9), [4, 1, 2]);
        assert_eq!(costs(&one, 6), [4, 1]);
        assert_eq!(costs(&one, 3), [4]);
        assert_eq!(costs(&apart, 9), [5]);
        // Of each line one has a turn.
        let mut first = Box::pin(one.first(std::future::pending::<()>()));
        assert!((&mut first).now_or_never().is_none());
        assert!(two.first(async {}).now_or_never().is_none());
        assert!(apart.first(async {}).now_or_never().is_some());
        let decided = RawDecision {
            outcome: Outcome::Taken(1),
            ..RawDecision::again()
        };
        let asked = one.asked(9);
        assert!(one.tell(asked[1], decided.clone()));
        assert!(!two.is_waiting() && one.is_waiting());
        assert_eq!(told.now_or_never().unwrap().unwrap(), decided);
        drop(three);
        assert!(!one.tell(asked[2], decided), "it has left");
        assert_eq!(costs(&one, 9), [4]);
        drop(first);
        drop((one, two, apart));
        assert!(lines.lock().lines.is_empty());
    }
}
