//! What handlers tell of their jobs, on its way to the database.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::heartbeat::Heartbeats;
use crate::engine::batcher::Batcher;
use crate::engine::clock::Time;
use crate::engine::sweeps::{PART, Sweeping};
use crate::engine::timer::Timer;
use crate::error::ErrorKind;
use crate::queue::{Report, SweepProgress, Ticket};
use crate::sweep::SweepResult;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::{self, Fault};

/// From one write to the next.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// The last report of each delivery, until it is sent.
    waiting: FxHashMap<Ticket, Report>,
    /// Whether some are under way, or will be sent at a time.
    busy: bool,
    /// Nothing is sent before this time.
    next: Time,
}

/// The reports of a process: once a second the last of each delivery, all together. They share the connection
/// of the sweeps, so that nothing else waits behind them.
pub(super) struct Reports {
    state: Mutex<State>,
    batcher: Arc<Batcher>,
    heartbeats: Arc<Heartbeats>,
    timer: Timer,
    this: Weak<Self>,
}

impl Reports {
    pub(super) fn new(
        batcher: Arc<Batcher>,
        heartbeats: Arc<Heartbeats>,
        timer: Timer,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            state: Mutex::default(),
            batcher,
            heartbeats,
            timer,
            this: this.clone(),
        })
    }

    /// Has it written: now, if nothing was within the last second.
    pub(super) fn report(&self, report: Report) {
        let mut state = self.lock();
        state.waiting.insert(report.ticket, report);
        if !std::mem::replace(&mut state.busy, true) {
            self.send_at(state);
        }
    }

    /// Sends what waits, whatever the time.
    pub(super) fn flush(&self) {
        let waiting = {
            let mut state = self.lock();
            state.next = self.timer.now() + EVERY;
            std::mem::take(&mut state.waiting)
        };
        // The next goes out when all are answered: of one delivery there is never more than one under way, and
        // while the server is away they do not pile up.
        let flight = Arc::new(Flight {
            reports: self.this.clone(),
            failed: AtomicBool::new(false),
        });
        for report in waiting.into_values() {
            let (again, flight) = (report.clone(), Arc::clone(&flight));
            self.batcher.submit(report, move |outcome| {
                if let Err(error) = outcome {
                    flight.failed(again, error.kind());
                }
            });
        }
    }

    fn send_at(&self, state: MutexGuard<'_, State>) {
        let next = state.next;
        drop(state);
        if next <= self.timer.now() {
            return self.flush();
        }
        let this = self.this.clone();
        self.timer.run_at(next, move || {
            if let Some(reports) = this.upgrade() {
                reports.flush();
            }
        });
    }

    /// All that were under way are answered.
    fn landed(&self) {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            state.busy = false;
        } else {
            self.send_at(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports that were sent together.
struct Flight {
    reports: Weak<Reports>,
    failed: AtomicBool,
}

impl Flight {
    /// It is sent again, unless there is a later one or its handler has ended.
    fn failed(&self, report: Report, kind: ErrorKind) {
        self.failed.store(true, Ordering::Relaxed);
        let Some(reports) = self.reports.upgrade() else {
            return;
        };
        let may_pass = matches!(
            kind,
            ErrorKind::Unavailable
                | ErrorKind::Indeterminate
                | ErrorKind::TimedOut
                | ErrorKind::Capacity
        );
        if may_pass && reports.heartbeats.keeps(report.ticket) {
            let mut state = reports.lock();
            state.waiting.entry(report.ticket).or_insert(report);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if *self.failed.get_mut() {
            telemetry::fault(Fault::ProgressUnwritten);
        }
        if let Some(reports) = self.reports.upgrade() {
            reports.landed();
        }
    }
}

impl Sweeping for SweepProgress {
    const EVERY: Duration = Duration::from_secs(300);

    fn next(self, swept: SweepResult<i64>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

/// The first part of the table.
pub(super) fn first_part() -> SweepProgress {
    SweepProgress {
        after: 0,
        most: PART,
    }
}
