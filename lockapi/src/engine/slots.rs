//! Acquiring slots of a key, and holding them: what leases, permits, terms and leased mutexes are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::Core;
use super::batcher::ended;
use super::contention::ContentionCounter;
use super::keyed_fifo::Position;
use super::leases::{AcquireRequest, Claim, Granted, Refused, RequestedSlots};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::{Fence, Proof};
use crate::key::Key;
use crate::lease::{Holder, LeaseGuard, LeaseOptions, Peek, slot};
use crate::sync::atomic::Ordering;
use crate::telemetry::{self, Answer, Held, Stamp, Subject};
use crate::wait::unless;

/// The bounds of the pause between two attempts to acquire.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How often a grant may come too late before a waiting caller gets an error.
const TRIES: u32 = 3;

/// Where somebody waits for slots.
type Place<'a> = Position<'a, (Arc<str>, i64)>;

/// A handle on the slots of a key.
pub(super) struct Slots(Arc<Handle>);

impl Clone for Slots {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Handle {
    core: Arc<Core>,
    key: Key,
    text: Arc<str>,
    options: Arc<LeaseOptions>,
    contention: ContentionCounter,
}

impl Handle {
    fn subject(&self, what: RequestedSlots) -> Subject<'_> {
        self.core.subject(what.kind(), &self.key)
    }
}

type Attempt = Result<Granted>;

impl Slots {
    /// Errors name the `primitive`.
    pub(super) fn open(
        core: &Arc<Core>,
        primitive: &'static str,
        key: Key,
        options: LeaseOptions,
    ) -> Result<Self> {
        let checked = key.check().and_then(|()| options.check());
        checked.map_err(|error| error.during(primitive).on(&key))?;
        Ok(Self(Arc::new(Handle {
            text: key.to_string().into(),
            contention: ContentionCounter::new(&core.contended, true),
            core: Arc::clone(core),
            key,
            options: Arc::new(options),
        })))
    }

    pub(super) fn key(&self) -> &Key {
        &self.0.key
    }

    /// The key as tables store it.
    pub(super) fn text(&self) -> &Arc<str> {
        &self.0.text
    }

    pub(super) fn core(&self) -> &Core {
        &self.0.core
    }

    pub(super) async fn try_acquire(
        &self,
        operation: &'static str,
        what: RequestedSlots,
    ) -> Result<Option<Box<dyn LeaseGuard>>> {
        let trying = async {
            let granted = self.try_for(operation, what).await;
            if matches!(granted, Ok(None)) {
                self.0.contention.refused(&self.0.key);
            }
            granted
        };
        self.acquiring(operation, what, trying).await
    }

    pub(super) async fn acquire(
        &self,
        operation: &'static str,
        what: RequestedSlots,
    ) -> Result<Box<dyn LeaseGuard>> {
        let waiting = self.wait_for(operation, what);
        self.acquiring(operation, what, waiting).await
    }

    pub(super) async fn acquire_timeout(
        &self,
        operation: &'static str,
        what: RequestedSlots,
        timeout: Duration,
    ) -> Result<Box<dyn LeaseGuard>> {
        let (once, waiting) = (
            self.try_for(operation, what),
            self.wait_for(operation, what),
        );
        let waiting = self.within(operation, timeout, once, waiting);
        self.acquiring(operation, what, waiting).await
    }

    /// Tells of a call that acquires.
    pub(super) fn acquiring<T: Answer>(
        &self,
        operation: &'static str,
        what: RequestedSlots,
        work: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        telemetry::acquiring(self.0.subject(what), operation, work)
    }

    /// Requests it once; [`acquiring`](Self::acquiring) reports it.
    pub(super) async fn try_for(
        &self,
        operation: &'static str,
        what: RequestedSlots,
    ) -> Result<Option<Box<dyn LeaseGuard>>> {
        let since = Stamp::take(&self.0.core.connections.timer);
        let attempt = self.attempt(operation, what, 1, None).await?;
        Ok(attempt.ok().map(|claim| self.guard(claim, what, since)))
    }

