//! Several processes with their tables and a model of the server, driven by seeds: callers acquire, leave
//! and release, statements are answered late or never, sessions and workers end.

mod by_hand;
mod server;
mod worker;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::error::Failure;
use crate::mutex::{LockOwner, OwnerId};

pub(super) use by_hand::two;
use server::Server;
use worker::{Worker, WorkerState};

pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) type Lost = Rc<Cell<bool>>;
pub(super) type Table = LockTable<u64, Lost, u64>;
pub(super) type TableEffects = Effects<u64, Lost, u64>;

/// A caller, as the test sees it.
pub(super) enum Caller {
    Pending {
        lock: LockId,
        number: u64,
        mode: LockMode,
        owner: Option<OwnerId>,
        policy: WaitPolicy,
        since: Time,
    },
    Holds {
        lock: LockId,
        id: u64,
        mode: LockMode,
        owner: Option<OwnerId>,
        lost: Lost,
        waited: Option<Duration>,
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
    /// Lock owners, for some of the callers.
    pub(super) owners: Vec<OwnerId>,
    /// Owners take one lock after the other, and let go of none while they wait for the next; nobody leaves or shares a lock.
    pub(super) one_by_one: bool,
    /// How often a session found a cycle.
    pub(super) cycles: usize,
    /// Releases that are not answered yet.
    pub(super) releases: usize,
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
        Self::with(seed, 0..4, 1..4)
    }

    /// Programs that see each deadlock of theirs: each has a session that waits.
    pub(super) fn waiting(seed: u64) -> Self {
        Self {
            one_by_one: true,
            keys: 6,
            owners: (0..4).map(|_| LockOwner::new().id()).collect(),
            ..Self::with(seed, 1..4, 2..4)
        }
    }

