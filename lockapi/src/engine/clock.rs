//! The monotonic clock of a process, real or manual.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, thread};

/// How often a clock stops at most while it is advanced.
const MOST_STOPS: usize = 10_000;
/// How long it waits at most for what it wakes, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(1);
const IDLE_POLL: Duration = Duration::from_micros(20);

/// A point on a monotonic clock, counted from an arbitrary start.
pub(crate) type Time = Duration;

/// Where the engine reads the time.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Real(Instant),
    Manual(ManualClock),
    #[cfg(feature = "suite")]
    Driven(DrivenClock),
}

impl Clock {
    pub(crate) fn real() -> Self {
        Self::Real(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Real(start) => start.elapsed(),
            Self::Manual(clock) => clock.lock().now,
            #[cfg(feature = "suite")]
            Self::Driven(clock) => clock.now(),
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// Whether `watcher` does what is due on the thread that moves the clock.
    pub(crate) fn is_driven(&self) -> bool {
        match self {
            #[cfg(feature = "suite")]
            Self::Driven(_) => true,
            Self::Real(_) | Self::Manual(_) => false,
        }
    }

    /// Tells `watcher` whenever the clock is moved by hand, as long as it is there.
    pub(crate) fn watch(&self, watcher: Weak<dyn Watch>) {
        match self {
            Self::Real(_) => {}
            Self::Manual(clock) => clock.lock().watchers.push(watcher),
            #[cfg(feature = "suite")]
            Self::Driven(clock) => clock.lock().watchers.push(watcher),
        }
    }

    /// What the clock waits for when it is moved by hand.
    pub(crate) fn activity(&self) -> Option<Arc<Activity>> {
        match self {
            #[cfg(feature = "suite")]
            Self::Driven(_) => None,
            Self::Real(_) => None,
            Self::Manual(clock) => Some(Arc::clone(&clock.0.activity)),
        }
    }
}

/// What waits for times of a clock.
pub(crate) trait Watch: Send + Sync {
    /// The clock has been moved.
    fn moved(&self);

    /// When it has something to do next.
    fn next(&self) -> Option<Time>;

    /// Whether all that is due has been done.
    fn is_idle(&self) -> bool;
}

/// How many background threads are at work.
#[derive(Debug, Default)]
pub(crate) struct Activity(AtomicUsize);

impl Activity {
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// A clock that stands still until it is advanced, for tests of the in-memory backend.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Inner>);

#[derive(Default)]
struct Inner {
    manual: Mutex<Manual>,
    /// Held while the clock is moved.
    moving: Mutex<()>,
    activity: Arc<Activity>,
}

#[derive(Default)]
struct Manual {
    now: Time,
    watchers: Vec<Weak<dyn Watch>>,
}

impl ManualClock {
    /// Advances the clock, from one time at which something is due to the next, and waits each time
    /// until the backends have done it: renewals that are due are answered before the clock goes on, so
    /// a lease that is renewed in time is kept. After 10,000 such stops the clock leaps to the end.
    ///
    /// It blocks for as long as that takes, at most a second of real time for each stop. Waiting tasks
    /// of the program continue when its runtime polls them.
    pub fn advance(&self, by: Duration) {
        let moving = self.0.moving.lock();
        let moving = moving.unwrap_or_else(PoisonError::into_inner);
        let target = self.lock().now.saturating_add(by);
        for stop in 0..=MOST_STOPS {
            let watchers = self.watchers();
            let next = watchers.iter().filter_map(|it| it.next()).min();
            let at = next.filter(|next| *next < target && stop < MOST_STOPS);
            let mut manual = self.lock();
            manual.now = manual.now.max(at.unwrap_or(target));
            drop(manual);
            for watcher in &watchers {
                watcher.moved();
            }
            self.wait_until_idle(&watchers);
            if at.is_none() {
                break;
            }
        }
        drop(moving);
    }

    /// Advances the clock in one step, as if the processes had been stopped for that time: leases end
    /// before they can be renewed. Everything that is due happens in the background.
    pub fn leap(&self, by: Duration) {
        let mut manual = self.lock();
        manual.now = manual.now.saturating_add(by);
        drop(manual);
        for watcher in self.watchers() {
            watcher.moved();
        }
    }

    fn watchers(&self) -> Vec<Arc<dyn Watch>> {
        let mut manual = self.lock();
        manual.watchers.retain(|it| it.strong_count() > 0);
        manual.watchers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until nothing is due, and no work that follows from it is running.
    fn wait_until_idle(&self, watchers: &[Arc<dyn Watch>]) {
        let since = Instant::now();
        let idle = || watchers.iter().all(|it| it.is_idle());
        // Who is at work may make something due, and what is due sets others to work.
        while !(idle() && self.0.activity.is_idle() && idle()) && since.elapsed() < PATIENCE {
            thread::sleep(IDLE_POLL);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Manual> {
        let manual = self.0.manual.lock();
        manual.unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({:?})", self.lock().now)
    }
}

/// The clock of a simulated program: advancing it runs what is due, on the same thread.
#[cfg(feature = "suite")]
#[derive(Clone, Default)]
pub struct DrivenClock(Arc<Mutex<Manual>>);

#[cfg(feature = "suite")]
impl DrivenClock {
    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// When something is due.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let watchers = self.watchers();
        watchers.iter().filter_map(|it| it.next()).min()
    }

    /// Moves it to `time`, unless it is beyond that; what is due has not been done yet.
    pub fn set(&self, time: Duration) {
        let mut state = self.lock();
        state.now = state.now.max(time);
    }

    /// Moves it to `time`, unless it is beyond that, and does what is due.
    pub fn advance_to(&self, time: Duration) {
        self.set(time);
        for watcher in self.watchers() {
            watcher.moved();
        }
    }

    fn watchers(&self) -> Vec<Arc<dyn Watch>> {
        let mut state = self.lock();
        state.watchers.retain(|it| it.strong_count() > 0);
        state.watchers.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Manual> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "suite")]
impl fmt::Debug for DrivenClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenClock({:?})", self.now())
    }
}
