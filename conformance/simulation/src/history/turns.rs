//! What has to happen in time, where nothing fails: everybody has a turn, what is due is begun, and nobody is told that
//! he waits for himself who does not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::waits::NOTIFIED;
use super::{History, State};
use crate::runtime::{ProgramId, Time};
use crate::server::Seen;

/// Within this time a process has a lock that it waits for, and hands it to the first of its tasks that waits. Others come before the
/// next one.
const TURN: Duration = Duration::from_secs(30);
/// Within this time a worker begins what it has claimed, or gives it back.
const BEGUN: Duration = Duration::from_secs(5);
/// A job that nobody has is due within this time …
const DUE: Duration = Duration::from_secs(4);
/// … and goes within this time to whoever waits for one.
const FOUND: Duration = Duration::from_secs(5);
/// Within this time whoever wants to share a lock that others of its process share has it, where nobody wants it alone.
const SHARED: Duration = Duration::from_secs(1);
/// What is promised then.
const SHARES: &str = "who shares waits for nobody who shares";
/// What ended before was known to the server when it looked.
const KNOWN: Duration = Duration::from_millis(50);

/// Queues whose jobs are held by workers alone.
const OF_WORKERS: &str = "tasks";
/// Queues without limits, groups and pauses.
pub(super) const FREE: &str = "jobs";

/// The kind and the key of a lock.
type Name = (&'static str, String);

/// Somebody who waits for a lock as long as it takes.
struct Waiter {
    program: ProgramId,
    name: Name,
    since: Time,
    /// How many of its process waited for it by then.
    ahead: u32,
    /// Whether others may have it at the same time.
    shares: bool,
}

/// What an owner of locks does for a time.
struct Span {
    owner: u64,
    key: &'static str,
    holds: bool,
    until: Option<Time>,
}

#[derive(Default)]
pub(super) struct Turns {
    next: u64,
    spans: BTreeMap<u64, Span>,
    /// In the order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    /// Who has a lock that may be shared, or waits for it, and wants it alone …
    alone: BTreeMap<u64, Name>,
    /// … and until when somebody did.
    was_alone: BTreeMap<Name, Time>,
    /// Claims that wait, by their queues, and since when.
    claims: BTreeMap<u64, (String, Time)>,
    /// The tokens of deliveries that were handed over.
    pub(super) tokens: BTreeSet<i64>,
    /// Jobs of workers that have not begun, with their tokens, and since when.
    unbegun: BTreeMap<i64, (i64, Time)>,
    /// Jobs that nobody has, and since when.
    free: BTreeMap<i64, Time>,
}

impl Turns {
    /// Since when claims of a queue wait.
    pub(super) fn claims(&self, queue: &'static str) -> impl Iterator<Item = Time> {
        let claims = self.claims.values();
        claims.filter_map(move |(of, since)| (of == queue).then_some(*since))
    }

    /// Since when somebody of another process that does not have a lock waits to have it alone.
    pub(super) fn writer_of_others(
        &self,
        name: &Name,
        program: ProgramId,
        has: impl Fn(ProgramId) -> bool,
    ) -> Option<Time> {
        let waiters = self.waiters.values().filter(|it| it.name == *name);
        let mut writers = waiters.filter(|it| !it.shares && it.program != program);
        let writer = writers.find(|it| !has(it.program));
        writer.map(|writer| writer.since)
    }

    /// The locks that somebody waits for, and since when.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (&Name, Time)> {
        let waiters = self.waiters.values();
        waiters.map(|waiter| (&waiter.name, waiter.since))
    }
}

/// Something that lasts until this is dropped.
pub(crate) struct Lasting {
    history: History,
    number: u64,
}

impl Drop for Lasting {
    fn drop(&mut self) {
        let now = self.history.runtime.now();
        let mut state = self.history.lock();
        if let Some(span) = state.turns.spans.get_mut(&self.number) {
            span.until = Some(now);
        }
        state.turns.claims.remove(&self.number);
        let waiter = state.turns.waiters.remove(&self.number);
        if let Some(name) = state.turns.alone.remove(&self.number) {
            state.turns.was_alone.insert(name, now);
        }
        drop(state);
        if let Some(waiter) = waiter
            && self.history.undisturbed
            && {
                self.history.runtime.looks_at("everybody has a turn");
                now.saturating_sub(waiter.since) > TURN * waiter.ahead.saturating_add(1)
            }
        {
            let what = format!(
                "{:?}: waited since {:?}, behind {}",
                waiter.name, waiter.since, waiter.ahead
            );
            self.history.runtime.violate("everybody has a turn", what);
        }
    }
}

