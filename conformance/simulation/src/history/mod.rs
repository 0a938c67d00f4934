//! What the tasks of all processes saw, checked while they see it.

mod attempts;
mod closings;
mod durations;
mod expiries;
mod jobs;
mod levels;
mod numbers;
mod pauses;
mod priorities;
mod readers;
mod refunds;
mod results;
mod retries;
mod runs;
mod stamps;
mod tallies;
mod trials;
mod turns;
mod uses;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use lockapi::limit::Quota;
use lockapi::{Error, ErrorKind};
use rangemap::RangeInclusiveSet;

use crate::plan::{Fault, Plan};
use crate::runtime::{ProgramId, Runtime, Time};
pub(crate) use attempts::Attempt;
use attempts::Ended;
pub(crate) use closings::Holding;
pub(crate) use jobs::Group;
use jobs::Job;
pub(crate) use levels::{Level, Sent};
pub(crate) use numbers::Run;
use pauses::Pauses;
use priorities::Prioritized;
use readers::Admissions;
use refunds::Intervals;
use results::{Drains, Results};
pub(crate) use runs::Delivered;
use runs::Runs;
pub(crate) use tallies::Tally;
use trials::Trial;
pub(crate) use trials::Trying;
use turns::Turns;
use uses::Uses;
use waits::Waits;

/// After so long whoever has lost a session lock knows, if it runs.
const KNOWN: Duration = Duration::from_secs(30);

/// Whether it belongs to a session, and is lost with that.
fn is_session(kind: &str) -> bool {
    matches!(kind, "mutex" | "rw_lock" | "relay")
}

/// The tasks that wait for locks of sessions other than those that are shared, and for how many.
const LOCKS: [(&str, u32); 2] = [("mutex", 3), ("relay", 6)];

/// How many of them a process may wait for while it waits for another; nobody knows where sets are locked, which have some while they
/// wait for the rest, nor with owners, of whose turns some are longer.
fn locks_of(plan: &Plan) -> Option<u32> {
    if ["mutex-set", "lock-owner"]
        .iter()
        .any(|kind| plan.has_kind(kind))
    {
        return None;
    }
    let others = LOCKS.iter().filter(|(kind, _)| plan.has_kind(kind));
    let shared = match plan.has_kind("rw-lock") {
        true if plan.by_readers => 1,
        true => 3,
        false => 0,
    };
    Some((others.map(|(_, keys)| keys).sum::<u32>() + shared).saturating_sub(1))
}

/// How a guard says whether it is still held.
pub(crate) type Held = Arc<dyn Fn() -> bool + Send + Sync>;

/// Something that somebody holds.
struct Hold {
    program: ProgramId,
    token: i64,
    held: Held,
    /// How much of its place it has.
    takes: usize,
    /// When it was asked for, and known.
    given: (Time, Time),
}

impl Hold {
    /// Whether its process runs and believes to hold it.
    fn is_held(&self, runtime: &Runtime) -> bool {
        runtime.is_running(self.program) && (self.held)()
    }
}

/// What is held: how much of it there is, and how much of that one holder has.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) most: usize,
    pub(crate) takes: usize,
}

impl Part {
    /// One holder has all.
    pub(crate) const WHOLE: Self = Self { most: 1, takes: 1 };
    /// A writer has all, and each reader one of very many, and no token.
    pub(crate) const WRITER: Self = Self {
        most: 1 << 20,
        takes: 1 << 20,
    };
    pub(crate) const READER: Self = Self {
        takes: 1,
        ..Self::WRITER
    };

    /// Whether its holder is alone.
    fn is_whole(self) -> bool {
        self.takes == self.most
    }
}

#[derive(Default)]
struct Place {
    /// How much of it there is.
    most: usize,
    open: BTreeMap<u64, Hold>,
    /// Tokens in the order in which their holders learned of them, each with the highest up to there.
    tokens: Vec<(Time, i64)>,
    seen: BTreeSet<i64>,
}

