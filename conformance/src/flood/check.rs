//! Whether a history keeps to the definition of its quota.

use std::collections::BTreeMap;

use lockapi::limit::{Algorithm, Quota};

use super::Record;

/// What a history holds, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many decisions were made.
    pub decisions: u64,
    /// How many of them admitted.
    pub admitted: u64,
    /// How many permits these had.
    pub permits: u64,
    /// What the quota does not allow, the first of it.
    pub excess: Option<String>,
}

/// Checks the history of one key. Of processes that were killed some admissions are missing: for each
/// of `lost` a window may have started without a record.
///
/// - GCRA: in any time `t` no more than `burst + rate * t` were admitted.
/// - Fixed windows: each starts with an admission, none before the one before has ended, and holds no
///   more than the quota.
/// - Sliding windows: each starts where the one before ends, or after its successor would have ended,
///   with an admission; and at each admission those of its window, and of the window before the part
///   that a window ending then would overlap, are no more than the quota.
#[must_use]
pub fn check(quota: &Quota, history: &[Record], lost: usize) -> Found {
    let mut admitted: Vec<_> = history
        .iter()
        .filter(|one| one.permits > 0)
        .copied()
        .collect();
    admitted.sort_by_key(|one| one.until);
    let decided = match quota.algorithm() {
        Algorithm::Gcra => check_cells(quota, &admitted),
        Algorithm::FixedWindow | Algorithm::SlidingWindow => check_windows(quota, &admitted, lost),
        other => Err(format!("nothing is known of {other:?}")),
    };
    Found {
        decisions: history.len() as u64,
        admitted: admitted.len() as u64,
        permits: admitted.iter().map(|one| one.permits).sum(),
        excess: decided.err(),
    }
}

/// Of every time that starts with one admission and ends with another, those which lie in it whole.
fn check_cells(quota: &Quota, admitted: &[Record]) -> Result<(), String> {
    let period = i128::try_from(quota.period().as_micros()).unwrap_or(i128::MAX);
    let flow = i128::from(quota.permits());
    let mut starts: Vec<i64> = admitted.iter().map(|one| one.from).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut times = Times::new(starts.len());
    for one in admitted {
        let start = starts.partition_point(|start| *start < one.from);
        times.add(
            start,
            flow * i128::from(one.from),
            period * i128::from(one.permits),
        );
        // The most permits of a time that ends now, less what flowed back in it.
        let most = times.most() - flow * i128::from(one.until);
        if most > period * i128::from(quota.limit()) {
            let (burst, over) = (quota.limit(), (most + period - 1) / period);
            let at = one.until;
            return Err(format!(
                "in a time until {at} there were {over} besides those that flowed back, of {burst}"
            ));
        }
    }
    Ok(())
}

/// For each start of a time a start value, and all that was added at or after it; tells the largest.
struct Times {
    leaves: usize,
    /// A tree: what was added below a node, and the largest below it.
    nodes: Vec<(i128, Option<i128>)>,
}

impl Times {
    fn new(starts: usize) -> Self {
        let leaves = starts.next_power_of_two();
        let nodes = vec![(0, None); 2 * leaves];
        Self { leaves, nodes }
    }

    fn add(&mut self, start: usize, value: i128, more: i128) {
        let mut at = self.leaves + start;
        let added = self.nodes[at].0 + more;
        self.nodes[at] = (added, Some(value + added));
        while at > 1 {
            at /= 2;
            let (left, right) = (self.nodes[2 * at], self.nodes[2 * at + 1]);
            let carried = left.1.map(|most| most + right.0);
            self.nodes[at] = (left.0 + right.0, carried.max(right.1));
        }
    }

    fn most(&self) -> i128 {
        self.nodes[1].1.unwrap_or(i128::MIN)
    }
}

