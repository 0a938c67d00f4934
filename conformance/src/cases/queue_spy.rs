//! A queue that records what a worker asks of it, and that can be made to fail.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockapi::queue::{Claim, Exchange, Outcome, Settled, Ticket};
use lockapi::{Error, ErrorKind, Queue, Result};

use crate::wrapped::{Wrapped, Wrapper};

/// What a worker asks of a queue.
#[derive(Debug)]
pub(super) struct QueueSpy {
    queue: Arc<dyn Queue>,
    /// Of each exchange, how many completions it told and how many jobs it asked for.
    pub(super) exchanges: Mutex<Vec<(usize, usize)>>,
    /// How long an exchange takes at least.
    delay: Duration,
    /// The answer of the next exchange that completes something is lost after it has happened.
    pub(super) lose: AtomicBool,
    /// Exchanges are refused.
    pub(super) refuse: AtomicBool,
    /// Those that claim are, where they complete something.
    pub(super) refuse_claims: AtomicBool,
    /// It never tells that something has arrived.
    pub(super) deaf: AtomicBool,
    /// It tells all the time that something has arrived.
    pub(super) busy: AtomicBool,
    /// The next delivery may not begin, and has not gone back yet: through it, or of its next exchange.
    pub(super) late: AtomicBool,
    /// So many outcomes meet a row that a transaction has locked.
    pub(super) locked: AtomicU32,
    /// Errors have to be ASCII, as in some databases.
    pub(super) ascii: AtomicBool,
}

impl QueueSpy {
    pub(super) fn new(queue: Arc<dyn Queue>, delay: Duration) -> Arc<Wrapped<Self>> {
        Arc::new(Wrapped(Self {
            queue,
            exchanges: Mutex::default(),
            delay,
            lose: AtomicBool::new(false),
            refuse: AtomicBool::new(false),
            refuse_claims: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            late: AtomicBool::new(false),
            locked: AtomicU32::new(0),
            ascii: AtomicBool::new(false),
        }))
    }
}

#[async_trait]
impl Wrapper for QueueSpy {
    fn inner(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        let told = acks.len();
        let before = self.exchanges.lock().unwrap().len();
        self.exchanges
            .lock()
            .unwrap()
            .push((told, usize::from(claim.is_some())));
        if before > 0 {
            tokio::time::sleep(self.delay).await;
        }
        let claims = told > 0 && claim.is_some() && self.refuse_claims.load(Ordering::Acquire);
        if claims || self.refuse.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unsupported, "claim", "no such table"));
        }
        let mut exchange = self.queue.exchange(acks, claim).await?;
        if self.late.swap(false, Ordering::AcqRel) {
            let through = Self::new(Arc::clone(&self.queue), Duration::ZERO);
            through.late.store(true, Ordering::Release);
            let deliveries = exchange.deliveries.into_iter();
            let deliveries =
                deliveries.map(|it| it.through(Arc::clone(&through) as Arc<dyn Queue>));
            exchange.deliveries = deliveries.collect();
        }
        if told > 0 && self.lose.swap(false, Ordering::AcqRel) {
            let message = "the answer was lost";
            return Err(Error::new(ErrorKind::Indeterminate, "claim", message));
        }
        Ok(exchange)
    }

    async fn arrival(&self, seen: u64, at_most: Duration) {
        if self.deaf.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        if !self.busy.load(Ordering::Acquire) {
            self.queue.arrival(seen, at_most).await;
        }
    }

    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        let locked = |left: u32| left.checked_sub(1);
        let order = Ordering::AcqRel;
        if self
            .locked
            .fetch_update(order, Ordering::Acquire, locked)
            .is_ok()
        {
            return Ok(Settled::Locked);
        }
        if let Outcome::Nack { error, .. } | Outcome::Reject { error } = &outcome
            && self.ascii.load(Ordering::Acquire)
            && !error.is_ascii()
        {
            let message = "the encoding does not have a character";
            return Err(Error::new(ErrorKind::Invalid, "nack", message));
        }
        self.queue.settle(ticket, outcome).await
    }

    fn begin(&self, ticket: Ticket) -> bool {
        !self.late.swap(false, Ordering::AcqRel) && self.queue.begin(ticket)
    }
}
