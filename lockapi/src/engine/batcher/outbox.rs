//! Answers to many callers of one request, told a few at a time: a task that is woken runs before those
//! that are woken after it, and nobody is to wait behind thousands.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::request::Reply;
use crate::error::Result;
use crate::wait::yield_now;

/// How many callers are woken before other tasks have their turn.
const AT_ONCE: usize = 64;
/// Before the next statement of a kind at least this part of what waits is told, so that it cannot grow
/// without end.
const PART: usize = 8;

/// The rest of what the callers of one request are told.
trait Answers: Send {
    /// How many are left.
    fn left(&self) -> usize;
    /// Tells the next.
    fn tell(&mut self);
}

impl<I, T> Answers for I
where
    I: ExactSizeIterator<Item = (Reply<T>, Result<T>)> + Send,
{
    fn left(&self) -> usize {
        self.len()
    }

    fn tell(&mut self) {
        if let Some((reply, outcome)) = self.next() {
            reply.send(outcome);
        }
    }
}

/// What is still to be told; clones are one and the same. What is left when the last is dropped is told
/// then.
#[derive(Clone, Default)]
pub(super) struct Outbox(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    answers: VecDeque<Box<dyn Answers>>,
    left: usize,
    /// How many are to be told before the next statement of this kind.
    due: (usize, usize),
    /// Whether the statement that was answered last left some.
    grown: bool,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.lock().left == 0
    }

    /// Tells the callers of a request what is theirs; of many, most of them later.
    pub(super) fn add<T>(
        &self,
        mut answers: impl ExactSizeIterator<Item = (Reply<T>, Result<T>)> + Send + 'static,
    ) {
        for (reply, outcome) in answers.by_ref().take(AT_ONCE) {
            reply.send(outcome);
        }
        if answers.len() > 0 {
            let mut waiting = self.lock();
            waiting.left += answers.len();
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
                self.tell_some();
                context.waker().wake_by_ref();
            }
            done
        })
        .await
    }

    /// A statement of this kind was answered. If it left some to be told, a part of what waits is to be told
    /// before the next one.
    pub(super) fn fall_due(&self, kind: usize) {
        let mut waiting = self.lock();
        if std::mem::take(&mut waiting.grown) {
            waiting.due = (waiting.left / PART, kind);
        }
    }

    /// Whether more is to be told before the next statement of a kind.
    pub(super) fn is_due(&self, kind: usize) -> bool {
        let waiting = self.lock();
        waiting.left > 0 && waiting.due.0 > 0 && waiting.due.1 == kind
    }

    /// Tells all.
    pub(super) async fn tell(&self) {
        while !self.is_empty() {
            self.tell_some();
            yield_now().await;
        }
    }

    /// Tells the next few.
    pub(super) fn tell_some(&self) {
        // Whoever is told may call.
        let Some(mut answers) = self.lock().answers.pop_front() else {
            return;
        };
        let most = answers.left().min(AT_ONCE);
        for _ in 0..most {
            answers.tell();
        }
        let mut waiting = self.lock();
        waiting.left -= most;
        waiting.due.0 = waiting.due.0.saturating_sub(most);
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
            while answers.left() > 0 {
                answers.tell();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use std::task::Poll;

    use super::super::request::Repeated;
    use super::*;
    use crate::blocking::block_on;

    /// Answers to so many callers, each of whom counts.
    fn answers(
        many: usize,
        told: &Arc<AtomicUsize>,
    ) -> impl ExactSizeIterator<Item = (Reply<()>, Result<()>)> + Send + use<> {
        let told = Arc::clone(told);
        (0..many).map(move |_| {
            let told = Arc::clone(&told);
            let reply = Reply::new(move |outcome: Result<()>, _: Repeated| {
                assert!(outcome.is_ok());
                told.fetch_add(1, Ordering::Relaxed);
            });
            (reply, Ok(()))
        })
    }

    #[test]
    fn many_are_told_a_few_at_a_time_while_work_goes_on() {
        let (told, outbox) = (Arc::default(), Outbox::default());
        outbox.add(answers(1000, &told));
        outbox.add(answers(10, &told));
        let mut turns = 0;
        let work = poll_fn(|context| {
            let told = told.load(Ordering::Relaxed);
            assert!(told <= 10 + (turns + 1) * AT_ONCE, "{told} after {turns}");
            turns += 1;
            context.waker().wake_by_ref();
            if turns == 5 {
                Poll::Ready("done")
            } else {
                Poll::Pending
            }
        });
        assert_eq!(block_on(outbox.beside(work)), "done");
        assert_eq!(told.load(Ordering::Relaxed), 10 + 5 * AT_ONCE);
        block_on(outbox.tell());
        assert_eq!(told.load(Ordering::Relaxed), 1010);
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_waits_does_not_grow_although_statements_take_no_time() {
        let (told, outbox) = (Arc::default(), Outbox::default());
        for _ in 0..1000 {
            outbox.add(answers(1000, &told));
            outbox.fall_due(0);
            outbox.fall_due(1);
            assert!(!outbox.is_due(1), "others need not wait");
            while outbox.is_due(0) {
                outbox.tell_some();
            }
            let left = outbox.lock().left;
            assert!(left <= PART * 1000, "{left}");
        }
    }

    #[test]
    fn what_was_decided_is_told_although_the_batcher_ends() {
        let (told, outbox) = (Arc::default(), Outbox::default());
        outbox.add(answers(1000, &told));
        drop(outbox);
        assert_eq!(told.load(Ordering::Relaxed), 1000);
    }
}
