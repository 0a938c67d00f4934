//! A worker on plain threads: the same as in `tasks`, with the blocking face.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use lockapi::Stop;
use lockapi::blocking::{Backend, Delivery, Queue};

use super::{HANDS, NAME, Node, POLL, REPORT, RETRY};
use crate::args::Safety;
use crate::store::{BlockingStore, Run};

/// How long a run goes on until it looks whether its delivery was lost.
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
    pub(crate) fn work(&self) -> lockapi::Result<()> {
        let queue = self.backend.queue(NAME)?;
        let scheduler = self.backend.scheduler_with(NAME, self.node.options())?;
        let (working, ended) = mpsc::channel();
        let done = Stop::new();
        let scheduled = thread::scope(|all| {
            all.spawn(move || self.report_all(&ended));
            let scheduling = all.spawn(|| scheduler.run(&done));
            thread::scope(|hands| {
                for _ in 0..HANDS {
                    hands.spawn(|| self.run_all(&queue));
                }
            });
            done.stop();
            drop::<mpsc::Sender<()>>(working);
            scheduling.join()
        });
        self.report();
        scheduled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Works on one run after the other.
    fn run_all(&self, queue: &Queue) {
        let claim = self.node.claim();
        loop {
            let ran = match queue.claim(&claim).map(|mut jobs| jobs.pop()) {
                Ok(Some(delivery)) => self.run(delivery),
                Ok(None) => false,
                // The database may be out of reach for a moment.
                Err(_) => {
                    thread::sleep(POLL);
                    false
                }
            };
            if !ran && self.store.over().unwrap_or(false) {
                return;
            }
        }
    }

    /// Works on a run, and answers `false` when that was not to be done.
    fn run(&self, delivery: Delivery) -> bool {
        let run = match self.store.begin(&delivery, self.node.name()) {
            Ok(Some(run)) => run,
            outcome => {
                // It is given back in any case.
                drop(delivery.snooze(POLL));
                return outcome.is_err();
            }
        };
        if self.worked(run.work, &delivery) {
            self.complete(&run, delivery);
        } else {
            self.node.gave_up(false);
        }
        true
    }

    /// Tries until it is known whether the run counts.
    fn complete(&self, run: &Run, delivery: Delivery) {
        let fenced = self.node.safety == Safety::Full;
        loop {
            match self.store.complete(run, fenced.then_some(&*delivery)) {
                Ok(()) => break,
                Err(error) if error.is_lost() => return self.node.gave_up(true),
                Err(_) => thread::sleep(RETRY),
            }
        }
        if !fenced {
            // Another may have it by now; what was written stays.
            drop(delivery.ack());
        }
    }

    /// Simulates work; answers `false` when the delivery was lost before its end.
    fn worked(&self, work: Duration, delivery: &Delivery) -> bool {
        let end = Instant::now() + work;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            if self.node.safety == Safety::Full && delivery.is_lost() {
                return false;
            }
            thread::sleep(left.min(STEP));
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
        let _ok = self.store.report(self.node.name(), self.node.counts());
    }
}
