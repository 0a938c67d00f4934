//! Groups: what is parked, what is admitted, and how many may be.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Jobs, LiveJob};
use crate::queue::operations::{Admit, Admitted, LimitRow, NEVER, Name, SetGroupLimit, SetGroups};

/// For each group an admission admits so many jobs, of all groups together.
const JOBS_A_GROUP: usize = 4;

/// With more keys that had no room for all, those of earlier times are forgotten.
const KEY_TURNS: usize = 1000;

/// How a queue is limited, and whose turn it is.
#[derive(Clone, Debug)]
struct Rule {
    limit: LimitRow,
    ordered: bool,
    turns: i64,
    reached: String,
    /// By key, the group that it has admitted last.
    key_turns: BTreeMap<String, String>,
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
            key_turns: BTreeMap::new(),
        }
    }
}

impl Rule {
    fn note_key_turns(&mut self, turns: BTreeMap<String, String>, keyed: bool) {
        if !keyed || self.key_turns.len() > KEY_TURNS && !turns.is_empty() {
            self.key_turns.clear();
        }
        self.key_turns.extend(turns);
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
    /// Those that are admitted with a key other than their group, by the key.
    admitted_by: FxHashMap<(Name, String), i64>,
    /// How many jobs of a queue have such a key, admitted or not.
    keyed: FxHashMap<Name, i64>,
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

/// What is admitted.
struct Fit {
    ids: Vec<i64>,
    /// How many permits of which groups and keys.
    taken: BTreeMap<String, i64>,
    /// The group after which the next turn begins, where a key had no room.
    turn_after: Option<String>,
    /// By key without room for all, the group that had it last.
    key_turns: BTreeMap<String, String>,
}

/// How many more jobs of a group may be admitted.
struct Room {
    jobs: i64,
    /// The time between two permits, and what is owed, in nanoseconds.
    rate: Option<(i64, i64)>,
    /// When the next permit comes, in microseconds from now, where only a permit is missing.
    permit_in: Option<i64>,
    /// Whether its rate was charged at a time that is still to come.
    is_ahead: bool,
}

impl Groups {
    pub(super) fn inserted(&mut self, id: i64, live: &LiveJob) {
        let group = &live.job.group;
        if live.other_key().is_some() {
            *self.keyed.entry(live.queue.clone()).or_default() += 1;
        }
        let Some(due) = live.due_at else {
            if !group.is_empty() {
                let key = (live.queue.clone(), group.clone());
                *self.admitted.entry(key).or_default() += 1;
            }
            if let Some(key) = live.other_key() {
                let key = (live.queue.clone(), key.to_owned());
                *self.admitted_by.entry(key).or_default() += 1;
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
        if live.other_key().is_some()
            && let Some(keyed) = self.keyed.get_mut(&live.queue)
        {
            *keyed -= 1;
        }
        let Some(due) = live.due_at else {
            let leaves = |of: &mut FxHashMap<(Name, String), i64>, key: &str| {
                let key = (live.queue.clone(), key.to_owned());
                if let Some(admitted) = of.get_mut(&key) {
                    *admitted -= 1;
                    if *admitted == 0 {
                        of.remove(&key);
                    }
                }
            };
            leaves(&mut self.admitted, group);
            if let Some(key) = live.other_key() {
                leaves(&mut self.admitted_by, key);
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

    /// The room of a group, or of a key, which has no order.
    fn room(&self, now: i64, rule: &Rule, queue: &Name, group: &str, of_key: bool) -> Room {
        let key = (queue.clone(), group.to_owned());
        let own = self.limits.get(&key).copied().unwrap_or_default();
        let most = own.running.or(rule.limit.running).unwrap_or(1);
        let of = |admitted: &FxHashMap<_, i64>| admitted.get(&key).copied().unwrap_or_default();
        let of_group = of(&self.admitted);
        let mut jobs = most - of_group - of(&self.admitted_by);
        if rule.ordered && !of_key {
            jobs = jobs.min(1 - of_group);
        }
        let row = if own.step.is_some() { own } else { rule.limit };
        let (Some(step), Some(burst), true) = (row.step, row.burst, jobs > 0) else {
            return Room {
                jobs,
                rate: None,
                permit_in: None,
                is_ahead: false,
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
            is_ahead: at > now * 1000,
        }
    }

    /// The groups that have a job which is due, in turn.
    fn in_turn(&self, now: i64, queue: &Name, rule: &Rule, many: usize) -> Vec<String> {
        let parked = self.parked.get(queue);
        let ahead = |group: &&String| **group > rule.reached;
        let of_queue = || {
            let groups = parked.into_iter().flatten();
            let due = groups.filter(|(_, of_group)| of_group.is_due(now));
            due.map(|(group, _)| group)
        };
        let behind = of_queue().filter(|group| !ahead(group));
        let all = of_queue().filter(ahead).chain(behind);
        all.take(many).cloned().collect()
    }

    /// Moves the times of these rates back, where the clock was set back, and sets those of which permits were taken.
    fn charge(&mut self, now: i64, queue: &Name, moved: &[String], taken: Vec<(String, i64)>) {
        let now = now * 1000;
        for name in moved {
            if let Some((tat, at)) = self.rates.get_mut(&(queue.clone(), name.clone()))
                && *at > now
            {
                (*tat, *at) = (*tat - (*at - now), now);
            }
        }
        for (name, tat) in taken {
            self.rates.insert((queue.clone(), name), (tat, now));
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

    /// Those of the jobs that are next that have room. What has no room for its key holds up its group.
    fn fit(&self, picked: &[(i64, String)], of_keys: &mut FxHashMap<String, Room>) -> Fit {
        let (mut ids, mut taken) = (Vec::new(), BTreeMap::<String, i64>::new());
        let (mut stuck, mut first_keyed) = (FxHashSet::default(), None);
        let (mut missed, mut served) = (FxHashSet::default(), BTreeMap::new());
        for (id, group) in picked {
            if stuck.contains(group) {
                continue;
            }
            let key = self.live.get(id).and_then(LiveJob::other_key);
            let places = [Some(&**group), key];
            let has_room = |name: &str| of_keys.get(name).is_none_or(|room| room.jobs > 0);
            if !places.into_iter().flatten().all(has_room) {
                stuck.insert(group);
                missed.extend(key.filter(|key| !has_room(key)));
                continue;
            }
            if self.locked.contains(id) {
                continue;
            }
            for name in places.into_iter().flatten() {
                if let Some(room) = of_keys.get_mut(name) {
                    room.jobs -= 1;
                }
                *taken.entry(name.to_owned()).or_default() += 1;
            }
            if let Some(key) = key {
                first_keyed = first_keyed.or(Some(group));
                served.insert(key.to_owned(), group.clone());
            }
            ids.push(*id);
        }
        served.retain(|key, _| missed.contains(&**key));
        Fit {
            ids,
            taken,
            turn_after: first_keyed.filter(|_| !stuck.is_empty()).cloned(),
            key_turns: served,
        }
    }

    pub(crate) fn admit(&mut self, now: i64, want: &Admit) -> Admitted {
        let groups = &self.groups;
        let rule = groups.rules.get(&want.name).cloned().unwrap_or_default();
        let many = usize::try_from(want.groups).unwrap_or(0);
        let cap = many * JOBS_A_GROUP;
        let parked = groups.parked.get(&want.name);
        let names = groups.in_turn(now, &want.name, &rule, many);
        let keyed = groups.keyed.get(&want.name).is_some_and(|jobs| *jobs > 0);
        let unlocked = FxHashSet::default();
        let locked = if keyed { &unlocked } else { &self.locked };
        let (mut picked, mut permit_in) = (Vec::new(), None);
        let mut rooms = FxHashMap::default();
        // Rates are read where there is room besides.
        let mut set_back = false;
        for name in &names {
            let Some(of_group) = parked.and_then(|parked| parked.get(name)) else {
                continue;
            };
            let room = groups.room(now, &rule, &want.name, name, false);
            permit_in = permit_in.into_iter().chain(room.permit_in).min();
            set_back |= room.is_ahead;
            let jobs = usize::try_from(room.jobs).unwrap_or(0);
            if jobs == 0 {
                continue;
            }
            let jobs = if keyed { jobs.min(JOBS_A_GROUP) } else { jobs };
            let most = jobs.min(cap - picked.len());
            let next = of_group.next(now, &rule, most, locked);
            let nth = (0..).zip(next);
            picked.extend(nth.map(|(nth, id)| (nth, id, name.clone())));
            rooms.insert(name.clone(), room);
        }
        let full = picked.len() >= cap;
        let last = picked.last().map(|(.., group)| group.clone());
        let key_of = |id: &i64| self.live.get(id).and_then(LiveJob::other_key);
        if keyed {
            // First the next one of each group, then the second ones; of a key those behind who had it last.
            picked.sort_by_cached_key(|(nth, id, group)| {
                let turn = key_of(id).and_then(|key| rule.key_turns.get(key));
                (*nth, group <= turn.unwrap_or(&rule.reached), group.clone())
            });
        }
        let picked = picked.into_iter().map(|(_, id, group)| (id, group));
        let picked: Vec<_> = picked.collect();
        let keys: BTreeSet<_> = picked.iter().filter_map(|(id, _)| key_of(id)).collect();
        let mut looked_at = names.clone();
        let mut of_keys = FxHashMap::default();
        for key in keys {
            let room = groups.room(now, &rule, &want.name, key, true);
            permit_in = permit_in.into_iter().chain(room.permit_in).min();
            set_back |= room.is_ahead;
            looked_at.push(key.to_owned());
            of_keys.insert(key.to_owned(), room);
        }
        let Fit {
            ids,
            taken,
            turn_after,
            key_turns,
        } = self.fit(&picked, &mut of_keys);
        rooms.extend(of_keys);
        let taken = taken.into_iter().filter_map(|(name, permits)| {
            let (step, owed) = rooms.get(&name)?.rate?;
            Some((name, now * 1000 + owed + permits * step))
        });
        let taken: Vec<_> = taken.collect();
        let of_all = parked.into_iter().flat_map(BTreeMap::values);
        let next = of_all.filter_map(|of_group| of_group.next_due(now)).min();
        if !set_back {
            looked_at.clear();
        }
        self.groups.charge(now, &want.name, &looked_at, taken);
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
            let reached = if full { last } else { names.last().cloned() };
            let turn_after = turn_after.filter(|_| names.len() >= many);
            rule.reached = turn_after.or(reached).unwrap_or_default();
            rule.note_key_turns(key_turns, keyed);
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
    /// The key that it is limited by, other than its group.
    pub(super) fn other_key(&self) -> Option<&str> {
        let key = self.job.headers.limit_key();
        key.filter(|key| *key != self.job.group)
    }

    /// Due at this time: parked until it is admitted, if it has a group.
    pub(super) fn set_due(&mut self, due: i64) {
        let grouped = !self.job.group.is_empty();
        self.run_at = if grouped { NEVER } else { due };
        self.due_at = grouped.then_some(due);
    }
}
