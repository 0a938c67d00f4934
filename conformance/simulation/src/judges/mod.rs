//! Whether the server keeps the limits of queues and groups: what they promise is computed a second time, from the rows of the
//! jobs before and after each statement and the server's time.

mod meter;

use std::collections::{BTreeMap, BTreeSet};

use lockapi::suite::queue::{Jobs, LimitRow, Name, Sight};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::runtime::{ProgramId, Time};
use crate::server::CheckIn;
use meter::{Meter, Moment, Rate};

/// A promise that was broken, and how.
pub(crate) type Broken = (&'static str, String);

/// An admission is about to run: of a queue, and how many groups it may look at.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) queue: Name,
    pub(crate) groups: i64,
}

/// What is promised.
const STALE: &str = "a stale holder writes nothing";
const OF_GROUPS: &str = "no more of a group are admitted than its limit";
const RATES_OF_GROUPS: &str = "rates of groups hold";
const OF_QUEUES: &str = "no more of a queue run than its limit";
const RATES_OF_QUEUES: &str = "rates of queues hold";
const TURNS: &str = "no group is passed over";

/// For each group a turn admits so many jobs at most, of all groups together.
const JOBS_A_GROUP: i64 = 4;

/// A queue, and a group in it.
type Place = usize;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    queue: Place,
    /// Its group, if it has one.
    group: Option<Place>,
    /// The key that it is limited by besides.
    key: Option<Place>,
    parked: Option<i64>,
    attempt: i64,
    delivery: Option<(i64, i64)>,
}

#[derive(Clone, Default)]
struct Group {
    meter: Meter,
    /// How many turns have passed it over, one after the other.
    passed: i64,
    /// How many of its jobs are admitted.
    admitted: i64,
    /// And how many of others that have its name as their key.
    keyed: i64,
}

/// The judges; the server has them, and they see all that it does.
#[derive(Clone, Default)]
pub(crate) struct Judges {
    jobs: FxHashMap<i64, Seen>,
    names: Vec<(Name, String)>,
    places: FxHashMap<(Name, String), Place>,
    groups: BTreeMap<Place, Group>,
    queues: BTreeMap<Place, Meter>,
    /// How far the clock was set ahead in all, in microseconds.
    ahead: i64,
    /// How often each promise was looked at.
    looks: BTreeMap<&'static str, u64>,
    /// Whose statement runs.
    program: Option<ProgramId>,
    /// Who got the deliveries of each job.
    issued: FxHashMap<i64, Vec<ProgramId>>,
    /// When each delivery was made, by its token, and for whom.
    made: FxHashMap<i64, (Time, Option<ProgramId>)>,
    /// Of everything that one alone can hold: the token of the holder that has written last.
    writers: BTreeMap<(&'static str, String), i64>,
}

/// What a statement did.
#[derive(Default)]
struct Events {
    /// Jobs that were admitted, by group.
    admitted: BTreeMap<Place, i64>,
    /// And by their keys.
    keyed: BTreeMap<Place, i64>,
    /// Deliveries that took a permit of their queue, and those that took a place.
    permits: BTreeMap<Place, i64>,
    places: BTreeSet<Place>,
}

impl Seen {
    fn is(self, sight: &Sight<'_>) -> bool {
        let now = (sight.parked, sight.attempt, sight.delivery);
        (self.parked, self.attempt, self.delivery) == now
    }
}

impl Events {
    /// What has become of a job.
    fn add(&mut self, before: Option<Seen>, job: Seen, clock: i64) {
        if let Some(group) = job.group
            && job.parked.is_none()
            && before.is_none_or(|it| it.parked.is_some() || it.group != job.group)
        {
            *self.admitted.entry(group).or_default() += 1;
            if let Some(key) = job.key {
                *self.keyed.entry(key).or_default() += 1;
            }
        }
        let Some((token, until)) = job.delivery else {
            return;
        };
        let former = before.and_then(|it| it.delivery);
        // What a claim took whose answer was lost is claimed again in the same attempt.
        let again = before.is_some_and(|it| it.attempt == job.attempt);
        if former.is_none_or(|(former, _)| former != token) && !again {
            *self.permits.entry(job.queue).or_default() += 1;
        }
        if until > clock && former.is_none_or(|(_, until)| until <= clock) {
            self.places.insert(job.queue);
        }
    }
}

/// Two jobs of a queue with one unique key.
fn twins(jobs: &Jobs) -> Option<Broken> {
    let mut seen = FxHashSet::default();
    let mut keyed = jobs.sights().filter(|job| !job.unique.is_empty());
    let twin = keyed.find(|job| !seen.insert((job.queue, job.unique)))?;
    let what = format!("{:?} of {:?}", twin.unique, twin.queue);
    Some(("a unique key has one job", what))
}

impl Judges {
    /// How often each promise was looked at.
    pub(crate) fn looks(&self) -> BTreeMap<&'static str, u64> {
        self.looks.clone()
    }

