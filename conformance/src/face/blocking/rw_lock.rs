//! Locks of the blocking face that readers share.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::{Key, LockOwner, MutexGuard, ReadGuard, Result, RwLock, blocking};

use super::{Blocking, call, mutex_guard, until};

fn read_guard(guard: blocking::ReadGuard) -> Box<dyn ReadGuard> {
    Box::new(Blocking(guard))
}

#[async_trait]
impl RwLock for Blocking<blocking::RwLock> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn on(&self, owner: &LockOwner) -> Arc<dyn RwLock> {
        Arc::new(Blocking(self.0.on(owner)))
    }

    async fn try_read(&self) -> Result<Option<Box<dyn ReadGuard>>> {
        Ok(self.with(|lock| lock.try_read()).await?.map(read_guard))
    }

    async fn read(&self) -> Result<Box<dyn ReadGuard>> {
        self.with(|lock| lock.read()).await.map(read_guard)
    }

    async fn read_timeout(&self, timeout: Duration) -> Result<Box<dyn ReadGuard>> {
        self.with(move |lock| lock.read_timeout(timeout))
            .await
            .map(read_guard)
    }

    async fn try_write(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        Ok(self.with(|lock| lock.try_write()).await?.map(mutex_guard))
    }

    async fn write(&self) -> Result<Box<dyn MutexGuard>> {
        self.with(|lock| lock.write()).await.map(mutex_guard)
    }

    async fn write_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        self.with(move |lock| lock.write_timeout(timeout))
            .await
            .map(mutex_guard)
    }
}

#[async_trait]
impl ReadGuard for Blocking<blocking::ReadGuard> {
    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    async fn lost(&self) {
        until(|| self.0.is_lost()).await;
        self.0.lost();
    }

    async fn unlock(self: Box<Self>) -> Result<()> {
        call(move || self.0.unlock()).await
    }
}
