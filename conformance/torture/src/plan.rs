//! What a seed decides: which faults there are, when, for how long, and what their draws are.

use std::time::Duration;

use fastrand::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    Kill,
    Stop,
    KillBackend,
    Terminate,
    Cancel,
    Crash,
    FreezeSessions,
    FreezeServer,
    CutBefore,
    CutAfter,
    Stall,
    Delay,
    Dribble,
    HalfOpen,
    Unplug,
    PausePooler,
    RestartPooler,
    FullLocks,
    FullConnections,
    Index,
    Vacuum,
    LockTable,
    RowLocks,
    Snapshot,
    Settings,
    Clock,
    FullDisk,
}

impl Fault {
    pub(crate) const ALL: [Self; 27] = [
        Self::Kill,
        Self::Stop,
        Self::KillBackend,
        Self::Terminate,
        Self::Cancel,
        Self::Crash,
        Self::FreezeSessions,
        Self::FreezeServer,
        Self::CutBefore,
        Self::CutAfter,
        Self::Stall,
        Self::Delay,
        Self::Dribble,
        Self::HalfOpen,
        Self::Unplug,
        Self::PausePooler,
        Self::RestartPooler,
        Self::FullLocks,
        Self::FullConnections,
        Self::Index,
        Self::Vacuum,
        Self::LockTable,
        Self::RowLocks,
        Self::Snapshot,
        Self::Settings,
        Self::Clock,
        Self::FullDisk,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::KillBackend => "kill-backend",
            Self::Terminate => "terminate",
            Self::Cancel => "cancel",
            Self::Crash => "crash",
            Self::FreezeSessions => "freeze-sessions",
            Self::FreezeServer => "freeze-server",
            Self::CutBefore => "cut-before",
            Self::CutAfter => "cut-after",
            Self::Stall => "stall",
            Self::Delay => "delay",
            Self::Dribble => "dribble",
            Self::HalfOpen => "half-open",
            Self::Unplug => "unplug",
            Self::PausePooler => "pause-pooler",
            Self::RestartPooler => "restart-pooler",
            Self::FullLocks => "full-locks",
            Self::FullConnections => "full-connections",
            Self::Index => "index",
            Self::Vacuum => "vacuum",
            Self::LockTable => "lock-table",
            Self::RowLocks => "row-locks",
            Self::Snapshot => "snapshot",
            Self::Settings => "settings",
            Self::Clock => "clock",
            Self::FullDisk => "full-disk",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// One that is shorter has no effect.
    pub(crate) fn least(self) -> Duration {
        Duration::from_millis(self.time().0)
    }

    /// How long it lasts, in milliseconds, at least and at most.
    fn time(self) -> (u64, u64) {
        match self {
            Self::Kill | Self::KillBackend | Self::Crash => (200, 2000),
            // Longer than what a program holds lives.
            Self::Stop => (4500, 9000),
            Self::FreezeSessions | Self::FreezeServer => (1000, 6000),
            Self::Stall | Self::HalfOpen | Self::Unplug | Self::PausePooler => (1500, 8000),
            Self::Snapshot => (5000, 15_000),
            Self::FullLocks | Self::FullConnections | Self::RowLocks | Self::LockTable => {
                (500, 4000)
            }
            _ => (1500, 5000),
        }
    }
}

/// A fault of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    /// How long after the one before it has ended.
    pub(crate) pause: Duration,
    pub(crate) time: Duration,
    /// For its own draws.
    pub(crate) seed: u64,
}

/// How long a kind takes on average, with the pause before it, where two work at the same time; and some time
/// for those that are repeated.
const EACH: Duration = Duration::from_secs(3);

