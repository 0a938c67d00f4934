//! Queues with a limit: what they refuse, and what else holds jobs back.

use std::sync::Arc;
use std::time::Duration;

use lockapi::limit::Quota;
use lockapi::queue::{Groups, Job, JobLimit, Pause, QueueOptions};
use lockapi::{ErrorKind, Queue};

use super::limited_queues::{begun, claim, many, places, push_many, running};
use super::queue::{by_hand, by_hand_from, job, none};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "queue_limited":
    Q36 limits_of_queue_and_groups_hold_together;
    Q36 paused_queue_keeps_its_limit;
    Q36 limit_is_that_of_one_queue;
    Q36 limits_of_queues_have_limits;
    Q36 take_in_refuses_limited_queues [Transactions];
    Q36 setting_that_stays_open_holds_up_claims_alone @ Own [Transactions, Sql];
    Q36 completion_in_a_transaction_that_stays_open_keeps_its_place [Transactions];
    Q36 callers_that_leave_a_full_queue_leave_nothing;
}

async fn limits_of_queue_and_groups_hold_together(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.set_groups(Groups::default().limit(2)).await.unwrap();
    here.set_limit(running(3)).await.unwrap();
    let of = |group: &str, nth| job(nth).group(group);
    let jobs = (0..12).map(|nth| of(["a", "b", "c"][nth % 3], nth));
    here.push_all(jobs.collect()).await.unwrap();
    let mut done = 0;
    while done < 12 {
        let mut claimed = claim(&there).await;
        claimed.extend(claim(&here).await);
        assert!(claimed.len() <= 3, "{} at once", claimed.len());
        for group in ["a", "b", "c"] {
            let of = claimed.iter().filter(|it| it.group() == Some(group));
            assert!(of.count() <= 2, "of {group}");
        }
        assert!(!claimed.is_empty(), "{done} are done");
        done += claimed.len();
        for delivery in claimed {
            delivery.ack().await.unwrap();
        }
    }
}

async fn paused_queue_keeps_its_limit(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 4).await;
    here.push(Job::new("mail", &9).unwrap()).await.unwrap();
    here.set_limit(running(2)).await.unwrap();
    here.pause().await.unwrap();
    none(&there).await;
    there.set_limit(running(3)).await.unwrap();
    none(&there).await;
    here.resume().await.unwrap();
    here.pause_name("count", Pause::UntilResumed).await.unwrap();
    let claimed = claim(&there).await;
    assert_eq!(claimed.len(), 1, "one is not paused");
    here.resume_name("count").await.unwrap();
    assert_eq!(begun(&there).await, 2);
    none(&here).await;
}

async fn limit_is_that_of_one_queue(cx: Context) {
    let backend = cx.backend().await;
    let options = QueueOptions::default();
    let other = backend.queue_with("other", options).unwrap();
    let elsewhere = cx.elsewhere().await.queue().await;
    let queue = cx.queue().await;
    queue.set_limit(running(1)).await.unwrap();
    for queue in [&other, &elsewhere, &queue] {
        push_many(queue, 3).await;
    }
    assert_eq!(begun(&queue).await, 1);
    assert_eq!(begun(&other).await, 3);
    assert_eq!(begun(&elsewhere).await, 3);
    assert_eq!(other.limit().await.unwrap(), None);
}

async fn limits_of_queues_have_limits(cx: Context) {
    let queue = cx.queue().await;
    let rate = |quota| JobLimit::default().rate(quota);
    for (limit, says) in [
        (running(0), "pause"),
        (running(1001), "1000"),
        (running(u32::MAX), "1000"),
        (JobLimit::default(), "clear_limit"),
        (rate(Quota::per_second(0)), "permits"),
        (rate(Quota::per_second(1).fixed_window()), "Gcra"),
        (
            running(1).rate(Quota::per_second(1).sliding_window()),
            "Gcra",
        ),
        (rate(Quota::per_second(1).burst(0)), "burst"),
        (rate(Quota::per_second(u64::MAX)), "permits"),
    ] {
        let refused = queue.set_limit(limit).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{limit:?}");
        assert!(refused.to_string().contains(says), "{refused}");
    }
    assert_eq!(queue.limit().await.unwrap(), None);
    let rare = Quota::new(1, MINUTE * (366 * 24 * 60)).burst(10);
    for limit in [
        running(1),
        running(1000),
        rate(rare),
        rate(Quota::per_second(10_000_000)),
        running(7).rate(Quota::per_minute(7).burst(3)),
    ] {
        queue.set_limit(limit).await.unwrap();
        assert_eq!(queue.limit().await.unwrap().unwrap().limit, limit);
    }
    queue.clear_limit().await.unwrap();
    queue.clear_limit().await.unwrap();
}

