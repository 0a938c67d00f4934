//! Groups: what is parked, what is admitted, and how many may be.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Jobs, LiveJob};
use crate::queue::operations::{Admit, Admitted, LimitRow, NEVER, Name, SetGroupLimit, SetGroups};

/// How a queue is limited, and whose turn it is.
#[derive(Clone, Debug)]
struct Rule {
    limit: LimitRow,
    ordered: bool,
    turns: i64,
    reached: String,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            limit: LimitRow {
                running: Some(1),
                ..LimitRow::default()
            },
            ordered: false,
            turns: 0,
            reached: String::new(),
        }
    }
}

/// The parked jobs of a group: by priority, time and number, and by number.
#[derive(Clone, Debug, Default)]
struct Parked {
    by_time: BTreeSet<(i64, i64, i64)>,
    by_number: BTreeMap<i64, i64>,
}

/// The groups of all queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    rules: FxHashMap<Name, Rule>,
    limits: FxHashMap<(Name, String), LimitRow>,
    parked: FxHashMap<Name, BTreeMap<String, Parked>>,
    admitted: FxHashMap<(Name, String), i64>,
    /// The theoretical arrival times of groups that have a rate, as of the second time, in nanoseconds.
    rates: FxHashMap<(Name, String), (i64, i64)>,
}

/// How the groups of a queue are limited, as it was set.
#[cfg(feature = "suite")]
#[derive(Clone, Copy, Debug)]
pub struct GroupRule {
    /// That of each group.
    pub limit: LimitRow,
    /// Whether their jobs run in order.
    pub ordered: bool,
}

/// How many more jobs of a group may be admitted.
struct Room {
    jobs: i64,
    /// The time between two permits, and what is owed, in nanoseconds.
    rate: Option<(i64, i64)>,
    /// When the next permit comes, in microseconds from now, where only a permit is missing.
    permit_in: Option<i64>,
}

impl Groups {
    pub(super) fn inserted(&mut self, id: i64, live: &LiveJob) {
        let group = &live.job.group;
        let Some(due) = live.due_at else {
            if !group.is_empty() {
                let key = (live.queue.clone(), group.clone());
                *self.admitted.entry(key).or_default() += 1;
            }
            return;
        };
        let of_queue = self.parked.entry(live.queue.clone()).or_default();
        let parked = of_queue.entry(group.clone()).or_default();
        parked.by_time.insert((live.job.priority, due, id));
        parked.by_number.insert(id, due);
    }

    pub(super) fn removed(&mut self, id: i64, live: &LiveJob) {
        let group = &live.job.group;
        let Some(due) = live.due_at else {
            let key = (live.queue.clone(), group.clone());
            if let Some(admitted) = self.admitted.get_mut(&key) {
                *admitted -= 1;
                if *admitted == 0 {
                    self.admitted.remove(&key);
                }
            }
            return;
        };
        let Some(of_queue) = self.parked.get_mut(&live.queue) else {
            return;
        };
        if let Some(parked) = of_queue.get_mut(group) {
            parked.by_time.remove(&(live.job.priority, due, id));
            parked.by_number.remove(&id);
            if parked.by_number.is_empty() {
                of_queue.remove(group);
            }
        }
        if of_queue.is_empty() {
            self.parked.remove(&live.queue);
        }
    }

    fn room(&self, now: i64, rule: &Rule, queue: &Name, group: &str) -> Room {
        let key = (queue.clone(), group.to_owned());
        let own = self.limits.get(&key).copied().unwrap_or_default();
        let most = own.running.or(rule.limit.running).unwrap_or(1);
        let most = if rule.ordered { most.min(1) } else { most };
        let jobs = most - self.admitted.get(&key).copied().unwrap_or_default();
        let row = if own.step.is_some() { own } else { rule.limit };
        let (Some(step), Some(burst), true) = (row.step, row.burst, jobs > 0) else {
            return Room {
                jobs,
                rate: None,
                permit_in: None,
            };
        };
        let (tat, at) = self.rates.get(&key).copied().unwrap_or_default();
        let since = (now * 1000 - at).max(0);
        let owed = ((tat - at).min(burst * step) - since).max(0);
        let wait = owed - (burst - 1) * step;
        Room {
            jobs: jobs.min((burst * step - owed) / step),
            rate: Some((step, owed)),
            permit_in: (wait > 0).then_some((wait + 999) / 1000),
        }
    }
}

impl Parked {
    /// The next ones, in turn, but for those that are locked.
    fn next(&self, now: i64, rule: &Rule, room: usize, locked: &FxHashSet<i64>) -> Vec<i64> {
        if rule.ordered {
            let head = self.by_number.first_key_value();
            let due = head.filter(|(id, due)| **due <= now && !locked.contains(id));
            return due.map(|(id, _)| *id).into_iter().collect();
        }
        let mut levels = [0, 1, 2, 3];
        if rule.turns % 16 == 15 {
            levels.reverse();
        }
        let level = |level: i64| {
            let places = self
                .by_time
                .range((level, i64::MIN, 0)..=(level, now, i64::MAX));
            places.map(|(_, _, id)| *id)
        };
        let in_turn = levels.into_iter().flat_map(level);
        let free = in_turn.filter(|id| !locked.contains(id));
        free.take(room).collect()
    }

    /// Whether any is due.
    fn is_due(&self, now: i64) -> bool {
        let of = |level: i64| {
            let mut due = self
                .by_time
                .range((level, i64::MIN, 0)..=(level, now, i64::MAX));
            due.next().is_some()
        };
        (0..4).any(of)
    }

