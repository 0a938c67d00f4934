//! Whoever waits for what becomes of a job, and a queue that is drained meanwhile.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::{Delivery, Pause, Queue};

use super::{Context, asked, jobs, workers};

pub(super) const QUEUE: &str = "results";
/// Within this time all jobs end that somebody has.
const ENDED: Duration = Duration::from_secs(60);

/// Pushes jobs, and waits for their results.
pub(super) async fn push(context: Context) {
    let queue = context.backend().queue(QUEUE).expect("a queue");
    while !context.is_ending() {
        let number = context.history.push_with_result();
        let job = jobs::job(&context, number);
        if let Some(id) = jobs::push_one(&context, &*queue, number, job).await {
            // Some ask twice.
            for _ in 0..context.runtime.draw(|random| random.u8(1..=2)) {
                wait(&context, &*queue, number, id).await;
            }
        }
        context.rest(Duration::from_millis(500)).await;
    }
}

async fn wait(context: &Context, queue: &dyn Queue, number: u64, id: i64) {
    let began = asked(context);
    let at_most = context
        .runtime
        .between(Duration::from_millis(1), Duration::from_secs(20));
    let waiting = queue.wait_result::<i64>(id, at_most);
    let waiting = context.history.until("wait_result", at_most, waiting);
    let told = context.call(waiting).await;
    if let Some(told) = told {
        context.history.told(number, (began, at_most), &told);
    }
}

/// Its completion is about to be sent: where jobs have results, that of a delivery is its token.
pub(super) fn set(context: &Context, job: u64, delivery: &Delivery) {
    if delivery.queue().name() != QUEUE {
        return;
    }
    let token = delivery.ticket().token;
    delivery.set_result(&token).expect("a number");
    context.history.completes(job, token);
}

/// Claims by itself, or has a worker claim.
pub(super) async fn work(context: Context) {
    if context.coin() {
        jobs::work_on(&context, QUEUE).await;
    } else {
        workers::work_until_end(&context, QUEUE, async {}).await;
    }
}

/// Now and then drains the queue, and resumes it.
pub(super) async fn drain(context: Context) {
    let queue = context.backend().queue(QUEUE).expect("a queue");
    while !context.is_ending() {
        context.rest(Duration::from_secs(10)).await;
        let began = asked(&context);
        let at_most = context
            .runtime
            .between(Duration::from_millis(1), Duration::from_secs(10));
        let draining = queue.drain(Pause::UntilResumed, at_most);
        let draining = context.history.until("drain", at_most, draining);
        let mut drained = context.call(draining).await;
        // Nobody claims any more, and whoever has a job ends it.
        if context.history.is_plain() && drained.as_ref().is_some_and(|it| !it.is_complete()) {
            let again = context.call(queue.drain(Pause::UntilResumed, ENDED));
            drained = again.await;
            if let Some(drained) = drained.as_ref().filter(|it| !it.is_complete()) {
                context.history.not_drained(began, drained);
            }
        }
        if drained.is_some_and(|it| it.is_complete()) {
            context.history.drained(began);
            context.rest(Duration::from_secs(1)).await;
        }
        resume(&context, &queue).await;
    }
}

async fn resume(context: &Context, queue: &Arc<dyn Queue>) {
    loop {
        let resuming = context.history.resumes();
        let call = context.history.soon("resume", queue.resume());
        if context.call(call).await.is_some() {
            return resuming.done();
        }
        if context.is_ending() {
            return;
        }
    }
}

/// A process may have ended before it resumed the queue.
pub(super) async fn audit(context: &Context) {
    let queue = context.backend().queue(QUEUE).expect("a queue");
    let resuming = context.history.resumes();
    if let Err(error) = queue.resume().await {
        let what = format!("resume: {error:?}");
        context.runtime.violate("all can be had in the end", what);
    }
    resuming.done();
    jobs::drain(context, QUEUE, jobs::QUIET).await;
}
