//! A worker on plain threads: the same as in `tasks`, with the blocking face.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use lockapi::Fence;
use lockapi::blocking::{Backend, MutexGuard};

use super::{HANDS, LOOK_AHEAD, Node, POLL, REPORT, RETRY, key};
use crate::args::Safety;
use crate::store::{BlockingStore, Run};

/// How long a run goes on until it looks whether its lock was lost.
const STEP: Duration = Duration::from_millis(10);

pub(crate) struct Worker<S> {
    node: Node,
    backend: Backend,
    store: S,
}

impl<S: BlockingStore> Worker<S> {
    pub(crate) fn new(node: Node, backend: Backend, store: S) -> Self {
        Self {
            node,
            backend,
            store,
        }
    }

    /// Works until nothing is due any more.
    pub(crate) fn work(&self) {
        let (working, ended) = mpsc::channel();
        thread::scope(|all| {
            all.spawn(move || self.report_all(&ended));
            thread::scope(|hands| {
                for hand in 0..HANDS {
                    hands.spawn(move || self.run_all(hand));
                }
            });
            drop::<mpsc::Sender<()>>(working);
        });
        self.report();
    }

    /// Runs one task after the other.
    fn run_all(&self, hand: usize) {
        let order = format!("{} {hand}", self.node.name);
        loop {
            // The database may be out of reach for a moment: look again.
            let pick = self.store.pick(&order, LOOK_AHEAD).unwrap_or_default();
            if pick.over {
                return;
            }
            if !pick.due.iter().any(|task| self.try_run(task)) {
                thread::sleep(POLL);
            }
        }
    }

    /// Runs a task, and answers `false` when that was not to be done.
    fn try_run(&self, task: &str) -> bool {
        if self.node.safety == Safety::NoLocks {
            return self.run(task, None);
        }
        let Ok(mutex) = self.backend.mutex(key(task)) else {
            return false;
        };
        let guard = match mutex.try_lock() {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                self.node.contended();
                return false;
            }
            // The connection has ended: the next look tries again.
            Err(_) => return false,
        };
        let ran = self.run(task, Some(&guard));
        // Whether it was still held no longer matters: what was written was checked.
        drop(guard.unlock());
        ran
    }

    fn run(&self, task: &str, guard: Option<&MutexGuard>) -> bool {
        let fence = guard.map(MutexGuard::fence);
        let run = match self.store.begin(task, &self.node.name, fence.as_ref()) {
            Ok(Some(run)) => run,
            // Another worker ran it between the look and the lock.
            Ok(None) => return false,
            Err(error) => {
                self.node.gave_up(error.is_lost());
                return false;
            }
        };
        if worked(run.work, guard) {
            let fence = fence.filter(|_| self.node.safety == Safety::Full);
            self.complete(&run, guard, fence.as_ref());
        } else {
            self.node.gave_up(false);
        }
        true
    }

    /// Tries until it is known whether the run counts.
    fn complete(&self, run: &Run, guard: Option<&MutexGuard>, fence: Option<&Fence>) {
        loop {
            match self.store.complete(run, fence) {
                Ok(()) => return,
                Err(error) if error.is_lost() => return self.node.gave_up(true),
                // Nobody else has the lock, so the same can be written again.
                Err(_) => thread::sleep(RETRY),
            }
            if guard.is_some_and(MutexGuard::is_lost) {
                return self.node.gave_up(false);
            }
        }
    }

    fn report_all(&self, ended: &Receiver<()>) {
        self.report();
        while ended.recv_timeout(REPORT) == Err(RecvTimeoutError::Timeout) {
            self.report();
        }
    }

    fn report(&self) {
        // The next report has the same and more.
        let _ok = self.store.report(&self.node.name, self.node.counts());
    }
}

/// Simulates work; answers `false` when the lock was lost before its end.
fn worked(work: Duration, guard: Option<&MutexGuard>) -> bool {
    let end = Instant::now() + work;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if guard.is_some_and(MutexGuard::is_lost) {
            return false;
        }
        thread::sleep(left.min(STEP));
    }
}
