//! Whoever pushes jobs, and whoever works.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::queue::{Claim, Delivery, Job, Priority, Queue};

use super::{Context, asked, few, groups, limited, results, transactions, trials};
use crate::history::Held;
use crate::plan::Fault;
use crate::runtime::Time;

pub(super) const QUEUE: &str = "jobs";
/// So many that no job is buried.
const ATTEMPTS: u32 = 10_000;

fn priority(context: &Context) -> Priority {
    const ALL: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];
    ALL[context.runtime.draw(|random| random.usize(..ALL.len()))]
}

/// A job that carries this number.
pub(super) fn job(context: &Context, number: u64) -> Job {
    job_with(priority(context), number)
}

fn job_with(priority: Priority, number: u64) -> Job {
    Job::new("job", &number)
        .expect("a job")
        .max_attempts(ATTEMPTS)
        .priority(priority)
}

pub(super) async fn push(context: Context) {
    let queue = context.backend().queue(QUEUE).expect("a queue");
    while !context.is_ending() {
        let number = context.history.push();
        let priority = priority(&context);
        let mut job = job_with(priority, number);
        let mut delay = Duration::ZERO;
        if context.coin() {
            delay = context
                .runtime
                .between(Duration::from_millis(1), Duration::from_secs(3));
            job = job.delay(delay);
            context.history.rests(number, (0, asked(&context)), delay);
        }
        context.history.prioritizes(number, priority, delay);
        let has_key = context.coin();
        if has_key {
            job = job.idempotency_key(number.to_string());
        }
        let pushed = push_one(&context, &*queue, number, job.clone()).await;
        if has_key && context.runtime.happens(0.2) {
            push_again(&context, &*queue, (number, pushed), job).await;
        } else if let Some(id) = pushed.filter(|_| context.runtime.happens(0.1)) {
            context.rest(Duration::from_secs(1)).await;
            cancel(&context, &*queue, &[(number, id)]).await;
        }
        context.rest(Duration::from_secs(1)).await;
    }
}

/// Pushes a job again under its key: it is the same one, unless that was forgotten.
async fn push_again(
    context: &Context,
    queue: &dyn Queue,
    (number, pushed): (u64, Option<i64>),
    job: Job,
) {
    context.history.may_be_pushed(number);
    let again = match context.outcome(queue.push(job)).await {
        Some(Ok(again)) => {
            context.history.pushed(number, Ok(()));
            Some(again.id)
        }
        Some(Err(error)) => {
            // It says nothing of the first.
            context.history.failed(&error);
            None
        }
        None => None,
    };
    let forgets = [Fault::FailOver, Fault::Promote];
    if let (Some(id), Some(again)) = (pushed, again)
        && id != again
        && !forgets.iter().any(|fault| context.plan.has(*fault))
    {
        let promise = "a key always refers to the job of its first push";
        let what = format!("job {number} is {id}, and {again} for its key");
        context.runtime.violate(promise, what);
    }
}

/// What a cancellation is told to the history by: later than all deliveries.
const CANCELLED: i64 = i64::MAX - 1;

/// Cancels jobs, which somebody may have.
pub(super) async fn cancel(context: &Context, queue: &dyn Queue, jobs: &[(u64, i64)]) {
    let asked = (CANCELLED, asked(context));
    for (number, _) in jobs {
        context.history.ack(*number, CANCELLED);
    }
    let ids = jobs.iter().map(|(_, id)| *id).collect();
    let cancelling = context.history.soon("cancel", queue.cancel(ids));
    match context.outcome(cancelling).await {
        Some(Ok(cancelled)) => {
            for (number, id) in jobs {
                if cancelled.contains(id) {
                    context.history.acked(*number, asked, Ok(()));
                } else {
                    context.history.not_cancelled(*number, asked);
                }
            }
        }
        Some(Err(error)) => {
            // A transaction whose program has left keeps its locks until the server finds out.
            if error.kind() != ErrorKind::TimedOut || !context.plan.has_kind(transactions::KIND) {
                context.history.failed(&error);
            }
            // Of several, some may be cancelled.
            if jobs.len() == 1 {
                context.history.acked(jobs[0].0, asked, Err(&error));
            }
        }
        // They may have been cancelled.
        None => {}
    }
}

/// Answers the number that the job has at the server, if that is known.
pub(super) async fn push_one(
    context: &Context,
    queue: &dyn Queue,
    number: u64,
    job: Job,
) -> Option<i64> {
    let pushing = context.history.soon("push", queue.push(job));
    match context.outcome(pushing).await {
        Some(Ok(pushed)) => {
            context.history.pushed(number, Ok(()));
            Some(pushed.id)
        }
        Some(Err(error)) => {
            context.history.failed(&error);
            context.history.pushed(number, Err(&error));
            None
        }
        // It may have been pushed.
        None => None,
    }
}

/// A delivery that the history looks at as well.
pub(super) type Shared = Arc<Mutex<Option<Delivery>>>;

