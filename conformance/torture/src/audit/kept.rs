//! What a program keeps for as long as it has it, and what it drops.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};
use lockapi::{ErrorKind, blocking};

use super::PATIENCE;
use super::queues::not_delivered;
use crate::programs::TTL;

/// Longer than anybody waits.
const LONG: Duration = Duration::from_mins(2);

/// What a program that runs has for longer than its time to live.
pub(super) struct Kept {
    since: Instant,
    lease: blocking::LeaseGuard,
    permit: blocking::LeaseGuard,
    delivery: blocking::Delivery,
}

impl Kept {
    pub(super) fn begin(backend: &blocking::Backend) -> lockapi::Result<Self> {
        let terms = || LeaseOptions::new(TTL);
        let queue = backend.queue("kept")?;
        queue.push(Job::new("audit", &0)?)?;
        let claim = Claim::new(1).lease(TTL).wait(PATIENCE);
        let delivery = queue.claim(&claim)?.pop();
        Ok(Self {
            lease: backend.lease("kept", terms())?.acquire_timeout(PATIENCE)?,
            permit: backend
                .semaphore("kept", 1, terms())?
                .acquire_timeout(PATIENCE)?,
            delivery: delivery.ok_or_else(|| not_delivered("the job is not delivered"))?,
            since: Instant::now(),
        })
    }

    pub(super) fn end(self, backend: &blocking::Backend) -> lockapi::Result<()> {
        thread::sleep((TTL * 3 / 2).saturating_sub(self.since.elapsed()));
        let terms = || LeaseOptions::new(TTL);
        let others = [
            backend.lease("kept", terms())?.try_acquire()?.is_some(),
            backend
                .semaphore("kept", 1, terms())?
                .try_acquire()?
                .is_some(),
            !backend.queue("kept")?.claim(&Claim::new(1))?.is_empty(),
        ];
        if others.contains(&true) {
            let message = format!("another has it, too: {others:?}");
            return Err(lockapi::Error::new(ErrorKind::Lost, "keep", message));
        }
        self.delivery.ack()?;
        self.permit.release()?;
        self.lease.release()
    }
}

/// What is dropped without a word is there for others long before its time to live is over.
pub(super) fn dropped(backend: &blocking::Backend) -> lockapi::Result<()> {
    let (name, terms) = ("dropped", || LeaseOptions::new(LONG));
    drop(backend.mutex(name)?.lock_timeout(PATIENCE)?);
    backend.mutex(name)?.lock_timeout(PATIENCE)?.unlock()?;
    drop(backend.lease(name, terms())?.acquire_timeout(PATIENCE)?);
    let lease = backend.lease(name, terms())?.acquire_timeout(PATIENCE)?;
    lease.release()?;
    let permits = || backend.semaphore(name, 1, terms());
    drop(permits()?.acquire_timeout(PATIENCE)?);
    permits()?.acquire_timeout(PATIENCE)?.release()?;
    let queue = backend.queue(name)?;
    queue.push(Job::new("audit", &0)?)?;
    let claim = Claim::new(1).lease(LONG).wait(PATIENCE);
    let none = || not_delivered("the job is not delivered");
    drop(queue.claim(&claim)?.pop().ok_or_else(none)?);
    let again = queue.claim(&claim)?.pop().ok_or_else(none)?;
    if again.attempt() != 2 {
        let message = format!(
            "after one that was dropped it is delivery {}",
            again.attempt()
        );
        return Err(not_delivered(message));
    }
    again.ack()
}
