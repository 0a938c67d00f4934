//! Answers to many callers of one request, told a few at a time: a task that is woken runs before those
//! that are woken after it, and nobody is to wait behind thousands.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;

use futures_util::future::{Either, select};

use super::request::Reply;
use crate::error::Result;
use crate::wait::yield_now;

/// How many callers are woken before other tasks have their turn.
pub(super) const AT_ONCE: usize = 64;

/// The rest of what the callers of one request are told.
pub(super) trait Answers: Send {
    /// Tells so many; answers whether it told all.
    fn tell(&mut self, most: usize) -> bool;
}

impl<I, T> Answers for I
where
    I: Iterator<Item = (Reply<T>, Result<T>)> + Send,
{
    fn tell(&mut self, most: usize) -> bool {
        for _ in 0..most {
            match self.next() {
                Some((reply, outcome)) => reply.send(outcome),
                None => return true,
            }
        }
        false
    }
}

/// What is still to be told.
#[derive(Default)]
pub(super) struct Outbox(VecDeque<Box<dyn Answers>>);

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, answers: Vec<Box<dyn Answers>>) {
        self.0.extend(answers);
    }

    /// Does work, and tells in its pauses.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        match select(pin!(work), pin!(self.tell())).await {
            Either::Left((done, _)) => done,
            Either::Right(((), work)) => work.await,
        }
    }

    /// Tells all.
    pub(super) async fn tell(&mut self) {
        while let Some(answers) = self.0.front_mut() {
            if answers.tell(AT_ONCE) {
                self.0.pop_front();
            }
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::super::request::Repeated;
    use super::*;
    use crate::blocking::block_on;

    #[test]
    fn many_are_told_a_few_at_a_time_while_work_goes_on() {
        let told = Arc::new(AtomicUsize::new(0));
        let answers = |many: usize| -> Box<dyn Answers> {
            let told = Arc::clone(&told);
            Box::new((0..many).map(move |_| {
                let told = Arc::clone(&told);
                let reply = Reply::new(move |_: Result<()>, _: Repeated| {
                    told.fetch_add(1, Ordering::Relaxed);
                });
                (reply, Ok(()))
            }))
        };
        let mut outbox = Outbox::default();
        outbox.add(vec![answers(1000), answers(10)]);
        let mut turns = 0;
        let work = poll_fn(|context| {
            turns += 1;
            let told = told.load(Ordering::Relaxed);
            assert!(told <= turns * AT_ONCE, "{told} told after {turns} turns");
            context.waker().wake_by_ref();
            if turns == 5 {
                Poll::Ready("done")
            } else {
                Poll::Pending
            }
        });
        assert_eq!(block_on(outbox.beside(work)), "done");
        assert!((1..1000).contains(&told.load(Ordering::Relaxed)));
        block_on(outbox.tell());
        assert_eq!(told.load(Ordering::Relaxed), 1010);
        assert!(outbox.is_empty());
    }
}
