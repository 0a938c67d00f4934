//! [`Election`] over the slot of a key's leader.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::leases::RequestedSlots;
use super::notifier::Subscription;
use super::slots::Slots;
use crate::election::{Election, Observer, topic};
use crate::error::Result;
use crate::key::Key;
use crate::lease::{Holder, LeaseGuard, slot};
use crate::sync::Notify;
use crate::wait::unless;

const THIS: RequestedSlots = RequestedSlots::Slot(slot::LEADER);

/// The longest pause between two looks of an observer, without and with notifications.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// The shortest, when a term is about to end.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct ElectionHandle(pub(super) Slots);

impl ElectionHandle {
    fn topic(&self) -> i64 {
        topic(&self.0.core().namespace, self.0.text())
    }

    /// Looks whenever it is told of a change.
    async fn wait_for(&self, operation: &'static str) -> Result<Box<dyn LeaseGuard>> {
        if self.0.is_first(THIS)
            && let Some(term) = self.0.try_for(operation, THIS).await?
        {
            return Ok(term);
        }
        let (leases, key) = (Arc::downgrade(&self.0.core().leases), self.0.text().clone());
        let changed = move || {
            if let Some(leases) = leases.upgrade() {
                leases.wake(&key, slot::LEADER);
            }
        };
        let _subscribed = self.0.core().notifier.subscribe(self.topic(), changed);
        self.0.wait_for(operation, THIS).await
    }
}

#[async_trait]
impl Election for ElectionHandle {
    fn key(&self) -> &Key {
        self.0.key()
    }

    async fn try_campaign(&self) -> Result<Option<Box<dyn LeaseGuard>>> {
        self.0.try_acquire("try_campaign", THIS).await
    }

    async fn campaign(&self) -> Result<Box<dyn LeaseGuard>> {
        const OPERATION: &str = "campaign";
        let campaign = self.wait_for(OPERATION);
        self.0.acquiring(OPERATION, THIS, campaign).await
    }

    async fn campaign_timeout(&self, timeout: Duration) -> Result<Box<dyn LeaseGuard>> {
        const OPERATION: &str = "campaign_timeout";
        let (once, waiting) = (self.0.try_for(OPERATION, THIS), self.wait_for(OPERATION));
        let campaign = self.0.within(OPERATION, timeout, once, waiting);
        self.0.acquiring(OPERATION, THIS, campaign).await
    }

    async fn leader(&self) -> Result<Option<Holder>> {
        // Who has resigned does not lead, also while the minimum hold keeps others from it.
        let holder = self.0.peek(slot::LEADER).await?;
        Ok(holder.filter(|holder| !holder.released))
    }

    fn observe(&self) -> Box<dyn Observer> {
        Box::new(ElectionObserver {
            slots: self.0.clone(),
            topic: self.topic(),
            changed: Arc::default(),
            subscription: None,
            seen: None,
        })
    }

    async fn changed(&self, at_most: Duration) {
        let (core, changed) = (self.0.core(), Arc::new(Notify::new()));
        let waker = Arc::clone(&changed);
        let _subscribed = core
            .notifier
            .subscribe(self.topic(), move || waker.notify_one());
        unless(core.connections.timer.sleep(at_most), changed.notified()).await;
    }
}

impl fmt::Debug for ElectionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Election").field(self.0.key()).finish()
    }
}

struct ElectionObserver {
    slots: Slots,
    topic: i64,
    changed: Arc<Notify>,
    subscription: Option<Subscription>,
    /// The token of the leader that was answered last, if one was; zero is nobody's.
    seen: Option<i64>,
}

#[async_trait]
impl Observer for ElectionObserver {
    async fn next(&mut self) -> Result<Option<Holder>> {
        let core = self.slots.core();
        if self.seen.is_some() && self.subscription.is_none() {
            let changed = Arc::clone(&self.changed);
            let changed = move || changed.notify_one();
            self.subscription = Some(core.notifier.subscribe(self.topic, changed));
        }
        loop {
            let leader = self.slots.peek(slot::LEADER).await;
            let leader = leader.map_err(|error| error.during("observe"))?;
            let left = leader.as_ref().map(|holder| holder.remaining);
            let leader = leader.filter(|holder| !holder.released);
            let token = leader.as_ref().map_or(0, |leader| leader.token);
            if self.seen != Some(token) {
                self.seen = Some(token);
                return Ok(leader);
            }
            let longest = if core.notifier.listens() {
                PAUSES.1
            } else {
                PAUSES.0
            };
            let pause = left.unwrap_or(longest).clamp(SHORTEST_PAUSE, longest);
            unless(core.connections.timer.sleep(pause), self.changed.notified()).await;
        }
    }
}

impl fmt::Debug for ElectionObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(self.slots.key()).finish()
    }
}
