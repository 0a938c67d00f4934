//! What a handler knows about its job.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::data::Data;
use crate::hold::Hold;
use crate::queue::Delivery;
use crate::wait::unless;

/// The delivery that a handler works on, and whether it should continue.
///
/// It dereferences to its [`Delivery`]: number, attempt, payload, ticket, and
/// [`ack_in`](Delivery::ack_in). Clones share the same state.
///
/// # Acknowledging in a transaction
/// A handler may acknowledge its job in the transaction of its effects, with `ack_in`, before it
/// returns. From then on the worker does not: when the handler has ended it asks the database, and
/// waits for the transaction if that is still open, because another task has it. What then counts:
///
/// | The transaction | The handler | The job |
/// |---|---|---|
/// | is committed | returns `Ok` | is done |
/// | is committed | returns `Err`, panics, takes too long | is done; the error is told as [`Committed`](super::Ending::Committed) |
/// | is rolled back | returns `Ok` | has failed, and is tried again: its effects did not happen |
/// | is rolled back | returns `Err`, panics, takes too long | is what the handler said: failed, rejected or put off |
/// | stays open until the worker has to stop | any | counts as [`unknown`](super::Summary::unknown); the transaction decides |
///
/// A job that was cancelled, became a dead letter or was delivered to another worker after a rollback is
/// lost, whatever the handler returns. A job that has left no record counts as done. It is done: by this
/// transaction or, if that was rolled back after the lease had ended, by another delivery. A queue that
/// [archives](crate::queue::QueueOptions::archive) can distinguish the two.
///
/// While the transaction has the job locked, no other worker gets it, even if its lease ends.
#[derive(Clone)]
pub struct Context {
    delivery: Arc<Delivery>,
    over: Arc<Hold>,
    data: Data,
}

impl Context {
    pub(super) fn new(delivery: Arc<Delivery>, data: Data) -> Self {
        Self {
            delivery,
            over: Arc::default(),
            data,
        }
    }

    /// A value that was [passed](super::Worker::data) to the worker, such as a pool.
    ///
    /// # Panics
    /// If no value of this type was passed, which fails the job as any panic of a handler does.
    #[must_use]
    pub fn data<D: Send + Sync + 'static>(&self) -> &D {
        self.data.of()
    }

    /// Whether the handler's result is not used any more: its delivery was lost, its time limit has
    /// expired, or the worker has ended. An async handler is dropped then; tasks that it started, and a
    /// blocking handler, should stop by themselves.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.delivery.is_lost() || self.over.is_lost()
    }

    /// Returns once [`is_lost`](Self::is_lost).
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    pub async fn lost(&self) {
        unless(self.delivery.lost(), self.over.lost()).await;
    }

    /// The delivery, to be shared with another thread.
    #[must_use]
    pub fn delivery(&self) -> &Arc<Delivery> {
        &self.delivery
    }

    /// Ends it for all clones; to be called outside of any lock.
    pub(super) fn end(&self) {
        self.over.lose();
        self.over.announce();
    }
}

impl Deref for Context {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

/// Without the payload.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.delivery).finish()
    }
}
