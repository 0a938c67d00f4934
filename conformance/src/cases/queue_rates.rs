//! Queues: the rate at which their jobs are claimed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockapi::limit::Quota;
use lockapi::queue::{Claim, JobLimit, QueueOptions};

use super::limited_queues::{begun, many, push_many, running};
use super::queue::{by_hand, by_hand_from, none};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "queue_limited":
    Q37 permits_of_a_queue_come_back_one_by_one;
    Q37 rate_holds_beside_a_limit_of_what_runs;
    Q37 permits_of_a_queue_outlast_its_settings;
    Q37 delivery_that_is_given_back_has_had_its_permit;
    Q37 clock_that_is_set_back_gives_and_takes_no_permits;
    Q37 claim_that_waits_gets_the_next_permit;
    Q37 rate_of_a_queue_holds_under_load [Sql];
    Q37 limited_queue_asks_once_for_each_permit @ Own [Sql];
}

fn rate(quota: Quota) -> JobLimit {
    JobLimit::default().rate(quota)
}

async fn permits_of_a_queue_come_back_one_by_one(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 20).await;
    here.set_limit(rate(Quota::per_hour(6).burst(3)))
        .await
        .unwrap();
    assert_eq!(here.claim(&Claim::new(2)).await.unwrap().len(), 2);
    assert_eq!(begun(&there).await, 1);
    none(&here).await;
    cx.elapse(MINUTE * 9).await;
    none(&there).await;
    cx.elapse(MINUTE * 2).await;
    assert_eq!(begun(&there).await, 1);
    none(&here).await;
    cx.elapse(MINUTE * 21).await;
    assert_eq!(begun(&here).await, 2);
    none(&there).await;
    cx.elapse(MINUTE * 6000).await;
    assert_eq!(begun(&there).await, 3, "no more than the burst");
    none(&here).await;
    assert_eq!(here.limit().await.unwrap().unwrap().running, 0);
}

async fn rate_holds_beside_a_limit_of_what_runs(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 20).await;
    let limit = running(2).rate(Quota::per_hour(6).burst(3));
    queue.set_limit(limit).await.unwrap();
    let claimed = queue.claim(&many()).await.unwrap();
    assert_eq!(claimed.len(), 2);
    none(&queue).await;
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    by_hand_from(&queue).await.ack().await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 100).await;
    assert_eq!(begun(&queue).await, 2);
}

async fn permits_of_a_queue_outlast_its_settings(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 50).await;
    let limit = rate(Quota::per_hour(6));
    queue.set_limit(limit).await.unwrap();
    assert_eq!(begun(&queue).await, 6);
    queue.set_limit(limit).await.unwrap();
    none(&queue).await;
    queue.set_limit(limit.running(100)).await.unwrap();
    none(&queue).await;
    // A new rate begins without permits at worst.
    queue
        .set_limit(rate(Quota::per_hour(60).burst(2)))
        .await
        .unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 3).await;
    assert_eq!(begun(&queue).await, 2);
    queue.clear_limit().await.unwrap();
    queue.set_limit(limit).await.unwrap();
    assert_eq!(begun(&queue).await, 6, "nothing is left of it");
}

async fn delivery_that_is_given_back_has_had_its_permit(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 1).await;
    queue.set_limit(rate(Quota::per_hour(2))).await.unwrap();
    for _ in 0..2 {
        let delivery = by_hand_from(&queue).await;
        delivery.nack("again", Duration::ZERO).await.unwrap();
    }
    none(&queue).await;
    cx.elapse(MINUTE * 31).await;
    assert_eq!(by_hand_from(&queue).await.attempt(), 3);
}

async fn clock_that_is_set_back_gives_and_takes_no_permits(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 5).await;
    let quota = Quota::per_hour(6).burst(2);
    queue.set_limit(rate(quota)).await.unwrap();
    assert_eq!(begun(&queue).await, 2);
    // Also right after it was set anew.
    queue.set_limit(rate(quota)).await.unwrap();
    cx.set_clock_back(MINUTE * 600).await;
    // What was pushed before is due when the clock has come so far.
    push_many(&queue, 5).await;
    none(&queue).await;
    cx.elapse(MINUTE * 9).await;
    none(&queue).await;
    cx.elapse(MINUTE * 2).await;
    assert_eq!(begun(&queue).await, 1);
    none(&queue).await;
}

