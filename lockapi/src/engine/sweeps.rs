//! Deleting and moving old rows in the background, on a connection of its own, which is closed in between.
//!
//! A table is gone through in parts of an index, so that a statement reads as many rows as a part has,
//! however large the table is and however little there is to delete.

use std::any::TypeId;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::batcher::Batcher;
use super::batcher::Queued;
use super::connection::Connections;
use super::timer::Timer;
use crate::sync::{Mutex, MutexGuard};

/// How many rows a part has.
pub(super) const PART: i64 = 1000;
/// A connection that sweeps nothing for so long is closed.
const IDLE: Duration = Duration::from_secs(5);
/// A part that failed is tried again after this time, so often.
const AGAIN: Duration = Duration::from_secs(60);
const TRIES: u32 = 5;

/// An operation that deletes what is old in a part of a table.
pub(super) trait Sweeping: Queued + Clone {
    /// How long after its table was used first, or used again after a sweep, the sweep begins; up to
    /// twice as long, so that processes that start together do not sweep together.
    const EVERY: Duration;
    /// The pause between two parts.
    const PAUSE: Duration = Duration::from_millis(250);

    /// The part that comes after this one; `None` at the end.
    fn next(self, answer: Self::Output) -> Option<Self>;
}

/// The sweeps of a process.
pub(crate) struct Sweeps {
    batcher: Arc<Batcher>,
    timer: Timer,
    /// What is swept, or will be.
    running: Mutex<HashSet<(TypeId, i64)>>,
    this: Weak<Self>,
}

impl Sweeps {
    pub(super) fn new(connections: &Arc<Connections>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            batcher: Batcher::occasional(Arc::clone(connections), IDLE),
            timer: connections.timer.clone(),
            running: Mutex::default(),
            this: this.clone(),
        })
    }

    pub(super) fn close(&self) {
        self.batcher.close();
    }

    /// For whatever else takes long: others do not wait behind it.
    pub(super) fn batcher(&self) -> &Arc<Batcher> {
        &self.batcher
    }

    /// Sweeps after a while, from `first` on. Of those of one kind, `of` tells apart which may run
    /// side by side.
    pub(super) fn later<O: Sweeping>(&self, of: i64, first: impl FnOnce() -> O + Send + 'static) {
        if self.begin::<O>(of) {
            let pause = O::EVERY.mul_f64(1.0 + fastrand::f64());
            self.part_after(pause, of, first, TRIES);
        }
    }

    /// Sweeps now, from `first` on.
    pub(super) fn now<O: Sweeping>(&self, of: i64, first: O) {
        if self.begin::<O>(of) {
            self.part(of, first, TRIES);
        }
    }

    fn begin<O: Sweeping>(&self, of: i64) -> bool {
        self.lock().insert((TypeId::of::<O>(), of))
    }

    fn part_after<O: Sweeping>(
        &self,
        pause: Duration,
        of: i64,
        part: impl FnOnce() -> O + Send + 'static,
        tries: u32,
    ) {
        let this = self.this.clone();
        self.timer.run_at(self.timer.now() + pause, move || {
            if let Some(sweeps) = this.upgrade() {
                sweeps.part(of, part(), tries);
            }
        });
    }

    fn part<O: Sweeping>(&self, of: i64, part: O, tries: u32) {
        let this = self.this.clone();
        self.batcher.submit(part.clone(), move |answer| {
            let Some(sweeps) = this.upgrade() else {
                return;
            };
            let next = match answer {
                Ok(answer) => part.next(answer).map(|next| (O::PAUSE, next, TRIES)),
                // What is left in the end is for the next sweep.
                Err(_) => tries.checked_sub(1).map(|tries| (AGAIN, part, tries)),
            };
            match next {
                Some((pause, next, tries)) => sweeps.part_after(pause, of, move || next, tries),
                None => drop(sweeps.lock().remove(&(TypeId::of::<O>(), of))),
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(TypeId, i64)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
