//! Limits of queues and groups hold, by what holders believed and by what the server says of admissions.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::numbers::{Rate, excess, excess_beyond};
use super::results::is_real;
use super::{Call, History, Violation, pauses, time};
use crate::log::{Answer, Claimed, Nanos, Op, SECOND};
use crate::plan::Fault;
use crate::programs::limited::{
    GROUP_RATE, GROUPED, LIMITED, OF_GROUPS, OF_QUEUE, ORDERED, PACED, QUEUE_RATE, RATED, key_of,
};

/// For how long a statement whose caller knows nothing of it may still have an effect.
const LATE: Nanos = 20 * SECOND;
/// A change that took so long may have been sent twice: programs set no shorter time limit. The first of these may come last.
const TWICE: Nanos = 3 * SECOND;
/// By how much the clocks of the server and of the machine, and the statements of an admission, may be apart.
const APART: Nanos = SECOND;
/// How long an admission may take from the time that it tells to the one by which it decides.
const BETWEEN: Nanos = SECOND / 5;
/// The longest lease of a claim. What a lost claim took is found again for at least as long.
const LEASE: Nanos = 5 * SECOND;

pub(super) fn check(history: &History) -> Vec<Violation> {
    let limits = Limits::of(history);
    let pushes = pushes(history);
    let found = found_again(history);
    let holds = holds(history, &pushes, &found);
    let mut violations = running(history, &limits, &holds);
    violations.extend(pauses::check(history, &found));
    violations.extend(pauses::drained(history, &holds));
    violations.extend(rate_of_queue(history, &found));
    violations.extend(rates_of_groups(history, &pushes));
    violations.extend(audits(history));
    violations
}

/// Something that was set, and when.
pub(super) struct Change<T> {
    asked: Nanos,
    /// When it had an effect, if it had one.
    ended: Nanos,
    sure: bool,
    value: T,
}

impl<T> Change<T> {
    pub(super) fn new(history: &History, call: &Call, value: T) -> Option<Self> {
        if call.is_refused() {
            return None;
        }
        let program = &history.programs[call.program];
        let known = call.asked + call.op.wait() * 1_000_000 + TWICE;
        let sure = call.done().is_some_and(|at| at <= known);
        let ended = match (&call.answer, program.ended) {
            (Some((at, _)), _) if sure => *at,
            (Some((at, _)), _) => at + LATE,
            (None, Some(at)) => at + LATE,
            (None, None) => Nanos::MAX,
        };
        Some(Self {
            asked: call.asked,
            ended,
            sure,
            value,
        })
    }

    pub(super) fn initial(value: T) -> Self {
        Self {
            asked: 0,
            ended: 0,
            sure: true,
            value,
        }
    }
}

/// What may have been set at some time from `from` to `to`: what was asked for by then, and was not certainly
/// replaced before.
pub(super) fn possible<T: Copy>(changes: &[Change<T>], from: Nanos, to: Nanos) -> Vec<T> {
    let replaced = |change: &Change<T>| {
        let mut later = changes.iter().filter(|it| it.sure && it.ended <= from);
        later.any(|it| it.asked >= change.ended && it.ended > change.ended)
    };
    let possible = changes.iter().filter(|it| it.asked <= to);
    let possible = possible.filter(|it| !replaced(it));
    possible.map(|it| it.value).collect()
}

/// The limits of queues and groups, with their changes.
struct Limits<'a> {
    queues: BTreeMap<&'a str, Vec<Change<u32>>>,
    groups: BTreeMap<(&'a str, &'a str), Vec<Change<Option<u32>>>>,
}

impl<'a> Limits<'a> {
    fn of(history: &'a History) -> Self {
        let initial = [
            (GROUPED, OF_GROUPS),
            (PACED, OF_GROUPS),
            (ORDERED, 1),
            (LIMITED, OF_QUEUE),
        ];
        let initial = initial.map(|(queue, most)| (queue, vec![Change::initial(most)]));
        let mut limits = Self {
            queues: initial.into(),
            groups: BTreeMap::new(),
        };
        for call in &history.calls {
            let Op::SetLimit { queue, group, most } = &call.op else {
                continue;
            };
            if let Some(group) = group {
                let change = Change::new(history, call, *most);
                let changes = limits.groups.entry((queue, group));
                let changes = changes.or_insert_with(|| vec![Change::initial(None)]);
                changes.extend(change);
            } else if let Some(most) = most {
                let change = Change::new(history, call, *most);
                limits.queues.entry(queue).or_default().extend(change);
            }
        }
        limits
    }

