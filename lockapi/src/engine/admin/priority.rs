//! Clearing the way for a session: looks who is in it, again and again, and strikes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::admin::{Blocker, Hit, Priority, PriorityScope, Strike, Unblock};
use crate::engine::clock::Time;
use crate::engine::timer::Timer;
use crate::engine::{Core, batcher::Batcher};
use crate::error::Result;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(100);

/// Who is known to be in the way: its number and when it began.
type Id = (i64, i64);

#[derive(Default)]
struct Known {
    since: Time,
    cancelled: bool,
    refused: bool,
    wanted: bool,
}

struct Watching {
    batcher: Arc<Batcher>,
    timer: Timer,
    namespace: String,
    pid: i64,
    priority: Priority,
    /// Since when who is in the way.
    known: Mutex<HashMap<Id, Known>>,
    told: Arc<crate::admin::Shared>,
}

pub(super) fn start(core: &Arc<Core>, pid: i64, priority: Priority) -> PriorityScope {
    let told = Arc::<crate::admin::Shared>::default();
    let watching = Arc::new(Watching {
        batcher: Arc::clone(&core.jobs),
        timer: core.connections.timer.clone(),
        namespace: core.namespace.to_string(),
        pid,
        priority,
        known: Mutex::default(),
        told: Arc::clone(&told),
    });
    watching.look_later();
    PriorityScope { shared: told }
}

impl Watching {
    fn look_later(self: Arc<Self>) {
        let timer = self.timer.clone();
        let at = timer.now() + LOOK;
        timer.run_at(at, move || self.look());
    }

    fn look(self: Arc<Self>) {
        if !self.told.begin() {
            return;
        }
        let now = self.timer.now();
        let (mut cancel, mut terminate) = (Vec::new(), Vec::new());
        for (id, known) in &*self.known.lock().unwrap_or_else(PoisonError::into_inner) {
            if !known.wanted || known.refused {
                continue;
            }
            let age = now.saturating_sub(known.since);
            let end = self
                .priority
                .grace
                .map(|grace| self.priority.patience + grace);
            if end.is_some_and(|end| age >= end) {
                terminate.push(*id);
            } else if age >= self.priority.patience && !known.cancelled {
                cancel.push(*id);
            }
        }
        let unblock = Unblock {
            namespace: self.namespace.clone(),
            pid: self.pid,
            cancel,
            terminate,
            reason: self.priority.reason.clone(),
        };
        let task = Arc::clone(&self.batcher);
        task.submit(unblock, move |outcome| self.looked(outcome));
    }

    fn looked(self: Arc<Self>, outcome: Result<Vec<Blocker>>) {
        match outcome {
            Ok(blockers) => self.take(blockers),
            Err(error) => self
                .told
                .tell(|report| report.trouble = Some(error.to_string())),
        }
        if self.told.end() {
            self.look_later();
        }
    }

    fn take(&self, blockers: Vec<Blocker>) {
        let now = self.timer.now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|id, _| blockers.iter().any(|one| (one.pid, one.started) == *id));
        for blocker in blockers {
            let id = (blocker.pid, blocker.started);
            let one = known.entry(id).or_insert_with(|| Known {
                since: now,
                wanted: (self.priority.filter)(&blocker),
                ..Known::default()
            });
            let strike = match blocker.struck {
                2 => Strike::Terminated,
                1 => Strike::Cancelled,
                _ if !blocker.allowed && one.wanted && !one.refused => Strike::Refused,
                _ => continue,
            };
            one.cancelled |= strike == Strike::Cancelled;
            one.refused |= strike == Strike::Refused;
            self.told
                .tell(|report| report.hits.push(Hit { strike, blocker }));
        }
    }
}