impl History {
    fn lasting(&self) -> (u64, Lasting) {
        let mut state = self.lock();
        state.turns.next += 1;
        let number = state.turns.next;
        drop(state);
        let history = self.clone();
        (number, Lasting { history, number })
    }

    /// Somebody waits for a lock as long as it takes; one who `shares` may have it together with others who do.
    pub(crate) fn waits(
        &self,
        program: ProgramId,
        (kind, key): (&'static str, &str),
        shares: bool,
    ) -> Lasting {
        let (number, lasting) = self.lasting();
        let (name, since) = ((kind, key.to_owned()), self.runtime.now());
        let mut state = self.lock();
        let others = state.turns.waiters.values();
        let others = others.filter(|other| (other.program, &other.name) == (program, &name));
        let ahead = u32::try_from(others.count()).unwrap_or(u32::MAX);
        let waiter = Waiter {
            program,
            name,
            since,
            ahead,
            shares,
        };
        state.turns.waiters.insert(number, waiter);
        drop(state);
        lasting
    }

    /// Who has waited for it has it: in its process nobody does who came before, but to share it.
    pub(crate) fn has_waited(&self, lasting: &Lasting) {
        let state = self.lock();
        let waiters = &state.turns.waiters;
        let Some(waiter) = waiters.get(&lasting.number) else {
            return;
        };
        let is_beside = |other: &&Waiter| {
            (other.program, &other.name) == (waiter.program, &waiter.name)
                && !(other.shares && waiter.shares)
        };
        let alone = state.turns.alone.values().any(|it| *it == waiter.name);
        let is_shared = state.places.get(&waiter.name).is_some_and(|place| {
            let mut holders = place.open.values();
            holders.any(|hold| hold.program == waiter.program)
        });
        if self.in_order && waiter.shares && is_shared && !alone {
            self.runtime.looks_at(SHARES);
        }
        if self.is_notified()
            && self.locks_waited_for.is_some()
            && waiter.since < self.runtime.now()
        {
            self.runtime.looks_at(NOTIFIED);
        }
        let promise = "who waits is served in the order of arrival";
        if self.in_order && waiters.values().any(|other| is_beside(&other)) {
            self.runtime.looks_at(promise);
        }
        let before = waiters.range(..lasting.number).map(|(_, other)| other);
        let mut before = before.filter(is_beside);
        let before = before
            .next()
            .map(|other| format!("{:?} of {:?}", other.name, other.program));
        drop(state);
        if let Some(what) = before.filter(|_| self.in_order) {
            self.runtime.violate(promise, what);
        }
    }

    /// Somebody wants a lock that may be shared alone.
    pub(crate) fn wants_alone(&self, kind: &'static str, key: &str) -> Lasting {
        let (number, lasting) = self.lasting();
        let mut state = self.lock();
        state.turns.alone.insert(number, (kind, key.to_owned()));
        drop(state);
        lasting
    }

    /// Somebody waits for jobs of a queue.
    pub(crate) fn waits_for_jobs(&self, queue: &str) -> Lasting {
        let (number, lasting) = self.lasting();
        let claim = (queue.to_owned(), self.runtime.now());
        self.lock().turns.claims.insert(number, claim);
        lasting
    }

    /// An owner holds a lock, or waits for one.
    pub(crate) fn owns(&self, owner: u64, key: &'static str, holds: bool) -> Lasting {
        let (number, lasting) = self.lasting();
        let span = Span {
            owner,
            key,
            holds,
            until: None,
        };
        self.lock().turns.spans.insert(number, span);
        lasting
    }

    /// An owner was told that its wait for a lock would not end.
    pub(crate) fn deadlocked(&self, owner: u64, key: &'static str) {
        self.answered("deadlock");
        let promise = "who is told of a deadlock waits for himself";
        if self.undisturbed {
            self.runtime.looks_at(promise);
        }
        let now = self.runtime.now();
        let state = self.lock();
        let spans = state.turns.spans.values();
        let spans: Vec<_> = spans
            .filter(|it| it.until.is_none_or(|until| until + KNOWN >= now))
            .map(|it| (it.owner, it.key, it.holds))
            .collect();
        drop(state);
        let (mut reached, mut next) = (BTreeSet::new(), vec![key]);
        while let Some(key) = next.pop() {
            for (holder, ..) in spans.iter().filter(|it| it.1 == key && it.2) {
                if *holder == owner {
                    return;
                }
                let waits = spans.iter().filter(|it| it.0 == *holder && !it.2);
                next.extend(waits.map(|it| it.1).filter(|it| reached.insert(*it)));
            }
        }
        if self.undisturbed {
            let what = format!("owner {owner}, {key}: {spans:?}");
            self.runtime.violate(promise, what);
        }
    }

    /// Somebody who waits to share a lock that others of its process share, although nobody wants it alone.
    fn kept_out(&self, state: &State) -> Option<String> {
        let (now, turns) = (self.runtime.now(), &state.turns);
        let mut waiters = turns.waiters.values().filter(|it| it.shares);
        waiters.find_map(|waiter| {
            let name = &waiter.name;
            if turns.alone.values().any(|other| other == name) {
                return None;
            }
            let holds = state.places.get(name)?.open.values();
            let holds =
                holds.filter(|it| it.program == waiter.program && it.is_held(&self.runtime));
            let since = holds.map(|it| it.given.1).min()?.max(waiter.since);
            let since = since.max(turns.was_alone.get(name).copied().unwrap_or_default());
            (now.saturating_sub(since) > SHARED)
                .then(|| format!("{name:?} of {:?}: since {since:?}", waiter.program))
        })
    }

    /// Looks at the jobs that have not ended, and at who waits.
    pub(crate) fn watched(&self, seen: &Seen) {
        self.check_settled(seen);
        self.check_waits(seen);
        if !self.undisturbed {
            return;
        }
        let now = self.runtime.now();
        let mut state = self.lock();
        let kept_out = self.kept_out(&state).filter(|_| self.in_order);
        let turns = &mut state.turns;
        let (mut unbegun, mut free) = (BTreeMap::new(), BTreeMap::new());
        for job in &seen.jobs {
            match job.delivery {
                Some((token, _)) if job.queue == OF_WORKERS && !turns.tokens.contains(&token) => {
                    let known = turns.unbegun.get(&job.id);
                    let known = known.filter(|(of, _)| *of == token);
                    unbegun.insert(job.id, known.copied().unwrap_or((token, now)));
                }
                None if job.queue == FREE && !job.is_locked => {
                    free.insert(job.id, turns.free.get(&job.id).copied().unwrap_or(now));
                }
                _ => {}
            }
        }
        turns.unbegun = unbegun;
        turns.free = free;
        if !turns.unbegun.is_empty() {
            self.runtime
                .looks_at("what is claimed is begun, or goes back");
        }
        if !turns.free.is_empty() && turns.claims(FREE).next().is_some() {
            self.runtime.looks_at("what is due goes to whoever waits");
        }
        let begun = turns
            .unbegun
            .iter()
            .find(|(_, it)| now.saturating_sub(it.1) > BEGUN);
        let hostage = begun.map(|(job, (token, since))| {
            format!("job {job} of {OF_WORKERS}: claimed under {token} at {since:?}, and not begun")
        });
        let mut claims = turns.claims.values();
        let waiting =
            claims.find(|(queue, since)| queue == FREE && now.saturating_sub(*since) > FOUND);
        let mut jobs = turns.free.iter();
        let late = jobs.find(|(_, since)| now.saturating_sub(**since) > DUE + FOUND);
        let missed = waiting.zip(late).map(|((_, claim), (job, since))| {
            format!("job {job} of {FREE}: due since {since:?}, and claimed at {claim:?}")
        });
        drop(state);
        if let Some(what) = kept_out {
            self.runtime.violate(SHARES, what);
        }
        if let Some(what) = hostage {
            let promise = "what is claimed is begun, or goes back";
            self.runtime.violate(promise, what);
        }
        if let Some(what) = missed {
            let promise = "what is due goes to whoever waits";
            self.runtime.violate(promise, what);
        }
    }
}
