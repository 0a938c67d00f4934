//! One thread that keeps the deadlines of a backend.
//!
//! It needs no runtime, so deadlines are kept while the async runtime is starved.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::catch_panic;
use super::clock::{Clock, Time, Watch};
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// Identifies a timer; earlier timers order first.
type TimerId = (Time, u64);

enum Due {
    Run(Box<dyn FnOnce() + Send>),
    Wake(Waker),
}

impl Due {
    fn happen(self) {
        catch_panic(|| match self {
            Self::Run(action) => action(),
            Self::Wake(waker) => waker.wake(),
        });
    }
}

#[derive(Default)]
struct Timers {
    due: BTreeMap<TimerId, Due>,
    next: u64,
    /// Something that was due is happening.
    running: bool,
    closed: bool,
}

struct Shared {
    clock: Clock,
    timers: Mutex<Timers>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, at: Time, due: Due) -> TimerId {
        let mut timers = self.lock();
        let id = (at, timers.next);
        timers.next += 1;
        timers.due.insert(id, due);
        if timers
            .due
            .first_key_value()
            .is_some_and(|(first, _)| *first == id)
        {
            self.changed.notify_one();
        }
        id
    }

    /// Lets what is due happen.
    fn run_due<'a>(&'a self, mut timers: MutexGuard<'a, Timers>) -> MutexGuard<'a, Timers> {
        loop {
            let now = self.clock.now();
            let first = timers.due.first_entry();
            let Some(due) = first.filter(|first| first.key().0 <= now) else {
                return timers;
            };
            let due = due.remove();
            timers.running = true;
            drop(timers);
            due.happen();
            timers = self.lock();
            timers.running = false;
        }
    }

    fn run(&self) {
        let mut timers = self.lock();
        while !timers.closed {
            timers = self.run_due(timers);
            let now = self.clock.now();
            match timers.due.first_key_value().map(|(id, _)| *id) {
                _ if timers.closed => {}
                Some((at, _)) if at <= now => {}
                Some((at, _)) if !self.clock.is_manual() => {
                    timers = self
                        .changed
                        .wait_timeout(timers, at.saturating_sub(now))
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                _ => {
                    timers = self
                        .changed
                        .wait(timers)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Watch for Shared {
    fn moved(&self) {
        // Under the lock, so the thread is either before its look at the clock or waiting.
        let timers = self.lock();
        if self.clock.is_driven() {
            drop(self.run_due(timers));
        } else {
            self.changed.notify_one();
        }
    }

    fn next(&self) -> Option<Time> {
        let timers = self.lock();
        timers.due.first_key_value().map(|((at, _), _)| *at)
    }

    fn is_idle(&self) -> bool {
        let timers = self.lock();
        let now = self.clock.now();
        let due = timers.due.first_key_value();
        timers.closed || !timers.running && due.is_none_or(|((at, _), _)| *at > now)
    }
}

/// Handle to the timer's thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
    _close_on_drop: Arc<CloseOnDrop>,
}

struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let mut timers = self.0.lock();
        timers.closed = true;
        // What a waker holds may hold the timer; it is dropped outside of the lock.
        let due = std::mem::take(&mut timers.due);
        drop(timers);
        self.0.changed.notify_all();
        drop(due);
    }
}

impl Timer {
    /// Starts the thread.
    pub(crate) fn start(clock: &Clock) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            timers: Mutex::default(),
            changed: Condvar::new(),
        });
        let watched: Weak<Shared> = Arc::downgrade(&shared);
        clock.watch(watched);
        if !clock.is_driven() {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("lockapi-timer".into())
                .spawn(move || shared.run())?;
        }
        Ok(Self {
            _close_on_drop: Arc::new(CloseOnDrop(Arc::clone(&shared))),
            shared,
        })
    }

    /// Whether time goes on by itself.
    pub(crate) fn is_running(&self) -> bool {
        !matches!(self.shared.clock, Clock::Manual(_))
    }

    pub(crate) fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Runs `action` on the timer's thread at `at`; it must not block.
    pub(crate) fn run_at(&self, at: Time, action: impl FnOnce() + Send + 'static) {
        self.shared.insert(at, Due::Run(Box::new(action)));
    }

    /// Runs `action` on the timer's thread at `at`, unless the alarm is dropped before; it must not
    /// block, nor own a timer.
    #[cfg(feature = "tracing")]
    pub(crate) fn alarm(&self, at: Time, action: impl FnOnce() + Send + 'static) -> Alarm {
        Alarm {
            timer: Arc::clone(&self.shared),
            id: self.shared.insert(at, Due::Run(Box::new(action))),
        }
    }

    /// Completes `after` from now.
    pub(crate) fn sleep(&self, after: Duration) -> Sleep {
        Sleep {
            timer: Arc::clone(&self.shared),
            until: self.now().saturating_add(after),
            waker: None,
        }
    }
}

