//! What a seed decides: how large the runtime is, and how often what fails.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub(crate) enum Fault {
    /// Messages take up to seconds.
    Delay,
    /// A connection ends before the server has read a statement.
    CutBefore,
    /// A connection ends after the server has carried a statement out.
    CutAfter,
    /// An answer never comes, and the connection stays open.
    Silence,
    /// The server refuses a statement.
    Refusal,
    /// The server ends a session, before a statement or after it.
    Fatal,
    /// A session is ended while it is idle or waits.
    Terminate,
    /// The server crashes: all sessions end, and tokens that are not on disk are lost.
    Restart,
    /// Nobody can connect.
    Unreachable,
    /// What a process sends and what it is sent waits, and its connections may end.
    Partition,
    /// Notifications are lost.
    Deaf,
    /// A process is stopped and continued.
    Stop,
    /// A process ends, and another one begins.
    Kill,
    /// A call is dropped at any of its polls.
    Leave,
    /// Clocks of processes run faster or slower, by up to a hundredth.
    Drift,
    /// The server's clock is set.
    Step,
    /// A standby takes over that has not received what was committed last.
    FailOver,
    /// A standby takes over that lacks only what nobody waited for.
    Promote,
    /// A waker of a program panics when it is woken.
    Waker,
    /// A transaction of another program locks rows.
    RowLocks,
    /// The tasks of a process have no thread for a while, and its timers go on.
    Block,
    /// A process begins with the pseudo-random numbers of another, of which it is a copy.
    Copy,
    /// One connection falls silent, and all others and new ones work.
    Hush,
    /// A background task of the library ends before its time, as after a panic.
    Task,
    /// A process closes its backend while calls are under way, and opens another one.
    Close,
    /// The server takes up to a minute before it begins a statement.
    Slow,
}

/// What makes no call fail and takes nothing from anybody who holds it, but a lease where tasks are blocked, and calls of a process
/// that closes.
const HARMLESS: [Fault; 7] = [
    Fault::Deaf,
    Fault::Leave,
    Fault::Drift,
    Fault::Waker,
    Fault::Block,
    Fault::Copy,
    Fault::Close,
];

impl Fault {
    pub(crate) const ALL: [Self; 26] = [
        Self::Delay,
        Self::CutBefore,
        Self::CutAfter,
        Self::Silence,
        Self::Refusal,
        Self::Fatal,
        Self::Terminate,
        Self::Restart,
        Self::Unreachable,
        Self::Partition,
        Self::Deaf,
        Self::Stop,
        Self::Kill,
        Self::Leave,
        Self::Drift,
        Self::Step,
        Self::FailOver,
        Self::Promote,
        Self::Waker,
        Self::RowLocks,
        Self::Block,
        Self::Copy,
        Self::Hush,
        Self::Task,
        Self::Close,
        Self::Slow,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::CutBefore => "cut-before",
            Self::CutAfter => "cut-after",
            Self::Silence => "silence",
            Self::Refusal => "refusal",
            Self::Fatal => "fatal",
            Self::Terminate => "terminate",
            Self::Restart => "restart",
            Self::Unreachable => "unreachable",
            Self::Partition => "partition",
            Self::Deaf => "deaf",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Leave => "leave",
            Self::Drift => "drift",
            Self::Step => "step",
            Self::FailOver => "fail-over",
            Self::Promote => "promote",
            Self::Waker => "waker",
            Self::RowLocks => "row-locks",
            Self::Block => "block",
            Self::Copy => "copy",
            Self::Hush => "hush",
            Self::Task => "task",
            Self::Close => "close",
            Self::Slow => "slow",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// The highest probability: of a message, of a call, or of a moment at which a fault may begin.
    fn most(self) -> f64 {
        match self {
            Self::CutBefore | Self::CutAfter | Self::Fatal | Self::Silence => 0.02,
            Self::Refusal | Self::Delay | Self::Waker | Self::Slow => 0.05,
            Self::Task => 0.0005,
            Self::Leave => 0.2,
            Self::Deaf => 0.5,
            _ => 1.0,
        }
    }

    /// The probability for a number below 1 that was drawn.
    fn probability(self, drawn: f64) -> f64 {
        match self.most() {
            // Of the moments at which something may begin to fail.
            1.0 => drawn.max(0.1),
            most => most * drawn * drawn,
        }
    }
}

/// What the tasks of programs do.
pub(crate) const KINDS: [&str; 35] = [
    "mutex",
    "rw-lock",
    "lock-owner",
    "lease",
    "semaphore",
    "election",
    "leased-mutex",
    "push",
    "work",
    "worker",
    "scheduler",
    "limit",
    "reserve",
    "ids",
    "group-push",
    "group-work",
    "limited-push",
    "limited-work",
    "crowd",
    "relay",
    "few",
    "finder",
    "transaction",
    "result-push",
    "result-work",
    "result-drain",
    "trial-push",
    "trial-work",
    "operator",
    "mutex-set",
    "charge",
    "watch",
    "alone",
    "timetable",
    "unique",
];

/// Those that follow these are drawn last: without them a seed gives what it gave before they were there.
const EARLIER: usize = 23;

/// What a runtime is made of.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is of its own")]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) small: bool,
    /// How many processes there are.
    pub(crate) programs: usize,
    /// How many tasks of each kind a process has.
    pub(crate) tasks: usize,
    /// For how long things fail.
    pub(crate) time: Duration,
    /// For how long all goes on without faults before the tasks are to end.
    pub(crate) calm: Duration,
    /// Whether waits for locks of other processes are polled. Then nobody looks for deadlocks.
    pub(crate) polls: bool,
    /// Whether the jobs of the queue with a limit are claimed by workers alone.
    pub(crate) by_workers: bool,
    /// Whether most of those who share locks read, and all of them the same.
    pub(crate) by_readers: bool,
    /// Whether ids are all that is asked for, in batches as large as they may be.
    pub(crate) ids: bool,
    /// How often something that concerns a process or the server begins to fail.
    pub(crate) every: Duration,
    faults: [f64; Fault::ALL.len()],
    kinds: [bool; KINDS.len()],
}

