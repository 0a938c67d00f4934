//! Limits hold in every window; ids are unique and grow.

use std::collections::{BTreeMap, HashMap};

use super::{History, Violation, time};
use crate::log::{Answer, Nanos, Op, SECOND};
use crate::plan::Fault;
use crate::programs::RATE;

/// Windows that are longer are not looked at: if they hold too much, so does one of these.
const WINDOW: Nanos = 60 * SECOND;
/// As long as that by the server's times, of which none is uncertain: what is a percent too much adds up.
const LONG: Nanos = 600 * SECOND;
/// Where a limit refuses, in this time before it has granted so much of what flowed back, at least: some of that is with programs
/// that took it in advance.
const BEFORE: Nanos = 5 * SECOND;
const PART: u64 = 10;

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut violations = limits(history);
    violations.extend(ids(history));
    violations
}

/// What may be taken in a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// So many at once, and so many a second.
    pub(super) burst: u64,
    pub(super) a_second: u64,
    /// And so many in any case.
    pub(super) more: u64,
}

/// No window has more permits that were asked for and answered in it than a burst and what flows back meanwhile.
fn limits(history: &History) -> Vec<Violation> {
    let mut permits: BTreeMap<&str, Vec<(Nanos, Nanos)>> = BTreeMap::new();
    let mut taken: BTreeMap<&str, Vec<Nanos>> = BTreeMap::new();
    for call in &history.calls {
        if let (Op::Check { key } | Op::Reserve { key }, Some((at, Answer::Taken(by_server)))) =
            (&call.op, &call.answer)
        {
            permits.entry(key).or_default().push((call.asked, *at));
            // What a control takes has no time.
            let by_server = u64::try_from(*by_server).ok().filter(|at| *at > 0);
            taken.entry(key).or_default().extend(by_server);
        }
    }
    let rate = u64::from(RATE);
    let rate = Rate {
        burst: rate,
        a_second: rate,
        more: 0,
    };
    let mut violations = Vec::new();
    if history.applied.iter().all(|it| it.fault != Fault::Clock) {
        violations.extend(
            taken
                .into_iter()
                .filter_map(|(key, at)| exactly(key, at, rate)),
        );
        if history.is_quick {
            violations.extend(refusals(history, rate));
        }
    }
    for (key, permits) in permits {
        if let Some((count, from, to)) = excess(history, permits, rate) {
            let (from, to) = (time(history, from), time(history, to));
            let what = format!("{key}: {count} permits from {from} to {to}");
            violations.push(Violation::new("limits hold", what));
        }
    }
    violations
}

/// Finds a window in which more permits were asked for and answered than may be: how many, from when, until when. One more
/// is not too many: the times of programs are not those of the server.
pub(super) fn excess(
    history: &History,
    permits: Vec<(Nanos, Nanos)>,
    rate: Rate,
) -> Option<(usize, Nanos, Nanos)> {
    excess_beyond(1, history, permits, rate)
}

/// As [`excess`], with so many more that are not too many.
pub(super) fn excess_beyond(
    slack: u64,
    history: &History,
    mut permits: Vec<(Nanos, Nanos)>,
    rate: Rate,
) -> Option<(usize, Nanos, Nanos)> {
    let steps: Vec<_> = history
        .applied
        .iter()
        .filter(|it| it.fault == Fault::Clock)
        .collect();
    permits.sort_unstable();
    for (begin, (from, _)) in permits.iter().enumerate() {
        let window = permits[begin..]
            .iter()
            .take_while(|(asked, _)| *asked < from + WINDOW);
        let mut answered: Vec<_> = window.map(|(_, answered)| *answered).collect();
        answered.sort_unstable();
        let excess = answered.iter().enumerate().find(|(count, to)| {
            // When the clock is set, a limit heals within a burst.
            let set = steps.iter().filter(|it| it.from <= **to && it.to >= *from);
            let bursts = 1 + set.count() as u64;
            let allowed = rate.burst * bursts + rate.a_second * (*to - from) / SECOND + rate.more;
            *count as u64 + 1 > allowed + slack
        });
        if let Some((count, to)) = excess {
            return Some((count + 1, *from, *to));
        }
    }
    None
}

/// In the calm a limit refuses nobody while it has permits: what was granted before is most of what there was.
fn refusals(history: &History, rate: Rate) -> Vec<Violation> {
    let mut granted: BTreeMap<&str, Vec<Nanos>> = BTreeMap::new();
    let mut refused: BTreeMap<&str, Vec<Nanos>> = BTreeMap::new();
    for call in &history.calls {
        let (Op::Check { key }, Some((at, answer))) = (&call.op, &call.answer) else {
            continue;
        };
        if *answer != Answer::Nothing {
            granted.entry(key).or_default().push(*at);
        } else if call.asked > history.calm.1 && call.asked < history.end {
            refused.entry(key).or_default().push(call.asked);
        }
    }
    let wanted = rate.a_second * (BEFORE / SECOND) / PART;
    let mut violations = Vec::new();
    for (key, refused) in refused {
        let mut granted = granted.remove(key).unwrap_or_default();
        granted.sort_unstable();
        let few = refused.into_iter().find_map(|at| {
            let from = granted.partition_point(|it| *it < at.saturating_sub(BEFORE));
            let before = granted[from..].partition_point(|it| *it <= at) as u64;
            (before < wanted).then_some((at, before))
        });
        if let Some((at, before)) = few {
            let (at, seconds) = (time(history, at), BEFORE / SECOND);
            let what = format!("{key}: refused at {at}, and {before} were granted in {seconds} s");
            violations.push(Violation::new("limits refuse only what is not there", what));
        }
    }
    violations
}

/// By the server's own times, where nobody has set its clock, not one too many is taken.
fn exactly(key: &str, mut taken: Vec<Nanos>, rate: Rate) -> Option<Violation> {
    taken.sort_unstable();
    for (begin, from) in taken.iter().enumerate() {
        let window = taken[begin..].iter().zip(1..);
        let window = window.take_while(|(at, _)| **at < from + LONG);
        for (at, count) in window {
            if count > rate.burst + rate.a_second * (at - from) / SECOND {
                let millis = (at - from) / 1_000_000;
                let what = format!("{key}: {count} permits in {millis} ms of the server's time");
                return Some(Violation::new("limits hold", what));
            }
        }
    }
    None
}

fn ids(history: &History) -> Vec<Violation> {
    let mut seen: HashMap<(&str, i64), usize> = HashMap::new();
    let mut last: HashMap<(&str, usize), i64> = HashMap::new();
    let mut violations = Vec::new();
    // Of one generator there is one call at a time, so their order in the log is that of the calls.
    for call in &history.calls {
        let (Op::Ids { generator }, Some((_, Answer::Ids(ids)))) = (&call.op, &call.answer) else {
            continue;
        };
        for id in ids {
            if let Some(other) = seen.insert((generator, *id), call.program) {
                let (one, other) = (history.name(call.program), history.name(other));
                let what = format!("{generator}: {id} by {one} and by {other}");
                violations.push(Violation::new("ids are unique", what));
            }
            let before = last.insert((generator, call.program), *id);
            if before.is_some_and(|before| before >= *id) {
                let what = format!("{generator}: {id} after {before:?}");
                violations.push(Violation::new("ids of a generator grow", what));
            }
        }
    }
    violations
}