#[derive(Default)]
struct State {
    places: BTreeMap<(&'static str, String), Place>,
    jobs: BTreeMap<u64, Job>,
    /// When the groups of a queue were given their order.
    ordered: BTreeMap<&'static str, (Time, Time)>,
    /// When queues were given their limits.
    limits: BTreeMap<String, Vec<(Time, Time)>>,
    /// The jobs of each group of a queue.
    groups: BTreeMap<(&'static str, &'static str), Vec<u64>>,
    /// The runs of each recurring task.
    runs: BTreeMap<&'static str, Runs>,
    /// The results of jobs that have some.
    results: BTreeMap<u64, Results>,
    /// Of their queue.
    drains: Drains,
    trials: BTreeMap<u64, Trial>,
    /// Nanoseconds at which a permit was taken, and of which quota.
    permits: BTreeMap<String, Vec<(i64, Quota)>>,
    ids: BTreeMap<&'static str, RangeInclusiveSet<i64>>,
    /// Of each worker number the ids in the order in which they were known, with the highest up to there.
    ids_of_workers: BTreeMap<u64, Vec<(Time, i64)>>,
    /// When the standby of a fail-over received the last, and when it took over.
    fail_overs: Vec<(Time, Time)>,
    turns: Turns,
    waits: Waits,
    admissions: Admissions,
    /// When somebody fired tasks.
    scheduled: Vec<(SystemTime, SystemTime)>,
    uses: BTreeMap<(&'static str, String), Uses>,
    prioritized: Prioritized,
    /// By queue.
    pauses: BTreeMap<&'static str, Pauses>,
    /// Calls of limiters by key.
    calls: BTreeMap<String, Vec<numbers::Asked>>,
    intervals: Intervals,
    /// Deliveries whose handlers have ended.
    ended: Ended,
    /// When the faults have stopped.
    calm: Option<Time>,
    next: u64,
    crowds: u32,
    answers: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
}

impl State {
    /// Whether what was sent and answered then may have been lost.
    fn is_lost(&self, (sent, answered): (Time, Time)) -> bool {
        let mut all = self.fail_overs.iter();
        all.any(|(cut, over)| sent <= *over && answered >= *cut)
    }

    /// Whether the server may have forgotten that somebody has a job, or for how long.
    fn may_forget(&self, runtime: &Runtime, hold: &Hold) -> bool {
        self.is_lost((hold.given.0, runtime.now()))
    }
}

/// A history; clones are one and the same, but for the process that they belong to.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is of its own")]
pub(crate) struct History {
    state: Arc<Mutex<State>>,
    runtime: Runtime,
    /// Whether nothing can fail, so that nothing may.
    flawless: bool,
    /// And whether whoever asks waits for the answer.
    tells_all: bool,
    /// Whether nothing can fail, and whoever is answered goes on at once, unless he has left.
    answers: bool,
    /// Whether processes may be without a thread.
    blocked: bool,
    /// And whether nobody is held up.
    undisturbed: bool,
    /// And whoever is answered goes on at once.
    in_order: bool,
    /// Whether notifications may be lost.
    deaf: bool,
    /// How many locks a process may wait for at once beyond the first.
    locks_waited_for: Option<u32>,
    /// Whether nothing holds anybody up, and one lock is all that those who share locks wait for.
    one_lock: bool,
    /// Whether timers of processes run in time.
    prompt: bool,
    /// Whether what is held is checked in by transactions.
    checks_in: bool,
    /// Whether no session can end.
    sessions_last: bool,
    /// Whether what is renewed cannot be lost.
    leases_last: bool,
    /// Whether the server's clock is set, so that leases may end early.
    stepped: bool,
    /// Whether another server may take over.
    replaced: bool,
    /// Whether its process closes, or has closed.
    closing: Arc<AtomicBool>,
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
    pub(crate) fn new(runtime: &Runtime, plan: &Plan) -> Self {
        let undisturbed = plan.has_only(&[]) && !plan.has(Fault::Block) && !plan.polls;
        Self {
            state: Arc::default(),
            runtime: runtime.clone(),
            flawless: plan.has_only(&[]),
            tells_all: plan.has_only(&[])
                && ![Fault::Leave, Fault::Block, Fault::Waker, Fault::Close]
                    .iter()
                    .any(|fault| plan.has(*fault)),
            answers: plan.has_only(&[])
                && ![Fault::Block, Fault::Waker, Fault::Close]
                    .iter()
                    .any(|fault| plan.has(*fault)),
            undisturbed,
            in_order: undisturbed && !plan.has(Fault::Waker),
            one_lock: undisturbed
                && !plan.has(Fault::Waker)
                && plan.by_readers
                && locks_of(plan) == Some(0),
            locks_waited_for: locks_of(plan),
            checks_in: plan.has_kind("transaction"),
            sessions_last: plan.has_only(&[Fault::Unreachable]),
            leases_last: plan.has_only(&[Fault::Unreachable, Fault::Hush])
                && !plan.has(Fault::Block),
            deaf: plan.has(Fault::Deaf),
            blocked: plan.has(Fault::Block),
            prompt: !plan.has(Fault::Block) && !plan.has(Fault::Stop),
            stepped: plan.has(Fault::Step),
            replaced: plan.has(Fault::FailOver) || plan.has(Fault::Promote),
            closing: Arc::default(),
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

    /// How many ids were drawn.
    pub(crate) fn ids(&self) -> u64 {
        let state = self.lock();
        let runs = state.ids.values().flat_map(RangeInclusiveSet::iter);
        runs.map(|run| run.end().abs_diff(*run.start()) + 1).sum()
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
        // A process without a thread may read the grant of a lease when that has ended, each time, and may take longer
        // than a call may take.
        let acquires = ["acquire", "campaign", "lock", "connect"];
        let acquires = acquires.iter().any(|it| error.operation().contains(it));
        // A transaction of a program that has left stays open for as long as the server does not know.
        let is_locked = error.sqlstate() == Some("55P03")
            || error.to_string().contains("locked by an open transaction");
        let is_locked = self.checks_in && is_locked;
        let late = match error.kind() {
            _ if is_locked => true,
            ErrorKind::Unavailable => self.blocked && acquires,
            ErrorKind::TimedOut | ErrorKind::Indeterminate => self.blocked,
            _ => false,
        };
        let late = late || self.is_closing();
        // Where all that fails is to connect, nothing was sent.
        let unsure = error.kind() == ErrorKind::Indeterminate && self.sessions_last && !late;
        if impossible || unsure {
            self.runtime
                .violate("errors say what happened", format!("{error:?}"));
        } else if self.flawless && !late {
            self.runtime
                .violate("nothing fails without a cause", format!("{error:?}"));
        }
    }

    /// Something that is kept was lost: a lock of a session, or a lease that is renewed.
    pub(crate) fn lost(&self, kind: &'static str, key: &str) {
        let lasts = if is_session(kind) {
            self.sessions_last
        } else {
            self.leases_last
        };
        if lasts && !self.is_closing() {
            let what = format!("{kind} {key}");
            self.runtime
                .violate("nothing is lost without a cause", what);
        }
    }

    /// A lock of a session was not granted. An attempt that failed holds nothing, and in a process that `had` one, whose
    /// session is there, none fails.
    pub(crate) fn not_locked(&self, error: &Error, had: bool) {
        self.failed(error);
        if error.kind() == ErrorKind::Indeterminate {
            self.runtime
                .violate("errors say what happened", format!("{error:?}"));
        }
        let ends = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Deadlock);
        if self.sessions_last && had && !ends && !self.is_closing() {
            self.runtime
                .violate("nothing fails without a cause", format!("{error:?}"));
        }
    }

    /// The faults stop.
    pub(crate) fn calm(&self) {
        let now = self.runtime.now();
        self.lock().calm = Some(now);
    }

    /// For how long there have been no faults.
    pub(crate) fn calm_for(&self) -> Duration {
        let now = self.runtime.now();
        let since = self.lock().calm;
        since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Whether what is renewed cannot be lost.
    pub(crate) fn leases_last(&self) -> bool {
        self.leases_last
    }

    /// Whether whoever asks waits for the answer, nothing fails and nobody is held up.
    pub(crate) fn is_plain(&self) -> bool {
        self.undisturbed && self.tells_all
    }

    /// Whether nothing can fail, so that all answers have to agree.
    pub(crate) fn is_flawless(&self) -> bool {
        self.flawless && !self.is_closing()
    }

    /// A part of a lock, a lease or a semaphore was granted; `asked` is when the call began. A token of zero is none.
    pub(crate) fn granted(
        &self,
        kind: &'static str,
        key: &str,
        part: Part,
        program: ProgramId,
        (token, asked): (i64, Time),
        held: Held,
    ) -> Entry {
        self.answered(kind);
        let now = self.runtime.now();
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        let name = (kind, key.to_owned());
        let admitted = self.admitted(&mut state, (kind, key), part, program);
        state.waits.locks.remove(&name);
        let place = state.places.entry(name.clone()).or_default();
        place.most = part.most;
        if token != 0 && !place.seen.insert(token) {
            self.runtime
                .violate("tokens are unique", format!("{kind} {key}: {token} twice"));
        }
        let known = place.tokens.partition_point(|(at, _)| *at < asked);
        let before = known.checked_sub(1).map(|at| place.tokens[at].1);
        let before = before.filter(|before| token != 0 && *before >= token);
        let highest = place
            .tokens
            .last()
            .map_or(token, |(_, last)| token.max(*last));
        place.tokens.push((now, highest));
        let others = place.open.iter();
        // What came too late is known to be lost.
        let late = !held();
        let others: Vec<_> = others
            .filter(|(_, hold)| !late && hold.is_held(&self.runtime))
            .map(|(number, hold)| (*number, hold.token, hold.takes))
            .collect();
        let room = part.most - part.takes;
        // Those of processes of which no session has ended since they were granted, nor so shortly before that the process
        // may have shared it or handed it over without knowing.
        let since = |asked: Time| asked.saturating_sub(KNOWN);
        let lasting = place.open.values().filter(|hold| {
            let has_lost = self
                .runtime
                .has_lost_session(hold.program, since(hold.given.0));
            !has_lost && hold.is_held(&self.runtime)
        });
        let lasting: usize = lasting.map(|hold| hold.takes).sum();
        place.open.insert(
            number,
            Hold {
                program,
                token,
                held,
                takes: part.takes,
                given: (asked, now),
            },
        );
        drop(state);
        if let Some(what) = admitted {
            let promise = "who shares lets those in who wait elsewhere";
            self.runtime.violate(promise, what);
        }
        if let Some(before) = before {
            let what = format!(
                "{kind} {key}: {token} was granted to a call that began after {before} was known"
            );
            // A session that has ended may have handed it over, before its process knew.
            let since = asked.saturating_sub(KNOWN);
            if !is_session(kind) || !self.runtime.has_lost_session(program, since) {
                self.runtime.violate("tokens grow", what);
            } else {
                self.must_end("tokens grow", &name, (vec![number], None), what);
            }
        }
        if others.iter().map(|(_, _, takes)| takes).sum::<usize>() > room {
            let tokens: Vec<_> = others.iter().map(|(_, token, _)| *token).collect();
            let what = format!("{kind} {key}: {token} was granted while {tokens:?} were held");
            let lasts = !self.runtime.has_lost_session(program, since(asked));
            if is_session(kind) && lasts && lasting > room {
                self.runtime.violate("mutual exclusion", what);
            } else {
                // Who shares with it may go on.
                let others = others.into_iter();
                let others = others.filter(|(_, _, takes)| takes + part.takes > part.most);
                let others = others.map(|(number, ..)| number).collect();
                // Where its own session may have ended, either has to be told.
                let beside = (!lasts).then_some(number);
                self.must_end("mutual exclusion", &name, (others, beside), what);
            }
        }
        Entry {
            history: self.clone(),
            place: Some(name),
            job: None,
            number,
        }
    }

    /// These were held when they no longer should have been, as long as one `beside` them is. A lease is known to have
    /// ended before another is granted; whoever has lost a session is told soon.
    fn must_end(
        &self,
        promise: &'static str,
        name: &(&'static str, String),
        (those, beside): (Vec<u64>, Option<u64>),
        what: String,
    ) {
        let session = is_session(name.0);
        if self.flawless || (!session && !self.stepped) {
            return self.runtime.violate(promise, what);
        }
        if !session {
            return;
        }
        let (history, name) = (self.clone(), name.clone());
        self.runtime.after(KNOWN, move |runtime| {
            let state = history.lock();
            let place = state.places.get(&name);
            let is_held = |number| place.and_then(|it| it.open.get(&number));
            let is_held = |number| is_held(number).is_some_and(|hold| hold.is_held(runtime));
            if beside.is_some_and(|number| !is_held(number)) {
                return;
            }
            let still = those.iter().filter_map(|number| place?.open.get(number));
            // One that was stopped in between is told once it runs again.
            let still: Vec<_> = still
                .filter(|hold| hold.is_held(runtime))
                .map(|hold| hold.token)
                .collect();
            drop(state);
            if !still.is_empty() {
                runtime.violate(promise, format!("{what}; {still:?} were not told"));
            }
        });
    }

    /// A process that was stopped goes on: what it holds nobody else has been given meanwhile.
    pub(crate) fn goes_on(&self, program: ProgramId) {
        if self.stepped {
            return;
        }
        let state = self.lock();
        let beyond = |open: &BTreeMap<u64, Hold>, most: usize, forgets: bool| {
            let held = open.values().filter(|hold| hold.is_held(&self.runtime));
            // What a server does not know of it may have given to another.
            let held = held.filter(|hold| !forgets || !state.may_forget(&self.runtime, hold));
            let held: Vec<_> = held.collect();
            let is_of = held.iter().any(|hold| hold.program == program);
            let takes: usize = held.iter().map(|hold| hold.takes).sum();
            let tokens = held.iter().map(|hold| (hold.program, hold.token));
            (is_of && takes > most).then(|| tokens.collect::<Vec<_>>())
        };
        let places = state.places.iter();
        let places = places.filter(|((kind, _), _)| !is_session(kind));
        let mut twice = places
            .filter_map(|(name, place)| Some((name, beyond(&place.open, place.most, false)?)));
        let twice = twice
            .next()
            .map(|(name, held)| format!("{name:?}: {held:?} go on"));
        let jobs = state.jobs.iter();
        let mut jobs = jobs.filter_map(|(job, known)| Some((job, beyond(&known.open, 1, true)?)));
        let job = jobs
            .next()
            .map(|(job, held)| format!("job {job}: {held:?} go on"));
        drop(state);
        if let Some(what) = twice {
            self.runtime.violate("mutual exclusion", what);
        }
        if let Some(what) = job {
            self.runtime.violate("a job has one worker", what);
        }
    }

    /// A standby took over that had received nothing since `cut`.
    pub(crate) fn failed_over(&self, cut: Time, over: Time) {
        self.lock().fail_overs.push((cut, over));
    }
}
