//! Answers to many callers of one request, delivered a few at a time: a task that is woken runs before
//! those that are woken after it, so that no task waits behind thousands.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, PoisonError};

use rustc_hash::FxHashMap;

use super::caller::Reply;
use crate::error::Result;
use crate::sync::{Mutex, MutexGuard};
use crate::wait::yield_now;

/// How many callers are woken before other tasks have their turn.
const AT_ONCE: usize = 64;
/// Before the next statement of a kind at least this part of what is left is delivered, so that it cannot grow
/// without end.
const PART: usize = 8;

/// The answers to callers of one request that are still to be delivered.
struct Answers<I> {
    answers: I,
    left: usize,
}

/// See [`Answers`].
trait AnyAnswers: Send {
    fn left(&self) -> usize;
    /// Delivers this number of answers.
    fn deliver(&mut self, most: usize);
}

impl<I, T> AnyAnswers for Answers<I>
where
    I: Iterator<Item = (Reply<T>, Result<T>)> + Send,
{
    fn left(&self) -> usize {
        self.left
    }

    fn deliver(&mut self, most: usize) {
        let most = most.min(self.left);
        self.left -= most;
        for (reply, outcome) in self.answers.by_ref().take(most) {
            reply.send(outcome);
        }
    }
}

/// What is still to be delivered; clones are one and the same. What is left when the last is dropped is delivered
/// then.
#[derive(Clone, Default)]
pub(super) struct Outbox(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    answers: VecDeque<Box<dyn AnyAnswers>>,
    left: usize,
    /// By kind, how many are to be delivered before its next statement.
    due: FxHashMap<usize, usize>,
    /// Whether the statement that was answered last left some.
    grown: bool,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.lock().left == 0
    }

    /// Tells so many callers of a request what is theirs; of many, most of them later.
    pub(super) fn add<T>(
        &self,
        many: usize,
        answers: impl Iterator<Item = (Reply<T>, Result<T>)> + Send + 'static,
    ) {
        let mut answers = Answers {
            answers,
            left: many,
        };
        answers.deliver(AT_ONCE);
        if answers.left > 0 {
            let mut waiting = self.lock();
            waiting.left += answers.left;
            waiting.grown = true;
            waiting.answers.push_back(Box::new(answers));
        }
    }

    /// Does work, and tells in its pauses.
    pub(super) async fn beside<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let done = work.as_mut().poll(context);
            if done.is_pending() && !self.is_empty() {
                self.deliver_some();
                context.waker().wake_by_ref();
            }
            done
        })
        .await
    }

    /// A statement of this kind was answered. If it left some to be delivered, a part of what waits is to be delivered
    /// before the next one.
    pub(super) fn make_due(&self, kind: usize) {
        let mut waiting = self.lock();
        if std::mem::take(&mut waiting.grown) {
            let due = waiting.left / PART;
            waiting.due.insert(kind, due);
        }
    }

    /// Whether more is to be delivered before the next statement of a kind.
    pub(super) fn is_due(&self, kind: usize) -> bool {
        let waiting = self.lock();
        waiting.left > 0 && waiting.due.get(&kind).is_some_and(|due| *due > 0)
    }

    /// Tells all.
    pub(super) async fn deliver(&self) {
        while !self.is_empty() {
            self.deliver_some();
            yield_now().await;
        }
    }

    /// Tells the next few.
    pub(super) fn deliver_some(&self) {
        // Whoever is delivered may call.
        let Some(mut answers) = self.lock().answers.pop_front() else {
            return;
        };
        let delivered = answers.left().min(AT_ONCE);
        answers.deliver(delivered);
        let mut waiting = self.lock();
        waiting.left -= delivered;
        for due in waiting.due.values_mut() {
            *due = due.saturating_sub(delivered);
        }
        if answers.left() > 0 {
            waiting.answers.push_front(answers);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for answers in &mut self.answers {
            answers.deliver(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::super::caller::Repeated;
    use super::*;
    use crate::blocking::block_on;

    /// Answers to so many callers, each of whom counts.
    fn answers(
        many: usize,
        delivered: &Arc<AtomicUsize>,
    ) -> impl Iterator<Item = (Reply<()>, Result<()>)> + Send + use<> {
        let delivered = Arc::clone(delivered);
        (0..many).map(move |_| {
            let delivered = Arc::clone(&delivered);
            let reply = Reply::new(move |outcome: Result<()>, _: Repeated| {
                assert!(outcome.is_ok());
                delivered.fetch_add(1, Ordering::Relaxed);
            });
            (reply, Ok(()))
        })
    }

    #[test]
    fn many_are_told_a_few_at_a_time_while_work_goes_on() {
        let (delivered, outbox) = (Arc::default(), Outbox::default());
        outbox.add(1000, answers(1000, &delivered));
        outbox.add(10, answers(10, &delivered));
        let mut turns = 0;
        let work = poll_fn(|context| {
            let delivered = delivered.load(Ordering::Relaxed);
            assert!(
                delivered <= 10 + (turns + 1) * AT_ONCE,
                "{delivered} after {turns}"
            );
            turns += 1;
            context.waker().wake_by_ref();
            if turns == 5 {
                Poll::Ready("done")
            } else {
                Poll::Pending
            }
        });
        assert_eq!(block_on(outbox.beside(work)), "done");
        assert_eq!(delivered.load(Ordering::Relaxed), 10 + 5 * AT_ONCE);
        block_on(outbox.deliver());
        assert_eq!(delivered.load(Ordering::Relaxed), 1010);
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_waits_does_not_grow_although_statements_take_no_time() {
        let (delivered, outbox) = (Arc::default(), Outbox::default());
        for round in 0..1000 {
            // Two kinds take turns, and neither forgets what the other has to deliver.
            let kind = round % 2;
            while outbox.is_due(kind) {
                outbox.deliver_some();
            }
            outbox.add(1000, answers(1000, &delivered));
            outbox.make_due(kind);
            outbox.make_due(2);
            assert!(!outbox.is_due(2), "others need not wait");
            let left = outbox.lock().left;
            assert!(left <= 2 * PART * 1000, "{left}");
        }
    }

    #[test]
    fn what_was_decided_is_told_although_the_batcher_ends() {
        let (delivered, outbox) = (Arc::default(), Outbox::default());
        outbox.add(1000, answers(1000, &delivered));
        drop(outbox);
        assert_eq!(delivered.load(Ordering::Relaxed), 1000);
    }
}
