//! Workers, whose handlers fail in several ways.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockapi::Stop;
use lockapi::queue::Unhandled;
use lockapi::worker::{self, Failed, Observe, Worker, WorkerOptions};

use super::jobs::{AGAIN, SNOOZED, affect, complete, is_exact, is_few, pushing};
use super::recorded::Recorded;
use super::{Context, QUEUES, before, rest};

/// What a worker tells is in the history.
pub(super) struct Silent;

impl Observe for Silent {
    fn unhandled(&self, _: &str, _: &Unhandled) {}
}

pub(super) async fn push(context: Context) {
    pushing(context, QUEUES[1], "task", 250).await;
}

/// Runs one worker after the other.
pub(super) async fn work(context: Context) {
    let queue = context.backend.queue(QUEUES[1]).expect("a queue");
    let queue = Recorded::new(queue, context.log.clone());
    while !context.is_over() {
        let stop = Stop::new();
        let handling = context.clone();
        let work = Worker::new(queue.clone())
            .handle("task", move |job: i64, cx: worker::Context| {
                handle(handling.clone(), job, cx)
            })
            .concurrency(fastrand::usize(1..=6))
            .lease(Duration::from_millis(fastrand::u64(1000..4000)))
            .grace(Duration::from_millis(fastrand::u64(1..1000)))
            .options(WorkerOptions::default().backoff(|_| AGAIN * 2))
            .observe(Silent);
        let stopping = async {
            let mut left = fastrand::u32(5..100);
            while !context.is_over() && left > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                left -= 1;
            }
            stop.stop();
        };
        // What it could not do, it was told of before.
        let (ran, ()) = tokio::join!(work.run(&stop), stopping);
        if ran.is_err() {
            rest(300).await;
        }
    }
}

async fn handle(context: Context, job: i64, cx: worker::Context) -> Result<(), Failed> {
    let token = cx.delivery().ticket().token;
    let call = context.log.delivered(job, token);
    let at = before();
    if !cx.is_lost() {
        context.log.held(at, call, token);
    }
    rest(60).await;
    let settled = settle(&context, job, &cx).await;
    if settled.is_ok() {
        context.ahead.fetch_sub(1, Ordering::Relaxed);
    }
    settled
}

/// Does what is to be done, or something else; the worker says so.
pub(super) async fn settle(
    context: &Context,
    job: i64,
    cx: &worker::Context,
) -> Result<(), Failed> {
    let token = cx.delivery().ticket().token;
    let delivery = Arc::clone(cx.delivery());
    // More often where that makes dead letters.
    let ways = if is_few(&delivery) { 4 } else { 16 };
    match fastrand::u8(..ways) {
        0 => return Err(Failed::retry("again")),
        1 => return Err(Failed::snooze(SNOOZED)),
        _ => {}
    }
    if is_exact(job) {
        // Now and then the transaction fails after the acknowledgement, and the handler does not say so.
        let careless = fastrand::u8(..8) == 0;
        return if complete(context, delivery, job, careless).await {
            Ok(())
        } else {
            Err(Failed::retry("not completed"))
        };
    }
    if !affect(context, job, token).await {
        return Err(Failed::retry("no effect"));
    }
    // The worker acknowledges after this has returned.
    Ok(())
}

/// Whether the job is done, or has failed for the last time.
pub(super) fn has_ended(cx: &worker::Context, settled: &Result<(), Failed>) -> bool {
    let delivery = cx.delivery();
    let is_last = delivery.attempt() >= delivery.max_attempts();
    settled
        .as_ref()
        .map_or_else(|failed| failed.is_retry() && is_last, |()| true)
}
