//! [`Mutex`] over the sessions of a process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Core;
use super::lane::ended;
use super::sessions::{Grant, Patience};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::{Fence, Proof};
use crate::key::{Key, LockId};
use crate::mutex::{Mutex, MutexGuard};
use crate::seam::Connector;
use crate::wait::unless;

pub(super) fn open<C: Connector>(core: &Arc<Core<C>>, key: Key) -> Arc<dyn Mutex> {
    Arc::new(Named(Arc::new(Handle {
        lock: key.lock_id(&core.namespace),
        core: Arc::clone(core),
        key,
    })))
}

struct Handle<C: Connector> {
    core: Arc<Core<C>>,
    key: Key,
    lock: LockId,
}

struct Named<C: Connector>(Arc<Handle<C>>);

impl<C: Connector> Named<C> {
    async fn ask(
        &self,
        operation: &'static str,
        patience: Patience,
    ) -> Result<Option<Box<dyn MutexGuard>>> {
        let answer = self.0.core.sessions.ask(self.0.lock, patience).await;
        match answer.unwrap_or_else(|_| Err(ended(operation))) {
            Ok(grant) => Ok(grant.map(|grant| self.guard(grant))),
            Err(error) => Err(error.during(operation).on(&self.0.key)),
        }
    }

    fn guard(&self, grant: Grant) -> Box<dyn MutexGuard> {
        Box::new(Guard {
            grant,
            handle: Arc::clone(&self.0),
        })
    }

    fn not_granted(&self, operation: &'static str, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::TimedOut, operation, message).on(&self.0.key)
    }
}

#[async_trait]
impl<C: Connector> Mutex for Named<C> {
    fn key(&self) -> &Key {
        &self.0.key
    }

    fn namespace(&self) -> &str {
        &self.0.core.namespace
    }

    fn is_leased(&self) -> bool {
        false
    }

    async fn try_lock(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        self.ask("try_lock", Patience::None).await
    }

    async fn lock(&self) -> Result<Box<dyn MutexGuard>> {
        let granted = self.ask("lock", Patience::Forever).await?;
        granted.ok_or_else(|| self.not_granted("lock", "not granted"))
    }

    async fn lock_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        const OPERATION: &str = "lock_timeout";
        if timeout.is_zero() {
            let granted = self.ask(OPERATION, Patience::None).await?;
            return granted.ok_or_else(|| self.not_granted(OPERATION, "held by another"));
        }
        let keeper = &self.0.core.links.keeper;
        let until = keeper.now().saturating_add(timeout);
        let asking = self.ask(OPERATION, Patience::Until(until));
        let granted = unless(keeper.sleep(timeout), asking).await.transpose()?;
        granted
            .flatten()
            .ok_or_else(|| self.not_granted(OPERATION, format!("not granted within {timeout:?}")))
    }
}

impl<C: Connector> fmt::Debug for Named<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mutex").field(&self.0.key).finish()
    }
}

struct Guard<C: Connector> {
    // Dropped before the handle, whose end may end the lanes.
    grant: Grant,
    handle: Arc<Handle<C>>,
}

#[async_trait]
impl<C: Connector> MutexGuard for Guard<C> {
    fn fence(&self) -> Fence {
        Fence {
            token: self.grant.fence,
            namespace: Arc::clone(&self.handle.core.namespace),
            key: self.handle.key.clone(),
            hold: Arc::clone(&self.grant.hold),
            proof: Proof::Session(self.grant.mark),
        }
    }

    fn is_lost(&self) -> bool {
        self.grant.hold.is_lost()
    }

    async fn lost(&self) {
        self.grant.hold.lost().await;
    }

    async fn unlock(self: Box<Self>) -> Result<()> {
        let Self { grant, handle } = *self;
        let released = grant.release().await;
        released
            .unwrap_or_else(|_| Err(ended("unlock")))
            .map_err(|error| error.on(&handle.key))
    }
}

impl<C: Connector> fmt::Debug for Guard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard")
            .field("key", &self.handle.key)
            .field("fence", &self.grant.fence)
            .field("lost", &self.is_lost())
            .finish()
    }
}