/// Shares a delivery with the history, which is told whether it is still held.
pub(super) fn shared(delivery: Delivery) -> (Shared, Held) {
    let shared: Shared = Arc::new(Mutex::new(Some(delivery)));
    let seen = Arc::downgrade(&shared);
    let held = move || {
        let shared = seen.upgrade();
        shared.is_some_and(|it| {
            let delivery = it.lock().unwrap_or_else(PoisonError::into_inner);
            delivery.as_ref().is_some_and(|it| !it.is_lost())
        })
    };
    (shared, Arc::new(held))
}

pub(super) fn take(shared: &Shared) -> Option<Delivery> {
    shared.lock().unwrap_or_else(PoisonError::into_inner).take()
}

async fn handle(context: &Context, delivery: Delivery, began: Time, by_hand: bool) {
    let Ok(job) = delivery.decode::<u64>() else {
        return context
            .runtime
            .violate("what is delivered was pushed", delivery.payload());
    };
    let token = delivery.ticket().token;
    if let Some(made) = context.server.made(token) {
        context.history.claimed(job, made);
        context.history.delivered_at(delivery.queue().name(), made);
    }
    check_attempt(context, &delivery);
    let attempt = delivery.attempt();
    let (shared, held) = shared(delivery);
    let Some(entry) = context
        .history
        .delivered(job, context.program, (token, began), held)
    else {
        return;
    };
    context.history.counts(job, attempt);
    if by_hand {
        context.history.extends_by_hand(job, token);
    }
    context.rest(Duration::from_secs(1)).await;
    let delivery = take(&shared);
    drop(entry);
    if let Some(delivery) = delivery {
        finish(context, job, delivery).await;
    }
}

/// A delivery tells which of its job it is.
pub(super) fn check_attempt(context: &Context, delivery: &Delivery) {
    let ticket = delivery.ticket();
    let known = context.server.model(|model| {
        let mut jobs = model.state().jobs().sights();
        let job = jobs.find(|job| job.id == delivery.id())?;
        let is_it = job.delivery.is_some_and(|(token, _)| token == ticket.token);
        is_it.then_some(job.attempt)
    });
    if let Some(known) = known.filter(|known| *known != i64::from(delivery.attempt())) {
        let what = format!("{ticket:?}: {} instead of {known}", delivery.attempt());
        let promise = "a delivery tells which of its job it is";
        context.runtime.violate(promise, what);
    }
}

/// A delivery that was dropped has failed, and nobody waits for the end of its lease.
async fn check_dropped(context: &Context, (id, token): (i64, i64)) {
    // A transaction may have its row locked.
    if !context.history.is_plain() || context.plan.has_kind(transactions::KIND) {
        return;
    }
    context.runtime.sleep(Duration::from_secs(1)).await;
    let still = context.server.model(|model| {
        let mut jobs = model.state().jobs().sights();
        let job = jobs.find(|job| job.id == id);
        job.is_some_and(|job| job.delivery.is_some_and(|(it, _)| it == token))
    });
    if still {
        let what = format!("{id} under {token}");
        let promise = "a delivery that is dropped has failed";
        context.runtime.violate(promise, what);
    }
}

/// Ends the work on a job in one of the ways that there are.
pub(super) async fn finish(context: &Context, job: u64, delivery: Delivery) {
    let token = delivery.ticket().token;
    match context.runtime.draw(|random| random.u8(..10)) {
        0 => {
            let id = delivery.id();
            drop(delivery);
            check_dropped(context, (id, token)).await;
        }
        1 => {
            let time = Duration::from_millis(100);
            let resting = delivery.nack("again", time);
            rested(context, (job, true), (token, time), resting).await;
        }
        2 => {
            settled(context, (job, token), false, delivery.release()).await;
        }
        3 => {
            let time = Duration::from_millis(300);
            let snoozing = delivery.snooze(time);
            rested(context, (job, false), (token, time), snoozing).await;
        }
        4 | 5
            if context.plan.has_kind(transactions::KIND)
                && delivery.queue().name() != results::QUEUE =>
        {
            transactions::complete(context, job, &delivery).await;
        }
        _ => {
            let asked = (token, asked(context));
            results::set(context, job, &delivery);
            context.history.ack(job, asked.0);
            let acking = context.history.soon("ack", delivery.ack());
            match context.outcome(acking).await {
                Some(Ok(())) => context.history.acked(job, asked, Ok(())),
                Some(Err(error)) => {
                    if error.kind() == ErrorKind::Lost {
                        context.history.lost_delivery(job, token, &error);
                    } else {
                        context.history.failed(&error);
                    }
                    context.history.acked(job, asked, Err(&error));
                }
                None => context.history.left_ack(job, token),
            }
        }
    }
}

/// Puts a job off: once that is answered it is not delivered before.
async fn rested<T>(
    context: &Context,
    (job, counts): (u64, bool),
    (token, time): (i64, Duration),
    settling: impl Future<Output = Result<T, lockapi::Error>> + Send,
) {
    let asked = asked(context);
    let settled = settled(context, (job, token), counts, settling);
    if settled.await.is_some() {
        context.history.rests(job, (token, asked), time);
    }
}