    /// Whether nobody of this process waits for them.
    pub(super) fn is_first(&self, what: RequestedSlots) -> bool {
        let place = (Arc::clone(&self.0.text), first(what));
        self.0.core.leases.waiting.is_empty(&place)
    }

    /// Waits until it is granted; [`acquiring`](Self::acquiring) reports it.
    pub(super) async fn wait_for(
        &self,
        operation: &'static str,
        what: RequestedSlots,
    ) -> Result<Box<dyn LeaseGuard>> {
        let since = Stamp::take(&self.0.core.connections.timer);
        let waiting = &self.0.core.leases.waiting;
        let place = (Arc::clone(&self.0.text), first(what));
        if waiting.is_empty(&place)
            && let Ok(claim) = self.attempt(operation, what, TRIES, None).await?
        {
            return Ok(self.guard(claim, what, since));
        }
        let timer = &self.0.core.connections.timer;
        let joined = timer.now();
        let place = waiting.join(place);
        let waiting = Box::pin(self.wait(operation, what, since, &place));
        let guard = place.first_unless_refused(waiting).await?;
        let waited = timer.now().saturating_sub(joined);
        self.0.contention.waited(&self.0.key, waited, false);
        Ok(guard)
    }

    /// Runs `waiting` for at most `timeout`, or `once` when that is zero.
    pub(super) async fn within(
        &self,
        operation: &'static str,
        timeout: Duration,
        once: impl Future<Output = Result<Option<Box<dyn LeaseGuard>>>>,
        waiting: impl Future<Output = Result<Box<dyn LeaseGuard>>>,
    ) -> Result<Box<dyn LeaseGuard>> {
        let late = || Error::not_granted(operation, timeout).on(&self.0.key);
        if timeout.is_zero() {
            let granted = once.await?;
            return granted.ok_or_else(|| {
                self.0.contention.refused(&self.0.key);
                late()
            });
        }
        let sleep = self.0.core.connections.timer.sleep(timeout);
        let granted = unless(sleep, waiting).await;
        granted.unwrap_or_else(|| {
            self.0.contention.timed_out(&self.0.key);
            Err(late())
        })
    }

    pub(super) async fn peek(&self, slot: i64) -> Result<Option<Holder>> {
        let Handle { core, key, .. } = &*self.0;
        match core.batcher.call(self.peeking(slot)).await {
            Ok(peeked) => Ok(peeked.map(Holder::from)),
            Err(error) => Err(error.on(key)),
        }
    }

    fn peeking(&self, slot: i64) -> Peek {
        Peek {
            namespace: self.0.core.namespace.to_string(),
            key: self.0.text.to_string(),
            slot,
        }
    }

    /// Requests the slots until they are granted, or refused because others hold them.
    async fn attempt(
        &self,
        operation: &'static str,
        what: RequestedSlots,
        mut tries: u32,
        place: Option<&Place<'_>>,
    ) -> Attempt {
        let Handle {
            core,
            key,
            text,
            options,
            ..
        } = &*self.0;
        if options.is_renewed() && !core.leases.renewals_ready.load(Ordering::Relaxed) {
            // Without room for the connection that renews it, a lease would be lost before long.
            if let Some(place) = place {
                place.attempts();
            }
            let ready = core.renewals.call(self.peeking(first(what))).await;
            let ready = ready.map_err(|error| error.during(operation).on(key));
            if let (Err(error), Some(place)) = (&ready, place) {
                place.refused(error);
            }
            ready?;
            core.leases.renewals_ready.store(true, Ordering::Relaxed);
        }
        loop {
            if let Some(place) = place {
                place.attempts();
            }
            let (sender, answer) = oneshot::channel();
            let request = AcquireRequest {
                namespace: Arc::clone(&core.namespace),
                key: Arc::clone(text),
                what,
                options: Arc::clone(options),
            };
            core.leases.ask(request, sender);
            let outcome = answer.await.unwrap_or_else(|_| Err(ended(operation)));
            let outcome = outcome.map_err(|error| error.during(operation).on(key));
            if let (Err(error), Some(place)) = (&outcome, place) {
                place.refused(error);
            }
            match outcome? {
                Err(Refused { late: true, .. }) if tries == 1 => {
                    let message = "each answer of the server took longer than the ttl, so the grant was released; set a longer ttl, or try again";
                    return Err(Error::new(ErrorKind::Unavailable, operation, message).on(key));
                }
                Err(Refused { late: true, .. }) => tries -= 1,
                Err(Refused { again: true, .. }) => {}
                answer => {
                    if answer.is_err() {
                        telemetry::contended(what.kind());
                    }
                    return Ok(answer);
                }
            }
        }
    }

