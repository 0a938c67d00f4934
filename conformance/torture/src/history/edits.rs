//! What is put off begins when it is due.

use std::collections::HashMap;

use super::{History, Violation, time};
use crate::log::{Answer, Nanos, Op, SECOND};
use crate::plan::Fault;

/// By how much the clocks of a program and of the server may seem to be apart.
const APART: Nanos = SECOND / 50;

/// A claim that began after an edit was answered delivers the job when it is due, and not before; what was edited twice has one
/// time or the other. Only jobs that wait are edited, so what a claim took whose answer was lost is not.
pub(super) fn check(history: &History) -> Vec<Violation> {
    // The times are those of the server.
    if history.applied.iter().any(|it| it.fault == Fault::Clock) {
        return Vec::new();
    }
    let mut edits: HashMap<i64, Vec<_>> = HashMap::new();
    for call in &history.calls {
        if let Op::Edit { job, due } = &call.op
            && call.may_be_done()
        {
            edits.entry(*job).or_default().push((call, *due));
        }
    }
    let mut violations = Vec::new();
    for call in &history.calls {
        let (Op::Claim { .. }, Some((at, Answer::Jobs(jobs)))) = (&call.op, &call.answer) else {
            continue;
        };
        for claimed in jobs {
            let Some([(edit, Some(due))]) = edits.get(&claimed.job).map(Vec::as_slice) else {
                continue;
            };
            let is_edited = edit.done().is_some_and(|done| done < call.asked);
            let due = u64::try_from(*due).unwrap_or(0) * 1000;
            let early = due.saturating_sub(at + history.wall + APART);
            if is_edited && early > 0 {
                let (job, by, at) = (claimed.job, history.name(call.program), time(history, *at));
                let millis = early / 1_000_000;
                let what = format!("job {job}: {by} had it at {at}, {millis} ms before it was due");
                violations.push(Violation::new(
                    "what is put off begins when it is due",
                    what,
                ));
            }
        }
    }
    violations
}
