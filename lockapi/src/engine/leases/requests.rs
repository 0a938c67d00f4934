//! What the leases of a process send, in which order.

use crate::engine::piles::Queued;
use crate::lease::{Acquire, Peek, Release, Renew, Sweep, Take};

impl Queued for Release {
    const TURN: u8 = 0;
    const NAME: &'static str = "release";

    fn weight(&self) -> usize {
        self.slots.len()
    }
}

impl Queued for Renew {
    const TURN: u8 = 1;
    const NAME: &'static str = "renew";

    fn weight(&self) -> usize {
        self.slots.len()
    }
}

impl Queued for Acquire {
    const TURN: u8 = 2;
    const NAME: &'static str = "acquire";
}

impl Queued for Take {
    const TURN: u8 = 2;
    const NAME: &'static str = "take";

    fn weight(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }
}

impl Queued for Peek {
    const TURN: u8 = 3;
    const NAME: &'static str = "peek";
}

impl Queued for Sweep {
    const TURN: u8 = 4;
    const NAME: &'static str = "sweep";
}
