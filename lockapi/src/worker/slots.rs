//! How many handlers run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;

/// Counts the handlers that have begun and not ended, even those that are no longer waited for.
#[derive(Default)]
pub(crate) struct Slots {
    used: AtomicUsize,
    freed: AtomicWaker,
}

/// A slot that is in use, until it is dropped.
pub(crate) enum Slot {
    Own(Arc<Slots>),
    /// A slot that several parts share; it is free when the last has ended.
    Shared(#[expect(dead_code, reason = "it is dropped")] Arc<Slot>),
}

impl Slots {
    pub(crate) fn take(self: &Arc<Self>) -> Slot {
        self.used.fetch_add(1, Ordering::AcqRel);
        Slot::Own(Arc::clone(self))
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Wakes this one when the next is freed.
    pub(crate) fn watch(&self, waker: &Waker) {
        self.freed.register(waker);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Self::Own(slots) = self {
            slots.used.fetch_sub(1, Ordering::AcqRel);
            slots.freed.wake();
        }
    }
}
