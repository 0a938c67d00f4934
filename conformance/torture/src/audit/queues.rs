//! Queues after the faults: jobs, places, pauses and priorities.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::admin::JobEdit;
use lockapi::queue::{Claim, Groups, Job, JobLimit, Priority};
use lockapi::{ErrorKind, blocking};

use super::PATIENCE;
use crate::programs::limited::{GROUPED, LIMITED, OF_GROUPS, OF_QUEUE};

/// Jobs of queues, with limits and without.
pub(super) fn can_be_used(
    backend: &blocking::Backend,
    note: &mut impl FnMut(&str, lockapi::Result<()>),
) {
    note("queue", queue(backend));
    note("places of a queue", places(backend));
    for group in ["a", "f"] {
        note("places of a group", places_of_group(backend, group));
    }
    note("paused queue", paused(backend));
    note("edited job", edited(backend));
}

fn queue(backend: &blocking::Backend) -> lockapi::Result<()> {
    let queue = backend.queue("audit")?;
    queue.push(Job::new("audit", &0)?)?;
    if let Some(delivery) = queue.claim(&Claim::new(1).wait(PATIENCE))?.pop() {
        return delivery.ack();
    }
    Err(not_delivered("the job that was pushed is not delivered"))
}

pub(super) fn not_delivered(message: impl Into<String>) -> lockapi::Error {
    lockapi::Error::new(ErrorKind::TimedOut, "claim", message.into())
}

/// All places of a queue that has a limit can be taken, and no more.
fn places(backend: &blocking::Backend) -> lockapi::Result<()> {
    let queue = backend.queue(LIMITED)?;
    queue.set_limit(JobLimit::default().running(OF_QUEUE))?;
    all_places(&queue, OF_QUEUE, None)
}

/// All places of a group.
fn places_of_group(backend: &blocking::Backend, group: &str) -> lockapi::Result<()> {
    let queue = backend.queue(GROUPED)?;
    queue.set_groups(Groups::default().limit(OF_GROUPS))?;
    all_places(&queue, OF_GROUPS, Some(group))
}

fn all_places(queue: &blocking::Queue, most: u32, group: Option<&str>) -> lockapi::Result<()> {
    for _ in 0..=most {
        let job = Job::new("audit", &0)?;
        queue.push(group.iter().fold(job, |job, group| job.group(*group)))?;
    }
    let (start, most) = (Instant::now(), most as usize);
    let mut deliveries = Vec::new();
    while deliveries.len() < most {
        let left = PATIENCE.saturating_sub(start.elapsed());
        let claimed = queue.claim(&Claim::new(most + 1).wait(left))?;
        deliveries.extend(claimed);
        if left.is_zero() {
            let count = deliveries.len();
            return Err(not_delivered(format!(
                "{count} places of {most} can be taken"
            )));
        }
    }
    deliveries.extend(queue.claim(&Claim::new(1))?);
    let count = deliveries.len();
    for delivery in deliveries {
        delivery.ack()?;
    }
    let last = queue.claim(&Claim::new(2).wait(PATIENCE))?;
    if count > most || last.len() != 1 {
        let message = format!("{count} places of {most} are taken, then {}", last.len());
        return Err(not_delivered(message));
    }
    last.into_iter().try_for_each(blocking::Delivery::ack)
}

/// A paused queue keeps its job, which whoever waits gets when it is resumed.
fn paused(backend: &blocking::Backend) -> lockapi::Result<()> {
    let queue = backend.queue("paused")?;
    queue.pause()?;
    queue.push(Job::new("audit", &0)?)?;
    let claimed = queue.claim(&Claim::new(1).wait(Duration::from_millis(300)))?;
    if !claimed.is_empty() {
        return Err(not_delivered("a job of a paused queue is delivered"));
    }
    let waiting = queue.clone();
    let waiter = thread::spawn(move || waiting.claim(&Claim::new(1).wait(PATIENCE)));
    thread::sleep(Duration::from_millis(300));
    queue.resume()?;
    let claimed = waiter.join().expect("a claim does not panic")?;
    let delivery = claimed.into_iter().next();
    delivery
        .ok_or_else(|| not_delivered("whoever waits for a queue that was resumed gets nothing"))?
        .ack()
}

/// A job that is given a higher priority comes before others that were due before.
fn edited(backend: &blocking::Backend) -> lockapi::Result<()> {
    let queue = backend.queue("edited")?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(queue.push(Job::new("audit", &0)?)?.id);
    }
    let last = ids[2];
    let edit = JobEdit::new().priority(Priority::High);
    backend
        .operator()
        .edit_job("edited", last, edit, "torture")?;
    // Of the claims of a process the sixteenth is the first that begins with low priorities.
    let first = queue.claim(&Claim::new(1).wait(PATIENCE))?.pop();
    let first = first.ok_or_else(|| not_delivered("no job is delivered"))?;
    if first.id() != last {
        let message = format!(
            "{} comes before {last}, which has a higher priority",
            first.id()
        );
        return Err(not_delivered(message));
    }
    first.ack()?;
    let others = queue.claim(&Claim::new(2))?;
    others.into_iter().try_for_each(blocking::Delivery::ack)
}
