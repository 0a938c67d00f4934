//! Every call is answered in time, also while things fail, and nothing fails without a cause.

use std::collections::{BTreeMap, BTreeSet};

use super::{Call, History, Violation, time};
use crate::args::Role;
use crate::log::{Answer, How, Kind, LOCKED, Nanos, Op, SECOND};
use crate::programs::TIMEOUT;

/// How long a call of a program that runs may take, beside what it was told to wait: while processes and messages are held up.
const BOUND: Nanos = 60 * SECOND;
/// In the calm, of the library: about twice the time limit of its statements, and no transaction of a program takes as long.
const OF_LIBRARY: Nanos = 2 * TIMEOUT * 1_000_000 + 4 * SECOND;
/// And of plain clients, whose statements end after that time.
const OF_PLAIN: Nanos = TIMEOUT * 1_000_000 + 4 * SECOND;
/// A grant that took so long has come late: leases have a second at least. A mutex, which does not expire, may take what its caller was
/// to wait.
const LATE: Nanos = SECOND / 4;

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut served: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for call in &history.calls {
        let program = &history.programs[call.program];
        let name = || history.name(call.program);
        let end = match (&call.answer, program.ended) {
            (Some((at, _)), _) => *at,
            // It was killed.
            (None, Some(at)) => at,
            (None, None) => Nanos::MAX,
        };
        let took = end - call.asked;
        let took = took.saturating_sub(history.stopped(call.program, call.asked, end));
        let is_calm = call.asked > history.calm.1 && history.is_quick;
        let bound = bound(&call.op, program.role, is_calm);
        if took > bound + call.op.wait() * 1_000_000 {
            let (asked, took) = (time(history, call.asked), took / SECOND);
            let what = format!("{:?} of {} at {asked} took {took} s", call.op, name());
            violations.push(Violation::new("every call is answered in time", what));
        }
        let Some((at, answer)) = &call.answer else {
            continue;
        };
        if let Answer::Failed { kind, message, .. } = answer
            && is_calm
            && kind != "dropped"
            && !(kind == "Lost" && may_be_lost(history, (call, &call.op)))
            && !(kind == "TimedOut" && may_time_out(&call.op, program.role))
            && !(kind == "Deadlock" && program.role == Role::Plain)
            && !is_locked(&call.op, kind, message)
        {
            let (name, at) = (name(), time(history, *at));
            let what = format!("{:?} of {name} at {at}: {kind}: {message}", call.op);
            violations.push(Violation::new("nothing fails without a cause", what));
        }
        let is_served = answer.is_done() || matches!(answer, Answer::Existing(_));
        if *at > history.calm.0 && is_served {
            served
                .entry(call.program)
                .or_default()
                .insert(call.op.name());
        }
        // What waits with the server's own functions is told of cycles of others.
        let is_known = program.role == Role::Plain;
        if let Answer::Failed { kind, message, .. } = answer
            && (matches!(&**kind, "Invalid" | "Unsupported" | "Corrupt")
                || (kind == "Deadlock" && !is_known))
        {
            let what = format!("{:?} of {}: {kind}: {message}", call.op, name());
            violations.push(Violation::new("errors say what happened", what));
        }
    }
    violations.extend(starved(history, &served));
    violations.extend(passed_over(history));
    violations
}

/// How long it may take beside what it was told to wait. A look holds snapshots for a while; who connects or closes makes several calls.
fn bound(op: &Op, role: Role, is_calm: bool) -> Nanos {
    match op {
        _ if !is_calm => BOUND,
        Op::Look | Op::Connect | Op::Close => BOUND,
        _ if role == Role::Plain => OF_PLAIN,
        _ => OF_LIBRARY,
    }
}

/// Whether a time may be over before the answer: that which the call was to wait at most, or that which a plain client has set for
/// all of its statements.
fn may_time_out(op: &Op, role: Role) -> bool {
    // A count waits for its mutex.
    matches!(op, Op::Acquire { wait: 1.., .. } | Op::Count { .. }) || role == Role::Plain
}

