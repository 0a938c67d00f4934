//! Handlers that workers of several queues share.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use futures_util::task::AtomicWaker;

use super::{MAX_CONCURRENCY, MAX_WEIGHT};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, MutexGuard};

/// A number of handlers that several workers share: a program that works on several queues, and bounds
/// what it does at once on all of them.
///
/// Each worker has a [weight](super::Worker::share). While all have jobs, each runs as many handlers as
/// its weight says, and at least one; what one does not use, the others do.
///
/// ```
/// use lockapi::worker::{SharedConcurrency, Worker};
/// use lockapi::{Backend, Result, Stop};
///
/// # async fn example(backend: &dyn Backend, stop: &Stop) -> Result<()> {
/// let handlers = SharedConcurrency::new(16);
/// let mails = Worker::new(backend.queue("mails")?)
///     .share(&handlers, 3)
///     .handle("welcome", async |_: String, _| Ok(()));
/// let reports = Worker::new(backend.queue("reports")?)
///     .share(&handlers, 1)
///     .handle("monthly", async |_: u32, _| Ok(()));
/// // Twelve handlers of mails and four of reports, while there are jobs of both.
/// let (mails, reports) = tokio::join!(mails.run(stop), reports.run(stop));
/// # let _ = (mails?, reports?);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
/// - No more handlers than this run at once in all workers that share it. A handler counts until it has
///   ended, also one that a worker does not wait for any more.
/// - A handler that has begun is not interrupted: a worker that gets jobs after a time without has to
///   wait for handlers of others to end. [`concurrency`](super::Worker::concurrency) of each worker is a
///   bound of its own, which leaves some to others at any time.
/// - Weights share the handlers, not the rate: a queue of short jobs does more of them.
///
/// Workers may be of different backends, async and blocking. A handler must not wait for a job of a worker that
/// shares the same handlers: when all of them wait so, none is left to run what they wait for.
#[derive(Clone)]
pub struct SharedConcurrency(Arc<Shared>);

struct Shared {
    handlers: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    joined: u64,
    members: BTreeMap<u64, Counts>,
}

struct Counts {
    weight: u32,
    /// As many as it runs at once, whatever others do.
    most: usize,
    used: usize,
    /// How many it may use while those that want some have as many as their weights say.
    fair: usize,
    wants: bool,
    freed: Arc<AtomicWaker>,
}

/// A worker among those that share.
pub(super) struct Member {
    shared: Arc<Shared>,
    number: u64,
}

impl SharedConcurrency {
    /// This many handlers, 1 to [`MAX_CONCURRENCY`].
    #[must_use]
    pub fn new(handlers: usize) -> Self {
        Self(Arc::new(Shared {
            handlers,
            state: Mutex::default(),
        }))
    }

    pub(super) fn handlers(&self) -> usize {
        self.0.handlers
    }

    pub(super) fn check(&self, weight: u32) -> std::result::Result<(), String> {
        let handlers = self.0.handlers;
        if !(1..=MAX_CONCURRENCY).contains(&handlers) {
            return Err(format!(
                "a shared concurrency of {handlers}; allowed are 1 to {MAX_CONCURRENCY}"
            ));
        }
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(format!(
                "a weight of {weight}; allowed are 1 to {MAX_WEIGHT}"
            ));
        }
        Ok(())
    }

    pub(super) fn join(&self, weight: u32, most: usize, freed: Arc<AtomicWaker>) -> Result<Member> {
        let mut state = self.0.lock();
        if state.members.len() >= self.0.handlers {
            let message = format!(
                "a shared concurrency of {} has {} workers already; each needs a handler",
                self.0.handlers,
                state.members.len()
            );
            return Err(Error::new(ErrorKind::Invalid, "run", message));
        }
        state.joined += 1;
        let number = state.joined;
        let counts = Counts {
            weight,
            most,
            used: 0,
            fair: 0,
            wants: false,
            freed,
        };
        state.members.insert(number, counts);
        Ok(Member {
            shared: Arc::clone(&self.0),
            number,
        })
    }
}