/// A plan with few kinds of tasks and of faults: what is promised there alone is looked at often enough.
struct Few {
    /// It is that of the seeds which leave this remainder of `OF_SEEDS`.
    rest: u64,
    kinds: &'static [&'static str],
    faults: &'static [Fault],
}

const FEW: [Few; 5] = [
    Few {
        rest: 6,
        kinds: &["rw-lock"],
        faults: &[],
    },
    Few {
        rest: 9,
        kinds: &["push", "work", "worker"],
        faults: &[],
    },
    Few {
        rest: 12,
        kinds: &["lock-owner"],
        faults: &[Fault::Leave],
    },
    Few {
        rest: 14,
        kinds: &["lease", "semaphore", "election", "leased-mutex"],
        faults: &[Fault::Hush],
    },
    Few {
        rest: 17,
        kinds: &["lease", "semaphore", "election", "leased-mutex"],
        faults: &[Fault::Leave, Fault::Slow],
    },
];
const OF_SEEDS: u64 = 61;

impl Plan {
    /// That of a seed: about half of the faults are left out, so that each is seen without the others.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x7061_6e74);
        let calm = random.u8(..10) == 0;
        // In some nothing fails but for a cause that is known: all the rest is promised to work.
        let gentle = random.u8(..5) == 0;
        let cause = [None, Some(Fault::Unreachable), Some(Fault::Hush)][random.usize(..3)];
        // It came last: it is drawn apart, so that most seeds give what they gave before.
        let mut apart = Rng::with_seed(seed ^ 0x736c_6f77);
        let mut faults = Fault::ALL.map(|fault| {
            if fault == Fault::Slow {
                let is_in = apart.u8(..8) == 0 && !calm && !gentle;
                return if is_in {
                    fault.most() * apart.f64()
                } else {
                    0.0
                };
            }
            let is_possible = if gentle {
                HARMLESS.contains(&fault) || cause == Some(fault)
            } else {
                fault != Fault::Hush
            };
            let is_in = random.bool() && !calm && is_possible;
            let drawn = random.f64();
            if is_in { fault.probability(drawn) } else { 0.0 }
        });
        // What follows from a clock that is set can be told from what was lost only where one of them is.
        let replaces = [Fault::FailOver, Fault::Promote].map(|fault| fault as usize);
        if replaces.iter().any(|fault| faults[*fault] > 0.0) {
            faults[Fault::Step as usize] = 0.0;
        }
        if replaces.iter().all(|fault| faults[*fault] > 0.0) {
            faults[replaces[usize::from(random.bool())]] = 0.0;
        }
        let kind = |random: &mut Rng, name: &str| match name {
            "crowd" | "relay" => random.u8(..8) == 0,
            _ => random.u8(..3) > 0,
        };
        let mut plan = Self {
            seed,
            small: false,
            programs: random.usize(1..=5),
            tasks: random.usize(1..=4),
            time: Duration::from_secs(random.u64(5..=60)),
            calm: Duration::from_secs(20),
            every: Duration::from_millis(random.u64(200..=5_000)),
            polls: random.u8(..5) == 0,
            faults,
            kinds: [false; KINDS.len()],
            by_workers: false,
            by_readers: false,
            ids: false,
        };
        let (earlier, later) = KINDS.split_at(EARLIER);
        for (is_in, name) in plan.kinds.iter_mut().zip(earlier) {
            *is_in = kind(&mut random, name);
        }
        (plan.by_workers, plan.by_readers) = (random.bool(), random.bool());
        for (is_in, name) in plan.kinds[EARLIER..].iter_mut().zip(later) {
            *is_in = kind(&mut random, name);
        }
        let few = FEW.iter().find(|few| seed % OF_SEEDS == few.rest);
        match few {
            Some(few) => plan.with_few(few, apart.f64()),
            None => plan,
        }
    }

    /// The same with these faults and kinds of tasks alone, in several processes.
    fn with_few(mut self, few: &Few, drawn: f64) -> Self {
        for fault in Fault::ALL {
            self.faults[fault as usize] = if few.faults.contains(&fault) {
                fault.probability(drawn)
            } else {
                0.0
            };
        }
        Self {
            programs: self.programs.max(2),
            tasks: self.tasks.max(4),
            time: self.time.max(Duration::from_secs(120)),
            polls: false,
            kinds: KINDS.map(|kind| few.kinds.contains(&kind)),
            by_readers: true,
            ..self
        }
    }

    /// Which tasks programs have.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let kinds = KINDS.into_iter().zip(self.kinds);
        kinds.filter_map(|(kind, is_in)| is_in.then_some(kind))
    }

    /// Whether programs have such a task.
    pub(crate) fn has_kind(&self, name: &str) -> bool {
        self.kinds().any(|kind| kind == name)
    }

    /// Without the fault or the kind of task that has this name; `None` if there is none.
    pub(crate) fn without_named(mut self, name: &str) -> Option<Self> {
        if let Some(fault) = Fault::named(name) {
            return Some(self.without(fault));
        }
        let kind = KINDS.iter().position(|kind| *kind == name)?;
        self.kinds[kind] = false;
        Some(self)
    }

    /// The same in a small runtime, of which there may be many.
    pub(crate) fn small(self) -> Self {
        Self {
            small: true,
            programs: self.programs.min(3),
            // Some pass on among their own tasks, and share.
            tasks: self.tasks.div_ceil(3),
            time: self.time / 10,
            calm: self.calm / 10,
            every: self.every / 10,
            ..self
        }
    }

    /// The same with nothing but ids, and with many of them.
    pub(crate) fn of_ids(self) -> Self {
        Self {
            ids: true,
            kinds: KINDS.map(|kind| kind == "ids"),
            ..self
        }
    }

    pub(crate) fn probability(&self, fault: Fault) -> f64 {
        self.faults[fault as usize]
    }

    /// Whether the fault can happen.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.probability(fault) > 0.0
    }

    pub(crate) fn without(mut self, fault: Fault) -> Self {
        self.faults[fault as usize] = 0.0;
        self
    }

    /// Whether nothing can fail but for these, and what makes no call fail.
    pub(crate) fn has_only(&self, faults: &[Fault]) -> bool {
        self.faults()
            .all(|fault| HARMLESS.contains(&fault) || faults.contains(&fault))
    }

    /// The faults that can happen.
    pub(crate) fn faults(&self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(|fault| self.has(*fault))
    }

    /// Plans that are a little smaller, the smallest first.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        for programs in [1, self.programs / 2, self.programs - 1] {
            smaller.push(Self {
                programs,
                ..self.clone()
            });
        }
        for tasks in [1, self.tasks / 2, self.tasks - 1] {
            smaller.push(Self {
                tasks,
                ..self.clone()
            });
        }
        let without = |kind| self.clone().without_named(kind);
        smaller.extend(self.kinds().filter_map(without));
        smaller.extend(self.faults().map(|fault| self.clone().without(fault)));
        for time in [self.time / 4, self.time / 2, self.time * 3 / 4] {
            // In whole milliseconds, as they are told.
            let time = Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            smaller.push(Self {
                time,
                ..self.clone()
            });
        }
        // Small programs may have less than a second, and keep it.
        let least = self.time.min(Duration::from_secs(1));
        smaller.retain(|it| it.programs > 0 && it.tasks > 0 && it.time >= least && it != self);
        smaller.dedup();
        smaller
    }
}

/// The options that make this plan of its seed.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut whole = Self::new(self.seed);
        write!(f, "--seed {}", self.seed)?;
        if self.small {
            whole = whole.small();
            write!(f, " --small")?;
        }
        if self.ids {
            whole = whole.of_ids();
            write!(f, " --ids")?;
        }
        if self.programs != whole.programs {
            write!(f, " --programs {}", self.programs)?;
        }
        if self.tasks != whole.tasks {
            write!(f, " --tasks {}", self.tasks)?;
        }
        if self.time != whole.time {
            write!(f, " --time {}", self.time.as_millis())?;
        }
        let faults = whole.faults().filter(|fault| !self.has(*fault));
        let kinds = whole
            .kinds()
            .filter(|kind| !self.kinds().any(|it| it == *kind));
        let gone: Vec<_> = faults.map(Fault::name).chain(kinds).collect();
        if gone.is_empty() {
            return Ok(());
        }
        write!(f, " --without {}", gone.join(","))
    }
}
