//! Jobs: none is lost, none is done twice, and what is refused did not happen.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Call, History, Violation, time};
use crate::log::{Answer, Claimed, How, Nanos, Op};
use crate::programs::is_exact;

const BY_SOMEBODY: &str = "a job is done by whoever acknowledges it";

/// What a job went through.
#[derive(Default)]
struct Job<'a> {
    push: Option<&'a Call>,
    /// Token, when it was asked for, from when and, as far as somebody has said, until when it was held, by which program.
    deliveries: Vec<(i64, Nanos, Nanos, Option<Nanos>, usize)>,
    settled: Vec<(i64, How, &'a Call)>,
    /// Whether somebody was told that it is cancelled.
    cancelled: bool,
    /// Effects that are there, with their tokens.
    exact: Vec<i64>,
    plain: usize,
    /// How many of the plain ones were asked for.
    affected: usize,
}

impl Job<'_> {
    /// Whether it was pushed, as far as anybody has noticed.
    fn is_seen(&self) -> bool {
        !self.exact.is_empty() || self.plain > 0 || !self.deliveries.is_empty()
    }
}

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let sent: HashSet<i64> = history.tables.sent.iter().copied().collect();
    let jobs = gather(history);
    for (number, job) in &jobs {
        let mut violate = |promise, what: String| {
            violations.push(Violation::new(promise, format!("job {number}: {what}")));
        };
        pushed(history, (*number, job), &sent, &mut violate);
        if let Some(Op::Push {
            with: Some(other), ..
        }) = job.push.map(|push| &push.op)
            && job.is_seen() != jobs.get(other).is_some_and(Job::is_seen)
        {
            let what = format!("it was seen: {}, and {other} was not so", job.is_seen());
            violate("what is pushed together is there together", what);
        }
        asked_for(job, &mut violate);
        delivered(history, job, &mut violate);
        acknowledged(history, job, &mut violate);
        ended(history, (*number, job), &mut violate);
    }
    for (job, what) in &history.tables.left {
        let what = format!("job {job}: {what}");
        violations.push(Violation::new("the queue drains", what));
    }
    violations.extend(handled_twice(history));
    violations
}

/// A delivery has one handler, once.
fn handled_twice(history: &History) -> Option<Violation> {
    let mut tokens = HashMap::new();
    history.handled.iter().find_map(|one| {
        let other = tokens.insert(one.token, one)?;
        let what = format!(
            "{}, of job {}, by {} at {} and by {} at {}",
            one.token,
            one.job,
            history.name(other.program),
            time(history, other.at),
            history.name(one.program),
            time(history, one.at)
        );
        Some(Violation::new("a delivery has one handler", what))
    })
}

fn gather(history: &History) -> BTreeMap<i64, Job<'_>> {
    let mut jobs: BTreeMap<i64, Job<'_>> = BTreeMap::new();
    for call in &history.calls {
        match &call.op {
            Op::Push { job, .. } => jobs.entry(*job).or_default().push = Some(call),
            Op::Claim { .. } => {
                let Some((at, Answer::Jobs(claimed))) = &call.answer else {
                    continue;
                };
                for Claimed { job, token, .. } in claimed {
                    // Whoever says nothing may have got it too late.
                    let held = call.held.get(token).map(|held| *held.max(at));
                    let delivery = (*token, call.asked, *at, held, call.program);
                    jobs.entry(*job).or_default().deliveries.push(delivery);
                }
            }
            Op::Settle { job, token, how } => {
                let job = jobs.entry(*job).or_default();
                job.settled.push((*token, *how, call));
            }
            Op::Effect { job } => jobs.entry(*job).or_default().affected += 1,
            Op::Cancel { job } if call.done().is_some() => {
                jobs.entry(*job).or_default().cancelled = true;
            }
            _ => {}
        }
    }
    for handled in &history.handled {
        // When it was claimed is not known.
        let held = Some(handled.held);
        let delivery = (handled.token, 0, handled.at, held, handled.program);
        let job = jobs.entry(handled.job).or_default();
        job.deliveries.push(delivery);
    }
    for (job, token, exact) in &history.tables.effects {
        let job = jobs.entry(*job).or_default();
        if *exact {
            job.exact.push(*token);
        } else {
            job.plain += 1;
        }
    }
    jobs
}