async fn claim_that_waits_gets_the_next_permit(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 2).await;
    let quota = Quota::new(1, Duration::from_secs(4));
    queue.set_limit(rate(quota)).await.unwrap();
    assert_eq!(begun(&queue).await, 1);
    let waiting = tokio::spawn(async move { queue.claim(&by_hand().wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("there is no permit", &mut waiting).await;
    cx.pass(Duration::from_secs(4)).await;
    let claimed = soon("the permit", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
}

/// Judges the times of claims, in nanoseconds, by the definition: in any time no more than the burst and what the rate gives.
pub(super) fn judge(times: &[i64], burst: i64, step: i64) {
    for (first, from) in times.iter().enumerate() {
        for (last, to) in times.iter().enumerate().skip(first) {
            let taken = i64::try_from(last - first + 1).unwrap();
            let allowed = burst + (to - from) / step;
            assert!(taken <= allowed, "{taken} in {} ns", to - from);
        }
    }
}

/// Four programs do all jobs of a queue; answers how long they took.
pub(super) async fn do_all(cx: &Context, name: &str, jobs: usize) -> Duration {
    let start = Instant::now();
    let done = Arc::new(AtomicUsize::new(0));
    let mut programs = Vec::new();
    for _ in 0..4 {
        let backend = cx.backend().await;
        let queue = backend.queue_with(name, kept()).unwrap();
        let done = Arc::clone(&done);
        programs.push(tokio::spawn(async move {
            let wait = Claim::new(3).wait(Duration::from_secs(1));
            while done.load(Ordering::Relaxed) < jobs {
                for delivery in queue.claim(&wait).await.unwrap() {
                    delivery.ack().await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for program in programs {
        soon("the jobs", program).await.unwrap();
    }
    start.elapsed()
}

/// Their times are kept.
pub(super) fn kept() -> QueueOptions {
    QueueOptions::default().archive(MINUTE * 60)
}

/// The times by which permits are judged, in nanoseconds: a column of what is kept of the jobs, of some of them.
pub(super) async fn times(cx: &Context, column: &str, which: &str) -> Vec<i64> {
    let times = format!(
        "SELECT (extract(epoch FROM {column}) * 1000000)::int8 * 1000 FROM lockapi.job_archive
          WHERE namespace = '{}' AND {which} ORDER BY 1",
        cx.namespace()
    );
    let times = cx.sql(&times).await;
    times.iter().map(|it| it.parse().unwrap()).collect()
}

async fn rate_of_a_queue_holds_under_load(cx: Context) {
    const JOBS: usize = 120;
    let backend = cx.backend().await;
    for name in ["plain", "work"] {
        push_many(&backend.queue_with(name, kept()).unwrap(), JOBS).await;
    }
    let unlimited = do_all(&cx, "plain", JOBS).await;
    let quota = Quota::per_second(100).burst(5);
    let queue = backend.queue("work").unwrap();
    queue.set_limit(rate(quota)).await.unwrap();
    let took = do_all(&cx, "work", JOBS).await;
    // A permit is taken in the transaction of the claim, after the job has got its time.
    let times = times(&cx, "started_at", "queue = 'work'").await;
    assert_eq!(times.len(), JOBS);
    judge(&times, 5, 10_000_000);
    // There are 1.2 s of permits, and nobody takes many of them at once.
    let most = Duration::from_secs(5) + unlimited * 4;
    assert!(took < most, "{took:?}, and {unlimited:?} without a rate");
}

async fn limited_queue_asks_once_for_each_permit(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 100).await;
    let quota = Quota::new(1, Duration::from_millis(500));
    queue.set_limit(rate(quota)).await.unwrap();
    let consumer = tokio::spawn(async move {
        let claim = by_hand().wait(MINUTE);
        let mut all = Vec::new();
        // Twenty callers that want jobs all the time.
        for _ in 0..20 {
            let (queue, claim) = (queue.clone(), claim.clone());
            all.push(tokio::spawn(async move {
                loop {
                    for delivery in queue.claim(&claim).await.unwrap() {
                        std::mem::forget(delivery);
                    }
                }
            }));
        }
        futures_util::future::join_all(all).await;
    });
    let looks = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'queue_limit_pkey'";
    let looks = async || cx.sql(looks).await[0].parse::<i64>().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = looks().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let looked = looks().await - before;
    consumer.abort();
    // Twelve permits, each claimed in five looks, after which its caller asks again in two, and what the statistics lag.
    assert!((20..200).contains(&looked), "{looked} looks for 12 permits");
}
