//! The workers of sessions: they fetch what their session does, and carry it out on the server.

use super::*;

/// The worker of a session.
#[derive(Default)]
pub(in super::super) struct Worker {
    pub(in super::super) alive: bool,
    pub(in super::super) connection: Option<u64>,
    pub(in super::super) state: WorkerState,
}

#[derive(Default)]
pub(in super::super) enum WorkerState {
    #[default]
    Idle,
    /// The server has done it; the answer is under way.
    Answered(Vec<Reply>),
    /// The statement failed, and what it was about is not locked.
    Failed,
    /// What is held behind the wait is on its way to the server.
    Noting(Slice),
    /// The wait is on its way to the server.
    Sending(Slice),
    Waiting {
        lock: LockId,
        mode: LockMode,
        until: Time,
    },
    /// It was answered; what it left is cleared once no interrupt is under way.
    Clearing(WaitOutcome),
    Ping,
}

impl Sim {
    /// Has a worker do its next step.
    pub(in super::super) fn work(&mut self, p: usize, session: usize) {
        let worker = &mut self.processes[p].workers[session];
        if !worker.alive {
            return;
        }
        match std::mem::take(&mut worker.state) {
            WorkerState::Idle => self.begin(p, session),
            WorkerState::Answered(replies) => {
                self.change(p, |table, now, effects| {
                    table.apply_replies(now, session, &replies, effects);
                });
            }
            WorkerState::Failed => {
                self.change(p, |table, now, effects| {
                    table.batch_failed(now, session, &ended(), effects);
                });
            }
            WorkerState::Noting(slice) => self.note(p, session, slice),
            WorkerState::Sending(slice) => self.send_wait(p, session, &slice),
            WorkerState::Waiting { lock, mode, until } => self.wait(p, session, lock, mode, until),
            WorkerState::Clearing(waited) => {
                if self.processes[p].table.answered(session) {
                    self.processes[p].workers[session].state = WorkerState::Clearing(waited);
                    return;
                }
                if let Some(connection) = self.processes[p].workers[session].connection {
                    self.server.notes.remove(&connection);
                }
                self.change(p, |table, now, effects| {
                    table.waited(now, session, waited, effects);
                });
            }
            WorkerState::Ping => {}
        }
    }

    pub(in super::super) fn begin(&mut self, p: usize, session: usize) {
        let batch = if session == 0 {
            Batch::HalfWith(0)
        } else {
            Batch::All
        };
        let next = self.change(p, |table, now, effects| {
            table.next(now, session, batch, effects)
        });
        match next {
            Next::Close => {
                self.close(p, session);
                self.processes[p].workers[session].alive = false;
            }
            Next::Idle => {
                let retired = session > 0
                    && self.random.u8(..20) == 0
                    && self.processes[p].table.retire(session);
                if retired {
                    self.close(p, session);
                    self.processes[p].workers[session].alive = false;
                }
            }
            Next::Ping => self.processes[p].workers[session].state = WorkerState::Ping,
            Next::Run(commands) => {
                let Some(connection) = self.open(p, session) else {
                    return self.change(p, |table, now, effects| {
                        table.refuse_session(now, session, &ended(), effects);
                    });
                };
                if self.faults && self.random.u8(..16) == 0 {
                    for command in commands {
                        if let Command::Release { lock, mode } = command {
                            self.server.release(lock, mode, connection);
                        }
                    }
                    self.processes[p].workers[session].state = WorkerState::Failed;
                    return;
                }
                let replies = commands
                    .iter()
                    .map(|command| self.carry(*command, p, connection));
                let replies = replies.collect();
                self.processes[p].workers[session].state = WorkerState::Answered(replies);
            }
            Next::Wait(slice) => {
                if self.open(p, session).is_none() {
                    return self.change(p, |table, now, effects| {
                        table.waited(now, session, WaitOutcome::Unopened, effects);
                    });
                }
                self.processes[p].workers[session].state = WorkerState::Noting(slice);
            }
        }
    }