    /// The largest that there may have been at some time from `from` to `to`; `None` where there is none.
    fn most(&self, (queue, group): (&str, Option<&str>), from: Nanos, to: Nanos) -> Option<u32> {
        let of_queue = possible(self.queues.get(queue)?, from, to)
            .into_iter()
            .max()?;
        let Some(changes) = group.and_then(|group| self.groups.get(&(queue, group))) else {
            return Some(of_queue);
        };
        let own = possible(changes, from, to).into_iter();
        let most = own.map(|own| own.unwrap_or(of_queue)).max()?;
        Some(if queue == ORDERED { most.min(1) } else { most })
    }
}

/// The queue and the group of each job.
type Pushes<'a> = HashMap<i64, (&'a str, Option<&'a str>, Nanos)>;

fn pushes(history: &History) -> Pushes<'_> {
    let pushed = history.calls.iter().filter_map(|call| match &call.op {
        Op::Push {
            job, queue, group, ..
        } => Some((*job, (queue.as_str(), group.as_deref(), call.asked))),
        _ => None,
    });
    pushed.collect()
}

/// Since when what a claim answered may have been claimed: claims whose answers were lost are found again by later ones of the same
/// program, which take no places and no permits for that. By the place of the claim among all calls; others since they were asked for.
fn found_again(history: &History) -> HashMap<usize, Nanos> {
    let mut lost: HashMap<(usize, &str), Vec<(Nanos, Nanos)>> = HashMap::new();
    for call in &history.calls {
        let Op::Claim { queue, .. } = &call.op else {
            continue;
        };
        let is_told = matches!(&call.answer, Some((_, Answer::Jobs(_))));
        // What was refused did not happen.
        if !is_told && !call.is_refused() {
            let ended = call
                .answer
                .as_ref()
                .map_or(Nanos::MAX - LEASE, |(at, _)| *at);
            let of = lost.entry((call.program, queue)).or_default();
            of.push((call.asked, ended));
        }
    }
    // A claim of all names that began when the lease of a lost one had ended is the last that finds it.
    let mut looked: HashMap<(usize, &str), Vec<(Nanos, Nanos)>> = HashMap::new();
    for call in &history.calls {
        if let (
            Op::Claim {
                queue, wait: 1.., ..
            },
            Some((at, Answer::Jobs(_))),
        ) = (&call.op, &call.answer)
        {
            let of = looked.entry((call.program, queue)).or_default();
            of.push((call.asked, *at));
        }
    }
    let mut found = HashMap::new();
    for (place, call) in history.calls.iter().enumerate() {
        let (Op::Claim { queue, .. }, Some((at, Answer::Jobs(_)))) = (&call.op, &call.answer)
        else {
            continue;
        };
        let key = (call.program, queue.as_str());
        let looked = looked.get(&key).map_or(&[][..], Vec::as_slice);
        let is_over = |ended: Nanos| {
            let mut later = looked.iter();
            later.any(|(asked, answered)| *asked > ended + LEASE && *answered < call.asked)
        };
        let lost = lost.get(&key).into_iter().flatten();
        let lost = lost.filter(|(asked, ended)| asked < at && !is_over(*ended));
        if let Some((since, _)) = lost.min_by_key(|(asked, _)| *asked) {
            found.insert(place, *since);
        }
    }
    found
}

/// A job in somebody's hands, as he believes.
pub(super) struct Hold<'a> {
    pub(super) job: i64,
    pub(super) queue: &'a str,
    group: Option<&'a str>,
    program: usize,
    /// When it was claimed, at the earliest and at the latest.
    pub(super) claimed: (Nanos, Nanos),
    /// When it was admitted at the earliest, if it has a group.
    admitted: Nanos,
    from: Nanos,
    pub(super) to: Nanos,
}

