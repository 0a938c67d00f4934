//! Ordered groups: no job begins before the one before it has ended.

use std::collections::{BTreeMap, HashMap};

use super::results::is_real;
use super::{History, Violation, time};
use crate::log::{Answer, How, Nanos, Op};
use crate::programs::limited::ORDERED;

/// A job that was pushed for certain.
struct Pushed {
    job: i64,
    asked: Nanos,
    answered: Nanos,
}

/// The last token with which each job was delivered.
fn last_tokens(history: &History) -> HashMap<i64, i64> {
    let mut last = HashMap::new();
    for call in &history.calls {
        if let (Op::Claim { queue, .. }, Some((_, Answer::Jobs(jobs)))) = (&call.op, &call.answer)
            && queue == ORDERED
        {
            for claimed in jobs {
                let token = last.entry(claimed.job).or_insert(claimed.token);
                *token = claimed.token.max(*token);
            }
        }
    }
    last
}

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut groups: BTreeMap<&str, Vec<Pushed>> = BTreeMap::new();
    let mut ends: HashMap<i64, Nanos> = HashMap::new();
    let mut begins: HashMap<i64, Nanos> = HashMap::new();
    let last = last_tokens(history);
    for call in &history.calls {
        let earliest = |times: &mut HashMap<i64, Nanos>, job: i64, at: Nanos| {
            let time = times.entry(job).or_insert(at);
            *time = at.min(*time);
        };
        match &call.op {
            Op::Push {
                job,
                queue,
                group: Some(group),
                ..
            } if queue == ORDERED => {
                let pushed = Pushed {
                    job: *job,
                    asked: call.asked,
                    answered: call.done().unwrap_or(Nanos::MAX),
                };
                groups.entry(group).or_default().push(pushed);
            }
            Op::Claim { queue, .. } if queue == ORDERED => {
                if let Some((at, Answer::Jobs(jobs))) = &call.answer {
                    for claimed in jobs {
                        earliest(&mut begins, claimed.job, *at);
                    }
                }
            }
            // What may have ended it did so no earlier than it was asked for. What was delivered again had not ended.
            Op::Settle {
                job,
                token,
                how: How::Ack | How::AckIn,
            } if call.may_be_done() && last.get(job).is_none_or(|last| last <= token) => {
                earliest(&mut ends, *job, call.asked);
            }
            Op::Cancel { job } if is_real(history, call) => {
                earliest(&mut ends, *job, call.asked);
            }
            _ => {}
        }
    }
    let mut violations = Vec::new();
    for (group, pushes) in groups {
        let mut by_answer: Vec<_> = pushes.iter().collect();
        by_answer.sort_by_key(|push| push.answered);
        let mut by_asked: Vec<_> = pushes.iter().collect();
        by_asked.sort_by_key(|push| push.asked);
        let mut before = by_answer.into_iter().peekable();
        // The last to end of those that were pushed before.
        let mut last: Option<(Nanos, i64)> = None;
        for push in by_asked {
            while let Some(earlier) = before.next_if(|it| it.answered < push.asked) {
                let end = ends.get(&earlier.job).copied().unwrap_or(Nanos::MAX);
                last = last.max(Some((end, earlier.job)));
            }
            if let (Some(begun), Some((end, earlier))) = (begins.get(&push.job), last)
                && *begun < end
            {
                let what = format!(
                    "{group}: {} was delivered at {}, and {earlier}, which was pushed before, ended later",
                    push.job,
                    time(history, *begun)
                );
                violations.push(Violation::new(
                    "jobs of an ordered group have an order",
                    what,
                ));
            }
        }
    }
    violations
}
