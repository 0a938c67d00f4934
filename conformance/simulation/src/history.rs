//! What the tasks of all processes saw, checked while they see it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockapi::limit::Quota;
use lockapi::{Error, ErrorKind};

use crate::plan::{Fault, Plan};
use crate::world::{ProgramId, Time, World};

/// After so long whoever has lost a session lock knows, if it runs.
const KNOWN: Duration = Duration::from_secs(30);

/// How a guard says whether it is still held.
pub(crate) type Held = Arc<dyn Fn() -> bool + Send + Sync>;

/// Something that somebody holds.
struct Hold {
    program: ProgramId,
    token: i64,
    held: Held,
}

#[derive(Default)]
struct Place {
    open: BTreeMap<u64, Hold>,
    /// Tokens in the order in which their holders learned of them, each with the highest up to there.
    tokens: Vec<(Time, i64)>,
    seen: BTreeSet<i64>,
}

/// What is known of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Push {
    Asked,
    Done,
    /// With this error.
    Refused(String),
}

struct Job {
    push: Push,
    deliveries: u64,
    acked: Option<Time>,
    /// Acknowledgements whose outcome is not known.
    unsure: u32,
    /// The highest token of a delivery, and when that became known.
    latest: (i64, Time),
    open: BTreeMap<u64, Hold>,
}

