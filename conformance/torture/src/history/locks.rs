//! Mutual exclusion by what holders believed, and the order of tokens.

use std::collections::BTreeMap;

use super::{Call, History, Violation, time};
use crate::args::Role;
use crate::log::{Answer, Kind, Nanos, Op, SECOND};
use crate::programs::PERMITS;

/// Within this time whoever has lost a session lock knows, if it runs.
const KNOWN: Nanos = 15 * SECOND;
/// Callers of a process that hand a lock over to each other have tokens that differ in so many bits at most.
const HAND_OVER_BITS: u32 = 10;

/// Something that somebody had.
struct Hold<'a> {
    call: &'a Call,
    /// Zero of plain clients and readers, which have none.
    token: i64,
    /// Whether others that do may have it at the same time.
    shares: bool,
    /// The server granted it no earlier.
    since: Nanos,
    from: Nanos,
    to: Nanos,
}

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut places: BTreeMap<(Kind, &str), Vec<Hold<'_>>> = BTreeMap::new();
    for call in &history.calls {
        let Op::Acquire { kind, key, .. } = &call.op else {
            continue;
        };
        if let Some((from, Answer::Token(token))) = &call.answer {
            let to = call.held.get(token).copied().unwrap_or(*from);
            let shares = *kind == Kind::Reader;
            let kind = if shares { Kind::Mutex } else { *kind };
            places.entry((kind, key)).or_default().push(Hold {
                call,
                token: *token,
                shares,
                // All readers of a process have it once at the server.
                since: if shares { 0 } else { call.asked },
                from: *from,
                to: to.max(*from),
            });
        }
    }
    let mut violations = Vec::new();
    for ((kind, key), mut holds) in places {
        holds.sort_by_key(|hold| hold.from);
        if kind == Kind::Mutex {
            hand_over(&mut holds);
        }
        let most = if kind == Kind::Semaphore { PERMITS } else { 1 };
        violations.extend(exclusion(history, (kind, key, most as usize), &holds));
        violations.extend(tokens(history, (kind, key), &holds));
    }
    violations
}

/// What was handed over was granted to the first.
fn hand_over(holds: &mut [Hold<'_>]) {
    let granted = |hold: &Hold<'_>| (hold.call.program, hold.token >> HAND_OVER_BITS);
    let mut first = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.token != 0) {
        let since = first.entry(granted(hold)).or_insert(hold.since);
        *since = hold.since.min(*since);
    }
    for hold in holds.iter_mut().filter(|hold| hold.token != 0) {
        hold.since = first[&granted(hold)];
    }
}

/// Nobody is granted what somebody who runs still believes to hold.
fn exclusion(
    history: &History,
    (kind, key, most): (Kind, &str, usize),
    holds: &[Hold<'_>],
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut open: Vec<&Hold<'_>> = Vec::new();
    for hold in holds {
        open.retain(|other| other.to > hold.from);
        let others: Vec<_> = open
            .iter()
            .filter(|other| !(other.shares && hold.shares))
            .filter(|other| is_definite(history, (kind, key), other, hold))
            .map(|other| describe(history, other))
            .collect();
        if others.len() >= most {
            let what = format!(
                "{kind:?} {key}: {} while {}",
                describe(history, hold),
                others.join(" and ")
            );
            violations.push(Violation::new("mutual exclusion", what));
        }
        open.push(hold);
    }
    violations
}

fn describe(history: &History, hold: &Hold<'_>) -> String {
    format!(
        "{} had it under {} from {} to {}",
        history.name(hold.call.program),
        hold.token,
        time(history, hold.from),
        time(history, hold.to)
    )
}

/// Whether two that overlap may not: a lease is known to have ended before another is granted, unless the clock
/// was set; whoever has lost a session is told soon.
fn is_definite(
    history: &History,
    (kind, key): (Kind, &str),
    earlier: &Hold<'_>,
    later: &Hold<'_>,
) -> bool {
    if kind != Kind::Mutex {
        return !history.clock_was_set(earlier.from, later.to);
    }
    let plain = |hold: &Hold<'_>| history.programs[hold.call.program].role == Role::Plain;
    // Its statements succeed in the session that has the lock.
    if plain(earlier) && plain(later) {
        return true;
    }
    // One of the two sessions has ended, and its program does not know it yet.
    let ended = |hold: &Hold<'_>| {
        let program = hold.call.program;
        history.may_have_ended(program, hold.since, later.from)
    };
    // What a plain client counted it counted in a session that was there.
    let counted = plain(later) && later.to > later.from;
    // And a write under a token is accepted in no session but one that is there.
    let wrote = |hold| wrote(history, (kind, key), hold, later.from);
    let may_be = (
        !plain(earlier) && ended(earlier) && !wrote(earlier),
        ended(later) && !counted && !wrote(later),
    );
    // For how long who runs has believed so.
    let believed = |hold: &Hold<'_>| {
        let stopped = history.stopped(hold.call.program, later.from, hold.to);
        (hold.to - later.from).saturating_sub(stopped)
    };
    let believed = match may_be {
        (false, false) => return true,
        (true, false) => believed(earlier),
        (false, true) => believed(later),
        (true, true) => believed(earlier).min(believed(later)),
    };
    believed > KNOWN || earlier.from > history.calm.1
}

