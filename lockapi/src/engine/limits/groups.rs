//! Which requests are charged together.
//!
//! Requests that have keys in common are one for the server: all of them are charged, or none. That decides
//! them together wherever there is room for all. Where there is not, the answer tells how much there is, and the
//! next statement carries as many as fit, in their order. Who has no room after that is refused.

use std::collections::HashMap;

use crate::limit::{Charge, ChargeLine, MAX_RESERVATIONS, Outcome, Quota, RawDecision};

/// Requests that are charged together.
pub(super) struct Group {
    /// All of them as one.
    pub(super) charge: Charge,
    /// Their places in the batch, in its order, and how often each is charged.
    pub(super) members: Vec<(usize, i64)>,
}

impl Group {
    /// Whether the server decides how often there is room.
    pub(super) fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    /// The answers of each member, from those to the lines of the group: as if they had come one by one.
    pub(super) fn divide(&self, requests: &[Charge], raw: &[RawDecision]) -> Vec<Vec<RawDecision>> {
        let mut later: HashMap<&str, i64> = HashMap::new();
        let mut end = raw.len();
        let mut answers = Vec::with_capacity(self.members.len());
        for (at, times) in self.members.iter().rev() {
            let lines = &requests[*at].lines;
            let own = &raw[end - lines.len()..end];
            end -= lines.len();
            let mut answer = own.to_vec();
            for (line, decided) in lines.iter().zip(&mut answer) {
                let later = later.entry(&*line.key).or_default();
                match line.quota.window() {
                    0 => decided.level.tat -= *later,
                    _ => decided.level.used -= *later,
                }
                *later += line.price() * times;
            }
            answers.push(answer);
        }
        answers.reverse();
        answers
    }
}

/// What the answers show of keys.
#[derive(Default)]
pub(super) struct KnownLevels(HashMap<String, RawDecision>);

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// There may be room for it.
    Open,
    /// One of its keys has none.
    Refused,
    /// There is room, but as many reservations as there may be.
    Full,
}