    async fn wait(
        &self,
        operation: &'static str,
        what: RequestedSlots,
        since: Stamp,
        place: &Place<'_>,
    ) -> Result<Box<dyn LeaseGuard>> {
        let core = &self.0.core;
        let mut pause = SHORTEST_PAUSE;
        loop {
            // Registered before the attempt, so a release in between is not missed.
            let released = place.changed();
            let left = match self.attempt(operation, what, TRIES, Some(place)).await? {
                Ok(claim) => return Ok(self.guard(claim, what, since)),
                Err(refused) => refused.held_for,
            };
            let jitter = pause.mul_f64(0.5 + fastrand::f64());
            let nap = left.map_or(jitter, |left| jitter.min(left.max(SHORTEST_PAUSE)));
            unless(core.connections.timer.sleep(nap), released).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn guard(&self, claim: Claim, what: RequestedSlots, since: Stamp) -> Box<dyn LeaseGuard> {
        Box::new(Guard {
            held: telemetry::granted(self.0.subject(what), since, &claim.hold),
            claim: claim.delivered(),
            handle: Arc::clone(&self.0),
        })
    }
}

/// Those who want the same slots stand in one line.
fn first(what: RequestedSlots) -> i64 {
    match what {
        RequestedSlots::Slot(slot) => slot,
        RequestedSlots::Permits { .. } => slot::FIRST_PERMIT,
    }
}

struct Guard {
    held: Held,
    // Dropped before the handle, whose end may end the tasks.
    claim: Claim,
    handle: Arc<Handle>,
}

#[async_trait]
impl LeaseGuard for Guard {
    fn fence(&self) -> Fence {
        Fence {
            token: self.claim.fence,
            namespace: Arc::clone(&self.handle.core.namespace),
            key: self.handle.key.clone(),
            hold: Arc::clone(&self.claim.hold),
            proof: Proof::Lease(Arc::clone(&self.claim.slots)),
        }
    }

    fn remaining(&self) -> Duration {
        let now = self.handle.core.leases.timer.now();
        self.claim.hold.remaining(now)
    }

    fn is_lost(&self) -> bool {
        let now = self.handle.core.leases.timer.now();
        self.claim.hold.is_lost_at(now)
    }

    async fn lost(&self) {
        self.claim.hold.lost().await;
    }

    async fn renew(&self) -> Result<()> {
        let renewed = self.handle.core.leases.renew(self.claim.id).await;
        renewed.map_err(|error| error.on(&self.handle.key))
    }

    async fn release(self: Box<Self>) -> Result<()> {
        let Self {
            held,
            claim,
            handle,
        } = *self;
        held.end();
        let (sender, answer) = oneshot::channel();
        claim.release(move |outcome| drop(sender.send(outcome)));
        let outcome = answer.await.unwrap_or_else(|_| Err(ended("release")));
        outcome.map_err(|error| error.on(&handle.key))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseGuard")
            .field("key", &self.handle.key)
            .field("fence", &self.claim.fence)
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
