//! [`Mutex`] and [`RwLock`] over the sessions of a process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Core;
use super::batcher::ended;
use super::contention::ContentionCounter;
use super::locks::{Acquisition, Grant, WaitPolicy};
use crate::error::{Error, Result};
use crate::fence::{Fence, Proof, is_hand_over};
use crate::key::{Key, LockId};
use crate::mutex::{LockMode, LockOwner, Mutex, MutexGuard, OwnerId, ReadGuard, RwLock};
use crate::telemetry::{self, Held, Kind, Stamp, Subject};
use crate::wait::unless;

pub(super) fn open(core: &Arc<Core>, key: Key) -> Arc<dyn Mutex> {
    Arc::new(MutexHandle::new(core, key))
}

pub(super) fn open_rw(core: &Arc<Core>, key: Key) -> Arc<dyn RwLock> {
    Arc::new(RwLockHandle(MutexHandle::new(core, key)))
}

struct Handle {
    core: Arc<Core>,
    key: Key,
    lock: LockId,
    contention: ContentionCounter,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.names.remove(self.lock);
    }
}

/// A grant, and the time of its request.
type Granted = (Grant, Stamp);

/// The exclusive lock of a key.
struct MutexHandle {
    handle: Arc<Handle>,
    owner: Option<OwnerId>,
}

impl MutexHandle {
    fn new(core: &Arc<Core>, key: Key) -> Self {
        let lock = key.lock_id(&core.namespace);
        core.names.add(lock, &key);
        let handle = Arc::new(Handle {
            lock,
            contention: ContentionCounter::new(&core.contended, false),
            core: Arc::clone(core),
            key,
        });
        Self {
            handle,
            owner: None,
        }
    }

    fn on(&self, owner: &LockOwner) -> Self {
        Self {
            handle: Arc::clone(&self.handle),
            owner: Some(owner.id()),
        }
    }

    async fn acquire(
        &self,
        operation: &'static str,
        mode: LockMode,
        policy: WaitPolicy,
    ) -> Result<Option<Granted>> {
        let since = Stamp::take(&self.handle.core.connections.timer);
        let acquisition = Acquisition {
            lock: self.handle.lock,
            mode,
            owner: self.owner,
            policy,
        };
        let pending = self.handle.core.locks.acquire(acquisition);
        let answer = pending.answer().await;
        let Handle {
            key, contention, ..
        } = &*self.handle;
        match &answer {
            Some(Ok(None)) if policy == WaitPolicy::NoWait => contention.refused(key),
            Some(Ok(Some(grant))) => {
                if let Some(waited) = grant.waited {
                    contention.waited(key, waited, is_hand_over(grant.fence));
                }
            }
            Some(Ok(None) | Err(_)) | None => {}
        }
        answer
            .unwrap_or_else(|| Err(ended(operation)))
            .map(|granted| granted.map(|grant| (grant, since)))
            .map_err(|error| error.during(operation).on(key))
    }

    async fn try_for(&self, operation: &'static str, mode: LockMode) -> Result<Option<Guard>> {
        let acquiring = self.acquire(operation, mode, WaitPolicy::NoWait);
        let granted = telemetry::acquiring(self.subject(), operation, acquiring).await?;
        Ok(granted.map(|granted| self.guard(granted)))
    }

    async fn wait(&self, operation: &'static str, mode: LockMode) -> Result<Guard> {
        let acquiring = self.acquire(operation, mode, WaitPolicy::Forever);
        let granted = telemetry::acquiring(self.subject(), operation, acquiring).await?;
        let granted = granted.ok_or_else(|| self.not_granted(operation, Duration::MAX))?;
        Ok(self.guard(granted))
    }

    async fn wait_for(
        &self,
        operation: &'static str,
        mode: LockMode,
        timeout: Duration,
    ) -> Result<Guard> {
        let timer = &self.handle.core.connections.timer;
        let acquiring = async {
            if timeout.is_zero() {
                return self.acquire(operation, mode, WaitPolicy::NoWait).await;
            }
            let until = timer.now().saturating_add(timeout);
            let acquiring = self.acquire(operation, mode, WaitPolicy::Until(until));
            let granted = unless(timer.sleep(timeout), acquiring).await.transpose()?;
            let granted = granted.flatten();
            if granted.is_none() {
                self.handle.contention.timed_out(&self.handle.key);
            }
            Ok(granted)
        };
        let granted = telemetry::acquiring(self.subject(), operation, acquiring).await?;
        let granted = granted.ok_or_else(|| self.not_granted(operation, timeout))?;
        Ok(self.guard(granted))
    }

