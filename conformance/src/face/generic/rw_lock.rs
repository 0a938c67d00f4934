//! Locks that readers share, called through generics.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::{Key, LockOwner, MutexGuard, ReadGuard, Result, RwLock};

use super::{Guarded, Through, mutex_guard};

fn read_guard<G: ReadGuard + ?Sized + 'static>(guard: Box<G>) -> Box<dyn ReadGuard>
where
    Guarded<G>: ReadGuard,
{
    Box::new(Guarded(guard))
}

#[async_trait]
impl<L: RwLock + ?Sized> RwLock for Through<L> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn on(&self, owner: &LockOwner) -> Arc<dyn RwLock> {
        Arc::new(Through(self.0.on(owner)))
    }

    async fn try_read(&self) -> Result<Option<Box<dyn ReadGuard>>> {
        Ok(self.0.try_read().await?.map(read_guard))
    }

    async fn read(&self) -> Result<Box<dyn ReadGuard>> {
        self.0.read().await.map(read_guard)
    }

    async fn read_timeout(&self, timeout: Duration) -> Result<Box<dyn ReadGuard>> {
        self.0.read_timeout(timeout).await.map(read_guard)
    }

    async fn try_write(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        Ok(self.0.try_write().await?.map(mutex_guard))
    }

    async fn write(&self) -> Result<Box<dyn MutexGuard>> {
        self.0.write().await.map(mutex_guard)
    }

    async fn write_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        self.0.write_timeout(timeout).await.map(mutex_guard)
    }
}

#[async_trait]
impl ReadGuard for Guarded<dyn ReadGuard> {
    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    async fn lost(&self) {
        self.0.lost().await;
    }

    async fn unlock(self: Box<Self>) -> Result<()> {
        self.0.unlock().await
    }
}
