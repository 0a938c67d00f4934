//! Whoever claims jobs of limited queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockapi::Stop;
use lockapi::queue::{Claim, Delivery};
use lockapi::worker::{self, Failed, Worker, WorkerOptions};
use tokio::task::JoinSet;

use super::{ALL, NAMES, has_result};
use crate::args::Control;
use crate::log::{Nanos, Op};
use crate::programs::jobs::{self, AGAIN, jobs_of};
use crate::programs::recorded::Recorded;
use crate::programs::workers::{self, Silent};
use crate::programs::{Context, before, pick, rest};

/// The shortest time for which jobs are claimed; and how long a handler goes on that does not ask whether it may.
const LEASE: Duration = Duration::from_secs(1);
const STUBBORN: Nanos = 3_000_000_000;

/// Claims jobs, and handles all of them at the same time.
pub(in crate::programs) async fn claim(context: Context) {
    while !context.is_over() {
        let queue = context.backend.queue(pick(&ALL)).expect("a queue");
        let wait = fastrand::u64(1..1200);
        let stubborn = context.is_control(Control::Stubborn) && fastrand::u8(..3) == 0;
        let mut claim = Claim::new(fastrand::usize(1..=5))
            .lease(Duration::from_millis(fastrand::u64(1000..4000)))
            .wait(Duration::from_millis(wait));
        if stubborn {
            claim = claim.lease(LEASE);
        }
        let extended = !stubborn && fastrand::u8(..5) > 0;
        if !extended {
            claim = claim.extended_by_hand();
        }
        let op = Op::Claim {
            queue: queue.name().to_owned(),
            wait,
            extended,
        };
        let claiming = queue.claim(&claim);
        let (call, deliveries) = context.call(op, claiming, jobs::jobs).await;
        let Ok(deliveries) = deliveries else {
            rest(300).await;
            continue;
        };
        let mut handlers = JoinSet::new();
        for delivery in deliveries {
            handlers.spawn(handle(context.clone(), call, delivery, stubborn));
        }
        while let Some(ended) = handlers.join_next().await {
            ended.expect("no handler panics");
        }
    }
}

async fn handle(context: Context, call: u64, delivery: Delivery, stubborn: bool) {
    let is_lost = || !stubborn && delivery.is_lost();
    hold(&context, call, &delivery, (stubborn, is_lost)).await;
    if jobs::settle(&context, delivery).await {
        context.limited_ahead.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Works for a while, and says how long it believes to have the job.
async fn hold(
    context: &Context,
    call: u64,
    delivery: &Delivery,
    (stubborn, is_lost): (bool, impl Fn() -> bool),
) {
    let (job, token) = jobs_of(delivery);
    // One that is lost may yet be acknowledged.
    if has_result(job) {
        let set = delivery.set_result(&token);
        set.expect("a number is a result");
    }
    let begun = before();
    for _ in 0..fastrand::u8(1..9) {
        loop {
            let at = before();
            if is_lost() {
                return;
            }
            context.log.held(at, call, token);
            rest(160).await;
            if !stubborn || at > begun + STUBBORN {
                break;
            }
        }
    }
}

/// Runs one worker after the other, each on a queue, drawn.
pub(in crate::programs) async fn run(context: Context) {
    let queues = ALL.map(|name| {
        let queue = context.backend.queue(name).expect("a queue");
        Recorded::new(queue, context.log.clone())
    });
    while !context.is_over() {
        let queue = Arc::clone(&queues[fastrand::usize(..ALL.len())]);
        let stop = Stop::new();
        let mut work = Worker::new(queue)
            .concurrency(fastrand::usize(1..=6))
            .lease(Duration::from_millis(fastrand::u64(1000..4000)))
            .grace(Duration::from_millis(fastrand::u64(1..1000)))
            .options(WorkerOptions::default().backoff(|_| AGAIN * 2))
            .observe(Silent);
        for name in NAMES {
            let context = context.clone();
            work = work.handle(name, move |job: i64, cx: worker::Context| {
                handle_in_worker(context.clone(), job, cx)
            });
        }
        let stopping = async {
            let mut left = fastrand::u32(5..60);
            while !context.is_over() && left > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                left -= 1;
            }
            stop.stop();
        };
        let (ran, ()) = tokio::join!(work.run(&stop), stopping);
        if ran.is_err() {
            rest(300).await;
        }
    }
}

async fn handle_in_worker(context: Context, job: i64, cx: worker::Context) -> Result<(), Failed> {
    let call = context.log.delivered(job, cx.delivery().ticket().token);
    let is_lost = || cx.is_lost();
    hold(&context, call, cx.delivery(), (false, is_lost)).await;
    let settled = workers::settle(&context, job, &cx).await;
    if workers::has_ended(&cx, &settled) {
        context.limited_ahead.fetch_sub(1, Ordering::Relaxed);
    }
    settled
}