    fn with(seed: u64, waiters: Range<usize>, processes: Range<usize>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let waiters = random.usize(waiters);
        let keys = random.i64(1..8);
        let max_locks = random.usize(2..12);
        let processes = (0..random.usize(processes)).map(|_| Process {
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
            owners: (0..random.usize(0..4))
                .map(|_| LockOwner::new().id())
                .collect(),
            one_by_one: false,
            cycles: 0,
            releases: 0,
            faults: true,
            longest: Duration::ZERO,
        }
    }

    pub(super) fn change<T>(
        &mut self,
        p: usize,
        change: impl FnOnce(&mut Table, Now<'_>, &mut TableEffects) -> T,
    ) -> T {
        // Now and then time passes while the table changes.
        let passes = self.faults && self.random.u8(..8) == 0;
        let step = if passes { MS } else { Duration::ZERO };
        let clock = Cell::new(self.now);
        let now = || {
            let at = clock.get();
            clock.set(at + step);
            at
        };
        let table = &mut self.processes[p].table;
        let (changed, effects) = table.change(&now, |table, effects| change(table, &now, effects));
        table.lets_readers_in();
        // To look at all of it each time takes longer than the changes.
        if !self.faults || self.random.u8(..4) == 0 {
            table.is_consistent();
        }
        self.now = clock.get();
        self.carry_out(p, effects);
        changed
    }

    pub(super) fn carry_out(&mut self, p: usize, effects: TableEffects) {
        effects.lost.iter().for_each(|lost| lost.set(true));
        self.timers.extend(effects.timers.iter().map(|at| (*at, p)));
        self.releases -= effects.releases.len();
        for (caller, answer) in effects.answers {
            let Some(Caller::Pending {
                mode,
                owner,
                policy,
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
                    self.granted(p, caller, mode, owner, granted);
                }
                Answer::Busy => {
                    let is_over = match policy {
                        WaitPolicy::NoWait => true,
                        WaitPolicy::Until(at) => at <= self.now,
                        WaitPolicy::Forever => false,
                    };
                    assert!(is_over, "who waits is not refused");
                }
                Answer::Failed(Reason::Deadlock) => {
                    assert!(owner.is_some() && policy != WaitPolicy::NoWait);
                }
                Answer::Failed(_) => {}
            }
        }
        for session in effects.start {
            assert!(!self.processes[p].workers[session].alive, "it has a worker");
            if self.faults && self.random.u8(..10) == 0 {
                self.change(p, |table, now, effects| {
                    table.worker_ended(now, session, false, &ended(), effects);
                });
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
        mode: LockMode,
        owner: Option<OwnerId>,
        granted: Granted<Lost>,
    ) {
        let lock = granted.lock;
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
            owner,
            lost: granted.hold,
            waited: granted.waited,
        };
        self.processes[p].callers.insert(caller, holds);
    }

    pub(super) fn acquire(&mut self) {
        let p = self.random.usize(..self.processes.len());
        let lock = lock(self.random.i64(0..self.keys));
        let policy = match self.random.u8(..4) {
            0 => WaitPolicy::NoWait,
            1 => WaitPolicy::Until(self.now + MS * self.random.u32(1..2000)),
            _ => WaitPolicy::Forever,
        };
        let mode = if !self.one_by_one && self.random.u8(..4) == 0 {
            LockMode::Shared
        } else {
            LockMode::Exclusive
        };
        // Few owners, so that they meet.
        let owner = self.random.choice(&self.owners).copied();
        let owner = owner.filter(|_| self.one_by_one || self.random.bool());
        let callers = self.processes[p].callers.values();
        let mut asks = callers.filter_map(|caller| match caller {
            Caller::Pending { owner, .. } => *owner,
            Caller::Holds { .. } => None,
        });
        let owner = owner.filter(|own| !self.one_by_one || asks.all(|one| one != *own));
        self.ask_for(
            p,
            Acquisition {
                lock,
                mode,
                owner,
                policy,
            },
        );
    }

    /// A caller of a process asks for a lock.
    pub(super) fn ask_for(&mut self, p: usize, wanted: Acquisition) -> u64 {
        let Acquisition {
            lock,
            mode,
            owner,
            policy,
        } = wanted;
        self.names += 1;
        let (caller, since) = (self.names, self.now);
        let pending = Caller::Pending {
            lock,
            number: 0,
            mode,
            owner,
            policy,
            since,
        };
        let never_ends = self.would_wait_for_itself(p, &wanted);
        self.processes[p].callers.insert(caller, pending);
        let id = self.change(p, |table, now, effects| {
            table.acquire(now, wanted, caller, effects)
        });
        if let Some(Caller::Pending { number, .. }) = self.processes[p].callers.get_mut(&caller) {
            *number = id;
            assert!(!never_ends, "who waits for itself is told so");
        }
        caller
    }

    /// Whether a request waits for holders of its process that wait for its own owner: whatever others do, none goes on.
    fn would_wait_for_itself(&self, p: usize, wanted: &Acquisition) -> bool {
        let Some(own) = wanted.owner.filter(|_| wanted.policy != WaitPolicy::NoWait) else {
            return false;
        };
        // Those whose time is nearly over may be answered meanwhile.
        let soon = self.now + MS * 100;
        let waits = |policy| match policy {
            WaitPolicy::NoWait => false,
            WaitPolicy::Until(at) => at > soon,
            WaitPolicy::Forever => true,
        };
        let mut next = vec![(wanted.lock, wanted.mode)];
        let mut seen = next.clone();
        while let Some((wanted, mode)) = next.pop() {
            for holder in self.processes[p].callers.values() {
                let Caller::Holds {
                    lock,
                    mode: held,
                    owner: Some(owner),
                    lost,
                    ..
                } = holder
                else {
                    continue;
                };
                let share = mode == LockMode::Shared && *held == LockMode::Shared;
                if *lock != wanted || lost.get() || share {
                    continue;
                }
                if *owner == own {
                    return true;
                }
                for waiter in self.processes[p].callers.values() {
                    if let Caller::Pending {
                        lock,
                        mode,
                        owner: Some(it),
                        policy,
                        ..
                    } = waiter
                        && it == owner
                        && waits(*policy)
                        && !seen.contains(&(*lock, *mode))
                    {
                        seen.push((*lock, *mode));
                        next.push((*lock, *mode));
                    }
                }
            }
        }
        false
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
                self.releases += 1;
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

    /// A session ends, a statement fails, a worker panics, or a program closes its locks.
    pub(super) fn fault(&mut self) {
        let p = self.random.usize(..self.processes.len());
        if self.random.u8(..64) == 0 {
            self.change(p, |table, now, effects| table.close_all(now, effects));
            return;
        }
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
            let idle = matches!(worker.state, WorkerState::Idle) && worker.connection.is_none();
            worker.state = WorkerState::Idle;
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
        let mut ticks = 0;
        while let Some((at, p)) = self.timers.first().copied().filter(|(at, _)| *at <= until) {
            ticks += 1;
            assert!(ticks < 10_000, "there is always a timer that is due");
            self.timers.remove(&(at, p));
            self.now = self.now.max(at);
            let now = self.now;
            self.change(p, |table, _, effects| table.tick(at, now, effects));
        }
        self.now = until;
    }

    pub(super) fn step(&mut self) {
        match self.random.u8(..20) {
            0..4 => self.acquire(),
            4..8 => {
                let caller = self.any_caller();
                let ends = caller.filter(|(p, caller)| {
                    !self.one_by_one || self.holds(*p, *caller) && !self.still_waits(*p, *caller)
                });
                if let Some((p, caller)) = ends {
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

    /// With faults off, and with owners that let go of nothing before they have all that they wait for, everybody is granted the
    /// lock in bounded time, or told of a deadlock.
    pub(super) fn ends_without_deadlocks(&mut self) {
        self.faults = false;
        for _ in 0..1000 {
            let asking = self.everybody(|caller| matches!(caller, Caller::Pending { .. }));
            let holding = self.everybody(|caller| matches!(caller, Caller::Holds { .. }));
            if holding.is_empty() && asking.is_empty() {
                return;
            }
            for (p, caller) in holding {
                if !self.still_waits(p, caller) {
                    self.end_one(p, caller);
                }
            }
            self.run(MS * 200);
        }
        panic!("somebody waits for himself");
    }

    /// Whether the owner of a hold waits for another lock.
    fn still_waits(&self, p: usize, caller: u64) -> bool {
        match self.processes[p].callers.get(&caller) {
            Some(Caller::Holds {
                owner: Some(own), ..
            }) => self.owner_waits(p, *own),
            _ => false,
        }
    }

    /// Whether an owner waits for a lock.
    fn owner_waits(&self, p: usize, own: OwnerId) -> bool {
        let waits = |caller: &Caller| match caller {
            Caller::Pending { owner, policy, .. } => {
                let lasts = match policy {
                    WaitPolicy::NoWait => false,
                    WaitPolicy::Until(at) => *at > self.now,
                    WaitPolicy::Forever => true,
                };
                lasts && *owner == Some(own)
            }
            Caller::Holds { .. } => false,
        };
        self.processes[p].callers.values().any(waits)
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
        assert_eq!(self.releases, 0, "releases are not answered");
        for process in &self.processes {
            let table = &process.table;
            assert_eq!(table.releases, 0, "no release is under way");
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
