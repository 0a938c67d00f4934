//! What is known about locks, and the values that go in and out.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::Grant;
use super::lines::Lines;
use crate::engine::clock::Time;
use crate::error::Result;
use crate::hold::Hold;
use crate::key::LockId;
use crate::mutex::{Stepped, Way, line};
use crate::telemetry::{self, Kind};

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    Until(Time),
    Forever,
}

pub(crate) type Granted = Result<Option<Grant>>;

/// What a caller asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) lock: LockId,
    pub(crate) way: Way,
    /// The line of work that asks, if it told.
    pub(crate) line: Option<line::Id>,
}

pub(super) struct Waiter {
    pub(super) patience: Patience,
    pub(super) way: Way,
    pub(super) line: Option<line::Id>,
    /// Since when it waits for another; unknown of one whose attempt is under way.
    pub(super) since: Option<Time>,
    pub(super) reply: oneshot::Sender<Granted>,
}

impl Waiter {
    /// How long it has waited for another.
    pub(super) fn waited(&self, now: Time) -> Option<Time> {
        self.since.map(|since| now.saturating_sub(since))
    }
}

/// A request to the lane of a session.
pub(crate) enum Request {
    Try {
        lock: LockId,
        way: Way,
        again: bool,
    },
    Release {
        lock: LockId,
        way: Way,
        reply: Option<oneshot::Sender<Result<()>>>,
    },
    /// Look whether another process waits for a lock that is shared here.
    Look {
        lock: LockId,
    },
}

/// The server's answer to a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Step(Stepped),
    /// Whether somebody waits for the lock.
    Awaited(bool),
}

/// How many requests go into one statement.
#[derive(Clone, Copy)]
pub(crate) enum Most {
    All,
    One,
    /// Half of them and of as many others whose answers have arrived: while the server works on one
    /// half, the callers of the other are told and ask again.
    HalfWith(usize),
}

impl Most {
    /// Fewer than this are not worth parting.
    const WHOLE: usize = 64;

    pub(super) fn of(self, waiting: usize) -> usize {
        match self {
            Self::All => waiting,
            Self::One => 1,
            Self::HalfWith(others) => {
                waiting.min(usize::midpoint(waiting, others).max(Self::WHOLE))
            }
        }
    }
}

/// What the lane of a session does next.
pub(crate) enum Next {
    Run(Vec<Request>),
    /// Ask whether the session, which holds locks, still lives.
    Ping,
    /// Wait to be woken.
    Rest,
    /// Nothing is left to do, and nothing will come.
    Close,
}

/// See [`Slot::join`].
const ROOMY: usize = 32;

pub(super) enum Phase {
    /// An attempt is queued or under way on session 0.
    Trying,
    Held(Held),
    Shared(Shared),
    /// A release is queued or under way on a session other than 0, or on 0 with nobody waiting.
    Releasing,
    /// Another process has it; a session waits, or is about to wait, in the server's queue.
    Waiting,
    /// Another process has it and no session is free to wait; the timer of this number tries again.
    Polling(u64),
}

/// A lock that one caller has alone.
pub(super) struct Held {
    pub(super) session: usize,
    pub(super) hold: Arc<Hold>,
    pub(super) line: Option<line::Id>,
    pub(super) fence: i64,
    pub(super) hand_overs: i64,
    pub(super) since: Time,
}

/// A lock that callers share; all of them together have it once at the server.
pub(super) struct Shared {
    pub(super) session: usize,
    pub(super) since: Time,
    pub(super) holds: Vec<(Arc<Hold>, Option<line::Id>)>,
    pub(super) door: Door,
}

/// Whether further callers may share a lock that is shared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// Until then.
    Open(Time),
    /// The server is being asked whether others wait.
    Asked,
    /// Others wait: not before they had their turn.
    Shut,
}

pub(super) struct Slot {
    pub(super) phase: Phase,
    pub(super) queue: VecDeque<Waiter>,
    /// How long the queue may become before it is searched for callers that left.
    roomy: usize,
}

impl Slot {
    /// A slot of a lock that is to be tried for its first caller.
    pub(super) fn new(waiter: Waiter) -> Self {
        Self {
            phase: Phase::Trying,
            queue: VecDeque::from([waiter]),
            roomy: ROOMY,
        }
    }

    /// Adds a caller. Callers that left behind one that stays are removed now and then, so that
    /// they cost a constant time each and are no more than those that stay.
    pub(super) fn join(&mut self, waiter: Waiter) {
        if self.queue.len() >= self.roomy {
            self.queue.retain(|waiter| !waiter.reply.is_closed());
            self.roomy = ROOMY.max(2 * self.queue.len());
        }
        self.queue.push_back(waiter);
    }

    /// The session that holds the lock.
    pub(super) fn session(&self) -> Option<usize> {
        match &self.phase {
            Phase::Held(held) => Some(held.session),
            Phase::Shared(shared) => Some(shared.session),
            _ => None,
        }
    }

    /// How the first who still waits wants it.
    pub(super) fn wanted(&mut self) -> Option<Way> {
        self.prune();
        self.queue.front().map(|first| first.way)
    }

    /// Removes callers that left, as far as they are in front.
    pub(super) fn prune(&mut self) {
        while self
            .queue
            .front()
            .is_some_and(|first| first.reply.is_closed())
        {
            self.queue.pop_front();
        }
    }
}

#[derive(Default)]
pub(super) struct Session {
    pub(super) requests: Vec<Request>,
    pub(super) held: usize,
    pub(super) mark: i64,
    pub(super) running: bool,
    pub(super) ping: Ping,
}

/// Whether an idle session that holds locks is to be asked if it still lives.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Ping {
    #[default]
    Off,
    Armed,
    Due,
}

pub(super) struct State {
    pub(super) slots: FxHashMap<LockId, Slot>,
    pub(super) sessions: Vec<Session>,
    pub(super) lines: Lines,
    /// Locks that want a session to wait for them, oldest first.
    pub(super) wanted: VecDeque<LockId>,
    /// How many pauses between polls there were.
    pub(super) pauses: u64,
    /// Sessions whose lanes are to be started once the state is unlocked.
    pub(super) starting: Vec<usize>,
    /// Sessions whose lanes are to be woken then, a bit for each.
    pub(super) waking: u128,
    /// Sessions that wait for locks or hold one, and so cannot take another from `wanted`.
    pub(super) busy: usize,
    /// Whether a look at the slots is to come.
    pub(super) looking: bool,
    pub(super) closing: bool,
    pub(super) ended: bool,
}

/// What is to be told to callers once the state is unlocked.
#[derive(Default)]
pub(super) struct News {
    pub(super) grants: Vec<(oneshot::Sender<Granted>, Granted)>,
    pub(super) releases: Vec<(oneshot::Sender<Result<()>>, Result<()>)>,
    pub(super) lost: Vec<Arc<Hold>>,
}

impl News {
    pub(super) fn lose(&mut self, hold: &Arc<Hold>) {
        hold.lose();
        self.lost.push(Arc::clone(hold));
    }

    pub(super) fn tell(self) {
        telemetry::lost(self.lost.iter().map(|_| Kind::Mutex));
        for hold in self.lost {
            hold.announce();
        }
        // A caller that left drops its grant, which releases the lock.
        for (reply, granted) in self.grants {
            drop(reply.send(granted));
        }
        for (reply, released) in self.releases {
            drop(reply.send(released));
        }
    }
}
