//! Several processes with their tables and a model of the server, driven by seeds: callers ask, leave
//! and release, statements are answered late or never, sessions and workers end.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::error::Failure;

pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) type Lost = Rc<Cell<bool>>;
pub(super) type Table = LockTable<u64, Lost, u64>;
pub(super) type Todo = Effects<u64, Lost, u64>;

/// The lock table of the server.
#[derive(Default)]
pub(super) struct Server {
    pub(super) holders: BTreeMap<LockId, Vec<(u64, LockMode)>>,
    pub(super) queues: BTreeMap<LockId, VecDeque<(u64, LockMode)>>,
    pub(super) granted: BTreeSet<u64>,
    pub(super) fences: i64,
    pub(super) connections: u64,
}

impl Server {
    pub(super) fn is_free(&self, lock: LockId, connection: u64, mode: LockMode) -> bool {
        let mut holders = self.holders.get(&lock).into_iter().flatten();
        holders.all(|(other, held)| {
            *other == connection || mode == LockMode::Shared && *held == LockMode::Shared
        })
    }

    pub(super) fn try_lock(&mut self, lock: LockId, mode: LockMode, connection: u64) -> LockAnswer {
        let mut queue = self.queues.get(&lock).into_iter().flatten();
        let awaited =
            queue.any(|(_, other)| mode == LockMode::Exclusive || *other == LockMode::Exclusive);
        if awaited || !self.is_free(lock, connection, mode) {
            return LockAnswer::Contended;
        }
        self.grant(lock, mode, connection)
    }

    pub(super) fn grant(&mut self, lock: LockId, mode: LockMode, connection: u64) -> LockAnswer {
        let holders = self.holders.entry(lock).or_default();
        assert!(
            !holders.iter().any(|(one, _)| *one == connection),
            "a session takes what it holds"
        );
        holders.push((connection, mode));
        self.token(mode)
    }

    pub(super) fn token(&mut self, mode: LockMode) -> LockAnswer {
        if mode == LockMode::Shared {
            return LockAnswer::Shared;
        }
        self.fences += 1;
        LockAnswer::Taken(self.fences << HAND_OVER_BITS)
    }

    pub(super) fn unlock(&mut self, lock: LockId, connection: u64) -> LockAnswer {
        let holders = self.holders.entry(lock).or_default();
        let held = holders.len();
        holders.retain(|(one, _)| *one != connection);
        let released = holders.len() < held;
        if holders.is_empty() {
            self.holders.remove(&lock);
        }
        self.pass_on(lock);
        if released {
            LockAnswer::Released
        } else {
            LockAnswer::NotHeld
        }
    }

    pub(super) fn pass_on(&mut self, lock: LockId) {
        while let Some((first, mode)) = self.queues.get(&lock).and_then(|q| q.front().copied()) {
            if !self.is_free(lock, first, mode) {
                return;
            }
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.pop_front();
            }
            self.holders.entry(lock).or_default().push((first, mode));
            self.granted.insert(first);
        }
    }

    pub(super) fn stop_waiting(&mut self, connection: u64) {
        let locks: Vec<_> = self.queues.keys().copied().collect();
        for lock in locks {
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.retain(|(one, _)| *one != connection);
            }
            self.pass_on(lock);
        }
    }

    pub(super) fn end(&mut self, connection: u64) {
        self.stop_waiting(connection);
        self.granted.remove(&connection);
        let locks: Vec<_> = self.holders.keys().copied().collect();
        for lock in locks {
            self.unlock(lock, connection);
        }
    }
}

/// The worker of a session.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) alive: bool,
    pub(super) connection: Option<u64>,
    pub(super) doing: Doing,
}

#[derive(Default)]
pub(super) enum Doing {
    #[default]
    Nothing,
    /// The server has done it; the answer is under way.
    Ran(Vec<Reply>),
    /// The wait is on its way to the server.
    Sends(Slice),
    Waits {
        lock: LockId,
        mode: LockMode,
        until: Time,
    },
    /// It was answered; what it left is cleared once no interrupt is under way.
    Clears(Waited),
    Ping,
}

