//! How many handlers a worker runs.

use std::sync::Arc;
use std::task::Waker;

use futures_util::task::AtomicWaker;

use super::shared::Member;
use super::{MAX_CONCURRENCY, SharedConcurrency};
use crate::error::Result;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// How many handlers a worker runs unless another number is set.
const CONCURRENCY: usize = 16;

/// Counts the handlers that have begun and not ended, even those that are no longer waited for.
pub(crate) struct Slots {
    concurrency: usize,
    used: AtomicUsize,
    freed: Arc<AtomicWaker>,
    share: Option<Member>,
}

/// A slot that is in use, until it is dropped.
pub(crate) enum Slot {
    Own(Arc<Slots>),
    /// A slot that several parts share; it is free when the last has ended.
    Shared(#[expect(dead_code, reason = "it is dropped")] Arc<Slot>),
}

/// How many handlers a worker may run.
#[derive(Clone, Debug, Default)]
pub(super) struct Concurrency {
    pub(super) own: Option<usize>,
    pub(super) shared: Option<(SharedConcurrency, u32)>,
}

impl Concurrency {
    /// The most that run, whatever other workers do.
    pub(super) fn most(&self) -> usize {
        let shared = self.shared.as_ref().map(|(shared, _)| shared.handlers());
        let own = self.own.or(shared).unwrap_or(CONCURRENCY);
        shared.map_or(own, |shared| own.min(shared))
    }

    pub(super) fn check(&self) -> std::result::Result<(), String> {
        if let Some(handlers) = self.own
            && !(1..=MAX_CONCURRENCY).contains(&handlers)
        {
            return Err(format!(
                "a concurrency of {handlers}; allowed are 1 to {MAX_CONCURRENCY}"
            ));
        }
        match &self.shared {
            None => Ok(()),
            Some((shared, weight)) => shared.check(*weight),
        }
    }

    pub(super) fn slots(&self) -> Result<Slots> {
        let freed = Arc::<AtomicWaker>::default();
        let share = match &self.shared {
            None => None,
            Some((shared, weight)) => {
                Some(shared.join(*weight, self.most(), Arc::clone(&freed))?)
            }
        };
        Ok(Slots {
            concurrency: self.most(),
            used: AtomicUsize::new(0),
            freed,
            share,
        })
    }
}

impl Slots {
    /// Takes one, if one is free.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let free = self.used.load(Ordering::Acquire) < self.concurrency;
        let taken = free && self.share.as_ref().is_none_or(Member::try_take);
        taken.then(|| {
            self.used.fetch_add(1, Ordering::AcqRel);
            Slot::Own(Arc::clone(self))
        })
    }

    /// How many could be taken now.
    pub(crate) fn free(&self) -> usize {
        let used = self.used.load(Ordering::Acquire);
        let own = self.concurrency.saturating_sub(used);
        match &self.share {
            Some(share) => own.min(share.free()),
            None => own,
        }
    }

    /// How many are its own while all that share them want some.
    pub(crate) fn fair(&self) -> usize {
        match &self.share {
            Some(share) => self.concurrency.min(share.fair()),
            None => self.concurrency,
        }
    }

    /// Whether some are wanted: others that share them leave it its own only then.
    pub(crate) fn want(&self, some: bool) {
        if let Some(share) = &self.share {
            share.want(some);
        }
    }

    /// Nothing is begun any more.
    pub(crate) fn leave(&self) {
        if let Some(share) = &self.share {
            share.leave();
        }
    }

    /// Wakes this one when there may be more of them.
    pub(crate) fn watch(&self, waker: &Waker) {
        self.freed.register(waker);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Self::Own(slots) = self {
            slots.used.fetch_sub(1, Ordering::AcqRel);
            if let Some(share) = &slots.share {
                share.free_one();
            }
            slots.freed.wake();
        }
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;
    use crate::sync::{explore, thread};

    /// As a worker does: it looks after it is registered, and goes to sleep when none is free.
    fn work(slots: &Arc<Slots>, jobs: usize, running: &Arc<AtomicUsize>, most: usize) {
        for _ in 0..jobs {
            let slot = shuttle::future::block_on(poll_fn(|context| {
                slots.watch(context.waker());
                slots.want(true);
                slots.try_take().map_or(Poll::Pending, Poll::Ready)
            }));
            let running = Arc::clone(running);
            // Its handler is not waited for.
            thread::spawn(move || {
                assert!(running.fetch_add(1, Ordering::AcqRel) < most);
                running.fetch_sub(1, Ordering::AcqRel);
                drop(slot);
            });
        }
        slots.want(false);
    }

    #[test]
    fn handler_that_ends_wakes_the_worker() {
        explore(|| {
            let concurrency = Concurrency {
                own: Some(1),
                shared: None,
            };
            let slots = Arc::new(concurrency.slots().unwrap());
            work(&slots, 3, &Arc::default(), 1);
        });
    }

    #[test]
    fn workers_that_share_handlers_wake_each_other() {
        explore(|| {
            let (shared, running) = (SharedConcurrency::new(2), Arc::default());
            let workers = [1, 1].map(|weight| {
                let concurrency = Concurrency {
                    own: None,
                    shared: Some((shared.clone(), weight)),
                };
                let slots = Arc::new(concurrency.slots().unwrap());
                let running = Arc::clone(&running);
                thread::spawn(move || work(&slots, 2, &running, 2))
            });
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }

    /// What one has, and does not want any more, is for the other: also when it leaves with handlers that run.
    #[test]
    fn worker_that_leaves_lets_the_other_have_all() {
        explore(|| {
            let shared = SharedConcurrency::new(2);
            let slots = [1, 1].map(|weight| {
                let concurrency = Concurrency {
                    own: None,
                    shared: Some((shared.clone(), weight)),
                };
                Arc::new(concurrency.slots().unwrap())
            });
            let [leaving, staying] = slots;
            leaving.want(true);
            let slot = leaving.try_take().unwrap();
            let leaves = thread::spawn(move || {
                leaving.leave();
                drop(slot);
            });
            let mut taken = Vec::new();
            shuttle::future::block_on(poll_fn(|context| {
                staying.watch(context.waker());
                staying.want(true);
                taken.extend(std::iter::from_fn(|| staying.try_take()));
                if taken.len() == 2 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            leaves.join().unwrap();
        });
    }
}
