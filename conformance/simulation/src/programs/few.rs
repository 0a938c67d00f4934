//! Jobs that are tried a few times, some of which take the place of others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use lockapi::queue::{Claim, Delivery, How, Job, Pushed, Unique};

use super::jobs::{check_attempt, drain, settled, shared, take};
use super::{Context, asked};
use crate::plan::Fault;
use crate::runtime::Time;

pub(super) const QUEUE: &str = "few";
/// How often each job is delivered at most.
const ATTEMPTS: u32 = 3;

/// The unique key of a task, and the numbers that it pushed under it.
struct Own {
    key: String,
    pushed: Mutex<Vec<u64>>,
    /// Whether the outcome of one is unknown: it may still come, and replace any.
    unknown: AtomicBool,
}

/// Pushes jobs, and works on them; both fail now and then.
pub(super) async fn run(context: Context) {
    let queue = context.backend().queue(QUEUE).expect("a queue");
    let own = Own {
        key: format!("of-{:x}", context.runtime.draw(|random| random.u64(..))),
        pushed: Mutex::default(),
        unknown: AtomicBool::new(false),
    };
    while !context.is_ending() {
        if !context.has_backlog(QUEUE) {
            if context.runtime.happens(0.2) {
                push_both(&context, &*queue, &own).await;
            } else {
                push(&context, &*queue, &own).await;
            }
        }
        let lease = context
            .runtime
            .between(Duration::from_millis(500), Duration::from_secs(10));
        let claim = Claim::new(3).lease(lease).wait(Duration::from_millis(300));
        let began = asked(&context);
        for delivery in context.call(queue.claim(&claim)).await.unwrap_or_default() {
            check_attempt(&context, &delivery);
            handle(&context, delivery, began).await;
        }
        context.rest(Duration::from_millis(300)).await;
    }
}

async fn push(context: &Context, queue: &dyn lockapi::Queue, own: &Own) {
    let number = context.history.push();
    let mut job = Job::new("few", &number)
        .expect("a job")
        .max_attempts(ATTEMPTS);
    let unique = context.runtime.happens(0.3) && !own.unknown.load(Ordering::Relaxed);
    if unique {
        job = job.unique(&*own.key, Unique::Replace);
        let mut pushed = own.pushed.lock().unwrap_or_else(PoisonError::into_inner);
        // Those before it may be replaced.
        for number in pushed.drain(..) {
            context.history.may_end(number);
        }
        pushed.push(number);
    }
    let outcome = context.outcome(queue.push(job)).await;
    if unique && !matches!(outcome, Some(Ok(_))) {
        own.unknown.store(true, Ordering::Relaxed);
    }
    match outcome {
        Some(Ok(answer)) if answer.how == How::Running => context.history.may_end(number),
        Some(Ok(_)) => context.history.pushed(number, Ok(())),
        Some(Err(error)) => {
            context.history.failed(&error);
            context.history.pushed(number, Err(&error));
        }
        None => {}
    }
}

/// Pushes two jobs under its key at the same time, of which either may take the place of the other.
async fn push_both(context: &Context, queue: &dyn lockapi::Queue, own: &Own) {
    if own.unknown.load(Ordering::Relaxed) {
        return;
    }
    let numbers = [context.history.push(), context.history.push()];
    let push = |number: u64| {
        let job = Job::new("few", &number).expect("a job");
        let job = job
            .max_attempts(ATTEMPTS)
            .unique(&*own.key, Unique::Replace);
        context.outcome(queue.push(job))
    };
    {
        let mut pushed = own.pushed.lock().unwrap_or_else(PoisonError::into_inner);
        for number in pushed.drain(..) {
            context.history.may_end(number);
        }
        pushed.extend(numbers);
    }
    let (one, other) = join(push(numbers[0]), push(numbers[1])).await;
    let how = |outcome: &Option<lockapi::Result<Pushed>>| match outcome {
        Some(Ok(answer)) => Some(answer.how),
        _ => None,
    };
    let hows = [how(&one), how(&other)];
    if hows.contains(&None) {
        own.unknown.store(true, Ordering::Relaxed);
    }
    for (at, outcome) in [one, other].into_iter().enumerate() {
        let number = numbers[at];
        // The other has taken its place, or what it was answered says nothing of that.
        if matches!(hows[1 - at], Some(How::Changed) | None) || hows[at] == Some(How::Running) {
            context.history.may_end(number);
        }
        match outcome {
            Some(Ok(answer)) if answer.how == How::Running => {}
            Some(Ok(_)) => context.history.pushed(number, Ok(())),
            Some(Err(error)) => {
                context.history.failed(&error);
                context.history.pushed(number, Err(&error));
            }
            None => {}
        }
    }
}

