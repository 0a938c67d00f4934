//! Rate limiters, called through generics and through the blocking face.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::limit::{Decision, PermitRequest, Policy, Quota, Verdict};
use lockapi::{Key, Permits, RateLimiter, Reservation, Result, blocking};

use super::blocking::call;

type Reserved = std::result::Result<Box<dyn Reservation>, Decision>;

pub(super) fn through(limiter: Arc<dyn RateLimiter>) -> Arc<dyn RateLimiter> {
    Arc::new(Through(limiter))
}

pub(super) fn blocking(limiter: blocking::RateLimiter, namespace: &str) -> Arc<dyn RateLimiter> {
    Arc::new(Blocking {
        namespace: namespace.to_owned(),
        inner: limiter,
    })
}

/// Calls what is inside as a type parameter and not as a trait object.
#[derive(Debug)]
struct Through<T: ?Sized>(Arc<T>);

#[async_trait]
impl<L: RateLimiter + ?Sized> RateLimiter for Through<L> {
    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn policy(&self) -> Policy {
        self.0.policy()
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn set_quota(&self, quota: Quota) -> Result<()> {
        self.0.set_quota(quota)
    }

    async fn check_each(&self, requests: &[PermitRequest]) -> Result<Vec<Decision>> {
        self.0.check_each(requests).await
    }

    async fn check_all(&self, requests: &[PermitRequest]) -> Result<Verdict> {
        self.0.check_all(requests).await
    }

    async fn peek(&self, request: &PermitRequest) -> Result<Decision> {
        self.0.peek(request).await
    }

    async fn until_ready(&self, request: &PermitRequest, timeout: Duration) -> Result<Decision> {
        self.0.until_ready(request, timeout).await
    }

    async fn reserve(&self, request: &PermitRequest, ttl: Duration) -> Result<Reserved> {
        self.0.reserve(request, ttl).await
    }

    async fn refund(&self, decision: &Decision) -> Result<()> {
        self.0.refund(decision).await
    }

    async fn reset(&self, key: &Key) -> Result<()> {
        self.0.reset(key).await
    }

    async fn block(&self, key: &Key, time: Duration) -> Result<()> {
        self.0.block(key, time).await
    }

    fn permits(&self, request: &PermitRequest) -> Result<Arc<dyn Permits>> {
        self.0.permits(request)
    }

    async fn sweep(&self) -> Result<u64> {
        self.0.sweep().await
    }
}

struct Blocking {
    namespace: String,
    inner: blocking::RateLimiter,
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl RateLimiter for Blocking {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn policy(&self) -> Policy {
        self.inner.policy()
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn set_quota(&self, quota: Quota) -> Result<()> {
        self.inner.set_quota(quota)
    }

    async fn check_each(&self, requests: &[PermitRequest]) -> Result<Vec<Decision>> {
        let (limiter, requests) = (self.inner.clone(), requests.to_vec());
        call(move || limiter.check_each(&requests)).await
    }

    async fn check_all(&self, requests: &[PermitRequest]) -> Result<Verdict> {
        let (limiter, requests) = (self.inner.clone(), requests.to_vec());
        call(move || limiter.check_all(&requests)).await
    }

    async fn peek(&self, request: &PermitRequest) -> Result<Decision> {
        let (limiter, request) = (self.inner.clone(), request.clone());
        call(move || limiter.peek(&request)).await
    }

    async fn until_ready(&self, request: &PermitRequest, timeout: Duration) -> Result<Decision> {
        let (limiter, request) = (self.inner.clone(), request.clone());
        call(move || limiter.until_ready(&request, timeout)).await
    }

    async fn reserve(&self, request: &PermitRequest, ttl: Duration) -> Result<Reserved> {
        let (limiter, request) = (self.inner.clone(), request.clone());
        let reserved = call(move || limiter.reserve(&request, ttl)).await?;
        Ok(reserved.map(|one| Box::new(BlockingReservation(one)) as Box<dyn Reservation>))
    }

    async fn refund(&self, decision: &Decision) -> Result<()> {
        let (limiter, decision) = (self.inner.clone(), decision.clone());
        call(move || limiter.refund(&decision)).await
    }

    async fn reset(&self, key: &Key) -> Result<()> {
        let (limiter, key) = (self.inner.clone(), key.clone());
        call(move || limiter.reset(key)).await
    }

    async fn block(&self, key: &Key, time: Duration) -> Result<()> {
        let (limiter, key) = (self.inner.clone(), key.clone());
        call(move || limiter.block(key, time)).await
    }

    fn permits(&self, request: &PermitRequest) -> Result<Arc<dyn Permits>> {
        Ok(Arc::new(BlockingPermits(self.inner.permits(request)?)))
    }

    async fn sweep(&self) -> Result<u64> {
        let limiter = self.inner.clone();
        call(move || limiter.sweep()).await
    }
}

#[derive(Debug)]
struct BlockingReservation(blocking::Reservation);

#[async_trait]
impl Reservation for BlockingReservation {
    fn decision(&self) -> &Decision {
        self.0.decision()
    }

    async fn commit(self: Box<Self>, used: u64) -> Result<()> {
        call(move || self.0.commit(used)).await
    }

    async fn cancel(self: Box<Self>) -> Result<()> {
        call(move || self.0.cancel()).await
    }
}

#[derive(Debug)]
struct BlockingPermits(blocking::Permits);

#[async_trait]
impl Permits for BlockingPermits {
    fn try_now(&self) -> bool {
        self.0.try_now()
    }

    async fn take(&self) -> Result<bool> {
        let permits = self.0.clone();
        call(move || permits.take()).await
    }

    async fn give_back(&self) -> Result<()> {
        let permits = self.0.clone();
        call(move || permits.give_back()).await
    }
}
