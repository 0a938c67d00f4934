//! The jobs whose ends a process waits for.
//!
//! All waiters share the lookups: a round looks for all jobs that are due to be looked for, and the next begins when all
//! lookups of the last one are answered.

use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::handle::Handle;
use crate::engine::batcher::Batcher;
use crate::engine::clock::Time;
use crate::engine::sweeps::{PART, Sweeping};
use crate::engine::timer::Timer;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{JobResult, ReadResult, ResultValue, SweepResults};
use crate::sweep::SweepResult;
use crate::sync::{Mutex, MutexGuard};
use crate::wait::unless;

/// The pause after the first lookup of a job. It grows by half …
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// … up to this.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// But each job that is waited for has as much time to itself.
const EACH: Duration = Duration::from_micros(50);
/// From one round to the next, at least.
const GAP: Duration = Duration::from_millis(5);
/// After the time for a lookup tasks that were blocked have so many moments to read its answer.
const MOMENT: Duration = Duration::from_millis(5);
const MOMENTS: u32 = 4;
/// What is due within this part of its pause is looked for with the others.
const SLACK_PART: u32 = 4;

type Answer = Result<JobResult<ResultValue>>;

/// What became of a job, once that is known.
type Seen = Option<Answer>;

/// A queue and a job.
type Key = (i64, i64);

/// A job that somebody waits for.
struct Awaited {
    read: ReadResult,
    seen: watch::Sender<Seen>,
    pause: Duration,
    next: Time,
    /// It has ended: the answer to a lookup that was sent before may not tell.
    completed: bool,
}

#[derive(Default)]
struct State {
    awaited: FxHashMap<Key, Awaited>,
    /// Whether lookups are under way.
    looking: bool,
    /// When the next round begins; another time was replaced by an earlier one.
    armed: Option<Time>,
}

/// The jobs that a process waits for.
pub(super) struct Results {
    state: Mutex<State>,
    batcher: Arc<Batcher>,
    timer: Timer,
    this: Weak<Self>,
}

