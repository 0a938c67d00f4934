//! Whether a limit gave more permits than it may.

use crate::record::{Call, PERIOD, PERMITS};

/// The longest window that is looked at.
const WINDOW: u64 = 20_000_000;

/// How many permits more than burst and rate allow were surely given within some window: those count whose
/// calls began and ended in it.
pub(super) fn beyond(calls: &[Call]) -> u64 {
    let period = u64::try_from(PERIOD.as_micros()).unwrap_or(u64::MAX);
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.from);
    let mut most = 0;
    for (number, first) in calls.iter().enumerate() {
        let window = calls[number..]
            .iter()
            .take_while(|call| call.from < first.from + WINDOW);
        let mut ends: Vec<u64> = window.map(|call| call.to).collect();
        ends.sort_unstable();
        for (given, end) in (1..).zip(ends) {
            let allowed = PERMITS + (end - first.from) * PERMITS / period;
            most = most.max(u64::saturating_sub(given, allowed));
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: u64) -> Call {
        Call { from: at, to: at }
    }

    #[test]
    fn a_burst_and_the_rate_are_allowed() {
        let burst = (0..PERMITS).map(|_| call(0));
        let rate = (1..100).map(|number| call(number * 50_000));
        assert_eq!(beyond(&burst.chain(rate).collect::<Vec<_>>()), 0);
    }

    #[test]
    fn one_more_is_found() {
        let burst = (0..=PERMITS + 2).map(|_| call(0));
        assert_eq!(beyond(&burst.collect::<Vec<_>>()), 3);
    }
}