/// What was acknowledged is done, once or at least once; what was refused is not there.
fn pushed(
    history: &History,
    (number, job): (i64, &Job<'_>),
    sent: &HashSet<i64>,
    violate: &mut impl FnMut(&'static str, String),
) {
    let Some(push) = job.push else {
        return violate("what is delivered was pushed", String::new());
    };
    let (effects, exact) = (job.exact.len() + job.plain, is_exact(number));
    let seen = effects > 0 || !job.deliveries.is_empty();
    let by = history.name(push.program);
    // A cancellation of which nobody knows may have been none; what was cancelled is in the archive.
    let is_cancelled = job.cancelled || history.tables.cancelled.contains(&number);
    // Whether it was tried often enough others check.
    let is_dead = history.tables.dead.contains_key(&number);
    if push.done().is_some() && effects == 0 && !is_cancelled && !is_dead {
        let deliveries = job.deliveries.len();
        let what = format!("pushed by {by}, delivered {deliveries} times, and without effect");
        violate("no job is lost", what);
    }
    if push.is_refused() && seen {
        let what = format!("its push by {by} was refused, and it was delivered: {push:?}");
        violate("what did not happen has no effect", what);
    }
    if matches!(push.answer, Some((_, Answer::Existing(_)))) && seen {
        let what = format!("its key had a job when {by} pushed it: {push:?}");
        violate("what did not happen has no effect", what);
    }
    if history.tables.cancelled.contains(&number) && !job.exact.is_empty() {
        let what = format!("effects under {:?}", job.exact);
        violate("what is cancelled is not done", what);
    }
    if exact && job.exact.len() > 1 {
        let what = format!("effects under {:?}", job.exact);
        violate("effects of a transaction happen once", what);
    }
    if matches!(push.op, Op::Push { inside: true, .. }) && seen != sent.contains(&number) {
        let what = format!(
            "pushed by {by}; it was seen: {seen}, its row is there: {}",
            !seen
        );
        violate("a push in a transaction is part of it", what);
    }
}

/// Effects are those that handlers asked for.
fn asked_for(job: &Job<'_>, violate: &mut impl FnMut(&'static str, String)) {
    const PROMISE: &str = "what is there was asked for";
    let is_asked = |token: &&i64| {
        let mut settled = job.settled.iter();
        settled.any(|(of, how, _)| of == *token && *how == How::AckIn)
    };
    if let Some(token) = job.exact.iter().find(|token| !is_asked(token)) {
        violate(PROMISE, format!("an effect under {token}"));
    }
    if job.plain > job.affected {
        let what = format!("{} effects of {}", job.plain, job.affected);
        violate(PROMISE, what);
    }
}

/// A job has one handler at a time.
fn delivered(history: &History, job: &Job<'_>, violate: &mut impl FnMut(&'static str, String)) {
    let mut deliveries = job.deliveries.clone();
    deliveries.sort_unstable_by_key(|(_, _, from, _, _)| *from);
    let mut tokens = HashMap::new();
    for (token, _, from, _, program) in &deliveries {
        if let Some((other, at)) = tokens.insert(*token, (*program, *from))
            && other != *program
        {
            let what = format!(
                "{token} was delivered to {} at {} and to {} at {}",
                history.name(other),
                time(history, at),
                history.name(*program),
                time(history, *from)
            );
            violate("a delivery has one token", what);
        }
    }
    // Nobody is given it while another has it, who had it before that was asked for.
    for (other, asked, from, _, program) in &deliveries {
        let mut earlier = deliveries.iter().filter(|it| it.0 != *other);
        let holder = earlier.find(|(_, _, begun, held, _)| {
            let meanwhile = asked > begun && held.is_some_and(|held| held > *from);
            meanwhile && !history.clock_was_set(*begun, *from)
        });
        if let Some((one, _, begun, _, holder)) = holder {
            let what = format!(
                "{} had it under {one} from {} on, and {} was given it under {other} at {}",
                history.name(*holder),
                time(history, *begun),
                history.name(*program),
                time(history, *from)
            );
            violate("a job has one handler", what);
        }
    }
    let held = deliveries.iter();
    let held: Vec<_> = held
        .filter_map(|(token, _, from, held, program)| Some((*token, *from, (*held)?, *program)))
        .collect();
    for pair in held.windows(2) {
        let ((one, begun, held, holder), (other, from, _, program)) = (pair[0], pair[1]);
        if one != other && held > from && !history.clock_was_set(begun, held) {
            let what = format!(
                "{} had it under {one} until {}, and {} was given it under {other} at {}",
                history.name(holder),
                time(history, held),
                history.name(program),
                time(history, from)
            );
            violate("a job has one handler", what);
        }
    }
}

