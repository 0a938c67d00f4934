//! Session locks: mutexes and read-write locks.
//!
//! [`LockTable`] decides; this is the shell around it, which owns the lock around the table, the
//! channels to callers, the timer and the telemetry; [`worker`] runs the statements of one session.
//! Callers are answered after the table is unlocked.

mod grant;
mod pending;
mod table;
pub(crate) mod worker;

use std::sync::{Arc, OnceLock, PoisonError, Weak};

use tokio::sync::oneshot;

pub(crate) use grant::Grant;
pub(crate) use pending::Pending;
#[cfg(test)]
pub(crate) use table::LongHoldOrWait;
pub(crate) use table::{Acquisition, Limits, Observed, WaitPolicy};
use table::{Answer, Batch, Effects, LockTable, Next, Reason, Reply, WaitOutcome};

use super::catch_panic;
use super::clock::Time;
use super::timer::Timer;
use crate::engine::is_closed;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::hold::Hold;
use crate::key::LockId;
use crate::sync::{Mutex, MutexGuard, Notify};
use crate::telemetry::{self, Fault, Kind};

type Granted = Result<Option<Grant>>;
type Waiter = oneshot::Sender<Granted>;
type Released = oneshot::Sender<Result<()>>;
type Table = LockTable<Waiter, Arc<Hold>, Released>;
type TableEffects = Effects<Waiter, Arc<Hold>, Released>;

/// Starts the worker of a session.
type Start = dyn Fn(usize) + Send + Sync;
/// Gets the long holds and waits; returns whether to observe again, although no lock is in use.
type Observe = dyn Fn(Observed) -> bool + Send + Sync;

/// The session locks of a process on one database.
pub(crate) struct Locks {
    table: Mutex<Table>,
    /// Wakes the worker of each session.
    wakes: Vec<Notify>,
    timer: Timer,
    most: usize,
    start: OnceLock<Box<Start>>,
    observe: Option<Box<Observe>>,
    this: Weak<Self>,
}