    fn looks_at(&mut self, promise: &'static str) {
        *self.looks.entry(promise).or_default() += 1;
    }

    /// The server's clock is set.
    pub(crate) fn set_clock(&mut self, by: i64) {
        self.ahead += by.max(0);
        if by < 0 {
            self.meters().for_each(Meter::stall);
        }
    }

    /// What runs next is a statement of a session of this process.
    pub(crate) fn runs(&mut self, program: ProgramId) {
        self.program = Some(program);
    }

    /// Who got the deliveries of a job.
    pub(crate) fn issued(&self, job: i64) -> Vec<ProgramId> {
        self.issued.get(&job).cloned().unwrap_or_default()
    }

    /// Whether a job was ever delivered.
    pub(crate) fn was_issued(&self, job: i64) -> bool {
        self.issued.contains_key(&job)
    }

    /// When a delivery was made.
    pub(crate) fn made(&self, token: i64) -> Option<Time> {
        self.made.get(&token).map(|(at, _)| *at)
    }

    /// For which process a delivery was made.
    pub(crate) fn made_for(&self, token: i64) -> Option<ProgramId> {
        self.made.get(&token).and_then(|(_, program)| *program)
    }

    /// A transaction was committed in which these were checked in: nobody has written after a later holder.
    pub(crate) fn wrote(&mut self, checked: Vec<CheckIn>) -> Result<(), Broken> {
        for CheckIn { of, token } in checked {
            if self.writers.contains_key(&of) {
                self.looks_at(STALE);
            }
            let last = self.writers.entry(of.clone()).or_insert(token);
            if token < *last {
                let what = format!("{of:?}: {token} has written after {last}");
                return Err((STALE, what));
            }
            *last = token;
        }
        Ok(())
    }

    /// The server is another one, which may have forgotten what was done last.
    pub(crate) fn forget(&mut self, jobs: &Jobs, now: Time) {
        self.writers.clear();
        let at = self.moment(now);
        self.meters().for_each(|meter| meter.forget(at));
        for group in self.groups.values_mut() {
            group.passed = 0;
        }
        self.look(jobs, (now, i64::MAX));
        self.read_rates(jobs);
    }

    fn meters(&mut self) -> impl Iterator<Item = &mut Meter> {
        let groups = self.groups.values_mut().map(|group| &mut group.meter);
        groups.chain(self.queues.values_mut())
    }

    fn moment(&self, now: Time) -> Moment {
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        Moment {
            longest: (micros + self.ahead) * 1000,
            shortest: micros * 1000,
        }
    }

