//! Blocking semaphores and elections, called on threads that may block.

use std::time::Duration;

use async_trait::async_trait;
use lockapi::lease::Holder;
use lockapi::{Election, Key, LeaseGuard, Observer, Result, Semaphore, blocking};

use super::{Blocking, call, lease_guard};

#[async_trait]
impl Semaphore for Blocking<blocking::Semaphore> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    fn permits(&self) -> u32 {
        self.0.permits()
    }

    async fn try_acquire_many(&self, permits: u32) -> Result<Option<Box<dyn LeaseGuard>>> {
        let granted = self.with(move |semaphore| match permits {
            1 => semaphore.try_acquire(),
            many => semaphore.try_acquire_many(many),
        });
        Ok(granted.await?.map(lease_guard))
    }

    async fn acquire_many(&self, permits: u32) -> Result<Box<dyn LeaseGuard>> {
        let granted = self.with(move |semaphore| match permits {
            1 => semaphore.acquire(),
            many => semaphore.acquire_many(many),
        });
        granted.await.map(lease_guard)
    }

    async fn acquire_many_timeout(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Box<dyn LeaseGuard>> {
        let granted = self.with(move |semaphore| match permits {
            1 => semaphore.acquire_timeout(timeout),
            many => semaphore.acquire_many_timeout(many, timeout),
        });
        granted.await.map(lease_guard)
    }
}

#[async_trait]
impl Election for Blocking<blocking::Election> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    async fn try_campaign(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        Ok(self
            .with(|election| election.try_campaign())
            .await?
            .map(lease_guard))
    }

    async fn campaign(&self) -> Result<Box<dyn LeaseGuard>> {
        self.with(|election| election.campaign())
            .await
            .map(lease_guard)
    }

    async fn campaign_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        let granted = self.with(move |election| election.campaign_timeout(timeout));
        granted.await.map(lease_guard)
    }

    async fn leader(&self) -> Result<Option<Holder>> {
        self.with(|election| election.leader()).await
    }

    async fn changed(&self, at_most: Duration) {
        self.with(move |election| election.changed(at_most)).await;
    }

    fn observe(&self) -> Box<dyn Observer> {
        Box::new(Observing(Some(self.0.observe())))
    }
}

/// Without the observer while a call has it.
#[derive(Debug)]
struct Observing(Option<blocking::Observer>);

#[async_trait]
impl Observer for Observing {
    async fn next(&mut self) -> Result<Option<Holder>> {
        let mut observer = self.0.take().expect("one call after the other");
        let (observer, seen) = call(move || {
            let seen = observer.next();
            (observer, seen)
        })
        .await;
        self.0 = Some(observer);
        seen
    }
}
