//! Groups of jobs: the rate at which they begin.

use std::sync::Arc;
use std::time::Duration;

use lockapi::limit::Quota;
use lockapi::queue::{Groups, JobLimit};
use lockapi::{ErrorKind, Queue};

use super::groups::{all, next, numbers, of};
use super::queue::{by_hand, by_hand_from, job, none};
use super::queue_rates::{do_all, judge, kept, times};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "groups":
    Q38 permits_of_a_group_come_back_one_by_one;
    Q38 job_without_a_permit_lets_others_go_on;
    Q38 each_attempt_takes_a_permit;
    Q38 group_may_have_a_rate_of_its_own;
    Q38 permits_of_a_group_outlast_its_settings;
    Q38 rate_of_a_group_holds_beside_its_limit;
    Q38 clock_that_is_set_back_gives_and_takes_no_permits_of_a_group;
    Q38 ordered_group_with_a_rate_keeps_its_order;
    Q38 claim_that_waits_gets_the_next_permit_of_a_group;
    Q38 rates_outside_of_their_limits_are_refused;
    Q38 rate_of_a_group_holds_under_load [Sql];
    Q38 permits_that_have_come_back_are_swept [Sql];
    Q38 groups_without_permits_are_looked_at_seldom @ Own [Sql];
    W01 claims_that_wait_by_the_thousand_are_not_refused @ Own [Sql];
}

fn many() -> Groups {
    Groups::default().limit(100)
}

/// Pushes so many jobs of a group.
async fn push(queue: &Arc<dyn Queue>, group: &str, jobs: usize) {
    let jobs = (0..jobs).map(|nth| of(group, nth)).collect();
    queue.push_all(jobs).await.unwrap();
}

/// How many jobs are there to claim, which are completed.
async fn begun(queue: &Arc<dyn Queue>) -> usize {
    let claimed = all(queue).await;
    let begun = claimed.len();
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    begun
}

async fn permits_of_a_group_come_back_one_by_one(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.set_groups(many().rate(Quota::per_hour(6).burst(3)))
        .await
        .unwrap();
    push(&here, "a", 20).await;
    push(&here, "b", 20).await;
    assert_eq!(begun(&there).await, 6, "three of each");
    none(&here).await;
    cx.elapse(MINUTE * 9).await;
    none(&there).await;
    cx.elapse(MINUTE * 2).await;
    assert_eq!(begun(&here).await, 2);
    none(&there).await;
    cx.elapse(MINUTE * 21).await;
    assert_eq!(begun(&there).await, 4);
    none(&here).await;
    cx.elapse(MINUTE * 6000).await;
    assert_eq!(begun(&here).await, 6, "no more than the burst");
    none(&there).await;
}

async fn job_without_a_permit_lets_others_go_on(cx: Context) {
    let queue = cx.queue().await;
    queue
        .set_groups(many().rate(Quota::per_hour(1)))
        .await
        .unwrap();
    push(&queue, "a", 5).await;
    next(&queue, 0).await.ack().await.unwrap();
    none(&queue).await;
    queue.push_all(vec![of("b", 7), job(8)]).await.unwrap();
    let mut claimed = all(&queue).await;
    claimed.extend(all(&queue).await);
    assert_eq!(numbers(&claimed), [7, 8]);
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    cx.elapse(MINUTE * 61).await;
    // Also those that come while it has a permit.
    let delivery = next(&queue, 1).await;
    assert_eq!(delivery.attempt(), 1, "waiting costs no attempt");
    none(&queue).await;
}

async fn each_attempt_takes_a_permit(cx: Context) {
    let queue = cx.queue().await;
    queue
        .set_groups(many().rate(Quota::per_hour(2).burst(1)))
        .await
        .unwrap();
    push(&queue, "a", 1).await;
    let delivery = by_hand_from(&queue).await;
    delivery.nack("again", Duration::ZERO).await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 31).await;
    // What was released, and what was lost, keeps its permit.
    by_hand_from(&queue).await.release().await.unwrap();
    std::mem::forget(by_hand_from(&queue).await);
    cx.elapse(MINUTE * 2).await;
    let delivery = by_hand_from(&queue).await;
    assert_eq!(delivery.attempt(), 3);
    delivery.nack("again", Duration::ZERO).await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 31).await;
    assert_eq!(by_hand_from(&queue).await.attempt(), 4);
}