/// A caller, as the test sees it.
pub(super) enum Caller {
    Pending {
        lock: LockId,
        number: u64,
        mode: LockMode,
        patience: Patience,
        since: Time,
    },
    Holds {
        lock: LockId,
        id: u64,
        mode: LockMode,
        lost: Lost,
    },
}

pub(super) struct Process {
    pub(super) table: Table,
    pub(super) workers: Vec<Worker>,
    pub(super) callers: BTreeMap<u64, Caller>,
}

pub(super) struct Sim {
    pub(super) random: fastrand::Rng,
    pub(super) now: Time,
    pub(super) server: Server,
    pub(super) processes: Vec<Process>,
    pub(super) timers: BTreeSet<(Time, usize)>,
    pub(super) names: u64,
    /// The largest token that a holder of the lock was given.
    pub(super) tokens: BTreeMap<LockId, i64>,
    pub(super) keys: i64,
    pub(super) faults: bool,
    /// Whether a caller that waits is granted within this time, once faults are off.
    pub(super) longest: Duration,
}

pub(super) fn ended() -> Failure {
    Failure::connect(None, "ended")
}

pub(super) fn lock(key: i64) -> LockId {
    LockId { key, pair: false }
}

impl Sim {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let waiters = random.usize(0..4);
        let keys = random.i64(1..8);
        let max_locks = random.usize(2..12);
        let processes = (0..random.usize(1..4)).map(|_| Process {
            table: LockTable::new(super::Limits {
                waiters,
                max_locks,
                heartbeat: HEARTBEAT,
                observed: random.bool(),
                seed: random.u64(..),
            }),
            workers: (0..=waiters).map(|_| Worker::default()).collect(),
            callers: BTreeMap::new(),
        });
        Self {
            processes: processes.collect(),
            random: fastrand::Rng::with_seed(seed ^ 0x5eed),
            now: Time::ZERO,
            server: Server::default(),
            timers: BTreeSet::new(),
            names: 0,
            tokens: BTreeMap::new(),
            keys,
            faults: true,
            longest: Duration::ZERO,
        }
    }

    pub(super) fn change<T>(
        &mut self,
        p: usize,
        change: impl FnOnce(&mut Table, Now<'_>, &mut Todo) -> T,
    ) -> T {
        let mut effects = Effects::default();
        let now = self.now;
        let changed = change(&mut self.processes[p].table, &|| now, &mut effects);
        self.carry_out(p, effects);
        changed
    }

    pub(super) fn carry_out(&mut self, p: usize, effects: Todo) {
        effects.lost.iter().for_each(|lost| lost.set(true));
        self.timers.extend(effects.timers.iter().map(|at| (*at, p)));
        for (caller, answer) in effects.answers {
            let Some(Caller::Pending {
                lock,
                mode,
                patience,
                since,
                ..
            }) = self.processes[p].callers.remove(&caller)
            else {
                panic!("an answer to nobody");
            };
            match answer {
                Answer::Granted(granted) => {
                    if !self.faults {
                        self.longest = self.longest.max(self.now.saturating_sub(since));
                    }
                    self.granted(p, caller, lock, mode, granted);
                }
                Answer::Busy => assert_eq!(patience, Patience::None, "who waits is not refused"),
                Answer::Failed(_) => {}
            }
        }
        for session in effects.start {
            assert!(!self.processes[p].workers[session].alive, "it has a worker");
            if self.faults && self.random.u8(..10) == 0 {
                let now = self.now;
                let mut effects = Effects::default();
                let table = &mut self.processes[p].table;
                table.worker_ended(&|| now, session, false, &ended(), &mut effects);
                self.carry_out(p, effects);
            } else {
                self.processes[p].workers[session].alive = true;
            }
        }
        if effects.observe {
            let now = self.now;
            self.processes[p].table.observe(now);
        }
    }

    pub(super) fn granted(
        &mut self,
        p: usize,
        caller: u64,
        lock: LockId,
        mode: LockMode,
        granted: Granted<Lost>,
    ) {
        for process in &self.processes {
            for other in process.callers.values() {
                if let Caller::Holds {
                    lock: held,
                    mode: theirs,
                    lost,
                    ..
                } = other
                    && *held == lock
                    && !lost.get()
                {
                    let shares = mode == LockMode::Shared && *theirs == LockMode::Shared;
                    assert!(shares, "two hold {lock:?}");
                }
            }
        }
        if mode == LockMode::Exclusive {
            let last = self.tokens.entry(lock).or_default();
            assert!(granted.fence > *last, "tokens go back");
            *last = granted.fence;
        }
        let holds = Caller::Holds {
            lock,
            id: granted.id,
            mode,
            lost: granted.hold,
        };
        self.processes[p].callers.insert(caller, holds);
    }

    pub(super) fn ask(&mut self) {
        let p = self.random.usize(..self.processes.len());
        self.names += 1;
        let caller = self.names;
        let lock = lock(self.random.i64(0..self.keys));
        let patience = match self.random.u8(..4) {
            0 => Patience::None,
            1 => Patience::Until(self.now + MS * self.random.u32(1..2000)),
            _ => Patience::Forever,
        };
        let mode = if self.random.u8(..4) == 0 {
            LockMode::Shared
        } else {
            LockMode::Exclusive
        };
        let since = self.now;
        let pending = Caller::Pending {
            lock,
            number: 0,
            mode,
            patience,
            since,
        };
        self.processes[p].callers.insert(caller, pending);
        let want = Want {
            lock,
            mode,
            owner: None,
            patience,
        };
        let id = self.change(p, |table, now, effects| {
            table.ask(now, want, caller, effects)
        });
        if let Some(Caller::Pending { number, .. }) = self.processes[p].callers.get_mut(&caller) {
            *number = id;
        }
    }

    /// A caller leaves or releases.
    pub(super) fn end_one(&mut self, p: usize, caller: u64) {
        match self.processes[p].callers.remove(&caller) {
            Some(Caller::Pending { lock, number, .. }) => {
                self.change(p, |table, now, effects| {
                    table.leave(now, lock, number, effects);
                });
            }
            Some(Caller::Holds { lock, id, .. }) => {
                self.change(p, |table, now, effects| {
                    table.release(now, lock, id, Some(0), effects);
                });
            }
            None => {}
        }
    }

    pub(super) fn any_caller(&mut self) -> Option<(usize, u64)> {
        let p = self.random.usize(..self.processes.len());
        let many = self.processes[p].callers.len();
        if many == 0 {
            return None;
        }
        let at = self.random.usize(..many);
        self.processes[p]
            .callers
            .keys()
            .nth(at)
            .map(|caller| (p, *caller))
    }

    /// Has a worker do its next step.
    pub(super) fn work(&mut self, p: usize, session: usize) {
        let worker = &mut self.processes[p].workers[session];
        if !worker.alive {
            return;
        }
        match std::mem::take(&mut worker.doing) {
            Doing::Nothing => self.begin(p, session),
            Doing::Ran(replies) => {
                self.change(p, |table, now, effects| {
                    table.settle(now, session, &replies, effects);
                });
            }
            Doing::Sends(slice) => self.send_wait(p, session, &slice),
            Doing::Waits { lock, mode, until } => self.wait(p, session, lock, mode, until),
            Doing::Clears(waited) => {
                if self.processes[p].table.answered(session) {
                    self.processes[p].workers[session].doing = Doing::Clears(waited);
                    return;
                }
                self.change(p, |table, now, effects| {
                    table.waited(now, session, waited, effects);
                });
            }
            Doing::Ping => {}
        }
    }

    pub(super) fn begin(&mut self, p: usize, session: usize) {
        let batch = if session == 0 {
            Batch::HalfWith(0)
        } else {
            Batch::All
        };
        let next = self.change(p, |table, now, effects| {
            table.next(now, session, batch, effects)
        });
        match next {
            Next::Rest | Next::Close => {
                let retired = session > 0
                    && self.random.u8(..20) == 0
                    && self.processes[p].table.retire(session);
                if retired {
                    self.close(p, session);
                    self.processes[p].workers[session].alive = false;
                }
            }
            Next::Ping => self.processes[p].workers[session].doing = Doing::Ping,
            Next::Run(commands) => {
                let Some(connection) = self.open(p, session) else {
                    return self.change(p, |table, now, effects| {
                        table.refuse_session(now, session, &ended(), effects);
                    });
                };
                let replies = commands
                    .iter()
                    .map(|command| self.carry(*command, p, connection));
                let replies = replies.collect();
                self.processes[p].workers[session].doing = Doing::Ran(replies);
            }
            Next::Wait(slice) => {
                if self.open(p, session).is_none() {
                    return self.change(p, |table, now, effects| {
                        table.waited(now, session, Waited::Unopened, effects);
                    });
                }
                self.processes[p].workers[session].doing = Doing::Sends(slice);
            }
        }
    }

    pub(super) fn send_wait(&mut self, p: usize, session: usize, slice: &Slice) {
        let Some(connection) = self.processes[p].workers[session].connection else {
            return;
        };
        let Slice {
            lock, mode, time, ..
        } = *slice;
        if !self.processes[p].table.is_wanted(session) {
            self.processes[p].workers[session].doing = Doing::Clears(Waited::InVain);
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
        self.processes[p].workers[session].doing = Doing::Waits { lock, mode, until };
    }

    pub(super) fn wait(
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
        let waited = if self.server.granted.remove(&connection) {
            Waited::Granted(self.server.token(mode))
        } else if self.now < until && waits(&self.server) {
            self.processes[p].workers[session].doing = Doing::Waits { lock, mode, until };
            return;
        } else {
            // The time is over, or it was interrupted.
            self.server.stop_waiting(connection);
            if self.server.granted.remove(&connection) {
                self.server.unlock(lock, connection);
            }
            Waited::InVain
        };
        self.processes[p].table.answered(session);
        self.processes[p].workers[session].doing = Doing::Clears(waited);
    }

    pub(super) fn carry(&mut self, command: Command, p: usize, connection: u64) -> Reply {
        match command {
            Command::Try { lock, mode } => {
                Reply::Lock(self.server.try_lock(lock, mode, connection))
            }
            Command::Release { lock, .. } => Reply::Lock(self.server.unlock(lock, connection)),
            Command::Look { lock } => {
                let queue = self.server.queues.get(&lock);
                Reply::Awaited(queue.is_some_and(|queue| !queue.is_empty()))
            }
            Command::Interrupt { session, .. } => {
                let target = &self.processes[p].workers[session];
                let runs = matches!(target.doing, Doing::Ran(_) | Doing::Ping);
                assert!(!runs, "an interrupt hits what it was not meant for");
                if let Some(target) = target.connection
                    && !self.server.granted.contains(&target)
                    && matches!(
                        self.processes[p].workers[session].doing,
                        Doing::Waits { .. }
                    )
                {
                    self.server.stop_waiting(target);
                }
                Reply::Interrupted
            }
        }
    }

    pub(super) fn open(&mut self, p: usize, session: usize) -> Option<u64> {
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

    pub(super) fn close(&mut self, p: usize, session: usize) {
        if let Some(connection) = self.processes[p].workers[session].connection.take() {
            self.server.end(connection);
        }
    }

    /// A session ends, a statement fails, or a worker panics.
    pub(super) fn fault(&mut self) {
        let p = self.random.usize(..self.processes.len());
        let session = self.random.usize(..self.processes[p].workers.len());
        if !self.processes[p].workers[session].alive {
            return;
        }
        if self.random.bool() {
            self.close(p, session);
            self.processes[p].workers[session] = Worker::default();
            self.change(p, |table, now, effects| {
                table.worker_ended(now, session, true, &ended(), effects);
            });
        } else {
            let worker = &mut self.processes[p].workers[session];
            let idle = matches!(worker.doing, Doing::Nothing) && worker.connection.is_none();
            worker.doing = Doing::Nothing;
            self.close(p, session);
            if !idle {
                self.change(p, |table, now, effects| {
                    table.session_lost(now, session, &ended(), effects);
                });
            }
        }
    }

    pub(super) fn pass_time(&mut self, by: Duration) {
        let until = self.now + by;
        while let Some((at, p)) = self.timers.first().copied().filter(|(at, _)| *at <= until) {
            self.timers.remove(&(at, p));
            self.now = self.now.max(at);
            let now = self.now;
            self.change(p, |table, _, effects| table.tick(at, now, effects));
        }
        self.now = until;
    }

    pub(super) fn step(&mut self) {
        match self.random.u8(..20) {
            0..4 => self.ask(),
            4..8 => {
                if let Some((p, caller)) = self.any_caller() {
                    self.end_one(p, caller);
                }
            }
            8 if self.faults && self.random.u8(..6) == 0 => self.fault(),
            9 => {
                let by = MS * self.random.u32(..200);
                self.pass_time(by);
            }
            _ => {
                let p = self.random.usize(..self.processes.len());
                let session = self.random.usize(..self.processes[p].workers.len());
                self.work(p, session);
            }
        }
    }

    /// Lets everybody work for a while.
    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            for p in 0..self.processes.len() {
                for session in 0..self.processes[p].workers.len() {
                    self.work(p, session);
                    self.work(p, session);
                }
            }
            self.pass_time(MS * 5);
        }
    }

    /// With faults off, everybody who waits is granted in bounded time, if holders let go.
    pub(super) fn is_live(&mut self) {
        self.faults = false;
        for _ in 0..200 {
            let holding: Vec<_> = self.everybody(|caller| matches!(caller, Caller::Holds { .. }));
            let asking: Vec<_> = self.everybody(|caller| matches!(caller, Caller::Pending { .. }));
            if holding.is_empty() && asking.is_empty() {
                return;
            }
            for (p, caller) in holding {
                self.end_one(p, caller);
            }
            self.run(Duration::from_secs(1));
        }
        panic!("somebody waits for ever");
    }

    pub(super) fn everybody(&self, is: impl Fn(&Caller) -> bool) -> Vec<(usize, u64)> {
        let processes = self.processes.iter().enumerate();
        processes
            .flat_map(|(p, process)| {
                let callers = process.callers.iter().filter(|(_, caller)| is(caller));
                callers.map(move |(caller, _)| (p, *caller))
            })
            .collect()
    }

    pub(super) fn leaves_nothing(&mut self) {
        self.run(Duration::from_secs(3));
        for process in &self.processes {
            let table = &process.table;
            assert!(
                table.slots.is_empty(),
                "{} slots are left",
                table.slots.len()
            );
            assert!(table.wanted.is_empty() && table.polls.is_empty());
            assert!(table.owners.is_empty());
            for session in &table.sessions {
                assert_eq!(session.held, 0, "a session holds nothing");
                assert!(session.requests.is_empty() && session.in_flight.is_empty());
                assert!(session.wait.is_none() && !session.interrupting);
            }
        }
        assert!(self.server.holders.is_empty(), "{:?}", self.server.holders);
        assert!(self.server.queues.values().all(VecDeque::is_empty));
    }
}

