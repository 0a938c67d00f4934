//! Sessions: what clients send, what they are answered, and how they end.

use std::time::Duration;

use lockapi::driver::{Rows, Script};
use lockapi::{Failure, Report, Severity};
use tokio::sync::{mpsc, oneshot};

use super::{
    Answer, Message, Running, Server, Session, State, Statement, cancels, clock, transactions,
};
use crate::plan::Fault;
use crate::runtime::{ProgramId, Runtime};

/// For how long a session waits for a lock before it tells its client so, unless the statement tells how long.
const SLICE: Duration = Duration::from_secs(1);
/// After this time what came while a statement waits is looked at again.
const BUSY: Duration = Duration::from_millis(1);
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

/// How often a process that is blocked may look whether something has arrived.
const READ: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// What a pooler tells that has lost the server.
const LOST: [&str; 3] = ["57P01", "08006", "40003"];

impl Server {
    /// How long a message takes now.
    fn delay(&self, program: ProgramId) -> Duration {
        let mut delay = self.runtime.between(NEAR.0, NEAR.1);
        if self.strikes(Fault::Delay) {
            delay += self.runtime.between(FAR.0, FAR.1);
        }
        let now = self.runtime.now();
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
        self.runtime.sleep(self.delay(program)).await;
        if self.strikes(Fault::Silence) {
            std::future::pending::<()>().await;
        }
        let id = self.accept(program)?;
        let arrives = Arriving(Some((self.clone(), id)));
        self.runtime.sleep(self.delay(program)).await;
        if !self.runtime.is_alive(program) {
            return Err(Failure::connect(None, "the process has ended"));
        }
        arrives.forget();
        Ok(id)
    }

    fn accept(&self, program: ProgramId) -> Result<u64, Failure> {
        let now = self.runtime.now();
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
            left: false,
            abandoned: false,
            notifications: None,
            silent: false,
            lock_timeout: Duration::ZERO,
            statement_timeout: Duration::ZERO,
            failed: false,
            checked: Vec::new(),
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
        let Some(program) = program.filter(|program| self.runtime.is_alive(*program)) else {
            // Reset by the peer.
            return answered;
        };
        if self.strikes(Fault::CutBefore) {
            self.leave(session);
            return answered;
        }
        self.has_sent(program);
        let arrival = self.runtime.now() + self.delay(program);
        let mut state = self.lock();
        let arrival = state.sessions.get_mut(&session).map_or(arrival, |it| {
            it.next_arrival = it.next_arrival.max(arrival);
            it.next_arrival
        });
        drop(state);
        let server = self.clone();
        self.runtime
            .at(arrival, move |_| server.arrive(session, message, answer));
        answered
    }

    fn arrive(&self, session: u64, message: Message, answer: Answer) {
        let state = self.lock();
        let Some(is_busy) = (state.sessions.get(&session)).map(|it| it.running.is_some()) else {
            return;
        };
        drop(state);
        if is_busy {
            // What a session is sent while a statement waits comes after it, such as the end of a transaction whose
            // caller has left a statement.
            let server = self.clone();
            let again = move |_: &Runtime| server.arrive(session, message, answer);
            return self.runtime.after(BUSY, again);
        }
        // What ends a transaction of the library is carried out: the model has none of these.
        let is_carried_out = match message {
            Message::Script(script) => !matches!(script, Script::Listen | Script::Begin(_)),
            Message::Call(_) | Message::Begin | Message::End { .. } => false,
        };
        if is_carried_out {
            return self.answer(session, answer, Ok(Rows::new()));
        }
        if self.strikes(Fault::Refusal) {
            let code = self
                .runtime
                .draw(|random| random.choice(CODES))
                .unwrap_or("XX000");
            let report = Report::new(Some(code.to_owned()), "refused by the simulation");
            return self.answer(session, answer, Err(Failure::reported(report)));
        }
        let fatal = self.strikes(Fault::Fatal);
        let how = self.runtime.draw(|random| random.u8(..3));
        if fatal && how == 0 {
            self.answer(session, answer, Err(ended("57P01")));
            return self.end(session, None);
        }
        // Of what it has carried out it may tell that, as a pooler does which has lost the server.
        let (answer, replaced) = if fatal && how == 1 {
            (oneshot::channel().0, Some(answer))
        } else {
            (answer, None)
        };
        let number = match message {
            Message::Call(statement) => {
                let slow = !fatal && self.strikes(Fault::Slow);
                Some(self.begin_call(session, statement, answer, slow))
            }
            Message::End { commits } => {
                self.end_transaction_of(session, commits, answer);
                None
            }
            Message::Begin => {
                self.begin(session, answer);
                None
            }
            Message::Script(script) => {
                if script == Script::Listen {
                    self.lock().model.listen(session);
                }
                self.answer(session, answer, Ok(Rows::new()));
                None
            }
        };
        if fatal {
            if let Some(answer) = replaced {
                let code = self.runtime.draw(|random| random.choice(LOST));
                self.answer(session, answer, Err(ended(code.unwrap_or("57P01"))));
            }
            return self.end(session, Some("57P01"));
        }
        if let Some(number) = number {
            self.bound(session, number);
        }
    }

    /// A statement that has begun waits no longer than it may.
    pub(super) fn bound(&self, session: u64, number: u64) {
        self.limit_wait(session, number);
        let state = self.lock();
        let running = state.sessions.get(&session).map(|it| &it.running);
        let time = running.and_then(|it| it.as_ref()?.statement.waits_for);
        drop(state);
        let server = self.clone();
        self.runtime.after(time.unwrap_or(SLICE), move |_| {
            if server.lock().runs(session, number) {
                server.attempt(session, true);
            }
        });
    }

