//! Threads whose work a clock that is moved by hand can wait for.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::driver::BackgroundTask;
use crate::engine::Activity;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::thread::{self, Thread};

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
        // Begun before the thread can see it: what that ends must have begun.
        self.activity.begin();
        if self.state.swap(WOKEN, Ordering::AcqRel) != IDLE {
            self.activity.end();
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

#[cfg(all(test, shuttle))]
mod interleavings {
    use std::future::poll_fn;

    use super::*;
    use crate::sync::atomic::AtomicBool;
    use crate::sync::{Mutex, explore};

    /// The clock must not go on while a task is at work, or was woken by one that is.
    #[test]
    fn what_is_at_work_counts() {
        explore(|| {
            let activity = Arc::new(Activity::default());
            let at_work = Arc::new(AtomicBool::new(false));
            let woken = Arc::new(Mutex::new((false, None::<Waker>)));
            let (other, watched) = (Arc::clone(&woken), Arc::clone(&activity));
            let waiting = poll_fn(move |context| {
                assert!(!watched.is_idle(), "who is polled is at work");
                let mut woken = other.lock().unwrap();
                woken.1 = Some(context.waker().clone());
                if woken.0 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            let works = Arc::clone(&at_work);
            let waking = async move {
                works.store(true, Ordering::Release);
                let waker = {
                    let mut woken = woken.lock().unwrap();
                    woken.0 = true;
                    woken.1.clone()
                };
                if let Some(waker) = waker {
                    waker.wake();
                }
                works.store(false, Ordering::Release);
            };
            let tasks: [BackgroundTask; 2] = [Box::pin(waiting), Box::pin(waking)];
            let threads = tasks.map(|task| {
                let activity = Arc::clone(&activity);
                thread::spawn(move || run(task, &activity))
            });
            for _ in 0..10 {
                let idle = at_work.load(Ordering::Acquire) && activity.is_idle();
                assert!(!idle || !at_work.load(Ordering::Acquire), "it is at work");
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(activity.is_idle());
        });
    }
}
