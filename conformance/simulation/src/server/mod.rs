//! The server, and the network between it and the processes.

mod admissions;
mod cancels;
mod row_locks;
mod sessions;
mod slow;
mod transactions;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockapi::Failure;
use lockapi::driver::{Rows, Script};
use lockapi::suite::simulation::{Request, Server as Model};
use tokio::sync::{mpsc, oneshot};

use crate::judges::{Judges, Turn};
use crate::plan::{Fault, Plan};
use crate::runtime::{ProgramId, Runtime, Time};

/// When the clock of the server began: microseconds since 1970.
const EPOCH: i64 = 1_767_225_600_000_000;

/// The clock of limits is ahead of that of the server by so many microseconds in the tables.
const LIMITS_AHEAD: i64 = 24 * 3600 * 1_000_000;

/// What a client is answered; nothing when its connection has ended.
type Answer = oneshot::Sender<Result<Rows, Failure>>;

/// How often something happened.
type Counts = BTreeMap<&'static str, u64>;

/// A connection falls silent no sooner after another.
const HUSH: Duration = Duration::from_secs(10);

/// What the tables have of jobs.
pub(crate) struct Seen {
    pub(crate) jobs: Vec<SeenJob>,
}

/// A job that has not ended.
pub(crate) struct SeenJob {
    pub(crate) id: i64,
    pub(crate) queue: String,
    /// The token of its delivery, and the end of its lease, if that runs.
    pub(crate) delivery: Option<(i64, i64)>,
    /// For how long it has been due, if nobody has ever had it, and no transaction has locked it.
    pub(crate) new_for: Option<Duration>,
    /// Whether a transaction has locked it, also one whose client has left.
    pub(crate) is_locked: bool,
}

/// What a client sends.
pub(crate) enum Message {
    Call(Box<Statement>),
    Script(Script),
    /// A transaction begins.
    Begin,
    /// It is committed, or rolled back.
    End {
        commits: bool,
    },
}

/// A statement, and what the server has to know of it.
pub(crate) struct Statement {
    pub(crate) request: Arc<Request>,
    pub(crate) turn: Option<Turn>,
    pub(crate) needs: Needs,
    /// The holder whom it checks in.
    pub(crate) checks: Option<CheckIn>,
    /// What it sets those of its session to: how long statements wait for a row, and how long they take.
    pub(crate) timeouts: Option<(Duration, Duration)>,
    /// How long it waits for a lock.
    pub(crate) waits_for: Option<Duration>,
    /// The processes whose statements it cancels.
    pub(crate) cancels: Vec<i64>,
}

/// The rows for which a statement waits while somebody has locked them.
pub(crate) enum Needs {
    Nothing,
    /// Those of jobs, if these are their latest deliveries: by number, and token.
    Deliveries(Vec<i64>, Vec<i64>),
    /// Those of limits.
    Keys(Vec<String>),
    /// Those of leases.
    Leases(Vec<RowKey>),
}

/// Namespace, key and slot of a lease.
pub(crate) type RowKey = (String, String, i64);

