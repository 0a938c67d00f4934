//! [`Semaphore`] over the slots of a key that are numbered from 1.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::leases::RequestedSlots;
use super::slots::Slots;
use crate::error::Result;
use crate::key::Key;
use crate::lease::LeaseGuard;
use crate::semaphore::{Semaphore, check_permits};

pub(super) struct SemaphoreHandle {
    pub(super) slots: Slots,
    pub(super) permits: u32,
}

impl SemaphoreHandle {
    fn what(&self, operation: &'static str, count: u32) -> Result<RequestedSlots> {
        let count = check_permits(count, self.permits)
            .map_err(|error| error.during(operation).on(self.slots.key()))?;
        Ok(RequestedSlots::Permits {
            permits: self.permits.into(),
            count,
        })
    }
}

#[async_trait]
impl Semaphore for SemaphoreHandle {
    fn key(&self) -> &Key {
        self.slots.key()
    }

    fn permits(&self) -> u32 {
        self.permits
    }

    async fn try_acquire_many(&self, permits: u32) -> Result<Option<Box<dyn LeaseGuard>>> {
        const OPERATION: &str = "try_acquire";
        let what = self.what(OPERATION, permits)?;
        self.slots.try_acquire(OPERATION, what).await
    }

    async fn acquire_many(&self, permits: u32) -> Result<Box<dyn LeaseGuard>> {
        const OPERATION: &str = "acquire";
        let what = self.what(OPERATION, permits)?;
        self.slots.acquire(OPERATION, what).await
    }

    async fn acquire_many_timeout(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Box<dyn LeaseGuard>> {
        const OPERATION: &str = "acquire_timeout";
        let what = self.what(OPERATION, permits)?;
        self.slots.acquire_timeout(OPERATION, what, timeout).await
    }
}

impl fmt::Debug for SemaphoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("key", self.slots.key())
            .field("permits", &self.permits)
            .finish()
    }
}
