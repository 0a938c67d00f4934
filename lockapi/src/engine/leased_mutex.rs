//! [`Mutex`] over a slot of a key that is leased.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::leases::RequestedSlots;
use super::slots::Slots;
use crate::error::Result;
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::{LeaseGuard, slot};
use crate::mutex::{LockOwner, Mutex, MutexGuard};

const THIS: RequestedSlots = RequestedSlots::Slot(slot::MUTEX);

pub(super) struct LeasedMutexHandle(pub(super) Slots);

#[async_trait]
impl Mutex for LeasedMutexHandle {
    fn key(&self) -> &Key {
        self.0.key()
    }

    fn namespace(&self) -> &str {
        &self.0.core().namespace
    }

    fn is_leased(&self) -> bool {
        true
    }

    fn on(&self, _: &LockOwner) -> Arc<dyn Mutex> {
        Arc::new(Self(self.0.clone()))
    }

    async fn try_lock(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        let locked = self.0.try_acquire("try_lock", THIS).await?;
        Ok(locked.map(guard))
    }

    async fn lock(&self) -> Result<Box<dyn MutexGuard>> {
        self.0.acquire("lock", THIS).await.map(guard)
    }

    async fn lock_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        let locked = self.0.acquire_timeout("lock_timeout", THIS, timeout).await;
        locked.map(guard)
    }

    fn now(&self) -> Duration {
        self.0.core().connections.timer.now()
    }

    async fn sleep(&self, time: Duration) {
        self.0.core().connections.timer.sleep(time).await;
    }
}

impl fmt::Debug for LeasedMutexHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeasedMutex").field(self.0.key()).finish()
    }
}

fn guard(lease: Box<dyn LeaseGuard>) -> Box<dyn MutexGuard> {
    Box::new(Guard(lease))
}

#[derive(Debug)]
struct Guard(Box<dyn LeaseGuard>);

#[async_trait]
impl MutexGuard for Guard {
    fn fence(&self) -> Fence {
        self.0.fence()
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    async fn lost(&self) {
        self.0.lost().await;
    }

    async fn unlock(self: Box<Self>) -> Result<()> {
        let released = self.0.release().await;
        released.map_err(|error| error.during("unlock"))
    }
}
