//! What the processes do.

mod apart;
mod charges;
mod closings;
mod endings;
mod few;
mod groups;
mod holders;
mod jobs;
mod limited;
mod locks;
mod numbers;
mod operators;
mod owners;
mod relays;
mod results;
mod schedules;
mod terms;
mod timetables;
mod transactions;
mod trial_workers;
mod trials;
mod unique;
mod waker;
mod workers;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context as Waiting, Poll};
use std::time::Duration;

use futures_util::future::join;
use lockapi::suite::simulation::{DrivenClock, connect};
use lockapi::{Backend, BackendOptions, Error};

use crate::history::History;
use crate::network::Network;
use crate::plan::{Fault, KINDS, Plan};
use crate::runtime::{ProgramId, Runtime, Time};
use crate::server::Server;

/// What a task of a process has to do with.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) runtime: Runtime,
    pub(crate) server: Server,
    pub(crate) history: History,
    pub(crate) plan: Arc<Plan>,
    /// Set when the tasks are to end.
    pub(crate) ending: Arc<AtomicBool>,
    pub(crate) program: ProgramId,
    pub(crate) backend: Option<Arc<dyn Backend>>,
    tasks: Arc<AtomicUsize>,
    /// Whether the process has had a lock.
    pub(crate) had_lock: Arc<AtomicBool>,
    calls: closings::Calls,
}

/// A task of a process.
type Work = fn(Context) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Those of [`KINDS`], in its order.
const WORK: [Work; KINDS.len()] = [
    |it| Box::pin(locks::mutex(it)),
    |it| Box::pin(locks::rw_lock(it)),
    |it| Box::pin(owners::run(it)),
    |it| Box::pin(holders::lease(it)),
    |it| Box::pin(holders::semaphore(it)),
    |it| Box::pin(holders::election(it)),
    |it| Box::pin(holders::leased_mutex(it)),
    |it| Box::pin(jobs::push(it)),
    |it| Box::pin(jobs::work(it)),
    |it| Box::pin(workers::run(it)),
    |it| Box::pin(schedules::run(it)),
    |it| Box::pin(numbers::limit(it)),
    |it| Box::pin(numbers::reserve(it)),
    |it| Box::pin(numbers::ids(it)),
    |it| Box::pin(groups::push(it)),
    |it| Box::pin(groups::work(it)),
    |it| Box::pin(limited::push(it)),
    |it| Box::pin(limited::work(it)),
    |it| Box::pin(limited::crowd(it)),
    |it| Box::pin(relays::run(it)),
    |it| Box::pin(few::run(it)),
    |it| Box::pin(relays::finder(it)),
    |it| Box::pin(transactions::run(it)),
    |it| Box::pin(results::push(it)),
    |it| Box::pin(results::work(it)),
    |it| Box::pin(results::drain(it)),
    |it| Box::pin(trials::push(it)),
    |it| Box::pin(trial_workers::run(it)),
    |it| Box::pin(operators::run(it)),
    |it| Box::pin(owners::sets(it)),
    |it| Box::pin(charges::run(it)),
    |it| Box::pin(terms::watch(it)),
    |it| Box::pin(terms::alone(it)),
    |it| Box::pin(timetables::run(it)),
    |it| Box::pin(unique::run(it)),
];

impl Context {
    const KEYS: [&str; 3] = ["a", "b", "c"];

    pub(crate) fn new(runtime: &Runtime, server: &Server, history: &History, plan: &Plan) -> Self {
        Self {
            runtime: runtime.clone(),
            server: server.clone(),
            history: history.clone(),
            plan: Arc::new(plan.clone()),
            ending: Arc::default(),
            program: ProgramId(0),
            backend: None,
            tasks: Arc::default(),
            had_lock: Arc::default(),
            calls: closings::Calls::default(),
        }
    }