impl fmt::Debug for SharedConcurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("SharedConcurrency")
            .field("handlers", &self.0.handlers)
            .field("used", &state.used)
            .field("workers", &state.members.len())
            .finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How many a member may take: what is left of its own, or what the others leave.
    fn free(&self, handlers: usize, number: u64) -> usize {
        let Some(own) = self.members.get(&number).filter(|own| own.wants) else {
            return 0;
        };
        let free = handlers.saturating_sub(self.used);
        let others = self.members.iter().filter(|(other, _)| **other != number);
        let kept: usize = others.map(|(_, other)| other.unused()).sum();
        own.unused().min(free).max(free.saturating_sub(kept))
    }

    /// Divides the handlers among those that want some, at least one for each and none that it cannot use.
    fn divide(&mut self, handlers: usize) {
        let mut wanting: Vec<_> = self.members.values_mut().collect();
        for member in &mut wanting {
            member.fair = 0;
        }
        wanting.retain(|member| member.wants);
        let mut weights: u64 = wanting.iter().map(|member| u64::from(member.weight)).sum();
        let mut left = handlers;
        // Those that can use no more than their weights say leave the rest to the others. One that can use more
        // than that of what is left could use more of all.
        wanting.sort_by(|one, other| one.most_by_weight(other));
        while let Some(member) = wanting.first()
            && member.most <= part(left, member.weight, weights)
        {
            let member = wanting.remove(0);
            member.fair = member.most.min(left - wanting.len());
            left -= member.fair;
            weights -= u64::from(member.weight);
        }
        // Rounded down, from the smallest on: the rest is for larger ones.
        wanting.sort_by_key(|member| member.weight);
        for member in wanting {
            let exact = part(left, member.weight, weights);
            member.fair = exact.max(1).min(member.most).min(left);
            left -= member.fair;
            weights -= u64::from(member.weight);
        }
    }
}

/// The part of a weight, rounded down.
fn part(handlers: usize, weight: u32, weights: u64) -> usize {
    let all = u64::try_from(handlers).unwrap_or(u64::MAX);
    let exact = all * u64::from(weight) / weights;
    usize::try_from(exact).unwrap_or(handlers)
}

/// Wakes those who may be able to take some, outside of the lock.
fn wake_waiting(state: MutexGuard<'_, State>) {
    let waiting = state.members.values().filter(|member| member.wants);
    let waiting: Vec<_> = waiting.map(|member| Arc::clone(&member.freed)).collect();
    drop(state);
    for freed in waiting {
        freed.wake();
    }
}

impl Counts {
    /// Compares how many both can use for each part of their weights.
    fn most_by_weight(&self, other: &Self) -> Ordering {
        let scaled = |most, weight| u64::try_from(most).unwrap_or(u64::MAX) * u64::from(weight);
        scaled(self.most, other.weight).cmp(&scaled(other.most, self.weight))
    }

    fn unused(&self) -> usize {
        self.fair.saturating_sub(self.used)
    }
}

impl Member {
    pub(super) fn try_take(&self) -> bool {
        let mut state = self.shared.lock();
        if state.free(self.shared.handlers, self.number) == 0 {
            return false;
        }
        state.used += 1;
        if let Some(own) = state.members.get_mut(&self.number) {
            own.used += 1;
        }
        true
    }

    pub(super) fn free_one(&self) {
        let mut state = self.shared.lock();
        state.used = state.used.saturating_sub(1);
        if let Some(own) = state.members.get_mut(&self.number) {
            own.used = own.used.saturating_sub(1);
        }
        wake_waiting(state);
    }

    pub(super) fn free(&self) -> usize {
        let state = self.shared.lock();
        state.free(self.shared.handlers, self.number)
    }

    pub(super) fn fair(&self) -> usize {
        let state = self.shared.lock();
        state.members.get(&self.number).map_or(0, |own| own.fair)
    }

    pub(super) fn want(&self, some: bool) {
        let mut state = self.shared.lock();
        let Some(own) = state.members.get_mut(&self.number) else {
            return;
        };
        if own.wants == some {
            return;
        }
        own.wants = some;
        self.divided(state);
    }

    /// What it has taken counts until it is freed.
    pub(super) fn leave(&self) {
        let mut state = self.shared.lock();
        if state.members.remove(&self.number).is_some() {
            self.divided(state);
        }
    }

