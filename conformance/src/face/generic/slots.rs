//! Semaphores and elections, called through generics.

use std::time::Duration;

use async_trait::async_trait;
use lockapi::lease::Holder;
use lockapi::{Election, Key, LeaseGuard, Observer, Result, Semaphore};

use super::{Through, lease_guard};

#[async_trait]
impl<S: Semaphore + ?Sized> Semaphore for Through<S> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    fn permits(&self) -> u32 {
        self.0.permits()
    }

    async fn try_acquire_many(&self, permits: u32) -> Result<Option<Box<dyn LeaseGuard>>> {
        Ok(self.0.try_acquire_many(permits).await?.map(lease_guard))
    }

    async fn acquire_many(&self, permits: u32) -> Result<Box<dyn LeaseGuard>> {
        self.0.acquire_many(permits).await.map(lease_guard)
    }

    async fn acquire_many_timeout(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Box<dyn LeaseGuard>> {
        let granted = self.0.acquire_many_timeout(permits, timeout);
        granted.await.map(lease_guard)
    }
}

#[async_trait]
impl<E: Election + ?Sized> Election for Through<E> {
    fn key(&self) -> &Key {
        self.0.key()
    }

    async fn try_campaign(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        Ok(self.0.try_campaign().await?.map(lease_guard))
    }

    async fn campaign(&self) -> Result<Box<dyn LeaseGuard>> {
        self.0.campaign().await.map(lease_guard)
    }

    async fn campaign_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        self.0.campaign_timeout(timeout).await.map(lease_guard)
    }

    async fn leader(&self) -> Result<Option<Holder>> {
        self.0.leader().await
    }

    async fn changed(&self, at_most: Duration) {
        self.0.changed(at_most).await;
    }

    fn observe(&self) -> Box<dyn Observer> {
        self.0.observe()
    }
}
