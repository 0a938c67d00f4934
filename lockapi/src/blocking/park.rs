//! Waiting for a future on a thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, Thread};

/// How long a thread looks for an answer before it sleeps: a round trip takes about as long as
/// waking a processor that has gone to sleep.
const SPIN_TIME: Duration = Duration::from_micros(if cfg!(shuttle) { 0 } else { 100 });

/// Whether some caller looks; the others sleep at once.
static SPINNING: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

struct Signal {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let signal = Arc::new(Signal {
        woken: AtomicBool::new(false),
        thread: thread::current(),
    });
    let waker = Waker::from(Arc::clone(&signal));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        if !SPINNING.swap(true, Ordering::Relaxed) {
            spin(|| signal.woken.load(Ordering::Acquire));
            SPINNING.store(false, Ordering::Relaxed);
        }
        while !signal.woken.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}

/// Gives way to other threads until `found` or for a short time.
pub(crate) fn spin(mut found: impl FnMut() -> bool) {
    let since = Instant::now();
    while !found() && since.elapsed() < SPIN_TIME {
        thread::yield_now();
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use std::future::poll_fn;

    use super::*;
    use crate::sync::{Mutex, explore};

    /// How far another thread is, and whom it wakes.
    type Progress = Arc<Mutex<(u32, Option<Waker>)>>;

    fn advance(progress: &Progress) {
        let mut progress = progress.lock().unwrap();
        progress.0 += 1;
        let waker = progress.1.take();
        drop(progress);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    #[test]
    fn a_thread_that_waits_is_woken() {
        explore(|| {
            let progress = Progress::default();
            let other = Arc::clone(&progress);
            let other = thread::spawn(move || {
                for _ in 0..3 {
                    advance(&other);
                }
            });
            for wanted in 1..=3 {
                block_on(poll_fn(|context| {
                    let mut progress = progress.lock().unwrap();
                    if progress.0 >= wanted {
                        return Poll::Ready(());
                    }
                    progress.1 = Some(context.waker().clone());
                    Poll::Pending
                }));
            }
            other.join().unwrap();
        });
    }
}