impl Locks {
    pub(crate) fn new(timer: Timer, limits: Limits, observe: Option<Box<Observe>>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            table: Mutex::new(LockTable::new(limits)),
            wakes: (0..=limits.waiters).map(|_| Notify::new()).collect(),
            timer,
            most: limits.max_locks,
            start: OnceLock::new(),
            observe,
            this: this.clone(),
        })
    }

    /// Sets how the worker of a session is started; called once, before anything else.
    pub(crate) fn start_with(&self, start: impl Fn(usize) + Send + Sync + 'static) {
        let _first = self.start.set(Box::new(start));
    }

    /// Acquires a lock.
    pub(crate) fn acquire(self: &Arc<Self>, acquisition: Acquisition) -> Pending {
        let (sender, answer) = oneshot::channel();
        let now = || self.timer.now();
        let id = self.with(|table, effects| table.acquire(&now, acquisition, sender, effects));
        Pending::new(Arc::clone(self), acquisition.lock, id, answer)
    }

    fn leave(&self, lock: LockId, id: u64) {
        let now = || self.timer.now();
        self.with(|table, effects| table.leave(&now, lock, id, effects));
    }

    fn release(&self, lock: LockId, id: u64, hold: &Hold, reply: Option<Released>) {
        let now = || self.timer.now();
        self.with(|table, effects| {
            // Lost under the same lock, so that it is one or the other.
            hold.release();
            table.release(&now, lock, id, reply, effects);
        });
    }

    fn next(&self, session: usize, batch: Batch) -> Next {
        let now = || self.timer.now();
        self.with(|table, effects| table.next(&now, session, batch, effects))
    }

    fn apply_replies(&self, session: usize, replies: &[Reply]) {
        let now = || self.timer.now();
        self.with(|table, effects| table.apply_replies(&now, session, replies, effects));
    }

    fn waited(&self, session: usize, waited: WaitOutcome) {
        let now = || self.timer.now();
        self.with(|table, effects| table.waited(&now, session, waited, effects));
    }

    fn batch_failed(&self, session: usize, failure: &Failure) {
        let now = || self.timer.now();
        self.with(|table, effects| table.batch_failed(&now, session, failure, effects));
    }

    fn session_lost(&self, session: usize, failure: &Failure) {
        let now = || self.timer.now();
        self.with(|table, effects| table.session_lost(&now, session, failure, effects));
    }

    fn refuse_session(&self, session: usize, failure: &Failure) {
        let now = || self.timer.now();
        self.with(|table, effects| table.refuse_session(&now, session, failure, effects));
    }

    fn worker_ended(&self, session: usize, began: bool, failure: &Failure) {
        telemetry::fault(Fault::WorkerEnded);
        let now = || self.timer.now();
        self.with(|table, effects| table.worker_ended(&now, session, began, failure, effects));
    }

    fn opened(&self, session: usize, mark: i64, process: i64) {
        self.lock().opened(session, mark, process);
    }

    fn is_wanted(&self, session: usize) -> bool {
        self.lock().is_wanted(session, self.timer.now())
    }

    /// The wait of a session is answered; returns once no interrupt is under way, which must not hit what is sent next.
    async fn interrupts_end(&self, session: usize) {
        while self.lock().answered(session) {
            self.woken(session).await;
        }
    }

    fn requests(&self, session: usize) -> usize {
        self.lock().requests(session)
    }

    fn retire(&self, session: usize) -> bool {
        self.lock().retire(session)
    }

    async fn woken(&self, session: usize) {
        self.wakes[session].notified().await;
    }

    /// Lets the workers end; locks that are still held are released by the end of their sessions.
    pub(crate) fn close(&self) {
        self.with(Table::close);
    }

    /// Releases all that is held, and lets the workers end.
    pub(crate) fn close_all(&self) {
        let now = || self.timer.now();
        self.with(|table, effects| table.close_all(&now, effects));
    }

    fn tick(&self, at: Time) {
        let now = self.timer.now();
        self.with(|table, effects| table.tick(at, now, effects));
    }

    /// Passes long holds and waits to the observer, and repeats that while a lock is in use.
    fn observe(&self) {
        let Some(observe) = &self.observe else {
            return;
        };
        let observed = self.lock().observe(self.timer.now());
        let again = observe(observed);
        let now = || self.timer.now();
        self.with(|table, effects| {
            if again || table.is_in_use() {
                table.observe_later(&now, effects);
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, and then carries out the effects. A hold is marked as lost before the table is
    /// unlocked; everything else comes after that, because it may run code of the program.
    fn with<T>(&self, change: impl FnOnce(&mut Table, &mut TableEffects) -> T) -> T {
        let mut table = self.lock();
        let (changed, effects) = table.change(&|| self.timer.now(), change);
        effects.lost.iter().for_each(|hold| hold.lose());
        drop(table);
        self.carry_out(effects);
        changed
    }

    fn carry_out(&self, effects: TableEffects) {
        let Effects {
            answers,
            releases,
            lost,
            contended,
            start,
            mut wake,
            timers,
            observe,
            unopened,
        } = effects;
        for at in timers {
            let this = self.this.clone();
            self.timer.run_at(at, move || {
                if let Some(locks) = this.upgrade() {
                    locks.tick(at);
                }
            });
        }
        if let Some(worker) = self.start.get() {
            start.into_iter().for_each(worker);
        }
        while wake != 0 {
            let session = wake.trailing_zeros() as usize;
            wake &= wake - 1;
            self.wakes[session].notify_one();
        }
        (0..contended).for_each(|_| telemetry::contended(Kind::Mutex));
        (0..unopened).for_each(|_| telemetry::fault(Fault::WaiterUnopened));
        telemetry::lost(lost.iter().map(|_| Kind::Mutex));
        for hold in lost {
            catch_panic(|| hold.announce());
        }
        for (reply, answer) in answers {
            let answer = match answer {
                Answer::Granted(granted) => Ok(Some(Grant::new(self.this.upgrade(), granted))),
                Answer::Busy => Ok(None),
                Answer::Failed(reason) => Err(self.error("lock", &reason)),
            };
            // A caller that left drops its grant, which releases the lock.
            catch_panic(|| drop(reply.send(answer)));
        }
        for (reply, outcome) in releases {
            let outcome = outcome.map_err(|reason| self.error("unlock", &reason));
            catch_panic(|| drop(reply.send(outcome)));
        }
        if observe {
            self.observe();
        }
    }

    fn error(&self, operation: &'static str, reason: &Reason) -> Error {
        match reason {
            Reason::Lost => {
                let message = "the lock was no longer held: its session had ended";
                Error::new(ErrorKind::Lost, operation, message)
            }
            Reason::Full => {
                let message = format!(
                    "this process holds or waits for {} locks already; allowed are no more (set BackendOptions::max_locks)",
                    self.most
                );
                Error::new(ErrorKind::Capacity, operation, message)
            }
            Reason::Deadlock => {
                let message = "the wait would never end: the holder of the lock waits, directly or through others, for a lock of this lock owner, or is this lock owner itself; release its locks and begin again";
                Error::new(ErrorKind::Deadlock, operation, message)
            }
            Reason::Closed => is_closed().error(operation),
            // A lock belongs to its session: with that it is gone, whatever was answered.
            Reason::Failure(failure) => failure.clone().undone().error(operation),
        }
    }
}

#[cfg(test)]
mod tests;
