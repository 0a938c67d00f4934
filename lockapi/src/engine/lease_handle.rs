//! [`Lease`] over the leases of a process.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::Core;
use super::lane::ended;
use super::leases::Claim;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::{Fence, Proof};
use crate::key::Key;
use crate::lease::{Holder, Lease, LeaseGuard, Peek, Terms};
use crate::seam::Connector;
use crate::wait::unless;

/// The bounds of the pause between two attempts to acquire.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

pub(super) fn open<C: Connector>(core: &Arc<Core<C>>, key: Key, terms: Terms) -> Arc<dyn Lease> {
    Arc::new(Named(Arc::new(Handle {
        text: key.to_string(),
        core: Arc::clone(core),
        key,
        terms,
    })))
}

struct Handle<C: Connector> {
    core: Arc<Core<C>>,
    key: Key,
    text: String,
    terms: Terms,
}

struct Named<C: Connector>(Arc<Handle<C>>);

type Attempt<C> = Result<std::result::Result<Claim<C>, Duration>>;

impl<C: Connector> Named<C> {
    /// Asks once; answers how long another holds it at most.
    fn attempt(
        &self,
        operation: &'static str,
        acquisition: i64,
    ) -> impl Future<Output = Attempt<C>> + Send + use<C> {
        let Handle {
            core, key, terms, ..
        } = &*self.0;
        let acquire = terms.acquire(&core.namespace, key, acquisition);
        let (sender, answer) = oneshot::channel();
        let (ttl, renewed) = (terms.ttl(), terms.is_renewed());
        core.leases.ask(acquire, ttl, renewed, move |outcome| {
            // A caller that left drops its claim, which releases the lease.
            drop(sender.send(outcome));
        });
        let key = key.clone();
        async move {
            let outcome = answer.await.unwrap_or_else(|_| Err(ended(operation)));
            outcome.map_err(|error| error.during(operation).on(&key))
        }
    }

    async fn wait(&self, operation: &'static str) -> Result<Box<dyn LeaseGuard>> {
        let core = &self.0.core;
        let mut pause = SHORTEST_PAUSE;
        loop {
            // Registered before the attempt, so a release in between is not missed.
            let released = core.leases.bucket(&self.0.text).notified();
            let left = match self.attempt(operation, fastrand::i64(..)).await? {
                Ok(claim) => return Ok(self.guard(claim)),
                Err(left) => left,
            };
            let jitter = pause.mul_f64(0.5 + fastrand::f64());
            let nap = jitter.min(left.max(SHORTEST_PAUSE));
            unless(core.links.keeper.sleep(nap), released).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn guard(&self, claim: Claim<C>) -> Box<dyn LeaseGuard> {
        Box::new(Guard {
            claim,
            handle: Arc::clone(&self.0),
        })
    }
}

#[async_trait]
impl<C: Connector> Lease for Named<C> {
    fn key(&self) -> &Key {
        &self.0.key
    }

    async fn try_acquire(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        let attempt = self.attempt("try_acquire", fastrand::i64(..)).await?;
        Ok(attempt.ok().map(|claim| self.guard(claim)))
    }

    async fn acquire(&self) -> Result<Box<dyn LeaseGuard>> {
        self.wait("acquire").await
    }

    async fn acquire_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        const OPERATION: &str = "acquire_timeout";
        let late = |message| Error::new(ErrorKind::TimedOut, OPERATION, message).on(&self.0.key);
        if timeout.is_zero() {
            let attempt = self.attempt(OPERATION, fastrand::i64(..)).await?;
            let claim = attempt.map_err(|_| late("held by another".to_owned()))?;
            return Ok(self.guard(claim));
        }
        let sleep = self.0.core.links.keeper.sleep(timeout);
        unless(sleep, self.wait(OPERATION))
            .await
            .unwrap_or_else(|| Err(late(format!("not granted within {timeout:?}"))))
    }

    async fn peek(&self) -> Result<Option<Holder>> {
        let Handle {
            core, key, text, ..
        } = &*self.0;
        let peek = Peek {
            namespace: core.namespace.to_string(),
            key: text.clone(),
        };
        match core.lane.call(peek).await {
            Ok(peeked) => Ok(peeked.map(Holder::from)),
            Err(error) => Err(error.on(key)),
        }
    }
}

impl<C: Connector> fmt::Debug for Named<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.0.key).finish()
    }
}

struct Guard<C: Connector> {
    // Dropped before the handle, whose end may end the lanes.
    claim: Claim<C>,
    handle: Arc<Handle<C>>,
}

#[async_trait]
impl<C: Connector> LeaseGuard for Guard<C> {
    fn fence(&self) -> Fence {
        Fence {
            token: self.claim.fence,
            namespace: Arc::clone(&self.handle.core.namespace),
            key: self.handle.key.clone(),
            hold: Arc::clone(&self.claim.hold),
            proof: Proof::Lease,
        }
    }

    fn remaining(&self) -> Duration {
        self.handle.core.leases.remaining(self.claim.id)
    }

    fn is_lost(&self) -> bool {
        // By the clock as well: the keeper's thread may not have had its turn yet.
        self.claim.hold.is_lost() || self.remaining().is_zero()
    }

    async fn lost(&self) {
        self.claim.hold.lost().await;
    }

    async fn renew(&self) -> Result<()> {
        let renewed = self.handle.core.leases.renew(self.claim.id).await;
        renewed.map_err(|error| error.on(&self.handle.key))
    }

    async fn release(self: Box<Self>) -> Result<()> {
        let Self { claim, handle } = *self;
        let (sender, answer) = oneshot::channel();
        claim.release(move |outcome| drop(sender.send(outcome)));
        let outcome = answer.await.unwrap_or_else(|_| Err(ended("release")));
        outcome.map_err(|error| error.on(&handle.key))
    }
}

impl<C: Connector> fmt::Debug for Guard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseGuard")
            .field("key", &self.handle.key)
            .field("fence", &self.claim.fence)
            .field("lost", &self.is_lost())
            .finish()
    }
}