async fn handle(context: &Context, delivery: Delivery, began: Time) {
    let Ok(job) = delivery.decode::<u64>() else {
        return;
    };
    let token = delivery.ticket().token;
    let attempt = delivery.attempt();
    context.history.attempted(job, attempt, ATTEMPTS);
    let (delivery, held) = shared(delivery);
    let delivered = context
        .history
        .delivered(job, context.program, (token, began), held);
    context.history.counts(job, attempt);
    context.rest(Duration::from_millis(500)).await;
    let delivery = take(&delivery);
    drop(delivered);
    let Some(delivery) = delivery else {
        return;
    };
    match context.runtime.draw(|random| random.u8(..10)) {
        0..3 => {
            let failing = delivery.nack("again", Duration::ZERO);
            if settled(context, (job, token), true, failing)
                .await
                .is_some()
            {
                context.history.failed_attempt(job);
            }
        }
        3 => {
            context.history.reject(job);
            settled(context, (job, token), true, delivery.reject("never")).await;
        }
        4 => {
            let releasing = settled(context, (job, token), false, delivery.release());
            if releasing.await.is_some() {
                context.history.released(job);
            }
        }
        _ => {
            context.history.ack(job, token);
            let asked = (token, asked(context));
            let acking = context.history.soon("ack", delivery.ack());
            match context.outcome(acking).await {
                Some(Ok(())) => context.history.acked(job, asked, Ok(())),
                Some(Err(error)) => context.history.acked(job, asked, Err(&error)),
                None => context.history.left_ack(job, token),
            }
        }
    }
}

/// Dead letters have had their attempts, and can be put back.
pub(super) async fn audit(context: &Context) {
    if let Err(error) = audited(context).await {
        let what = format!("{QUEUE}: {error:?}");
        context.runtime.violate("all can be had in the end", what);
    }
}

async fn audited(context: &Context) -> lockapi::Result<()> {
    let queue = context.backend().queue(QUEUE)?;
    let mut dead = Vec::new();
    loop {
        let after = dead
            .last()
            .map_or(0, |letter: &lockapi::queue::DeadLetter| letter.id);
        let part = queue.dead_letters(after, 100).await?;
        if part.is_empty() {
            break;
        }
        dead.extend(part);
    }
    // What a process has claimed that ends, is stopped, or is answered too late, it may not have begun.
    let late = [
        Fault::Delay,
        Fault::Silence,
        Fault::Hush,
        Fault::Partition,
        Fault::Step,
        Fault::FailOver,
        Fault::Promote,
        Fault::Task,
        Fault::Slow,
    ];
    if !late.iter().any(|fault| context.plan.has(*fault)) {
        for letter in &dead {
            let job = letter.payload.parse().unwrap_or_default();
            let unseen = context.server.disturbed_deliveries(letter.id);
            context.history.died(job, ATTEMPTS, unseen);
        }
    }
    // Of those with one unique key one goes back at a time.
    while queue.redrive(Vec::new()).await? > 0 {
        drain(context, QUEUE, Duration::from_secs(2)).await;
    }
    let left = queue.dead_letters(0, 1).await?;
    if !left.is_empty() {
        let what = format!("{left:?}");
        context
            .runtime
            .violate("dead letters can be put back", what);
    }
    Ok(())
}