    fn divided(&self, mut state: MutexGuard<'_, State>) {
        state.divide(self.shared.handlers);
        wake_waiting(state);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(handlers: usize, weights: &[u32]) -> Vec<Member> {
        let weights: Vec<_> = weights.iter().map(|weight| (*weight, handlers)).collect();
        bounded(handlers, &weights)
    }

    /// Members of these weights, each of which can use so many.
    fn bounded(handlers: usize, members: &[(u32, usize)]) -> Vec<Member> {
        let shared = SharedConcurrency::new(handlers);
        let join = |(weight, most): &(u32, usize)| shared.join(*weight, *most, Arc::default());
        let joined = members.iter().map(join);
        joined.collect::<Result<_>>().unwrap()
    }

    fn fair(members: &[Member]) -> Vec<usize> {
        members.iter().map(Member::fair).collect()
    }

    /// Takes as many as it can.
    fn fill(member: &Member) -> usize {
        std::iter::from_fn(|| member.try_take().then_some(())).count()
    }

    #[test]
    fn handlers_are_divided_by_weight_among_those_that_want_some() {
        let members = members(16, &[3, 1]);
        members[0].want(true);
        assert_eq!(fair(&members), [16, 0]);
        members[1].want(true);
        assert_eq!(fair(&members), [12, 4]);
        members[0].want(false);
        assert_eq!(fair(&members), [0, 16]);
    }

    #[test]
    fn what_one_cannot_use_is_divided_among_the_others() {
        for (most, expected) in [
            ([16, 16, 16], [10, 4, 2]),
            ([2, 16, 16], [2, 10, 4]),
            ([1, 1, 16], [1, 1, 14]),
            ([3, 2, 1], [3, 2, 1]),
        ] {
            let bounds = [(5, most[0]), (2, most[1]), (1, most[2])];
            let members = bounded(16, &bounds);
            for member in &members {
                member.want(true);
            }
            assert_eq!(fair(&members), expected, "{most:?}");
        }
    }

    #[test]
    fn what_one_does_not_want_others_take_until_it_does() {
        let members = members(4, &[1, 1]);
        members[0].want(true);
        assert_eq!(fill(&members[0]), 4);
        members[1].want(true);
        assert!(!members[1].try_take(), "all are taken");
        members[0].free_one();
        assert!(!members[0].try_take(), "it is kept for the other");
        assert!(members[1].try_take());
        members[0].free_one();
        members[0].free_one();
        assert_eq!((fill(&members[1]), fill(&members[0])), (1, 1));
    }

    #[test]
    fn what_one_has_taken_counts_after_it_has_left() {
        let members = members(2, &[1, 1]);
        for member in &members {
            member.want(true);
        }
        assert!(members[0].try_take());
        members[0].leave();
        assert_eq!(fill(&members[1]), 1);
        members[0].free_one();
        assert_eq!(fill(&members[1]), 1);
    }

    #[test]
    fn more_workers_than_handlers_are_refused() {
        let shared = SharedConcurrency::new(1);
        let first = shared.join(1, 1, Arc::default()).unwrap();
        let refused = shared.join(1, 1, Arc::default()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        drop(first);
        shared.join(1, 1, Arc::default()).unwrap();
    }

    proptest! {
        #[test]
        fn divided_is_all_there_is_and_something_for_each(
            weights in prop::collection::vec(1..=MAX_WEIGHT, 1..20),
            more in 0..100_usize,
        ) {
            let handlers = weights.len() + more;
            let members = members(handlers, &weights);
            for member in &members {
                member.want(true);
            }
            let fair = fair(&members);
            prop_assert_eq!(fair.iter().sum::<usize>(), handlers);
            prop_assert!(fair.iter().all(|fair| *fair > 0));
            for (one, weight) in fair.iter().zip(&weights) {
                for (other, lighter) in fair.iter().zip(&weights) {
                    prop_assert!(weight <= lighter || one >= other, "{weights:?}: {fair:?}");
                }
            }
        }

        #[test]
        fn nobody_has_more_than_it_can_use_or_nothing(
            members in prop::collection::vec((1..=MAX_WEIGHT, 1..20_usize), 1..20),
            more in 0..100_usize,
        ) {
            let handlers = members.len() + more;
            let all: usize = members.iter().map(|(_, most)| *most).sum();
            let joined = bounded(handlers, &members);
            for member in &joined {
                member.want(true);
            }
            let fair = fair(&joined);
            prop_assert!(fair.iter().sum::<usize>() <= handlers);
            for (fair, (_, most)) in fair.iter().zip(&members) {
                prop_assert!(*fair >= 1 && fair <= most);
            }
            // All have what they can use, or all there are run.
            let mut taken = 0;
            for (member, (_, most)) in joined.iter().zip(&members) {
                taken += (0..*most).filter(|_| member.try_take()).count();
            }
            prop_assert_eq!(taken, all.min(handlers), "{:?}", fair);
        }

        /// Whatever workers do, no more run than there are, and while some are free, whoever has less than
        /// its own gets one.
        #[test]
        fn limit_holds_and_nobody_is_kept_from_its_own(
            weights in prop::collection::vec(1..10_u32, 1..5),
            steps in prop::collection::vec((0..5_usize, 0..4_u8), 0..200),
        ) {
            let handlers = 8;
            let members = members(handlers, &weights);
            let mut used = vec![0; weights.len()];
            for (which, step) in steps {
                let number = which % weights.len();
                let member = &members[number];
                match step {
                    0 => member.want(true),
                    1 => member.want(false),
                    2 if used[number] > 0 => {
                        member.free_one();
                        used[number] -= 1;
                    }
                    2 => {}
                    _ => {
                        let free = used.iter().sum::<usize>() < handlers;
                        let may = member.fair() > used[number];
                        let taken = member.try_take();
                        prop_assert!(taken || !(free && may));
                        prop_assert!(free || !taken);
                        used[number] += usize::from(taken);
                    }
                }
                prop_assert!(used.iter().sum::<usize>() <= handlers);
            }
        }
    }
}
