//! Handlers that get several jobs in one call.
//!
//! Each job has its own attempt, with its layers, and its own outcome. Its attempt adds the job to the
//! batch of a call, and waits for the answer of that job. The call is a separate future, which holds the
//! slot.

use std::future::{Future, pending};
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::attempt::{Work, lost, panicked, timed_out};
use super::context::Context;
use super::failed::{Failed, Kind};
use super::handlers::{WorkerOptions, decode};
use super::report::drop_quietly;
use super::slots::Slot;
use super::{MAX_BATCH, MAX_GATHER};
use crate::error::{Error, ErrorKind, Result as Checked};
use crate::queue::Queue;
use crate::sync::{Mutex, MutexGuard, Notify};
use crate::wait::unless;

/// How long a call waits for the layers of its jobs, and for how long a job is put off that comes later.
const LATE: Duration = Duration::from_secs(1);

/// The size of the batch that a call gets, and the time to gather it.
///
/// ```
/// use std::time::Duration;
/// use lockapi::worker::{BatchOptions, WorkerOptions};
///
/// let options = BatchOptions::new(500)
///     .gather(Duration::from_millis(50))
///     .options(WorkerOptions::default().timeout(Duration::from_secs(60)));
/// ```
#[derive(Clone, Debug)]
pub struct BatchOptions {
    most: usize,
    gather: Duration,
    options: Option<WorkerOptions>,
}

impl BatchOptions {
    /// Calls with at most this number of jobs, 1 to [`MAX_BATCH`]; each begins at once with the jobs that
    /// were claimed.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            gather: Duration::ZERO,
            options: None,
        }
    }

    /// How long a call waits for further jobs after its first, at most; up to [`MAX_GATHER`].
    #[must_use]
    pub fn gather(mut self, at_most: Duration) -> Self {
        self.gather = at_most;
        self
    }

    /// Options of its own, instead of those of the worker. The time limit is that of a call, from when
    /// it begins.
    #[must_use]
    pub fn options(mut self, options: WorkerOptions) -> Self {
        self.options = Some(options);
        self
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn worker_options(&self) -> Option<&WorkerOptions> {
        self.options.as_ref()
    }

    pub(super) fn check(&self) -> Checked<()> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "run", message));
        let (most, gather) = (self.most, self.gather);
        if !(1..=MAX_BATCH).contains(&most) {
            return invalid(format!(
                "calls with {most} jobs; allowed are 1 to {MAX_BATCH}"
            ));
        }
        if gather > MAX_GATHER {
            return invalid(format!(
                "gathering for {gather:?}; allowed are at most {MAX_GATHER:?}"
            ));
        }
        Ok(())
    }
}

/// A job of a [batch](super::Worker::handle_batch), to be answered.
///
/// It dereferences to its [`Context`]. Dropped without an answer, it gets one when the call ends.
#[derive(Debug)]
pub struct BatchJob {
    context: Context,
    answer: Arc<Answer>,
}

impl BatchJob {
    /// Answers this job, which takes effect at once: the call may go on with the others.
    pub fn answer(self, answer: Result<(), Failed>) {
        self.answer.give(answer);
    }
}

impl Deref for BatchJob {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

/// Where the attempt of a job waits for its answer.
#[derive(Debug)]
struct Answer(Mutex<Option<oneshot::Sender<Result<(), Failed>>>>);

impl Answer {
    fn give(&self, answer: Result<(), Failed>) {
        if let Some(sender) = lock(&self.0).take() {
            // An attempt that is over does not want it.
            drop(sender.send(answer));
        }
    }

    fn is_given(&self) -> bool {
        lock(&self.0).is_none()
    }
}

/// Begins the handler of a call; the slot is kept for as long as it runs.
pub(crate) type Start<T> = Arc<dyn Fn(Vec<(T, BatchJob)>, Slot) -> Work + Send + Sync>;

/// What a call needs from its worker.
pub(crate) struct CallSetup {
    pub(super) slot: Arc<Slot>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) timeout: Option<Duration>,
    /// Whether to wait for jobs that have not been claimed yet.
    pub(super) gathers: bool,
    /// Whether its jobs may have layers: these are waited for, with a time limit.
    pub(super) has_layers: bool,
}

