//! The table against a model of the server, driven by seeds: several processes with callers that ask,
//! leave and release, statements that are answered late or never, sessions and workers that end.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::error::Failure;

const HEARTBEAT: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

type Lost = Rc<Cell<bool>>;
type Table = LockTable<u64, Lost, u64>;
type Todo = Effects<u64, Lost, u64>;

/// The lock table of the server.
#[derive(Default)]
struct Server {
    holders: BTreeMap<LockId, Vec<(u64, Way)>>,
    queues: BTreeMap<LockId, VecDeque<(u64, Way)>>,
    granted: BTreeSet<u64>,
    fences: i64,
    connections: u64,
}

impl Server {
    fn is_free(&self, lock: LockId, connection: u64, way: Way) -> bool {
        let mut holders = self.holders.get(&lock).into_iter().flatten();
        holders
            .all(|(other, held)| *other == connection || way == Way::Shared && *held == Way::Shared)
    }

    fn try_lock(&mut self, lock: LockId, way: Way, connection: u64) -> Stepped {
        let mut queue = self.queues.get(&lock).into_iter().flatten();
        let awaited = queue.any(|(_, other)| way == Way::Alone || *other == Way::Alone);
        if awaited || !self.is_free(lock, connection, way) {
            return Stepped::Contended;
        }
        self.grant(lock, way, connection)
    }

    fn grant(&mut self, lock: LockId, way: Way, connection: u64) -> Stepped {
        let holders = self.holders.entry(lock).or_default();
        assert!(
            !holders.iter().any(|(one, _)| *one == connection),
            "a session takes what it holds"
        );
        holders.push((connection, way));
        self.token(way)
    }

    fn token(&mut self, way: Way) -> Stepped {
        if way == Way::Shared {
            return Stepped::Shared;
        }
        self.fences += 1;
        Stepped::Taken(self.fences << HAND_OVER_BITS)
    }

    fn unlock(&mut self, lock: LockId, connection: u64) -> Stepped {
        let holders = self.holders.entry(lock).or_default();
        let held = holders.len();
        holders.retain(|(one, _)| *one != connection);
        let released = holders.len() < held;
        if holders.is_empty() {
            self.holders.remove(&lock);
        }
        self.pass_on(lock);
        if released {
            Stepped::Released
        } else {
            Stepped::NotHeld
        }
    }

