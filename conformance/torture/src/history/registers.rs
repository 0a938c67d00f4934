//! Registers that are written under tokens, and counters that are guarded by locks alone.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Accepted, Call, History, Violation, time};
use crate::log::{Answer, Kind, Nanos, Op};

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut violations = registers(history);
    violations.extend(counters(history));
    violations
}

/// The versions of a register are an order of its writes which respects time and tokens, and which has all
/// writes that were confirmed and none that were refused.
fn registers(history: &History) -> Vec<Violation> {
    let mut writes: BTreeMap<&str, Vec<(&Call, i64, i64)>> = BTreeMap::new();
    for call in &history.calls {
        if let Op::Write {
            register,
            token,
            value,
        } = &call.op
        {
            let of = writes.entry(register).or_default();
            of.push((call, *token, *value));
        }
    }
    let granted = granted(history);
    let none = Vec::new();
    let mut violations = Vec::new();
    for register in history.tables.accepted.keys() {
        writes.entry(register).or_default();
    }
    for (register, writes) in writes {
        let accepted = history.tables.accepted.get(register).unwrap_or(&none);
        let mut violate = |promise, what: String| {
            violations.push(Violation::new(promise, format!("{register}: {what}")));
        };
        for pair in accepted.windows(2) {
            // A write takes the next version and is noted in one transaction.
            if pair[1].version != pair[0].version + 1 {
                let what = format!("version {} follows {}", pair[1].version, pair[0].version);
                violate("a transaction has all its effects", what);
            }
            if pair[1].token < pair[0].token {
                let what = format!(
                    "version {} has token {}, and version {} before it {}",
                    pair[1].version, pair[1].token, pair[0].version, pair[0].token
                );
                violate("no stale write is accepted", what);
            }
        }
        let versions: HashMap<i64, i64> =
            accepted.iter().map(|it| (it.value, it.version)).collect();
        let mut values = HashSet::new();
        for again in accepted.iter().filter(|it| !values.insert(it.value)) {
            let what = format!(
                "{} was written again as version {}",
                again.value, again.version
            );
            violate("a write happens once", what);
        }
        let asked: HashSet<(i64, i64)> = writes.iter().map(|it| (it.1, it.2)).collect();
        let asked_for = |it: &&Accepted| asked.contains(&(it.token, it.value));
        for strange in accepted.iter().filter(|it| !asked_for(it)) {
            let what = format!("nobody asked for {} under {}", strange.value, strange.token);
            violate("what is there was asked for", what);
        }
        let later = granted.get(register).map_or(&[][..], Vec::as_slice);
        for (call, token, value) in &writes {
            let mut later = later.iter();
            let later = later.find(|(at, it)| it > token && *at < call.asked);
            if let (Some((_, later)), true) = (later, versions.contains_key(value)) {
                let what = format!("{value} under {token}, after {later} was granted");
                violate("no stale write is accepted", what);
            }
        }
        let mut timed = Vec::new();
        for (call, token, value) in writes {
            let what = || format!("{value} under {token} by {}", history.name(call.program));
            match versions.get(&value) {
                None if call.done().is_some() => violate("what is confirmed lasts", what()),
                Some(_) if call.is_refused() => {
                    violate("what did not happen has no effect", what());
                }
                Some(version) => timed.push((call, *version)),
                None => {}
            }
        }
        if let Some(what) = out_of_order(history, &timed) {
            violate("writes are linearizable", what);
        }
    }
    violations
}

/// When which tokens were granted by register, as far as this is certain: a lease that is granted is the latest, but a mutex may be
/// handed over in a session that has ended, in which no write is accepted.
fn granted(history: &History) -> BTreeMap<String, Vec<(Nanos, i64)>> {
    let mut granted: BTreeMap<String, Vec<(Nanos, i64)>> = BTreeMap::new();
    for call in &history.calls {
        if let (Op::Acquire { kind, key, .. }, Some((at, Answer::Token(token)))) =
            (&call.op, &call.answer)
        {
            let register = format!("{kind:?} {key}");
            let is_certain = match kind {
                Kind::Lease | Kind::Term | Kind::LeasedMutex => true,
                Kind::Mutex => {
                    let accepted = history.tables.accepted.get(&register);
                    accepted.is_some_and(|all| all.iter().any(|it| it.token == *token))
                }
                Kind::Reader | Kind::Semaphore => false,
            };
            if is_certain {
                granted.entry(register).or_default().push((*at, *token));
            }
        }
    }
    granted
}

/// Two calls of which the later has the smaller number.
fn out_of_order(history: &History, calls: &[(&Call, i64)]) -> Option<String> {
    let mut answered: Vec<_> = calls
        .iter()
        .filter_map(|(call, number)| Some((call.done()?, *number)))
        .collect();
    answered.sort_unstable();
    let mut asked: Vec<_> = calls.iter().map(|(call, it)| (call.asked, *it)).collect();
    asked.sort_unstable();
    let (mut known, mut highest) = (0, (0, 0));
    for (at, number) in asked {
        while known < answered.len() && answered[known].0 < at {
            if answered[known].1 > highest.1 {
                highest = answered[known];
            }
            known += 1;
        }
        if highest.1 > number {
            return Some(format!(
                "{} was answered at {}, and {number} asked for at {}",
                highest.1,
                time(history, highest.0),
                time(history, at)
            ));
        }
    }
    None
}

/// No count is lost: each that was confirmed has a number of its own, and the last is not below them.
fn counters(history: &History) -> Vec<Violation> {
    let mut counts: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &history.calls {
        if let Op::Count { counter } = &call.op {
            counts.entry(counter).or_default().push(call);
        }
    }
    let mut violations = Vec::new();
    for (counter, calls) in counts {
        let mut violate =
            |what| violations.push(Violation::new("counts under a lock are not lost", what));
        let (mut seen, mut unknown, mut timed) = (HashSet::new(), 0_i64, Vec::new());
        for call in &calls {
            match &call.answer {
                Some((_, Answer::Number(number))) => {
                    timed.push((*call, *number));
                    if !seen.insert(*number) {
                        violate(format!(
                            "{counter}: {number} twice, again by {}",
                            history.name(call.program)
                        ));
                    }
                }
                _ if call.is_refused() => {}
                _ => unknown += 1,
            }
        }
        let last = history.tables.counters.get(counter).copied().unwrap_or(0);
        let done = i64::try_from(seen.len()).unwrap_or(i64::MAX);
        if last < done || last > done + unknown {
            violate(format!(
                "{counter}: {done} counts were confirmed and {unknown} are not known, and it is {last}"
            ));
        }
        if let Some(what) = out_of_order(history, &timed) {
            violate(format!("{counter}: {what}"));
        }
    }
    violations
}
