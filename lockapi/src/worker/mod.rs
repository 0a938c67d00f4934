//! Workers: programs that run the jobs of a [`Queue`].
//!
//! ```
//! use std::time::Duration;
//! use lockapi::{memory::Database, queue::Job};
//! use lockapi::Stop;
//! use lockapi::worker::{Context, Worker};
//!
//! # async fn example() -> lockapi::Result<()> {
//! let mails = Database::new().connect().await?.queue("mails")?;
//! mails.push(Job::new("welcome", "ada@example.com")?).await?;
//!
//! let stop = Stop::new();
//! let done = stop.clone();
//! let summary = Worker::new(mails)
//!     .handle("welcome", move |address: String, job: Context| {
//!         let done = done.clone();
//!         async move {
//!             println!("welcome, {address}; attempt {}", job.attempt());
//!             done.stop();
//!             Ok(())
//!         }
//!     })
//!     .concurrency(4)
//!     .run(&stop)
//!     .await?;
//! assert_eq!(summary.done, 1);
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Claim, JobKind, MAX_CLAIM, Queue};
use crate::stop::Stop;

mod attempt;
mod batch;
mod context;
mod data;
mod failed;
mod handlers;
mod layers;
mod observe;
mod pace;
mod report;
mod run;
mod settling;
mod shared;
mod slots;

pub use attempt::Work;
pub(crate) use attempt::panicked;
use batch::start_async;
pub use batch::{BatchJob, BatchOptions};
pub(crate) use batch::{Open, Start, open};
pub use context::Context;
pub use failed::Failed;
pub(crate) use handlers::{Begin, decode};
use handlers::{Handlers, typed, untyped};
pub use handlers::{WorkerOptions, any_error};
pub(crate) use layers::Around;
pub use layers::Next;
use layers::layer;
pub use observe::{Ending, Observe, Summary};
use report::Observer;
pub use report::Report;
use run::Run;
pub use shared::SharedConcurrency;
use slots::Concurrency;
pub(crate) use slots::Slot;

/// The most handlers of one worker that run at the same time.
pub const MAX_CONCURRENCY: usize = 1000;
/// The greatest weight of a worker among those that share handlers.
pub const MAX_WEIGHT: u32 = 1000;
/// The most jobs in one call of a handler of batches.
pub const MAX_BATCH: usize = MAX_CLAIM;
/// The longest time for which a call gathers jobs.
pub const MAX_GATHER: Duration = Duration::from_secs(60);
/// The shortest interval between two polls of the queue.
pub const MIN_POLL: Duration = Duration::from_millis(10);
/// The longest interval between two polls of the queue.
pub const MAX_POLL: Duration = Duration::from_secs(3600);
/// The longest grace period for handlers to finish.
pub const MAX_GRACE: Duration = Duration::from_secs(24 * 3600);

/// A handler to be spawned, for [`Worker::spawn_with`].
pub type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the jobs of a queue: claims them, passes each to the handler for its name, and reports the
/// outcome.
///
/// # Guarantees
/// - **At least once**, as the queue guarantees: a handler may get a job again whose worker died or
///   lost it. What a handler writes in the transaction of `ack_in` happens exactly once.
/// - No more handlers run than [`concurrency`](Self::concurrency) allows.
/// - A job is kept from others for as long as its handler runs, however long that is. If it is lost
///   nevertheless, or cancelled, the handler is dropped and its result does not count.
/// - A handler that returns an error or panics fails its own job, which is retried later, and nothing
///   else. A payload that the handler cannot decode fails the job, too: another version of the program
///   may be able to. A job of a name without a handler is left to other workers.
/// - A job that its handler has acknowledged in a transaction of its own is done when, and only when,
///   that is committed, whatever the handler returns; see [`Context`].
/// - A prefetched job that cannot begin within a second, or a third of its lease, is released without
///   counting an attempt; only jobs that have begun are extended.
/// - Completions are sent to the server together with the next claim, and at once when nothing is
///   under way. While the server is unavailable they are kept, until their leases are lost.
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    queue: Arc<dyn Queue>,
    handlers: Handlers,
    settings: Settings,
}