fn holds<'a>(
    history: &'a History,
    pushes: &Pushes<'a>,
    found: &HashMap<usize, Nanos>,
) -> Vec<Hold<'a>> {
    // Who cancels a job takes it out of the hands of its holder.
    let mut cancelled: HashMap<i64, Nanos> = HashMap::new();
    for call in &history.calls {
        if let Op::Cancel { job } = &call.op
            && is_real(history, call)
        {
            let at = cancelled.entry(*job).or_insert(call.asked);
            *at = call.asked.min(*at);
        }
    }
    let handled = history.handled.iter();
    let handled: HashMap<i64, _> = handled.map(|it| (it.token, (it.at, it.held))).collect();
    let clock_was_set = history.applied.iter().any(|it| it.fault == Fault::Clock);
    let mut holds = Vec::new();
    for (place, call) in history.calls.iter().enumerate() {
        let (Op::Claim { .. }, Some((at, Answer::Jobs(jobs)))) = (&call.op, &call.answer) else {
            continue;
        };
        for Claimed {
            job, token, due, ..
        } in jobs
        {
            let Some((queue, group, pushed)) = pushes.get(job).copied() else {
                continue;
            };
            // Whoever says nothing may have got it too late.
            let (from, to) = match (call.held.get(token), handled.get(token)) {
                (Some(to), _) => (*at, *to),
                (None, Some(held)) => *held,
                (None, None) => continue,
            };
            let end = cancelled.get(job).copied().unwrap_or(Nanos::MAX);
            let due = u64::try_from(*due).unwrap_or(0) * 1000;
            let hold = Hold {
                job: *job,
                queue,
                group,
                program: call.program,
                claimed: (found.get(&place).copied().unwrap_or(call.asked), *at),
                admitted: if clock_was_set {
                    pushed
                } else {
                    due.saturating_sub(history.wall + APART)
                },
                from,
                to: to.min(end),
            };
            if hold.to > hold.from {
                holds.push(hold);
            }
        }
    }
    holds.sort_by_key(|hold| hold.from);
    holds
}

/// No more have jobs of a queue, of a group, or with a key, than the largest limit allows that there may have been when the last of them was
/// claimed, or admitted.
fn running(history: &History, limits: &Limits<'_>, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut places: BTreeMap<(&str, Option<&str>), Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in holds {
        if hold.group.is_some() || hold.queue == LIMITED {
            places
                .entry((hold.queue, hold.group))
                .or_default()
                .push(hold);
        }
        if let Some(key) = key_of(hold.queue, hold.job) {
            let place = (hold.queue, Some(key));
            places.entry(place).or_default().push(hold);
        }
    }
    let mut violations = Vec::new();
    for (place, holds) in places {
        let mut open: Vec<&Hold<'_>> = Vec::new();
        for hold in holds {
            open.retain(|other| other.to > hold.from);
            open.push(hold);
            let definite = |other: &&&Hold<'_>| !history.clock_was_set(other.from, hold.from);
            let all: Vec<_> = open.iter().filter(definite).copied().collect();
            let (from, to) = last(place.1.is_some(), &all);
            let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
            if let Some(most) = limits.most(place, from, to)
                && count > most
            {
                let all: Vec<_> = all.iter().map(|hold| describe(history, hold)).collect();
                let (queue, group) = (place.0, place.1.unwrap_or(""));
                let what = format!("{queue} {group}: {most} may run, but {}", all.join(", "));
                violations.push(Violation::new("no more jobs run than may", what));
            }
        }
    }
    violations
}