    fn pass_on(&mut self, lock: LockId) {
        while let Some((first, way)) = self.queues.get(&lock).and_then(|q| q.front().copied()) {
            if !self.is_free(lock, first, way) {
                return;
            }
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.pop_front();
            }
            self.holders.entry(lock).or_default().push((first, way));
            self.granted.insert(first);
        }
    }

    fn stop_waiting(&mut self, connection: u64) {
        let locks: Vec<_> = self.queues.keys().copied().collect();
        for lock in locks {
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.retain(|(one, _)| *one != connection);
            }
            self.pass_on(lock);
        }
    }

    fn end(&mut self, connection: u64) {
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
struct Worker {
    alive: bool,
    connection: Option<u64>,
    doing: Doing,
}

#[derive(Default)]
enum Doing {
    #[default]
    Nothing,
    /// The server has done it; the answer is under way.
    Ran(Vec<Reply>),
    Waits {
        lock: LockId,
        way: Way,
        until: Time,
    },
    Ping,
}

/// A caller, as the test sees it.
enum Caller {
    Asked {
        lock: LockId,
        number: u64,
        way: Way,
        patience: Patience,
        since: Time,
    },
    Holds {
        lock: LockId,
        id: u64,
        way: Way,
        lost: Lost,
    },
}

struct Process {
    table: Table,
    workers: Vec<Worker>,
    callers: BTreeMap<u64, Caller>,
}

struct Sim {
    random: fastrand::Rng,
    now: Time,
    server: Server,
    processes: Vec<Process>,
    timers: BTreeSet<(Time, usize)>,
    names: u64,
    /// The largest token that a holder of the lock was given.
    tokens: BTreeMap<LockId, i64>,
    keys: i64,
    faults: bool,
    /// Whether a caller that waits is granted within this time, once faults are off.
    longest: Duration,
}

fn ended() -> Failure {
    Failure::connect(None, "ended")
}

fn lock(key: i64) -> LockId {
    LockId { key, pair: false }
}

impl Sim {
    fn new(seed: u64) -> Self {
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

    fn change<T>(
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

    fn carry_out(&mut self, p: usize, effects: Todo) {
        effects.lost.iter().for_each(|lost| lost.set(true));
        if let Some(at) = effects.timer {
            self.timers.insert((at, p));
        }
        for (caller, answer) in effects.answers {
            let Some(Caller::Asked {
                lock,
                way,
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
                    self.granted(p, caller, lock, way, granted);
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

    fn granted(&mut self, p: usize, caller: u64, lock: LockId, way: Way, granted: Granted<Lost>) {
        for process in &self.processes {
            for other in process.callers.values() {
                if let Caller::Holds {
                    lock: held,
                    way: theirs,
                    lost,
                    ..
                } = other
                    && *held == lock
                    && !lost.get()
                {
                    let shares = way == Way::Shared && *theirs == Way::Shared;
                    assert!(shares, "two hold {lock:?}");
                }
            }
        }
        if way == Way::Alone {
            let last = self.tokens.entry(lock).or_default();
            assert!(granted.fence > *last, "tokens go back");
            *last = granted.fence;
        }
        let holds = Caller::Holds {
            lock,
            id: granted.id,
            way,
            lost: granted.hold,
        };
        self.processes[p].callers.insert(caller, holds);
    }

    fn ask(&mut self) {
        let p = self.random.usize(..self.processes.len());
        self.names += 1;
        let caller = self.names;
        let lock = lock(self.random.i64(0..self.keys));
        let patience = match self.random.u8(..4) {
            0 => Patience::None,
            1 => Patience::Until(self.now + MS * self.random.u32(1..2000)),
            _ => Patience::Forever,
        };
        let way = if self.random.u8(..4) == 0 {
            Way::Shared
        } else {
            Way::Alone
        };
        let since = self.now;
        let asked = Caller::Asked {
            lock,
            number: 0,
            way,
            patience,
            since,
        };
        self.processes[p].callers.insert(caller, asked);
        let want = Want {
            lock,
            way,
            line: None,
            patience,
        };
        let id = self.change(p, |table, now, effects| {
            table.ask(now, want, caller, effects)
        });
        if let Some(Caller::Asked { number, .. }) = self.processes[p].callers.get_mut(&caller) {
            *number = id;
        }
    }

    /// A caller leaves or releases.
    fn end_one(&mut self, p: usize, caller: u64) {
        match self.processes[p].callers.remove(&caller) {
            Some(Caller::Asked { lock, number, .. }) => {
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

    fn any_caller(&mut self) -> Option<(usize, u64)> {
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
    fn work(&mut self, p: usize, session: usize) {
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
            Doing::Waits { lock, way, until } => self.wait(p, session, lock, way, until),
            Doing::Ping => {}
        }
    }

    fn begin(&mut self, p: usize, session: usize) {
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
                let Some(connection) = self.open(p, session) else {
                    return self.change(p, |table, now, effects| {
                        table.waited(now, session, Waited::Unopened, effects);
                    });
                };
                let Slice {
                    lock, way, time, ..
                } = slice;
                if self.server.try_lock(lock, way, connection) == Stepped::Contended {
                    let queue = self.server.queues.entry(lock).or_default();
                    queue.push_back((connection, way));
                    self.server.pass_on(lock);
                } else {
                    self.server.granted.insert(connection);
                }
                let until = self.now + time;
                self.processes[p].workers[session].doing = Doing::Waits { lock, way, until };
            }
        }
    }

    fn wait(&mut self, p: usize, session: usize, lock: LockId, way: Way, until: Time) {
        let Some(connection) = self.processes[p].workers[session].connection else {
            return;
        };
        let waits = |server: &Server| {
            let mut queue = server.queues.get(&lock).into_iter().flatten();
            queue.any(|(one, _)| *one == connection)
        };
        let waited = if self.server.granted.remove(&connection) {
            Waited::Granted(self.server.token(way))
        } else if self.now < until && waits(&self.server) {
            self.processes[p].workers[session].doing = Doing::Waits { lock, way, until };
            return;
        } else {
            // The time is over, or it was interrupted.
            self.server.stop_waiting(connection);
            if self.server.granted.remove(&connection) {
                self.server.unlock(lock, connection);
            }
            Waited::InVain
        };
        self.change(p, |table, now, effects| {
            table.waited(now, session, waited, effects);
        });
    }

    fn carry(&mut self, command: Command, p: usize, connection: u64) -> Reply {
        match command {
            Command::Try { lock, way } => Reply::Lock(self.server.try_lock(lock, way, connection)),
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
                {
                    self.server.stop_waiting(target);
                }
                Reply::Interrupted
            }
        }
    }

    fn open(&mut self, p: usize, session: usize) -> Option<u64> {
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

    fn close(&mut self, p: usize, session: usize) {
        if let Some(connection) = self.processes[p].workers[session].connection.take() {
            self.server.end(connection);
        }
    }

    /// A session ends, a statement fails, or a worker panics.
    fn fault(&mut self) {
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

    fn pass_time(&mut self, by: Duration) {
        let until = self.now + by;
        while let Some((at, p)) = self.timers.first().copied().filter(|(at, _)| *at <= until) {
            self.timers.remove(&(at, p));
            self.now = self.now.max(at);
            let now = self.now;
            self.change(p, |table, _, effects| table.tick(at, now, effects));
        }
        self.now = until;
    }

    fn step(&mut self) {
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
    fn run(&mut self, time: Duration) {
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
    fn is_live(&mut self) {
        self.faults = false;
        for _ in 0..200 {
            let holding: Vec<_> = self.everybody(|caller| matches!(caller, Caller::Holds { .. }));
            let asking: Vec<_> = self.everybody(|caller| matches!(caller, Caller::Asked { .. }));
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

    fn everybody(&self, is: impl Fn(&Caller) -> bool) -> Vec<(usize, u64)> {
        let processes = self.processes.iter().enumerate();
        processes
            .flat_map(|(p, process)| {
                let callers = process.callers.iter().filter(|(_, caller)| is(caller));
                callers.map(move |(caller, _)| (p, *caller))
            })
            .collect()
    }

    fn leaves_nothing(&mut self) {
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

/// So many as `LOCKAPI_SEEDS` says, or the one in `LOCKAPI_SEED`.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match number("LOCKAPI_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCKAPI_SEEDS").unwrap_or(400),
    }
}

#[test]
fn random_programs_exclude_each_other_and_leave_nothing() {
    for seed in seeds() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut sim = Sim::new(seed);
            for _ in 0..2000 {
                sim.step();
            }
            sim.is_live();
            sim.leaves_nothing();
        });
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("failed with LOCKAPI_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn random_programs_that_all_leave_leave_nothing() {
    for seed in seeds() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut sim = Sim::new(seed);
            for _ in 0..500 {
                sim.step();
            }
            sim.faults = false;
            for (p, caller) in sim.everybody(|_| true) {
                sim.end_one(p, caller);
            }
            sim.leaves_nothing();
        });
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("failed with LOCKAPI_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Two programs without faults, whose callers the test plays itself.
fn two(waiters: usize, keys: i64) -> Sim {
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
    fn wait_in(&mut self, p: usize, key: i64) -> u64 {
        self.names += 1;
        let (caller, lock, way, patience) = (self.names, lock(key), Way::Alone, Patience::Forever);
        let since = self.now;
        let asked = Caller::Asked {
            lock,
            number: 0,
            way,
            patience,
            since,
        };
        self.processes[p].callers.insert(caller, asked);
        let want = Want {
            lock,
            way,
            line: None,
            patience,
        };
        let id = self.change(p, |table, now, effects| {
            table.ask(now, want, caller, effects)
        });
        if let Some(Caller::Asked { number, .. }) = self.processes[p].callers.get_mut(&caller) {
            *number = id;
        }
        caller
    }

    fn holds(&self, p: usize, caller: u64) -> bool {
        matches!(
            self.processes[p].callers.get(&caller),
            Some(Caller::Holds { .. })
        )
    }
}

#[test]
fn more_keys_than_sessions_that_wait_have_their_turn() {
    const KEYS: i64 = 6;
    let mut sim = two(1, KEYS);
    // The other program never lets a lock go for long: three callers take turns on each.
    for key in 0..KEYS {
        for _ in 0..3 {
            sim.wait_in(1, key);
        }
    }
    sim.run(MS * 50);
    let waiting: Vec<u64> = (0..KEYS).map(|key| sim.wait_in(0, key)).collect();
    let (began, mut left) = (sim.now, waiting.len());
    let bound = Duration::from_secs(1) + Duration::from_millis(250) * 7 + MS * 500;
    while left > 0 {
        sim.run(MS * 5);
        for (p, caller) in sim.everybody(|caller| matches!(caller, Caller::Holds { .. })) {
            let Some(Caller::Holds { lock, .. }) = sim.processes[p].callers.get(&caller) else {
                continue;
            };
            let key = lock.key;
            sim.end_one(p, caller);
            if p == 0 {
                left -= 1;
            } else {
                sim.wait_in(1, key);
            }
        }
        assert!(
            sim.now.saturating_sub(began) < bound,
            "{left} still wait after {:?}",
            sim.now.saturating_sub(began)
        );
    }
}

#[test]
fn locks_that_are_held_long_do_not_keep_others_from_waiting() {
    let mut sim = two(2, 10);
    let theirs: Vec<u64> = (0..10).map(|key| sim.wait_in(1, key)).collect();
    sim.run(MS * 50);
    let ours: Vec<u64> = (0..10).map(|key| sim.wait_in(0, key)).collect();
    sim.run(MS * 50);
    // Each is let go after a while; what is granted stays held.
    for (at, caller) in theirs.into_iter().enumerate() {
        sim.run(Duration::from_secs(1));
        sim.end_one(1, caller);
        let began = sim.now;
        while !sim.holds(0, ours[at]) {
            sim.run(MS * 5);
            assert!(
                sim.now.saturating_sub(began) < Duration::from_secs(3),
                "key {at} is not granted"
            );
        }
    }
    // A session that holds some of them waits meanwhile, and is interrupted to release one.
    let theirs = [sim.wait_in(1, 0), sim.wait_in(1, 1)];
    let more: Vec<u64> = (0..4).map(|key| sim.wait_in(1, 20 + key)).collect();
    sim.run(MS * 300);
    let waits: Vec<u64> = (0..4).map(|key| sim.wait_in(0, 20 + key)).collect();
    sim.run(MS * 300);
    sim.end_one(0, ours[0]);
    sim.end_one(0, ours[1]);
    sim.run(MS * 50);
    assert!(
        theirs.iter().all(|caller| sim.holds(1, *caller)),
        "released at once"
    );
    for caller in more {
        sim.end_one(1, caller);
    }
    sim.run(Duration::from_secs(3));
    assert!(waits.iter().all(|caller| sim.holds(0, *caller)));
}

#[test]
fn callers_that_left_make_room_at_once() {
    for waiters in [0, 1] {
        let mut sim = two(waiters, 100);
        let theirs: Vec<u64> = (0..30).map(|key| sim.wait_in(1, key)).collect();
        sim.run(MS * 50);
        let ours: Vec<u64> = (0..30).map(|key| sim.wait_in(0, key)).collect();
        sim.run(MS * 20);
        for caller in ours {
            sim.end_one(0, caller);
        }
        // The session that waits needs a moment to hear of it.
        assert!(
            sim.processes[0].table.slots.len() <= waiters,
            "places are left behind"
        );
        sim.run(Duration::from_secs(1));
        assert!(sim.processes[0].table.slots.is_empty());
        for caller in theirs {
            sim.end_one(1, caller);
        }
        sim.leaves_nothing();
    }
}

#[test]
fn a_circle_is_one_that_is_seen_twice() {
    let mut sim = two(1, 2);
    let line = crate::mutex::Line::new().id();
    let theirs = sim.wait_in(1, 1);
    sim.run(MS * 20);
    let ask = |sim: &mut Sim, key| {
        sim.names += 1;
        let (caller, way, patience) = (sim.names, Way::Alone, Patience::Forever);
        let (lock, since) = (lock(key), sim.now);
        let asked = Caller::Asked {
            lock,
            number: 0,
            way,
            patience,
            since,
        };
        sim.processes[0].callers.insert(caller, asked);
        let want = Want {
            lock,
            way,
            line: Some(line),
            patience,
        };
        sim.change(0, |table, now, effects| {
            table.ask(now, want, caller, effects)
        });
        caller
    };
    let own = ask(&mut sim, 0);
    sim.run(MS * 20);
    assert!(sim.holds(0, own));
    let waits = ask(&mut sim, 1);
    let sees = |sim: &mut Sim| {
        let until = sim.now + Duration::from_secs(1);
        while sim.now < until {
            sim.work(0, 0);
            let next = sim.change(0, |table, now, effects| {
                table.next(now, 1, Batch::All, effects)
            });
            if let Next::Wait(slice) = next {
                assert_eq!(slice.holding, [lock(0)]);
                let circle = Waited::Circle(slice.holding);
                sim.change(0, |table, now, effects| {
                    table.waited(now, 1, circle, effects);
                });
                return;
            }
            sim.pass_time(MS);
        }
        panic!("it does not wait");
    };
    sees(&mut sim);
    assert!(
        sim.processes[0].callers.contains_key(&waits),
        "seen once, it may have been about to end"
    );
    sees(&mut sim);
    assert!(!sim.processes[0].callers.contains_key(&waits), "seen twice");
    sim.end_one(0, own);
    sim.end_one(1, theirs);
    sim.leaves_nothing();
}

#[test]
fn an_attempt_of_one_branch_takes_no_wait_of_another_away() {
    let mut sim = two(1, 2);
    let line = crate::mutex::Line::new().id();
    let theirs = sim.wait_in(1, 1);
    let want = |lock, patience| Want {
        lock,
        way: Way::Alone,
        line: Some(line),
        patience,
    };
    sim.run(MS * 20);
    let mut effects = Effects::default();
    let table = &mut sim.processes[0].table;
    let waits = table.ask(&|| MS, want(lock(1), Patience::Forever), 1, &mut effects);
    let tries = table.ask(&|| MS, want(lock(1), Patience::None), 2, &mut effects);
    table.leave(&|| MS, lock(1), tries, &mut effects);
    assert!(!table.owners.is_empty(), "the other branch still waits");
    table.leave(&|| MS, lock(1), waits, &mut effects);
    assert!(table.owners.is_empty());
    sim.end_one(1, theirs);
}
