//! [`Worker`](crate::worker::Worker) for blocking callers.

mod pool;

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use self::pool::Pool;
use super::layers::{self, Layers, Next, Works};
use super::{Queue, block_on};
use crate::error::Result;
use crate::queue::{Delivery, JobKind};
use crate::stop::Stop;
use crate::telemetry::Handling;
use crate::worker::{
    self, Around, BatchOptions, Begin, Failed, Observe, SharedConcurrency, Slot, Start, Summary,
    Work, WorkerOptions, decode, panicked,
};

/// Runs the jobs of a queue with handlers that block, each on a thread of its own; see [`worker::Worker`],
/// whose guarantees it shares.
///
/// A thread cannot be stopped. A handler whose time limit has expired, or whose delivery was lost, learns of
/// it from [`Context::is_lost`]; its result does not count any more, and it counts for the concurrency until
/// it returns.
///
/// ```
/// use lockapi::{Stop, blocking, memory::Database, queue::Job};
///
/// let backend = blocking::Backend::connect(Database::new().connect())?;
/// let mails = backend.queue("mails")?;
/// mails.push(Job::new("welcome", "ada@example.com")?)?;
///
/// let stop = Stop::new();
/// let done = stop.clone();
/// let summary = blocking::Worker::new(&mails)
///     .handle("welcome", move |address: String, job: blocking::Context| {
///         println!("welcome, {address}; attempt {}", job.attempt());
///         done.stop();
///         Ok(())
///     })
///     .concurrency(4)
///     .run(&stop)?;
/// assert_eq!(summary.done, 1);
/// # Ok::<(), lockapi::Error>(())
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    inner: worker::Worker,
    pool: Arc<Pool>,
    layers: Layers,
}

impl Worker {
    /// A worker on this queue, without handlers yet.
    pub fn new(queue: &Queue) -> Self {
        Self {
            inner: worker::Worker::new(Arc::clone(queue.inner())),
            pool: Arc::default(),
            layers: Layers::default(),
        }
    }

    /// Runs jobs of this name with `handler`, which gets the payload and the job's context.
    pub fn handle<T, F>(self, name: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T, Context) -> Result<(), Failed> + Send + Sync + 'static,
    {
        let begin = self.typed(handler);
        self.with(|inner| inner.begin_with(name.into(), begin, None))
    }

    /// As [`handle`](Self::handle), with options of its own.
    pub fn handle_with<T, F>(
        self,
        name: impl Into<String>,
        options: WorkerOptions,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T, Context) -> Result<(), Failed> + Send + Sync + 'static,
    {
        let begin = self.typed(handler);
        self.with(|inner| inner.begin_with(name.into(), begin, Some(options)))
    }

    /// Runs jobs of all other names with `handler`, instead of leaving them to other workers.
    pub fn fallback<F>(self, handler: F) -> Self
    where
        F: Fn(Context) -> Result<(), Failed> + Send + Sync + 'static,
    {
        let begin = self.on_threads(handler);
        self.with(|inner| inner.fall_back_to(begin))
    }

    /// Runs jobs of a [kind](JobKind) with `handler`; see [`worker::Worker::handle_kind`].
    pub fn handle_kind<K, F>(self, handler: F) -> Self
    where
        K: JobKind,
        F: Fn(K, Context) -> Result<(), Failed> + Send + Sync + 'static,
    {
        self.handle(K::NAME, handler)
    }

    /// Runs jobs of this name with `handler`, many in one call, on one thread; see
    /// [`worker::Worker::handle_batch`].
    ///
    /// With [layers](Self::layer) each of its jobs has a thread of its own for them, which waits for its
    /// answer.
    pub fn handle_batch<T, F>(
        self,
        name: impl Into<String>,
        options: BatchOptions,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Vec<(T, BatchJob)>) -> Result<(), Failed> + Send + Sync + 'static,
    {
        let open = worker::open(&options, self.start_on_thread(handler));
        let around = self.around();
        self.with(|inner| inner.open_with(name.into(), options, open, Some(around)))
    }

