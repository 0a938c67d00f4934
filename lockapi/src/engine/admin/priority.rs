//! Clearing the way for a session: reads who is in it, again and again, and signals them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::admin::{Blocker, Priority, PriorityScope, SignalOutcome, SignalledBlocker, Unblock};
use crate::engine::clock::Time;
use crate::engine::timer::Timer;
use crate::engine::{Core, batcher::Batcher, catch_panic};
use crate::error::Result;
use crate::sync::Mutex;

/// How often it reads who is in the way.
const INTERVAL: Duration = Duration::from_millis(100);

/// Who is known to be in the way: its number and when it began.
type Id = (i64, i64);

#[derive(Default)]
struct BlockerState {
    since: Time,
    /// What was done last; a session that was terminated may take a while to end.
    done: Option<SignalOutcome>,
    selected: bool,
}

struct Watcher {
    batcher: Arc<Batcher>,
    timer: Timer,
    namespace: String,
    pid: i64,
    priority: Priority,
    /// Since when who is in the way.
    known: Mutex<HashMap<Id, BlockerState>>,
    shared: Arc<crate::admin::Shared>,
}

pub(super) fn start(core: &Arc<Core>, pid: i64, priority: Priority) -> PriorityScope {
    let shared = Arc::<crate::admin::Shared>::default();
    let watcher = Arc::new(Watcher {
        batcher: Arc::clone(&core.jobs),
        timer: core.connections.timer.clone(),
        namespace: core.namespace.to_string(),
        pid,
        priority,
        known: Mutex::default(),
        shared: Arc::clone(&shared),
    });
    watcher.check_later();
    PriorityScope { shared }
}

impl Watcher {
    fn check_later(self: Arc<Self>) {
        let timer = self.timer.clone();
        let at = timer.now() + INTERVAL;
        timer.run_at(at, move || self.check());
    }

    fn check(self: Arc<Self>) {
        if !self.shared.begin() {
            return;
        }
        let now = self.timer.now();
        let (mut cancel, mut terminate) = (Vec::new(), Vec::new());
        for (id, known) in &*self.known.lock().unwrap_or_else(PoisonError::into_inner) {
            let is_over = known
                .done
                .is_some_and(|done| done != SignalOutcome::Cancelled);
            if !known.selected || is_over {
                continue;
            }
            let age = now.saturating_sub(known.since);
            let end = self
                .priority
                .grace
                .map(|grace| self.priority.patience + grace);
            if end.is_some_and(|end| age >= end) {
                terminate.push(*id);
            } else if age >= self.priority.patience && known.done.is_none() {
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
        task.submit(unblock, move |outcome| self.checked(outcome));
    }

    fn checked(self: Arc<Self>, outcome: Result<Vec<Blocker>>) {
        match outcome {
            Ok(blockers) => self.record(blockers),
            Err(error) => self
                .shared
                .update(|report| report.error = Some(error.to_string())),
        }
        if self.shared.end() {
            self.check_later();
        }
    }

    fn record(&self, blockers: Vec<Blocker>) {
        let now = self.timer.now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|id, _| blockers.iter().any(|one| (one.pid, one.started) == *id));
        for blocker in blockers {
            let id = (blocker.pid, blocker.started);
            let one = known.entry(id).or_insert_with(|| {
                let mut selected = None;
                // One that panics selects nothing; whoever ends the priority waits for the rest.
                catch_panic(|| selected = Some((self.priority.filter)(&blocker)));
                if selected.is_none() {
                    let message = "the filter panicked".to_owned();
                    self.shared.update(|report| report.error = Some(message));
                }
                BlockerState {
                    since: now,
                    selected: selected.unwrap_or(false),
                    ..BlockerState::default()
                }
            });
            let is_due = now.saturating_sub(one.since) >= self.priority.patience;
            let is_refused = !blocker.allowed && one.selected && is_due;
            let outcome = match blocker.signalled {
                2 => SignalOutcome::Terminated,
                1 => SignalOutcome::Cancelled,
                _ if is_refused && one.done != Some(SignalOutcome::Refused) => {
                    SignalOutcome::Refused
                }
                _ => continue,
            };
            one.done = Some(outcome);
            self.shared
                .update(|report| report.signalled.push(SignalledBlocker { outcome, blocker }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use futures_util::FutureExt;

    use super::*;
    use crate::driver::Mode;
    use crate::engine::clock::Clock;
    use crate::engine::connection::Connections;
    use crate::engine::driver::Driver;
    use crate::memory::Database;

    #[test]
    fn filter_that_panics_selects_nothing_and_does_not_keep_the_scope_open() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let driver = Driver::new(Database::new());
        let limit = Duration::from_secs(5);
        let connections = Connections::new(driver, timer.clone(), Mode::Direct, limit);
        let shared = Arc::<crate::admin::Shared>::default();
        let watcher = Arc::new(Watcher {
            batcher: Batcher::new(Arc::new(connections)),
            timer,
            namespace: String::new(),
            pid: 1,
            priority: Priority::new("test").filter(|_| panic!("a filter of the program")),
            known: Mutex::default(),
            shared: Arc::clone(&shared),
        });
        let scope = PriorityScope {
            shared: Arc::clone(&shared),
        };
        let blocker = Blocker {
            pid: 2,
            started: 0,
            username: None,
            application: None,
            state: None,
            statement: None,
            transaction_age: None,
            allowed: true,
            signalled: 0,
        };
        assert!(shared.begin());
        // As the batcher calls it.
        let answered = AssertUnwindSafe(|| Arc::clone(&watcher).checked(Ok(vec![blocker])));
        let _contained = catch_unwind(answered);
        assert!(scope.finish().now_or_never().is_some());
        let known = watcher.known.lock().unwrap();
        assert!(known.values().all(|one| !one.selected) && known.len() == 1);
    }
}
