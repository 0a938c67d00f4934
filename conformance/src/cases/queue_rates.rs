//! Queues: the rate at which their jobs are claimed.

use std::time::Duration;

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
        .set_limit(rate(Quota::per_minute(60).burst(2)))
        .await
        .unwrap();
    none(&queue).await;
    cx.elapse(MINUTE).await;
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
    let quota = Quota::new(1, Duration::from_secs(2));
    queue.set_limit(rate(quota)).await.unwrap();
    assert_eq!(begun(&queue).await, 1);
    let waiting = tokio::spawn(async move { queue.claim(&by_hand().wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("there is no permit", &mut waiting).await;
    cx.pass(Duration::from_secs(2)).await;
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

async fn rate_of_a_queue_holds_under_load(cx: Context) {
    const JOBS: usize = 120;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = cx.backend().await.queue_with("work", kept.clone()).unwrap();
    push_many(&queue, JOBS).await;
    let quota = Quota::per_second(100).burst(5);
    queue.set_limit(rate(quota)).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..4 {
        let queue = cx.backend().await.queue_with("work", kept.clone()).unwrap();
        all.push(tokio::spawn(async move {
            let wait = Claim::new(3).wait(Duration::from_secs(1));
            loop {
                let claimed = queue.claim(&wait).await.unwrap();
                if claimed.is_empty() && queue.statistics().await.unwrap().ready.count == 0 {
                    break;
                }
                for delivery in claimed {
                    delivery.ack().await.unwrap();
                }
            }
        }));
    }
    for one in all {
        soon("the jobs", one).await.unwrap();
    }
    // A permit is taken in the transaction of the claim, after the job has got its time.
    let times = format!(
        "SELECT (extract(epoch FROM started_at) * 1000000)::int8 * 1000 FROM lockapi.job_archive
          WHERE namespace = '{}' ORDER BY started_at",
        cx.namespace()
    );
    let times: Vec<i64> = cx
        .sql(&times)
        .await
        .iter()
        .map(|it| it.parse().unwrap())
        .collect();
    assert_eq!(times.len(), JOBS);
    judge(&times, 5, 10_000_000);
    let took = times[JOBS - 1] - times[0];
    assert!(took < 5_000_000_000, "{took} ns for 1.2 s of permits");
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
