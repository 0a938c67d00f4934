//! What a worker does: on an async runtime in `tasks`, without one in `threads`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lockapi::queue::Claim;
use lockapi::schedule::SchedulerOptions;

use crate::args::Safety;
use crate::store::Counts;

pub(crate) mod tasks;
pub(crate) mod threads;

/// The scheduler that all workers run, and the queue of its runs.
pub(crate) const NAME: &str = "fleet";

/// How many runs a worker works on at the same time: it has that many hands.
const HANDS: usize = 4;
/// How long a run is kept from others when its worker does not say that it lives.
const LEASE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(200);
const REPORT: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(100);

/// What a worker is called, how careful it is, and what it has counted.
pub(crate) struct Node {
    name: String,
    safety: Safety,
    abandoned: AtomicI64,
    refused: AtomicI64,
}

impl Node {
    pub(crate) fn new(name: String, safety: Safety) -> Self {
        Self {
            name,
            safety,
            abandoned: AtomicI64::new(0),
            refused: AtomicI64::new(0),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn options(&self) -> SchedulerOptions {
        SchedulerOptions::default().node(&self.name).poll(POLL)
    }

    fn claim(&self) -> Claim {
        Claim::new(1).lease(LEASE).wait(POLL).worker(&self.name)
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
            abandoned: self.abandoned.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}