    /// Runs `layer` around each attempt of all handlers, on the thread of the handler; see
    /// [`worker::Worker::layer`].
    ///
    /// ```
    /// use lockapi::blocking::{Context, Next, Worker};
    ///
    /// # fn worker(mails: &lockapi::blocking::Queue) -> Worker {
    /// Worker::new(mails)
    ///     .layer(|job: Context, next: Next| {
    ///         println!("{} {} begins", job.name(), job.id());
    ///         let outcome = next.run();
    ///         println!("{} {}: {outcome:?}", job.name(), job.id());
    ///         outcome
    ///     })
    ///     .handle("welcome", |_: String, _| Ok(()))
    /// # }
    /// ```
    pub fn layer<F>(mut self, layer: F) -> Self
    where
        F: Fn(Context, Next) -> Result<(), Failed> + Send + Sync + 'static,
    {
        self.layers.add(layer);
        self
    }

    /// Passes a value to all handlers, which get it by its type: [`Context::data`].
    pub fn data<D: Send + Sync + 'static>(self, data: D) -> Self {
        self.with(|inner| inner.data(data))
    }

    /// The options of all handlers that have none of their own.
    pub fn options(self, options: WorkerOptions) -> Self {
        self.with(|inner| inner.options(options))
    }

    /// How many handlers run at the same time; see [`worker::Worker::concurrency`].
    pub fn concurrency(self, handlers: usize) -> Self {
        self.with(|inner| inner.concurrency(handlers))
    }

    /// Shares a number of handlers with workers of other queues; see [`worker::Worker::share`].
    pub fn share(self, handlers: &SharedConcurrency, weight: u32) -> Self {
        self.with(|inner| inner.share(handlers, weight))
    }

    /// The maximum number of jobs that are claimed beyond those that can begin at once; see
    /// [`worker::Worker::prefetch`].
    pub fn prefetch(self, jobs: usize) -> Self {
        self.with(|inner| inner.prefetch(jobs))
    }

    /// How long a job stays with a dead worker; see [`worker::Worker::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|inner| inner.lease(lease))
    }

    /// Names the worker for readers; see [`worker::Worker::name`].
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|inner| inner.name(name))
    }

    /// How often it polls an empty queue; see [`worker::Worker::poll`].
    pub fn poll(self, every: Duration) -> Self {
        self.with(|inner| inner.poll(every))
    }

    /// How long handlers may continue after it was stopped; see [`worker::Worker::grace`].
    pub fn grace(self, time: Duration) -> Self {
        self.with(|inner| inner.grace(time))
    }

    /// Sets an observer.
    pub fn observe(self, observer: impl Observe) -> Self {
        self.with(|inner| inner.observe(observer))
    }

    /// Runs until it is [stopped](Stop), and returns a summary; see [`worker::Worker::run`].
    ///
    /// It returns at the latest after the time of [`grace`](Self::grace) and what the server takes to
    /// answer, although handlers that did not stop may still run on their threads.
    ///
    /// # Errors
    /// As for the async method.
    pub fn run(self, stop: impl Into<Stop>) -> Result<Summary> {
        self.layers.set();
        let _closing = Closing(self.pool);
        block_on(self.inner.run(stop.into()))
    }

    /// Runs the jobs that are due, and returns a summary; see [`worker::Worker::run_until_idle`].
    ///
    /// # Errors
    /// As for the async method.
    pub fn run_until_idle(self) -> Result<Summary> {
        self.layers.set();
        let _closing = Closing(self.pool);
        block_on(self.inner.run_until_idle())
    }

    fn with(self, set: impl FnOnce(worker::Worker) -> worker::Worker) -> Self {
        Self {
            inner: set(self.inner),
            pool: self.pool,
            layers: self.layers,
        }
    }

    fn typed<T, F>(&self, handler: F) -> Begin
    where
        T: DeserializeOwned,
        F: Fn(T, Context) -> Result<(), Failed> + Send + Sync + 'static,
    {
        self.on_threads(move |context| handler(decode(&context.0)?, context))
    }

    /// Runs a handler on a thread, with its layers.
    fn on_threads<F>(&self, handler: F) -> Begin
    where
        F: Fn(Context) -> Result<(), Failed> + Send + Sync + 'static,
    {
        let (handler, pool) = (Arc::new(handler), Arc::clone(&self.pool));
        let layers = self.layers.reader();
        Arc::new(move |context, slot| {
            let (handler, layers) = (Arc::clone(&handler), layers.clone());
            let context = Context(context);
            on_thread(&pool, slot, move || match layers.get() {
                [] => handler(context),
                layers => {
                    let job = context.clone();
                    let work: Works = Box::new(move || handler(job));
                    layers::run(layers, &context, work)
                }
            })
        })
    }

    /// Starts a handler of batches on a thread.
    fn start_on_thread<T, F>(&self, handler: F) -> Start<T>
    where
        T: Send + 'static,
        F: Fn(Vec<(T, BatchJob)>) -> Result<(), Failed> + Send + Sync + 'static,
    {
        let (handler, pool) = (Arc::new(handler), Arc::clone(&self.pool));
        Arc::new(move |jobs, slot| {
            let handler = Arc::clone(&handler);
            on_thread(&pool, slot, move || {
                let jobs = jobs.into_iter();
                handler(
                    jobs.map(|(payload, job)| (payload, BatchJob::new(job)))
                        .collect(),
                )
            })
        })
    }

    /// Runs the layers of a job of a batch on a thread, if there are any.
    fn around(&self) -> Around {
        let (pool, layers) = (Arc::clone(&self.pool), self.layers.reader());
        Arc::new(move |context, work, slot| {
            if layers.get().is_empty() {
                return work;
            }
            let layers = layers.clone();
            on_thread(&pool, slot, move || {
                let work: Works = Box::new(move || block_on(work));
                layers::run(layers.get(), &Context(context), work)
            })
        })
    }
}

