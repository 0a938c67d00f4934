//! Workers of two queues that share their handlers, which reject jobs, take too long, and handle several together.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join, select};
use lockapi::worker::{
    self, BatchJob, BatchOptions, Failed, SharedConcurrency, Worker, WorkerOptions,
};
use lockapi::{Result, Stop};

use super::operators::PAUSED;
use super::trials::{self, NAMES, QUEUES};
use super::workers::{Handlers, Observer};
use super::{Context, workers};
use crate::runtime::Time;

/// How many jobs are handled together at most.
const TOGETHER: usize = 4;
/// A handler is dropped so long after the end of its time at most.
const LATE: Duration = Duration::from_secs(1);

pub(super) async fn run(context: Context) {
    while !context.is_ending() {
        let most = context.runtime.draw(|random| random.usize(2..=5));
        let shared = SharedConcurrency::new(most);
        let handlers = Handlers::new(most, Duration::from_secs(1), false);
        let stop = Stop::new();
        let [one, other] = [0, 1].map(|at| {
            let working = worker(&context, at, &shared, &handlers).run(&stop);
            context.outcome(working)
        });
        let ends = context.runtime.now()
            + context
                .runtime
                .between(Duration::from_millis(100), Duration::from_secs(10));
        let stopping = async {
            while !context.is_ending() && context.runtime.now() < ends {
                context.runtime.sleep(Duration::from_millis(200)).await;
            }
            handlers.stops(&context);
            stop.stop();
            std::future::pending::<()>().await;
        };
        let work = async {
            let (one, other) = join(one, other).await;
            for outcome in [one, other].into_iter().flatten() {
                if let Err(error) = outcome.map(drop) {
                    context.history.failed(&error);
                }
            }
        };
        select(pin!(work), pin!(stopping)).await;
        // What is left of a worker that was left goes on to the end.
        context.rest(Duration::from_millis(100)).await;
    }
}

fn worker(context: &Context, at: usize, shared: &SharedConcurrency, handlers: &Handlers) -> Worker {
    let limit = context
        .runtime
        .between(Duration::from_millis(100), Duration::from_secs(2));
    let backoff = |_| Duration::from_millis(100);
    let options = WorkerOptions::default().timeout(limit).backoff(backoff);
    let mut worker = Worker::new(trials::queue(context, QUEUES[at]))
        .share(shared, context.runtime.draw(|random| random.u32(1..=3)))
        .lease(
            context
                .runtime
                .between(Duration::from_secs(1), Duration::from_secs(5)),
        )
        .grace(Duration::from_secs(1))
        .options(options)
        .observe(Observer(context.clone()));
    for name in &NAMES[..2] {
        let (context, handlers) = (context.clone(), handlers.clone());
        worker = worker.handle(*name, move |job: u64, cx: worker::Context| {
            handle(context.clone(), handlers.clone(), (at, limit), job, cx)
        });
    }
    let (context, handlers) = (context.clone(), handlers.clone());
    let together = BatchOptions::new(TOGETHER).gather(Duration::from_millis(50));
    worker.handle_batch(NAMES[2], together, move |jobs: Vec<(u64, BatchJob)>| {
        handle_together(context.clone(), handlers.clone(), (at, limit), jobs)
    })
}

/// A job has arrived; answers whether the history has it.
fn arrives(
    context: &Context,
    at: usize,
    job: u64,
    cx: &worker::Context,
) -> Option<crate::history::Entry> {
    let ticket = cx.delivery().ticket();
    if let Some(made) = context.server.made(ticket.token) {
        let nth = context.server.deliveries_made(ticket.id);
        context.history.arrived(job, cx, nth, made);
        if cx.name() == NAMES[1] {
            context.history.delivered_at(PAUSED[at], made);
        }
    }
    super::jobs::check_attempt(context, cx);
    workers::began(context, job, cx)
}

/// A handler that takes longer than it may, and is dropped in time: not before, unless its worker stops or the job is lost.
struct Limited<'a> {
    context: &'a Context,
    handlers: &'a Handlers,
    cx: worker::Context,
    began: Time,
    limit: Duration,
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let took = self.context.runtime.now().saturating_sub(self.began);
        let ends = self.handlers.is_stopped() || self.cx.delivery().is_lost();
        // Clocks of processes differ by a hundredth.
        if took < self.limit.mul_f64(0.985) && !ends && self.context.history.is_plain() {
            let what = format!("{took:?} of {:?}", self.limit);
            let promise = "a handler may take its time";
            self.context.runtime.violate(promise, what);
        }
    }
}

async fn takes_too_long(
    context: &Context,
    handlers: &Handlers,
    (began, limit): (Time, Duration),
    cx: worker::Context,
) {
    let limited = Limited {
        context,
        handlers,
        cx,
        began,
        limit,
    };
    let until = began + limit.mul_f64(1.015) + LATE;
    let now = context.runtime.now();
    context.runtime.sleep(until.saturating_sub(now)).await;
    if context.history.is_undisturbed() {
        let what = format!("{limit:?} since {began:?}");
        let promise = "a handler is stopped when its time is over";
        context.runtime.violate(promise, what);
    }
    drop(limited);
    std::future::pending::<()>().await;
}

async fn handle(
    context: Context,
    handlers: Handlers,
    (at, limit): (usize, Duration),
    job: u64,
    cx: worker::Context,
) -> Result<(), Failed> {
    let began = context.runtime.now();
    let _running = handlers.begin(&context);
    let entry = arrives(&context, at, job, &cx);
    drop(cx.progress(0.5, "half of it"));
    context.rest(limit / 3).await;
    drop(entry);
    if context.runtime.happens(0.1) {
        takes_too_long(&context, &handlers, (began, limit), cx.clone()).await;
    }
    answer(&context, job, &cx)
}

/// What becomes of a job.
fn answer(context: &Context, job: u64, cx: &worker::Context) -> Result<(), Failed> {
    let token = cx.delivery().ticket().token;
    match context.runtime.draw(|random| random.u8(..10)) {
        0 => {
            context.history.trial_rejects(job, token);
            Err(Failed::reject("never"))
        }
        1..4 => Err(Failed::retry("again")),
        4 => Err(Failed::snooze(Duration::from_millis(200))),
        _ => {
            cx.delivery().set_result(&token).expect("a number");
            context.history.trial_completes(job, token);
            context.history.ack(job, token);
            context.history.handled(job, token, false);
            Ok(())
        }
    }
}

async fn handle_together(
    context: Context,
    handlers: Handlers,
    (at, limit): (usize, Duration),
    jobs: Vec<(u64, BatchJob)>,
) -> Result<(), Failed> {
    let began = context.runtime.now();
    let _running = handlers.begin(&context);
    if jobs.len() > TOGETHER {
        let what = format!("{} of {TOGETHER}", jobs.len());
        let promise = "no more jobs are handled together than may";
        context.runtime.violate(promise, what);
    }
    let begun = jobs.into_iter().map(|(job, one)| {
        let entry = arrives(&context, at, job, &one);
        (job, one, entry)
    });
    let begun: Vec<_> = begun.collect();
    context.rest(limit / 3).await;
    let hangs = context.runtime.happens(0.1);
    for (job, one, entry) in begun {
        drop(entry);
        // What is not answered fails with the call, and is retried if the call succeeds.
        if context.runtime.happens(0.8) {
            let answer = answer(&context, job, &one);
            one.answer(answer);
        } else if hangs {
            let cx = (*one).clone();
            takes_too_long(&context, &handlers, (began, limit), cx).await;
        }
    }
    if context.coin() {
        return Ok(());
    }
    Err(Failed::retry("not all of them"))
}
