//! What the leases of a process send, in which order.

use std::time::Duration;

use crate::engine::batcher::Queued;
use crate::lease::{Abandon, Acquire, Peek, Release, Renew, Take};

/// The part of a lease that the answer to its renewal may take, and at least so long. The first
/// renewal is after a third of the lease: there is time for a connection that falls silent, and for a
/// fresh one.
const ANSWER_PART: i64 = 4;
const SHORTEST_ANSWER: Duration = Duration::from_millis(250);

/// How long the answer to the renewal of a lease of so many microseconds may take.
pub(in crate::engine) fn answer_limit(lease: i64) -> Duration {
    let part = Duration::from_micros((lease / ANSWER_PART).max(0).unsigned_abs());
    part.max(SHORTEST_ANSWER)
}

impl Queued for Abandon {
    const NAME: &'static str = "release";
    const GIVES_BACK: bool = true;
}

impl Queued for Release {
    const NAME: &'static str = "release";
    const GIVES_BACK: bool = true;

    fn weight(&self) -> usize {
        self.slots.len()
    }
}

impl Queued for Renew {
    const NAME: &'static str = "renew";
    const GIVES_BACK: bool = true;

    fn limit(&self) -> Option<Duration> {
        Some(answer_limit(self.ttl))
    }

    fn weight(&self) -> usize {
        self.slots.len()
    }
}

impl Queued for Acquire {
    const NAME: &'static str = "acquire";
}

impl Queued for Take {
    const NAME: &'static str = "take";

    fn weight(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }
}

impl Queued for Peek {
    const NAME: &'static str = "peek";
}