struct Settings {
    concurrency: Concurrency,
    prefetch: Option<usize>,
    poll: Duration,
    grace: Duration,
    claim: Claim,
    options: WorkerOptions,
    observer: Observer,
    spawn: Option<Arc<dyn Fn(Spawned) + Send + Sync>>,
}

impl Worker {
    /// A worker on this queue, without handlers yet.
    pub fn new(queue: Arc<dyn Queue>) -> Self {
        Self {
            queue,
            handlers: Handlers::default(),
            settings: Settings {
                concurrency: Concurrency::default(),
                prefetch: None,
                poll: Duration::from_secs(1),
                grace: Duration::from_secs(20),
                claim: Claim::new(1),
                options: WorkerOptions::default(),
                observer: Observer::reporting(),
                spawn: None,
            },
        }
    }

    /// Runs jobs of this name with `handler`, which gets the payload and the job's context.
    ///
    /// An async closure can be used as long as it captures nothing: `async |mail: Mail, job:
    /// Context| Ok(send(mail).await?)`. Pass other values with [`data`](Self::data). Wrap functions
    /// that return errors of another kind in [`any_error`].
    pub fn handle<T, F, W>(self, name: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T, Context) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        self.begin_with(name.into(), typed(handler), None)
    }

    /// As [`handle`](Self::handle), with options of its own.
    pub fn handle_with<T, F, W>(
        self,
        name: impl Into<String>,
        options: WorkerOptions,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T, Context) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        self.begin_with(name.into(), typed(handler), Some(options))
    }

    /// Runs jobs of all other names with `handler`, instead of leaving them to other workers.
    pub fn fallback<F, W>(self, handler: F) -> Self
    where
        F: Fn(Context) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        self.fall_back_to(untyped(handler))
    }

    /// Runs jobs of a [kind](JobKind) with `handler`, which gets the job itself.
    ///
    /// ```
    /// use lockapi::queue::JobKind;
    /// use lockapi::worker::{Context, Worker};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Welcome {
    ///     to: String,
    /// }
    ///
    /// impl JobKind for Welcome {
    ///     const NAME: &'static str = "welcome";
    /// }
    ///
    /// # struct Mailer;
    /// # impl Mailer { async fn send(&self, _: &str) -> Result<(), std::fmt::Error> { Ok(()) } }
    /// # fn worker(mails: std::sync::Arc<dyn lockapi::Queue>, mailer: Mailer) -> Worker {
    /// Worker::new(mails)
    ///     .data(mailer)
    ///     .handle_kind(async |mail: Welcome, job: Context| {
    ///         job.data::<Mailer>().send(&mail.to).await?;
    ///         Ok(())
    ///     })
    /// # }
    /// ```
    pub fn handle_kind<K, F, W>(self, handler: F) -> Self
    where
        K: JobKind,
        F: Fn(K, Context) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        self.handle(K::NAME, handler)
    }

    /// Runs jobs of this name with `handler`, many in one call: for work that costs about as much for a
    /// hundred as for one, such as a request that takes many documents.
    ///
    /// A call begins when it has as many jobs as [`BatchOptions`] allow, or when the time to gather them
    /// is over. Each job is answered by itself: [`BatchJob::answer`]. What is left when the call ends is
    /// answered by how it ends:
    ///
    /// | The call | Jobs without an answer |
    /// |---|---|
    /// | returns `Ok` | are retried, unless they were acknowledged with `ack_in` |
    /// | returns `Err`, panics, takes too long | have failed with that |
    /// | is dropped by the worker, which has to stop | are released without counting an attempt |
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockapi::worker::{BatchJob, BatchOptions, Failed, Worker};
    ///
    /// # struct Index;
    /// # impl Index { async fn add(&self, _: &[&String]) -> Result<Vec<bool>, std::fmt::Error> { Ok(Vec::new()) } }
    /// # fn worker(pages: std::sync::Arc<dyn lockapi::Queue>, index: Index) -> Worker {
    /// let options = BatchOptions::new(200).gather(Duration::from_millis(100));
    /// Worker::new(pages)
    ///     .data(index)
    ///     .handle_batch("index", options, async |pages: Vec<(String, BatchJob)>| {
    ///         let texts: Vec<_> = pages.iter().map(|(text, _)| text).collect();
    ///         // An error is that of all pages, which are retried.
    ///         let added = pages[0].1.data::<Index>().add(&texts).await?;
    ///         for ((_, job), added) in pages.into_iter().zip(added) {
    ///             job.answer(if added { Ok(()) } else { Err(Failed::reject("not a text")) });
    ///         }
    ///         Ok(())
    ///     })
    /// # }
    /// ```
    ///
    /// # Guarantees
    /// - A call counts as one handler for [`concurrency`](Self::concurrency), however many jobs it has:
    ///   from its first job on, also while it gathers, until it and the layers of its jobs have ended.
    /// - Jobs are kept from others while they are gathered.
    /// - A payload that cannot be decoded fails its own job, which the handler does not see.
    /// - A job that is lost or cancelled is left out of a call that has not begun. In one that runs its
    ///   answer does not count, and [`is_lost`](Context::is_lost) tells; the call goes on for the others,
    ///   and is dropped when all were lost before it has answered any.
    /// - A worker that is stopped calls at once with what it has gathered.
    /// - [Layers](Self::layer) are around each job. A call waits for those of its jobs until the last has
    ///   called [`Next::run`] or has ended, for a second at most; what comes later is put off for a
    ///   second, without counting an attempt.
    ///
    /// The jobs are in no particular order. At most as many jobs of a group are in a call as its limit
    /// says. Observers see each job [begin](Observe::started) when it is gathered.
    pub fn handle_batch<T, F, W>(
        self,
        name: impl Into<String>,
        options: BatchOptions,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Vec<(T, BatchJob)>) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        let open = open(&options, start_async(handler));
        self.open_with(name.into(), options, open, None)
    }

    /// Runs `layer` around each attempt of all handlers, which it may do something before and after, or
    /// instead of: what it returns is the outcome of the attempt.
    ///
    /// The layer that was added first is the outermost: it begins first, and is the last to see the outcome.
    /// Handlers that are added later have the layers as well. It makes no difference to a worker without
    /// layers.
    ///
    /// ```
    /// use lockapi::worker::{Context, Failed, Next, Worker};
    ///
    /// # fn worker(mails: std::sync::Arc<dyn lockapi::Queue>) -> Worker {
    /// Worker::new(mails)
    ///     .layer(async |job: Context, next: Next| {
    ///         println!("{} {} of {:?} begins", job.name(), job.id(), job.header("tenant"));
    ///         let outcome = next.run().await;
    ///         println!("{} {}: {outcome:?}", job.name(), job.id());
    ///         outcome
    ///     })
    ///     .layer(async |job: Context, next: Next| match next.run().await {
    ///         // What has failed five times is not worth a sixth.
    ///         Err(failed) if failed.is_retry() && job.attempt() >= 5 => {
    ///             Err(Failed::reject(failed.error().unwrap_or_default()))
    ///         }
    ///         outcome => outcome,
    ///     })
    ///     .handle("welcome", async |_: String, _| Ok(()))
    /// # }
    /// ```
    ///
    /// # Guarantees
    /// - A handler that panics, or cannot decode its payload, has failed for the layers around it. A layer
    ///   that panics fails the job as a handler does.
    /// - The time limit of a handler includes its layers, except in [batches](Self::handle_batch).
    /// - A layer is dropped with its handler: when the time limit has expired, the job is lost, or the worker
    ///   has to stop. Cleanup that must always happen belongs in a destructor.
    /// - What was acknowledged with `ack_in` is done if that is committed, whatever layers return.
    pub fn layer<F, W>(mut self, layer: F) -> Self
    where
        F: Fn(Context, Next) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        self.handlers.add_layer(self::layer(layer));
        self
    }

    /// Passes a value to all handlers, which get it by its type: [`Context::data`]. Of several
    /// values of one type the last counts.
    pub fn data<D: Send + Sync + 'static>(mut self, data: D) -> Self {
        self.handlers.add_data(data);
        self
    }

    /// The options of all handlers that have none of their own.
    pub fn options(mut self, options: WorkerOptions) -> Self {
        self.settings.options = options;
        self
    }

    /// How many handlers run at the same time, 1 to [`MAX_CONCURRENCY`]; by default 16, or all that are
    /// [shared](Self::share). A call for [many jobs](Self::handle_batch) is one.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.settings.concurrency.own = Some(handlers);
        self
    }

    /// Shares a number of handlers with workers of other queues, with a weight of 1 to [`MAX_WEIGHT`]; see
    /// [`SharedConcurrency`].
    pub fn share(mut self, handlers: &SharedConcurrency, weight: u32) -> Self {
        self.settings.concurrency.shared = Some((handlers.clone(), weight));
        self
    }

    /// The maximum number of jobs that are claimed beyond those that can begin at once, up to
    /// [`MAX_CLAIM`]; sixteen for each handler by default. A worker claims only as many as will begin
    /// within about two round trips, so long jobs are never prefetched.
    pub fn prefetch(mut self, jobs: usize) -> Self {
        self.settings.prefetch = Some(jobs);
        self
    }

    /// How long a job stays with a dead worker, 30 s by default; see [`Claim::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.claim = self.settings.claim.lease(lease);
        self
    }

    /// Names the worker for readers; see [`Claim::worker`].
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.claim = self.settings.claim.worker(name);
        self
    }

    /// How often it polls an empty queue without a notification of new jobs, [`MIN_POLL`] to
    /// [`MAX_POLL`]; once a second by default. Each poll is up to a quarter of this earlier or later.
    ///
    /// Only pushes are notified. A poll finds a job whose lease has ended, a job that another process
    /// postponed or released, and room in a group that another process left. So an idle worker may begin with
    /// them this much later.
    pub fn poll(mut self, every: Duration) -> Self {
        self.settings.poll = every;
        self
    }

    /// How long handlers may continue after the worker was stopped, up to [`MAX_GRACE`]; 20 seconds by
    /// default.
    pub fn grace(mut self, time: Duration) -> Self {
        self.settings.grace = time;
        self
    }

    /// Sets an observer. Without one, failures are [reported](Report).
    pub fn observe(mut self, observer: impl Observe) -> Self {
        self.settings.observer.set(Arc::new(observer));
        self
    }

    /// Runs each handler with `spawn`, such as `|work| { tokio::spawn(work); }`.
    ///
    /// Otherwise all run in the future of [`run`](Self::run), one at a time between their await points:
    /// a handler that computes for long delays the others.
    ///
    /// `spawn` returns at once. What it is given waits for other work of the worker: an executor that runs each on a thread of its
    /// own to the end needs a thread for each job that was begun, and, with [batches](Self::handle_batch), one for each call.
    ///
    /// A handler that `spawn`, or a runtime that has shut down, drops is tried again after a second, without
    /// counting an attempt; the observer is [notified](Observe::dropped).
    pub fn spawn_with(mut self, spawn: impl Fn(Spawned) + Send + Sync + 'static) -> Self {
        self.settings.spawn = Some(Arc::new(spawn));
        self
    }

    /// Runs until it is [stopped](Stop), and returns a summary.
    ///
    /// Then it claims no more jobs and releases those that have not begun. Handlers may continue for
    /// the time of [`grace`](Self::grace); those that have not finished by then are dropped, and their
    /// jobs are released without counting an attempt.
    ///
    /// # Cancel safety
    /// When dropped, handlers are dropped at once, and their jobs are released without counting an
    /// attempt; completions are still sent. Both happen in the background.
    ///
    /// # Errors
    /// `Invalid` for settings outside of their limits, and if more workers share handlers than there are, at once. While the server cannot be reached
    /// it retries; any other failure, such as missing tables, stops the worker and is returned
    /// after that.
    pub async fn run(self, stop: impl Into<Stop>) -> Result<Summary> {
        let stop = stop.into();
        let mut run = self.ready()?;
        let mut stopped = pin!(stop.stopped());
        poll_fn(|cx| run.poll(cx, stopped.as_mut())).await
    }

    /// Runs the jobs that are due, and returns a summary: for tests.
    ///
    /// It returns when no job is due that could begin and none is running: what waits for room or a permit of a
    /// [limit](crate::Queue::set_limit) is left. Jobs that handlers push meanwhile are run; those that are due later,
    /// such as failed ones after their backoff, are left. Calls for [many jobs](Self::handle_batch) begin with those
    /// that are there.
    ///
    /// ```
    /// # async fn example() -> lockapi::Result<()> {
    /// use lockapi::{memory::Database, queue::Job, worker::Worker};
    ///
    /// let mails = Database::new().connect().await?.queue("mails")?;
    /// mails.push(Job::new("welcome", "ada@example.com")?).await?;
    /// let worker = Worker::new(mails).handle("welcome", async |_: String, _| Ok(()));
    /// assert_eq!(worker.run_until_idle().await?.done, 1);
    /// # Ok(())
    /// # }
    /// # lockapi::blocking::block_on(example()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As for [`run`](Self::run).
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub async fn run_until_idle(self) -> Result<Summary> {
        let mut run = self.ready()?.until_idle();
        let mut never = pin!(pending());
        poll_fn(|cx| run.poll(cx, never.as_mut())).await
    }

    pub(crate) fn begin_with(
        mut self,
        name: String,
        begin: Begin,
        options: Option<WorkerOptions>,
    ) -> Self {
        self.handlers.add(name, begin, options);
        self
    }

    pub(crate) fn open_with(
        mut self,
        name: String,
        options: BatchOptions,
        open: Open,
        around: Option<Around>,
    ) -> Self {
        self.handlers.add_batch(name, options, open, around);
        self
    }

    pub(crate) fn fall_back_to(mut self, begin: Begin) -> Self {
        self.handlers.set_fallback(begin);
        self
    }

    fn ready(self) -> Result<Run> {
        let queue = Arc::clone(&self.queue);
        let checked = self.check();
        let run = checked.and_then(|()| Run::new(self.queue, self.handlers, self.settings));
        run.map_err(|error| error.on(queue.name()))
    }

    fn check(&self) -> Result<()> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "run", message));
        let Settings { poll, grace, .. } = self.settings;
        if let Err(message) = self.settings.concurrency.check() {
            return invalid(message);
        }
        if let Some(jobs) = self.settings.prefetch.filter(|jobs| *jobs > MAX_CLAIM) {
            return invalid(format!(
                "a prefetch of {jobs} jobs; allowed are at most {MAX_CLAIM}"
            ));
        }
        if !(MIN_POLL..=MAX_POLL).contains(&poll) {
            return invalid(format!(
                "polling every {poll:?}; allowed are {MIN_POLL:?} to 1 hour"
            ));
        }
        if grace > MAX_GRACE {
            return invalid(format!(
                "a grace of {grace:?}; allowed are at most 24 hours"
            ));
        }
        self.settings.claim.check()?;
        self.handlers.check(&self.settings.options)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queue", &self.queue.name())
            .field("concurrency", &self.settings.concurrency.most())
            .finish_non_exhaustive()
    }
}
