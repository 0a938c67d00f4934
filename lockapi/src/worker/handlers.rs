//! Which handler a job goes to.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::attempt::Work;
use super::batch::{BatchOptions, Open};
use super::context::Context;
use super::data::Data;
use super::failed::Failed;
use super::layers::{Around, Layer, around, layered};
use super::pace::exponential;
use super::slots::Slot;
use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::queue::{MAX_DELAY, MAX_NAMES};

/// How a handler is run.
///
/// ```
/// use std::time::Duration;
/// use lockapi::worker::WorkerOptions;
///
/// let options = WorkerOptions::default()
///     .timeout(Duration::from_secs(60))
///     .backoff(|attempt| Duration::from_secs(10) * attempt);
/// ```
#[derive(Clone)]
pub struct WorkerOptions {
    timeout: Option<Duration>,
    backoff: Arc<dyn Fn(u32) -> Duration + Send + Sync>,
}

/// Without a time limit, and retried after a time that doubles from a second to an hour, of which
/// up to half is random.
impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            timeout: None,
            backoff: Arc::new(exponential),
        }
    }
}

impl WorkerOptions {
    /// The time limit of the handler; after that it is stopped, and the job has failed.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The time after which a job is retried, from the number of the attempt that failed, 1 for the
    /// first. Times longer than [`MAX_DELAY`] are cut off; if the closure panics the default
    /// applies.
    #[must_use]
    pub fn backoff(mut self, backoff: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.backoff = Arc::new(backoff);
        self
    }

    pub(super) fn time(&self) -> Option<Duration> {
        self.timeout
    }

    /// The default, and the panic, if the closure panics.
    pub(super) fn after(&self, attempt: u32) -> (Duration, Option<Box<dyn Any + Send>>) {
        match catch_unwind(AssertUnwindSafe(|| (self.backoff)(attempt))) {
            Ok(time) => (time.min(MAX_DELAY), None),
            Err(panic) => (exponential(attempt), Some(panic)),
        }
    }
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerOptions")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Begins a handler; the slot is kept for as long as it runs.
pub(crate) type Begin = Arc<dyn Fn(Context, Slot) -> Work + Send + Sync>;

pub(super) struct Handler {
    pub(super) runs: Runs,
    pub(super) options: Option<WorkerOptions>,
}

pub(super) enum Runs {
    Job(Begin),
    /// Jobs are gathered for calls of the [`BatchHandler`] with this number.
    Batch(usize),
}

/// A handler that gets several jobs in one call.
pub(super) struct BatchHandler {
    pub(super) name: String,
    pub(super) options: BatchOptions,
    pub(super) open: Open,
    /// Puts layers of another kind around each of its jobs.
    around: Option<Around>,
}

/// The handlers of a worker.
#[derive(Default)]
pub(super) struct Handlers {
    named: HashMap<String, Handler>,
    fallback: Option<Handler>,
    pub(super) batches: Vec<BatchHandler>,
    layers: Vec<Layer>,
    data: Data,
    twice: Option<String>,
}

impl Handlers {
    pub(super) fn add(&mut self, name: String, begin: Begin, options: Option<WorkerOptions>) {
        self.add_handler(name, Runs::Job(begin), options);
    }

    pub(super) fn add_batch(
        &mut self,
        name: String,
        options: BatchOptions,
        open: Open,
        around: Option<Around>,
    ) {
        let runs = Runs::Batch(self.batches.len());
        self.add_handler(name.clone(), runs, options.worker_options().cloned());
        self.batches.push(BatchHandler {
            name,
            options,
            open,
            around,
        });
    }

    fn add_handler(&mut self, name: String, runs: Runs, options: Option<WorkerOptions>) {
        let handler = Handler { runs, options };
        if self.named.insert(name.clone(), handler).is_some() {
            self.twice = Some(name);
        }
    }

    pub(super) fn set_fallback(&mut self, begin: Begin) {
        self.fallback = Some(Handler {
            runs: Runs::Job(begin),
            options: None,
        });
    }

    pub(super) fn add_layer(&mut self, layer: Layer) {
        self.layers.push(layer);
    }

    /// Puts the layers around the handlers of single jobs.
    pub(super) fn put_layers(&mut self) {
        if self.layers.is_empty() {
            return;
        }
        let layers: Arc<[Layer]> = self.layers.as_slice().into();
        for handler in self.named.values_mut().chain(&mut self.fallback) {
            if let Runs::Job(begin) = &mut handler.runs {
                *begin = layered(Arc::clone(begin), Arc::clone(&layers));
            }
        }
    }

