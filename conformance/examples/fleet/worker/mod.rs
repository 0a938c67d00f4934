//! What a worker does: on an async runtime in `tasks`, without one in `threads`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::args::Safety;
use crate::store::Counts;

pub(crate) mod tasks;
pub(crate) mod threads;

/// How many tasks a worker runs at the same time: it has that many hands.
const HANDS: usize = 4;
/// How many tasks a hand looks at in one go.
const LOOK_AHEAD: i64 = 16;
const POLL: Duration = Duration::from_millis(100);
const REPORT: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(100);

/// What a worker is called, how careful it is, and what it has counted.
pub(crate) struct Node {
    name: String,
    safety: Safety,
    contended: AtomicI64,
    abandoned: AtomicI64,
    refused: AtomicI64,
}

impl Node {
    pub(crate) fn new(name: String, safety: Safety) -> Self {
        Self {
            name,
            safety,
            contended: AtomicI64::new(0),
            abandoned: AtomicI64::new(0),
            refused: AtomicI64::new(0),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn contended(&self) {
        self.contended.fetch_add(1, Ordering::Relaxed);
    }

    fn gave_up(&self, refused: bool) {
        let counter = if refused {
            &self.refused
        } else {
            &self.abandoned
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> Counts {
        Counts {
            contended: self.contended.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The key of the mutex of a task: the same for every worker.
fn key(task: &str) -> String {
    format!("fleet/task/{task}")
}
