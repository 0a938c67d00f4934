//! Threads that run what they are given.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError};

use crate::sync::{Condvar, Mutex, MutexGuard, thread};

type Task = Box<dyn FnOnce() + Send>;

/// Starts a thread whenever there is something to run and none is idle. It does not limit their
/// number: whoever gives it work does.
#[derive(Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// Runs a task, which must not panic.
    pub(super) fn run(self: &Arc<Self>, task: Task) -> io::Result<()> {
        let mut state = self.lock();
        state.tasks.push_back(task);
        if state.idle >= state.tasks.len() {
            drop(state);
            self.changed.notify_one();
            return Ok(());
        }
        let pool = Arc::clone(self);
        let thread = thread::Builder::new().name("lockapi-handler".to_owned());
        if let Err(error) = thread.spawn(move || pool.work()) {
            let task = state.tasks.pop_back();
            // What it holds is dropped outside of the lock.
            drop(state);
            drop(task);
            return Err(error);
        }
        Ok(())
    }

    /// Lets the threads end once they are idle.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                task();
                state = self.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use crate::sync::explore;

    /// How many have come to a place where they wait for each other.
    #[derive(Default)]
    struct Meeting(Mutex<usize>, Condvar);

    impl Meeting {
        fn wait_for(&self, all: usize) {
            let mut here = self.0.lock().unwrap();
            *here += 1;
            self.1.notify_all();
            while *here < all {
                here = self.1.wait(here).unwrap();
            }
        }
    }

    /// Neither waits for a thread that another keeps, and all threads end.
    #[test]
    fn tasks_that_wait_for_each_other_have_a_thread_each() {
        explore(|| {
            let pool = Arc::new(Pool::default());
            // Leaves a thread that is idle, or about to be.
            pool.run(Box::new(|| {})).unwrap();
            let meeting = Arc::new(Meeting::default());
            let comes = || {
                let meeting = Arc::clone(&meeting);
                Box::new(move || meeting.wait_for(3))
            };
            let (other, task) = (Arc::clone(&pool), comes());
            let other = thread::spawn(move || other.run(task).unwrap());
            pool.run(comes()).unwrap();
            other.join().unwrap();
            meeting.wait_for(3);
            pool.close();
        });
    }

    #[test]
    fn what_was_given_before_the_end_is_run() {
        explore(|| {
            let pool = Arc::new(Pool::default());
            let ran = Arc::new(Mutex::new(0));
            for _ in 0..2 {
                let ran = Arc::clone(&ran);
                pool.run(Box::new(move || *ran.lock().unwrap() += 1))
                    .unwrap();
            }
            pool.close();
            while *ran.lock().unwrap() < 2 {
                thread::yield_now();
            }
        });
    }
}
