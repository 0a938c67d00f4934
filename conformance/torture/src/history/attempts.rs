//! A job is delivered as often as it may be, each delivery tells which of its job it is, and what has failed so often is a dead
//! letter.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Call, Dead, History, Violation, time};
use crate::log::{Answer, Claimed, How, Nanos, Op, SECOND};
use crate::programs::limited::FEW;

/// For how long a claim whose caller knows nothing of it may still take jobs, where something holds it up, and where nothing does.
const LATE: Nanos = 20 * SECOND;
const SOON: Nanos = 3 * SECOND;
/// For so long at least nobody but its own program has what a claim took, which finds it again at no cost.
const LEASE: Nanos = SECOND * 9 / 10;
/// A claim that took so much longer than it was to wait may have been sent more than once: programs set no shorter time limit.
const SLOW: Nanos = 3 * SECOND;

/// A delivery that somebody was told of.
struct Delivery<'a> {
    told: Claimed,
    claim: &'a Call,
    at: Nanos,
    /// Whether it counts: certainly, and possibly.
    counts: (bool, bool),
}

/// What is known of a job.
#[derive(Default)]
struct Job<'a> {
    queue: &'a str,
    most: u32,
    /// When it was pushed, at the earliest.
    pushed: Nanos,
    deliveries: Vec<Delivery<'a>>,
    settled: Vec<(i64, How, &'a Call)>,
    /// Whoever asked for its result.
    results: Vec<&'a Call>,
    /// When somebody was told that it is a dead letter.
    dead: Option<Nanos>,
}

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut jobs = gather(history);
    let unseen = Unseen::of(history);
    let begun: HashSet<i64> = history.handled.iter().map(|it| it.token).collect();
    let mut violations = Vec::new();
    for (number, job) in &mut jobs {
        count(job, &begun);
        let dead = history.tables.dead.get(number);
        let mut violate = |promise, what: String| {
            violations.push(Violation::new(promise, format!("job {number}: {what}")));
        };
        numbered(history, job, &unseen, &mut violate);
        if job.queue == FEW {
            few(history, job, &mut violate);
            ended(history, job, dead, &mut violate);
            if let Some(dead) = dead {
                died(job, dead, &unseen, &mut violate);
            }
        }
    }
    violations
}

fn gather(history: &History) -> BTreeMap<i64, Job<'_>> {
    let mut jobs: BTreeMap<i64, Job<'_>> = BTreeMap::new();
    for call in &history.calls {
        match (&call.op, &call.answer) {
            (
                Op::Push {
                    job,
                    queue,
                    attempts,
                    ..
                },
                _,
            ) => {
                let of = jobs.entry(*job).or_default();
                (of.queue, of.most, of.pushed) = (queue, *attempts, call.asked);
            }
            (Op::Claim { .. }, Some((at, Answer::Jobs(claimed)))) => {
                for told in claimed {
                    let of = &mut jobs.entry(told.job).or_default().deliveries;
                    of.push(Delivery {
                        told: *told,
                        claim: call,
                        at: *at,
                        counts: (false, true),
                    });
                }
            }
            (Op::Settle { job, token, how }, answer) => {
                let of = jobs.entry(*job).or_default();
                of.settled.push((*token, *how, call));
                note_dead(of, answer.as_ref());
            }
            (Op::Result { job, .. }, answer) => {
                let of = jobs.entry(*job).or_default();
                of.results.push(call);
                note_dead(of, answer.as_ref());
            }
            _ => {}
        }
    }
    jobs
}

fn note_dead(job: &mut Job<'_>, answer: Option<&(Nanos, Answer)>) {
    if let Some((at, Answer::Dead)) = answer {
        job.dead = Some(job.dead.map_or(*at, |dead| dead.min(*at)));
    }
}

/// Puts deliveries in their order, and notes which of them count: those that were put off or given back do not, and what a worker
/// has claimed ahead may go back before a handler has begun.
fn count(job: &mut Job<'_>, begun: &HashSet<i64>) {
    job.deliveries.sort_by_key(|delivery| delivery.told.token);
    for delivery in &mut job.deliveries {
        let token = delivery.told.token;
        let of_worker = matches!(
            delivery.claim.op,
            Op::Claim {
                wait: 0,
                extended: true,
                ..
            }
        );
        let is_begun = !of_worker || begun.contains(&token);
        let free = || {
            let settled = job.settled.iter();
            settled.filter(|(of, how, call)| *of == token && how.is_free() && !call.is_refused())
        };
        let may_be_free = free().next().is_some() || !is_begun;
        let is_free = free().any(|(_, _, call)| call.done().is_some());
        delivery.counts = (!may_be_free, !is_free);
    }
}

/// Claims that may have taken jobs of which nobody was told: that were not answered, or that may have been sent again, because the
/// sessions of their programs ended or because they took long. What was sent first comes later only where something is held up.
struct Unseen<'a>(HashMap<&'a str, Vec<(Nanos, Nanos)>>);

impl<'a> Unseen<'a> {
    fn of(history: &'a History) -> Self {
        let mut claims: HashMap<&str, Vec<(Nanos, Nanos)>> = HashMap::new();
        for call in &history.calls {
            let Op::Claim { queue, wait, .. } = &call.op else {
                continue;
            };
            let ended = history.programs[call.program].ended;
            let answered = match &call.answer {
                Some((at, _)) => *at,
                None => ended.unwrap_or(Nanos::MAX - LATE),
            };
            // What was refused did not happen.
            let is_told = call.is_refused() || matches!(&call.answer, Some((_, Answer::Jobs(_))));
            let took = answered.saturating_sub(call.asked);
            let during = (call.program, call.asked, answered);
            let is_late = took > wait * 1_000_000 + SLOW || history.held_up(during);
            if is_late || !is_told || history.may_be_repeated(during) {
                let late = if is_late { LATE } else { SOON };
                let of = claims.entry(queue).or_default();
                of.push((call.asked, answered + late));
            }
        }
        Self(claims)
    }

