//! Waiting for a future on a thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread looks for an answer before it sleeps: a round trip takes about as long as
/// waking a processor that has gone to sleep.
const LOOK: Duration = Duration::from_micros(100);

/// Whether some caller looks; the others sleep at once.
static LOOKING: AtomicBool = AtomicBool::new(false);

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
        if !LOOKING.swap(true, Ordering::Relaxed) {
            look(|| signal.woken.load(Ordering::Acquire));
            LOOKING.store(false, Ordering::Relaxed);
        }
        while !signal.woken.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}

/// Gives way to other threads until `found` or for a short time.
pub(crate) fn look(mut found: impl FnMut() -> bool) {
    let since = Instant::now();
    while !found() && since.elapsed() < LOOK {
        thread::yield_now();
    }
}
