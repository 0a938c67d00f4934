//! A session of the server, and what it is to do next.

use std::collections::VecDeque;

use super::effects::Effects;
use super::wait::{Slice, Wait};
use super::{LockTable, Now};
use crate::engine::clock::Time;
use crate::key::LockId;
use crate::mutex::{LockAnswer, LockMode};

/// What a session is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Try {
        lock: LockId,
        mode: LockMode,
    },
    Release {
        lock: LockId,
        mode: LockMode,
    },
    /// Check whether another session waits for a lock that is shared here.
    CheckWaiters {
        lock: LockId,
    },
    /// Interrupt the wait of another session, which has this mark and this process at the server.
    Interrupt {
        session: usize,
        mark: i64,
        process: i64,
    },
}

/// The server's answer to a [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Lock(LockAnswer),
    /// Whether the lock has waiters.
    HasWaiters(bool),
    /// The interrupt has arrived, if the session still waited.
    Interrupted,
}

/// A command, and the caller that gets its outcome.
pub(super) struct Request<R> {
    pub(super) command: Command,
    pub(super) reply: Option<R>,
    /// It was under way when its session ended, and is tried once more.
    pub(super) again: bool,
}

/// How many requests go into one statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Batch {
    All,
    /// Half of them, counting the others whose answers have arrived: while the server works on one
    /// half, the callers of the other get their answers and send their next requests.
    HalfWith(usize),
}

impl Batch {
    /// Up to this number are sent together: a statement of half as many takes hardly less time.
    pub(crate) const WHOLE: usize = 64;

    fn size(self, waiting: usize) -> usize {
        match self {
            Self::All => waiting,
            Self::HalfWith(others) => {
                waiting.min(usize::midpoint(waiting, others).max(Self::WHOLE))
            }
        }
    }
}

/// What a session does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Run these in one statement, and [settle](LockTable::apply_replies) the answers.
    Run(Vec<Command>),
    /// Wait for a lock in the server's queue.
    Wait(Slice),
    /// Check whether the session, which holds locks, is still alive.
    Ping,
    /// Nothing: wait to be woken.
    Idle,
    /// Nothing is left to do: the worker ends, and another is started if something comes.
    Close,
}

pub(super) struct Session<R> {
    pub(super) requests: Vec<Request<R>>,
    /// Batches that were sent, oldest first.
    pub(super) in_flight: VecDeque<Vec<Request<R>>>,
    /// How many requests are to be sent one by one, because together they failed.
    pub(super) alone: usize,
    /// How many locks it holds.
    pub(super) held: usize,
    /// When it was last given a lock.
    pub(super) granted_at: Time,
    pub(super) mark: i64,
    /// Its process at the server.
    pub(super) process: i64,
    /// Whether it has a worker.
    pub(super) running: bool,
    pub(super) wait: Option<Wait>,
    /// An interrupt is under way: until it has arrived nothing else may be sent.
    pub(super) interrupting: bool,
    /// It could not be opened and is not used before this time.
    pub(super) down_until: Time,
    pub(super) ping_at: Option<Time>,
    pub(super) ping_due: bool,
    /// When its wait is interrupted again, because the interrupt came before the wait.
    pub(super) interrupt_at: Option<Time>,
}

