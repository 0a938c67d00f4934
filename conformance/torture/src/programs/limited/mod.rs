//! Jobs of queues and groups that are limited.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockapi::limit::Quota;
use lockapi::queue::{Groups, Job, JobLimit, JobResult, Priority};
use lockapi::{Queue, Result, admin::JobEdit};

use super::jobs::{ATTEMPTS, Push, push_one};
use super::{Context, pick, rest};
use crate::log::{Answer, Op};

pub(super) mod change;
pub(super) mod plain;
pub(super) mod work;

/// Groups have a limit, which is changed.
pub(crate) const GROUPED: &str = "grouped";
/// Groups are in order.
pub(crate) const ORDERED: &str = "ordered";
/// The queue has a limit, which is changed.
pub(crate) const LIMITED: &str = "limited";
/// The queue has a rate.
pub(crate) const RATED: &str = "rated";
/// Groups have a rate.
pub(crate) const PACED: &str = "paced";
/// Jobs are delivered a few times at most.
pub(crate) const FEW: &str = "few";
pub(crate) const ALL: [&str; 6] = [GROUPED, ORDERED, LIMITED, RATED, PACED, FEW];

/// What the limits are in the beginning, which is the most that they ever are.
pub(crate) const OF_GROUPS: u32 = 3;
pub(crate) const OF_QUEUE: u32 = 4;
/// How many at once, and how many a second.
pub(crate) const QUEUE_RATE: (u64, u64) = (2, 4);
pub(crate) const GROUP_RATE: (u64, u64) = (2, 3);

/// How often jobs of that queue are delivered at most.
const FEW_ATTEMPTS: u32 = 3;
/// As for other jobs; what a limit allows takes longer.
const AHEAD: i64 = 8;
const GROUPS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Jobs of the second name are paused for a while.
const NAMES: [&str; 2] = ["light", "heavy"];

fn quota((burst, rate): (u64, u64)) -> Quota {
    Quota::per_second(rate).burst(burst)
}

fn rate_of_queue() -> JobLimit {
    JobLimit::default().rate(quota(QUEUE_RATE))
}

fn paced_groups() -> Groups {
    let groups = Groups::default().limit(OF_GROUPS);
    groups.rate(quota(GROUP_RATE))
}

/// Sets what the limits are in the beginning.
pub(crate) fn prepare(backend: &lockapi::blocking::Backend) -> lockapi::Result<()> {
    let groups = Groups::default().limit(OF_GROUPS);
    backend.queue(GROUPED)?.set_groups(groups)?;
    let ordered = Groups::default().ordered();
    backend.queue(ORDERED)?.set_groups(ordered)?;
    backend.queue(PACED)?.set_groups(paced_groups())?;
    let running = JobLimit::default().running(OF_QUEUE);
    backend.queue(LIMITED)?.set_limit(running)?;
    backend.queue(RATED)?.set_limit(rate_of_queue())
}

/// Every third job has a result: the token of the delivery that completed it.
pub(crate) fn has_result(job: i64) -> bool {
    job % 3 == 0
}

pub(crate) fn name_of(job: i64) -> &'static str {
    NAMES[usize::from(job % 5 == 0)]
}

/// The key that it is limited by besides its group: its limit is that of each group.
pub(crate) fn key_of(queue: &str, job: i64) -> Option<&'static str> {
    (queue == GROUPED && job % 4 == 2).then_some("shared")
}

pub(crate) fn is_limited(queue: &str) -> bool {
    ALL.contains(&queue)
}

