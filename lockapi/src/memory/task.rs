//! Threads whose work a clock that is moved by hand can wait for.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::driver::BackgroundTask;
use crate::engine::Activity;

const IDLE: u8 = 0;
const AT_WORK: u8 = 1;
/// Woken, and not polled since.
const WOKEN: u8 = 2;

/// Wakes a thread, which is at work from that moment on.
struct Waking {
    thread: Thread,
    state: AtomicU8,
    activity: Arc<Activity>,
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == IDLE {
            self.activity.begin();
        }
        self.thread.unpark();
    }
}

/// Ends the activity of a thread, also when it panics.
struct Working(Arc<Activity>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs a task to its end on this thread.
pub(super) fn run(task: BackgroundTask, activity: &Arc<Activity>) {
    activity.begin();
    let mut working = Working(Arc::clone(activity));
    let waking = Arc::new(Waking {
        thread: thread::current(),
        state: AtomicU8::new(AT_WORK),
        activity: Arc::clone(activity),
    });
    let waker = Waker::from(Arc::clone(&waking));
    let mut context = Context::from_waker(&waker);
    let mut task = pin!(task);
    loop {
        waking.state.store(AT_WORK, Ordering::Release);
        if let Poll::Ready(()) = task.as_mut().poll(&mut context) {
            return;
        }
        let idle =
            waking
                .state
                .compare_exchange(AT_WORK, IDLE, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_err() {
            continue;
        }
        drop(working);
        while waking.state.load(Ordering::Acquire) != WOKEN {
            thread::park();
        }
        // Whoever woke it has begun the activity.
        working = Working(Arc::clone(activity));
    }
}