    /// Whether the jobs of a call may have layers.
    pub(super) fn may_have_layers(&self, batch: &BatchHandler) -> bool {
        batch.around.is_some() || !self.layers.is_empty()
    }

    /// Puts the layers around one job of a call, which has this slot.
    pub(super) fn around(
        &self,
        batch: &BatchHandler,
        context: &Context,
        work: Work,
        slot: &Arc<Slot>,
    ) -> Work {
        let shared = || Slot::Shared(Arc::clone(slot));
        let work = match &batch.around {
            Some(around) => around(context.clone(), work, shared()),
            None => work,
        };
        if self.layers.is_empty() {
            return work;
        }
        around(&self.layers, context, work, shared())
    }

    /// The number of jobs that any handler takes in a call; nothing where some take one at a time.
    pub(super) fn smallest_batch(&self) -> Option<usize> {
        let sizes = self.batches.iter().map(|batch| batch.options.most());
        let all = self.fallback.is_none() && self.batches.len() == self.named.len();
        sizes.min().filter(|_| all)
    }

    pub(super) fn add_data<D: Send + Sync + 'static>(&mut self, data: D) {
        self.data.insert(data);
    }

    pub(super) fn data(&self) -> Data {
        self.data.clone()
    }

    /// The names that are handled; an empty list means all.
    pub(super) fn names(&self) -> Vec<String> {
        let all = self.fallback.is_some() || self.named.len() > MAX_NAMES;
        let names = self.named.keys().filter(|_| !all);
        names.cloned().collect()
    }

    pub(super) fn of(&self, name: &str) -> Option<&Handler> {
        self.named.get(name).or(self.fallback.as_ref())
    }

    pub(super) fn check(&self, common: &WorkerOptions) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, "run", message));
        if self.named.is_empty() && self.fallback.is_none() {
            return invalid("a worker with 0 handlers; allowed are 1 or more".to_owned());
        }
        if let Some(name) = &self.twice {
            return invalid(format!(
                "two handlers for jobs named {name:?}; allowed is one"
            ));
        }
        for name in self.named.keys() {
            check_name("name", name, 1)?;
        }
        for batch in &self.batches {
            batch.options.check()?;
        }
        let handlers = self.named.values().chain(&self.fallback);
        let options = handlers.filter_map(|handler| handler.options.as_ref());
        if options
            .chain([common])
            .any(|options| options.time().is_some_and(|time| time.is_zero()))
        {
            return invalid("a timeout of zero; allowed are longer ones, or none".to_owned());
        }
        Ok(())
    }
}

/// A handler of payloads of one type.
pub(super) fn typed<T, F, W>(handler: F) -> Begin
where
    T: DeserializeOwned,
    F: Fn(T, Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), Failed>> + Send,
{
    let handler = Arc::new(handler);
    Arc::new(move |context, slot| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            let _slot = slot;
            let work = handler(decode(&context)?, context);
            work.await
        })
    })
}

/// Makes a handler of a function that returns errors of its own, such as `anyhow::Result<()>`: any
/// error that converts to a [`Failed`] with `?`.
///
/// ```
/// use lockapi::worker::{Context, Worker, any_error};
///
/// # type AnyError = Box<dyn std::error::Error + Send + Sync>;
/// async fn welcome(address: String, _: Context) -> Result<(), AnyError> {
///     let _: u16 = address.parse()?;
///     Ok(())
/// }
///
/// # fn worker(mails: std::sync::Arc<dyn lockapi::Queue>) -> Worker {
/// Worker::new(mails).handle("welcome", any_error(welcome))
/// # }
/// ```
pub fn any_error<T, F, W, E>(handler: F) -> impl Fn(T, Context) -> Work + Send + Sync + 'static
where
    F: Fn(T, Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Failed>,
{
    move |payload, context| {
        let work = handler(payload, context);
        Box::pin(async move { work.await.map_err(Into::into) })
    }
}

/// A handler of any payload.
pub(super) fn untyped<F, W>(handler: F) -> Begin
where
    F: Fn(Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), Failed>> + Send,
{
    let handler = Arc::new(handler);
    Arc::new(move |context, slot| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            let _slot = slot;
            handler(context).await
        })
    })
}

/// Decodes the payload. What this program cannot decode a newer one may: the job is retried.
pub(crate) fn decode<T: DeserializeOwned>(context: &Context) -> Result<T, Failed> {
    context.decode().map_err(Failed::retry)
}
