//! The waiters of one lock, in the order of arrival.

use std::collections::VecDeque;

use super::slot::{WaitPolicy, Waiter};
use crate::engine::clock::Time;
use crate::mutex::{LockMode, OwnerId};

/// The number of waiters that have left which may stay in a queue of any length.
const FEW: usize = 32;

pub(super) struct Queue<W> {
    /// In the order of their numbers. The first has not left.
    waiters: VecDeque<Waiter<W>>,
    /// How many of them have left.
    left: usize,
    /// How many of them have the policy `NoWait`.
    no_wait: usize,
    /// How many of them wait for the lock, to have it alone.
    alone: usize,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self {
            waiters: VecDeque::new(),
            left: 0,
            no_wait: 0,
            alone: 0,
        }
    }
}

impl<W> Queue<W> {
    pub(super) fn push(&mut self, waiter: Waiter<W>) {
        self.no_wait += usize::from(waiter.policy == WaitPolicy::NoWait);
        self.alone += usize::from(waiter.waits_alone());
        self.waiters.push_back(waiter);
    }

    fn removed(&mut self, waiter: &Waiter<W>) {
        self.no_wait -= usize::from(waiter.policy == WaitPolicy::NoWait);
        self.alone -= usize::from(waiter.waits_alone());
    }

    /// Whether any of them waits for the lock, to have it alone.
    pub(super) fn wants_alone(&self) -> bool {
        self.alone > 0
    }

    /// The owners of those who wait; an attempt that does not wait is in nobody's way.
    pub(super) fn owners(&self) -> impl Iterator<Item = OwnerId> {
        self.waiting().filter_map(|one| one.owner)
    }

    /// The owners of those who wait and whose time is not over.
    pub(super) fn owners_in_time(&self, now: Time) -> impl Iterator<Item = OwnerId> {
        let waiting = self.waiting().filter(move |one| !one.is_over(now));
        waiting.filter_map(|one| one.owner)
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiter<W>> {
        self.iter().filter(|one| one.policy != WaitPolicy::NoWait)
    }

    /// The mode that the first waiter wants.
    pub(super) fn wanted(&self) -> Option<LockMode> {
        self.waiters.front().map(|first| first.mode)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The waiters that have not left.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter<W>> {
        self.waiters.iter().filter(|waiter| waiter.reply.is_some())
    }

    /// Takes out attempts in front that want to have the lock alone and do not wait for it.
    pub(super) fn take_attempts_in_front(&mut self) -> Vec<Waiter<W>> {
        let is_attempt = |waiter: &Waiter<W>| {
            waiter.mode == LockMode::Exclusive && waiter.policy == WaitPolicy::NoWait
        };
        let mut attempts = Vec::new();
        while self.no_wait > 0
            && self.waiters.front().is_some_and(is_attempt)
            && let Some(attempt) = self.pop()
        {
            attempts.push(attempt);
        }
        attempts
    }

    /// When the time of the first is over, who waits to have the lock alone, before others.
    pub(super) fn front_ends(&self) -> Option<Time> {
        let first = self.waiters.front().filter(|first| first.waits_alone())?;
        match first.policy {
            WaitPolicy::Until(at) if self.waiters.len() > 1 => Some(at),
            _ => None,
        }
    }

    /// Takes out those in front whose time is over.
    pub(super) fn take_expired_in_front(&mut self, now: Time) -> Vec<Waiter<W>> {
        let mut expired = Vec::new();
        while self.waiters.front().is_some_and(|first| first.is_over(now))
            && let Some(first) = self.pop()
        {
            expired.push(first);
        }
        expired
    }

    /// Takes out all whose time is over.
    pub(super) fn take_expired(&mut self, now: Time) -> Vec<Waiter<W>> {
        if self.iter().any(|waiter| waiter.is_over(now)) {
            return self.take_out(|waiter| waiter.is_over(now));
        }
        Vec::new()
    }

    /// Those who want to share the lock, before any that waits to have it alone.
    pub(super) fn readers_in_front(&self) -> impl Iterator<Item = &Waiter<W>> {
        self.iter()
            .take_while(|waiter| !waiter.waits_alone())
            .filter(|waiter| waiter.mode == LockMode::Shared)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiter<W>> {
        self.waiters.iter_mut()
    }

    /// Takes the first out.
    pub(super) fn pop(&mut self) -> Option<Waiter<W>> {
        let first = self.waiters.pop_front()?;
        self.removed(&first);
        self.prune();
        Some(first)
    }

    /// Removes a caller, and returns it if it still waited. Its place is freed when it is the first, or
    /// when many have left, so that each removal is cheap.
    pub(super) fn leave(&mut self, id: u64) -> Option<Waiter<W>> {
        let at = self.waiters.binary_search_by_key(&id, |one| one.id).ok()?;
        let waiter = &mut self.waiters[at];
        let reply = Some(waiter.reply.take()?);
        let left = Waiter { reply, ..*waiter };
        self.removed(&left);
        self.left += 1;
        self.prune();
        if self.left > FEW.max(self.waiters.len() / 2) {
            self.waiters.retain(|waiter| waiter.reply.is_some());
            self.left = 0;
        }
        Some(left)
    }

    fn prune(&mut self) {
        while self.waiters.front().is_some_and(|one| one.reply.is_none()) {
            self.waiters.pop_front();
            self.left -= 1;
        }
    }

    /// Checks that its counts are those of its waiters, and that who left is not in front.
    #[cfg(test)]
    pub(super) fn is_counted(&self) {
        let count = |is: &dyn Fn(&Waiter<W>) -> bool| self.iter().filter(|one| is(one)).count();
        let attempts = count(&|one| one.policy == WaitPolicy::NoWait);
        assert_eq!(self.no_wait, attempts, "attempts that do not wait");
        let alone = count(&Waiter::waits_alone);
        assert_eq!(self.alone, alone, "those who want it alone");
        let left = self.waiters.len() - self.iter().count();
        assert_eq!(self.left, left, "those who left");
        assert!(
            self.waiters
                .front()
                .is_none_or(|first| first.reply.is_some())
        );
    }

    /// Takes out the callers that do not wait.
    pub(super) fn take_no_wait(&mut self) -> Vec<Waiter<W>> {
        if self.no_wait == 0 {
            return Vec::new();
        }
        self.take_out(|waiter| waiter.policy == WaitPolicy::NoWait)
    }

    /// Takes out the waiters that `choose` selects.
    pub(super) fn take_out(
        &mut self,
        mut choose: impl FnMut(&Waiter<W>) -> bool,
    ) -> Vec<Waiter<W>> {
        let mut chosen = Vec::new();
        for waiter in std::mem::take(self).waiters {
            if waiter.reply.is_none() {
                continue;
            }
            if choose(&waiter) {
                chosen.push(waiter);
            } else {
                self.push(waiter);
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_those_who_left_are_freed() {
        let mut queue = Queue::default();
        for id in 0..1000 {
            queue.push(Waiter {
                id,
                policy: WaitPolicy::Forever,
                mode: LockMode::Exclusive,
                owner: None,
                since: None,
                reply: Some(()),
            });
        }
        for (left, id) in (1..1000).rev().enumerate() {
            assert!(queue.leave(id).is_some() && queue.leave(id).is_none());
            let (places, wait) = (queue.waiters.len(), 999 - left);
            assert!(places - wait <= FEW.max(places / 2) + 1);
            assert_eq!(queue.iter().count(), wait);
        }
        assert_eq!(queue.pop().map(|waiter| waiter.id), Some(0));
        assert!(queue.is_empty() && !queue.wants_alone());
    }
}