/// Whether a write under the token of a hold was accepted that was asked for from this time on.
fn wrote(history: &History, (kind, key): (Kind, &str), hold: &Hold<'_>, from: Nanos) -> bool {
    let of = format!("{kind:?} {key}");
    let accepted = history
        .tables
        .accepted
        .get(&of)
        .map_or(&[][..], Vec::as_slice);
    history.calls.iter().any(|call| match &call.op {
        Op::Write {
            register,
            token,
            value,
        } if *register == of && *token == hold.token && call.asked >= from => {
            call.done().is_some() || accepted.iter().any(|it| it.value == *value)
        }
        _ => false,
    })
}

/// Whether a mutex may have been granted in a session that had ended, which whoever has it is told soon. No write under it is
/// accepted.
fn is_of_ended_session(history: &History, (kind, key): (Kind, &str), hold: &Hold<'_>) -> bool {
    let accepted = wrote(history, (kind, key), hold, 0);
    let program = hold.call.program;
    let may_be = history.may_have_ended(program, hold.since, hold.from);
    let stopped = history.stopped(program, hold.from, hold.to);
    let known = (hold.to - hold.from).saturating_sub(stopped) <= KNOWN;
    kind == Kind::Mutex && may_be && known && !accepted
}

/// Tokens are unique, and a call that began after a token was known gets a larger one.
fn tokens(history: &History, (kind, key): (Kind, &str), holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let holds: Vec<_> = holds.iter().filter(|hold| hold.token != 0).collect();
    let mut seen = BTreeMap::new();
    for hold in &holds {
        if let Some(other) = seen.insert(hold.token, *hold) {
            let (hold, other) = (describe(history, hold), describe(history, other));
            let what = format!("{kind:?} {key}: {hold}, and {other}");
            violations.push(Violation::new("tokens are unique", what));
        }
    }
    let mut by_asked = holds.clone();
    by_asked.sort_by_key(|hold| hold.call.asked);
    let (mut known, mut highest) = (0, None::<&Hold<'_>>);
    for hold in by_asked {
        while known < holds.len() && holds[known].from < hold.call.asked {
            if highest.is_none_or(|highest| highest.token < holds[known].token) {
                highest = Some(holds[known]);
            }
            known += 1;
        }
        if let Some(before) = highest
            && before.token >= hold.token
            && !is_of_ended_session(history, (kind, key), hold)
        {
            let (hold, before) = (describe(history, hold), describe(history, before));
            let what = format!("{kind:?} {key}: {before}, and later {hold}");
            violations.push(Violation::new("tokens grow", what));
        }
    }
    violations
}
