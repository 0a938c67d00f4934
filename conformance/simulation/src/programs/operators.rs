//! Whoever operates queues: pauses names, moves and cancels many jobs, looks at dead letters, and purges.

use std::time::Duration;

use lockapi::admin::{JobEdit, JobFilter};
use lockapi::queue::{Job, Pause};
use lockapi::{ErrorKind, Queue};

use super::trials::{self, NAMES, QUEUES, TAG};
use super::{Context, apart};
use crate::plan::Fault;

/// What is told to the history of the name that is paused, of each queue.
pub(super) const PAUSED: [&str; 2] = ["paused of trials", "paused of more-trials"];
/// More attempts than any job is pushed with.
pub(super) const MORE: u32 = 4;
/// The queue that is purged, whose jobs are due much later.
const PURGED: &str = "purged";
const LATER: Duration = Duration::from_secs(3_000);
const REASON: &str = "by the simulation";

pub(super) async fn run(context: Context) {
    while !context.is_ending() {
        let at = usize::from(context.coin());
        let queue = trials::queue(&context, QUEUES[at]);
        match context.runtime.draw(|random| random.u8(..8)) {
            0 => pause(&context, &*queue, PAUSED[at]).await,
            1 => move_many(&context, QUEUES[at]).await,
            2 => cancel_many(&context, QUEUES[at]).await,
            3 => purge(&context).await,
            4 | 5 => apart::run(&context).await,
            _ => treat(&context, &*queue).await,
        }
        context.rest(Duration::from_secs(1)).await;
    }
}

async fn pause(context: &Context, queue: &dyn Queue, name: &'static str) {
    let time = context
        .runtime
        .between(Duration::from_millis(100), Duration::from_secs(3));
    let pausing = context.history.pauses(name, time);
    let paused = context.call(queue.pause_name(NAMES[1], Pause::For(time)));
    if paused.await.is_some() {
        context.history.paused(name, pausing);
        if context.coin() {
            // One that is not paused.
            context.call(queue.resume_name(NAMES[0])).await;
        }
    }
}

/// An error, unless the rows of jobs are locked.
fn failed(context: &Context, error: &lockapi::Error) {
    if error.kind() != ErrorKind::TimedOut && error.sqlstate() != Some("55P03") {
        context.history.failed(error);
    }
}

async fn move_many(context: &Context, queue: &str) {
    let edit = if context.coin() {
        JobEdit::new().now()
    } else {
        JobEdit::new().max_attempts(MORE)
    };
    let filter = JobFilter::queue(queue).name(NAMES[0]);
    let operator = context.backend().operator();
    let edited = context.outcome(operator.edit_jobs(&filter, edit, REASON));
    if let Some(Err(error)) = edited.await {
        failed(context, &error);
    }
}

async fn cancel_many(context: &Context, queue: &str) {
    let filter = JobFilter::queue(queue).tag(TAG);
    let operator = context.backend().operator();
    let cancelled = context.outcome(operator.cancel_jobs(&filter, REASON));
    if let Some(Err(error)) = cancelled.await {
        failed(context, &error);
    }
}

/// What waits is gone when its queue was purged.
async fn purge(context: &Context) {
    let queue = context.backend().queue(PURGED).expect("a queue");
    let job = Job::new("late", &0).expect("a job").delay(LATER);
    let pushed = context.call(queue.push(job)).await;
    if context.call(queue.purge()).await.is_none() {
        return;
    }
    let Some(pushed) = pushed else {
        return;
    };
    // A server that has taken over may not know of it, and what somebody has locked is skipped.
    if let Some(left) = context.call(queue.cancel(vec![pushed.id])).await
        && !left.is_empty()
        && !context.history.may_be_kept()
        && !context.plan.has(Fault::RowLocks)
    {
        let what = format!("job {}", pushed.id);
        context.runtime.violate("what is purged is gone", what);
    }
}

/// Looks at the dead letters, and puts some back, or throws them away.
async fn treat(context: &Context, queue: &dyn Queue) {
    let letters = context.call(queue.dead_letters(0, 100)).await;
    let mut some = Vec::new();
    for letter in letters.unwrap_or_default() {
        let job = letter.payload.parse().unwrap_or_default();
        context.history.check_dead(job, &letter);
        if context.runtime.happens(0.3) {
            some.push((job, letter.id));
        }
    }
    if some.is_empty() {
        return;
    }
    let ids = some.iter().map(|(_, id)| *id).collect();
    if context.coin() {
        for (job, _) in &some {
            context.history.redrives_trial(*job);
        }
        context.call(queue.redrive(ids)).await;
    } else {
        for (job, _) in &some {
            context.history.discards_trial(*job);
        }
        context.call(queue.discard(ids)).await;
    }
}

/// All dead letters are such as there may be.
pub(super) async fn look(context: &Context, queue: &dyn Queue) -> lockapi::Result<()> {
    let mut after = 0;
    loop {
        let letters = queue.dead_letters(after, 100).await?;
        let Some(last) = letters.last() else {
            return Ok(());
        };
        after = last.id;
        for letter in &letters {
            let job = letter.payload.parse().unwrap_or_default();
            context.history.check_dead(job, letter);
        }
    }
}
