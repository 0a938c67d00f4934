//! A key has one job of a queue at a time.

use std::collections::{BTreeMap, HashMap};

use super::{Call, History, Violation, time};
use crate::log::{Answer, How, Nanos, Op};

/// A queue, and a key of it.
type Key<'a> = (&'a str, &'a str);

/// What is known of a job.
#[derive(Default)]
struct Job {
    /// From when on it was there, as far as anybody was told.
    there: Option<Nanos>,
    /// The largest token under which it was delivered.
    last: i64,
    /// Token, when it was asked for, and when it was answered if it was done.
    ends: Vec<(i64, Nanos, Option<Nanos>)>,
}

impl Job {
    /// When it can have ended at the earliest: what was delivered again had not.
    fn earliest_end(&self) -> Nanos {
        let ends = self.ends.iter();
        let ends = ends.filter(|(token, _, done)| *token >= self.last || done.is_some());
        ends.map(|(_, asked, _)| *asked).min().unwrap_or(Nanos::MAX)
    }

    /// When it had ended at the latest.
    fn latest_end(&self) -> Nanos {
        let done = self.ends.iter().filter_map(|(_, _, done)| *done);
        done.min().unwrap_or(Nanos::MAX)
    }
}

/// A push with a key that made a job.
struct New<'a> {
    number: i64,
    push: &'a Call,
    /// From when on the job was there, and when it can have ended at the earliest.
    lives: (Nanos, Nanos),
}

pub(super) fn check(history: &History) -> Vec<Violation> {
    let jobs = gather(history);
    let mut violations = Vec::new();
    let mut new: BTreeMap<Key<'_>, Vec<New<'_>>> = BTreeMap::new();
    for call in &history.calls {
        let Some((number, key)) = keyed(call) else {
            continue;
        };
        let job = jobs.get(&number);
        if let Some(there) = job.and_then(|job| job.there) {
            let lives = (there, job.map_or(Nanos::MAX, Job::earliest_end));
            let push = call;
            let of_key = new.entry(key).or_default();
            of_key.push(New {
                number,
                push,
                lives,
            });
        }
    }
    for (key, new) in &new {
        violations.extend(two(history, *key, new));
    }
    violations.extend(existing(history, &jobs));
    violations
}

/// The job that a push with a key is of.
fn keyed(call: &Call) -> Option<(i64, Key<'_>)> {
    match &call.op {
        Op::Push {
            job,
            queue,
            unique: Some(key),
            ..
        } => Some((*job, (queue, key))),
        _ => None,
    }
}

/// A job that was pushed, and there, while another had its key all the time.
fn two(history: &History, (queue, key): Key<'_>, new: &[New<'_>]) -> Option<Violation> {
    let mut by_begin: Vec<_> = new.iter().collect();
    by_begin.sort_unstable_by_key(|one| one.lives.0);
    let mut by_push: Vec<_> = new.iter().collect();
    by_push.sort_unstable_by_key(|one| one.push.asked);
    let mut before = by_begin.into_iter().peekable();
    // Of those that were there before the push, the one that is there longest.
    let mut longest: Option<&New<'_>> = None;
    for second in by_push {
        while let Some(one) = before.next_if(|one| one.lives.0 <= second.push.asked) {
            longest = longest.filter(|it| it.lives.1 >= one.lives.1).or(Some(one));
        }
        if let Some(first) = longest.filter(|first| first.lives.1 > second.lives.0) {
            let what = format!(
                "{key} of {queue}: job {} of {}, and job {} of {}",
                first.number,
                time(history, first.lives.0),
                second.number,
                time(history, second.lives.0)
            );
            return Some(Violation::new("a key has one job", what));
        }
    }
    None
}

/// Who is told that the key has a job is told of one that has it.
fn existing(history: &History, jobs: &HashMap<i64, Job>) -> Vec<Violation> {
    let mut known = HashMap::new();
    for call in &history.calls {
        if let (Some((number, key)), Some((_, Answer::Number(id)))) = (keyed(call), &call.answer) {
            known.insert(*id, (number, key, call.asked));
        }
    }
    let mut violations = Vec::new();
    for call in &history.calls {
        let (Some((_, key)), Some((at, Answer::Existing(id)))) = (keyed(call), &call.answer) else {
            continue;
        };
        // That of a push without an answer is not known.
        let Some((number, other, pushed)) = known.get(id) else {
            continue;
        };
        let end = jobs.get(number).map_or(Nanos::MAX, Job::latest_end);
        if *other != key || end < call.asked || pushed > at {
            let what = format!(
                "{key:?}: told of job {number} of {other:?} at {}",
                time(history, *at)
            );
            violations.push(Violation::new("a key tells of the job that has it", what));
        }
    }
    violations
}

fn gather(history: &History) -> HashMap<i64, Job> {
    let mut jobs: HashMap<i64, Job> = HashMap::new();
    let mut delivered = |number: i64, token: i64, at: Nanos| {
        let job = jobs.entry(number).or_default();
        job.there = Some(job.there.map_or(at, |there| there.min(at)));
        job.last = job.last.max(token);
    };
    for call in &history.calls {
        if let (Op::Claim { .. }, Some((at, Answer::Jobs(claimed)))) = (&call.op, &call.answer) {
            for one in claimed {
                delivered(one.job, one.token, *at);
            }
        }
    }
    for handled in &history.handled {
        delivered(handled.job, handled.token, handled.at);
    }
    for call in &history.calls {
        match &call.op {
            Op::Push { job, .. } => {
                if let Some(done) = call.done() {
                    let job = jobs.entry(*job).or_default();
                    job.there = Some(job.there.map_or(done, |there| there.min(done)));
                }
            }
            Op::Settle {
                job,
                token,
                how: How::Ack | How::AckIn,
            } if call.may_be_done() => {
                let job = jobs.entry(*job).or_default();
                job.ends.push((*token, call.asked, call.done()));
            }
            Op::Cancel { job } if call.may_be_done() => {
                let job = jobs.entry(*job).or_default();
                job.ends.push((i64::MAX, call.asked, call.done()));
            }
            _ => {}
        }
    }
    jobs
}