/// A holder that is checked in: of what, and its token.
#[derive(Clone, Debug)]
pub(crate) struct CheckIn {
    pub(crate) of: (&'static str, String),
    pub(crate) token: i64,
}

/// A statement that a session runs.
struct Running {
    statement: Box<Statement>,
    answer: Answer,
    number: u64,
    /// It has not begun it yet.
    slow: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is of its own")]
struct Session {
    program: ProgramId,
    /// No message comes before one that was sent earlier.
    next_arrival: Time,
    next_answer: Time,
    running: Option<Running>,
    /// Its client has left, which it does not know yet.
    left: bool,
    /// Its client has left; it ends with the statement that it runs.
    abandoned: bool,
    notifications: Option<mpsc::UnboundedSender<String>>,
    /// What is sent to it is not delivered any more.
    silent: bool,
    /// How long its statements wait for a row; zero is without an end.
    lock_timeout: Duration,
    /// How long they take at most; zero is without an end.
    statement_timeout: Duration,
    /// Its transaction has failed, and is to be rolled back.
    failed: bool,
    /// Who was checked in in its transaction.
    checked: Vec<CheckIn>,
}

#[derive(Default)]
struct State {
    model: Model,
    judges: Judges,
    /// Those of a standby that receives what was committed.
    following: Option<Judges>,
    sessions: BTreeMap<u64, Session>,
    next: u64,
    /// How far the clock was set ahead, in microseconds.
    set_ahead: i64,
    unreachable: bool,
    deaf: bool,
    locked: row_locks::Locked,
    /// Processes whose messages wait.
    cut_off: BTreeMap<ProgramId, Time>,
    /// Processes that get no answer until then, while the server gets what they send.
    congested: BTreeMap<ProgramId, Time>,
    calls: u64,
    /// A process that is to be blocked when it sends something, and for how long.
    block_next: Option<(ProgramId, Duration)>,
    /// When a connection fell silent last.
    hushed: Option<Time>,
    /// By queue, which session admits its jobs, and until when.
    admitting: BTreeMap<(String, String), (u64, Time)>,
    /// Faults that had an effect.
    struck: BTreeMap<&'static str, u64>,
}

/// The server; clones are one and the same.
#[derive(Clone)]
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
    plan: Arc<Plan>,
    runtime: Runtime,
    /// Whether things fail.
    chaos: Arc<std::sync::atomic::AtomicBool>,
}

impl Server {
    pub(crate) fn new(runtime: &Runtime, plan: &Plan) -> Self {
        runtime.end_tasks(plan.probability(Fault::Task));
        Self {
            state: Arc::default(),
            plan: Arc::new(plan.clone()),
            runtime: runtime.clone(),
            chaos: Arc::new(true.into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_chaotic(&self) -> bool {
        self.chaos.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// From now on nothing fails.
    pub(crate) fn calm(&self) {
        self.chaos
            .store(false, std::sync::atomic::Ordering::Relaxed);
        self.runtime.end_tasks(0.0);
        let mut state = self.lock();
        state.unreachable = false;
        state.deaf = false;
        state.cut_off.clear();
        state.congested.clear();
        state.end_transactions();
        // A network that works again answers or refuses; it does not keep silent.
        let silent: Vec<_> = state
            .sessions
            .iter()
            .filter(|(_, it)| it.silent)
            .map(|(id, _)| *id)
            .collect();
        drop(state);
        for session in silent {
            self.end(session, None);
        }
        self.begin_slow();
        self.go_on(0);
    }

    /// Whether a fault of a message or a call happens now.
    pub(crate) fn strikes(&self, fault: Fault) -> bool {
        let strikes = self.is_chaotic() && self.runtime.happens(self.plan.probability(fault));
        if strikes {
            self.note(fault);
        }
        strikes
    }

    /// Counts a fault that had an effect.
    pub(crate) fn note(&self, fault: Fault) {
        *self.lock().struck.entry(fault.name()).or_default() += 1;
    }

    /// How many statements it ran, how often its judges looked at each promise, and which faults had an effect how often.
    pub(crate) fn figures(&self) -> (u64, Counts, Counts) {
        let state = self.lock();
        let mut struck = state.struck.clone();
        let ended = self.runtime.tasks_ended();
        if ended > 0 {
            struck.insert(Fault::Task.name(), ended);
        }
        (state.calls, state.judges.looks(), struck)
    }

    /// How many sessions there are.
    pub(crate) fn sessions(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Looks at the tables.
    pub(crate) fn model<T>(&self, look: impl FnOnce(&Model) -> T) -> T {
        look(&self.lock().model)
    }

    // What happens to it.

    pub(crate) fn set_clock(&self, by: i64) {
        let mut state = self.lock();
        state.set_ahead += by;
        state.judges.set_clock(by);
    }

    pub(crate) fn set_unreachable(&self, unreachable: bool) {
        self.lock().unreachable = unreachable;
    }

    pub(crate) fn set_deaf(&self, deaf: bool) {
        self.lock().deaf = deaf;
    }

    /// Holds back what a process sends and is sent until a time.
    pub(crate) fn cut_off(&self, program: ProgramId, until: Time) {
        self.lock().cut_off.insert(program, until);
    }

    /// Holds back what a process is answered until a time.
    pub(crate) fn congest(&self, program: ProgramId, until: Time) {
        self.lock().congested.insert(program, until);
    }

    /// Crashes and starts again: all sessions end at once, and what was not on disk is lost.
    pub(crate) fn restart(&self) {
        let sessions: Vec<_> = self.lock().sessions.keys().copied().collect();
        for session in sessions {
            self.end(session, Some("57P02"));
        }
        let lost = self.runtime.draw(fastrand::Rng::f64);
        let mut state = self.lock();
        state.end_transactions();
        state.model.crash(lost);
    }

    /// From now on its standby receives nothing.
    pub(crate) fn cut_replication(&self) {
        self.lock().model.cut_replication();
    }

    /// It is lost, and its standby takes over: all sessions end.
    pub(crate) fn fail_over(&self) {
        self.end_all();
        let now = self.runtime.now();
        let mut state = self.lock();
        let at = clock(&state, now);
        let State { model, judges, .. } = &mut *state;
        model.fail_over(at);
        judges.forget(model.state().jobs(), now);
        state.end_transactions();
    }

    fn end_all(&self) {
        let sessions: Vec<_> = self.lock().sessions.keys().copied().collect();
        for session in sessions {
            self.end(session, Some("57P01"));
        }
    }

    /// From now on its standby has what was committed before anything is answered, but for what nobody waits for.
    pub(crate) fn follow(&self) {
        self.lock().replicate();
    }

    /// It is lost, and the standby that follows takes over.
    pub(crate) fn promote(&self) {
        let Some(following) = self.lock().following.take() else {
            return;
        };
        self.end_all();
        let now = self.runtime.now();
        let mut state = self.lock();
        let at = clock(&state, now);
        state.model.fail_over(at);
        state.judges = following;
        state.end_transactions();
    }

    /// Ends one session.
    pub(crate) fn terminate_any(&self) -> bool {
        let sessions: Vec<_> = self.lock().sessions.keys().copied().collect();
        let Some(session) = self.runtime.draw(|random| random.choice(sessions)) else {
            return false;
        };
        self.end(session, Some("57P01"));
        true
    }

    /// A process has no thread for its tasks, for so long, once one of them has sent something.
    pub(crate) fn block_next(&self, program: ProgramId, time: Duration) {
        self.lock().block_next = Some((program, time));
    }

    /// A process has sent something.
    pub(crate) fn has_sent(&self, program: ProgramId) {
        let mut state = self.lock();
        let next = state.block_next.take_if(|(of, _)| *of == program);
        drop(state);
        if let Some((_, time)) = next.filter(|_| self.is_chaotic()) {
            self.note(Fault::Block);
            self.runtime.block(program, true);
            self.runtime.after(time, move |runtime| {
                if runtime.is_alive(program) {
                    runtime.block(program, false);
                }
            });
        }
    }

    /// Lets one connection fall silent, unless another has just done so.
    pub(crate) fn hush_any(&self) -> bool {
        let now = self.runtime.now();
        if self.lock().hushed.is_some_and(|at| now < at + HUSH) {
            return false;
        }
        let sessions: Vec<_> = self.lock().sessions.keys().copied().collect();
        let Some(session) = self.runtime.draw(|random| random.choice(sessions)) else {
            return false;
        };
        let mut state = self.lock();
        state.hushed = Some(now);
        if let Some(it) = state.sessions.get_mut(&session) {
            it.silent = true;
            it.notifications = None;
        }
        true
    }

    /// How many deliveries of a job processes got that were disturbed, and may not have begun them.
    pub(crate) fn disturbed_deliveries(&self, job: i64) -> u64 {
        let programs = self.lock().judges.issued(job);
        let disturbed = programs
            .into_iter()
            .filter(|it| self.runtime.was_disturbed(*it));
        disturbed.count() as u64
    }

    /// How many deliveries of a job were made.
    pub(crate) fn deliveries_made(&self, job: i64) -> usize {
        self.lock().judges.issued(job).len()
    }

    /// When a delivery was made.
    pub(crate) fn made(&self, token: i64) -> Option<Time> {
        self.lock().judges.made(token)
    }

    /// The advisory locks of a process in sessions that it has not left.
    pub(crate) fn locks_of(&self, program: ProgramId) -> Vec<String> {
        let state = self.lock();
        let sessions = state.sessions.iter();
        let sessions = sessions.filter(|(_, it)| it.program == program && !it.left);
        let held = sessions.flat_map(|(session, _)| state.model.state().locks_of(*session));
        held.map(|lock| format!("{lock:?}")).collect()
    }

    /// The deliveries that a process has: their jobs and tokens.
    pub(crate) fn deliveries_of(&self, program: ProgramId) -> Vec<(i64, i64)> {
        let state = self.lock();
        let at = clock(&state, self.runtime.now());
        let jobs = state.model.state().jobs();
        let delivered = jobs
            .sights()
            .filter_map(|job| Some((job.id, job.delivery?)));
        let has = delivered.filter(|(_, (token, until))| {
            *until > at && state.judges.made_for(*token) == Some(program)
        });
        has.map(|(job, (token, _))| (job, token)).collect()
    }

    /// The time of its clock.
    pub(crate) fn time(&self) -> SystemTime {
        let micros = clock(&self.lock(), self.runtime.now());
        UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs())
    }

    /// The jobs that have not ended, and the time of the server.
    pub(crate) fn jobs(&self) -> Seen {
        let state = self.lock();
        let at = clock(&state, self.runtime.now());
        let tables = state.model.state().jobs();
        let jobs = tables.sights().map(|job| SeenJob {
            id: job.id,
            new_for: u64::try_from(at - job.due)
                .ok()
                .filter(|_| job.delivery.is_none() && !state.judges.was_issued(job.id))
                .filter(|_| !tables.is_row_locked(job.id))
                .map(Duration::from_micros),
            is_locked: tables.is_row_locked(job.id),
            queue: job.queue.queue.clone(),
            delivery: job.delivery.filter(|(_, until)| *until > at),
        });
        Seen {
            jobs: jobs.collect(),
        }
    }

    /// The tokens of all that is held of a key of leases, permits and terms.
    pub(crate) fn holders(&self, key: &str) -> Vec<i64> {
        let state = self.lock();
        let tables = state.model.state();
        let passed = clock(&state, self.runtime.now()) - tables.now;
        let held = tables.slots_held("default", key).into_iter();
        let held = held.filter(|(_, holder)| holder.remaining > passed);
        held.map(|(_, holder)| holder.fence).collect()
    }

    /// The tokens of deliveries whose leases have ended.
    pub(crate) fn ended_deliveries(&self) -> Vec<i64> {
        let state = self.lock();
        let at = clock(&state, self.runtime.now());
        let deliveries = state.model.state().jobs().sights();
        let ended = deliveries.filter_map(|job| job.delivery);
        let ended = ended.filter(|(_, until)| *until <= at);
        ended.map(|(token, _)| token).collect()
    }

    /// How much time of a limit is owed.
    pub(crate) fn owed(&self, key: &str) -> Duration {
        let state = self.lock();
        let at = clock(&state, self.runtime.now());
        let arrival = state.model.state().limit("default", key);
        let arrival = arrival.map_or(0, |level| level.tat);
        let owed = arrival.saturating_sub((at + LIMITS_AHEAD) * 1000);
        Duration::from_nanos(owed.max(0).unsigned_abs())
    }

    /// The connections of a process that has ended; the server finds out sooner or later.
    pub(crate) fn forget(&self, program: ProgramId) {
        let state = self.lock();
        let sessions: Vec<_> = state
            .sessions
            .iter()
            .filter(|(_, it)| it.program == program)
            .map(|(id, _)| *id)
            .collect();
        drop(state);
        for session in sessions {
            self.leave(session);
        }
    }
}

impl State {
    /// Whether a session has advisory locks, which end with it.
    fn holds_locks(&self, session: u64) -> bool {
        !self.model.state().locks_of(session).is_empty()
    }

    /// The standby receives all that was committed.
    fn replicate(&mut self) {
        self.model.cut_replication();
        self.following = Some(self.judges.clone());
    }

    /// A statement was committed: what comes later carries it along, and nobody waits for some.
    fn committed(&mut self, name: &str, received: bool) {
        let waits = name != "queue.admit" && !name.starts_with("mutex.");
        if self.following.is_some() && (waits || received) {
            self.replicate();
        }
    }
}

fn clock(state: &State, now: Time) -> i64 {
    let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    EPOCH + micros + state.set_ahead
}
