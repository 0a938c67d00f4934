//! The tasks of a backend that have connections.

use std::future::Future;
use std::sync::Arc;

use super::catch_panic::contained;
use super::driver::Driver;
use crate::driver::BackgroundTask;
use crate::sync::Notify;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts them, so that one can wait for their end.
#[derive(Default)]
pub(super) struct Tasks {
    running: AtomicUsize,
    ended: Notify,
    closing: AtomicBool,
    closed: AtomicBool,
}

/// One of them, or something that they wait for; dropped when it has ended, however that came.
pub(super) struct Running(Arc<Tasks>);

impl Tasks {
    /// Has the driver run a task.
    pub(super) fn spawn(
        self: &Arc<Self>,
        driver: &Driver,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let running = self.enter();
        let task: BackgroundTask = Box::pin(async move {
            // Dropped after the task, and with its connection.
            let _running = running;
            task.await;
        });
        driver.spawn(name, task);
    }

    /// Counts something else that is to be waited for.
    pub(super) fn enter(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::AcqRel);
        Running(Arc::clone(self))
    }

    /// From now on only requests that release something are accepted.
    pub(super) fn begin_close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// From now on no connection is opened.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns once all have ended. A waker that panics would do so in the last of them, or keep others who wait from being woken.
    pub(super) async fn ended(&self) {
        loop {
            // Created before the count is read, so an end in between still wakes it.
            let ended = self.ended.notified();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            contained(ended).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::is_woken_beside_a_panic;

    #[test]
    fn a_waker_that_panics_ends_no_task_and_wakes_the_others() {
        let tasks = Arc::new(Tasks::default());
        let running = tasks.enter();
        let woken = is_woken_beside_a_panic(tasks.ended(), tasks.ended(), || drop(running));
        assert!(woken);
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use crate::sync::{explore, thread};

    #[test]
    fn whoever_waits_for_the_end_of_all_is_woken_by_the_last() {
        explore(|| {
            let tasks = Arc::new(Tasks::default());
            let ended = Arc::new(AtomicUsize::new(0));
            let running = [(); 2].map(|()| {
                let (running, ended) = (tasks.enter(), Arc::clone(&ended));
                thread::spawn(move || {
                    // One begins another before it ends.
                    let next = running.0.enter();
                    ended.fetch_add(1, Ordering::AcqRel);
                    drop(running);
                    drop(next);
                })
            });
            tasks.close();
            shuttle::future::block_on(tasks.ended());
            assert_eq!(ended.load(Ordering::Acquire), 2);
            for one in running {
                one.join().unwrap();
            }
        });
    }
}