/// Pushes a few jobs one after the other, and cancels or changes some, or waits for their results.
pub(super) async fn push(context: Context) {
    while !context.is_over() {
        rest(1200).await;
        if !context.pushes() || context.limited_ahead.load(Ordering::Relaxed) > AHEAD {
            continue;
        }
        let queue = pick(&[
            GROUPED, GROUPED, LIMITED, LIMITED, ORDERED, RATED, PACED, FEW, FEW,
        ]);
        let group = match queue {
            GROUPED | PACED => Some(pick(&GROUPS[..3])),
            ORDERED => Some(pick(&GROUPS)),
            _ => None,
        };
        // Sometimes more than there are places or permits for.
        let count = match (fastrand::u8(..4), queue) {
            (0, RATED | PACED) => 8,
            (0, GROUPED | LIMITED) => 5,
            (_, FEW) => 3,
            (0 | 1, _) => 2,
            _ => 1,
        };
        let queue = context.backend.queue(queue).expect("a queue");
        for _ in 0..count {
            let number = context.log.number();
            let mut job = Job::new(name_of(number), &number).expect("a job");
            let attempts = if queue.name() == FEW {
                fastrand::u32(1..=FEW_ATTEMPTS)
            } else {
                ATTEMPTS
            };
            if let Some(group) = group {
                job = job.group(group);
            }
            if let Some(key) = key_of(queue.name(), number) {
                job = job.limit_by(key);
            }
            let delay = if fastrand::u8(..6) == 0 {
                fastrand::u64(1..1000)
            } else {
                0
            };
            if delay > 0 {
                job = job.delay(Duration::from_millis(delay));
            }
            match push_one(&context, &queue, (number, group, delay, attempts), job).await {
                Push::Failed => {
                    rest(300).await;
                    continue;
                }
                Push::Committed => {}
                Push::Pushed(id) => follow(&context, &*queue, number, id).await,
            }
            context.limited_ahead.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Does something with a job that was pushed.
async fn follow(context: &Context, queue: &dyn Queue, job: i64, id: i64) {
    let failed = match fastrand::u8(..12) {
        0 => {
            let cancelling = async { Ok(queue.cancel(vec![id]).await?.contains(&id)) };
            cancel(context, queue, (job, id), cancelling).await.is_err()
        }
        1 => {
            rest(300).await;
            let operator = context.backend.operator();
            let cancelling = operator.cancel_job(queue.name(), id, "torture");
            cancel(context, queue, (job, id), cancelling).await.is_err()
        }
        2 | 3 => {
            let operator = context.backend.operator();
            let (edit, due) = edit(queue.name());
            let editing = operator.edit_job(queue.name(), id, edit, "torture");
            let told = |changed: &bool| found(*changed);
            context
                .call(Op::Edit { job, due }, editing, told)
                .await
                .1
                .is_err()
        }
        4..7 if has_result(job) => {
            let wait = fastrand::u64(1..4000);
            result(context, queue, (job, id), wait).await.is_err()
        }
        _ => false,
    };
    if failed {
        rest(300).await;
    }
}

/// Waits for the result of a job for so many milliseconds.
async fn result(
    context: &Context,
    queue: &dyn Queue,
    (job, id): (i64, i64),
    wait: u64,
) -> Result<()> {
    let waiting = queue.wait_result::<i64>(id, Duration::from_millis(wait));
    let op = Op::Result { job, wait };
    context.call(op, waiting, became).await.1.map(drop)
}

/// Cancels a job; who asks for its result is told so.
async fn cancel(
    context: &Context,
    queue: &dyn Queue,
    (job, id): (i64, i64),
    cancelling: impl Future<Output = Result<bool>>,
) -> Result<()> {
    let op = Op::Cancel { job };
    let (_, gone) = context.call(op, cancelling, |gone| found(*gone)).await;
    if gone? {
        context.limited_ahead.fetch_sub(1, Ordering::Relaxed);
        result(context, queue, (job, id), 100).await?;
    }
    Ok(())
}

fn found(found: bool) -> Answer {
    if found { Answer::Done } else { Answer::Nothing }
}

fn became(result: &JobResult<i64>) -> Answer {
    match result {
        JobResult::Pending => Answer::Nothing,
        JobResult::Value(token) => Answer::Number(*token),
        JobResult::Cancelled => Answer::Cancelled,
        JobResult::Failed { .. } => Answer::Dead,
        _ => Answer::Done,
    }
}

/// What makes a job due by its priority counts as its admission, where it is admitted. So only jobs without groups get
/// another one. With the time at which the job is due then, if that changes. Those that have few attempts keep these.
fn edit(queue: &str) -> (JobEdit, Option<i64>) {
    let edit = if queue == FEW {
        JobEdit::new().priority(Priority::High)
    } else {
        JobEdit::new().max_attempts(ATTEMPTS * 2)
    };
    match fastrand::u8(..3) {
        0 => (edit.now(), None),
        1 => {
            let due = SystemTime::now() + Duration::from_millis(fastrand::u64(300..2000));
            let since = due.duration_since(UNIX_EPOCH).unwrap_or_default();
            (edit.at(due), i64::try_from(since.as_micros()).ok())
        }
        _ if [LIMITED, RATED].contains(&queue) => (edit.priority(Priority::High), None),
        _ => (edit, None),
    }
}
