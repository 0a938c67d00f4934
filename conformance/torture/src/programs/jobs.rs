//! Whoever pushes jobs, and whoever claims them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use lockapi::Queue;
use lockapi::queue::{Claim, Delivery, How as Pushing, Job, Pushed, Unique};

use super::store::{Inside, StoreError};
use super::{Context, QUEUES, Transacted, before, pick, rest};
use crate::args::Control;
use crate::log::{Answer, Claimed, How, Op};

/// A program that has pushed so many jobs more than it has done pushes no more, so that a slow machine can do all in the end.
const AHEAD: i64 = 25;
/// So many that no job is buried.
pub(super) const ATTEMPTS: u32 = 10_000;

/// Keys of which each has one job of a queue at a time; few, so that pushes meet.
const UNIQUE: [&str; 4] = ["u", "v", "w", "x"];

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
        if !context.pushes() || context.ahead.load(Ordering::Relaxed) > AHEAD {
            continue;
        }
        let number = context.log.number();
        let mut job = Job::new(name, &number)
            .expect("a job")
            .max_attempts(ATTEMPTS);
        if fastrand::u8(..4) == 0 {
            job = job.delay(Duration::from_millis(fastrand::u64(1..2000)));
        }
        match fastrand::u8(..8) {
            0 | 1 => {
                push_two(&context, &*queue, (number, job)).await;
                continue;
            }
            2 => {
                push_unique(&context, &*queue, (number, job)).await;
                continue;
            }
            _ => {}
        }
        if push_one(&context, &queue, (number, None, 0, ATTEMPTS), job).await == Push::Failed {
            rest(300).await;
        } else {
            context.ahead.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What has failed comes again after this time, where a worker handles it after twice as long.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
/// For how long jobs are put off.
pub(crate) const SNOOZED: Duration = Duration::from_millis(200);

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Push {
    Failed,
    /// In a transaction.
    Committed,
    /// The library calls the job by this number.
    Pushed(i64),
}

/// Pushes a job, of a number and maybe in a group, which is delivered so often at most: every third in a transaction, every second with a key.
pub(super) async fn push_one(
    context: &Context,
    queue: &Arc<dyn Queue>,
    (number, group, delay, attempts): (i64, Option<&str>, u64, u32),
    job: Job,
) -> Push {
    let inside = fastrand::u8(..3) == 0;
    let keyed = fastrand::bool();
    let job = job.max_attempts(attempts);
    let job = if keyed {
        job.idempotency_key(number.to_string())
    } else {
        job
    };
    let op = Op::Push {
        job: number,
        queue: queue.name().to_owned(),
        group: group.map(str::to_owned),
        delay,
        with: None,
        inside,
        unique: None,
        attempts,
    };
    if inside {
        let sql = format!("SELECT torture.sent({number})");
        let inside = Inside::Push(Arc::clone(queue), job);
        return match context.transact(op, inside, sql).await {
            Transacted::Committed => Push::Committed,
            _ => Push::Failed,
        };
    }
    let told = |pushed: &Pushed| Answer::Number(pushed.id);
    let pushing = async {
        let again = (keyed && fastrand::u8(..4) == 0).then(|| job.clone());
        let pushed = queue.push(job).await?;
        if let Some(job) = again {
            // Under its key it is the same job. Were it another, it would be done a second time.
            drop(queue.push(job).await);
        }
        Ok(pushed)
    };
    match context.call(op, pushing, told).await.1 {
        Ok(pushed) => Push::Pushed(pushed.id),
        Err(_) => Push::Failed,
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
        queue: queue.name().to_owned(),
        group: None,
        delay: 0,
        with: Some(with),
        inside: false,
        unique: None,
        attempts: ATTEMPTS,
    };
    let pushing = async {
        let pushing = queue.push_all(jobs);
        let pushed = context.call(op(other, one), pushing, |_| Answer::Done);
        pushed.await.1
    };
    let pushed = context.call(op(one, other), pushing, |_| Answer::Done);
    if pushed.await.1.is_err() {
        rest(300).await;
    } else {
        context.ahead.fetch_add(2, Ordering::Relaxed);
    }
}

/// Pushes a job with a key that one job has at a time.
async fn push_unique(context: &Context, queue: &dyn Queue, (number, job): (i64, Job)) {
    let key = pick(&UNIQUE).to_owned();
    let job = job.unique(key.clone(), Unique::Skip);
    let op = Op::Push {
        job: number,
        queue: queue.name().to_owned(),
        group: None,
        delay: 0,
        with: None,
        inside: false,
        unique: Some(key),
        attempts: ATTEMPTS,
    };
    let told = |pushed: &Pushed| match pushed.how {
        Pushing::New => Answer::Number(pushed.id),
        Pushing::Existing => Answer::Existing(pushed.id),
        other => panic!("a push that changes nothing is told {other:?}"),
    };
    match context.call(op, queue.push(job), told).await.1 {
        Ok(pushed) if pushed.how == Pushing::New => {
            context.ahead.fetch_add(1, Ordering::Relaxed);
        }
        Ok(_) => {}
        Err(_) => rest(300).await,
    }
}

pub(super) async fn claim(context: Context) {
    let queue = context.backend.queue(QUEUES[0]).expect("a queue");
    while !context.is_over() {
        let wait = fastrand::u64(1..1500);
        let mut claim = Claim::new(fastrand::usize(1..=4))
            .lease(Duration::from_millis(fastrand::u64(1000..4000)))
            .wait(Duration::from_millis(wait));
        let extended = fastrand::u8(..5) > 0;
        if !extended {
            claim = claim.extended_by_hand();
        }
        let op = Op::Claim {
            queue: QUEUES[0].to_owned(),
            wait,
            extended,
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
    let claimed = |delivery: &Delivery| {
        let due = delivery.run_at().duration_since(UNIX_EPOCH);
        let due = due.map_or(0, |since| since.as_micros());
        let (job, token) = jobs_of(delivery);
        Claimed {
            job,
            token,
            due: i64::try_from(due).unwrap_or_default(),
            attempt: delivery.attempt(),
            most: delivery.max_attempts(),
        }
    };
    Answer::Jobs(deliveries.iter().map(claimed).collect())
}

async fn handle(context: &Context, call: u64, delivery: Delivery) {
    let (_, token) = jobs_of(&delivery);
    for _ in 0..fastrand::u8(1..4) {
        let at = before();
        if delivery.is_lost() {
            break;
        }
        context.log.held(at, call, token);
        rest(40).await;
    }
    if settle(context, delivery).await {
        context.ahead.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Does what is to be done, or something else, and says so, or does not. Answers whether the job has ended.
pub(super) async fn settle(context: &Context, delivery: Delivery) -> bool {
    let (job, token) = jobs_of(&delivery);
    let op = |how| Op::Settle { job, token, how };
    let told = |(): &()| Answer::Done;
    // More often where that makes dead letters.
    let ways = if is_few(&delivery) { 8 } else { 12 };
    let called = match fastrand::u8(..ways) {
        0 => {
            let is_last = delivery.attempt() >= delivery.max_attempts();
            // Nobody is told what became of it.
            let dropped = context.log.begin(op(How::Abandon));
            drop(delivery);
            drop(dropped);
            return is_last;
        }
        1 => {
            let failing = delivery.nack("again", AGAIN);
            let told = |dead: &bool| if *dead { Answer::Dead } else { Answer::Done };
            let failed = context.call(op(How::Nack), failing, told).await;
            return failed.1.unwrap_or(false);
        }
        2 => {
            let giving = delivery.release();
            context.call(op(How::Release), giving, told).await
        }
        3 => {
            let snoozing = delivery.snooze(SNOOZED);
            context.call(op(How::Snooze), snoozing, told).await
        }
        _ if is_exact(job) => return complete(context, Arc::new(delivery), job, false).await,
        _ if affect(context, job, token).await => {
            let acked = context.call(op(How::Ack), delivery.ack(), told).await;
            return acked.1.is_ok();
        }
        _ => return false,
    };
    drop(called);
    false
}

/// Whether the job is delivered a few times at most.
pub(super) fn is_few(delivery: &Delivery) -> bool {
    delivery.max_attempts() < ATTEMPTS
}

pub(super) fn jobs_of(delivery: &Delivery) -> (i64, i64) {
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
        // Where the job was not acknowledged at all, nobody but the handler could say so.
        return match context.store.transact(Inside::Ack(delivery), sql).await {
            Err(StoreError::NotDone(message)) => message.contains("division by zero"),
            _ => false,
        };
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