async fn take_in_refuses_limited_queues(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 3).await;
    queue.set_limit(running(2)).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    let refused = tx.take_in(&queue, 1).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("ack_in"), "{refused}");
    // The transaction goes on, and holds up nobody.
    let delivery = Arc::new(by_hand_from(&queue).await);
    tx.ack_in(&delivery).await.unwrap();
    tx.commit().await;
    assert_eq!(begun(&queue).await, 2);
    queue.clear_limit().await.unwrap();
    push_many(&queue, 1).await;
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(tx.take_in(&queue, 5).await.unwrap().len(), 1);
    tx.commit().await;
}

async fn setting_that_stays_open_holds_up_claims_alone(cx: Context) {
    let (queue, other) = (cx.queue().await, cx.backend().await.queue("other").unwrap());
    push_many(&queue, 5).await;
    push_many(&other, 1).await;
    queue.set_limit(running(2)).await.unwrap();
    other.set_limit(running(2)).await.unwrap();
    let mut held = claim(&queue).await;
    held.remove(0).ack().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.query(
        "SELECT lockapi.set_queue_limit(l.namespace, l.queue, 3, NULL, NULL, NULL, NULL)::text
           FROM lockapi.queue_limit AS l WHERE l.queue = 'work'",
    )
    .await;
    soon("an answer without a job", none(&queue)).await;
    assert_eq!(begun(&other).await, 1);
    queue.push(job(9)).await.unwrap();
    held[0].extend(MINUTE).await.unwrap();
    let waiting = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.claim(&many().wait(MINUTE)).await })
    };
    tokio::pin!(waiting);
    not_yet("the limit is being set", &mut waiting).await;
    let looks = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'queue_limit_pkey'";
    let looks = async || cx.sql(looks).await[0].parse::<i64>().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = looks().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let looked = looks().await - before;
    // A claim each 48 ms on average, and four looks for each.
    assert!((4..800).contains(&looked), "{looked} looks in 4 s");
    tx.commit().await;
    let claimed = soon("the places", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 2);
}

async fn completion_in_a_transaction_that_stays_open_keeps_its_place(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 3).await;
    here.set_limit(running(1)).await.unwrap();
    for commit in [false, true] {
        let delivery = Arc::new(by_hand_from(&here).await);
        let mut tx = cx.begin().await.unwrap();
        tx.ack_in(&delivery).await.unwrap();
        none(&there).await;
        if commit {
            tx.commit().await;
        } else {
            tx.rollback().await;
            none(&there).await;
            delivery.extend(MINUTE).await.unwrap();
            here.settle(delivery.ticket(), lockapi::queue::Outcome::Release)
                .await
                .unwrap();
        }
    }
    assert_eq!(begun(&there).await, 1);
}

async fn callers_that_leave_a_full_queue_leave_nothing(cx: Context) {
    const CALLERS: usize = 10_000;
    let queue = cx.queue().await;
    push_many(&queue, 3).await;
    queue.set_limit(running(1)).await.unwrap();
    let held = by_hand_from(&queue).await;
    let callers = if cx.calls_arrive_together() {
        CALLERS
    } else {
        100
    };
    let wait = |queue: &Arc<dyn Queue>| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.claim(&by_hand().wait(MINUTE * 10)).await })
    };
    let there = queue.clone();
    let stays = tokio::spawn(async move {
        loop {
            // It may ask while too many others ask for the first time.
            match there.claim(&by_hand().wait(MINUTE * 10)).await {
                Err(error) if error.kind() == ErrorKind::Capacity => {}
                claimed => return claimed,
            }
        }
    });
    tokio::pin!(stays);
    not_yet("the queue is full", &mut stays).await;
    // Some are refused because too many ask for the first time.
    let leave: Vec<_> = (0..callers).map(|_| wait(&queue)).collect();
    not_yet("the queue is full", &mut stays).await;
    leave.iter().for_each(tokio::task::JoinHandle::abort);
    drop(held);
    let claimed = soon("the place", async {
        while !stays.is_finished() {
            cx.pass(Duration::from_millis(20)).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stays.await
    });
    let claimed = claimed.await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
    eventually("only this one has a place", async || {
        places(&queue).await == 1
    })
    .await;
}
