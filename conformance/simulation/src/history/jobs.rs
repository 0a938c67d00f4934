//! Pushes, deliveries and acknowledgements of jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use lockapi::{Error, ErrorKind};

use super::results::{DELIVERS_NOTHING, check_drained};
use super::{Entry, Held, History, Hold, State};
use crate::judges::Broken;
use crate::runtime::{ProgramId, Runtime, Time};

/// A claim takes so much longer than it waits.
const CLAIMED: Duration = Duration::from_secs(1);

/// How often jobs of hundreds of groups are pushed.
const MOST_CROWDS: u32 = 2;

/// What is known of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Push {
    Asked,
    Done,
    /// With this error.
    Refused(String),
}

/// The group that a job is in, or that of the key it is limited by besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) queue: &'static str,
    pub(crate) key: &'static str,
    /// How many of its jobs may run at once.
    pub(crate) most: usize,
    /// Whether they run in the order in which they were pushed.
    pub(crate) ordered: bool,
}

/// A queue, and how many of its jobs may run at once.
type Limit = (&'static str, usize);

pub(super) struct Job {
    groups: Vec<Group>,
    limit: Option<Limit>,
    push: Push,
    /// When the push was sent and answered.
    pub(super) pushed: (Time, Time),
    pub(super) deliveries: u64,
    /// When its acknowledgement was sent and answered.
    acked: Option<(Time, Time)>,
    /// The deliveries whose acknowledgements have an outcome that is not known.
    unsure: Vec<i64>,
    /// Whether somebody may have rejected it.
    rejected: bool,
    /// The highest token of a delivery, and when that became known.
    latest: (i64, Time),
    /// Before when it is not delivered again after the delivery with this token; when that was asked for, and known.
    rests: Option<(i64, Time, (Time, Time))>,
    /// The delivery that a handler has done.
    pub(super) handled: Option<i64>,
    /// How often it has failed.
    failures: u32,
    /// How often it was given back, which is no attempt.
    released: u64,
    /// How many of its deliveries are no attempts, and whether that is not known of some.
    pub(super) uncounted: u64,
    pub(super) has_unknown: bool,
    /// The deliveries whose leases are not extended by themselves.
    pub(super) by_hand: Vec<i64>,
    pub(super) open: BTreeMap<u64, Hold>,
}

impl Job {
    /// Whether somebody has it who believes to hold it, by what the server has not forgotten.
    pub(super) fn runs(&self, runtime: &Runtime, state: &State) -> bool {
        let known = |hold: &&Hold| !state.may_forget(runtime, hold);
        let mut holds = self.open.values().filter(known);
        holds.any(|hold| hold.is_held(runtime))
    }

    /// The tokens of those who have it, with when each was asked for and given.
    pub(super) fn holders(&self) -> Vec<(i64, (Time, Time))> {
        let open = self.open.values();
        open.map(|hold| (hold.token, hold.given)).collect()
    }

    /// Whether its push was answered before that time, and the server has not forgotten it.
    pub(super) fn is_pushed(&self, before: Time, state: &State) -> bool {
        self.push == Push::Done && self.pushed.1 < before && !state.is_lost(self.pushed)
    }

    /// When its acknowledgement was answered, if the server has not forgotten it.
    pub(super) fn acked(&self, state: &State) -> Option<Time> {
        let acked = self.acked.filter(|acked| !state.is_lost(*acked));
        acked.map(|(_, answered)| answered)
    }
}

impl State {
    /// What is wrong with a delivery of this job: it comes before its time, or was done before.
    fn check_time(&self, history: &History, number: u64, token: i64) -> Option<Broken> {
        let job = self.jobs.get(&number)?;
        let now = history.runtime.now();
        if let Some((before, until, told)) = job.rests
            && before < token
            && !history.stepped
            && !self.is_lost((told.0, now))
        {
            let promise = "no job is delivered before its time";
            history.runtime.looks_at(promise);
            if now < until {
                let what = format!("job {number}: {token} at {now:?}, and not before {until:?}");
                return Some((promise, what));
            }
        }
        let handled = job.handled.filter(|before| *before < token)?;
        let what = format!("job {number}: {handled} was handled, and then {token} was delivered");
        history
            .answers
            .then_some(("what is handled is not handled again without a cause", what))
    }

    /// What is wrong with a delivery of this job: too many of its queue run.
    fn check_limit(&self, runtime: &Runtime, number: u64) -> Option<String> {
        let limit = self.jobs.get(&number)?.limit?;
        let others = self.jobs.iter();
        let others = others.filter(|(other, job)| **other != number && job.limit == Some(limit));
        let running = others.filter(|(_, job)| job.runs(runtime, self));
        let running = running.count();
        let (queue, most) = limit;
        // A server that has forgotten all that was set knows of no limit.
        let set = self.limits.get(queue).into_iter().flatten();
        let is_known = set.into_iter().any(|set| !self.is_lost(*set));
        (is_known && running >= most)
            .then(|| format!("job {number} of {queue} beside {running} others"))
    }

    /// A job that may be there from now on.
    pub(super) fn add_job(&mut self, now: Time, groups: &[Group], limit: Option<Limit>) -> u64 {
        self.next += 1;
        let number = self.next;
        for group in groups {
            let jobs = self.groups.entry((group.queue, group.key)).or_default();
            jobs.push(number);
        }
        let job = Job {
            groups: groups.to_vec(),
            limit,
            push: Push::Asked,
            pushed: (now, now),
            deliveries: 0,
            acked: None,
            unsure: Vec::new(),
            rejected: false,
            latest: (0, Time::ZERO),
            rests: None,
            handled: None,
            failures: 0,
            released: 0,
            uncounted: 0,
            has_unknown: false,
            by_hand: Vec::new(),
            open: BTreeMap::new(),
        };
        self.jobs.insert(number, job);
        number
    }

    /// What is wrong with a delivery of this job to a claim that began at `asked`: too many of its group, or with its key, run,
    /// or one runs that was pushed before it.
    fn check_groups(&self, runtime: &Runtime, number: u64, asked: Time) -> Option<String> {
        let groups = &self.jobs.get(&number)?.groups;
        let mut wrong = groups
            .iter()
            .filter_map(|group| self.check_group(runtime, number, asked, *group));
        wrong.next()
    }

    fn check_group(
        &self,
        runtime: &Runtime,
        number: u64,
        asked: Time,
        group: Group,
    ) -> Option<String> {
        let job = self.jobs.get(&number)?;
        let others = self.groups.get(&(group.queue, group.key))?.iter();
        let others = others.filter(|other| **other != number);
        let others: Vec<_> = others
            .filter_map(|other| Some((*other, self.jobs.get(other)?)))
            .collect();
        let running = others.iter().filter(|(_, other)| other.runs(runtime, self));
        let running = running.count();
        if running >= group.most {
            return Some(format!("job {number} of {group:?} beside {running} others"));
        }
        let is_before = |(_, other): &&(u64, &Job)| {
            let undone = other.acked.is_none() && other.unsure.is_empty();
            let known = other.push == Push::Done && !self.is_lost(other.pushed);
            known && other.pushed.1 < job.pushed.0 && undone
        };
        let before = others.iter().find(is_before);
        // A server that does not know that they have one keeps none.
        let ordered = self.ordered.get(group.queue);
        let is_known = ordered.is_some_and(|set| !self.is_lost(*set));
        let before = before.filter(|_| group.ordered && is_known);
        before.map(|(before, _)| {
            format!("job {number} of {group:?}, claimed at {asked:?}, before {before}")
        })
    }
}

impl History {
    /// Somebody is about to push; answers what the payload has to be.
    pub(crate) fn push(&self) -> u64 {
        let now = self.runtime.now();
        self.lock().add_job(now, &[], None)
    }

    /// The same to a group, and with a key besides.
    pub(crate) fn push_to(&self, groups: &[Group]) -> u64 {
        let now = self.runtime.now();
        self.lock().add_job(now, groups, None)
    }

    /// The same to a queue of which so many jobs run at once at most.
    pub(crate) fn push_limited(&self, limit: Limit) -> u64 {
        let now = self.runtime.now();
        self.lock().add_job(now, &[], Some(limit))
    }

    /// Groups were given their order by a call that began at `asked`; the first one counts.
    pub(crate) fn set_order(&self, queue: &'static str, asked: Time) {
        let now = self.runtime.now();
        self.lock().ordered.entry(queue).or_insert((asked, now));
    }

    /// A queue was given a limit by a call that began at `asked`.
    pub(crate) fn set_limit(&self, queue: &str, asked: Time) {
        let now = self.runtime.now();
        let mut state = self.lock();
        let set = state.limits.entry(queue.to_owned()).or_default();
        set.push((asked, now));
    }

    /// Whether somebody may push jobs of hundreds of groups, which few do because each job is looked at after each statement.
    pub(crate) fn begins_crowd(&self) -> bool {
        let mut state = self.lock();
        state.crowds += 1;
        state.crowds <= MOST_CROWDS
    }

    pub(crate) fn pushed(&self, job: u64, outcome: Result<(), &Error>) {
        let push = match outcome {
            Ok(()) => Push::Done,
            Err(error) if error.kind() == ErrorKind::Indeterminate => Push::Asked,
            Err(error) => Push::Refused(format!("{error:?}")),
        };
        let mut state = self.lock();
        let Some(known) = state.jobs.get_mut(&job) else {
            return;
        };
        known.push = push.clone();
        let now = self.runtime.now();
        known.pushed.1 = now;
        let delivered = known.deliveries > 0;
        if push == Push::Done {
            state.prioritized.pushed(job, now);
        }
        drop(state);
        match push {
            Push::Done => self.answered("push"),
            Push::Refused(_) if !delivered => {
                self.runtime.looks_at("what did not happen has no effect");
            }
            Push::Refused(error) if delivered => self.runtime.violate(
                "what did not happen has no effect",
                format!("job {job} was delivered, and its push failed: {error}"),
            ),
            _ => {}
        }
    }

    /// Counts what is promised of a delivery.
    fn looks_at_delivery(&self, state: &State, job: u64) {
        let Some(known) = state.jobs.get(&job) else {
            return;
        };
        for (promise, looks) in [
            ("a job has one worker", known.open.len() > 1),
            (
                "groups keep their limit and order",
                !known.groups.is_empty(),
            ),
            ("queues keep their limit", known.limit.is_some()),
        ] {
            if looks {
                self.runtime.looks_at(promise);
            }
        }
    }

    /// A job was delivered to a claim that began at `asked`.
    pub(crate) fn delivered(
        &self,
        job: u64,
        program: ProgramId,
        (token, asked): (i64, Time),
        held: Held,
    ) -> Option<Entry> {
        self.answered("delivery");
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        let Some(known) = state.jobs.get_mut(&job) else {
            drop(state);
            self.runtime
                .violate("what is delivered was pushed", format!("job {job}"));
            return None;
        };
        known.deliveries += 1;
        state.turns.tokens.insert(token);
        let known = state.jobs.get_mut(&job)?;
        // Who has it once more had not completed it before, unless that was lost.
        known.unsure.retain(|before| *before >= token);
        if token > known.latest.0 {
            known.latest = (token, self.runtime.now());
        }
        let refused = match &known.push {
            Push::Refused(error) => Some(error.clone()),
            _ => None,
        };
        let done = known.acked.filter(|(_, acked)| *acked < asked);
        let late = !held();
        let others = known.open.values();
        let others = others.filter(|hold| !late && hold.is_held(&self.runtime));
        let others: Vec<_> = others.map(|hold| (hold.token, hold.given)).collect();
        known.open.insert(
            number,
            Hold {
                program,
                token,
                held,
                takes: 1,
                given: (asked, self.runtime.now()),
            },
        );
        let untimely = state.check_time(self, job, token);
        let with_result = state.results.contains_key(&job);
        let drained = check_drained(&state.drains, asked).filter(|_| with_result);
        let (grouped, limited) = if late {
            (None, None)
        } else {
            let grouped = state.check_groups(&self.runtime, job, asked);
            (grouped, state.check_limit(&self.runtime, job))
        };
        let done = done.filter(|acked| !state.is_lost(*acked));
        let now = self.runtime.now();
        let others = others
            .into_iter()
            .filter(|(_, given)| !state.is_lost((given.0, now)));
        let others: Vec<_> = others.map(|(token, _)| token).collect();
        // An answer of the former primary may come late, of what the other does not know.
        let exact = !self.stepped && !state.is_lost((asked, now));
        if exact {
            self.looks_at_delivery(&state, job);
        }
        drop(state);
        if let Some(error) = refused {
            self.runtime.violate(
                "what did not happen has no effect",
                format!("job {job} was delivered, and its push failed: {error}"),
            );
        }
        if let Some((_, acked)) = done {
            self.runtime.violate(
                "what is done is not delivered",
                format!("job {job} was acknowledged at {acked:?}, and claimed at {asked:?}"),
            );
        }
        if let Some((promise, what)) = untimely {
            self.runtime.violate(promise, what);
        }
        if let Some(what) = grouped.filter(|_| exact) {
            self.runtime
                .violate("groups keep their limit and order", what);
        }
        if let Some(what) = drained {
            self.runtime.violate(DELIVERS_NOTHING, what);
        }
        if let Some(what) = limited.filter(|_| exact) {
            self.runtime.violate("queues keep their limit", what);
        }
        if !others.is_empty() && exact {
            self.runtime.violate(
                "a job has one worker",
                format!("job {job}: {token} was delivered while {others:?} had it"),
            );
        }
        Some(Entry {
            history: self.clone(),
            place: None,
            job: Some(job),
            number,
        })
    }

    /// It is not to be delivered for a time after the delivery with this token, as was asked for at `asked`, and is known by
    /// now; a token of zero is none.
    pub(crate) fn rests(&self, job: u64, (token, asked): (i64, Time), time: Duration) {
        let now = self.runtime.now();
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.rests = Some((token, asked + time, (asked, now)));
        }
    }

    /// A handler of a worker answers that it is to be tried again after a time, which a worker that can keeps.
    pub(crate) fn puts_off(&self, job: u64, asked: (i64, Time), time: Duration) {
        if self.tells_all && !self.blocked {
            self.rests(job, asked, time);
        }
    }

    /// A delivery has failed that may be tried so often at most.
    pub(crate) fn failed_attempt(&self, job: u64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.failures += 1;
        }
    }

    /// A job is delivered for this attempt of so many.
    pub(crate) fn attempted(&self, job: u64, attempt: u32, most: u32) {
        let state = self.lock();
        let failures = state.jobs.get(&job).map_or(0, |known| known.failures);
        drop(state);
        // A standby that has taken over may not know of the last ones.
        let beyond = failures >= most && !self.replaced;
        if attempt == 0 || attempt > most || beyond {
            let what = format!("job {job}: attempt {attempt} of {most} after {failures} failures");
            let promise = "no job is tried more often than it may";
            self.runtime.violate(promise, what);
        }
    }

    /// A handler of a worker has done it. One that somebody else runs is not heard if the worker is dropped.
    pub(crate) fn handled(&self, job: u64, token: i64, spawned: bool) {
        if (self.tells_all || !spawned)
            && let Some(known) = self.lock().jobs.get_mut(&job)
        {
            known.handled = Some(token);
        }
    }

    /// Nobody extends the lease of this delivery.
    pub(crate) fn extends_by_hand(&self, job: u64, token: i64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.by_hand.push(token);
        }
    }

    /// Whoever had this delivery was told that it was lost. It may have been cancelled, or done before.
    pub(crate) fn lost_delivery(&self, job: u64, token: i64, error: &Error) {
        let state = self.lock();
        let Some(known) = state.jobs.get(&job) else {
            return;
        };
        let by_hand = known.by_hand.contains(&token);
        let ended = known.acked.is_some() || known.unsure.iter().any(|it| *it != token);
        drop(state);
        if !by_hand && !ended {
            self.lost("job", &format!("{job}: {error:?}"));
        }
    }

    /// The handler of a worker goes on although its job is lost, which it knew.
    pub(crate) fn not_dropped(&self, job: u64, token: i64) {
        if self.prompt {
            let what = format!("job {job} under {token}");
            let promise = "a handler whose job is lost is dropped";
            self.runtime.violate(promise, what);
        }
    }

    /// It was given back.
    pub(crate) fn released(&self, job: u64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.released += 1;
        }
    }

    /// A claim that began at `asked` has found so many jobs, of at most some, for which it waited some time at most.
    pub(crate) fn claim_ended(&self, asked: Time, (wait, most): (Duration, usize), found: usize) {
        if found > most {
            let what = format!("{found} of {most}");
            let promise = "a claim has no more than it asks for";
            self.runtime.violate(promise, what);
        }
        let took = self.runtime.now().saturating_sub(asked);
        if self.is_plain() && !wait.is_zero() && found == 0 {
            self.runtime
                .looks_at("a wait is not given up before its time");
            self.runtime.looks_at("a wait ends with its time");
        }
        let what = || format!("a claim found {found} jobs in {took:?} of {wait:?}");
        // Clocks of processes differ by a hundredth.
        if self.is_plain() && found == 0 && took < wait.mul_f64(0.985) {
            let promise = "a wait is not given up before its time";
            self.runtime.violate(promise, what());
        }
        if self.is_plain() && took > wait.mul_f64(1.015) + CLAIMED {
            self.runtime.violate("a wait ends with its time", what());
        }
    }

    /// Somebody is about to fail it for good.
    pub(crate) fn reject(&self, job: u64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.rejected = true;
        }
    }

    /// A job became a dead letter: it was rejected, or all of its attempts have begun, but as many as `unseen`.
    pub(crate) fn died(&self, job: u64, most: u32, unseen: u64) {
        self.answered("dead letter");
        let state = self.lock();
        let Some(known) = state.jobs.get(&job) else {
            return;
        };
        let had = known.deliveries.saturating_sub(known.released);
        let rejected = known.rejected;
        drop(state);
        if !rejected && had + unseen < u64::from(most) {
            let what = format!("job {job} was delivered {had} times of {most}");
            self.runtime.violate("no job dies that was not tried", what);
        }
    }

    /// Somebody is about to acknowledge a delivery.
    pub(crate) fn ack(&self, job: u64, token: i64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.unsure.push(token);
        }
    }

    /// Somebody is about to push a job again that may be there.
    pub(crate) fn may_be_pushed(&self, job: u64) {
        if let Some(known) = self.lock().jobs.get_mut(&job)
            && known.push != Push::Done
        {
            known.push = Push::Asked;
        }
    }

    /// What might have ended a job has not.
    pub(crate) fn not_acked(&self, job: u64, token: i64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.unsure.retain(|it| *it != token);
        }
    }

    /// A cancellation that was asked for at `asked` found no such job.
    pub(crate) fn not_cancelled(&self, job: u64, (token, asked): (i64, Time)) {
        self.not_acked(job, token);
        let now = self.runtime.now();
        let state = self.lock();
        let is_there = state.jobs.get(&job).is_some_and(|known| {
            let undone = known.acked.is_none() && known.unsure.is_empty();
            // A dead letter is not there.
            let lives = !state.trials.contains_key(&job);
            known.is_pushed(asked, &state) && undone && lives
        });
        let exact = !state.is_lost((asked, now));
        drop(state);
        if exact {
            self.runtime.looks_at("what is there can be cancelled");
        }
        if is_there && exact {
            let what = format!("job {job}, asked at {asked:?}");
            self.runtime.violate("what is there can be cancelled", what);
        }
    }

    /// Whoever has the job now, nobody knows what becomes of it.
    pub(crate) fn may_end(&self, job: u64) {
        self.ack(job, i64::MAX);
    }

    /// A delivery that was acknowledged at `asked` is done, or it is not known whether.
    pub(crate) fn acked(&self, job: u64, (token, asked): (i64, Time), outcome: Result<(), &Error>) {
        let now = self.runtime.now();
        let mut state = self.lock();
        let Some(known) = state.jobs.get_mut(&job) else {
            return;
        };
        let mut twice = None;
        match outcome {
            Ok(()) => {
                twice = known.acked.replace((asked, now));
            }
            Err(error) if error.kind() == ErrorKind::Indeterminate => known.unsure.push(token),
            Err(_) => {}
        }
        if let Some(at) = known.unsure.iter().position(|it| *it == token) {
            known.unsure.remove(at);
        }
        let is_late = known.latest.0 > token && known.latest.1 < asked;
        let stale = outcome.is_ok() && is_late;
        // Either may have been lost: an answer of the former primary may come late.
        let twice =
            twice.is_some_and(|first| !state.is_lost(first) && !state.is_lost((asked, now)));
        drop(state);
        if outcome.is_ok() {
            self.answered("ack");
        }
        let promise = "a delivery that is not the latest changes nothing";
        if is_late {
            self.runtime.looks_at(promise);
        }
        if stale {
            let what = format!("job {job}: {token} was acknowledged after a later delivery");
            self.runtime.violate(promise, what);
        }
        if twice {
            self.runtime.violate(
                "a job is done once",
                format!("job {job} was acknowledged twice"),
            );
        }
    }

    /// In the end: jobs that were pushed and that nobody has done. `find` tells where the server has one.
    pub(crate) fn check_jobs(&self, find: impl Fn(u64) -> String) {
        let state = self.lock();
        let is_undone = |job: &Job| {
            let pushed = job.push == Push::Done && !state.is_lost(job.pushed);
            pushed && job.acked.is_none() && job.unsure.is_empty()
        };
        let undone = state.jobs.iter().find(|(_, job)| is_undone(job));
        let undone = undone.map(|(job, known)| (*job, known.deliveries));
        drop(state);
        if let Some((job, deliveries)) = undone {
            let place = find(job);
            let what = format!(
                "job {job} was pushed, delivered {deliveries} times, and not done: {place}"
            );
            self.runtime.violate("no job is lost", what);
        }
    }
}