impl<R> Default for Session<R> {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
            in_flight: VecDeque::new(),
            alone: 0,
            held: 0,
            granted_at: Time::ZERO,
            mark: 0,
            process: 0,
            running: false,
            wait: None,
            interrupting: false,
            down_until: Time::ZERO,
            ping_at: None,
            ping_due: false,
            interrupt_at: None,
        }
    }
}

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// Queues a command for a session.
    pub(super) fn command(
        &mut self,
        session: usize,
        command: Command,
        reply: Option<R>,
        effects: &mut Effects<W, H, R>,
    ) {
        self.releases += usize::from(matches!(command, Command::Release { .. }));
        let state = &mut self.sessions[session];
        state.requests.push(Request {
            command,
            reply,
            again: false,
        });
        // The first request has woken the worker.
        if state.requests.len() == 1 {
            self.wake_session(session, effects);
            self.interrupt(session, effects);
        }
    }

    pub(super) fn wake_session(&mut self, session: usize, effects: &mut Effects<W, H, R>) {
        if !std::mem::replace(&mut self.sessions[session].running, true) {
            effects.start.push(session);
        }
        effects.wake |= 1 << session;
    }

    /// What the session does next; called by its worker alone.
    pub(crate) fn next(
        &mut self,
        now: Now<'_>,
        session: usize,
        batch: Batch,
        effects: &mut Effects<W, H, R>,
    ) -> Next {
        loop {
            let state = &mut self.sessions[session];
            if state.interrupting {
                return Next::Idle;
            }
            if !state.requests.is_empty() {
                let commands = self.take_batch(session, batch);
                if commands.is_empty() {
                    continue;
                }
                return Next::Run(commands);
            }
            if state.wait.as_ref().is_some_and(Wait::is_assigned) {
                match self.begin_wait(now, session, effects) {
                    Some(slice) => return Next::Wait(slice),
                    None => continue,
                }
            }
            if std::mem::take(&mut state.ping_due) {
                return Next::Ping;
            }
            if self.closing {
                state.running = false;
                return Next::Close;
            }
            // One timer in each heartbeat, however often the session becomes idle in between.
            if state.held > 0 && state.ping_at.is_none() {
                let at = now() + self.limits.heartbeat;
                state.ping_at = Some(at);
                self.arm(at, effects);
            }
            return Next::Idle;
        }
    }

    /// Takes the requests of the next statement, without attempts whose callers are gone.
    fn take_batch(&mut self, session: usize, batch: Batch) -> Vec<Command> {
        let state = &mut self.sessions[session];
        let size = if state.alone > 0 {
            state.alone -= 1;
            1
        } else {
            batch.size(state.requests.len())
        };
        let rest = state.requests.split_off(size);
        let mut taken = std::mem::replace(&mut state.requests, rest);
        taken.retain(|request| {
            let Command::Try { lock, .. } = request.command else {
                return true;
            };
            let slot = self.slots.get(&lock);
            let wanted = slot.is_some_and(|slot| !slot.has_no_waiters());
            if !wanted {
                self.slots.remove(&lock);
            }
            wanted
        });
        let commands: Vec<Command> = taken.iter().map(|request| request.command).collect();
        if !taken.is_empty() {
            self.sessions[session].in_flight.push_back(taken);
        }
        commands
    }

    /// How many requests are to be sent.
    pub(crate) fn requests(&self, session: usize) -> usize {
        self.sessions[session].requests.len()
    }

    /// A session is open, under this mark, with this process at the server.
    pub(crate) fn opened(&mut self, session: usize, mark: i64, process: i64) {
        let state = &mut self.sessions[session];
        (state.mark, state.process) = (mark, process);
    }

    /// The worker has had nothing to do for a while; answers whether it may end.
    pub(crate) fn retire(&mut self, session: usize) -> bool {
        let state = &mut self.sessions[session];
        let idle = state.requests.is_empty()
            && state.in_flight.is_empty()
            && state.wait.is_none()
            && !state.interrupting
            && state.held == 0;
        if idle {
            state.running = false;
            (state.mark, state.process) = (0, 0);
        }
        idle
    }

    pub(super) fn ping_if_due(
        &mut self,
        session: usize,
        now: Time,
        effects: &mut Effects<W, H, R>,
    ) {
        let state = &mut self.sessions[session];
        if state.ping_at.is_some_and(|at| at <= now) {
            state.ping_at = None;
            if state.held > 0 {
                state.ping_due = true;
                self.wake_session(session, effects);
            }
        }
    }
}
