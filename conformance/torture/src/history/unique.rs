//! A key has one job at a time.

use std::collections::HashMap;

use super::{Call, History, Violation, time};
use crate::log::{Answer, How, Nanos, Op};

/// When a job can have ended at the earliest, and when it had ended at the latest.
#[derive(Clone, Copy, Default)]
struct End {
    earliest: Option<Nanos>,
    latest: Option<Nanos>,
}

/// A push with a key that made a job.
struct New<'a> {
    job: i64,
    key: &'a str,
    push: &'a Call,
    /// When it was answered.
    done: Nanos,
}

pub(super) fn check(history: &History) -> Vec<Violation> {
    let ends = ends(history);
    let end = |job: i64| ends.get(&job).copied().unwrap_or_default();
    let new: Vec<_> = history.calls.iter().filter_map(new).collect();
    let mut violations = Vec::new();
    for (nth, first) in new.iter().enumerate() {
        let others = new.iter().skip(nth + 1).filter(|one| one.key == first.key);
        for second in others {
            let (first, second) = if first.done <= second.push.asked {
                (first, second)
            } else {
                (second, first)
            };
            let follows = first.done <= second.push.asked;
            if follows && end(first.job).earliest.is_none_or(|at| at > second.done) {
                let what = format!(
                    "{}: job {} of {}, and job {} of {}",
                    first.key,
                    first.job,
                    time(history, first.done),
                    second.job,
                    time(history, second.done)
                );
                violations.push(Violation::new("a key has one job", what));
            }
        }
    }
    violations.extend(existing(history, &new, end));
    violations
}

fn new(call: &Call) -> Option<New<'_>> {
    let Op::Push { job, unique, .. } = &call.op else {
        return None;
    };
    Some(New {
        job: *job,
        key: unique.as_deref()?,
        push: call,
        done: call.done()?,
    })
}

/// Who is told that the key has a job is told of one that has it.
fn existing(history: &History, new: &[New<'_>], end: impl Fn(i64) -> End) -> Vec<Violation> {
    let mut known = HashMap::new();
    for one in new {
        if let Some((_, Answer::Number(id))) = one.push.answer {
            known.insert(id, one);
        }
    }
    let mut violations = Vec::new();
    for call in &history.calls {
        let (
            Op::Push {
                unique: Some(key), ..
            },
            Some((at, Answer::Existing(id))),
        ) = (&call.op, &call.answer)
        else {
            continue;
        };
        // That of a push without an answer is not known.
        let Some(one) = known.get(id) else {
            continue;
        };
        let has_ended = end(one.job).latest.is_some_and(|end| end < call.asked);
        if one.key != key || has_ended || one.push.asked > *at {
            let what = format!(
                "{key}: told of job {} of {} at {}",
                one.job,
                one.key,
                time(history, *at)
            );
            violations.push(Violation::new("a key tells of the job that has it", what));
        }
    }
    violations
}

fn ends(history: &History) -> HashMap<i64, End> {
    let mut ends: HashMap<i64, End> = HashMap::new();
    for call in &history.calls {
        let (Op::Settle {
            job,
            how: How::Ack | How::AckIn,
            ..
        }
        | Op::Cancel { job }) = &call.op
        else {
            continue;
        };
        if !call.may_be_done() {
            continue;
        }
        let of = ends.entry(*job).or_default();
        of.earliest = Some(of.earliest.map_or(call.asked, |at| at.min(call.asked)));
        if let Some(done) = call.done() {
            of.latest = Some(of.latest.map_or(done, |at| at.min(done)));
        }
    }
    ends
}
