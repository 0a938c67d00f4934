//! The server, and the network between it and the processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockapi::driver::{Rows, Script};
use lockapi::suite::simulation::{Request, Server as Model};
use lockapi::{Failure, Report, Severity};
use tokio::sync::{mpsc, oneshot};

use crate::plan::{Fault, Plan};
use crate::world::{ProgramId, Time, World};

/// When the clock of the server began: microseconds since 1970.
const EPOCH: i64 = 1_700_000_000_000_000;
/// For how long a session waits for a lock before it tells its client so.
const SLICE: Duration = Duration::from_secs(1);
/// What an undisturbed message takes at least and at most.
const NEAR: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(400));
/// And one that is delayed.
const FAR: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(8));
/// After so long the server finds out that a client has vanished.
const FOUND_OUT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(30));
/// What the server refuses statements with.
const CODES: [&str; 9] = [
    "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "XX000", "54000",
];

/// What a client is answered; nothing when its connection has ended.
type Answer = oneshot::Sender<Result<Rows, Failure>>;

/// What a client sends.
pub(crate) enum Message {
    Call(Request),
    Script(Script),
}

/// A statement that a session runs.
struct Running {
    request: Request,
    answer: Answer,
    number: u64,
}

struct Session {
    program: ProgramId,
    /// No message comes before one that was sent earlier.
    next_arrival: Time,
    next_answer: Time,
    running: Option<Running>,
    /// Its client has left; it ends with the statement that it runs.
    abandoned: bool,
    notifications: Option<mpsc::UnboundedSender<String>>,
    /// What is sent to it is not delivered any more.
    silent: bool,
}

#[derive(Default)]
struct State {
    model: Model,
    sessions: BTreeMap<u64, Session>,
    next: u64,
    /// How far the clock was set ahead, in microseconds.
    set_ahead: i64,
    unreachable: bool,
    deaf: bool,
    /// Processes whose messages wait.
    cut_off: BTreeMap<ProgramId, Time>,
    calls: u64,
    /// Faults that had an effect.
    struck: BTreeMap<&'static str, u64>,
}

/// The server; clones are one and the same.
#[derive(Clone)]
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
    plan: Arc<Plan>,
    world: World,
    /// Whether things fail.
    chaos: Arc<std::sync::atomic::AtomicBool>,
}

