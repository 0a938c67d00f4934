//! Jobs: some are pushed, all are worked on.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, How, Job};
use lockapi::{ErrorKind, Queue};
use tokio::time::sleep;

use super::parent::{Parent, Phase, timed};
use crate::record::{Claimed, Outcome, Record};

pub(crate) const QUEUE: &str = "drill";
const NAME: &str = "job";
const BATCH: u64 = 50;
const RETRY: Duration = Duration::from_millis(50);
/// How long a job whose worker has lost the database stays with it.
const LEASE: Duration = Duration::from_secs(5);

/// Pushes jobs with these numbers, evenly over a time.
pub(super) async fn push(
    queue: Arc<dyn Queue>,
    parent: Arc<Parent>,
    numbers: Range<u64>,
    over: Duration,
) {
    let batches = (numbers.end - numbers.start).div_ceil(BATCH).max(1);
    let pause = over.div_f64(f64::from(u32::try_from(batches).unwrap_or(u32::MAX)));
    let mut phase = parent.phase.subscribe();
    let mut next = numbers.start;
    while next < numbers.end {
        let batch: Vec<u64> = (next..numbers.end.min(next + BATCH)).collect();
        next += BATCH;
        if let Err(error) = push_batch(&*queue, &parent, batch).await {
            parent.failed(&error);
            return;
        }
        tokio::select! {
            () = sleep(pause) => {}
            _ = phase.wait_for(|phase| *phase >= Phase::Hurrying) => {}
        }
    }
    parent.tell(&Record::AllPushed);
}

/// Tries until the batch is there; what was pushed before is not pushed again.
async fn push_batch(queue: &dyn Queue, parent: &Parent, numbers: Vec<u64>) -> lockapi::Result<()> {
    let job = |number: &u64| Ok(Job::new(NAME, number)?.idempotency_key(number.to_string()));
    let jobs: Vec<Job> = numbers.iter().map(job).collect::<lockapi::Result<_>>()?;
    loop {
        let (pushed, call) = timed(queue.push_all(jobs.clone())).await;
        match pushed {
            Ok(pushed) => {
                let found = pushed.iter().filter(|one| one.how != How::New).count();
                parent.tell(&Record::Pushed {
                    numbers,
                    found,
                    call,
                });
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
            Err(error) => {
                parent.failed(&error);
                sleep(RETRY).await;
            }
        }
    }
}

/// Works on jobs, some at a time.
pub(super) async fn work(queue: Arc<dyn Queue>, parent: Arc<Parent>) {
    let claim = Claim::new(20).lease(LEASE).wait(Duration::from_millis(500));
    loop {
        let (claimed, call) = timed(queue.claim(&claim)).await;
        let deliveries = match claimed {
            Ok(deliveries) => deliveries,
            Err(error) => {
                parent.failed(&error);
                sleep(RETRY).await;
                continue;
            }
        };
        let read = |delivery: Delivery| {
            let ticket = delivery.ticket();
            let job = Claimed {
                number: delivery.decode().ok()?,
                id: ticket.id,
                token: ticket.token,
            };
            Some((job, delivery))
        };
        let deliveries: Vec<_> = deliveries.into_iter().filter_map(read).collect();
        if deliveries.is_empty() {
            continue;
        }
        let jobs = deliveries.iter().map(|(job, _)| *job).collect();
        parent.tell(&Record::Claimed { jobs, call });
        sleep(Duration::from_millis(fastrand::u64(1..20))).await;
        let acks = deliveries
            .into_iter()
            .map(|(job, delivery)| ack(&parent, job, delivery));
        futures_util::future::join_all(acks).await;
    }
}

async fn ack(parent: &Parent, job: Claimed, delivery: Delivery) {
    let (acked, call) = timed(delivery.ack()).await;
    let outcome = match acked {
        Ok(()) => Outcome::Done,
        Err(error) => parent.failed(&error),
    };
    parent.tell(&Record::Acked { job, call, outcome });
}
