//! Results are those of the deliveries that completed the jobs; what was cancelled is not done.

use std::collections::{BTreeMap, HashMap};

use super::{Call, History, Violation, time};
use crate::log::{Answer, How, Nanos, Op, SECOND};
use crate::programs::limited::{has_result, is_limited};

/// What is known of a job.
#[derive(Default)]
struct Job<'a> {
    limited: bool,
    /// What the library calls it.
    id: Option<i64>,
    /// When its push was answered.
    pushed: Option<Nanos>,
    acks: Vec<(i64, &'a Call)>,
    results: Vec<&'a Call>,
    cancels: Vec<&'a Call>,
    claims: Vec<&'a Call>,
}

/// By so much earlier than it has to a caller may look for the last time.
const EARLY: Nanos = SECOND / 10;

impl Job<'_> {
    /// Whether it was known to be done before whoever asked for its result had to look for the last time.
    fn is_acked_before(&self, asks: &Call) -> bool {
        let wait = asks.op.wait() * 1_000_000;
        let last = asks.asked + wait.saturating_sub(EARLY);
        let mut acked = self.acks.iter().filter_map(|(_, ack)| ack.done());
        acked.any(|at| at < last)
    }

    /// Whether it was there while this call was under way: pushed before, and not ended by then. When a job became a dead letter not
    /// everybody knows.
    fn is_there(&self, history: &History, call: &Call) -> bool {
        if let Op::Cancel { job } = &call.op
            && history.tables.dead.contains_key(job)
        {
            return false;
        }
        let answered = call.answer.as_ref().map_or(Nanos::MAX, |(at, _)| *at);
        let ends = |other: &Call| other.may_be_done() && other.asked <= answered;
        let acked = self.acks.iter().any(|(_, ack)| ends(ack));
        let mut cancels = self.cancels.iter();
        let cancelled = cancels.any(|other| ends(other) && is_real(history, other));
        self.pushed.is_some_and(|at| at < call.asked) && !acked && !cancelled
    }
}

/// Whether a cancellation may have happened: of those that are not known, the archive tells.
pub(super) fn is_real(history: &History, cancel: &Call) -> bool {
    let Op::Cancel { job } = &cancel.op else {
        return false;
    };
    cancel.done().is_some() || cancel.may_be_done() && history.tables.cancelled.contains(job)
}

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut jobs: BTreeMap<i64, Job<'_>> = BTreeMap::new();
    for call in &history.calls {
        match &call.op {
            Op::Push { job, queue, .. } => {
                let of = jobs.entry(*job).or_default();
                of.limited = is_limited(queue);
                of.pushed = call.done();
                if let Some((_, Answer::Number(id))) = &call.answer
                    && !matches!(call.op, Op::Push { inside: true, .. })
                {
                    of.id = Some(*id);
                }
            }
            Op::Settle {
                job,
                token,
                how: How::Ack | How::AckIn,
            } => {
                jobs.entry(*job).or_default().acks.push((*token, call));
            }
            Op::Result { job, .. } => jobs.entry(*job).or_default().results.push(call),
            Op::Cancel { job } => jobs.entry(*job).or_default().cancels.push(call),
            Op::Claim { .. } => {
                if let Some((_, Answer::Jobs(claimed))) = &call.answer {
                    for claimed in claimed {
                        jobs.entry(claimed.job).or_default().claims.push(call);
                    }
                }
            }
            _ => {}
        }
    }
    let results: HashMap<i64, i64> = history.tables.results.iter().copied().collect();
    let mut violations = Vec::new();
    for (number, job) in jobs.iter().filter(|(_, job)| job.limited) {
        let mut violate = |promise, what: String| {
            violations.push(Violation::new(promise, format!("job {number}: {what}")));
        };
        let stored = job.id.and_then(|id| results.get(&id)).copied();
        result(history, (*number, job), stored, &mut violate);
        cancelled(history, (*number, job), stored, &mut violate);
    }
    violations
}

