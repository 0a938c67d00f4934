//! The blocking face, called on threads that may block.

mod admin;
mod queue;
mod rw_lock;
mod schedule;
mod slots;

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockapi::blocking;
use lockapi::id::{self, IdGen};
use lockapi::lease::{Holder, LeaseOptions};
use lockapi::limit::Policy;
use lockapi::{
    Backend, Capabilities, Election, Fence, Key, Lease, LeaseGuard, LockOwner, Mutex, MutexGuard,
    RateLimiter, Result, RwLock, Semaphore,
};
use tokio::task::spawn_blocking;

/// How often a guard is asked whether it is lost.
const LOOK: Duration = Duration::from_millis(2);

pub(super) fn wrap(backend: blocking::Backend) -> Arc<dyn Backend> {
    Arc::new(Blocking(backend))
}

#[derive(Clone, Debug)]
struct Blocking<T>(T);

impl<T: Clone + Send + Sync + 'static> Blocking<T> {
    async fn with<R: Send + 'static>(&self, work: impl FnOnce(T) -> R + Send + 'static) -> R {
        let inner = self.0.clone();
        call(move || work(inner)).await
    }
}

/// Returns once something is lost. A thread that waits for the loss would keep the guard from being
/// unlocked.
async fn until(is_lost: impl Fn() -> bool) {
    while !is_lost() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Runs a blocking call; a panic in it goes on here.
pub(super) async fn call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(value) => value,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

#[async_trait]
impl Backend for Blocking<blocking::Backend> {
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
        Ok(Arc::new(Blocking(self.0.mutex(key)?)))
    }

    fn open_rw_lock(&self, key: Key) -> Result<Arc<dyn RwLock>> {
        Ok(Arc::new(Blocking(self.0.rw_lock(key)?)))
    }

    fn open_lease(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Lease>> {
        Ok(Arc::new(Blocking(self.0.lease(key, options)?)))
    }

    fn open_semaphore(
        &self,
        key: Key,
        permits: u32,
        options: LeaseOptions,
    ) -> Result<Arc<dyn Semaphore>> {
        Ok(Arc::new(Blocking(self.0.semaphore(key, permits, options)?)))
    }

    fn open_election(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Election>> {
        Ok(Arc::new(Blocking(self.0.election(key, options)?)))
    }

    fn open_leased_mutex(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Mutex>> {
        Ok(Arc::new(Blocking(self.0.leased_mutex(key, options)?)))
    }

    fn open_queue(
        &self,
        name: String,
        options: lockapi::queue::QueueOptions,
    ) -> Result<Arc<dyn lockapi::Queue>> {
        Ok(Arc::new(Blocking(self.0.queue_with(name, options)?)))
    }

    fn open_rate_limiter(&self, policy: Policy) -> Result<Arc<dyn RateLimiter>> {
        let limiter = self.0.rate_limiter(policy)?;
        Ok(super::limits::blocking(limiter, self.0.namespace()))
    }

    fn open_id_gen(&self, name: String, options: id::IdOptions) -> Result<Arc<dyn IdGen>> {
        Ok(super::ids::blocking(self.0.id_gen(name, options)?))
    }

    fn open_scheduler(
        &self,
        name: String,
        options: lockapi::schedule::SchedulerOptions,
    ) -> Result<Arc<dyn lockapi::Scheduler>> {
        Ok(Arc::new(Blocking(self.0.scheduler_with(name, options)?)))
    }

    fn open_answers(&self) -> Arc<dyn lockapi::idempotency::Answers> {
        self.0.inner().open_answers()
    }

    fn inspector(&self) -> Arc<dyn lockapi::admin::Inspector> {
        Arc::new(Blocking(self.0.inspector()))
    }

    fn operator(&self) -> Arc<dyn lockapi::admin::Operator> {
        Arc::new(Blocking(self.0.operator()))
    }

    async fn close(&self) -> Result<()> {
        self.with(|backend| backend.close()).await
    }

    async fn migrate(&self) -> Result<()> {
        self.with(|backend| backend.migrate()).await
    }
}

fn mutex_guard(guard: blocking::MutexGuard) -> Box<dyn MutexGuard> {
    Box::new(Blocking(guard))
}

fn lease_guard(guard: blocking::LeaseGuard) -> Box<dyn LeaseGuard> {
    Box::new(Blocking(Arc::new(guard)))
}

#[async_trait]
impl Mutex for Blocking<blocking::Mutex> {
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
        Arc::new(Blocking(self.0.on(owner)))
    }

    async fn try_lock(&self) -> Result<Option<Box<dyn MutexGuard>>> {
        Ok(self.with(|mutex| mutex.try_lock()).await?.map(mutex_guard))
    }

    async fn lock(&self) -> Result<Box<dyn MutexGuard>> {
        self.with(|mutex| mutex.lock()).await.map(mutex_guard)
    }

    async fn lock_timeout(&self, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        self.with(move |mutex| mutex.lock_timeout(timeout))
            .await
            .map(mutex_guard)
    }

    fn now(&self) -> Duration {
        static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGUN.elapsed()
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

#[async_trait]
impl MutexGuard for Blocking<blocking::MutexGuard> {
    fn fence(&self) -> Fence {
        self.0.fence()
    }

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

#[async_trait]
impl Lease for Blocking<blocking::Lease> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    async fn try_acquire(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        Ok(self
            .with(|lease| lease.try_acquire())
            .await?
            .map(lease_guard))
    }

    async fn acquire(&self) -> Result<Box<dyn LeaseGuard>> {
        self.with(|lease| lease.acquire()).await.map(lease_guard)
    }

    async fn acquire_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        self.with(move |lease| lease.acquire_timeout(timeout))
            .await
            .map(lease_guard)
    }

    async fn peek(&self) -> Result<Option<Holder>> {
        self.with(|lease| lease.peek()).await
    }
}

#[async_trait]
impl LeaseGuard for Blocking<Arc<blocking::LeaseGuard>> {
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
        until(|| self.0.is_lost()).await;
        self.0.lost();
    }

    async fn renew(&self) -> Result<()> {
        self.with(|guard| guard.renew()).await
    }

    async fn release(self: Box<Self>) -> Result<()> {
        call(move || {
            let mut guard = self.0;
            loop {
                // A renewal whose caller left has it for a moment.
                match Arc::try_unwrap(guard) {
                    Ok(guard) => return guard.release(),
                    Err(shared) => guard = shared,
                }
                std::thread::sleep(LOOK);
            }
        })
        .await
    }
}
