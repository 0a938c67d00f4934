//! Callers that wait until they are admitted, in the order of arrival.
//!
//! Those of one key and one policy share a queue. The first of a queue asks for as many of them as there may be room
//! for, and tells each of them, itself included: so thousands are admitted by one statement.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use rustc_hash::FxHashMap;

use super::answers::UndoingReply;
use crate::engine::batcher::{Answer as _, Repeated};
use crate::engine::catch_panic;
use crate::engine::keyed_fifo::{KeyedFifo, Position};
use crate::error::{Error, Result};
use crate::limit::{Policy, RawDecision};
use crate::sync::{Mutex, MutexGuard};

/// What the callers of one queue wait for.
type WaitQueueKey = (String, Policy);

/// The queues that are not empty.
#[derive(Default)]
pub(super) struct WaitQueues {
    turns: KeyedFifo<WaitQueueKey>,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    /// By their numbers, which are in the order of arrival.
    queues: FxHashMap<WaitQueueKey, BTreeMap<u64, Waiter>>,
}

struct Waiter {
    cost: u64,
    reply: UndoingReply<RawDecision>,
}

/// A position in a queue, until this is dropped.
pub(super) struct QueuePosition<'a> {
    queues: &'a WaitQueues,
    key: WaitQueueKey,
    number: u64,
    position: Position<'a, WaitQueueKey>,
}

/// One of those that are asked for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingCall {
    pub(super) number: u64,
    pub(super) cost: u64,
}

impl WaitQueues {
    /// Joins a queue at its end, unless this number of callers wait already, in any queue.
    pub(super) fn try_join(
        &self,
        key: &str,
        policy: Policy,
        most: usize,
        cost: u64,
        reply: UndoingReply<RawDecision>,
    ) -> Option<QueuePosition<'_>> {
        let key = (key.to_owned(), policy);
        let mut waiters = self.lock();
        let position = self.turns.try_join(key.clone(), most)?;
        let number = waiters.next;
        waiters.next += 1;
        let queue = waiters.queues.entry(key.clone()).or_default();
        queue.insert(number, Waiter { cost, reply });
        Some(QueuePosition {
            queues: self,
            key,
            number,
            position,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuePosition<'_> {
    /// Runs `work` once it is the turn of this caller to ask, unless an attempt that was made since it joined was
    /// [refused](Self::refused).
    pub(super) async fn first<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.position.first_unless_refused(work).await
    }

    /// An attempt is made now.
    pub(super) fn attempts(&self) {
        self.position.attempts();
    }

    /// It has failed.
    pub(super) fn refused(&self, error: &Error) {
        self.position.refused(error);
    }

    /// The first of the queue: one at least, and more as long as all of them cost no more than this.
    pub(super) fn first_calls(&self, most: u64) -> Vec<WaitingCall> {
        let waiters = self.queues.lock();
        let queue = waiters.queues.get(&self.key).into_iter().flatten();
        let mut sum = 0_u64;
        let fits = |(position, (number, waiter)): (usize, (&u64, &Waiter))| {
            sum = sum.saturating_add(waiter.cost);
            (position == 0 || sum <= most).then_some(WaitingCall {
                number: *number,
                cost: waiter.cost,
            })
        };
        queue.enumerate().map_while(fits).collect()
    }

    /// Tells a caller of the queue that it is admitted. Returns whether it still waited.
    pub(super) fn answer(&self, one: WaitingCall, decided: RawDecision) -> bool {
        let answered = self.queues.lock().remove(&self.key, one.number);
        let there = answered.is_some();
        if let Some(waiter) = answered {
            // Its waker may panic, and this is another caller.
            catch_panic(|| Box::new(waiter.reply).answer(Ok(decided), Repeated(false)));
        }
        there
    }

    /// Whether this caller was not answered yet.
    pub(super) fn is_waiting(&self) -> bool {
        let waiters = self.queues.lock();
        let queue = waiters.queues.get(&self.key);
        queue.is_some_and(|queue| queue.contains_key(&self.number))
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let left = self.queues.lock().remove(&self.key, self.number);
        // The reply is dropped without the lock.
        drop(left);
    }
}

impl Waiters {
    fn remove(&mut self, key: &WaitQueueKey, number: u64) -> Option<Waiter> {
        let queue = self.queues.get_mut(key)?;
        let waiter = queue.remove(&number);
        if queue.is_empty() {
            self.queues.remove(key);
        }
        waiter
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use futures_util::FutureExt;

    use super::*;
    use crate::engine::limits::answers::{Waiting, answer};
    use crate::engine::panicking_waker;
    use crate::limit::{Outcome, Quota};

    fn join(
        queues: &WaitQueues,
        quota: Quota,
        cost: u64,
    ) -> (QueuePosition<'_>, Waiting<RawDecision>) {
        let (reply, answered) = answer(|_| ());
        let position = queues.try_join("door", Policy::new(quota), 9, cost, reply);
        (position.unwrap(), answered)
    }

    fn costs(position: &QueuePosition<'_>, most: u64) -> Vec<u64> {
        position
            .first_calls(most)
            .iter()
            .map(|one| one.cost)
            .collect()
    }

    #[test]
    fn the_first_asks_for_those_behind_it_and_tells_them() {
        let queues = WaitQueues::default();
        let (quota, other) = (Quota::per_hour(9), Quota::per_hour(8));
        let (one, _answered) = join(&queues, quota, 4);
        let (two, answered) = join(&queues, quota, 1);
        let (three, _) = join(&queues, quota, 2);
        let (apart, _) = join(&queues, other, 5);
        assert_eq!(costs(&one, 9), [4, 1, 2]);
        assert_eq!(costs(&one, 6), [4, 1]);
        assert_eq!(costs(&one, 3), [4]);
        assert_eq!(costs(&apart, 9), [5]);
        // One caller of each queue has a turn.
        let mut first = Box::pin(one.first(std::future::pending::<Result<()>>()));
        assert!((&mut first).now_or_never().is_none());
        assert!(two.first(async { Ok(()) }).now_or_never().is_none());
        assert!(apart.first(async { Ok(()) }).now_or_never().is_some());
        let decided = RawDecision {
            outcome: Outcome::Taken(1),
            ..RawDecision::again()
        };
        let first_calls = one.first_calls(9);
        assert!(one.answer(first_calls[1], decided.clone()));
        assert!(!two.is_waiting() && one.is_waiting());
        assert_eq!(answered.now_or_never().unwrap().unwrap(), decided);
        drop(three);
        assert!(!one.answer(first_calls[2], decided), "it has left");
        assert_eq!(costs(&one, 9), [4]);
        drop(first);
        drop((one, two, apart));
        assert!(queues.lock().queues.is_empty());
    }

    #[test]
    fn a_waker_that_panics_does_not_reach_the_one_who_asked() {
        let queues = WaitQueues::default();
        let quota = Quota::per_hour(9);
        let ((one, _first), (_two, answered)) = (join(&queues, quota, 1), join(&queues, quota, 1));
        let mut answered = std::pin::pin!(answered);
        let waker = panicking_waker();
        let polled = answered.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert!(one.answer(one.first_calls(9)[1], RawDecision::again()));
        assert!(answered.now_or_never().is_some());
    }
}
