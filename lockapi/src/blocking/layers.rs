//! What a program runs around each attempt, on the thread of the handler.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use super::worker::Context;
use crate::error::Result;
use crate::worker::{Failed, panicked};

pub(super) type Works = Box<dyn FnOnce() -> Result<(), Failed> + Send>;
type Layer = Arc<dyn Fn(Context, Next) -> Result<(), Failed> + Send + Sync>;

/// The layers of a worker, which handlers that were added before them have as well.
#[derive(Default)]
pub(super) struct Layers {
    added: Vec<Layer>,
    set: Reader,
}

/// The layers of a worker that runs.
#[derive(Clone, Default)]
pub(super) struct Reader(Arc<OnceLock<Arc<[Layer]>>>);

impl Layers {
    pub(super) fn add<F>(&mut self, layer: F)
    where
        F: Fn(Context, Next) -> Result<(), Failed> + Send + Sync + 'static,
    {
        self.added.push(Arc::new(layer));
    }

    /// Has handlers run in them from now on.
    pub(super) fn set(&self) {
        self.set.0.get_or_init(|| self.added.as_slice().into());
    }

    pub(super) fn reader(&self) -> Reader {
        self.set.clone()
    }
}

impl Reader {
    pub(super) fn get(&self) -> &[Layer] {
        self.0.get().map_or(&[], |layers| &**layers)
    }
}

/// Runs work with layers around it; the first is the outermost.
pub(super) fn run(layers: &[Layer], context: &Context, work: Works) -> Result<(), Failed> {
    let work = layers.iter().rev().fold(work, |work, layer| -> Works {
        let (layer, context) = (Arc::clone(layer), context.clone());
        Box::new(move || layer(context, Next(work)))
    });
    work()
}

/// What a [layer](super::Worker::layer) is around: the layers that were added after it, and the handler;
/// see [`Next`](crate::worker::Next).
#[must_use = "the job's handler runs only if this does"]
pub struct Next(Works);

impl Next {
    /// Runs it, and returns what came of it. A panic in it is a failure that is retried.
    ///
    /// # Errors
    /// What the handler or a layer in between returned.
    pub fn run(self) -> Result<(), Failed> {
        catch_unwind(AssertUnwindSafe(self.0)).unwrap_or_else(|panic| Err(panicked(panic)))
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}