impl Server {
    pub(crate) fn new(world: &World, plan: &Plan) -> Self {
        Self {
            state: Arc::default(),
            plan: Arc::new(plan.clone()),
            world: world.clone(),
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
        let mut state = self.lock();
        state.unreachable = false;
        state.deaf = false;
        state.cut_off.clear();
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
    }

    /// Whether a fault of a message or a call happens now.
    pub(crate) fn strikes(&self, fault: Fault) -> bool {
        let strikes = self.is_chaotic() && self.world.happens(self.plan.probability(fault));
        if strikes {
            self.note(fault);
        }
        strikes
    }

    /// Counts a fault that had an effect.
    pub(crate) fn note(&self, fault: Fault) {
        *self.lock().struck.entry(fault.name()).or_default() += 1;
    }

    /// How many statements it ran, and which faults had an effect how often.
    pub(crate) fn figures(&self) -> (u64, BTreeMap<&'static str, u64>) {
        let state = self.lock();
        (state.calls, state.struck.clone())
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
        self.lock().set_ahead += by;
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

    /// Crashes and starts again: all sessions end at once, and what was not on disk is lost.
    pub(crate) fn restart(&self) {
        let sessions: Vec<_> = self.lock().sessions.keys().copied().collect();
        for session in sessions {
            self.end(session, Some("57P02"));
        }
        let lost = self.world.draw(fastrand::Rng::f64);
        self.lock().model.crash(lost);
    }

    /// Ends one session.
    pub(crate) fn terminate_any(&self) -> bool {
        let sessions: Vec<_> = self.lock().sessions.keys().copied().collect();
        let Some(session) = self.world.draw(|random| random.choice(sessions)) else {
            return false;
        };
        self.end(session, Some("57P01"));
        true
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

    /// How long a message takes now.
    fn delay(&self, program: ProgramId) -> Duration {
        let mut delay = self.world.between(NEAR.0, NEAR.1);
        if self.strikes(Fault::Delay) {
            delay += self.world.between(FAR.0, FAR.1);
        }
        let now = self.world.now();
        let until = self.lock().cut_off.get(&program).copied();
        match until.filter(|until| *until > now) {
            Some(until) => {
                self.note(Fault::Partition);
                delay + until.saturating_sub(now)
            }
            None => delay,
        }
    }

    /// A client connects.
    pub(crate) async fn connect(&self, program: ProgramId) -> Result<u64, Failure> {
        self.world.sleep(self.delay(program)).await;
        if self.strikes(Fault::Silence) {
            std::future::pending::<()>().await;
        }
        let id = self.accept(program)?;
        let arrives = Arriving(Some((self.clone(), id)));
        self.world.sleep(self.delay(program)).await;
        if !self.world.is_alive(program) {
            return Err(Failure::connect(None, "the process has ended"));
        }
        arrives.forget();
        Ok(id)
    }

    fn accept(&self, program: ProgramId) -> Result<u64, Failure> {
        let now = self.world.now();
        let mut state = self.lock();
        if state.unreachable {
            *state.struck.entry(Fault::Unreachable.name()).or_default() += 1;
            return Err(Failure::connect(None, "connection refused"));
        }
        state.next += 1;
        let id = state.next;
        let session = Session {
            program,
            next_arrival: now,
            next_answer: now,
            running: None,
            abandoned: false,
            notifications: None,
            silent: false,
        };
        state.sessions.insert(id, session);
        let at = clock(&state, now);
        state.model.begin_session(id, at);
        Ok(id)
    }

    /// Has a session's notifications sent on.
    pub(crate) fn listen(&self, session: u64) -> Option<mpsc::UnboundedReceiver<String>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.lock().sessions.get_mut(&session)?.notifications = Some(sender);
        Some(receiver)
    }

    /// A client sends something.
    pub(crate) fn send(
        &self,
        session: u64,
        message: Message,
    ) -> oneshot::Receiver<Result<Rows, Failure>> {
        let (answer, answered) = oneshot::channel();
        let program = self.lock().sessions.get(&session).map(|it| it.program);
        let Some(program) = program.filter(|program| self.world.is_alive(*program)) else {
            // Reset by the peer.
            return answered;
        };
        if self.strikes(Fault::CutBefore) {
            self.leave(session);
            return answered;
        }
        let arrival = self.world.now() + self.delay(program);
        let mut state = self.lock();
        let arrival = state.sessions.get_mut(&session).map_or(arrival, |it| {
            it.next_arrival = it.next_arrival.max(arrival);
            it.next_arrival
        });
        drop(state);
        let server = self.clone();
        self.world
            .at(arrival, move |_| server.arrive(session, message, answer));
        answered
    }

    fn arrive(&self, session: u64, message: Message, answer: Answer) {
        if !self.lock().sessions.contains_key(&session) {
            return;
        }
        let request = match message {
            Message::Script(script) => {
                if script == Script::Listen {
                    self.lock().model.listen(session);
                }
                return self.answer(session, answer, Ok(Rows::new()));
            }
            Message::Call(request) => request,
        };
        if self.strikes(Fault::Refusal) {
            let code = self
                .world
                .draw(|random| random.choice(CODES))
                .unwrap_or("XX000");
            let report = Report::new(Some(code.to_owned()), "refused by the simulation");
            return self.answer(session, answer, Err(Failure::reported(report)));
        }
        let fatal = self.strikes(Fault::Fatal);
        if fatal && self.world.draw(fastrand::Rng::bool) {
            self.answer(session, answer, Err(ended("57P01")));
            return self.end(session, None);
        }
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        if let Some(it) = state.sessions.get_mut(&session) {
            it.running = Some(Running {
                request,
                answer,
                number,
            });
        }
        drop(state);
        self.attempt(session, false);
        if fatal {
            return self.end(session, Some("57P01"));
        }
        let server = self.clone();
        self.world.after(SLICE, move |_| {
            let state = server.lock();
            let running = state
                .sessions
                .get(&session)
                .and_then(|it| it.running.as_ref());
            let same = running.is_some_and(|running| running.number == number);
            drop(state);
            if same {
                server.attempt(session, true);
            }
        });
    }

    /// Runs what a session has to run, unless it has to wait.
    fn attempt(&self, session: u64, late: bool) {
        let now = self.world.now();
        let mut state = self.lock();
        let at = clock(&state, now);
        let State {
            model,
            sessions,
            calls,
            ..
        } = &mut *state;
        let Some(it) = sessions.get_mut(&session) else {
            return;
        };
        let Some(running) = it.running.take() else {
            return;
        };
        let Some(rows) = model.run(&running.request, session, at, late) else {
            it.running = Some(running);
            return;
        };
        *calls += 1;
        let abandoned = it.abandoned;
        drop(state);
        self.answer(session, running.answer, Ok(rows));
        if abandoned {
            self.end(session, None);
        }
        self.notify();
        self.go_on(session);
    }

    /// Something has changed: those who wait look again.
    fn go_on(&self, except: u64) {
        let state = self.lock();
        let waiting: Vec<_> = state
            .sessions
            .iter()
            .filter(|(id, it)| **id != except && it.running.is_some())
            .map(|(id, _)| *id)
            .collect();
        drop(state);
        for session in waiting {
            self.attempt(session, false);
        }
    }

    fn answer(&self, session: u64, answer: Answer, outcome: Result<Rows, Failure>) {
        let Some(program) = self.lock().sessions.get(&session).map(|it| it.program) else {
            return;
        };
        if self.strikes(Fault::CutAfter) {
            self.leave(session);
            return;
        }
        let silent = self.strikes(Fault::Silence);
        let arrival = self.world.now() + self.delay(program);
        let mut state = self.lock();
        let Some(it) = state.sessions.get_mut(&session) else {
            return;
        };
        it.silent |= silent;
        it.next_answer = it.next_answer.max(arrival);
        let (arrival, silent) = (it.next_answer, it.silent);
        drop(state);
        if silent {
            // Kept, so that the client does not hear of an end either.
            let server = self.clone();
            let kept = move |_: &World| drop((server, answer));
            return self.world.after(Duration::from_secs(3600), kept);
        }
        self.world.at(arrival, move |_| drop(answer.send(outcome)));
    }

    /// Delivers what was notified.
    fn notify(&self) {
        let mut state = self.lock();
        if !state.model.has_notified() {
            return;
        }
        let State {
            model, sessions, ..
        } = &mut *state;
        let mut sent = Vec::new();
        for (id, session) in sessions.iter().filter(|(_, it)| it.notifications.is_some()) {
            while let Some(payload) = model.notification(*id) {
                sent.push((session.program, session.notifications.clone(), payload));
            }
        }
        let deaf = state.deaf;
        drop(state);
        for (program, to, payload) in sent {
            let delay = self.delay(program);
            if deaf || self.strikes(Fault::Deaf) {
                continue;
            }
            if let Some(to) = to {
                let to = to.downgrade();
                self.world.after(delay, move |_| {
                    if let Some(to) = to.upgrade() {
                        drop(to.send(payload));
                    }
                });
            }
        }
    }

    /// A client has closed its connection, or it is cut: the server finds out.
    pub(crate) fn leave(&self, session: u64) {
        let known = self.lock().sessions.contains_key(&session);
        if !known {
            return;
        }
        let found = if self.is_chaotic() && self.world.draw(fastrand::Rng::bool) {
            self.world.between(FOUND_OUT.0, FOUND_OUT.1)
        } else {
            NEAR.1
        };
        let mut state = self.lock();
        let now = self.world.now();
        let Some(it) = state.sessions.get_mut(&session) else {
            return;
        };
        // What was sent before arrives before.
        let at = it.next_arrival.max(now + found);
        it.notifications = None;
        drop(state);
        let server = self.clone();
        self.world.at(at, move |_| {
            let mut state = server.lock();
            let Some(it) = state.sessions.get_mut(&session) else {
                return;
            };
            // A server that waits for a lock does not look at its client.
            it.abandoned = true;
            let busy = it.running.is_some();
            drop(state);
            if !busy {
                server.end(session, None);
            }
        });
    }

    /// Ends a session; what it had locked goes to others.
    pub(crate) fn end(&self, session: u64, code: Option<&'static str>) {
        let mut state = self.lock();
        let Some(mut it) = state.sessions.remove(&session) else {
            return;
        };
        state.model.end_session(session);
        drop(state);
        if let Some(running) = it.running.take()
            && let Some(code) = code
        {
            let delay = self.delay(it.program);
            self.world
                .after(delay, move |_| drop(running.answer.send(Err(ended(code)))));
        }
        drop(it);
        self.go_on(session);
    }
}

fn clock(state: &State, now: Time) -> i64 {
    let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    EPOCH + micros + state.set_ahead
}

/// The report of a session that was ended.
fn ended(code: &'static str) -> Failure {
    let report = Report::new(Some(code.to_owned()), "ended by the simulation");
    Failure::reported(report.severe(Severity::Fatal))
}

/// A session whose client does not know of it yet.
struct Arriving(Option<(Server, u64)>);

impl Arriving {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some((server, session)) = self.0.take() {
            server.leave(session);
        }
    }
}