/// Two programs without faults, whose callers the test plays itself.
pub(super) fn two(waiters: usize, keys: i64) -> Sim {
    let mut sim = Sim::new(0);
    sim.faults = false;
    sim.keys = keys;
    let process = || Process {
        table: LockTable::new(super::Limits {
            waiters,
            max_locks: 100,
            heartbeat: HEARTBEAT,
            observed: false,
            seed: 7,
        }),
        workers: (0..=waiters).map(|_| Worker::default()).collect(),
        callers: BTreeMap::new(),
    };
    sim.processes = vec![process(), process()];
    sim
}

impl Sim {
    /// A caller of a process waits for a lock.
    pub(super) fn wait_in(&mut self, p: usize, key: i64) -> u64 {
        self.names += 1;
        let (caller, lock, mode, patience) = (
            self.names,
            lock(key),
            LockMode::Exclusive,
            Patience::Forever,
        );
        let since = self.now;
        let pending = Caller::Pending {
            lock,
            number: 0,
            mode,
            patience,
            since,
        };
        self.processes[p].callers.insert(caller, pending);
        let want = Want {
            lock,
            mode,
            owner: None,
            patience,
        };
        let id = self.change(p, |table, now, effects| {
            table.ask(now, want, caller, effects)
        });
        if let Some(Caller::Pending { number, .. }) = self.processes[p].callers.get_mut(&caller) {
            *number = id;
        }
        caller
    }

    pub(super) fn holds(&self, p: usize, caller: u64) -> bool {
        matches!(
            self.processes[p].callers.get(&caller),
            Some(Caller::Holds { .. })
        )
    }
}