/// A job is acknowledged once, by its latest delivery, and not delivered afterwards.
fn acknowledged(history: &History, job: &Job<'_>, violate: &mut impl FnMut(&'static str, String)) {
    let acks = job
        .settled
        .iter()
        .filter(|(_, how, _)| matches!(how, How::Ack | How::AckIn));
    let done: Vec<_> = acks
        .filter_map(|(token, how, call)| Some((*token, *how, call.done()?)))
        .collect();
    if done.len() > 1 {
        let tokens: Vec<_> = done.iter().map(|(token, ..)| token).collect();
        violate("a job is acknowledged once", format!("under {tokens:?}"));
    }
    for (token, how, at) in &done {
        let later = job.deliveries.iter().find(|it| it.1 > *at);
        if let Some((later, claimed, _, _, program)) = later {
            let what = format!(
                "acknowledged under {token} at {}, and claimed under {later} by {} at {}",
                time(history, *at),
                history.name(*program),
                time(history, *claimed)
            );
            violate("what is done is not delivered", what);
        }
        if *how == How::AckIn && !job.exact.contains(token) {
            violate(
                "what is confirmed lasts",
                format!("no effect under {token}"),
            );
        }
    }
    for (token, how, call) in &job.settled {
        let mut deliveries = job.deliveries.iter();
        let newer = deliveries.find(|it| it.0 > *token && it.2 < call.asked);
        if let Some((newer, ..)) = newer.filter(|_| call.done().is_some()) {
            let what = format!("{how:?} of {token} was answered after {newer} was delivered");
            violate("a delivery that is not the latest changes nothing", what);
        }
        if *how == How::AckIn && call.is_refused() && job.exact.contains(token) {
            let what = format!("an effect under {token}: {call:?}");
            violate("what did not happen has no effect", what);
        }
    }
}

/// A job that was delivered and is not there any more was acknowledged, or cancelled, or is a dead letter: an acknowledgement that was
/// refused has not done it.
fn ended(
    history: &History,
    (number, job): (i64, &Job<'_>),
    violate: &mut impl FnMut(&'static str, String),
) {
    let tables = &history.tables;
    let is_left = tables.left.iter().any(|(left, _)| *left == number);
    let is_cancelled = job.cancelled || tables.cancelled.contains(&number);
    if !job.is_seen() || is_left || is_cancelled || tables.dead.contains_key(&number) {
        return;
    }
    let acks = job
        .settled
        .iter()
        .filter(|(_, how, _)| matches!(how, How::Ack | How::AckIn));
    let refused: Vec<_> = acks.map(|(token, _, call)| (token, call)).collect();
    if !refused.iter().any(|(_, call)| call.may_be_done()) {
        let refused = refused.iter();
        let refused: Vec<_> = refused
            .map(|(token, call)| format!("{token}: {:?}", call.answer))
            .collect();
        violate(
            BY_SOMEBODY,
            format!("it is done; acknowledgements: {refused:?}"),
        );
    }
}