    /// When the next one is due that is not due yet.
    fn next_due(&self, now: i64) -> Option<i64> {
        let of = |level: i64| {
            let mut later = self
                .by_time
                .range((level, now, i64::MAX)..(level + 1, 0, 0));
            later.next().map(|(_, due, _)| *due)
        };
        (0..4).filter_map(of).min()
    }
}

#[cfg(feature = "suite")]
impl Jobs {
    /// How the groups of a queue are limited; `None` where that was never set.
    #[must_use]
    pub fn group_rule(&self, queue: &Name) -> Option<GroupRule> {
        let rule = self.groups.rules.get(queue)?;
        Some(GroupRule {
            limit: rule.limit,
            ordered: rule.ordered,
        })
    }

    /// The limit of a group of its own.
    #[must_use]
    pub fn group_limit(&self, queue: &Name, group: &str) -> Option<LimitRow> {
        let key = (queue.clone(), group.to_owned());
        self.groups.limits.get(&key).copied()
    }
}

impl Jobs {
    pub(crate) fn set_groups(&mut self, want: &SetGroups) {
        let rule = self.groups.rules.entry(want.name.clone()).or_default();
        rule.limit = want.limit;
        rule.ordered = want.ordered;
    }

    pub(crate) fn set_group_limit(&mut self, want: &SetGroupLimit) {
        let key = (want.name.clone(), want.group.clone());
        match want.limit {
            None => self.groups.limits.remove(&key),
            Some(limit) => self.groups.limits.insert(key, limit),
        };
    }

    pub(crate) fn has_parked(&self, namespace: &str, queue: &str) -> bool {
        let parked = self.groups.parked.keys();
        let mut of = parked.filter(|name| name.namespace == namespace && name.queue == queue);
        of.next().is_some()
    }

    pub(crate) fn admit(&mut self, now: i64, want: &Admit) -> Admitted {
        let groups = &self.groups;
        let rule = groups.rules.get(&want.name).cloned().unwrap_or_default();
        let many = usize::try_from(want.groups).unwrap_or(0);
        let cap = many * 4;
        let parked = groups.parked.get(&want.name);
        let ahead = |group: &&String| **group > rule.reached;
        let of_queue = || {
            let groups = parked.into_iter().flatten();
            let due = groups.filter(|(_, of_group)| of_group.is_due(now));
            due.map(|(group, _)| group)
        };
        let names: Vec<String> = of_queue()
            .filter(ahead)
            .chain(of_queue().filter(|group| !ahead(group)))
            .take(many)
            .cloned()
            .collect();
        let set_back: Vec<_> = names
            .iter()
            .filter_map(|name| {
                let rate = groups.rates.get(&(want.name.clone(), name.clone()));
                let rate = rate.filter(|(_, at)| *at > now * 1000);
                rate.map(|rate| (name.clone(), *rate))
            })
            .collect();
        let (mut ids, mut last) = (Vec::new(), None);
        let (mut permit_in, mut taken) = (None, Vec::new());
        for name in &names {
            let Some(of_group) = parked.and_then(|parked| parked.get(name)) else {
                continue;
            };
            let room = groups.room(now, &rule, &want.name, name);
            permit_in = permit_in.into_iter().chain(room.permit_in).min();
            let jobs = usize::try_from(room.jobs).unwrap_or(0);
            if jobs == 0 {
                continue;
            }
            let most = jobs.min(cap - ids.len());
            let picked = of_group.next(now, &rule, most, &self.locked);
            if !picked.is_empty() {
                last = Some(name.clone());
            }
            if let Some((step, owed)) = room.rate {
                let permits = i64::try_from(picked.len()).unwrap_or(i64::MAX);
                taken.push((name.clone(), now * 1000 + owed + permits * step));
            }
            ids.extend(picked);
        }
        let full = ids.len() >= cap;
        let of_all = parked.into_iter().flat_map(BTreeMap::values);
        let next = of_all.filter_map(|of_group| of_group.next_due(now)).min();
        for (group, (tat, at)) in set_back {
            let key = (want.name.clone(), group);
            self.groups
                .rates
                .insert(key, (tat - (at - now * 1000), now * 1000));
        }
        for (group, tat) in taken {
            let key = (want.name.clone(), group);
            self.groups.rates.insert(key, (tat, now * 1000));
        }
        for id in &ids {
            if let Some(mut live) = self.remove(*id) {
                live.due_at = None;
                live.run_at = now;
                self.insert(*id, live);
            }
        }
        if !ids.is_empty() || names.len() >= many {
            let rule = self.groups.rules.entry(want.name.clone()).or_default();
            rule.turns += 1;
            let reached = if full { last.as_ref() } else { names.last() };
            rule.reached = reached.cloned().unwrap_or_default();
        }
        let count = |many: usize| i64::try_from(many).unwrap_or(i64::MAX);
        Admitted {
            jobs: count(ids.len()),
            examined: count(names.len()),
            next_due: if ids.is_empty() {
                let next = next.map(|due| (due - now).max(20_000));
                next.into_iter().chain(permit_in).min()
            } else {
                None
            },
        }
    }
}

impl LiveJob {
    /// Due at this time: parked until it is admitted, if it has a group.
    pub(super) fn set_due(&mut self, due: i64) {
        let grouped = !self.job.group.is_empty();
        self.run_at = if grouped { NEVER } else { due };
        self.due_at = grouped.then_some(due);
    }
}