/// Gathers a batch, calls the handler, and returns how long that took.
pub(crate) type CallFuture = Pin<Box<dyn Future<Output = Duration> + Send>>;

/// Makes a call and its empty batch.
pub(crate) type Open = Arc<dyn Fn(CallSetup) -> (Arc<dyn Batch>, CallFuture) + Send + Sync>;

/// Makes calls of this handler.
pub(crate) fn open<T>(options: &BatchOptions, start: Start<T>) -> Open
where
    T: DeserializeOwned + Send + 'static,
{
    let (most, gather) = (options.most, options.gather);
    Arc::new(move |setup| {
        let call = Arc::new(Call {
            most,
            state: Mutex::new(State {
                reserved: 0,
                resolved: 0,
                slot: Some(Arc::clone(&setup.slot)),
                members: Some(Vec::new()),
            }),
            changed: Notify::new(),
        });
        let unanswered = AnswerOnDrop {
            call: Arc::clone(&call),
            answers: Vec::new(),
            failure: Failed(Kind::NotRun),
        };
        let future = run(unanswered, Arc::clone(&start), gather, setup);
        (call, Box::pin(future))
    })
}

/// Starts an async handler.
pub(super) fn start_async<T, F, W>(handler: F) -> Start<T>
where
    T: Send + 'static,
    F: Fn(Vec<(T, BatchJob)>) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), Failed>> + Send,
{
    let handler = Arc::new(handler);
    Arc::new(move |jobs, slot| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            let _slot = slot;
            handler(jobs).await
        })
    })
}

/// The batch of a call, as the worker sees it.
pub(crate) trait Batch: Send + Sync {
    /// Reserves an entry for a job, unless the batch is full or closed.
    fn reserve(self: Arc<Self>) -> Option<Entry>;

    /// How many entries can still be reserved.
    fn capacity(&self) -> usize;

    /// Lets the call begin with the jobs that it has.
    fn close(&self);

    /// Adds a job in its entry, and waits for the answer.
    fn add(self: Arc<Self>, context: Context, entry: Entry) -> Work;

    /// A reserved entry was filled or dropped.
    fn resolve(&self);
}

/// An entry of a batch that is reserved for a job. The call waits until it is filled or dropped.
pub(crate) struct Entry {
    batch: Arc<dyn Batch>,
    slot: Arc<Slot>,
}

impl Entry {
    /// The slot of the call.
    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Adds the job to the batch, and waits for its answer.
    pub(super) fn fill(self, context: Context) -> Work {
        Arc::clone(&self.batch).add(context, self)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.batch.resolve();
    }
}

struct Call<T> {
    most: usize,
    state: Mutex<State<T>>,
    changed: Notify,
}

struct State<T> {
    /// How many entries were reserved.
    reserved: usize,
    /// How many of these were filled or dropped.
    resolved: usize,
    /// `None` once the batch is closed.
    slot: Option<Arc<Slot>>,
    /// `None` once the handler has begun.
    members: Option<Vec<Member<T>>>,
}

struct Member<T> {
    payload: T,
    job: BatchJob,
}

impl<T> Call<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    /// Returns once the condition holds.
    async fn until(&self, holds: fn(&State<T>) -> bool) {
        while !holds(&self.lock()) {
            self.changed.notified().await;
        }
    }

    fn add_member(
        &self,
        payload: T,
        context: Context,
    ) -> Result<oneshot::Receiver<Result<(), Failed>>, Failed> {
        let mut state = self.lock();
        let Some(members) = &mut state.members else {
            return Err(Failed::snooze(LATE));
        };
        let (sender, answer) = oneshot::channel();
        let job = BatchJob {
            context,
            answer: Arc::new(Answer(Mutex::new(Some(sender)))),
        };
        members.push(Member { payload, job });
        Ok(answer)
    }
}

