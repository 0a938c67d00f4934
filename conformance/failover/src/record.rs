//! What a process tells the one that started it, a line of JSON each, and hears from it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The rate limit that all processes share, and how many limits there are.
pub(crate) const PERMITS: u64 = 20;
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// What can have one holder at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Kind {
    Mutex,
    Lease,
    Leader,
}

/// What ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Source {
    Snowflake,
    Blocks,
}

/// A call: when it began and when it was answered, by the clock of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A holder's time, which begins with the answer to its call.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) kind: Kind,
    pub(crate) key: u32,
    pub(crate) token: i64,
    pub(crate) call: Call,
}

impl Grant {
    /// The epoch of the server that granted it: the high bits of the token.
    pub(crate) fn epoch(&self) -> i64 {
        self.token >> 31
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Claimed {
    /// What was pushed: the number in its payload.
    pub(crate) number: u64,
    /// The row and the delivery.
    pub(crate) id: i64,
    pub(crate) token: i64,
}

/// What became of a call whose effect counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done,
    /// It may have happened.
    Unknown,
    /// It did not happen.
    Refused,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Record {
    Ready,
    /// `grant` is a number that the process has given no other.
    Granted {
        grant: u64,
        granted: Grant,
    },
    /// The holder let go, or knows since then that it has lost it.
    Ended {
        grant: u64,
        at: u64,
    },
    /// Asks for a write under the grant's token to the register of its key.
    Write {
        grant: u64,
    },
    /// `found` says how many of them had been pushed before, by a call whose answer was lost.
    Pushed {
        numbers: Vec<u64>,
        found: usize,
        call: Call,
    },
    Claimed {
        jobs: Vec<Claimed>,
        call: Call,
    },
    Acked {
        job: Claimed,
        call: Call,
        outcome: Outcome,
    },
    /// A permit of the limit with this number.
    Admitted {
        limit: u32,
        call: Call,
    },
    Made {
        source: Source,
        ids: Vec<i64>,
        call: Call,
    },
    Failed {
        operation: String,
        error: String,
    },
    /// It has pushed all that it was to push.
    AllPushed,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Whether the oldest write that was not answered yet was accepted.
    Written { grant: u64, accepted: bool },
    /// Push what is left as fast as possible.
    Hurry,
    /// Acquire and make nothing more; only jobs go on.
    Finish,
}
