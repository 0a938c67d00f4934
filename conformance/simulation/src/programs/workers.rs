//! Workers, whose handlers fail in all ways.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use lockapi::Stop;
use lockapi::queue::{Delivery, Job, Unhandled};
use lockapi::worker::{self, Failed, Observe, Worker, WorkerOptions};

use super::{Context, asked, jobs, results, transactions};
use crate::history::{Attempt, Entry, Tally};
use crate::runtime::Time;

/// The queue that workers run.
pub(super) const QUEUE: &str = "tasks";
/// What only some workers handle, as while a new version of a program is rolled out.
const OTHER: &str = "other";

/// What a worker is not to report on standard error.
pub(super) struct Observer(pub(super) Context);

impl Observe for Observer {
    fn unhandled(&self, queue: &str, jobs: &Unhandled) {
        if jobs.name == OTHER {
            return;
        }
        let what = format!("{queue}: {jobs:?}");
        self.0
            .runtime
            .violate("jobs that have a handler are handled", what);
    }

    fn failed(&self, error: &lockapi::Error) {
        self.0.history.failed(error);
    }
}

/// The handlers of a worker that run, and how many may.
#[derive(Clone)]
pub(super) struct Handlers {
    running: Arc<AtomicUsize>,
    most: usize,
    /// When the worker was told to stop, and for how long they may go on then.
    stopped: Arc<OnceLock<Time>>,
    grace: Duration,
    tally: Tally,
    /// Whether somebody else runs them.
    spawned: bool,
}

/// One that runs, until this is dropped.
pub(super) struct Handler(Arc<AtomicUsize>);

impl Handlers {
    pub(super) fn new(most: usize, grace: Duration, spawned: bool) -> Self {
        Self {
            spawned,
            tally: Tally::default(),
            running: Arc::default(),
            most,
            stopped: Arc::default(),
            grace,
        }
    }

    /// Rests for up to this time; a handler that has not lost its job is not dropped meanwhile, but after the grace.
    async fn rest(&self, context: &Context, cx: &worker::Context, most: Duration) {
        let mut resting = Resting {
            handlers: self,
            context,
            delivery: Arc::downgrade(cx.delivery()),
            is_over: false,
        };
        context.rest(most).await;
        resting.is_over = true;
    }