/// Ends a delivery, which counts as an attempt or not; `None` when that was left or has failed.
pub(super) async fn settled<T>(
    context: &Context,
    (job, token): (u64, i64),
    counts: bool,
    settling: impl Future<Output = Result<T, lockapi::Error>> + Send,
) -> Option<T> {
    let settling = context.history.soon("settle", settling);
    // Whoever leaves has it sent nevertheless, and it may have its effect before it is answered.
    if !counts {
        context.history.uncounted(job);
    }
    match context.outcome(settling).await? {
        Ok(answer) => Some(answer),
        Err(error) => {
            // Whether it was then is not known.
            context.history.may_end_unseen(job);
            if error.kind() == ErrorKind::Lost {
                context.history.lost_delivery(job, token, &error);
            } else {
                context.history.failed(&error);
            }
            None
        }
    }
}

pub(super) async fn work(context: Context) {
    work_on(&context, QUEUE).await;
}

pub(super) async fn work_on(context: &Context, queue: &str) {
    let queue = context.backend().queue(queue).expect("a queue");
    while !context.is_ending() {
        work_once(context, &*queue, 4).await;
    }
}

/// Claims up to so many jobs, and works on them one after the other.
pub(super) async fn work_once(context: &Context, queue: &dyn Queue, most: usize) {
    let most = context.runtime.draw(|random| random.usize(1..=most));
    let lease = context
        .runtime
        .between(Duration::from_millis(500), Duration::from_secs(10));
    let wait = context
        .runtime
        .between(Duration::from_millis(1), Duration::from_secs(3));
    let wait = if context.runtime.happens(0.4) {
        wait * 20
    } else {
        wait
    };
    let mut claim = Claim::new(most).lease(lease).wait(wait);
    let by_hand = context.runtime.happens(0.2);
    if by_hand {
        claim = claim.extended_by_hand();
    }
    let began = asked(context);
    let waits = context.history.waits_for_jobs(queue.name());
    let claimed = context.call(queue.claim(&claim)).await;
    drop(waits);
    if let Some(deliveries) = claimed {
        context
            .history
            .claim_ended(began, (wait, most), deliveries.len());
        // Their leases may end before they are begun.
        let jobs = deliveries.iter().filter(|_| by_hand);
        jobs.filter_map(|it| it.decode().ok())
            .for_each(|job| context.history.may_end_unseen(job));
        for delivery in deliveries {
            handle(context, delivery, began, by_hand).await;
        }
    }
}

/// All jobs can be done in the end.
pub(super) async fn audit(context: &Context) {
    groups::audit(context).await;
    limited::audit(context).await;
    for queue in [
        QUEUE,
        few::QUEUE,
        super::workers::QUEUE,
        limited::QUEUE,
        limited::CROWDED,
    ] {
        drain(context, queue, QUIET).await;
    }
    for limited in &groups::LIMITED {
        drain(context, limited.queue, QUIET).await;
    }
    results::audit(context).await;
    few::audit(context).await;
    trials::audit(context).await;
    context.history.check_priorities();
    context.history.check_jobs(|job| {
        context.server.model(|model| {
            let jobs = format!("{:?}", model.state().jobs());
            let at = jobs.find(&format!("payload: \"{job}\""));
            at.map_or_else(
                || "it is not there".to_owned(),
                |at| jobs[at.saturating_sub(200)..jobs.len().min(at + 600)].to_owned(),
            )
        })
    });
}

/// Leases of workers that were killed have to end first, and pauses, which a clock that is set makes longer.
pub(super) const QUIET: Duration = Duration::from_secs(40);

/// Does all jobs of a queue, until there was none for so long.
pub(super) async fn drain(context: &Context, queue: &str, quiet: Duration) {
    let queue = context.backend().queue(queue).expect("a queue");
    let mut until = context.runtime.now() + quiet;
    while context.runtime.now() < until {
        let began = asked(context);
        let claim = Claim::new(100).wait(quiet.min(Duration::from_secs(5)));
        let deliveries = match queue.claim(&claim).await {
            Ok(deliveries) => deliveries,
            Err(error) => {
                return context
                    .runtime
                    .violate("all can be had in the end", format!("claim: {error:?}"));
            }
        };
        if !deliveries.is_empty() {
            until = context.runtime.now() + quiet;
        }
        for delivery in deliveries {
            let job = delivery.decode::<u64>().unwrap_or_default();
            let token = delivery.ticket().token;
            let entry =
                context
                    .history
                    .delivered(job, context.program, (token, began), Arc::new(|| false));
            drop(entry);
            context.history.ack(job, token);
            let asked = (token, asked(context));
            match delivery.ack().await {
                Ok(()) => context.history.acked(job, asked, Ok(())),
                Err(error) => context
                    .runtime
                    .violate("all can be had in the end", format!("ack: {error:?}")),
            }
        }
    }
}