fn check_windows(quota: &Quota, admitted: &[Record], lost: usize) -> Result<(), String> {
    let length = i64::try_from(quota.period().as_micros()).unwrap_or(i64::MAX);
    let limit = i128::from(quota.limit()) * i128::from(length);
    let sliding = quota.algorithm() == Algorithm::SlidingWindow;
    let mut windows: BTreeMap<i64, Vec<Record>> = BTreeMap::new();
    for one in admitted.iter().filter(|one| one.window != 0) {
        windows.entry(one.window).or_default().push(*one);
    }
    // Nobody says of which window these are; those of a window that is not known cannot be decided.
    for one in admitted.iter().filter(|one| one.window == 0) {
        let window = windows.range_mut(..=one.from).next_back();
        if let Some((_, known)) = window.filter(|(start, _)| one.until < *start + length) {
            known.push(*one);
        }
    }
    let (mut unexplained, mut before, mut previous) = (0, 0, i64::MIN / 2);
    for (start, mut records) in windows {
        if start < previous + length {
            return Err(format!(
                "the window of {start} starts in that of {previous}"
            ));
        }
        let follows = sliding && start < previous + 2 * length;
        if follows && start != previous + length {
            return Err(format!(
                "the window of {start} does not follow that of {previous}"
            ));
        }
        // The window before may be known to those alone who do not say of which they are.
        let earliest = if sliding { start - length } else { start };
        let starts = |one: &Record| match one.window {
            0 => one.from <= start && earliest <= one.until,
            _ => one.from == start,
        };
        unexplained += usize::from(!follows && !admitted.iter().any(starts));
        if unexplained > lost {
            return Err(format!("the window of {start} starts without an admission"));
        }
        records.sort_by_key(|one| one.until);
        let mut used = 0;
        for one in &records {
            let age = one.until - start;
            if !(0..length).contains(&age) {
                return Err(format!(
                    "what was admitted at {} is not in the window of {start}",
                    one.until
                ));
            }
            used += i128::from(one.permits);
            let overlap = if follows {
                before * i128::from(length - age)
            } else {
                0
            };
            if used * i128::from(length) + overlap > limit {
                let most = quota.limit();
                return Err(format!(
                    "{used} until {} in the window of {start}, and {before} before it, of {most}",
                    one.until
                ));
            }
        }
        (before, previous) = (used, start);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: i64 = 1_000_000;
    const START: i64 = 1_700_000_000 * SECOND;

    /// An admission at a time, in milliseconds, of the window that started at another.
    fn at(millis: i64, permits: u64, window: i64) -> Record {
        let time = START + millis * 1000;
        Record {
            door: 0,
            permits,
            from: time,
            until: time,
            window: if window < 0 { 0 } else { START + window * 1000 },
        }
    }

    /// An admission between two times.
    fn between(from: i64, until: i64) -> Record {
        let until = at(until, 1, -1).until;
        Record {
            until,
            ..at(from, 1, -1)
        }
    }

    /// Whether it is right, and wrong with one admission more.
    fn is_full(quota: Quota, history: &[Record], more: Record) {
        assert_eq!(check(&quota, history, 0).excess, None, "{quota:?}");
        let mut history = history.to_vec();
        history.insert(0, more);
        let found = check(&quota, &history, 0);
        assert!(found.excess.is_some(), "{quota:?}: {history:?}");
        assert_eq!(found.admitted, history.len() as u64);
    }

    #[test]
    fn one_cell_too_many_is_found() {
        let quota = Quota::per_second(10).burst(3);
        let mut history = vec![at(0, 3, -1)];
        history.extend((1..50).map(|nth| at(nth * 100, 1, -1)));
        for more in [0, 99, 2000, 2050, 4999] {
            is_full(quota, &history, at(more, 1, -1));
        }
        // It is late by a microsecond, and with it the first that is early is too many.
        let mut early = at(5000, 1, -1);
        early.from -= 1;
        early.until -= 1;
        is_full(quota, &history, early);
        // After a rest there is a burst, and no more.
        let rest = [at(0, 3, -1), at(10_000, 3, -1)];
        is_full(quota, &rest, at(10_099, 1, -1));
    }

    #[test]
    fn what_was_admitted_sometime_counts_where_it_surely_was() {
        let quota = Quota::per_second(10).burst(3);
        let history = [between(0, 50), between(10, 60), between(20, 70)];
        is_full(quota, &history, between(30, 80));
        let history = [at(0, 3, -1), between(50, 150)];
        assert_eq!(
            check(&quota, &history, 0).excess,
            None,
            "it may have been late"
        );
    }

    #[test]
    fn one_of_a_fixed_window_too_many_is_found() {
        let quota = Quota::new(5, Duration::from_secs(1)).fixed_window();
        // Twice the permits at the border of two windows.
        let history = [
            at(0, 1, 0),
            at(999, 4, 0),
            at(1000, 5, 1000),
            at(2500, 1, 2500),
            between(2600, 3499),
            between(2600, 3501),
            at(3400, 3, 2500),
        ];
        is_full(quota, &history, at(500, 1, 0));
        is_full(quota, &history, at(1500, 1, 1000));
        is_full(quota, &history, between(2700, 2800));
        // A window that starts too early, or without an admission, or is over.
        is_full(quota, &history, at(3499, 1, 3499));
        is_full(quota, &history, at(5000, 1, 4999));
        is_full(quota, &history, at(3500, 1, 2500));
        let mut lost = history.to_vec();
        lost.push(at(5000, 1, 4999));
        assert_eq!(
            check(&quota, &lost, 1).excess,
            None,
            "who started it was killed"
        );
    }

    #[test]
    fn one_of_a_sliding_window_too_many_is_found() {
        let quota = Quota::new(10, Duration::from_secs(1)).sliding_window();
        let history = [
            at(0, 10, 0),
            at(1100, 1, 1000),
            at(1500, 4, 1000),
            at(1600, 1, 1000),
            at(2500, 7, 2000),
            at(9000, 10, 9000),
        ];
        for more in [500, 1101, 1550, 2500] {
            is_full(quota, &history, at(more, 1, more / 1000 * 1000));
        }
        // As if the one before did not count, or the window were not the next.
        is_full(quota, &history[..1], at(1050, 1, 1000));
        is_full(quota, &history[..1], at(1050, 1, 1050));
        is_full(quota, &history[..1], at(1950, 10, 1000));
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let record = at(17, 3, 0);
        assert_eq!(record.to_string().parse(), Ok(record));
        assert!("1 2 3".parse::<Record>().is_err());
        assert!("1 2 3 x 5".parse::<Record>().is_err());
    }
}