/// Between which times the last of these was admitted, or claimed. Admissions are in the order of their times.
fn last(by_admission: bool, holds: &[&Hold<'_>]) -> (Nanos, Nanos) {
    let all = || holds.iter();
    if by_admission {
        let last = all().max_by_key(|hold| hold.admitted);
        let to = all().map(|hold| hold.claimed.1).max();
        return (last.map_or(0, |hold| hold.admitted), to.unwrap_or(0));
    }
    let from = all().map(|hold| hold.claimed.0).max().unwrap_or(0);
    let to = all().map(|hold| hold.claimed.1).max().unwrap_or(0);
    (from, to.max(from))
}

pub(super) fn describe(history: &History, hold: &Hold<'_>) -> String {
    format!(
        "{} had {} from {} to {}",
        history.name(hold.program),
        hold.job,
        time(history, hold.from),
        time(history, hold.to)
    )
}

/// Deliveries of a queue that has a rate. Those that may be found again took their permits before.
fn rate_of_queue(history: &History, found: &HashMap<usize, Nanos>) -> Option<Violation> {
    let mut permits = Vec::new();
    for (place, call) in history.calls.iter().enumerate() {
        if let (Op::Claim { queue, .. }, Some((at, Answer::Jobs(jobs)))) = (&call.op, &call.answer)
            && queue == RATED
            && !found.contains_key(&place)
        {
            permits.extend(jobs.iter().map(|_| (call.asked, *at)));
        }
    }
    let (burst, a_second) = QUEUE_RATE;
    let rate = Rate {
        burst,
        a_second,
        more: 0,
    };
    let (count, from, to) = excess(history, permits, rate)?;
    let (from, to) = (time(history, from), time(history, to));
    let what = format!("{RATED}: {count} jobs were claimed from {from} to {to}");
    Some(Violation::new("rates of queues hold", what))
}

/// Admissions of groups that have a rate, in the server's time, which is set with its clock.
fn rates_of_groups(history: &History, pushes: &Pushes<'_>) -> Vec<Violation> {
    let steps = history.applied.iter().filter(|it| it.fault == Fault::Clock);
    let mut steps: Vec<_> = steps.map(|it| (it.from, it.to)).collect();
    steps.sort_unstable();
    let ends = steps.iter().map(|step| step.0).chain([Nanos::MAX]);
    let begins = [0].into_iter().chain(steps.iter().map(|step| step.1));
    let mut violations = Vec::new();
    for (begin, end) in begins.zip(ends) {
        let mut admissions: BTreeMap<&str, HashSet<(i64, i64)>> = BTreeMap::new();
        for call in &history.calls {
            let (Op::Claim { queue, .. }, Some((at, Answer::Jobs(jobs)))) =
                (&call.op, &call.answer)
            else {
                continue;
            };
            if queue != PACED || call.asked < begin || *at > end {
                continue;
            }
            for Claimed { job, due, .. } in jobs {
                if let Some((_, Some(group), _)) = pushes.get(job) {
                    admissions.entry(group).or_default().insert((*job, *due));
                }
            }
        }
        let (burst, a_second) = GROUP_RATE;
        // By another clock: those that had been admitted before it was set, and a burst.
        let before = u64::from(OF_GROUPS) + burst;
        let more = if begin == 0 { 0 } else { before };
        for (group, admissions) in admissions {
            let at = |due: i64| u64::try_from(due).unwrap_or(0) * 1000;
            let permits = admissions
                .iter()
                .map(|(_, due)| (at(*due), at(*due) + BETWEEN));
            let still = &History::default();
            let rate = Rate {
                burst,
                a_second,
                more,
            };
            if let Some((count, from, to)) = excess_beyond(0, still, permits.collect(), rate) {
                let millis = (to - from) / 1_000_000;
                let what = format!("{PACED} {group}: {count} jobs were admitted in {millis} ms");
                violations.push(Violation::new("rates of groups hold", what));
            }
        }
    }
    violations
}

/// The tables never show more than the largest limit.
fn audits(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    for call in &history.calls {
        let (Op::Audit { queue }, Some((at, Answer::Number(count)))) = (&call.op, &call.answer)
        else {
            continue;
        };
        // A lease that had ended runs again where the clock is set back.
        let excused = queue == LIMITED && history.clock_was_set(call.asked - LEASE, *at);
        if *count > 0 && !excused {
            let what = format!("{count} too many in {queue} at {}", time(history, *at));
            violations.push(Violation::new("the tables agree with the limits", what));
        }
    }
    violations
}
