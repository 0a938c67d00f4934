//! Who holds and who waits for which lock, in this process: decisions without any I/O.
//!
//! A lock that is in use has a [`Slot`]. Session 0 holds all locks that were free when they were
//! tried. A lock that another process held is waited for on one of a few further sessions and
//! stays with that session until it is released. Lanes ask for [`Step`](Request)s, run them and
//! settle the answers; whatever is to be told to callers is told after the state is unlocked.

mod asked;
mod failures;
mod grant;
mod lines;
mod look;
mod settling;
mod sharing;
mod state;
mod waiting;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::{Notify, oneshot};

pub(crate) use asked::Asked;
pub(crate) use grant::Grant;
use lines::{Lines, deadlock};
use look::Look;
pub(crate) use look::Looked;
pub(crate) use state::{Answer, Most, Next, Patience, Request, Want};
use state::{News, Phase, Ping, Session, Slot, State, Waiter};
pub(crate) use waiting::Slice;

use super::keeper::Keeper;
use super::lane::ended;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::HAND_OVER_BITS;
use crate::hold::Hold;
use crate::key::LockId;
use crate::mutex::Way;
use crate::telemetry::{self, Kind};

/// How often a lock is passed on within the process before other processes get their turn.
const MAX_HAND_OVERS: i64 = 64;
/// How long a lock is passed on within the process before other processes get their turn.
const MAX_HELD: Duration = Duration::from_millis(100);
/// The longest wait in the server's queue: a waiting statement holds a snapshot.
const SLICE: Duration = Duration::from_secs(1);

const _: () = assert!(MAX_HAND_OVERS < 1 << HAND_OVER_BITS);

/// Starts the lane of a session.
type Start = dyn Fn(usize) + Send + Sync;

/// The locks of a process on one database.
pub(crate) struct Sessions {
    state: Mutex<State>,
    wakes: Vec<Notify>,
    keeper: Keeper,
    max_locks: usize,
    heartbeat: Duration,
    this: Weak<Sessions>,
    start: OnceLock<Box<Start>>,
    look: OnceLock<Box<Look>>,
}