    /// Whether the tasks of the process are to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_over() || self.history.is_closing()
    }

    /// Whether the tasks of all processes are to end.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Of a process that begins, or has a new backend.
    fn anew(&self) -> Self {
        Self {
            history: self.history.of_process(),
            tasks: Arc::default(),
            had_lock: Arc::default(),
            calls: closings::Calls::default(),
            ..self.clone()
        }
    }

    /// The backend of the process.
    fn backend(&self) -> &Arc<dyn Backend> {
        self.backend.as_ref().expect("a process that has connected")
    }

    /// One of some keys.
    fn key(&self) -> &'static str {
        Self::KEYS[self.runtime.draw(|random| random.usize(..Self::KEYS.len()))]
    }

    /// Whether something happens that does half of the time.
    fn coin(&self) -> bool {
        self.runtime.draw(fastrand::Rng::bool)
    }

    /// Whether so many jobs of a queue wait that more would only take time: its limits are smaller than what is pushed.
    fn has_backlog(&self, queue: &str) -> bool {
        let most = 100;
        self.server.model(|model| {
            let of_queue = model.state().jobs().sights();
            of_queue
                .filter(|job| job.queue.queue == queue)
                .nth(most)
                .is_some()
        })
    }

    /// Waits for up to this time.
    async fn rest(&self, most: Duration) {
        let time = self.runtime.between(Duration::from_micros(100), most);
        self.runtime.sleep(time).await;
    }

    /// Makes a call, or leaves it at any of its polls; `None` when it was left or has failed.
    async fn call<T>(&self, call: impl Future<Output = Result<T, Error>> + Send) -> Option<T> {
        match self.outcome(call).await? {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.history.failed(&error);
                self.rest(Duration::from_millis(100)).await;
                None
            }
        }
    }

    /// Makes a call, or leaves it at any of its polls.
    async fn outcome<T>(
        &self,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Option<Result<T, Error>> {
        let _call = self.calls.begin(self.runtime.now());
        if self.server.strikes(Fault::Waker) {
            return Some(waker::panicking(call).await);
        }
        if !self.server.strikes(Fault::Leave) {
            return Some(call.await);
        }
        let mut call = pin!(call);
        let polls = self.runtime.draw(|random| random.u32(1..6));
        let mut left = polls;
        let time = self
            .runtime
            .between(Duration::from_micros(10), Duration::from_secs(5));
        let mut time = pin!(self.runtime.sleep(time));
        std::future::poll_fn(|waiting: &mut Waiting<'_>| {
            if let Poll::Ready(outcome) = call.as_mut().poll(waiting) {
                return Poll::Ready(Some(outcome));
            }
            left = left.saturating_sub(1);
            if left == 0 || time.as_mut().poll(waiting).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }
}

/// A task that has not ended.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Begins a process that connects and does all kinds of things until it is to end; then it gives back what it
/// has, and ends.
pub(crate) fn begin(context: &Context, whole: bool) -> ProgramId {
    let runtime = &context.runtime;
    let drift = if context.plan.has(Fault::Drift) {
        context.server.note(Fault::Drift);
        runtime.draw(|random| random.i64(-10_000..=10_000))
    } else {
        0
    };
    let is_copy = context.server.strikes(Fault::Copy);
    let (program, clock) = runtime.begin_program(drift, is_copy);
    let context = Context {
        program,
        ..context.anew()
    };
    let begun = async move {
        if whole {
            // Who has closed opens another backend.
            while run(context.anew(), &clock).await && !context.is_over() {}
        } else {
            audit(context, clock).await;
        }
    };
    runtime.spawn(program, "main", begun);
    program
}

/// Connects a process that does all kinds of things, or one that only looks in the end whether all can be had.
async fn connected(
    context: &Context,
    clock: &DrivenClock,
    whole: bool,
) -> Option<Arc<dyn Backend>> {
    loop {
        let network = Network {
            runtime: context.runtime.clone(),
            server: context.server.clone(),
            program: context.program,
        };
        let waiters = if context.plan.polls {
            0
        } else {
            context.runtime.draw(|random| random.usize(1..4))
        };
        let options = BackendOptions::default().waiters(waiters);
        let options = options.max_locks(endings::MOST_LOCKS);
        let options = if context.coin() {
            options.timeout(Duration::from_secs(2))
        } else {
            options
        };
        let options = if context.coin() {
            options.notes(true)
        } else {
            options
        };
        match connect(network, options, clock).await {
            Ok(backend) => return Some(backend),
            Err(error) if !whole || context.history.calm_for() > endings::RECOVERED => {
                let what = format!("connect: {error:?}");
                context.runtime.violate("all can be had in the end", what);
                return None;
            }
            Err(_) if context.is_ending() => return None,
            Err(error) => context.history.failed(&error),
        }
        context.rest(Duration::from_secs(1)).await;
    }
}

/// Does all kinds of things until the tasks are to end; answers whether it has closed before.
async fn run(mut context: Context, clock: &DrivenClock) -> bool {
    let Some(backend) = connected(&context, clock, true).await else {
        return false;
    };
    context.backend = Some(Arc::clone(&backend));
    begin_tasks(&context);
    let done = async {
        while context.tasks.load(Ordering::Relaxed) > 0 {
            context.runtime.sleep(Duration::from_millis(100)).await;
        }
    };
    if context.plan.has(Fault::Close) && context.coin() {
        join(done, closings::close(&context)).await;
    } else {
        done.await;
    }
    if context.history.is_closing() {
        return true;
    }
    endings::use_all(&context).await;
    // A backend may also be dropped.
    if context.coin() {
        endings::close(&context).await;
    }
    false
}

fn begin_tasks(context: &Context) {
    let kinds: Vec<_> = context.plan.kinds().collect();
    let work = KINDS.into_iter().zip(WORK);
    for (name, work) in work.filter(|(name, _)| kinds.contains(name)) {
        let tasks = match name {
            // So many that some wait while others share.
            "rw-lock" if context.plan.by_readers => context.plan.tasks.max(3),
            _ => context.plan.tasks,
        };
        for _ in 0..tasks {
            context.tasks.fetch_add(1, Ordering::Relaxed);
            let (counted, work) = (Counted(Arc::clone(&context.tasks)), work(context.clone()));
            let task = async move {
                work.await;
                drop(counted);
            };
            context.runtime.spawn(context.program, name, task);
        }
    }
}

/// Whether everything can be had again after the others have ended.
async fn audit(mut context: Context, clock: DrivenClock) {
    let Some(backend) = connected(&context, &clock, false).await else {
        return;
    };
    context.backend = Some(Arc::clone(&backend));
    holders::audit(&context).await;
    schedules::audit(&context).await;
    jobs::audit(&context).await;
    numbers::audit(&context).await;
    if let Err(error) = backend.close().await {
        context
            .runtime
            .violate("all can be had in the end", format!("{error:?}"));
    }
    context.history.answered("audit");
}

/// When a call began.
fn asked(context: &Context) -> Time {
    context.runtime.now()
}
