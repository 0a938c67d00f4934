//! Registers outside of the database, which a fence protects: one for each key.

use std::collections::HashMap;

use crate::record::{Grant, Kind};

/// Each accepts a write only under a token that is not smaller than the largest it has seen.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    by_key: HashMap<(Kind, u32), Register>,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// Accepted, although somebody had written who asked after this holder had its grant.
    pub(crate) stale_accepted: u64,
    /// Refused, because a server of a later epoch had granted the key by then.
    pub(crate) replaced: u64,
    /// Refused, although nobody had written who asked after this holder had its grant, nor at the same
    /// time.
    pub(crate) fresh_refused: u64,
}

#[derive(Debug, Default)]
struct Register {
    largest: i64,
    /// The latest begin, and the latest end, of the calls that led to accepted writes.
    latest_from: u64,
    latest_to: u64,
}

impl Registers {
    pub(crate) fn write(&mut self, granted: &Grant) -> bool {
        let register = self.by_key.entry((granted.kind, granted.key)).or_default();
        let accepted = granted.token >= register.largest;
        if accepted {
            self.accepted += 1;
            self.stale_accepted += u64::from(granted.call.to < register.latest_from);
            register.largest = granted.token;
            register.latest_from = register.latest_from.max(granted.call.from);
            register.latest_to = register.latest_to.max(granted.call.to);
        } else {
            self.refused += 1;
            if granted.call.from > register.latest_to {
                if granted.epoch() < register.largest >> 31 {
                    self.replaced += 1;
                } else {
                    self.fresh_refused += 1;
                }
            }
        }
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Call;

    fn grant(token: i64, from: u64, to: u64) -> Grant {
        Grant {
            kind: Kind::Lease,
            key: 0,
            token,
            call: Call { from, to },
        }
    }

    #[test]
    fn a_stale_holder_is_refused() {
        let mut registers = Registers::default();
        assert!(registers.write(&grant(5, 0, 1)));
        assert!(registers.write(&grant(6, 2, 3)));
        assert!(!registers.write(&grant(5, 0, 1)));
        assert_eq!((registers.stale_accepted, registers.fresh_refused), (0, 0));
    }

    #[test]
    fn tokens_that_repeat_let_a_stale_holder_write() {
        let mut registers = Registers::default();
        assert!(registers.write(&grant(5, 0, 1)));
        assert!(registers.write(&grant(5, 2, 3)));
        assert!(registers.write(&grant(5, 0, 1)));
        assert_eq!(registers.stale_accepted, 1);
    }

    #[test]
    fn tokens_that_go_back_shut_the_latest_holder_out() {
        let mut registers = Registers::default();
        assert!(registers.write(&grant(5, 0, 1)));
        assert!(!registers.write(&grant(4, 2, 3)));
        assert_eq!(registers.fresh_refused, 1);
    }
}