/// Runs work on a thread, with the slot that it takes until it returns.
fn on_thread(
    pool: &Arc<Pool>,
    slot: Slot,
    work: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Work {
    let (sender, answer) = oneshot::channel();
    let handling = Handling::current();
    let started = pool.run(Box::new(move || {
        let work = AssertUnwindSafe(|| handling.run(work));
        let answered = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(panic)));
        drop(slot);
        // A worker that has given it up does not want the answer.
        drop(sender.send(answered));
    }));
    Box::pin(async move {
        if started.is_err() {
            // There is no thread for it.
            return Err(Failed::not_run());
        }
        match answer.await {
            Ok(answered) => answered,
            Err(_) => Err(Failed::retry("the handler's thread ended")),
        }
    })
}

/// Lets the threads end, however the worker ended.
struct Closing(Arc<Pool>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

/// Makes a handler of a function that returns errors of its own, such as `anyhow::Result<()>`; see
/// [`worker::any_error`].
pub fn any_error<T, F, E>(
    handler: F,
) -> impl Fn(T, Context) -> Result<(), Failed> + Send + Sync + 'static
where
    F: Fn(T, Context) -> Result<(), E> + Send + Sync + 'static,
    E: Into<Failed>,
{
    move |payload, context| handler(payload, context).map_err(Into::into)
}

/// The delivery that a handler works on, and whether it should continue; see [`worker::Context`].
#[derive(Clone, Debug)]
pub struct Context(worker::Context);

impl Context {
    /// A value that was [passed](Worker::data) to the worker; see [`worker::Context::data`].
    ///
    /// # Panics
    /// If no value of this type was passed.
    #[must_use]
    pub fn data<D: Send + Sync + 'static>(&self) -> &D {
        self.0.data()
    }

    /// Whether the handler's result is not used any more: its delivery was lost, its time limit has expired,
    /// or the worker has ended. A long handler should check it repeatedly.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Returns once [`is_lost`](Self::is_lost).
    pub fn lost(&self) {
        block_on(self.0.lost());
    }

    /// The delivery, to be shared with another thread.
    #[must_use]
    pub fn delivery(&self) -> &Arc<Delivery> {
        self.0.delivery()
    }
}

impl Deref for Context {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.0
    }
}

/// A job of a [batch](Worker::handle_batch), to be answered; see [`worker::BatchJob`].
#[derive(Debug)]
pub struct BatchJob {
    inner: worker::BatchJob,
    context: Context,
}

impl BatchJob {
    fn new(inner: worker::BatchJob) -> Self {
        let context = Context(worker::Context::clone(&inner));
        Self { inner, context }
    }

    /// Answers this job, which takes effect at once: the call may go on with the others.
    pub fn answer(self, answer: Result<(), Failed>) {
        self.inner.answer(answer);
    }
}

impl Deref for BatchJob {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}