    /// A statement has run at a time of the server's clock.
    pub(crate) fn ran(
        &mut self,
        jobs: &Jobs,
        (name, turn): (&'static str, Option<&Turn>),
        (now, clock): (Time, i64),
    ) -> Result<(), Broken> {
        let of_operators = matches!(name, "admin.edit_jobs" | "admin.cancel_jobs");
        if !name.starts_with("queue.") && !name.starts_with("schedule.") && !of_operators {
            return Ok(());
        }
        let at = self.moment(now);
        let due = turn.map(|turn| self.due(jobs, turn, at, clock));
        let events = self.look(jobs, (now, clock));
        if name.starts_with("queue.set_") {
            self.read_rates(jobs);
        }
        let mut broken = self.groups_keep(jobs, name, &events, at);
        broken = broken.or_else(|| self.queues_keep(jobs, &events, at, clock));
        if let (Some(turn), Some(due)) = (turn, due) {
            broken = broken.or_else(|| self.turns_are_fair(jobs, turn, &due, &events, at));
        }
        if ["queue.push", "queue.redrive", "schedule."]
            .iter()
            .any(|adds| name.starts_with(adds))
        {
            broken = broken.or_else(|| twins(jobs));
        }
        broken.map_or(Ok(()), Err)
    }

    fn place(&mut self, queue: &Name, group: &str) -> Place {
        let key = (queue.clone(), group.to_owned());
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let place = self.names.len();
        self.names.push(key.clone());
        self.places.insert(key, place);
        if group.is_empty() {
            self.queues.insert(place, Meter::default());
        } else {
            self.groups.insert(place, Group::default());
        }
        place
    }

    /// Notes what the jobs are now, and what has become of them.
    fn look(&mut self, jobs: &Jobs, (now, clock): (Time, i64)) -> Events {
        let mut events = Events::default();
        let mut there = 0;
        for sight in jobs.sights() {
            there += 1;
            let before = self.jobs.get(&sight.id).copied();
            let same = before.filter(|it| it.is(&sight));
            let seen = match same {
                Some(seen) if self.is_in(seen, &sight) => continue,
                _ => self.seen(&sight),
            };
            events.add(before, seen, clock);
            let token = |seen: Seen| seen.delivery.map(|(token, _)| token);
            if let Some(issued) = token(seen)
                && before.and_then(token) != Some(issued)
            {
                let of_job = self.issued.entry(sight.id).or_default();
                of_job.extend(self.program);
                self.made.entry(issued).or_insert((now, self.program));
            }
            self.count(before, -1);
            self.count(Some(seen), 1);
            self.jobs.insert(sight.id, seen);
        }
        if self.jobs.len() > there {
            let left: BTreeSet<_> = jobs.sights().map(|sight| sight.id).collect();
            let gone = self.jobs.iter().filter(|(id, _)| !left.contains(id));
            let gone: Vec<_> = gone.map(|(id, seen)| (*id, *seen)).collect();
            for (id, seen) in gone {
                self.count(Some(seen), -1);
                self.jobs.remove(&id);
            }
        }
        events
    }

    /// Counts what is admitted.
    fn count(&mut self, seen: Option<Seen>, by: i64) {
        if let Some(seen) = seen.filter(|seen| seen.parked.is_none()) {
            if let Some(group) = seen.group.and_then(|group| self.groups.get_mut(&group)) {
                group.admitted += by;
            }
            if let Some(key) = seen.key.and_then(|key| self.groups.get_mut(&key)) {
                key.keyed += by;
            }
        }
    }

    fn seen(&mut self, sight: &Sight<'_>) -> Seen {
        let group = Some(sight.group).filter(|group| !group.is_empty());
        Seen {
            queue: self.place(sight.queue, ""),
            group: group.map(|group| self.place(sight.queue, group)),
            key: sight.key.map(|key| self.place(sight.queue, key)),
            parked: sight.parked,
            attempt: sight.attempt,
            delivery: sight.delivery,
        }
    }

    /// Whether it is in the same group as before, and has the same key.
    fn is_in(&self, known: Seen, sight: &Sight<'_>) -> bool {
        // Asked for each job with each statement, and most have neither.
        let is = |place: Option<Place>, name: &str| match place {
            None => name.is_empty(),
            Some(place) => self.names[place].1 == name,
        };
        is(known.group, sight.group)
            && known.key.is_some() == sight.key.is_some()
            && is(known.key, sight.key.unwrap_or_default())
    }

    fn read_rates(&mut self, jobs: &Jobs) {
        for (place, group) in &mut self.groups {
            let (queue, name) = &self.names[*place];
            group.meter.set(Rate::of(Limit::of(jobs, queue, name).row));
        }
        for (place, meter) in &mut self.queues {
            let row = jobs.queue_limit(&self.names[*place].0);
            meter.set(row.and_then(Rate::of));
        }
    }

    /// No more jobs of a group, and with its name as their key, are admitted than its limit, and no faster than its rate.
    fn groups_keep(
        &mut self,
        jobs: &Jobs,
        name: &str,
        events: &Events,
        at: Moment,
    ) -> Option<Broken> {
        let mut admitted = events.admitted.clone();
        for (place, more) in &events.keyed {
            *admitted.entry(*place).or_default() += more;
        }
        for (place, admitted) in &admitted {
            self.looks_at(OF_GROUPS);
            let (queue, key) = &self.names[*place];
            let of = format!("{admitted} of {key} in {} by {name}", queue.queue);
            let limit = Limit::of(jobs, queue, key);
            let group = self.groups.get_mut(place)?;
            if !limit.allows(group.admitted, group.keyed) || name != "queue.admit" {
                let (running, keyed) = (group.admitted, group.keyed);
                let what = format!("{of}: {running} and {keyed} are, and {limit:?}");
                return Some((OF_GROUPS, what));
            }
            let (meter, rate) = (&mut group.meter, Rate::of(limit.row));
            *self.looks.entry(RATES_OF_GROUPS).or_default() += u64::from(rate.is_some());
            meter.set(rate);
            if let Some(what) = meter.take(*admitted, at) {
                return Some((RATES_OF_GROUPS, format!("{of}: {what}")));
            }
        }
        None
    }

    /// No more jobs of a queue run than its limit, and none is claimed faster than its rate.
    fn queues_keep(
        &mut self,
        jobs: &Jobs,
        events: &Events,
        at: Moment,
        clock: i64,
    ) -> Option<Broken> {
        for place in &events.places {
            let queue = &self.names[*place].0;
            let most = jobs.queue_limit(queue).and_then(|row| row.running);
            let of_queue = self.jobs.values().filter(|job| job.queue == *place);
            let held = of_queue.filter(|job| job.delivery.is_some_and(|(_, until)| until > clock));
            let held = i64::try_from(held.count()).unwrap_or(i64::MAX);
            *self.looks.entry(OF_QUEUES).or_default() += u64::from(most.is_some());
            if let Some(most) = most.filter(|most| held > *most) {
                let what = format!("{held} of {} run, and {most} may", queue.queue);
                return Some((OF_QUEUES, what));
            }
        }
        for (place, permits) in &events.permits {
            let queue = &self.names[*place].0;
            let row = jobs.queue_limit(queue);
            let (meter, rate) = (self.queues.get_mut(place)?, row.and_then(Rate::of));
            *self.looks.entry(RATES_OF_QUEUES).or_default() += u64::from(rate.is_some());
            meter.set(rate);
            if let Some(what) = meter.take(*permits, at) {
                return Some((RATES_OF_QUEUES, format!("{}: {what}", queue.queue)));
            }
        }
        None
    }

    /// The groups that have a job which is due, before a turn, and whether they certainly have room and a permit for it: not
    /// where a job has a key besides, nor where the group is such a key; nor, where any job of the queue has a key, behind one
    /// that somebody has locked.
    fn due(&self, jobs: &Jobs, turn: &Turn, at: Moment, clock: i64) -> BTreeMap<Place, bool> {
        let ordered = jobs
            .group_rule(&turn.queue)
            .is_some_and(|rule| rule.ordered);
        let mut due = BTreeMap::new();
        let mut keyed = BTreeSet::new();
        let (mut locked, mut has_keys) = (BTreeSet::new(), false);
        let mut heads = FxHashMap::<Place, (i64, i64)>::default();
        for (id, job) in &self.jobs {
            has_keys |= job.key.is_some() && self.names[job.queue].0 == turn.queue;
            let (Some(place), Some(at)) = (job.group, job.parked) else {
                continue;
            };
            if self.names[place].0 != turn.queue {
                continue;
            }
            let free = !jobs.is_row_locked(*id);
            if at <= clock && free {
                due.insert(place, true);
                keyed.extend(job.key.into_iter().chain(job.key.map(|_| place)));
            } else if at <= clock {
                locked.insert(place);
            }
            // Nobody knows when a row that is locked will be due.
            let head = (*id, if free { at } else { i64::MAX });
            let first = heads.entry(place).or_insert(head);
            *first = (*first).min(head);
        }
        if has_keys {
            keyed.append(&mut locked);
        }
        // In an ordered queue the first is next.
        for (place, is_next) in due.iter_mut().filter(|_| ordered) {
            *is_next = heads.get(place).is_some_and(|(_, at)| *at <= clock);
        }
        for (place, is_next) in &mut due {
            let (queue, key) = &self.names[*place];
            let limit = Limit::of(jobs, queue, key);
            *is_next &= self.groups.get(place).is_some_and(|group| {
                let has_room = limit.allows(group.admitted + 1, group.keyed);
                has_room && group.meter.has_permit(at)
            });
            *is_next &= !keyed.contains(place);
        }
        due
    }

    /// All groups have their turns, one after the other: a group that has a job which may be admitted is passed over only
    /// as often as the others before it need turns.
    fn turns_are_fair(
        &mut self,
        jobs: &Jobs,
        turn: &Turn,
        due: &BTreeMap<Place, bool>,
        events: &Events,
        at: Moment,
    ) -> Option<Broken> {
        let names = self.names.iter();
        let all = names.filter(|(queue, group)| *queue == turn.queue && !group.is_empty());
        let (mut others, mut largest) = (-1, 1);
        for (queue, group) in all {
            others += 1;
            largest = largest.max(Limit::of(jobs, queue, group).most);
        }
        let many = turn.groups.min(turn.groups * JOBS_A_GROUP / largest).max(1);
        let bound = others / many;
        for (place, is_next) in due {
            let group = self.groups.get_mut(place)?;
            // A rate is moved back with the clock where the group has room.
            let (queue, key) = &self.names[*place];
            if bound == 0 && Limit::of(jobs, queue, key).allows(group.admitted + 1, group.keyed) {
                group.meter.looked(at);
            }
            if events.admitted.contains_key(place) {
                group.passed = 0;
            } else if *is_next {
                group.passed += 1;
            }
            if *is_next {
                *self.looks.entry(TURNS).or_default() += 1;
            }
            if group.passed > bound {
                let what = format!(
                    "{key} of {} was passed over {} times, and {bound} may be",
                    queue.queue, group.passed
                );
                let what = format!("{what}: {:?}", group.meter);
                return Some((TURNS, what));
            }
        }
        None
    }
}

/// The limit of a group, and of the key with its name.
#[derive(Debug)]
struct Limit {
    /// What has its rate.
    row: LimitRow,
    /// How many jobs may be admitted.
    most: i64,
    /// Whether one of the group may be at most.
    ordered: bool,
}

impl Limit {
    /// Its own, or what that does not say as in other groups.
    fn of(jobs: &Jobs, queue: &Name, group: &str) -> Self {
        let rule = jobs.group_rule(queue);
        let of_queue = rule.map(|rule| rule.limit).unwrap_or_default();
        let own = jobs.group_limit(queue, group).unwrap_or_default();
        Self {
            row: if own.step.is_some() { own } else { of_queue },
            most: own.running.or(of_queue.running).unwrap_or(1),
            ordered: rule.is_some_and(|rule| rule.ordered),
        }
    }

    fn allows(&self, of_group: i64, with_key: i64) -> bool {
        of_group + with_key <= self.most && (!self.ordered || of_group <= 1)
    }
}
