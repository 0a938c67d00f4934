//! How soon calls were answered after a promotion.

use std::fmt::Write as _;

use crate::clock::seconds;
use crate::conduct::Promotion;
use crate::history::Primitive;

/// How many of these times were the last before which promotion.
pub(super) fn before(promotions: &[Promotion], times: &[u64]) -> Vec<(String, usize)> {
    let mut counts = vec![0; promotions.len()];
    for time in times {
        if let Some(next) = promotions.iter().position(|promotion| promotion.at > *time) {
            counts[next] += 1;
        }
    }
    let named = promotions
        .iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0);
    let named = named.map(|(one, count)| {
        let name = one.fault.name();
        (format!("the {name} of timeline {}", one.timeline), count)
    });
    named.collect()
}

pub(super) fn table(promotions: &[Promotion]) -> String {
    let mut text = String::from(
        "From the first write that the new primary answered to the first call that it answered:\n",
    );
    let mut line = |name: &str, times: Vec<u64>| {
        let at = |part| {
            percentile(&times, part)
                .map_or("-".to_owned(), |time| format!("{:.2} s", seconds(time)))
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "   {name:<12}p50 {:>8}   p99 {:>8}", at(50), at(99));
    };
    for primitive in Primitive::ALL {
        let first = promotions
            .iter()
            .filter_map(|one| one.first[primitive as usize]);
        line(primitive.word(), first.collect());
    }
    line(
        "no primary",
        promotions.iter().map(|one| one.took).collect(),
    );
    text
}

fn percentile(times: &[u64], part: usize) -> Option<u64> {
    let mut times = times.to_vec();
    times.sort_unstable();
    let place = (times.len() * part).div_ceil(100).max(1) - 1;
    times.get(place).copied()
}
