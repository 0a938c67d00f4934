//! The async traits, called through generics.

mod admin;
mod queue;
mod rw_lock;
mod schedule;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::id::{self, IdGen};
use lockapi::lease::{Holder, LeaseOptions};
use lockapi::limit::Policy;
use lockapi::{
    Backend, Capabilities, Election, Fence, Key, Lease, LeaseGuard, LockOwner, Mutex, MutexGuard,
    RateLimiter, Result, RwLock, Semaphore,
};

pub(super) fn wrap(backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
    Arc::new(Through(backend))
}

/// Calls what is inside as a type parameter and not as a trait object.
#[derive(Debug)]
struct Through<T: ?Sized>(Arc<T>);

#[derive(Debug)]
struct Guarded<G: ?Sized>(Box<G>);

fn mutex_guard<G: MutexGuard + ?Sized + 'static>(guard: Box<G>) -> Box<dyn MutexGuard>
where
    Guarded<G>: MutexGuard,
{
    Box::new(Guarded(guard))
}

fn lease_guard<G: LeaseGuard + ?Sized + 'static>(guard: Box<G>) -> Box<dyn LeaseGuard>
where
    Guarded<G>: LeaseGuard,
{
    Box::new(Guarded(guard))
}

#[async_trait]
impl<B: Backend + ?Sized> Backend for Through<B> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open_mutex(&self, key: Key) -> Result<Arc<dyn Mutex>> {
        Ok(Arc::new(Through(self.0.open_mutex(key)?)))
    }

    fn open_rw_lock(&self, key: Key) -> Result<Arc<dyn RwLock>> {
        Ok(Arc::new(Through(self.0.open_rw_lock(key)?)))
    }

    fn open_lease(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Lease>> {
        Ok(Arc::new(Through(self.0.open_lease(key, options)?)))
    }

    fn open_semaphore(
        &self,
        key: Key,
        permits: u32,
        options: LeaseOptions,
    ) -> Result<Arc<dyn Semaphore>> {
        Ok(Arc::new(Through(
            self.0.open_semaphore(key, permits, options)?,
        )))
    }

    fn open_election(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Election>> {
        Ok(Arc::new(Through(self.0.open_election(key, options)?)))
    }

    fn open_leased_mutex(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Mutex>> {
        Ok(Arc::new(Through(self.0.open_leased_mutex(key, options)?)))
    }

    fn open_queue(
        &self,
        name: String,
        options: lockapi::queue::QueueOptions,
    ) -> Result<Arc<dyn lockapi::Queue>> {
        Ok(Arc::new(Through(self.0.open_queue(name, options)?)))
    }

    fn open_rate_limiter(&self, policy: Policy) -> Result<Arc<dyn RateLimiter>> {
        Ok(super::limits::through(self.0.open_rate_limiter(policy)?))
    }

    fn open_id_gen(&self, name: String, options: id::IdOptions) -> Result<Arc<dyn IdGen>> {
        Ok(super::ids::generic(self.0.open_id_gen(name, options)?))
    }

    fn open_scheduler(
        &self,
        name: String,
        options: lockapi::schedule::SchedulerOptions,
    ) -> Result<Arc<dyn lockapi::Scheduler>> {
        Ok(Arc::new(Through(self.0.open_scheduler(name, options)?)))
    }

    fn open_answers(&self) -> Arc<dyn lockapi::idempotency::Answers> {
        self.0.open_answers()
    }

    fn inspector(&self) -> Arc<dyn lockapi::admin::Inspector> {
        Arc::new(Through(self.0.inspector()))
    }

    fn operator(&self) -> Arc<dyn lockapi::admin::Operator> {
        Arc::new(Through(self.0.operator()))
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    async fn migrate(&self) -> Result<()> {
        self.0.migrate().await
    }
}

#[async_trait]
impl<M: Mutex + ?Sized> Mutex for Through<M> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn is_leased(&self) -> bool {
        self.0.is_leased()
    }

    fn on(&self, owner: &LockOwner) -> Arc<dyn Mutex> {
        Arc::new(Through(self.0.on(owner)))
    }

    async fn try_lock(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        Ok(self.0.try_lock().await?.map(mutex_guard))
    }

    async fn lock(&self) -> Result<Box<dyn MutexGuard>> {
        self.0.lock().await.map(mutex_guard)
    }

    async fn lock_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        self.0.lock_timeout(timeout).await.map(mutex_guard)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    async fn sleep(&self, time: Duration) {
        self.0.sleep(time).await;
    }
}

#[async_trait]
impl MutexGuard for Guarded<dyn MutexGuard> {
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
        self.0.unlock().await
    }
}

#[async_trait]
impl<L: Lease + ?Sized> Lease for Through<L> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    async fn try_acquire(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        Ok(self.0.try_acquire().await?.map(lease_guard))
    }

    async fn acquire(&self) -> Result<Box<dyn LeaseGuard>> {
        self.0.acquire().await.map(lease_guard)
    }

    async fn acquire_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        self.0.acquire_timeout(timeout).await.map(lease_guard)
    }

    async fn peek(&self) -> Result<Option<Holder>> {
        self.0.peek().await
    }
}

#[async_trait]
impl LeaseGuard for Guarded<dyn LeaseGuard> {
    fn fence(&self) -> Fence {
        self.0.fence()
    }

    fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    async fn lost(&self) {
        self.0.lost().await;
    }

    async fn renew(&self) -> Result<()> {
        self.0.renew().await
    }

    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release().await
    }
}