/// See [`Timer::alarm`].
#[cfg(feature = "tracing")]
pub(crate) struct Alarm {
    timer: Arc<Shared>,
    id: TimerId,
}

#[cfg(feature = "tracing")]
impl Drop for Alarm {
    fn drop(&mut self) {
        let action = self.timer.lock().due.remove(&self.id);
        drop(action);
    }
}

/// See [`Timer::sleep`].
pub(crate) struct Sleep {
    timer: Arc<Shared>,
    until: Time,
    waker: Option<(TimerId, Waker)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.timer.clock.now() >= self.until {
            return Poll::Ready(());
        }
        let registered = self
            .waker
            .as_ref()
            .is_some_and(|(_, waker)| waker.will_wake(context.waker()));
        if !registered {
            self.forget();
            let waker = context.waker().clone();
            let id = self.timer.insert(self.until, Due::Wake(waker.clone()));
            self.waker = Some((id, waker));
        }
        Poll::Pending
    }
}

impl Sleep {
    fn forget(&mut self) {
        if let Some((id, _)) = self.waker.take() {
            let waker = self.timer.lock().due.remove(&id);
            drop(waker);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::clock::ManualClock;
    use super::*;

    #[test]
    fn actions_run_in_order_once_the_clock_is_moved() {
        let clock = ManualClock::default();
        let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
        let (sender, receiver) = mpsc::channel();
        for seconds in [3, 1, 2] {
            let sender = sender.clone();
            timer.run_at(Duration::from_secs(seconds), move || {
                sender.send(seconds).unwrap();
            });
        }
        clock.advance(Duration::from_secs(2));
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(1), Ok(2)));
        assert!(receiver.try_recv().is_err());
        clock.advance(Duration::from_secs(1));
        assert_eq!(receiver.recv(), Ok(3));
    }

    #[test]
    fn a_panic_in_a_waker_or_an_action_does_not_end_the_timer() {
        struct Panics;

        impl std::task::Wake for Panics {
            fn wake(self: std::sync::Arc<Self>) {
                panic!("a waker of the program");
            }
        }

        let clock = ManualClock::default();
        let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
        let waker = Waker::from(std::sync::Arc::new(Panics));
        let mut sleep = timer.sleep(Duration::from_secs(1));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut sleep).poll(&mut context).is_pending());
        timer.run_at(Duration::from_secs(2), || {
            panic!("a callback of the program")
        });
        let (sender, receiver) = mpsc::channel();
        timer.run_at(Duration::from_secs(3), move || sender.send(()).unwrap());
        clock.advance(Duration::from_secs(3));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)), Ok(()));
    }

    #[test]
    fn a_dropped_sleep_leaves_no_timer() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let mut sleep = timer.sleep(Duration::from_secs(3600));
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut sleep).poll(&mut context).is_pending());
        assert_eq!(timer.shared.lock().due.len(), 1);
        drop(sleep);
        assert!(timer.shared.lock().due.is_empty());
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::super::clock::ManualClock;
    use super::*;
    use crate::sync::explore;

    #[test]
    fn what_falls_due_while_somebody_begins_to_wait_wakes_him() {
        explore(|| {
            let clock = ManualClock::default();
            let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
            let sleeper = |seconds| {
                let sleep = timer.sleep(Duration::from_secs(seconds));
                thread::spawn(move || shuttle::future::block_on(sleep))
            };
            let sleepers = [sleeper(2), sleeper(1)];
            clock.leap(Duration::from_secs(1));
            clock.leap(Duration::from_secs(1));
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
        });
    }

    #[test]
    fn the_thread_ends_with_the_last_handle() {
        explore(|| {
            let clock = ManualClock::default();
            let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
            let mover = thread::spawn(move || clock.leap(Duration::from_secs(1)));
            timer.run_at(Duration::from_secs(1), || {});
            let shared = Arc::downgrade(&timer.shared);
            drop(timer);
            mover.join().unwrap();
            while shared.strong_count() > 0 {
                thread::yield_now();
            }
        });
    }
}
