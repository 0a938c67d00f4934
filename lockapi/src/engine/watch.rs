//! A time limit for what is sent to the server.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::clock::Time;
use super::timer::Timer;
use crate::error::Failure;
use crate::sync::{Mutex, MutexGuard, Notify};
use crate::wait::unless;

/// For how long an answer is looked for after the limit. A runtime whose thread was blocked has not
/// read what came in meanwhile: it is let go on before the connection is given up.
const GRACE: Duration = Duration::from_millis(200);
/// In so many parts, of which each counts only if the runtime was not blocked in it.
const PARTS: u32 = 8;
/// The parts at most, counted or not.
const MOST: u32 = 64;

/// Ends a statement that the server does not answer.
///
/// A timer for each statement would wake the timer for each; this one looks at most once in
/// every limit.
pub(crate) struct Watch {
    timer: Timer,
    limit: Duration,
    state: Mutex<Watched>,
    abort: Notify,
}

#[derive(Default)]
struct Watched {
    since: Option<Time>,
    armed: bool,
}

impl Watch {
    pub(crate) fn new(timer: Timer, limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            timer,
            limit,
            state: Mutex::default(),
            abort: Notify::new(),
        })
    }

    /// How long the server may take.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) fn now(&self) -> Time {
        self.timer.now()
    }

    /// Runs `work` within the limit.
    pub(crate) async fn bound<T>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let outcome = self.within(work).await;
        outcome.unwrap_or_else(|| Err(self.silence()))
    }

    /// Runs `work` within the limit; `None` when it was given up.
    pub(super) async fn within<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> Option<T> {
        // Registered before it begins: a process that was stopped just then has used up the limit at once.
        let abort = self.abort.notified();
        self.begin();
        let _busy = Busy(self);
        let mut work = pin!(work);
        match unless(abort, work.as_mut()).await {
            Some(outcome) => Some(outcome),
            None => unless(self.grace(), work).await,
        }
    }

    /// What is known of work that was given up.
    pub(super) fn silence(&self) -> Failure {
        let message = format!("the server did not answer within {:?}", self.limit);
        Failure::statement(None, true, message)
    }

    /// Ends when the runtime has had the time to read what came in while it was blocked.
    async fn grace(&self) {
        let part = GRACE / PARTS;
        let mut counted = 0;
        for _ in 0..MOST {
            let began = self.timer.now();
            self.timer.sleep(part).await;
            counted += u32::from(self.timer.now().saturating_sub(began) < GRACE);
            if counted == PARTS {
                return;
            }
        }
    }

    fn begin(self: &Arc<Self>) {
        let now = self.timer.now();
        let mut state = self.lock();
        state.since = Some(now);
        if !std::mem::replace(&mut state.armed, true) {
            drop(state);
            self.arm(now);
        }
    }

    fn arm(self: &Arc<Self>, since: Time) {
        let watch = Arc::downgrade(self);
        self.timer.run_at(since + self.limit, move || {
            if let Some(watch) = watch.upgrade() {
                watch.look();
            }
        });
    }

    fn look(self: &Arc<Self>) {
        let now = self.timer.now();
        let mut state = self.lock();
        match state.since {
            None => state.armed = false,
            Some(since) if since + self.limit > now => {
                drop(state);
                self.arm(since);
            }
            Some(_) => {
                state.armed = false;
                // Under the lock: the statement that is aborted is the one that was looked at.
                self.abort.notify_waiters();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Busy<'a>(&'a Watch);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.lock().since = None;
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::super::clock::{Clock, ManualClock};
    use super::*;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::sync::thread;

    /// The clock goes on until the work was given up: no schedule with few changes of the thread would do.
    #[test]
    fn work_that_nobody_answers_is_given_up() {
        let program = || {
            let (clock, limit) = (ManualClock::default(), Duration::from_secs(1));
            let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
            let watch = Watch::new(timer, limit);
            let given_up = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&given_up);
            let worker = thread::spawn(move || {
                let work = async {
                    // Work that is answered arms the watch for what comes after it.
                    assert_eq!(watch.within(async { 1 }).await, Some(1));
                    watch.within(std::future::pending::<()>()).await
                };
                assert!(shuttle::future::block_on(work).is_none());
                over.store(true, Ordering::Release);
            });
            while !given_up.load(Ordering::Acquire) {
                clock.leap(GRACE / PARTS);
                thread::yield_now();
            }
            worker.join().unwrap();
        };
        shuttle::check_random(program, 300);
    }

    /// As when the process was stopped just then: the limit is over before the work is begun.
    #[test]
    fn limit_that_is_over_at_once_is_noticed() {
        let program = || {
            let (clock, limit) = (ManualClock::default(), Duration::from_secs(1));
            let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
            let watch = Watch::new(timer, limit);
            let given_up = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&given_up);
            let worker = thread::spawn(move || {
                let work = watch.within(std::future::pending::<()>());
                assert!(shuttle::future::block_on(work).is_none());
                over.store(true, Ordering::Release);
            });
            for _ in 0..1000 {
                if given_up.load(Ordering::Acquire) {
                    break;
                }
                clock.leap(limit);
                thread::yield_now();
            }
            assert!(given_up.load(Ordering::Acquire));
            worker.join().unwrap();
        };
        shuttle::check_random(program, 3000);
    }
}