impl Sessions {
    pub(crate) fn new(
        keeper: Keeper,
        waiters: usize,
        max_locks: usize,
        heartbeat: Duration,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            state: Mutex::new(State {
                slots: FxHashMap::default(),
                sessions: (0..=waiters).map(|_| Session::default()).collect(),
                lines: Lines::default(),
                wanted: VecDeque::new(),
                pauses: 0,
                starting: Vec::new(),
                waking: 0,
                busy: 0,
                looking: false,
                closing: false,
                ended: false,
            }),
            wakes: (0..=waiters).map(|_| Notify::new()).collect(),
            keeper,
            max_locks,
            heartbeat,
            this: this.clone(),
            start: OnceLock::new(),
            look: OnceLock::new(),
        })
    }

    /// Tells how the lane of a session is started; called once, before anything else.
    pub(crate) fn start_with(&self, start: impl Fn(usize) + Send + Sync + 'static) {
        let _first = self.start.set(Box::new(start));
    }

    /// Asks for a lock.
    pub(crate) fn ask(self: &Arc<Self>, want: Want, patience: Patience) -> Asked {
        let (reply, granted) = oneshot::channel();
        let waiter = Waiter {
            patience,
            way: want.way,
            line: want.line,
            since: None,
            reply,
        };
        let mut news = News::default();
        let mut state = self.lock();
        let circle = |line| patience != Patience::None && state.is_circle(line, want.lock);
        if state.ended {
            news.grants.push((waiter.reply, Err(ended("lock"))));
        } else if want.line.is_some_and(circle) {
            news.grants.push((waiter.reply, Err(deadlock())));
        } else {
            if patience != Patience::None {
                state.lines.waits(want.line, want.lock);
            }
            self.join(&mut state, want.lock, waiter, &mut news);
        }
        drop(state);
        news.tell();
        Asked {
            sessions: Arc::clone(self),
            want,
            reply: granted,
            answered: false,
        }
    }

    /// Takes a caller in; it is answered at once, or waits.
    fn join(&self, state: &mut State, lock: LockId, waiter: Waiter, news: &mut News) {
        let way = waiter.way;
        if let Some(slot) = state.slots.get_mut(&lock) {
            telemetry::contended(Kind::Mutex);
            let settled = matches!(slot.phase, Phase::Held(_) | Phase::Waiting);
            if settled && waiter.patience == Patience::None {
                news.grants.push((waiter.reply, Ok(None)));
                return;
            }
            let since = Some(self.keeper.now());
            slot.join(Waiter { since, ..waiter });
            match slot.phase {
                Phase::Polling(_) => Self::try_for_first(state, lock),
                Phase::Shared(_) => self.admit(state, lock, news),
                _ => {}
            }
        } else if state.slots.len() >= self.max_locks {
            let message = format!(
                "this process already holds or waits for {} locks, which is the limit that was set",
                self.max_locks
            );
            let full = Error::new(ErrorKind::Capacity, "lock", message);
            news.grants.push((waiter.reply, Err(full)));
        } else {
            state.slots.insert(lock, Slot::new(waiter));
            let again = false;
            Self::request(state, 0, Request::Try { lock, way, again });
            self.look_later(state);
        }
    }

    /// Ends a hold: passes the lock on within the process, or releases it.
    fn release(&self, lock: LockId, hold: &Arc<Hold>, reply: Option<oneshot::Sender<Result<()>>>) {
        let mut news = News::default();
        let mut state = self.lock();
        if hold.release() {
            match state.slots.get(&lock).map(|slot| &slot.phase) {
                Some(Phase::Shared(_)) => Self::leave(&mut state, lock, hold, reply, &mut news),
                _ => self.pass_on(&mut state, lock, reply, &mut news),
            }
        } else if let Some(reply) = reply {
            news.releases.push((reply, Err(lost())));
        }
        drop(state);
        news.tell();
    }

    fn pass_on(
        &self,
        state: &mut State,
        lock: LockId,
        reply: Option<oneshot::Sender<Result<()>>>,
        news: &mut News,
    ) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        let alone = slot.wanted() == Some(Way::Alone);
        let Phase::Held(held) = &mut slot.phase else {
            return;
        };
        debug_assert!(
            !held.hold.is_held(),
            "another holder's lock is being released"
        );
        let session = held.session;
        state.lines.dropped(held.line, lock);
        // Nobody asks what time it is where nobody waits.
        let now = alone.then(|| self.keeper.now());
        if let Some(now) = now
            && held.hand_overs < MAX_HAND_OVERS
            && now.saturating_sub(held.since) < MAX_HELD
            && let Some(next) = slot.queue.pop_front()
        {
            held.hand_overs += 1;
            held.hold = Arc::default();
            held.line = next.line;
            state.lines.holds(next.line, lock);
            let grant = Grant {
                sessions: self.this.upgrade(),
                lock,
                hold: Arc::clone(&held.hold),
                fence: held.fence + held.hand_overs,
                mark: state.sessions[session].mark,
                waited: next.waited(now),
            };
            news.grants.push((next.reply, Ok(Some(grant))));
            news.releases.extend(reply.map(|reply| (reply, Ok(()))));
            return;
        }
        Self::let_go(state, session, lock, Way::Alone, reply);
    }

    /// Has the session that holds the lock release it, and tries it again for those who wait.
    fn let_go(
        state: &mut State,
        session: usize,
        lock: LockId,
        way: Way,
        reply: Option<oneshot::Sender<Result<()>>>,
    ) {
        state.sessions[session].held -= 1;
        if let Some(slot) = state.slots.get_mut(&lock) {
            slot.phase = Phase::Releasing;
        }
        Self::request(state, session, Request::Release { lock, way, reply });
        if session == 0 {
            // Behind the release, and so behind everybody who waits at the server.
            Self::try_for_first(state, lock);
        }
    }

    /// Tries the lock as the first who waits for it wants it, if anybody does.
    fn try_for_first(state: &mut State, lock: LockId) {
        if let Some(slot) = state.slots.get_mut(&lock)
            && let Some(way) = slot.wanted()
        {
            slot.phase = Phase::Trying;
            let again = false;
            Self::request(state, 0, Request::Try { lock, way, again });
        }
    }

    fn request(state: &mut State, session: usize, request: Request) {
        let requests = &mut state.sessions[session].requests;
        requests.push(request);
        // Whoever put the first one there has roused the lane.
        if requests.len() == 1 {
            Self::rouse(state, session);
        }
    }

    fn rouse(state: &mut State, session: usize) {
        if !std::mem::replace(&mut state.sessions[session].running, true) {
            state.starting.push(session);
        }
        state.waking |= 1 << session;
    }

    /// Takes what is to be sent next.
    pub(crate) fn take(&self, session: usize, most: Most) -> Next {
        let mut state = self.lock();
        let closing = state.closing;
        let session_state = &mut state.sessions[session];
        let requests = &mut session_state.requests;
        if !requests.is_empty() {
            let most = most.of(requests.len());
            let rest = requests.split_off(most);
            return Next::Run(std::mem::replace(requests, rest));
        }
        match session_state.ping {
            Ping::Due => {
                session_state.ping = Ping::Off;
                return Next::Ping;
            }
            Ping::Off if session_state.held > 0 => {
                session_state.ping = Ping::Armed;
                drop(state);
                self.arm_ping(session);
            }
            _ => {}
        }
        if closing { Next::Close } else { Next::Rest }
    }

    /// One timer in each heartbeat, however often the session becomes idle in between.
    fn arm_ping(&self, session: usize) {
        let this = self.this.clone();
        self.keeper
            .run_at(self.keeper.now() + self.heartbeat, move || {
                if let Some(sessions) = this.upgrade() {
                    sessions.lock().sessions[session].ping = Ping::Due;
                    sessions.wakes[session].notify_one();
                }
            });
    }

    pub(crate) async fn woken(&self, session: usize) {
        self.wakes[session].notified().await;
    }

    /// Notes that a session is open, under this mark.
    pub(crate) fn opened(&self, session: usize, mark: i64) {
        self.lock().sessions[session].mark = mark;
    }

    /// Whether nothing is to be sent.
    pub(crate) fn is_idle(&self, session: usize) -> bool {
        self.lock().sessions[session].requests.is_empty()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Lets the lanes end; locks that are still held are released by the end of their sessions.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        for wake in &self.wakes {
            wake.notify_one();
        }
    }

    fn lock(&self) -> Locked<'_> {
        let state = self.state.lock();
        Locked {
            state: state.unwrap_or_else(PoisonError::into_inner),
            after: After {
                starting: Vec::new(),
                start: self.start.get().map(AsRef::as_ref),
                waking: 0,
                wakes: &self.wakes,
            },
        }
    }
}

/// The state while it is locked. Lanes are started once it is not: a runtime that has shut down
/// drops a lane on the spot, which then tells the sessions of its end. Nor are they woken before,
/// because a lane that is woken wants the state.
struct Locked<'a> {
    // Unlocked before lanes are started and woken.
    state: MutexGuard<'a, State>,
    after: After<'a>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.after.starting = std::mem::take(&mut self.state.starting);
        self.after.waking = std::mem::take(&mut self.state.waking);
    }
}

/// The sessions whose lanes are started and woken when this is dropped.
struct After<'a> {
    starting: Vec<usize>,
    start: Option<&'a Start>,
    /// A bit for each session.
    waking: u128,
    wakes: &'a [Notify],
}

impl Drop for After<'_> {
    fn drop(&mut self) {
        if let Some(start) = self.start {
            self.starting.drain(..).for_each(start);
        }
        while self.waking != 0 {
            let session = self.waking.trailing_zeros() as usize;
            self.waking &= self.waking - 1;
            self.wakes[session].notify_one();
        }
    }
}

fn lost() -> Error {
    let message = "the lock was no longer held: its session had ended";
    Error::new(ErrorKind::Lost, "unlock", message)
}

#[cfg(test)]
mod tests;