impl KnownLevels {
    pub(super) fn note(&mut self, key: &str, decided: &RawDecision) {
        // What has to be put right first says nothing of the room, nor does what was never read.
        if decided.outcome == Outcome::Overdue || decided.now == 0 {
            self.0.remove(key);
        } else {
            self.0.insert(key.to_owned(), decided.clone());
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn availability_of(&self, charge: &Charge) -> Availability {
        let lines = || {
            let lines = charge.lines.iter();
            lines.filter_map(|line| Some((line, self.0.get(&line.key)?)))
        };
        let refuses = |(line, known): (&ChargeLine, &RawDecision)| {
            known.level.fits(&line.quota, line.price(), known.now) < 1
        };
        match () {
            () if lines().any(refuses) => Availability::Refused,
            () if lines().any(|(line, _)| line.id != 0 && self.slots(line) == 0) => {
                Availability::Full
            }
            () => Availability::Open,
        }
    }

    /// What is known of its lines; `None` if that of one is not.
    pub(super) fn answers(&self, charge: &Charge) -> Option<Vec<RawDecision>> {
        let lines = charge.lines.iter();
        lines.map(|line| self.0.get(&line.key).cloned()).collect()
    }

    /// How much room its quota has for a line: all that there ever is, as long as nothing is known.
    fn room(&self, line: &ChargeLine) -> i64 {
        match self.0.get(&line.key) {
            Some(known) if known.level.blocked_until > known.now => 0,
            Some(known) => known.level.room(&line.quota, known.now).max(0),
            None => line.quota.price(line.quota.limit()),
        }
    }

    /// How many reservations there is room for.
    fn slots(&self, line: &ChargeLine) -> usize {
        let open = self
            .0
            .get(&line.key)
            .map_or(0, |known| known.level.reserved);
        MAX_RESERVATIONS.saturating_sub(usize::try_from(open).unwrap_or(0))
    }
}

/// What the requests for a key take that are charged already.
struct KeyBudget {
    /// The length of their windows, and whether they slide. What others do to the state is different.
    windows: (i64, bool),
    taken: i64,
    slots: usize,
    /// Whether one of them may get less than it wants: nobody overtakes it.
    closed: bool,
    /// One of those requests.
    by: usize,
}

fn windows(quota: &Quota) -> (i64, bool) {
    (quota.window(), quota.is_sliding())
}

/// Divides requests into groups that have no key in common. The first request for a key is in one; a later one
/// is if it fits behind those before it, by its own quota. One whose quota has other windows than theirs is decided
/// after them. `tries` is how often a request has failed: others use its keys at the same time, so it counts on half
/// of the room each time.
pub(super) fn divide(
    requests: &[Charge],
    tries: impl Fn(usize) -> u32,
    known: &KnownLevels,
) -> Vec<Group> {
    let mut keys: HashMap<&str, KeyBudget> = HashMap::new();
    let mut times: Vec<(usize, i64)> = Vec::with_capacity(requests.len());
    let mut roots: Vec<usize> = (0..requests.len()).collect();
    for (at, charge) in requests.iter().enumerate() {
        let lines = || charge.lines.iter();
        let first = !lines().any(|line| keys.contains_key(&*line.key));
        let differs = |line: &ChargeLine| {
            let budget = keys.get(&*line.key);
            budget.is_some_and(|budget| budget.windows != windows(&line.quota))
        };
        if lines().any(differs) {
            continue;
        }
        let room = |line: &ChargeLine| known.room(line) >> tries(at).min(62);
        let fits = |line: &ChargeLine| match keys.get(&*line.key) {
            Some(budget) if budget.closed || (line.id != 0 && budget.slots == 0) => 0,
            Some(budget) => (room(line) - budget.taken).max(0) / line.price(),
            None => room(line) / line.price(),
        };
        let fits = lines().map(fits).fold(charge.times, i64::min);
        let goes = fits > 0 || first;
        // Who comes later does not overtake one that may have room yet: those before it may get less than they
        // count on.
        let closed = |line: &ChargeLine| keys.get(&*line.key).is_some_and(|budget| budget.closed);
        let unsure = tries(at) > 0 || lines().any(|line| !known.has(&line.key) || closed(line));
        let waits = fits < charge.times && unsure;
        for line in lines().filter(|_| goes || waits) {
            let budget = keys.entry(&line.key).or_insert_with(|| KeyBudget {
                windows: windows(&line.quota),
                taken: 0,
                slots: known.slots(line),
                closed: false,
                by: at,
            });
            // Nobody joins one that does not fit itself.
            budget.closed |= waits || fits == 0;
            budget.taken = budget.taken.saturating_add(line.price() * fits);
            budget.slots = budget.slots.saturating_sub(usize::from(line.id != 0));
            if goes {
                let (one, other) = (root(&mut roots, at), root(&mut roots, budget.by));
                roots[one.max(other)] = one.min(other);
            }
        }
        if !goes {
            continue;
        }
        times.push((at, fits));
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut group_indexes = HashMap::new();
    for (at, times) in times {
        let group_index = *group_indexes
            .entry(root(&mut roots, at))
            .or_insert(groups.len());
        match groups.get_mut(group_index) {
            Some(group) => group.members.push((at, times)),
            None => groups.push(Group {
                charge: requests[at].clone(),
                members: vec![(at, times)],
            }),
        }
    }
    for group in groups.iter_mut().filter(|group| !group.is_alone()) {
        let lines = group.members.iter().flat_map(|(at, times)| {
            let lines = requests[*at].lines.iter();
            lines.map(|line| ChargeLine {
                cost: line.cost * times.unsigned_abs(),
                ..line.clone()
            })
        });
        group.charge.lines = lines.collect();
        group.charge.times = 1;
    }
    groups
}

/// The first request of those that are charged with this one.
fn root(roots: &mut [usize], mut at: usize) -> usize {
    while roots[at] != at {
        roots[at] = roots[roots[at]];
        at = roots[at];
    }
    at
}

#[cfg(test)]
mod tests;