    /// A session has a statement to run; answers the number of that.
    fn begin_call(
        &self,
        session: u64,
        statement: Box<Statement>,
        answer: Answer,
        slow: bool,
    ) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        state.note_keys(&statement.needs);
        let mut refused = None;
        if let Some(it) = state.sessions.get_mut(&session) {
            if let Some(timeouts) = statement.timeouts {
                (it.lock_timeout, it.statement_timeout) = timeouts;
            }
            if it.failed {
                refused = Some(answer);
            } else {
                it.running = Some(Running {
                    statement,
                    answer,
                    number,
                    slow,
                });
            }
        }
        drop(state);
        match refused {
            Some(answer) => self.refuse_in_failed(session, answer),
            None if slow => self.delay_begin(session, number),
            None => self.attempt(session, false),
        }
        number
    }

    /// Runs what a session has to run, unless it has to wait.
    pub(super) fn attempt(&self, session: u64, late: bool) {
        let now = self.runtime.now();
        let mut state = self.lock();
        let at = clock(&state, now);
        if state.waits_for_row(session) {
            return;
        }
        let running = state.sessions.get_mut(&session);
        let Some(running) = running.and_then(|it| it.running.take_if(|it| !it.slow)) else {
            return;
        };
        if let Some(turn) = &running.statement.turn
            && let Some(rows) = state.meets_another((session, turn), now, &self.runtime)
        {
            let abandoned = state.sessions.get(&session).is_some_and(|it| it.abandoned);
            drop(state);
            self.answer(session, running.answer, Ok(rows));
            if abandoned {
                self.end(session, None);
            }
            return;
        }
        let State {
            model,
            judges,
            sessions,
            calls,
            ..
        } = &mut *state;
        let Some(it) = sessions.get_mut(&session) else {
            return;
        };
        let statement = &running.statement;
        let Some(rows) = model.run(&statement.request, session, at, late) else {
            it.running = Some(running);
            return;
        };
        let rows = cancels::with_process(statement, session, rows);
        let cancels = statement.cancels.clone();
        let is_in = model.is_in_transaction(session);
        if is_in && transactions::holds(&rows) {
            it.checked.extend(statement.checks.clone());
        }
        *calls += 1;
        let jobs = model.state().jobs();
        let call = (statement.request.name(), statement.turn.as_ref());
        judges.runs(it.program);
        if let Err((promise, what)) = judges.ran(jobs, call, (now, at)) {
            self.runtime.violate(promise, what);
        }
        let abandoned = it.abandoned;
        let received = state.following.is_some() && self.runtime.happens(0.3);
        if !is_in {
            state.committed(statement.request.name(), received);
        }
        drop(state);
        self.answer(session, running.answer, Ok(rows));
        if abandoned {
            self.end(session, None);
        }
        self.cancel(&cancels);
        self.notify();
        self.go_on(session);
    }

    /// Something has changed: those who wait look again.
    pub(super) fn go_on(&self, except: u64) {
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

    pub(super) fn answer(&self, session: u64, answer: Answer, outcome: Result<Rows, Failure>) {
        let Some(program) = self.lock().sessions.get(&session).map(|it| it.program) else {
            return;
        };
        if outcome.is_err() {
            self.fail_transaction(session);
        }
        if self.strikes(Fault::CutAfter) {
            self.leave(session);
            return;
        }
        let silent = self.strikes(Fault::Silence);
        let arrival = self.runtime.now() + self.delay(program);
        let mut state = self.lock();
        let congested = state.congested.get(&program).copied().unwrap_or_default();
        let Some(it) = state.sessions.get_mut(&session) else {
            return;
        };
        it.silent |= silent;
        it.next_answer = it.next_answer.max(arrival).max(congested);
        let (arrival, silent) = (it.next_answer, it.silent);
        drop(state);
        if silent {
            // Kept, so that the client does not hear of an end either.
            let server = self.clone();
            let kept = move |_: &Runtime| drop((server, answer));
            return self.runtime.after(Duration::from_secs(3600), kept);
        }
        self.runtime.at(arrival, move |runtime| {
            deliver(runtime, program, answer, outcome);
        });
    }

    /// Delivers what was notified.
    pub(super) fn notify(&self) {
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
                self.runtime.after(delay, move |_| {
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
        let found = if self.is_chaotic() && self.runtime.draw(fastrand::Rng::bool) {
            self.runtime.between(FOUND_OUT.0, FOUND_OUT.1)
        } else {
            NEAR.1
        };
        let mut state = self.lock();
        let now = self.runtime.now();
        let holds = state.holds_locks(session);
        let Some(it) = state.sessions.get_mut(&session) else {
            return;
        };
        if holds {
            self.runtime.session_ended(it.program);
        }
        it.left = true;
        // What was sent before arrives before.
        let at = it.next_arrival.max(now + found);
        it.notifications = None;
        drop(state);
        let server = self.clone();
        self.runtime.at(at, move |_| {
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
        if state.holds_locks(session) {
            self.runtime.session_ended(it.program);
        }
        state.model.end_session(session);
        drop(state);
        if let Some(running) = it.running.take()
            && let Some(code) = code
        {
            let delay = self.delay(it.program);
            self.runtime
                .after(delay, move |_| drop(running.answer.send(Err(ended(code)))));
        }
        drop(it);
        self.go_on(session);
    }
}

/// A process reads what has arrived. One whose tasks have no thread reads nothing, and some time after they have one.
fn deliver(runtime: &Runtime, program: ProgramId, answer: Answer, outcome: Result<Rows, Failure>) {
    if !runtime.is_blocked(program) {
        return drop(answer.send(outcome));
    }
    let pause = runtime.between(READ.0, READ.1);
    runtime.after(pause, move |runtime| {
        deliver(runtime, program, answer, outcome);
    });
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