    /// Whether one may have taken a job of this queue in this time.
    fn any(&self, queue: &str, from: Nanos, to: Nanos) -> bool {
        let mut of = self.0.get(queue).into_iter().flatten();
        of.any(|(asked, ended)| *asked <= to && *ended >= from)
    }
}

/// Each delivery has the number after that of the last one that counts, and maybe a larger one where somebody has claimed it of whom
/// nobody knows, whose lease may have ended before.
fn numbered(
    history: &History,
    job: &Job<'_>,
    unseen: &Unseen<'_>,
    violate: &mut impl FnMut(&'static str, String),
) {
    const PROMISE: &str = "a delivery tells which of its job it is";
    let mut before: Option<&Delivery<'_>> = None;
    for delivery in &job.deliveries {
        let told = delivery.told.attempt;
        let (from, least, most) = before.map_or((job.pushed, 1, 1), |before| {
            let (certain, possible) = before.counts;
            let attempt = before.told.attempt;
            let asked = before.claim.asked;
            (
                asked,
                attempt + u32::from(certain),
                attempt + u32::from(possible),
            )
        });
        let is_set = history.clock_was_set(from, delivery.at);
        let to = delivery.at - if is_set { 0 } else { LEASE };
        if told < least || (told > most && !unseen.any(job.queue, from, to)) {
            let (by, at) = (
                history.name(delivery.claim.program),
                time(history, delivery.at),
            );
            let what = format!(
                "{by} was told at {at} that it is delivery {told}, and it is {least} to {most}, after {:?}",
                before.map(|it| it.told)
            );
            violate(PROMISE, what);
        }
        before = Some(delivery);
    }
}

/// It is delivered as often as was said when it was pushed, and no more.
fn few(history: &History, job: &Job<'_>, violate: &mut impl FnMut(&'static str, String)) {
    for delivery in &job.deliveries {
        let Claimed { attempt, most, .. } = delivery.told;
        if !(1..=job.most).contains(&attempt) || most != job.most {
            let (by, at) = (
                history.name(delivery.claim.program),
                time(history, delivery.at),
            );
            let what = format!("delivery {attempt} of {most} by {by} at {at}");
            violate("no job is tried more often than it may", what);
        }
    }
    for (token, how, call) in &job.settled {
        let mut deliveries = job.deliveries.iter();
        let Some(delivery) = deliveries.find(|it| it.told.token == *token) else {
            continue;
        };
        let is_last = delivery.told.attempt >= job.most;
        let is_wrong = match &call.answer {
            Some((_, Answer::Done)) => *how == How::Nack && is_last,
            Some((_, Answer::Dead)) => !is_last,
            _ => false,
        };
        if is_wrong {
            let (by, at) = (history.name(call.program), time(history, call.asked));
            let what = format!(
                "{how:?} of delivery {} of {} by {by} at {at} was answered with {:?}",
                delivery.told.attempt, job.most, call.answer
            );
            violate("a job dies with its last attempt", what);
        }
    }
}

/// What is dead is among the dead letters, and has ended.
fn ended(
    history: &History,
    job: &Job<'_>,
    dead: Option<&Dead>,
    violate: &mut impl FnMut(&'static str, String),
) {
    if let Some(at) = job.dead {
        if dead.is_none() {
            let what = format!("a dead letter at {}", time(history, at));
            violate("what is confirmed lasts", what);
        }
        if let Some(later) = job.deliveries.iter().find(|it| it.claim.asked > at) {
            let by = history.name(later.claim.program);
            let what = format!("claimed by {by} at {}", time(history, later.claim.asked));
            violate("what is dead is not delivered", what);
        }
        let is_told = |answer: &Answer| *answer == Answer::Dead || answer.is_failed();
        let mut later = job.results.iter().filter(|call| call.asked > at);
        let told = later.find_map(|call| call.answer.as_ref().filter(|(_, it)| !is_told(it)));
        if let Some((later, answer)) = told {
            let what = format!("{answer:?} at {}", time(history, *later));
            violate("who asks for what is dead is told", what);
        }
    }
    let mut acks = job
        .settled
        .iter()
        .filter(|(_, how, call)| matches!(how, How::Ack | How::AckIn) && call.done().is_some());
    if let Some((token, ..)) = acks.next().filter(|_| dead.is_some()) {
        violate(
            "what is dead is not done",
            format!("acknowledged under {token}"),
        );
    }
}

/// A dead letter has had all of its attempts, and tells of each.
fn died(
    job: &Job<'_>,
    dead: &Dead,
    unseen: &Unseen<'_>,
    violate: &mut impl FnMut(&'static str, String),
) {
    let last = job.deliveries.last();
    let (from, had) = last.map_or((job.pushed, 0), |last| {
        let attempt = last.told.attempt;
        let had = if last.counts.1 { attempt } else { attempt - 1 };
        (last.claim.asked, had)
    });
    let is_seen = !unseen.any(job.queue, from, Nanos::MAX);
    if dead.attempts != job.most || (had < job.most && is_seen) {
        let what = format!(
            "{} of {} attempts, of which {had} are known",
            dead.attempts, job.most
        );
        violate("no job dies that was not tried", what);
    }
    if !dead.errors.iter().copied().eq(1..=i64::from(dead.attempts)) {
        let what = format!(
            "{} attempts, and errors of {:?}",
            dead.attempts, dead.errors
        );
        violate("a dead letter tells of its attempts", what);
    }
}