async fn group_may_have_a_rate_of_its_own(cx: Context) {
    let queue = cx.queue().await;
    let limit = JobLimit::default();
    queue
        .set_groups(many().rate(Quota::per_hour(2)))
        .await
        .unwrap();
    let large = limit.rate(Quota::per_hour(1000));
    queue.set_group_limit("b", Some(large)).await.unwrap();
    queue
        .set_group_limit("c", Some(limit.running(1)))
        .await
        .unwrap();
    for group in ["a", "b", "c"] {
        push(&queue, group, 50).await;
    }
    let claimed = all(&queue).await;
    let of_group = |group| claimed.iter().filter(move |it| it.group() == Some(group));
    let counts = ["a", "b", "c"].map(|group| of_group(group).count());
    assert_eq!(counts, [2, 50, 1], "the rest is as in other groups");
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    assert_eq!(begun(&queue).await, 1, "c has one permit left");
    // What b has taken was worth three minutes, which its queue's rate allows.
    queue.set_group_limit("b", None).await.unwrap();
    push(&queue, "b", 5).await;
    assert_eq!(begun(&queue).await, 1);
    none(&queue).await;
}

async fn permits_of_a_group_outlast_its_settings(cx: Context) {
    let queue = cx.queue().await;
    let slow = many().rate(Quota::per_hour(6));
    queue.set_groups(slow).await.unwrap();
    push(&queue, "a", 50).await;
    assert_eq!(begun(&queue).await, 6);
    queue.set_groups(slow.limit(200)).await.unwrap();
    none(&queue).await;
    // A new rate begins without permits at worst.
    let fast = Quota::per_hour(60).burst(2);
    queue.set_groups(many().rate(fast)).await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 3).await;
    assert_eq!(begun(&queue).await, 2);
    queue.set_groups(many()).await.unwrap();
    assert_eq!(begun(&queue).await, 42);
}

async fn rate_of_a_group_holds_beside_its_limit(cx: Context) {
    let queue = cx.queue().await;
    queue
        .set_groups(Groups::default().limit(2).rate(Quota::per_hour(6).burst(3)))
        .await
        .unwrap();
    push(&queue, "a", 20).await;
    let claimed = all(&queue).await;
    assert_eq!(claimed.len(), 2);
    none(&queue).await;
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    by_hand_from(&queue).await.ack().await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 100).await;
    assert_eq!(begun(&queue).await, 2);
    assert_eq!(begun(&queue).await, 1);
    // A group that is paused takes no permits.
    let paused = JobLimit::default().running(0);
    queue.set_group_limit("b", Some(paused)).await.unwrap();
    push(&queue, "b", 5).await;
    none(&queue).await;
    queue.set_group_limit("b", None).await.unwrap();
    assert_eq!(begun(&queue).await, 2);
    assert_eq!(begun(&queue).await, 1);
}

async fn clock_that_is_set_back_gives_and_takes_no_permits_of_a_group(cx: Context) {
    let queue = cx.queue().await;
    queue
        .set_groups(many().rate(Quota::per_hour(6).burst(2)))
        .await
        .unwrap();
    push(&queue, "a", 10).await;
    assert_eq!(begun(&queue).await, 2);
    cx.set_clock_back(MINUTE * 600).await;
    // They are due again when the clock has come so far; what is pushed now is due now.
    push(&queue, "a", 10).await;
    none(&queue).await;
    cx.elapse(MINUTE * 9).await;
    none(&queue).await;
    cx.elapse(MINUTE * 2).await;
    assert_eq!(begun(&queue).await, 1);
    none(&queue).await;
}

async fn ordered_group_with_a_rate_keeps_its_order(cx: Context) {
    let queue = cx.queue().await;
    let ordered = Groups::default().ordered();
    queue
        .set_groups(ordered.rate(Quota::per_hour(6).burst(2)))
        .await
        .unwrap();
    push(&queue, "a", 4).await;
    let first = next(&queue, 0).await;
    first.nack("again", Duration::ZERO).await.unwrap();
    next(&queue, 0).await.ack().await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 11).await;
    next(&queue, 1).await.ack().await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 60).await;
    next(&queue, 2).await.ack().await.unwrap();
    next(&queue, 3).await.ack().await.unwrap();
}

