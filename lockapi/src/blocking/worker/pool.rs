//! Threads that run what they are given.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

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