    /// The worker is told to stop.
    pub(super) fn stops(&self, context: &Context) {
        self.stopped.get_or_init(|| context.runtime.now());
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    pub(super) fn begin(&self, context: &Context) -> Handler {
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        if running > self.most {
            let what = format!("{running} run, and {} may", self.most);
            let promise = "no more handlers of a worker run than may";
            context.runtime.violate(promise, what);
        }
        Handler(Arc::clone(&self.running))
    }
}

/// A handler that rests.
struct Resting<'a> {
    handlers: &'a Handlers,
    context: &'a Context,
    delivery: Weak<Delivery>,
    is_over: bool,
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        let (context, handlers) = (self.context, self.handlers);
        let is_lost = self.delivery.upgrade().is_none_or(|it| it.is_lost());
        if self.is_over || is_lost || !context.history.is_plain() {
            return;
        }
        let stopped = handlers.stopped.get();
        // Clocks of processes differ by a hundredth.
        let grace = handlers.grace.mul_f64(0.985);
        let now = context.runtime.now();
        if stopped.is_none_or(|at| now < *at + grace) {
            let what = format!("stopped at {stopped:?}, dropped at {now:?}");
            let promise = "a handler may go on for the grace";
            context.runtime.violate(promise, what);
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pushes some jobs, and runs a worker for a while.
pub(super) async fn run(context: Context) {
    let queue = context.backend().queue(QUEUE).expect("a queue");
    while !context.is_ending() {
        for _ in 0..context.runtime.draw(|random| random.usize(0..20)) {
            let number = context.history.push();
            let name = if context.coin() { "task" } else { OTHER };
            let job = Job::new(name, &number).expect("a job").max_attempts(10_000);
            jobs::push_one(&context, &*queue, number, job).await;
        }
        let stop = Stop::new();
        let (handling, concurrency) = (
            context.clone(),
            context.runtime.draw(|random| random.usize(1..=8)),
        );
        // Some take no time but now and then.
        let quick = context.coin();
        let handled = handling.clone();
        let grace = context
            .runtime
            .between(Duration::from_millis(1), Duration::from_secs(5));
        let spawned = context.coin();
        let running = Handlers::new(concurrency, grace, spawned);
        let tally = running.tally.clone();
        let other_running = running.clone();
        let [stopped, stopped_at] = [(); 2].map(|()| Arc::clone(&running.stopped));
        let mut work = Worker::new(queue.clone())
            .handle("task", move |job: u64, cx: worker::Context| {
                handle(handling.clone(), running.clone(), quick, job, cx)
            })
            .concurrency(concurrency)
            .lease(
                context
                    .runtime
                    .between(Duration::from_secs(1), Duration::from_secs(10)),
            )
            .grace(grace)
            .options(WorkerOptions::default().backoff(backoff(&context)))
            .observe(Observer(context.clone()));
        if context.coin() {
            work = work.handle(OTHER, move |job: u64, cx: worker::Context| {
                handle(handled.clone(), other_running.clone(), quick, job, cx)
            });
        }
        if context.coin() {
            work = work.prefetch(context.runtime.draw(|random| random.usize(0..=16)));
        }
        if spawned {
            let spawning = context.clone();
            work = work.spawn_with(move |work| {
                // Some cannot be spawned.
                if !spawning.runtime.happens(0.02) {
                    spawning.runtime.spawn(spawning.program, "handler", work);
                }
            });
        }
        let ends = context.runtime.now()
            + context
                .runtime
                .between(Duration::from_millis(100), Duration::from_secs(20));
        let stopping = async {
            while !context.is_ending() && context.runtime.now() < ends {
                context.runtime.sleep(Duration::from_millis(200)).await;
            }
            stopped.get_or_init(|| context.runtime.now());
            stop.stop();
            std::future::pending::<()>().await;
        };
        let stopping = pin!(stopping);
        let working = pin!(context.outcome(work.run(&stop)));
        let ran = select(working, stopping).await;
        let took = stopped_at
            .get()
            .map(|at| context.runtime.now().saturating_sub(*at));
        if let Some(took) = took.filter(|took| *took > grace.mul_f64(1.015) + ENDED)
            && context.history.is_plain()
        {
            let what = format!("{took:?} with a grace of {grace:?}");
            let promise = "a worker that is to stop ends after its grace";
            context.runtime.violate(promise, what);
        }
        match ran {
            Either::Left((Some(Ok(summary)), _)) => context.history.ended(&summary, &tally),
            Either::Left((Some(Err(error)), _)) => context.history.failed(&error),
            _ => {}
        }
    }
}

/// Runs a worker of a queue whose jobs have one name until it is to stop.
pub(super) async fn work_on(context: &Context, queue: &str, name: &'static str, stop: &Stop) {
    let queue = context.backend().queue(queue).expect("a queue");
    let concurrency = context.runtime.draw(|random| random.usize(1..=8));
    let running = Handlers::new(concurrency, Duration::from_secs(20), false);
    let tally = running.tally.clone();
    let handling = context.clone();
    let work = Worker::new(queue)
        .handle(name, move |job: u64, cx: worker::Context| {
            handle_soon(handling.clone(), running.clone(), job, cx)
        })
        .concurrency(concurrency)
        .lease(
            context
                .runtime
                .between(Duration::from_secs(1), Duration::from_secs(10)),
        )
        .options(WorkerOptions::default().backoff(backoff(context)))
        .observe(Observer(context.clone()));
    match work.run(stop).await {
        Ok(summary) => context.history.ended(&summary, &tally),
        Err(error) => {
            context.history.failed(&error);
            context.rest(Duration::from_millis(100)).await;
        }
    }
}

/// The same until the tasks are to end, and until `last` is over.
pub(super) async fn work_until_end(context: &Context, queue: &str, last: impl Future<Output = ()>) {
    let stop = Stop::new();
    let stopping = async {
        while !context.is_ending() {
            context.runtime.sleep(Duration::from_millis(500)).await;
        }
        last.await;
        stop.stop();
        std::future::pending::<()>().await;
    };
    let working = async {
        while !stop.is_stopped() {
            work_on(context, queue, "job", &stop).await;
        }
    };
    select(pin!(working), pin!(stopping)).await;
}

/// After so long what has failed is tried again; by the default, which counts when this panics, later.
const BACKOFF: Duration = Duration::from_millis(300);

/// Within this time of its stop and its grace a worker has ended.
const ENDED: Duration = Duration::from_secs(2);
/// Within this time a handler is dropped whose job is lost.
const DROPPED: Duration = Duration::from_secs(5);

/// Some of them panic.
fn backoff(context: &Context) -> impl Fn(u32) -> Duration + Send + Sync + use<> {
    let context = context.clone();
    move |_| {
        assert!(
            !context.runtime.happens(0.02),
            "a backoff of the simulation"
        );
        BACKOFF
    }
}

async fn handle(
    context: Context,
    running: Handlers,
    quick: bool,
    job: u64,
    cx: worker::Context,
) -> Result<(), Failed> {
    let _running = running.begin(&context);
    let token = cx.delivery().ticket().token;
    let entry = began(&context, job, &cx);
    let mut attempt = attempt(&context, job, &cx, running.spawned);
    let most = match quick {
        true if context.runtime.happens(0.03) => Duration::from_secs(30),
        true => Duration::from_millis(1),
        false => Duration::from_secs(2),
    };
    running.rest(&context, &cx, most).await;
    if cx.delivery().is_lost() {
        context.history.lost("job", QUEUE);
    }
    if context.plan.has_kind(transactions::KIND)
        && context.coin()
        && transactions::complete(&context, job, cx.delivery()).await
    {
        drop(entry);
        attempt.ends();
        return after(&context);
    }
    drop(entry);
    let put_off = |time| {
        let asked = (token, asked(&context));
        context.history.puts_off(job, asked, time);
        time
    };
    let drawn = context.runtime.draw(|random| random.u8(..20));
    if drawn != 4 {
        attempt.ends();
    }
    let tally = &running.tally;
    match drawn {
        0 => {
            tally.failed();
            put_off(BACKOFF);
            panic!("a handler of the simulation")
        }
        1 => {
            tally.failed();
            let time = put_off(Duration::from_millis(200));
            Err(Failed::retry_after("again", time))
        }
        2 => {
            tally.failed();
            put_off(BACKOFF);
            Err(Failed::retry("again"))
        }
        3 => {
            tally.snoozed();
            context.history.uncounted(job);
            Err(Failed::snooze(put_off(Duration::from_millis(500))))
        }
        4 => {
            // The server may still have it when this process takes it for lost.
            context.history.ack(job, token);
            cx.lost().await;
            if context.coin() {
                context.runtime.sleep(DROPPED).await;
                context.history.not_dropped(job, token);
            }
            Ok(())
        }
        _ => {
            tally.done();
            context.history.ack(job, token);
            context.history.handled(job, token, running.spawned);
            Ok(())
        }
    }
}

/// A handler has begun.
pub(super) fn began(context: &Context, job: u64, cx: &worker::Context) -> Option<Entry> {
    let delivery = Arc::downgrade(cx.delivery());
    let held = move || delivery.upgrade().is_some_and(|it| !it.is_lost());
    let token = cx.delivery().ticket().token;
    // When the worker asked for it is not known.
    let made = context.server.made(token).unwrap_or(Time::ZERO);
    let history = &context.history;
    history.delivered(job, context.program, (token, made), Arc::new(held))
}

/// It is an attempt, or not.
fn attempt(context: &Context, job: u64, cx: &worker::Context, spawned: bool) -> Attempt {
    let (history, delivery) = (&context.history, cx.delivery());
    history.counts(job, delivery.attempt());
    let token = delivery.ticket().token;
    history.attempt((job, token), context.program, spawned)
}

/// Keeps no place for long.
async fn handle_soon(
    context: Context,
    running: Handlers,
    job: u64,
    cx: worker::Context,
) -> Result<(), Failed> {
    let _running = running.begin(&context);
    let entry = began(&context, job, &cx);
    let mut attempt = attempt(&context, job, &cx, running.spawned);
    context.rest(Duration::from_secs(1)).await;
    drop(entry);
    attempt.ends();
    let token = cx.delivery().ticket().token;
    if context.runtime.happens(0.1) {
        let asked = (token, asked(&context));
        running.tally.failed();
        context.history.puts_off(job, asked, BACKOFF);
        return Err(Failed::retry("again"));
    }
    results::set(&context, job, cx.delivery());
    running.tally.done();
    context.history.ack(job, token);
    context.history.handled(job, token, running.spawned);
    Ok(())
}

/// How a handler ends that has completed its job in a transaction, or has failed to: if that was committed the job is done
/// whatever this answers, and otherwise it is not.
fn after(context: &Context) -> Result<(), Failed> {
    let answer = context.runtime.draw(|random| random.u8(..4));
    match answer {
        0 => panic!("a handler of the simulation"),
        1 => Err(Failed::retry("after its transaction")),
        _ => Ok(()),
    }
}
