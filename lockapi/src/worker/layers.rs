//! What a program runs around each attempt.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;

use super::attempt::{Work, panicked};
use super::context::Context;
use super::failed::Failed;
use super::handlers::Begin;
use super::slots::Slot;

/// Puts a layer around the work on a job.
pub(super) type Layer = Arc<dyn Fn(Context, Work) -> Work + Send + Sync>;

/// Puts layers around the work on a job, which share the slot.
pub(crate) type Around = Arc<dyn Fn(Context, Work, Slot) -> Work + Send + Sync>;

/// What a [layer](super::Worker::layer) is around: the layers that were added after it, and the handler.
#[must_use = "the job's handler runs only if this does"]
pub struct Next(Work);

impl Next {
    /// Runs it, and returns the outcome. A panic in it is a failure that is retried.
    ///
    /// # Cancel safety
    /// When dropped, the handler is dropped.
    ///
    /// # Errors
    /// What the handler or a layer in between returned.
    pub async fn run(self) -> Result<(), Failed> {
        let work = AssertUnwindSafe(self.0).catch_unwind();
        work.await.unwrap_or_else(|panic| Err(panicked(panic)))
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

pub(super) fn layer<F, W>(layer: F) -> Layer
where
    F: Fn(Context, Next) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), Failed>> + Send,
{
    let layer = Arc::new(layer);
    Arc::new(move |context, work| {
        let layer = Arc::clone(&layer);
        Box::pin(async move { layer(context, Next(work)).await })
    })
}

/// Puts layers around work, in a slot; the first is the outermost.
pub(super) fn around(layers: &[Layer], context: &Context, work: Work, slot: Slot) -> Work {
    let layers = layers.iter().rev();
    let work = layers.fold(work, |work, layer| layer(context.clone(), work));
    Box::pin(async move {
        let _slot = slot;
        work.await
    })
}

/// A handler with layers around it, which share its slot: each may end before the others do.
pub(super) fn layered(begin: Begin, layers: Arc<[Layer]>) -> Begin {
    Arc::new(move |context, slot| {
        let slot = Arc::new(slot);
        let work = begin(context.clone(), Slot::Shared(Arc::clone(&slot)));
        around(&layers, &context, work, Slot::Shared(slot))
    })
}