fn result(
    history: &History,
    (number, job): (i64, &Job<'_>),
    stored: Option<i64>,
    violate: &mut impl FnMut(&'static str, String),
) {
    const PROMISE: &str = "a job has the result of the delivery that completed it";
    for (token, ack) in &job.acks {
        if job.id.is_some() && has_result(number) && ack.done().is_some() && stored != Some(*token)
        {
            let what = format!("acknowledged under {token}, and its result is {stored:?}");
            violate(PROMISE, what);
        }
    }
    // A worker repeats what was refused for want of something.
    let mut acks = job.acks.iter();
    if let Some(stored) = stored
        && (!has_result(number) || acks.all(|(token, ack)| *token != stored || ack.is_refused()))
    {
        violate(PROMISE, format!("nobody acknowledged {stored}, its result"));
    }
    for call in &job.results {
        let by = history.name(call.program);
        let Some((at, answer)) = &call.answer else {
            continue;
        };
        let at = time(history, *at);
        let mut cancels = job.cancels.iter().filter_map(|it| it.done());
        let other = !matches!(answer, Answer::Cancelled | Answer::Failed { .. });
        if other && cancels.any(|done| done < call.asked) {
            let what = format!("{by} was told {answer:?} at {at}");
            violate("who asks for what was cancelled is told", what);
        }
        match answer {
            Answer::Number(token) if stored != Some(*token) => {
                let what = format!("{by} got {token} at {at}, and it is {stored:?}");
                violate(PROMISE, what);
            }
            Answer::Cancelled if !history.tables.cancelled.contains(&number) => {
                let what = format!("{by} was told at {at} that it was cancelled");
                violate("what is cancelled was cancelled by somebody", what);
            }
            Answer::Nothing if job.is_acked_before(call) => {
                let what = format!("{by} was told at {at} that it has not ended");
                violate(PROMISE, what);
            }
            Answer::Done => {
                let what = format!("{by} was told at {at} that it has no result");
                violate(PROMISE, what);
            }
            _ => {}
        }
    }
}

fn cancelled(
    history: &History,
    (number, job): (i64, &Job<'_>),
    stored: Option<i64>,
    violate: &mut impl FnMut(&'static str, String),
) {
    let there = history.tables.cancelled.contains(&number);
    let done: Vec<_> = job.cancels.iter().filter_map(|it| it.done()).collect();
    if !done.is_empty() && !there {
        violate("what is confirmed lasts", "it is not cancelled".to_owned());
    }
    let found_nothing = |call: &&&Call| matches!(call.answer, Some((_, Answer::Nothing)));
    let mut found_nothing = job.cancels.iter().filter(found_nothing);
    if let Some(call) = found_nothing.find(|call| job.is_there(history, call)) {
        let (by, at) = (history.name(call.program), time(history, call.asked));
        violate(
            "what is there can be cancelled",
            format!("{by} found nothing at {at}"),
        );
    }
    if done.len() > 1 {
        violate("a job is cancelled once", format!("{:?}", job.cancels));
    }
    if there && !job.cancels.iter().any(|call| call.may_be_done()) {
        let what = "it is cancelled".to_owned();
        violate("what did not happen has no effect", what);
    }
    if !there {
        return;
    }
    let acked = job.acks.iter().find(|(_, ack)| ack.done().is_some());
    if let Some((token, _)) = acked {
        let what = format!("acknowledged under {token}");
        violate("what is cancelled is not done", what);
    }
    if let Some(stored) = stored {
        violate(
            "what is cancelled is not done",
            format!("its result is {stored}"),
        );
    }
    let later = |claim: &&&Call| done.iter().any(|at| claim.asked > *at);
    if let Some(claim) = job.claims.iter().find(|claim| later(claim)) {
        let (by, at) = (history.name(claim.program), time(history, claim.asked));
        let what = format!("{by} claimed it at {at}");
        violate("what is cancelled is not delivered", what);
    }
}
