//! Tokens, and who held what at the same time.

use std::collections::{HashMap, HashSet};

use crate::history::Held;
use crate::record::Kind;
use crate::reigns::Reigns;

/// How long after its last answer a server may have been believed, in microseconds: a time to live, and the time
/// between two looks at the server.
const RENEWED: u64 = 3_500_000;

type Keys<'a> = HashMap<(Kind, u32), Vec<&'a Held>>;

fn by_key(held: &[Held]) -> Keys<'_> {
    let mut keys = Keys::new();
    for held in held {
        keys.entry((held.grant.kind, held.grant.key))
            .or_default()
            .push(held);
    }
    keys
}

/// How many were granted by a server of an earlier epoch than one that the same process had been answered by before it asked: it knew
/// that the server was replaced.
pub(super) fn returned(held: &[Held]) -> usize {
    let mut processes: HashMap<usize, Vec<&Held>> = HashMap::new();
    for held in held {
        processes.entry(held.process).or_default().push(held);
    }
    let mut returned = 0;
    for grants in processes.values_mut() {
        let mut answered = grants.clone();
        answered.sort_by_key(|held| held.grant.call.to);
        grants.sort_by_key(|held| held.grant.call.from);
        let mut answered = answered.into_iter().peekable();
        let mut latest = 0;
        for held in grants {
            while let Some(before) =
                answered.next_if(|one| one.grant.call.to < held.grant.call.from)
            {
                latest = before.grant.epoch().max(latest);
            }
            returned += usize::from(held.grant.epoch() < latest);
        }
    }
    returned
}

/// What tokens did that they must not, or that a server without a successor must not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    /// Those that a holder of the same key had before.
    pub(super) repeated: usize,
    /// Those smaller than one of the same epoch that had been answered before the call began.
    pub(super) back: usize,
    /// Those of an earlier epoch than one that had been answered before the call began.
    pub(super) late: usize,
}

pub(super) fn tokens(held: &[Held]) -> Tokens {
    let mut found = Tokens::default();
    for grants in by_key(held).values_mut() {
        let tokens: Vec<_> = grants.iter().map(|held| held.grant.token).collect();
        found.repeated += repeated(&tokens);
        let mut answered = grants.clone();
        answered.sort_by_key(|held| held.grant.call.to);
        grants.sort_by_key(|held| held.grant.call.from);
        let mut answered = answered.into_iter().peekable();
        let mut largest: Option<&Held> = None;
        for held in grants {
            let from = held.grant.call.from;
            while let Some(before) = answered.next_if(|one| one.grant.call.to < from) {
                if largest.is_none_or(|one| one.grant.token < before.grant.token) {
                    largest = Some(before);
                }
            }
            if let Some(largest) = largest.filter(|one| held.grant.token < one.grant.token) {
                if held.grant.epoch() < largest.grant.epoch() {
                    found.late += 1;
                } else {
                    found.back += 1;
                }
            }
        }
    }
    found
}

/// How many numbers have been there before.
pub(super) fn repeated(numbers: &[i64]) -> usize {
    let different: HashSet<_> = numbers.iter().collect();
    numbers.len() - different.len()
}

/// How many began to hold a lease while another still believed to; and of how many others the one before had
/// a server of an earlier epoch that still answered a time to live before.
pub(super) fn second(held: &[Held], reigns: &Reigns) -> (usize, usize) {
    let (mut second, mut replaced) = (0, 0);
    for ((kind, _), mut grants) in by_key(held) {
        if kind == Kind::Mutex {
            // A session that has ended is noticed later: that is what the token is for.
            continue;
        }
        grants.sort_by_key(|held| held.grant.call.to);
        let mut before: Option<&Held> = None;
        let until = |held: &Held| held.ended.unwrap_or(u64::MAX);
        for held in grants {
            if let Some(before) = before.filter(|before| held.grant.call.to < until(before)) {
                let (one, other) = (before.grant.epoch(), held.grant.epoch());
                let served = reigns.get(&one.min(other)).map_or(0, |(_, last)| *last);
                if one != other && held.grant.call.to < served + RENEWED {
                    replaced += 1;
                } else {
                    second += 1;
                }
            }
            if before.is_none_or(|before| until(before) < until(held)) {
                before = Some(held);
            }
        }
    }
    (second, replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Call, Grant};

    fn held(kind: Kind, token: i64, from: u64, to: u64, ended: u64) -> Held {
        Held {
            process: 0,
            grant: Grant {
                kind,
                key: 0,
                token,
                call: Call { from, to },
            },
            ended: Some(ended),
        }
    }

    #[test]
    fn a_token_that_repeats_is_found() {
        let history = [held(Kind::Mutex, 5, 0, 1, 2), held(Kind::Mutex, 5, 3, 4, 5)];
        assert_eq!(tokens(&history).repeated, 1);
    }

    #[test]
    fn a_token_that_goes_back_is_found() {
        let history = [held(Kind::Mutex, 5, 0, 1, 2), held(Kind::Mutex, 4, 3, 4, 5)];
        assert_eq!(tokens(&history).back, 1);
    }

    #[test]
    fn calls_at_the_same_time_have_no_order() {
        let history = [
            held(Kind::Mutex, 5, 0, 10, 12),
            held(Kind::Mutex, 4, 3, 11, 15),
        ];
        assert_eq!(tokens(&history), Tokens::default());
    }

    #[test]
    fn a_server_that_was_replaced_is_told_apart() {
        let history = [
            held(Kind::Lease, 2 << 31, 0, 1, 2),
            held(Kind::Lease, 1 << 31, 3, 4, 5),
        ];
        let late = Tokens {
            late: 1,
            ..Tokens::default()
        };
        assert_eq!(tokens(&history), late);
        let history = [
            held(Kind::Lease, 1 << 31, 0, 1, 9_000_000),
            held(Kind::Lease, 2 << 31, 3, 5_000_000, 9_000_000),
        ];
        let served = |last| Reigns::from([(1, (0, last))]);
        assert_eq!(second(&history, &served(1_000_000)), (1, 0));
        assert_eq!(second(&history, &served(2_000_000)), (0, 1));
    }

    #[test]
    fn who_returns_to_a_server_that_was_replaced_is_found() {
        let mut history = [
            held(Kind::Mutex, 2 << 31, 0, 1, 2),
            held(Kind::Lease, 1 << 31, 3, 4, 5),
        ];
        assert_eq!(returned(&history), 1);
        history[1].process = 1;
        assert_eq!(returned(&history), 0);
        let meanwhile = [
            held(Kind::Mutex, 2 << 31, 0, 3, 4),
            held(Kind::Lease, 1 << 31, 3, 4, 5),
        ];
        assert_eq!(returned(&meanwhile), 0);
    }

    #[test]
    fn a_second_holder_is_found() {
        let history = [
            held(Kind::Lease, 1, 0, 1, 10),
            held(Kind::Lease, 2, 3, 4, 12),
        ];
        assert_eq!(second(&history, &Reigns::new()), (1, 0));
        let history = [
            held(Kind::Lease, 1, 0, 1, 10),
            held(Kind::Lease, 2, 3, 10, 12),
        ];
        assert_eq!(second(&history, &Reigns::new()), (0, 0));
    }
}