impl<T: DeserializeOwned + Send + 'static> Batch for Call<T> {
    fn reserve(self: Arc<Self>) -> Option<Entry> {
        let mut state = self.lock();
        let slot = state.slot.clone()?;
        state.reserved += 1;
        let full = state.reserved == self.most;
        drop(state);
        if full {
            self.close();
        }
        Some(Entry { batch: self, slot })
    }

    fn capacity(&self) -> usize {
        let state = self.lock();
        match state.slot {
            Some(_) => self.most - state.reserved,
            None => 0,
        }
    }

    fn close(&self) {
        let slot = self.lock().slot.take();
        drop(slot);
        self.changed.notify_one();
    }

    fn add(self: Arc<Self>, context: Context, entry: Entry) -> Work {
        Box::pin(async move {
            let payload = decode(&context)?;
            let answer = self.add_member(payload, context)?;
            drop(entry);
            drop(self);
            answer.await.unwrap_or(Err(Failed(Kind::NotRun)))
        })
    }

    fn resolve(&self) {
        self.lock().resolved += 1;
        self.changed.notify_one();
    }
}

/// When dropped, fails the jobs of a call that have no answer, also if the call has never run.
struct AnswerOnDrop<T: DeserializeOwned + Send + 'static> {
    call: Arc<Call<T>>,
    answers: Vec<Arc<Answer>>,
    failure: Failed,
}

impl<T: DeserializeOwned + Send + 'static> Drop for AnswerOnDrop<T> {
    fn drop(&mut self) {
        self.call.close();
        let members = self.call.lock().members.take();
        let answers = members.iter().flatten().map(|member| &member.job.answer);
        for answer in self.answers.iter().chain(answers) {
            answer.give(Err(self.failure.clone()));
        }
        drop_quietly(members);
    }
}

/// Gathers jobs, calls the handler, and answers those that it has not answered.
async fn run<T: DeserializeOwned + Send + 'static>(
    mut unanswered: AnswerOnDrop<T>,
    start: Start<T>,
    gather: Duration,
    setup: CallSetup,
) -> Duration {
    let CallSetup {
        slot,
        queue,
        timeout,
        gathers,
        has_layers,
    } = setup;
    let since = queue.now();
    let call = Arc::clone(&unanswered.call);
    if gathers && !gather.is_zero() {
        unless(
            queue.sleep(gather),
            call.until(|state| state.slot.is_none()),
        )
        .await;
    }
    call.close();
    let resolved = call.until(|state| state.resolved == state.reserved);
    if has_layers {
        unless(queue.sleep(LATE), resolved).await;
    } else {
        resolved.await;
    }
    let members = call.lock().members.take().unwrap_or_default();
    let (here, gone): (Vec<_>, Vec<_>) = members
        .into_iter()
        .partition(|member| !member.job.is_lost());
    drop_quietly(gone);
    if here.is_empty() {
        return queue.now().saturating_sub(since);
    }
    let contexts: Vec<_> = here.iter().map(|it| it.job.context.clone()).collect();
    unanswered.answers = here.iter().map(|it| Arc::clone(&it.job.answer)).collect();
    let jobs = here.into_iter().map(|it| (it.payload, it.job)).collect();
    let ended = {
        let work = Box::pin(async move { start(jobs, Slot::Shared(slot)).await });
        let work = AssertUnwindSafe(work).catch_unwind();
        let given_up = pin!(async {
            let lost = pin!(all_lost(&contexts, &unanswered.answers));
            if let Some(time) = timeout {
                matches!(select(lost, queue.sleep(time)).await, Either::Left(_))
            } else {
                lost.await;
                true
            }
        });
        match select(work, given_up).await {
            Either::Left((Ok(answer), _)) => answer,
            Either::Left((Err(panic), _)) => Err(panicked(panic)),
            Either::Right((was_lost, work)) => {
                drop_quietly(work);
                Err(if was_lost {
                    Failed(Kind::NotRun)
                } else {
                    timed_out(timeout.unwrap_or_default())
                })
            }
        }
    };
    if ended.is_ok() {
        let acked = contexts.iter().zip(&unanswered.answers);
        for (_, answer) in acked.filter(|(context, _)| context.is_acked_in_transaction()) {
            answer.give(Ok(()));
        }
    }
    unanswered.failure = match ended {
        Ok(()) => Failed::retry("the handler ended without an answer for this job"),
        Err(failed) => failed,
    };
    queue.now().saturating_sub(since)
}

/// Returns once all jobs of a call are lost, and it has answered none of them.
async fn all_lost(contexts: &[Context], answers: &[Arc<Answer>]) {
    for (context, answer) in contexts.iter().zip(answers) {
        lost(context).await;
        if answer.is_given() {
            pending::<()>().await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
