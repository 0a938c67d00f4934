//! What a handler knows of its job.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::hold::Hold;
use crate::queue::Delivery;
use crate::wait::unless;

/// The delivery that a handler works on, and whether it still should.
///
/// It dereferences to its [`Delivery`]: number, attempt, payload, ticket, and `ack_in` of the backend
/// crates. Clones tell the same.
#[derive(Clone)]
pub struct Context {
    delivery: Arc<Delivery>,
    over: Arc<Hold>,
}

impl Context {
    pub(super) fn new(delivery: Arc<Delivery>) -> Self {
        Self {
            delivery,
            over: Arc::default(),
        }
    }

    /// Whether nobody waits for the handler's answer any more: its delivery was lost, its time ran
    /// out, or the worker has ended. An async handler is dropped then; what it started elsewhere, and
    /// a blocking handler, should stop by itself.
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