impl Results {
    pub(super) fn new(batcher: Arc<Batcher>, timer: Timer) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            state: Mutex::default(),
            batcher,
            timer,
            this: this.clone(),
        })
    }

    /// Looks for a job for as long as somebody has the receiver, after a first pause.
    fn watch(&self, key: Key, read: ReadResult) -> watch::Receiver<Seen> {
        let mut state = self.lock();
        if let Some(awaited) = state.awaited.get(&key) {
            return awaited.seen.subscribe();
        }
        let (seen, receiver) = watch::channel(None);
        let next = self.timer.now() + FIRST_PAUSE;
        let awaited = Awaited {
            read,
            seen,
            pause: FIRST_PAUSE,
            next,
            completed: false,
        };
        state.awaited.insert(key, awaited);
        self.arm(state, next);
        receiver
    }

    /// It was completed by this process.
    pub(super) fn completed(&self, key: Key) {
        let mut state = self.lock();
        let now = self.timer.now();
        if let Some(awaited) = state.awaited.get_mut(&key) {
            awaited.next = now;
            awaited.completed = true;
            self.arm(state, now);
        }
    }

    /// Begins the next round by then, unless lookups are under way: the last answer does it then.
    fn arm(&self, mut state: MutexGuard<'_, State>, at: Time) {
        if state.looking || state.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        state.armed = Some(at);
        drop(state);
        let this = self.this.clone();
        self.timer.run_at(at, move || {
            if let Some(results) = this.upgrade() {
                results.look(at);
            }
        });
    }

    fn look(&self, armed: Time) {
        let now = self.timer.now();
        let mut state = self.lock();
        if state.armed != Some(armed) {
            return;
        }
        state.armed = None;
        // Nobody waits for them any more.
        state.awaited.retain(|_, awaited| !awaited.seen.is_closed());
        let mut due = Vec::new();
        for (key, awaited) in &mut state.awaited {
            if awaited.next <= now.saturating_add(awaited.pause / SLACK_PART) {
                awaited.completed = false;
                due.push((*key, awaited.read.clone()));
            }
        }
        state.looking = true;
        drop(state);
        let round = Arc::new(Round(self.this.clone()));
        for (key, read) in due {
            let round = Arc::clone(&round);
            self.batcher.submit(read, move |answer| {
                if let Some(results) = round.0.upgrade() {
                    results.answered(key, answer);
                }
            });
        }
    }

    fn answered(&self, key: Key, answer: Answer) {
        let mut state = self.lock();
        let each = EACH.saturating_mul(u32::try_from(state.awaited.len()).unwrap_or(u32::MAX));
        // A backend that is closed answers nothing else any more.
        if is_final(&answer) || (answer.is_err() && self.batcher.is_closing()) {
            let awaited = state.awaited.remove(&key);
            drop(state);
            if let Some(awaited) = awaited {
                awaited.seen.send_replace(Some(answer));
            }
        } else if let Some(awaited) = state.awaited.get_mut(&key).filter(|it| !it.completed) {
            awaited.pause = (awaited.pause * 3 / 2).min(LAST_PAUSE);
            awaited.next = self.timer.now() + awaited.pause.max(each);
        }
    }

    /// All lookups of a round are answered.
    fn looked(&self) {
        let mut state = self.lock();
        state.looking = false;
        if let Some(next) = state.awaited.values().map(|awaited| awaited.next).min() {
            let next = next.max(self.timer.now() + GAP);
            self.arm(state, next);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lookups that were sent together.
struct Round(Weak<Results>);

impl Drop for Round {
    fn drop(&mut self) {
        if let Some(results) = self.0.upgrade() {
            results.looked();
        }
    }
}

/// Whether no further lookup would answer anything else.
fn is_final(answer: &Answer) -> bool {
    match answer {
        Ok(result) => !result.is_pending(),
        Err(error) => !(error.is_retryable() || error.kind() == ErrorKind::Indeterminate),
    }
}

impl Handle {
    fn read(&self, id: i64) -> ReadResult {
        let name = self.name.clone();
        ReadResult { name, id }
    }

    pub(super) async fn read_result(&self, id: i64) -> Answer {
        self.call(self.read(id)).await
    }

    /// Looks it up in this time, or in that of a statement: a server that is silent does not keep who waits for longer. A program
    /// whose tasks were blocked has yet to read what the server has answered.
    async fn read_within(&self, id: i64, at_most: Duration) -> Answer {
        let limit = at_most.max(self.core.connections.timeout);
        let timer = &self.core.queues.timer;
        let mut read = pin!(self.read_result(id));
        let in_time = unless(timer.sleep(limit), read.as_mut()).await;
        let answer = if in_time.is_some() {
            in_time
        } else {
            let moments = async {
                for _ in 0..MOMENTS {
                    timer.sleep(MOMENT).await;
                }
            };
            unless(moments, read).await
        };
        answer.unwrap_or_else(|| {
            let message = format!("the server has not answered within {limit:?}");
            Err(Error::new(ErrorKind::Unavailable, "wait_result", message).on(&self.name.queue))
        })
    }

    pub(super) async fn await_result(&self, id: i64, at_most: Duration) -> Answer {
        let queues = &self.core.queues;
        let until = queues.timer.now().saturating_add(at_most);
        let first = self.read_within(id, at_most).await;
        let left = until.saturating_sub(queues.timer.now());
        if is_final(&first) || left.is_zero() {
            return first;
        }
        let mut receiver = queues.results.watch((self.number, id), self.read(id));
        let ended = async {
            // It is closed once nobody looks any more.
            drop(receiver.wait_for(Option::is_some).await);
        };
        unless(queues.timer.sleep(left), ended).await;
        let seen = receiver.borrow().clone();
        let seen = match seen {
            Some(seen) => seen,
            None => self.read_within(id, Duration::ZERO).await,
        };
        seen.map_err(|error| error.during("wait_result").on(&self.name.queue))
    }
}

impl Sweeping for SweepResults {
    const EVERY: Duration = Duration::from_secs(300);

    fn next(self, swept: SweepResult<i64>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

/// The first part of the table.
pub(super) fn first_part() -> SweepResults {
    SweepResults {
        after: 0,
        most: PART,
    }
}
