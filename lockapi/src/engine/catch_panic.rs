//! Code of the program on the engine's own tasks and threads.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::telemetry::{self, Fault};

/// Runs what may be the program's code, such as a waker or a callback: a panic in it must not end
/// what everybody else depends on.
pub(crate) fn catch_panic(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        telemetry::fault(Fault::Panicked);
    }
}

/// A waker of the program, whose panics stay in it.
struct Contained(Waker);

impl Wake for Contained {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        catch_panic(|| self.0.wake_by_ref());
    }
}

/// Waits with a waker that does not panic: whoever wakes many at once reaches the others as well, and goes on.
pub(crate) async fn contained<F: Future>(wait: F) -> F::Output {
    let mut wait = pin!(wait);
    let mut known: Option<(Waker, Waker)> = None;
    poll_fn(|context: &mut Context<'_>| {
        let waker = context.waker();
        let known = match &mut known {
            Some(known) if known.0.will_wake(waker) => known,
            known => known.insert((
                waker.clone(),
                Waker::from(Arc::new(Contained(waker.clone()))),
            )),
        };
        wait.as_mut().poll(&mut Context::from_waker(&known.1))
    })
    .await
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the program");
        }
    }

    #[derive(Default)]
    struct Counts(AtomicU32);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn panicking_waker() -> Waker {
        Waker::from(Arc::new(Panics))
    }

    /// Whether the second of two waits is woken, although the waker of the first panics.
    pub(crate) fn is_woken_beside_a_panic<T>(
        one: impl Future<Output = T>,
        other: impl Future<Output = T>,
        wake: impl FnOnce(),
    ) -> bool {
        let (mut one, mut other) = (pin!(one), pin!(other));
        let (panics, counts) = (panicking_waker(), Arc::new(Counts::default()));
        let first = one.as_mut().poll(&mut Context::from_waker(&panics));
        let counting = Waker::from(Arc::clone(&counts));
        let second = other.as_mut().poll(&mut Context::from_waker(&counting));
        assert!(first.is_pending() && second.is_pending());
        wake();
        counts.0.load(Ordering::Relaxed) > 0
    }
}