    /// Owners that hold locks wait only after a look for a cycle.
    fn note(&mut self, p: usize, session: usize, slice: Slice) {
        let Some(connection) = self.processes[p].workers[session].connection else {
            return;
        };
        let closed = if slice.holding.is_empty() {
            Vec::new()
        } else {
            self.server.note(slice.lock, connection, &slice.holding)
        };
        self.processes[p].workers[session].state = if closed.is_empty() {
            WorkerState::Sending(slice)
        } else {
            self.cycles += 1;
            WorkerState::Clearing(WaitOutcome::Cycle(closed))
        };
    }

    pub(in super::super) fn send_wait(&mut self, p: usize, session: usize, slice: &Slice) {
        let Some(connection) = self.processes[p].workers[session].connection else {
            return;
        };
        let Slice {
            lock, mode, time, ..
        } = *slice;
        let now = self.now;
        if !self.processes[p].table.is_wanted(session, now) {
            self.processes[p].workers[session].state =
                WorkerState::Clearing(WaitOutcome::NotGranted);
            return;
        }
        if self.server.try_lock(lock, mode, connection) == LockAnswer::Contended {
            let queue = self.server.queues.entry(lock).or_default();
            queue.push_back((connection, mode));
            self.server.pass_on(lock);
        } else {
            self.server.granted.insert(connection);
        }
        let until = self.now + time;
        self.processes[p].workers[session].state = WorkerState::Waiting { lock, mode, until };
    }

    pub(in super::super) fn wait(
        &mut self,
        p: usize,
        session: usize,
        lock: LockId,
        mode: LockMode,
        until: Time,
    ) {
        let Some(connection) = self.processes[p].workers[session].connection else {
            return;
        };
        let waits = |server: &Server| {
            let mut queue = server.queues.get(&lock).into_iter().flatten();
            queue.any(|(one, _)| *one == connection)
        };
        let fails = self.faults && self.random.u8(..16) == 0;
        let waited = if fails {
            self.server.give_up(lock, connection);
            WaitOutcome::Failed(ended())
        } else if self.server.granted.remove(&connection) {
            WaitOutcome::Granted(self.server.token(mode))
        } else if self.now < until && waits(&self.server) {
            self.processes[p].workers[session].state = WorkerState::Waiting { lock, mode, until };
            return;
        } else {
            // The time is over, or it was interrupted.
            self.server.give_up(lock, connection);
            WaitOutcome::NotGranted
        };
        self.processes[p].table.answered(session);
        self.processes[p].workers[session].state = WorkerState::Clearing(waited);
    }

    pub(in super::super) fn carry(&mut self, command: Command, p: usize, connection: u64) -> Reply {
        match command {
            Command::Try { lock, mode } => {
                Reply::Lock(self.server.try_lock(lock, mode, connection))
            }
            Command::Release { lock, mode } => {
                Reply::Lock(self.server.release(lock, mode, connection))
            }
            Command::CheckWaiters { lock } => {
                let queue = self.server.queues.get(&lock);
                Reply::HasWaiters(queue.is_some_and(|queue| !queue.is_empty()))
            }
            Command::Interrupt { session, .. } => {
                let target = &self.processes[p].workers[session];
                let runs = matches!(
                    target.state,
                    WorkerState::Answered(_) | WorkerState::Failed | WorkerState::Ping
                );
                assert!(!runs, "an interrupt hits what it was not meant for");
                if let Some(target) = target.connection
                    && !self.server.granted.contains(&target)
                    && matches!(
                        self.processes[p].workers[session].state,
                        WorkerState::Waiting { .. }
                    )
                {
                    self.server.stop_waiting(target);
                }
                Reply::Interrupted
            }
        }
    }

    pub(in super::super) fn open(&mut self, p: usize, session: usize) -> Option<u64> {
        let worker = &mut self.processes[p].workers[session];
        if let Some(connection) = worker.connection {
            return Some(connection);
        }
        if self.faults && self.random.u8(..10) == 0 {
            return None;
        }
        self.server.connections += 1;
        let connection = self.server.connections;
        worker.connection = Some(connection);
        let mark = i64::try_from(connection).unwrap();
        self.processes[p].table.opened(session, mark, mark);
        Some(connection)
    }

    pub(in super::super) fn close(&mut self, p: usize, session: usize) {
        if let Some(connection) = self.processes[p].workers[session].connection.take() {
            self.server.end(connection);
        }
    }
}
