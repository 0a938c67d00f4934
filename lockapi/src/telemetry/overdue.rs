//! Warnings of what lasts for too long, while it lasts.

use std::sync::Arc;
use std::time::Duration;

use super::Subject;
use crate::engine::{Alarm, Timer};
use crate::key::Key;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What may last for too long.
#[derive(Clone, Copy)]
pub(super) enum OverdueKind {
    Wait,
    Hold,
}

/// Warns once when it has lived for its limit, by an alarm or when it is dropped.
pub(super) struct Overdue {
    warning: Arc<Warning>,
    since: Duration,
    limit: Duration,
    timer: Timer,
    _alarm: Alarm,
}

struct Warning {
    of: OverdueKind,
    kind: &'static str,
    key: Key,
    warned: AtomicBool,
}

impl Overdue {
    /// From now on, if there is a limit.
    pub(super) fn watch(of: OverdueKind, subject: Subject<'_>) -> Option<Self> {
        let limit = match of {
            OverdueKind::Wait => subject.warn.waited,
            OverdueKind::Hold => subject.warn.held,
        }?;
        let warning = Arc::new(Warning {
            of,
            kind: subject.kind.name(),
            key: subject.key.clone(),
            warned: AtomicBool::new(false),
        });
        let (since, late) = (subject.timer.now(), Arc::clone(&warning));
        let at = since.saturating_add(limit);
        Some(Self {
            _alarm: subject.timer.alarm(at, move || late.warn_once(limit)),
            warning,
            since,
            limit,
            timer: subject.timer.clone(),
        })
    }
}

impl Drop for Overdue {
    /// The alarm may be late.
    fn drop(&mut self) {
        let lasted = self.timer.now().saturating_sub(self.since);
        if lasted >= self.limit {
            self.warning.warn_once(lasted);
        }
    }
}

impl Warning {
    fn warn_once(&self, lasted: Duration) {
        if self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let (kind, key) = (self.kind, &self.key);
        match self.of {
            OverdueKind::Wait => {
                tracing::warn!(target: "lockapi", kind, %key, waited = ?lasted, "waited long");
            }
            OverdueKind::Hold => {
                tracing::warn!(target: "lockapi", kind, %key, held = ?lasted, "held long");
            }
        }
    }
}
