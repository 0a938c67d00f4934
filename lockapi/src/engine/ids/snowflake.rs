//! Ids of a worker number that is leased from the database.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::counter::{Counter, Obstacle};
use crate::engine::batcher::{Batcher, ended};
use crate::engine::clock::Time;
use crate::engine::timer::Timer;
use crate::engine::{Core, catch_panic, is_closed};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{
    ClaimWorker, ClaimedWorker, IdGen, IdOptions, Ids, Layout, ReleaseWorker, RenewWorker,
    RenewedWorker,
};
use crate::lease::micros;
use crate::random;
use crate::sync::{Mutex, MutexGuard};

/// A renewal follows the last one after this part of the reserve …
const RENEW_PART: u32 = 2;
/// … and is repeated after this part when it failed.
const AGAIN_PART: u32 = 8;
/// How often a claim that met others is repeated, and the pause between: it is doubled so often. Of those that begin together
/// one gets a number in each round.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(2);
const BUSY_DOUBLINGS: u32 = 6;

/// A generator in the hands of a caller; dropping it gives its number back.
pub(super) struct Handle {
    source: Arc<Source>,
    options: IdOptions,
    /// Kept until the source has been closed: its end ends the tasks.
    _core: Arc<Core>,
}

impl Handle {
    pub(super) fn new(core: &Arc<Core>, name: &str, options: IdOptions, layout: Layout) -> Self {
        let source = Arc::new_cyclic(|this| Source {
            namespace: Arc::clone(&core.namespace),
            name: name.into(),
            layout,
            options,
            batcher: Arc::clone(&core.batcher),
            timer: core.connections.timer.clone(),
            counter: Counter::new(layout),
            state: Mutex::default(),
            this: this.clone(),
        });
        core.generators.add(&source);
        Self {
            source,
            options,
            _core: Arc::clone(core),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.source.close();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdGen")
            .field("name", &self.source.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl IdGen for Handle {
    fn name(&self) -> &str {
        &self.source.name
    }

    fn try_take(&self, count: u64) -> Result<Option<Ids>> {
        let source = &*self.source;
        if count != 1 {
            source
                .options
                .check_count(count)
                .map_err(|it| source.about(it))?;
        }
        match source.counter.take(|| source.timer.now(), count) {
            Ok(ids) => Ok(Some(ids)),
            Err(Obstacle::End) => Err(source.about(source.end_of_time())),
            Err(_) => Ok(None),
        }
    }

    async fn ready(&self, count: u64) -> Result<()> {
        let source = &*self.source;
        let checked = source.options.check_count(count);
        let ready = match checked {
            Ok(()) => source.ready(count).await,
            Err(error) => Err(error),
        };
        ready.map_err(|error| source.about(error))
    }
}

/// After so many answers that left it without ids a call gives up.
const MOST_ASKED: u32 = 8;

/// What the handle, the batcher and the timer share.
pub(super) struct Source {
    namespace: Arc<str>,
    name: Arc<str>,
    layout: Layout,
    options: IdOptions,
    batcher: Arc<Batcher>,
    timer: Timer,
    counter: Counter,
    state: Mutex<State>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    claim: Option<Claim>,
    /// A claim or a renewal is under way.
    asking: bool,
    /// Who wants to know how it ends.
    waiting: Vec<oneshot::Sender<Result<()>>>,
    /// Ids of earlier times may have been made, in milliseconds since 1970.
    least: i64,
    /// When the next renewal is due.
    due: Time,
    closed: bool,
}

#[derive(Clone, Copy)]
struct Claim {
    worker: i64,
    token: i64,
    /// When the server's clock was last read, at the latest.
    clock_read_at: Time,
    /// And at the earliest: when it was asked for, or for a claim when it was answered.
    clock_asked_at: Time,
}

impl Source {
    /// Waits until this number of ids can be taken.
    async fn ready(&self, count: u64) -> Result<()> {
        let mut asked = 0;
        while asked < MOST_ASKED {
            match self.counter.can_take(self.timer.now(), count) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Ahead(time)) => self.timer.sleep(time).await,
                Err(Obstacle::End) => return Err(self.end_of_time()),
                Err(Obstacle::Unclaimed | Obstacle::Floor) => {
                    asked += 1;
                    let answer = self.ask();
                    answer.await.unwrap_or_else(|_| Err(ended("next")))?;
                }
            }
        }
        let message = format!(
            "{MOST_ASKED} answers came after the time for which they allow ids; the reserve is {:?}: set a longer one, or try again",
            self.options.reserved()
        );
        Err(Error::new(ErrorKind::Unavailable, "next", message))
    }

    /// Claims or renews, or joins who does already.
    fn ask(&self) -> oneshot::Receiver<Result<()>> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.lock();
        if state.waiting.len() == state.waiting.capacity() {
            // Callers that left, while the server is silent, take no more room than those that wait.
            state.waiting.retain(|one| !one.is_closed());
        }
        state.waiting.push(sender);
        self.send(state);
        answer
    }

    fn send(&self, mut state: MutexGuard<'_, State>) {
        if state.closed {
            return answer(state, &Err(is_closed().error("next")));
        }
        if std::mem::replace(&mut state.asking, true) {
            return;
        }
        match state.claim {
            Some(claim) => {
                drop(state);
                self.send_renewal(claim);
            }
            None => self.send_claim(state, BUSY_TRIES),
        }
    }

    fn send_claim(&self, state: MutexGuard<'_, State>, tries: u32) {
        let token = match random::positive() {
            Ok(token) => token,
            Err(error) => return answer(state, &Err(error.during("claim"))),
        };
        let claim = ClaimWorker {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            worker_bits: self.layout.worker_bits().into(),
            sequence_bits: self.layout.sequence_bits().into(),
            epoch: self.layout.epoch_millis(),
            token,
            ttl: micros(self.options.kept()),
            reserve: millis(self.options.reserved()),
            least: state.least,
            owner: format!("pid {}", std::process::id()),
        };
        drop(state);
        let Some(this) = self.this.upgrade() else {
            return;
        };
        self.batcher.submit(claim, move |outcome| {
            this.claimed(token, tries, outcome);
        });
    }

    fn claimed(&self, token: i64, tries: u32, outcome: Result<ClaimedWorker>) {
        let now = self.timer.now();
        let state = self.lock();
        let refused = |kind, message| Err(Error::new(kind, "claim", message));
        let outcome = match outcome {
            Ok(ClaimedWorker::Granted {
                worker,
                start,
                floor,
                now: server,
            }) => {
                let claim = Claim {
                    worker,
                    token,
                    clock_read_at: now,
                    clock_asked_at: now,
                };
                return self.granted(state, claim, (start, floor), server);
            }
            Ok(ClaimedWorker::Busy) if tries > 0 && !state.closed => {
                drop(state);
                return self.claim_later(tries - 1);
            }
            Ok(ClaimedWorker::Busy) => {
                let message =
                    "other processes claimed each worker number first; try again".to_owned();
                refused(ErrorKind::Unavailable, message)
            }
            Ok(ClaimedWorker::Full) => {
                let workers = 1u32 << self.layout.worker_bits();
                let message = format!(
                    "all {workers} worker numbers are taken; one that is no longer renewed is free again after {:?}",
                    self.options.kept()
                );
                refused(ErrorKind::Capacity, message)
            }
            Ok(ClaimedWorker::TooEarly(server)) => {
                let message = format!(
                    "the layout's epoch, {} ms since 1970, is in the future: the server's clock shows {} ms; allowed is an earlier epoch",
                    self.layout.epoch_millis(),
                    server / 1000
                );
                refused(ErrorKind::Invalid, message)
            }
            Ok(ClaimedWorker::Other(worker_bits, sequence_bits, epoch)) => {
                let message = format!(
                    "the name is in use with another layout, {}, and two layouts can make the same id; use that one, \
                     or another name, or, if no id of that layout is in use, end the programs that use the \
                     name and delete its rows of lockapi.id_space and lockapi.id_worker",
                    Layout::describe(worker_bits, sequence_bits, epoch)
                );
                refused(ErrorKind::Invalid, message)
            }
            Err(error) => Err(error),
        };
        answer(state, &outcome);
    }

    fn granted(
        &self,
        mut state: MutexGuard<'_, State>,
        claim: Claim,
        (start, floor): (i64, i64),
        server: i64,
    ) {
        if state.closed {
            drop(state);
            self.give_back(claim, start);
            return;
        }
        let worker = claim.worker.unsigned_abs();
        self.counter
            .begin(worker, start, floor, claim.clock_read_at, server);
        state.claim = Some(claim);
        let left = self.left(claim.clock_read_at, floor);
        self.renew_at(&mut state, claim.clock_read_at + left / RENEW_PART);
        answer(state, &Ok(()));
    }

    /// For how long ids can be made up to a floor: less than the reserve while they run ahead of the clock.
    fn left(&self, now: Time, floor: i64) -> Duration {
        let left = floor.saturating_sub(self.counter.position(now));
        let left = Duration::from_millis(left.max(0).unsigned_abs());
        left.min(self.options.reserved())
    }

    fn claim_later(&self, tries: u32) {
        let round = BUSY_TRIES.saturating_sub(tries).min(BUSY_DOUBLINGS);
        let pause = (BUSY_PAUSE * (1 << round)).mul_f64(fastrand::f64());
        let this = self.this.clone();
        self.timer.run_at(self.timer.now() + pause, move || {
            if let Some(this) = this.upgrade() {
                this.send_claim(this.lock(), tries);
            }
        });
    }

    fn send_renewal(&self, claim: Claim) {
        let sent = self.timer.now();
        let renew = RenewWorker {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            worker: claim.worker,
            token: claim.token,
            ttl: micros(self.options.kept()),
            reserve: millis(self.options.reserved()),
            least: self.counter.position(sent),
        };
        let Some(this) = self.this.upgrade() else {
            return;
        };
        self.batcher.submit(renew, move |outcome| {
            this.renewed(claim, sent, outcome);
        });
    }

    fn renewed(&self, claim: Claim, sent: Time, outcome: Result<RenewedWorker>) {
        let now = self.timer.now();
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let reserve = self.options.reserved();
        match outcome {
            Ok(RenewedWorker {
                floor: Some(floor),
                now: server,
            }) => {
                // From one request to the next: of time that is ahead something is given up, however long the answers
                // take.
                let since = sent.saturating_sub(claim.clock_asked_at);
                self.counter.adjust(server, sent, now, since);
                self.counter.raise(floor);
                state.claim = Some(Claim {
                    clock_read_at: now,
                    clock_asked_at: sent,
                    ..claim
                });
                let left = self.left(now, floor);
                self.renew_at(&mut state, sent + left / RENEW_PART);
                answer(state, &Ok(()));
            }
            Ok(RenewedWorker { floor: None, .. }) => {
                // Another has the number. Who wants ids claims one again.
                self.forget(&mut state);
                answer(state, &Ok(()));
            }
            Err(error) => {
                self.renew_at(&mut state, now + reserve / AGAIN_PART);
                answer(state, &Err(error));
            }
        }
    }

    /// Ends the claim; the next one starts behind it.
    fn forget(&self, state: &mut State) -> Option<Claim> {
        if let Some(unused) = self.counter.end_claim() {
            state.least = state.least.max(unused);
        }
        state.claim.take()
    }

    fn renew_at(&self, state: &mut State, at: Time) {
        state.due = at;
        let this = self.this.clone();
        self.timer.run_at(at, move || {
            if let Some(this) = this.upgrade() {
                let state = this.lock();
                // Who needed ids may have renewed meanwhile, which has set a timer of its own.
                if state.claim.is_some() && this.timer.now() >= state.due {
                    this.send(state);
                }
            }
        });
    }

    /// Gives the number back.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let claim = self.forget(&mut state);
        let least = state.least;
        answer(state, &Err(is_closed().error("next")));
        if let Some(claim) = claim {
            self.give_back(claim, least);
        }
    }

    fn give_back(&self, claim: Claim, floor: i64) {
        let release = ReleaseWorker {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            worker: claim.worker,
            token: claim.token,
            floor,
        };
        // When this fails it ends by itself.
        self.batcher.submit(release, drop);
    }

    fn end_of_time(&self) -> Error {
        let message = format!(
            "the layout has {} bits of time, counted from {} ms since 1970, and that time has run out; use a new name, and a layout with a later epoch",
            self.layout.time_bits(),
            self.layout.epoch_millis()
        );
        Error::new(ErrorKind::Capacity, "next", message)
    }

    fn about(&self, error: Error) -> Error {
        error.during("next").on(&self.name)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Delivers an answer; callers are woken outside of the lock.
fn answer(mut state: MutexGuard<'_, State>, outcome: &Result<()>) {
    state.asking = false;
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    for sender in waiting {
        // A caller that left does not want to know, and the waker of one may panic.
        catch_panic(|| drop(sender.send(outcome.clone())));
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
