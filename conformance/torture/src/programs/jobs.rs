//! Whoever pushes jobs, and whoever claims them.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, Job};

use super::store::Inside;
use super::{Context, QUEUES, Transacted, before, rest};
use crate::args::Control;
use crate::log::{Answer, How, Op};

/// So many that no job is buried.
pub(super) const ATTEMPTS: u32 = 10_000;

/// Every second job has an effect that is written in the transaction that acknowledges it.
pub(crate) fn is_exact(job: i64) -> bool {
    job % 2 == 0
}

pub(super) async fn push(context: Context) {
    pushing(context, QUEUES[0], "job", 150).await;
}

/// Pushes jobs, in transactions of the program and outside of them.
pub(super) async fn pushing(context: Context, queue: &'static str, name: &'static str, pause: u64) {
    let queue = context.backend.queue(queue).expect("a queue");
    while !context.is_over() {
        rest(pause).await;
        if !context.pushes() {
            continue;
        }
        let number = context.log.number();
        let mut job = Job::new(name, &number)
            .expect("a job")
            .max_attempts(ATTEMPTS);
        if fastrand::u8(..4) == 0 {
            job = job.delay(Duration::from_millis(fastrand::u64(1..2000)));
        }
        if fastrand::bool() {
            job = job.idempotency_key(number.to_string());
        }
        if fastrand::u8(..4) == 0 {
            push_two(&context, &*queue, (number, job)).await;
            continue;
        }
        let inside = fastrand::u8(..3) == 0;
        let op = Op::Push {
            job: number,
            with: None,
            inside,
        };
        let failed = if inside {
            let sql = format!("SELECT torture.sent({number})");
            let inside = Inside::Push(Arc::clone(&queue), job);
            context.transact(op, inside, sql).await != Transacted::Committed
        } else {
            let pushed = context.call(op, queue.push(job), |_| Answer::Done).await;
            pushed.1.is_err()
        };
        if failed {
            rest(300).await;
        }
    }
}

/// Pushes a second job together with this one, both with keys.
async fn push_two(context: &Context, queue: &dyn lockapi::Queue, (one, job): (i64, Job)) {
    let other = context.log.number();
    let second = Job::new(job.name(), &other)
        .expect("a job")
        .max_attempts(ATTEMPTS);
    let jobs = vec![
        job.idempotency_key(one.to_string()),
        second.idempotency_key(other.to_string()),
    ];
    let op = |job, with| Op::Push {
        job,
        with: Some(with),
        inside: false,
    };
    let pushing = async {
        let pushing = queue.push_all(jobs);
        let pushed = context.call(op(other, one), pushing, |_| Answer::Done);
        pushed.await.1
    };
    let pushed = context.call(op(one, other), pushing, |_| Answer::Done);
    if pushed.await.1.is_err() {
        rest(300).await;
    }
}

pub(super) async fn claim(context: Context) {
    let queue = context.backend.queue(QUEUES[0]).expect("a queue");
    while !context.is_over() {
        let wait = fastrand::u64(1..1500);
        let mut claim = Claim::new(fastrand::usize(1..=4))
            .lease(Duration::from_millis(fastrand::u64(1000..4000)))
            .wait(Duration::from_millis(wait));
        if fastrand::u8(..5) == 0 {
            claim = claim.extended_by_hand();
        }
        let op = Op::Claim {
            queue: QUEUES[0].to_owned(),
            wait,
        };
        let (call, deliveries) = context.call(op, queue.claim(&claim), jobs).await;
        let Ok(deliveries) = deliveries else {
            rest(300).await;
            continue;
        };
        for delivery in deliveries {
            handle(&context, call, delivery).await;
        }
    }
}

#[expect(clippy::ptr_arg, reason = "it is what a call answers")]
pub(super) fn jobs(deliveries: &Vec<Delivery>) -> Answer {
    let job = |delivery: &Delivery| {
        let job = delivery.decode().expect("a number was pushed");
        (job, delivery.ticket().token)
    };
    Answer::Jobs(deliveries.iter().map(job).collect())
}

async fn handle(context: &Context, call: u64, delivery: Delivery) {
    let (job, token) = jobs_of(&delivery);
    for _ in 0..fastrand::u8(1..4) {
        let at = before();
        if delivery.is_lost() {
            break;
        }
        context.log.held(at, call, token);
        rest(40).await;
    }
    let op = |how| Op::Settle { job, token, how };
    let told = |(): &()| Answer::Done;
    match fastrand::u8(..12) {
        0 => drop(delivery),
        1 => {
            let after = Duration::from_millis(100);
            let giving = async { delivery.nack("again", after).await.map(drop) };
            drop(context.call(op(How::Nack), giving, told).await);
        }
        2 => drop(
            context
                .call(op(How::Release), delivery.release(), told)
                .await,
        ),
        3 => {
            let snoozing = delivery.snooze(Duration::from_millis(200));
            drop(context.call(op(How::Snooze), snoozing, told).await);
        }
        _ if is_exact(job) => {
            complete(context, Arc::new(delivery), job, false).await;
        }
        _ => {
            if affect(context, job, token).await {
                drop(context.call(op(How::Ack), delivery.ack(), told).await);
            }
        }
    }
}

fn jobs_of(delivery: &Delivery) -> (i64, i64) {
    let job = delivery.decode().expect("a number was pushed");
    (job, delivery.ticket().token)
}

/// Does what is to be done at least once.
pub(super) async fn affect(context: &Context, job: i64, token: i64) -> bool {
    let sql = format!("SELECT torture.effect({job}, {token}, false)");
    let affected = context
        .transact(Op::Effect { job }, Inside::Nothing, sql)
        .await;
    affected == Transacted::Committed
}

/// Does what is to be done exactly once, and acknowledges; or acknowledges in a transaction that fails.
pub(super) async fn complete(
    context: &Context,
    delivery: Arc<Delivery>,
    job: i64,
    fails: bool,
) -> bool {
    let token = delivery.ticket().token;
    let op = Op::Settle {
        job,
        token,
        how: How::AckIn,
    };
    if fails {
        let sql = "SELECT 1 / 0::int8".to_owned();
        drop(context.store.transact(Inside::Ack(delivery), sql).await);
        return false;
    }
    let effect = format!("SELECT torture.effect({job}, {token}, true)");
    let (inside, sql) = if context.is_control(Control::Outside) {
        let before = context.transact(Op::Effect { job }, Inside::Nothing, effect);
        before.await;
        rest(100).await;
        (Inside::Ack(delivery), format!("SELECT {job}::int8"))
    } else {
        (Inside::Ack(delivery), effect)
    };
    context.transact(op, inside, sql).await == Transacted::Committed
}
