//! A signal that stops workers, schedulers and leaders.

use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{BoxFuture, Either, FutureExt, Shared, select};

use crate::blocking::block_on;
use crate::engine::contained;
use crate::sync::Notify;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Signals workers, schedulers and leaders to stop; clones share one signal.
///
/// Methods that run until they are stopped accept anything that is `Into<Stop>`: a `Stop`, a reference
/// to one, or any future, such as `tokio::signal::ctrl_c()`, which stops them when it completes.
///
/// ```
/// use lockapi::Stop;
///
/// let by_hand = Stop::new();
/// let clone = by_hand.clone();
/// clone.stop();
/// assert!(by_hand.is_stopped());
///
/// # lockapi::blocking::block_on(async {
/// let (terminate, terminated) = tokio::sync::oneshot::channel::<()>();
/// let by_signal = Stop::from(terminated);
/// terminate.send(()).expect("it is waited for");
/// by_signal.stopped().await;
/// # });
/// ```
#[derive(Clone, Default)]
pub struct Stop(Arc<State>);

#[derive(Default)]
struct State {
    stopped: AtomicBool,
    changed: Notify,
    signal: Option<StopFuture>,
}

type StopFuture = Shared<BoxFuture<'static, ()>>;

impl Stop {
    /// A signal that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the signal for all clones; repeated calls have no effect.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Whether the signal is set, by [`stop`](Self::stop) or by a future. A future counts once a waiter
    /// has polled it to its end; workers, schedulers and leaders do.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let ended = |signal: &StopFuture| signal.peek().is_some();
        self.0.stopped.load(Ordering::Acquire) || self.0.signal.as_ref().is_some_and(ended)
    }

    /// Returns once the signal is set.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    pub async fn stopped(&self) {
        let mut signal = pin!(async {
            match self.0.signal.clone() {
                Some(signal) => signal.await,
                None => pending().await,
            }
        });
        // Whoever leaves may be the one whom the end of the future has woken: the others look as well.
        let _wake_others = self.0.signal.as_ref().map(|_| WakeOthers(&self.0.changed));
        loop {
            // Created before the flag is read, so that a call in between still wakes it.
            let changed = pin!(self.0.changed.notified());
            if self.0.stopped.load(Ordering::Acquire) {
                return;
            }
            if let Either::Right(_) = contained(select(changed, signal.as_mut())).await {
                return;
            }
        }
    }

    /// As [`stopped`](Self::stopped), but blocks the calling thread. A future that needs a runtime
    /// cannot complete here.
    pub fn stopped_blocking(&self) {
        block_on(self.stopped());
    }
}

struct WakeOthers<'a>(&'a Notify);

impl Drop for WakeOthers<'_> {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

/// Stops when the future completes, whatever its output: a signal handler that cannot be installed
/// stops as well. A future that needs a runtime, like those of tokio, only completes on one: with the
/// blocking interface call [`stop`](Stop::stop) instead, for example from a signal handler.
impl<F> From<F> for Stop
where
    F: Future + Send + 'static,
{
    fn from(signal: F) -> Self {
        let signal = signal.map(drop).boxed();
        Self(Arc::new(State {
            signal: Some(signal.shared()),
            ..State::default()
        }))
    }
}

impl From<&Stop> for Stop {
    fn from(stop: &Stop) -> Self {
        stop.clone()
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = self.is_stopped();
        f.debug_struct("Stop").field("stopped", &stopped).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;
    use crate::engine::is_woken_beside_a_panic;

    #[test]
    fn waker_that_panics_keeps_no_worker_from_stopping() {
        let stop = Stop::new();
        let waits = (stop.stopped(), stop.stopped());
        assert!(is_woken_beside_a_panic(waits.0, waits.1, || stop.stop()));
    }

    #[test]
    fn a_future_and_a_word_stop_all_clones() {
        let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
        let stop = Stop::from(signalled);
        let clones: Vec<_> = (0..3).map(|_| stop.clone()).collect();
        let waiting: Vec<_> = clones
            .into_iter()
            .map(|stop| std::thread::spawn(move || stop.stopped_blocking()))
            .collect();
        assert!(!stop.is_stopped());
        signal.send(()).unwrap();
        for thread in waiting {
            thread.join().unwrap();
        }
        assert!(stop.is_stopped());

        let stop = Stop::from(pending::<()>());
        stop.clone().stop();
        block_on(Stop::from(&stop).stopped());
        assert!(stop.is_stopped());
    }

    #[test]
    fn whoever_waits_for_a_signal_may_leave() {
        let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
        let stop = Stop::from(signalled);
        // The first to wait is the one that the signal wakes.
        let mut first = Box::pin(stop.stopped());
        assert!((&mut first).now_or_never().is_none());
        let waiting = std::thread::spawn({
            let stop = stop.clone();
            move || block_on(stop.stopped())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        signal.send(()).unwrap();
        drop(first);
        waiting.join().unwrap();
    }

    #[test]
    fn a_signal_that_fails_stops() {
        let stop = Stop::from(ready(Err::<(), _>("no handler")));
        assert!(!stop.is_stopped(), "nobody has waited for it");
        block_on(stop.stopped());
        assert!(stop.is_stopped());
    }

    #[test]
    fn to_look_at_it_does_not_run_the_future() {
        let stop = Stop::from(async { panic!("on purpose") });
        assert_eq!(format!("{stop:?}"), "Stop { stopped: false }");
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use std::future::poll_fn;

    use super::*;
    use crate::sync::{explore, thread};

    #[test]
    fn whoever_waits_is_stopped() {
        explore(|| {
            let stop = Stop::new();
            let waiting = [(); 2].map(|()| {
                let stop = stop.clone();
                thread::spawn(move || stop.stopped_blocking())
            });
            stop.stop();
            for one in waiting {
                one.join().unwrap();
            }
        });
    }

    /// Its future is shared by those who wait. Of these one polls it while it ends, and leaves.
    #[test]
    fn the_end_of_a_future_stops_those_who_stay() {
        explore(|| {
            let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
            let mut signalled = Box::pin(signalled);
            let stop = Stop::from(poll_fn(move |context| {
                let polled = signalled.as_mut().poll(context);
                thread::yield_now();
                polled
            }));
            let stays = stop.clone();
            let stays = thread::spawn(move || shuttle::future::block_on(stays.stopped()));
            let leaves = thread::spawn(move || {
                let mut stopped = Box::pin(stop.stopped());
                let _first = (&mut stopped).now_or_never();
            });
            let signals = thread::spawn(move || drop(signal));
            stays.join().unwrap();
            leaves.join().unwrap();
            signals.join().unwrap();
        });
    }
}
