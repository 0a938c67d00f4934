//! Jobs that have few attempts, expire, and are rejected; who pushes them moves and cancels some, and waits for what becomes of the
//! others.

use std::sync::Arc;
use std::time::Duration;

use lockapi::Queue;
use lockapi::admin::JobEdit;
use lockapi::queue::{Job, Priority, QueueOptions};

use super::{Context, asked, jobs, operators};
use crate::history::Trying;

pub(super) const QUEUES: [&str; 2] = ["trials", "more-trials"];
/// Jobs of one at a time, those that are paused now and then, and those that are handled together.
pub(super) const NAMES: [&str; 3] = ["alone", "paused", "together"];
/// What some have that are cancelled together.
pub(super) const TAG: &str = "doomed";
/// For longer than a run.
const KEPT: Duration = Duration::from_secs(24 * 3600);

pub(super) fn queue(context: &Context, name: &str) -> Arc<dyn Queue> {
    let options = QueueOptions::default().archive(KEPT);
    let opened = context.backend().queue_with(name, options);
    opened.expect("a queue")
}

/// Which name a job has, and how it is pushed.
fn trying(context: &Context) -> (&'static str, Trying) {
    let runtime = &context.runtime;
    let time = |most| runtime.between(Duration::from_millis(1), most);
    let name = NAMES[runtime.draw(|random| random.usize(..NAMES.len()))];
    let trying = Trying {
        most: runtime.draw(|random| random.u32(1..=3)),
        ttl: runtime
            .happens(0.3)
            .then(|| time(Duration::from_millis(1_500))),
        delay: if context.coin() {
            time(Duration::from_secs(2))
        } else {
            Duration::ZERO
        },
        tagged: runtime.happens(0.2),
        changed: (name == NAMES[0]).then_some(operators::MORE),
    };
    (name, trying)
}

fn job(number: u64, (name, trying): (&str, Trying)) -> Job {
    let job = Job::new(name, &number)
        .expect("a job")
        .max_attempts(trying.most)
        .delay(trying.delay)
        .ttl(trying.ttl.unwrap_or_default())
        .header("Number", number.to_string());
    if trying.tagged { job.tag(TAG) } else { job }
}

pub(super) async fn push(context: Context) {
    let queues = QUEUES.map(|name| queue(&context, name));
    while !context.is_ending() {
        let queue = &*queues[usize::from(context.coin())];
        if !context.has_backlog(queue.name()) {
            let trying = trying(&context);
            let number = context.history.push_trial(trying.1);
            let pushed = jobs::push_one(&context, queue, number, job(number, trying));
            if let Some(id) = pushed.await {
                follow(&context, queue, (number, id)).await;
            }
        }
        context.rest(Duration::from_millis(500)).await;
    }
}

async fn follow(context: &Context, queue: &dyn Queue, (number, id): (u64, i64)) {
    match context.runtime.draw(|random| random.u8(..4)) {
        0 => edit(context, queue, (number, id)).await,
        1 => cancel_two(context, queue, (number, id)).await,
        _ => {}
    }
    let began = asked(context);
    let most = context
        .runtime
        .between(Duration::from_millis(1), Duration::from_secs(3));
    if let Some(told) = context.call(queue.wait_result::<i64>(id, most)).await {
        context.history.told_of_trial(number, (began, most), &told);
    }
}

/// Puts it off, or makes it due.
async fn edit(context: &Context, queue: &dyn Queue, (number, id): (u64, i64)) {
    let time = context
        .runtime
        .between(Duration::from_millis(100), Duration::from_secs(2));
    let later = context.coin();
    let edit = if later {
        JobEdit::new().at(context.server.time() + time)
    } else {
        JobEdit::new().now().priority(Priority::High)
    };
    let until = asked(context) + time;
    context.history.moves_trial(number);
    let operator = context.backend().operator();
    let edited = operator.edit_job(queue.name(), id, edit, "by the simulation");
    // A job that is locked is answered like a server that cannot be reached.
    if let Some(Ok(true)) = context.outcome(edited).await
        && later
    {
        context.history.put_off_trial(number, until);
    }
}

/// Cancels it with another one that it pushes.
async fn cancel_two(context: &Context, queue: &dyn Queue, (number, id): (u64, i64)) {
    let trying = trying(context);
    let other = context.history.push_trial(trying.1);
    let pushed = jobs::push_one(context, queue, other, job(other, trying));
    let mut both = vec![(number, id)];
    both.extend(pushed.await.map(|id| (other, id)));
    context.rest(Duration::from_millis(500)).await;
    for (number, _) in &both {
        context.history.trial_cancels(*number);
    }
    jobs::cancel(context, queue, &both).await;
}

/// Dead letters can be put back, as often as it takes to do them.
pub(super) async fn audit(context: &Context) {
    for name in QUEUES {
        let queue = queue(context, name);
        jobs::drain(context, name, jobs::QUIET).await;
        if let Err(error) = operators::look(context, &*queue).await {
            let what = format!("{name}: {error:?}");
            context.runtime.violate("all can be had in the end", what);
        }
        loop {
            match queue.redrive(Vec::new()).await {
                Ok(0) => break,
                Ok(_) => jobs::drain(context, name, Duration::from_secs(2)).await,
                Err(error) => {
                    let what = format!("{name}: {error:?}");
                    return context.runtime.violate("all can be had in the end", what);
                }
            }
        }
    }
}