    fn subject(&self) -> Subject<'_> {
        self.handle.core.subject(Kind::Mutex, &self.handle.key)
    }

    fn guard(&self, (grant, since): Granted) -> Guard {
        Guard {
            held: telemetry::granted(self.subject(), since, &grant.hold),
            grant,
            handle: Arc::clone(&self.handle),
        }
    }

    fn not_granted(&self, operation: &'static str, timeout: Duration) -> Error {
        Error::not_granted(operation, timeout).on(&self.handle.key)
    }
}

#[async_trait]
impl Mutex for MutexHandle {
    fn key(&self) -> &Key {
        &self.handle.key
    }

    fn namespace(&self) -> &str {
        &self.handle.core.namespace
    }

    fn on(&self, owner: &LockOwner) -> Arc<dyn Mutex> {
        Arc::new(MutexHandle::on(self, owner))
    }

    fn is_leased(&self) -> bool {
        false
    }

    async fn try_lock(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        let guard = self.try_for("try_lock", LockMode::Exclusive).await?;
        Ok(guard.map(|guard| Box::new(guard) as Box<dyn MutexGuard>))
    }

    async fn lock(&self) -> Result<Box<dyn MutexGuard>> {
        Ok(Box::new(self.wait("lock", LockMode::Exclusive).await?))
    }

    async fn lock_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        let waiting = self.wait_for("lock_timeout", LockMode::Exclusive, timeout);
        Ok(Box::new(waiting.await?))
    }

    fn now(&self) -> Duration {
        self.handle.core.connections.timer.now()
    }

    async fn sleep(&self, time: Duration) {
        self.handle.core.connections.timer.sleep(time).await;
    }
}

impl fmt::Debug for MutexHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mutex").field(&self.handle.key).finish()
    }
}

/// The exclusive and the shared lock of a key.
struct RwLockHandle(MutexHandle);

#[async_trait]
impl RwLock for RwLockHandle {
    fn key(&self) -> &Key {
        &self.0.handle.key
    }

    fn namespace(&self) -> &str {
        &self.0.handle.core.namespace
    }

    fn on(&self, owner: &LockOwner) -> Arc<dyn RwLock> {
        Arc::new(Self(self.0.on(owner)))
    }

    async fn try_read(&self) -> Result<Option<Box<dyn ReadGuard>>> {
        let guard = self.0.try_for("try_read", LockMode::Shared).await?;
        Ok(guard.map(|guard| Box::new(guard) as Box<dyn ReadGuard>))
    }

    async fn read(&self) -> Result<Box<dyn ReadGuard>> {
        Ok(Box::new(self.0.wait("read", LockMode::Shared).await?))
    }

    async fn read_timeout(&self, timeout: Duration) -> Result<Box<dyn ReadGuard>> {
        let waiting = self.0.wait_for("read_timeout", LockMode::Shared, timeout);
        Ok(Box::new(waiting.await?))
    }

    async fn try_write(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        let guard = self.0.try_for("try_write", LockMode::Exclusive).await?;
        Ok(guard.map(|guard| Box::new(guard) as Box<dyn MutexGuard>))
    }

    async fn write(&self) -> Result<Box<dyn MutexGuard>> {
        Ok(Box::new(self.0.wait("write", LockMode::Exclusive).await?))
    }

    async fn write_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        let waiting = self
            .0
            .wait_for("write_timeout", LockMode::Exclusive, timeout);
        Ok(Box::new(waiting.await?))
    }
}

impl fmt::Debug for RwLockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RwLock").field(&self.0.handle.key).finish()
    }
}

struct Guard {
    held: Held,
    // Dropped before the handle, whose end may end the tasks.
    grant: Grant,
    handle: Arc<Handle>,
}

#[async_trait]
impl MutexGuard for Guard {
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
        self.end().await
    }
}

#[async_trait]
impl ReadGuard for Guard {
    fn is_lost(&self) -> bool {
        self.grant.hold.is_lost()
    }

    async fn lost(&self) {
        self.grant.hold.lost().await;
    }

    async fn unlock(self: Box<Self>) -> Result<()> {
        self.end().await
    }
}

impl Guard {
    async fn end(self) -> Result<()> {
        let Self {
            held,
            grant,
            handle,
        } = self;
        held.end();
        let released = grant.release().await;
        released
            .unwrap_or_else(|_| Err(ended("unlock")))
            .map_err(|error| error.on(&handle.key))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &self.handle.key)
            .field("fence", &self.grant.fence)
            .field("lost", &self.grant.hold.is_lost())
            .finish_non_exhaustive()
    }
}
