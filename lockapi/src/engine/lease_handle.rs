//! [`Lease`] over the first slot of a key.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::leases::RequestedSlots;
use super::slots::Slots;
use crate::error::Result;
use crate::key::Key;
use crate::lease::{Holder, Lease, LeaseGuard, slot};

const THIS: RequestedSlots = RequestedSlots::Slot(slot::LEASE);

pub(super) struct LeaseHandle(pub(super) Slots);

#[async_trait]
impl Lease for LeaseHandle {
    fn key(&self) -> &Key {
        self.0.key()
    }

    async fn try_acquire(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        self.0.try_acquire("try_acquire", THIS).await
    }

    async fn acquire(&self) -> Result<Box<dyn LeaseGuard>> {
        self.0.acquire("acquire", THIS).await
    }

    async fn acquire_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        self.0
            .acquire_timeout("acquire_timeout", THIS, timeout)
            .await
    }

    async fn peek(&self) -> Result<Option<Holder>> {
        self.0.peek(slot::LEASE).await
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(self.0.key()).finish()
    }
}
