//! The locks, atomics and threads of the engine: those of the standard library, and of tokio.
//!
//! With `--cfg shuttle` (`make interleavings`) tests get those of shuttle, whose scheduler decides at each of
//! them which thread goes on, and reports threads that all wait for ever.

#[cfg(not(all(test, shuttle)))]
mod chosen {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
    pub(crate) use std::{thread, thread_local};

    pub(crate) use tokio::sync::Notify;
}

#[cfg(all(test, shuttle))]
mod chosen {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
    pub(crate) use shuttle::{thread, thread_local};
    use tokio::sync::futures::Notified;

    /// Between its steps another thread may go on.
    #[derive(Debug, Default)]
    pub(crate) struct Notify(tokio::sync::Notify);

    impl Notify {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notified(&self) -> Notified<'_> {
            thread::yield_now();
            self.0.notified()
        }

        pub(crate) fn notify_waiters(&self) {
            thread::yield_now();
            self.0.notify_waiters();
        }

        pub(crate) fn notify_one(&self) {
            thread::yield_now();
            self.0.notify_one();
        }
    }

    /// Runs a program with some thousand schedules: random ones, and ones with few changes of the thread.
    pub(crate) fn explore(program: impl Fn() + Clone + Send + Sync + 'static) {
        shuttle::check_random(program.clone(), 2000);
        shuttle::check_pct(program, 2000, 3);
    }
}

pub(crate) use chosen::*;