/// Whether its holder may have lost it without a fault: what the library does not keep, or what was granted so late that little was
/// left of it, as it counts from when it was asked for; a job that was cancelled; and one that goes back, where that was asked for before.
/// Behind the pooler renewals may take longer than the shortest leases.
fn may_be_lost(history: &History, (call, op): (&Call, &Op)) -> bool {
    let (of_job, token) = match op {
        Op::Settle { job, token, how } => {
            if *how == How::Release && may_have_gone_back(history, call, (*job, *token)) {
                return true;
            }
            (Some(*job), *token)
        }
        Op::Write { token, .. } | Op::Release { token, .. } => (None, *token),
        // Whether the claim was late, or the time of a reservation was over, the history does not tell.
        Op::EndRun { .. } | Op::Reserve { .. } => return true,
        _ => return false,
    };
    if history.programs[call.program].pooled {
        return true;
    }
    let is_late = |grant: &Call, at: &Nanos| {
        let took = at.saturating_sub(grant.asked);
        match &grant.op {
            Op::Acquire {
                kind: Kind::Mutex | Kind::Reader,
                wait,
                ..
            } => took > wait * 1_000_000 + LATE,
            // Where it waited, when it was granted is not known.
            _ => took > LATE,
        }
    };
    // Readers and plain clients have no token.
    let is_of = |grant: &Call| match (&grant.op, op) {
        (
            Op::Acquire { kind, key, .. },
            Op::Release {
                kind: of_kind,
                key: of_key,
                ..
            },
        ) if token == 0 => (grant.program, kind, key) == (call.program, of_kind, of_key),
        _ => token != 0,
    };
    let is_lost = |call: &Call| match (&call.op, &call.answer) {
        (Op::Acquire { kept, .. }, Some((at, Answer::Token(it)))) => {
            of_job.is_none() && *it == token && is_of(call) && (!kept || is_late(call, at))
        }
        (Op::Claim { extended, .. }, Some((at, Answer::Jobs(claimed)))) => {
            let had = || claimed.iter().any(|it| it.token == token);
            of_job.is_some() && (!extended || is_late(call, at)) && had()
        }
        (Op::Cancel { job }, _) => of_job == Some(*job) && call.may_be_done(),
        _ => false,
    };
    history.calls.iter().any(is_lost)
}

/// Whether a delivery that a worker gives back may have ended before: another answer was sent for it, which a handler that is dropped
/// may have done in a transaction; or no handler has begun it, so that the library gives it back in the background as well.
fn may_have_gone_back(history: &History, call: &Call, (job, token): (i64, i64)) -> bool {
    let Some((answered, _)) = &call.answer else {
        return true;
    };
    let is_begun = history.handled.iter().any(|it| it.token == token);
    history.calls.iter().any(|other| match &other.op {
        Op::Settle {
            job: of, token: it, ..
        } => {
            let is_other = !std::ptr::eq(other, call);
            is_other && (*of, *it) == (job, token) && other.asked <= *answered
        }
        Op::Claim {
            wait: 0,
            extended: true,
            ..
        } if !is_begun => {
            let claimed = other.answer.as_ref().map(|(_, answer)| answer);
            matches!(claimed, Some(Answer::Jobs(jobs)) if jobs.iter().any(|it| it.token == token))
        }
        _ => false,
    })
}

/// Whether the job was in the hands of another statement or of an open transaction: who settles, cancels or changes it by its number
/// does not wait for these.
fn is_locked(op: &Op, kind: &str, message: &str) -> bool {
    match op {
        Op::Cancel { .. } | Op::Edit { .. } => {
            kind == "TimedOut" && message.contains("is locked by an open transaction")
        }
        Op::Settle { .. } | Op::EndRun { .. } => kind == LOCKED,
        _ => false,
    }
}

/// In the calm every program that was there gets everything that it asked for again and again, and for which it
/// competes with nobody.
fn starved(history: &History, served: &BTreeMap<usize, BTreeSet<&str>>) -> Vec<Violation> {
    let mut asked: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    // Permits of limits and ids all of them ask for, again and again.
    for (number, program) in history.programs.iter().enumerate() {
        let is_there = program.begun < history.calm.0
            && program.ended.is_none_or(|ended| ended >= history.end)
            && history.end > history.calm.1;
        if is_there && program.role != Role::Plain {
            asked.entry(number).or_default().extend(["limit", "ids"]);
        }
    }
    for call in &history.calls {
        let begun = history.programs[call.program].begun < history.calm.0;
        let wanted = matches!(call.op, Op::Push { .. } | Op::Check { .. } | Op::Ids { .. });
        // What is refused while the faults end says nothing of what comes then.
        if begun && wanted && call.asked > history.calm.1 {
            asked
                .entry(call.program)
                .or_default()
                .insert(call.op.name());
        }
    }
    let mut violations = Vec::new();
    for (program, asked) in asked {
        let none = BTreeSet::new();
        let got = served.get(&program).unwrap_or(&none);
        for name in asked.difference(got) {
            let what = format!("{} got no {name}", history.name(program));
            violations.push(Violation::new("everybody is served in the end", what));
        }
    }
    violations
}

/// Processes that wait for the same have no order among them. But when the others rest, everybody is granted one of
/// each kind.
fn passed_over(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    for turn in &history.turns {
        let of = |call: &&Call| history.programs[call.program].number == turn.program;
        let granted = |call: &Call| {
            let answered = call.done().is_some_and(|at| at <= turn.to);
            answered && call.asked >= turn.from
        };
        for kind in &turn.kinds {
            let is_kind =
                |call: &&Call| matches!(&call.op, Op::Acquire { kind: it, .. } if it == kind);
            let mut calls = history.calls.iter().filter(of).filter(is_kind);
            if calls.any(granted) {
                continue;
            }
            let named = history.programs.iter().find(|it| it.number == turn.program);
            let name = named.map_or("", |it| it.name.as_str());
            let seconds = (turn.to - turn.from) / SECOND;
            let what = format!("{name} got no {kind:?} in {seconds} s, while the others rested");
            violations.push(Violation::new("everybody is served in the end", what));
        }
    }
    violations
}