/// Leaves the kinds of faults for which there is time, drawn by the seed; answers the others.
pub(crate) fn fit(faults: &mut Vec<Fault>, seed: u64, time: Duration) -> Vec<Fault> {
    let most = (time.as_secs() / EACH.as_secs()).max(1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if faults.len() <= most {
        return Vec::new();
    }
    Rng::with_seed(seed).shuffle(faults);
    let others = faults.split_off(most);
    faults.sort_unstable();
    others
}

/// Purposes of draws.
const DECK: u64 = 1 << 32;
const FAULT: u64 = 2 << 32;
const AGAIN: u64 = 3 << 32;

fn planned(fault: Fault, mut random: Rng) -> Planned {
    let (least, most) = fault.time();
    Planned {
        fault,
        pause: Duration::from_millis(random.u64(100..2500)),
        time: Duration::from_millis(random.u64(least..=most)),
        seed: random.u64(..),
    }
}

/// The faults of a round, drawn like cards: no kind comes again before all others came. What is drawn for a fault depends on its
/// number, so that one that comes again changes nothing of the others.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    seed: u64,
    faults: Vec<Fault>,
    /// Faults with their numbers; those that come again have none yet.
    deck: Vec<(Fault, Option<u64>)>,
    /// How many had a number, and how many came again.
    numbered: u64,
    again: u64,
}

impl Plan {
    pub(crate) fn new(seed: u64, faults: &[Fault]) -> Self {
        Self {
            seed: seed ^ 0x0074_6f72_7475_7265,
            faults: faults.to_vec(),
            deck: Vec::new(),
            numbered: 0,
            again: 0,
        }
    }

    /// Has a fault come again before all others did.
    pub(crate) fn again(&mut self, fault: Fault) {
        self.deck.insert(0, (fault, None));
    }

    /// The next fault; `None` if there are none at all.
    pub(crate) fn next(&mut self) -> Option<Planned> {
        if self.deck.is_empty() {
            let mut deck = self.faults.clone();
            self.random(DECK, self.numbered).shuffle(&mut deck);
            let numbers = (self.numbered..).map(Some);
            self.deck = deck.into_iter().zip(numbers).collect();
            self.numbered += self.faults.len() as u64;
        }
        match self.deck.pop()? {
            (fault, Some(number)) => Some(planned(fault, self.random(FAULT, number))),
            (fault, None) => Some(self.draw_again(fault)),
        }
    }

    /// One of this kind, beside all others.
    pub(crate) fn draw_again(&mut self, fault: Fault) -> Planned {
        self.again += 1;
        planned(fault, self.random(AGAIN, self.again))
    }

    /// What is drawn for something of this number.
    fn random(&self, purpose: u64, number: u64) -> Rng {
        Rng::with_seed(Rng::with_seed(self.seed ^ purpose).u64(..) ^ number)
    }

    pub(crate) fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn faults_that_come_again_change_no_others() {
        let planned = |again: &[usize]| {
            let mut plan = Plan::new(7, &Fault::ALL);
            let mut all = Vec::new();
            for at in 0..4 * Fault::ALL.len() {
                all.extend(plan.next());
                if again.contains(&at) {
                    plan.again(all[at].fault);
                }
            }
            all
        };
        let (plain, mut more) = (planned(&[]), planned(&[3, 40]));
        // They come behind the others of their deck, which has one more then.
        let second = more.remove(2 * Fault::ALL.len() + 1);
        let first = more.remove(Fault::ALL.len());
        assert_eq!(
            [first.fault, second.fault],
            [plain[3].fault, plain[39].fault]
        );
        assert_eq!(more, plain[..more.len()]);
        assert_ne!(first, plain[3]);
    }

    #[test]
    fn a_short_run_has_the_kinds_for_which_there_is_time() {
        let chosen = |seed, seconds| {
            let mut faults = Fault::ALL.to_vec();
            let others = fit(&mut faults, seed, Duration::from_secs(seconds));
            let all: BTreeSet<_> = faults.iter().chain(&others).copied().collect();
            assert_eq!(all, BTreeSet::from(Fault::ALL));
            faults
        };
        assert_eq!(chosen(1, 160), Fault::ALL);
        assert_eq!(chosen(1, 39).len(), 13);
        assert_eq!(chosen(1, 39), chosen(1, 39));
        assert_eq!(chosen(1, 0).len(), 1);
        let seeds = (0..20).flat_map(|seed| chosen(seed, 39));
        assert_eq!(seeds.collect::<BTreeSet<_>>(), BTreeSet::from(Fault::ALL));
    }
}