#[derive(Default)]
struct State {
    places: HashMap<(&'static str, String), Place>,
    jobs: BTreeMap<u64, Job>,
    /// Nanoseconds at which a permit was taken.
    permits: HashMap<String, (Quota, Vec<i64>)>,
    ids: HashMap<&'static str, BTreeSet<i64>>,
    next: u64,
    answers: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
}

/// A history; clones are one and the same.
#[derive(Clone)]
pub(crate) struct History {
    state: Arc<Mutex<State>>,
    world: World,
    /// Whether nothing can fail, so that nothing may.
    flawless: bool,
    /// Whether the server's clock is set, so that leases may end early.
    stepped: bool,
}

/// An entry that ends when it is dropped.
pub(crate) struct Entry {
    history: History,
    place: Option<(&'static str, String)>,
    job: Option<u64>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.history.lock();
        if let Some(place) = self.place.take()
            && let Some(place) = state.places.get_mut(&place)
        {
            place.open.remove(&self.number);
        }
        if let Some(job) = self.job.and_then(|job| state.jobs.get_mut(&job)) {
            job.open.remove(&self.number);
        }
    }
}

impl History {
    pub(crate) fn new(world: &World, plan: &Plan) -> Self {
        Self {
            state: Arc::default(),
            world: world.clone(),
            flawless: plan
                .faults()
                .all(|fault| matches!(fault, Fault::Drift | Fault::Deaf | Fault::Leave)),
            stepped: plan.has(Fault::Step),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers by kind, and errors by kind.
    pub(crate) fn figures(&self) -> (BTreeMap<&'static str, u64>, BTreeMap<String, u64>) {
        let state = self.lock();
        (state.answers.clone(), state.errors.clone())
    }

    /// Something was answered.
    pub(crate) fn answered(&self, what: &'static str) {
        *self.lock().answers.entry(what).or_default() += 1;
    }

    /// Something failed.
    pub(crate) fn failed(&self, error: &Error) {
        let kind = format!("{:?} {}", error.kind(), error.operation());
        *self.lock().errors.entry(kind).or_default() += 1;
        // What the simulation refuses has a code.
        let impossible = matches!(
            error.kind(),
            ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::Deadlock | ErrorKind::Corrupt
        ) && error.sqlstate().is_none();
        if impossible {
            self.world
                .violate("errors say what happened", format!("{error:?}"));
        } else if self.flawless && error.kind() != ErrorKind::TimedOut {
            self.world
                .violate("nothing fails without a cause", format!("{error:?}"));
        }
    }

    /// A lock, a lease or a permit of a semaphore was granted, which at most `most` may hold; `asked` is
    /// when the call began.
    pub(crate) fn granted(
        &self,
        kind: &'static str,
        key: &str,
        most: usize,
        program: ProgramId,
        (token, asked): (i64, Time),
        held: Held,
    ) -> Entry {
        self.answered(kind);
        let now = self.world.now();
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        let name = (kind, key.to_owned());
        let place = state.places.entry(name.clone()).or_default();
        if !place.seen.insert(token) && most == 1 {
            self.world
                .violate("tokens are unique", format!("{kind} {key}: {token} twice"));
        }
        let known = place.tokens.partition_point(|(at, _)| *at < asked);
        let before = known.checked_sub(1).map(|at| place.tokens[at].1);
        let before = before.filter(|before| *before >= token);
        let highest = place
            .tokens
            .last()
            .map_or(token, |(_, last)| token.max(*last));
        place.tokens.push((now, highest));
        let others = place.open.iter();
        let running = others.filter(|(_, hold)| self.world.is_running(hold.program));
        // What came too late is known to be lost.
        let late = !held();
        let others: Vec<_> = running
            .filter(|(_, hold)| !late && (hold.held)())
            .map(|(number, hold)| (*number, hold.token))
            .collect();
        place.open.insert(
            number,
            Hold {
                program,
                token,
                held,
            },
        );
        drop(state);
        if let Some(before) = before {
            let what = format!(
                "{kind} {key}: {token} was granted to a call that began after {before} was known"
            );
            // It may have been handed over by a session that has ended.
            self.must_end("tokens grow", &name, vec![number], what);
        }
        if others.len() >= most {
            let tokens: Vec<_> = others.iter().map(|(_, token)| *token).collect();
            let what = format!("{kind} {key}: {token} was granted while {tokens:?} were held");
            let others = others.into_iter().map(|(number, _)| number).collect();
            self.must_end("mutual exclusion", &name, others, what);
        }
        Entry {
            history: self.clone(),
            place: Some(name),
            job: None,
            number,
        }
    }

    /// These were held when they no longer should have been. A lease is known to have ended before another is
    /// granted; whoever has lost a session is told soon.
    fn must_end(
        &self,
        promise: &'static str,
        name: &(&'static str, String),
        those: Vec<u64>,
        what: String,
    ) {
        let session = matches!(name.0, "mutex" | "rw_lock");
        if self.flawless || (!session && !self.stepped) {
            return self.world.violate(promise, what);
        }
        if !session {
            return;
        }
        let (history, name) = (self.clone(), name.clone());
        self.world.after(KNOWN, move |world| {
            let state = history.lock();
            let place = state.places.get(&name);
            let still = those.iter().filter_map(|number| place?.open.get(number));
            // One that was stopped in between is told once it runs again.
            let still: Vec<_> = still
                .filter(|hold| world.is_running(hold.program) && (hold.held)())
                .map(|hold| hold.token)
                .collect();
            drop(state);
            if !still.is_empty() {
                world.violate(promise, format!("{what}; {still:?} were not told"));
            }
        });
    }

    // Jobs.

    /// Somebody is about to push; answers what the payload has to be.
    pub(crate) fn push(&self) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        let job = Job {
            push: Push::Asked,
            deliveries: 0,
            acked: None,
            unsure: 0,
            latest: (0, Time::ZERO),
            open: BTreeMap::new(),
        };
        state.jobs.insert(number, job);
        number
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
        let delivered = known.deliveries > 0;
        drop(state);
        match push {
            Push::Done => self.answered("push"),
            Push::Refused(error) if delivered => self.world.violate(
                "what did not happen has no effect",
                format!("job {job} was delivered, and its push failed: {error}"),
            ),
            _ => {}
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
            self.world
                .violate("what is delivered was pushed", format!("job {job}"));
            return None;
        };
        known.deliveries += 1;
        if token > known.latest.0 {
            known.latest = (token, self.world.now());
        }
        let refused = match &known.push {
            Push::Refused(error) => Some(error.clone()),
            _ => None,
        };
        let done = known.acked.filter(|acked| *acked < asked);
        let running = known
            .open
            .values()
            .filter(|hold| self.world.is_running(hold.program));
        let late = !held();
        let others: Vec<_> = running
            .filter(|hold| !late && (hold.held)())
            .map(|hold| hold.token)
            .collect();
        known.open.insert(
            number,
            Hold {
                program,
                token,
                held,
            },
        );
        drop(state);
        if let Some(error) = refused {
            self.world.violate(
                "what did not happen has no effect",
                format!("job {job} was delivered, and its push failed: {error}"),
            );
        }
        if let Some(acked) = done {
            self.world.violate(
                "what is done is not delivered",
                format!("job {job} was acknowledged at {acked:?}, and claimed at {asked:?}"),
            );
        }
        if !others.is_empty() && !self.stepped {
            self.world.violate(
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

    /// Somebody is about to acknowledge a delivery.
    pub(crate) fn ack(&self, job: u64) {
        if let Some(known) = self.lock().jobs.get_mut(&job) {
            known.unsure += 1;
        }
    }

    /// A delivery that was acknowledged at `asked` is done, or it is not known whether.
    pub(crate) fn acked(&self, job: u64, (token, asked): (i64, Time), outcome: Result<(), &Error>) {
        let now = self.world.now();
        let mut state = self.lock();
        let Some(known) = state.jobs.get_mut(&job) else {
            return;
        };
        let mut twice = false;
        match outcome {
            Ok(()) => {
                twice = known.acked.is_some();
                known.acked.get_or_insert(now);
            }
            Err(error) if error.kind() == ErrorKind::Indeterminate => known.unsure += 1,
            Err(_) => {}
        }
        known.unsure -= 1;
        let stale = outcome.is_ok() && known.latest.0 > token && known.latest.1 < asked;
        drop(state);
        if outcome.is_ok() {
            self.answered("ack");
        }
        if stale {
            let what = format!("job {job}: {token} was acknowledged after a later delivery");
            self.world
                .violate("a delivery that is not the latest changes nothing", what);
        }
        if twice {
            self.world.violate(
                "a job is done once",
                format!("job {job} was acknowledged twice"),
            );
        }
    }

    /// In the end: jobs that were pushed and that nobody has done. `find` tells where the server has one.
    pub(crate) fn check_jobs(&self, find: impl Fn(u64) -> String) {
        let state = self.lock();
        let is_undone =
            |job: &Job| job.push == Push::Done && job.acked.is_none() && job.unsure == 0;
        let undone = state.jobs.iter().find(|(_, job)| is_undone(job));
        let undone = undone.map(|(job, known)| (*job, known.deliveries));
        drop(state);
        if let Some((job, deliveries)) = undone {
            let place = find(job);
            let what = format!(
                "job {job} was pushed, delivered {deliveries} times, and not done: {place}"
            );
            self.world.violate("no job is lost", what);
        }
    }

    // Limits.

    /// A permit was taken at a time of the server's clock, in nanoseconds.
    pub(crate) fn permitted(&self, key: &str, quota: Quota, at: i64) {
        self.answered("permit");
        let mut state = self.lock();
        let permits = state
            .permits
            .entry(key.to_owned())
            .or_insert((quota, Vec::new()));
        permits.1.push(at);
    }

    /// In the end: in no time were there more permits than the quota allows.
    pub(crate) fn check_limits(&self, interval: impl Fn(&Quota) -> i64) {
        if self.stepped {
            return;
        }
        let mut state = self.lock();
        for (key, (quota, times)) in &mut state.permits {
            times.sort_unstable();
            let interval = interval(quota);
            let depth = interval * i64::try_from(quota.limit()).unwrap_or(i64::MAX);
            let mut arrival = i64::MIN;
            for at in &*times {
                arrival = arrival.max(*at) + interval;
                // The times are read in microseconds.
                if arrival - at > depth + 1_000 {
                    let what = format!("{key}: more than {quota:?} at {at}");
                    self.world.violate("limits hold", what);
                    break;
                }
            }
        }
    }

    // Ids.

    pub(crate) fn drew(&self, name: &'static str, ids: impl IntoIterator<Item = i64>) {
        self.answered("id");
        let mut state = self.lock();
        let seen = state.ids.entry(name).or_default();
        for id in ids {
            if !seen.insert(id) {
                self.world
                    .violate("ids are unique", format!("{name}: {id} twice"));
            }
        }
    }
}