async fn claim_that_waits_gets_the_next_permit_of_a_group(cx: Context) {
    let queue = cx.queue().await;
    let quota = Quota::new(1, Duration::from_secs(4));
    queue.set_groups(many().rate(quota)).await.unwrap();
    push(&queue, "a", 2).await;
    assert_eq!(begun(&queue).await, 1);
    let waiting = tokio::spawn(async move { queue.claim(&by_hand().wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("there is no permit", &mut waiting).await;
    cx.pass(Duration::from_secs(4)).await;
    let claimed = soon("the permit", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
}

async fn rates_outside_of_their_limits_are_refused(cx: Context) {
    let queue = cx.queue().await;
    let quotas = [
        Quota::per_hour(0),
        Quota::per_hour(10).burst(0),
        Quota::new(1, Duration::ZERO),
        Quota::per_hour(10).fixed_window(),
    ];
    for quota in quotas {
        let groups = queue.set_groups(many().rate(quota)).await;
        let limit = JobLimit::default().rate(quota);
        let group = queue.set_group_limit("a", Some(limit)).await;
        for refused in [groups, group] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
            assert!(refused.to_string().contains("allowed"), "{refused}");
        }
    }
}

async fn rate_of_a_group_holds_under_load(cx: Context) {
    const JOBS: usize = 80;
    let backend = cx.backend().await;
    let few = Groups::default().limit(3);
    for name in ["plain", "work"] {
        let queue = backend.queue_with(name, kept()).unwrap();
        queue.set_groups(few).await.unwrap();
        for group in ["a", "b"] {
            push(&queue, group, JOBS).await;
        }
    }
    let unlimited = do_all(&cx, "plain", JOBS * 2).await;
    let quota = Quota::per_second(50).burst(5);
    let queue = backend.queue("work").unwrap();
    queue.set_groups(few.rate(quota)).await.unwrap();
    let took = do_all(&cx, "work", JOBS * 2).await;
    for group in ["a", "b"] {
        let which = format!("queue = 'work' AND group_key = '{group}'");
        let times = times(&cx, "run_at", &which).await;
        assert_eq!(times.len(), JOBS);
        // A job is due as of its admission, which takes the permit; the two times are read one after the other.
        judge(&times, 6, 20_000_000);
    }
    // There are 1.5 s of permits, and nobody takes many of them at once.
    let most = Duration::from_secs(8) + unlimited * 4;
    assert!(took < most, "{took:?}, and {unlimited:?} without a rate");
}

async fn permits_that_have_come_back_are_swept(cx: Context) {
    let queue = cx.queue().await;
    queue
        .set_groups(many().rate(Quota::per_second(1)))
        .await
        .unwrap();
    let rows = format!(
        "SELECT count(*) FROM lockapi.group_rate WHERE namespace = '{}'",
        cx.namespace()
    );
    let rows = async || cx.sql(&rows).await[0].parse::<usize>().unwrap();
    for round in 0..6 {
        let jobs = (0..50).map(|nth| of(&format!("{round}-{nth}"), nth));
        queue.push_all(jobs.collect()).await.unwrap();
        while cx.jobs().await.waiting > 0 {
            for delivery in all(&queue).await {
                delivery.ack().await.unwrap();
            }
        }
        let rows = rows().await;
        assert!((50..=150).contains(&rows), "{rows} rows of 50 groups");
        cx.elapse(MINUTE * 3).await;
    }
}

async fn groups_without_permits_are_looked_at_seldom(cx: Context) {
    let queue = cx.queue().await;
    let quota = Quota::new(1, Duration::from_millis(500));
    queue.set_groups(many().rate(quota)).await.unwrap();
    push(&queue, "a", 100).await;
    // Twenty callers that want jobs all the time.
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let queue = queue.clone();
        callers.spawn(async move {
            let claim = by_hand().wait(MINUTE);
            loop {
                for delivery in queue.claim(&claim).await.unwrap() {
                    delivery.ack().await.unwrap();
                }
            }
        });
    }
    let looks = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'group_rate_pkey'";
    let looks = async || cx.sql(looks).await[0].parse::<i64>().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = looks().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let looked = looks().await - before;
    callers.shutdown().await;
    assert!((12..200).contains(&looked), "{looked} looks for 12 permits");
}

async fn claims_that_wait_by_the_thousand_are_not_refused(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(many()).await.unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..1200 {
        let queue = queue.clone();
        callers.spawn(async move { queue.claim(&by_hand().wait(MINUTE)).await });
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    push(&queue, "a", 1).await;
    let first = soon("the job", callers.join_next()).await.unwrap().unwrap();
    assert_eq!(first.unwrap().len(), 1);
    assert!(callers.try_join_next().is_none(), "the others wait");
    callers.shutdown().await;
}
