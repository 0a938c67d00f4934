//! What is paused does not begin, and in a queue that is drained nothing runs.

use std::collections::{BTreeMap, HashMap};

use super::limited::{Change, Hold, describe, possible};
use super::{History, Violation, time};
use crate::log::{Answer, Nanos, Op, Paused};
use crate::programs::limited::name_of;

/// How a queue, or the jobs of a name in it, were set, and when that was asked for.
type Pauses = Vec<Change<(Paused, Nanos)>>;

/// No job is claimed from a queue that is paused then, nor one whose name is.
pub(super) fn check(history: &History, found: &HashMap<usize, Nanos>) -> Vec<Violation> {
    let mut changes: BTreeMap<(&str, Option<&str>), Pauses> = BTreeMap::new();
    for call in &history.calls {
        if let Op::Pause { queue, name, how } = &call.op {
            let of = changes.entry((queue, name.as_deref()));
            let of = of.or_insert_with(|| vec![Change::initial((Paused::No, 0))]);
            of.extend(Change::new(history, call, (*how, call.asked)));
        }
    }
    let mut violations = Vec::new();
    for (place, call) in history.calls.iter().enumerate() {
        let (Op::Claim { queue, .. }, Some((at, Answer::Jobs(jobs)))) = (&call.op, &call.answer)
        else {
            continue;
        };
        let from = found.get(&place).copied().unwrap_or(call.asked);
        let is_paused = |(how, asked): &(Paused, Nanos)| match how {
            Paused::No => false,
            Paused::UntilResumed | Paused::Drained(_) => true,
            // By the server's clock.
            Paused::ForMillis(time) => {
                *at < asked + time * 1_000_000 && !history.clock_was_set(*asked, *at)
            }
        };
        for job in jobs {
            let all = [None, Some(name_of(job.job))];
            let mut all = all
                .iter()
                .filter_map(|name| changes.get(&(queue.as_str(), *name)));
            if all.any(|changes| possible(changes, from, *at).iter().all(is_paused)) {
                let (name, at) = (history.name(call.program), time(history, *at));
                let what = format!("{} of {queue} by {name} until {at}", job.job);
                violations.push(Violation::new("what is paused does not begin", what));
            }
        }
    }
    violations
}

/// When a queue is drained completely nobody has a job of it that he had before that was asked for.
pub(super) fn drained(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for call in &history.calls {
        let Op::Pause {
            queue,
            how: Paused::Drained(_),
            ..
        } = &call.op
        else {
            continue;
        };
        let Some((at, Answer::Done)) = &call.answer else {
            continue;
        };
        let runs = |hold: &&Hold<'_>| {
            let had = hold.queue == queue && hold.claimed.1 < call.asked;
            had && hold.to > *at && !history.clock_was_set(hold.claimed.0, *at)
        };
        if let Some(hold) = holds.iter().find(runs) {
            let (by, at) = (history.name(call.program), time(history, *at));
            let what = format!("{queue} by {by} at {at}, and {}", describe(history, hold));
            violations.push(Violation::new("in a drained queue nothing runs", what));
        }
    }
    violations
}
