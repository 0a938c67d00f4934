//! What is put off begins when it is due.

use std::collections::HashMap;

use super::{Call, History, Violation, time};
use crate::log::{Answer, Claimed, How, Nanos, Op, SECOND};
use crate::plan::Fault;
use crate::programs::{AGAIN, SNOOZED};

/// By how much the clocks of a program and of the server may seem to be apart.
const APART: Nanos = SECOND / 50;

/// What is known of the times of a job.
#[derive(Default)]
struct Job<'a> {
    push: Option<(&'a Call, u64)>,
    edits: Vec<(&'a Call, Option<i64>)>,
    /// What put it off, by how much, and under which token.
    put_off: Vec<(&'a Call, Nanos, i64)>,
    /// Claims, with the tokens under which they had it.
    claims: Vec<(&'a Call, i64)>,
}

/// A job is delivered when it is due, and not before: as it was pushed, as an edit that was answered before the claim began has set it,
/// or as its latest delivery has put it off. What is edited more than once has one time or the other. Only jobs that wait are edited,
/// so what a claim took whose answer was lost is not.
pub(super) fn check(history: &History) -> Vec<Violation> {
    // The times are those of the server.
    if history.applied.iter().any(|it| it.fault == Fault::Clock) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (number, job) in gather(history) {
        for (claim, token) in &job.claims {
            let Some(at) = claim.done() else {
                continue;
            };
            let due = due(history, &job, (claim, *token)).unwrap_or(0);
            let early = due.saturating_sub(at + APART);
            if early > 0 {
                let (by, at) = (history.name(claim.program), time(history, at));
                let millis = early / 1_000_000;
                let what =
                    format!("job {number}: {by} had it at {at}, {millis} ms before it was due");
                violations.push(Violation::new(
                    "what is put off begins when it is due",
                    what,
                ));
            }
        }
    }
    violations
}

fn gather(history: &History) -> HashMap<i64, Job<'_>> {
    let mut jobs: HashMap<i64, Job<'_>> = HashMap::new();
    for call in &history.calls {
        match (&call.op, &call.answer) {
            (Op::Push { job, delay, .. }, _) => {
                jobs.entry(*job).or_default().push = Some((call, *delay));
            }
            (Op::Edit { job, due }, _) if call.may_be_done() => {
                jobs.entry(*job).or_default().edits.push((call, *due));
            }
            (Op::Settle { job, token, how }, _) if call.done().is_some() => {
                let delay = match how {
                    How::Nack => AGAIN,
                    How::Snooze => SNOOZED,
                    How::Ack | How::AckIn | How::Release | How::Abandon => continue,
                };
                let delay = Nanos::try_from(delay.as_nanos()).unwrap_or(0);
                let of = &mut jobs.entry(*job).or_default().put_off;
                of.push((call, delay, *token));
            }
            (Op::Claim { .. }, Some((_, Answer::Jobs(claimed)))) => {
                for Claimed { job, token, .. } in claimed {
                    jobs.entry(*job).or_default().claims.push((call, *token));
                }
            }
            _ => {}
        }
    }
    jobs
}

/// When a job that a claim got was due at the earliest, by the clock of the logs.
fn due(history: &History, job: &Job<'_>, (claim, token): (&Call, i64)) -> Option<Nanos> {
    match job.edits[..] {
        [] => {}
        [(edit, Some(due))] if edit.done().is_some_and(|done| done < claim.asked) => {
            let due = u64::try_from(due).unwrap_or(0) * 1000;
            return Some(due.saturating_sub(history.wall));
        }
        _ => return None,
    }
    // What is settled later does not take place, as others check.
    let put_off = job.put_off.iter();
    let put_off = put_off.filter(|(call, _, it)| *it < token && claim.done() >= Some(call.asked));
    let put_off = put_off.map(|(call, delay, _)| call.asked + delay).max();
    let (push, delay) = job.push?;
    Some(put_off.unwrap_or(push.asked + delay * 1_000_000))
}
