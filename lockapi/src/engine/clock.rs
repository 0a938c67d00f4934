//! The monotonic clock of a process, real or moved by hand.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A point on a monotonic clock, counted from an arbitrary start.
pub(crate) type Time = Duration;

/// Where the engine reads the time.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Real(Instant),
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn real() -> Self {
        Self::Real(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Real(start) => start.elapsed(),
            Self::Manual(clock) => clock.lock().now,
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// Calls `moved` whenever the clock is moved by hand, until it answers `false`.
    pub(crate) fn watch(&self, moved: impl Fn() -> bool + Send + Sync + 'static) {
        if let Self::Manual(clock) = self {
            clock.lock().watchers.push(Arc::new(moved));
        }
    }
}

/// A clock that stands still until it is advanced, for tests of the in-memory backend.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Mutex<Manual>>);

type Watcher = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Default)]
struct Manual {
    now: Time,
    watchers: Vec<Watcher>,
}

impl ManualClock {
    /// Moves the clock forward. Everything that is due by then happens, in the background.
    pub fn advance(&self, by: Duration) {
        let watchers = {
            let mut manual = self.lock();
            manual.now += by;
            manual.watchers.clone()
        };
        let gone: Vec<_> = watchers.iter().filter(|watcher| !watcher()).collect();
        if !gone.is_empty() {
            self.lock()
                .watchers
                .retain(|watcher| !gone.iter().any(|gone| Arc::ptr_eq(gone, watcher)));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Manual> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({:?})", self.lock().now)
    }
}
