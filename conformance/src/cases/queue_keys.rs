//! Queues: keys of jobs, and what is done to a queue as a whole.

use std::collections::BTreeSet;
use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::queue::{Claim, How, MAX_DELAY, Priority, Unique};

use super::queue::{by_hand_from, job, none, one};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "queue":
    Q11 unique_key_keeps_one_job_of_many_pushes;
    Q11 unique_key_may_replace_or_keep;
    Q11 thousands_may_change_a_job_at_once;
    Q12 idempotency_key_makes_a_push_repeatable;
    Q17 paused_queue_gives_nothing_until_it_is_resumed;
    Q17 queue_paused_for_a_time_goes_on_by_itself;
    Q17 latest_pause_counts;
    Q17 purge_leaves_what_runs;
    Q17 statistics_tell_what_there_is;
}

async fn unique_key_keeps_one_job_of_many_pushes(cx: Context) {
    let queues = [cx.queue().await, cx.queue().await];
    let pushes = (0..200).map(|nth| {
        let queue = queues[nth % 2].clone();
        tokio::spawn(async move { queue.push(job(nth).unique("daily", Unique::Skip)).await })
    });
    let mut ids = BTreeSet::new();
    let mut new = 0;
    for push in pushes.collect::<Vec<_>>() {
        let pushed = push.await.unwrap().unwrap();
        ids.insert(pushed.id);
        new += usize::from(pushed.how == How::New);
    }
    assert_eq!((ids.len(), new), (1, 1));
    assert_eq!(cx.jobs().await.waiting, 1);
    let delivery = one(&queues[0]).await;
    let meanwhile = queues[1].push(job(0).unique("daily", Unique::Skip)).await;
    assert_eq!(meanwhile.unwrap().how, How::Existing, "also while it runs");
    delivery.ack().await.unwrap();
    let next = queues[1].push(job(0).unique("daily", Unique::Skip)).await;
    assert_eq!(next.unwrap().how, How::New);
}

async fn unique_key_may_replace_or_keep(cx: Context) {
    let queue = cx.queue().await;
    let first = queue.push(job(1).delay(MINUTE).unique("key", Unique::Skip));
    let first = first.await.unwrap();
    let kept = queue
        .push(job(2).priority(Priority::Low).unique("key", Unique::Keep))
        .await
        .unwrap();
    assert_eq!((kept.id, kept.how), (first.id, How::Changed));
    none(&queue).await;
    let replaced = queue
        .push(
            job(3)
                .priority(Priority::High)
                .unique("key", Unique::Replace),
        )
        .await
        .unwrap();
    assert_eq!((replaced.id, replaced.how), (first.id, How::Changed));
    let delivery = one(&queue).await;
    assert_eq!(
        (delivery.payload(), delivery.priority()),
        ("3", Priority::High)
    );
    let running = queue.push(job(4).unique("key", Unique::Replace)).await;
    assert_eq!(
        running.unwrap().how,
        How::Running,
        "what runs is not changed"
    );
    let other = queue.push(job(5).unique("other", Unique::Replace)).await;
    assert_eq!(other.unwrap().how, How::New);
}

async fn thousands_may_change_a_job_at_once(cx: Context) {
    let queues = [cx.queue().await, cx.queue().await];
    let rules = [Unique::Replace, Unique::Keep, Unique::Replace];
    let pushes = (0..3000).map(|nth| {
        let queue = queues[nth % 2].clone();
        let job = job(nth).unique("key", rules[nth % 3]);
        tokio::spawn(async move { queue.push(job).await })
    });
    let mut ids = BTreeSet::new();
    let mut new = 0;
    for push in pushes.collect::<Vec<_>>() {
        let pushed = push.await.unwrap().unwrap();
        ids.insert(pushed.id);
        new += usize::from(pushed.how == How::New);
    }
    assert_eq!((ids.len(), new), (1, 1));
    let same = (0..300).map(|nth| job(nth).unique("together", rules[nth % 3]));
    let pushed = queues[0].push_all(same.collect()).await.unwrap();
    let changed = pushed.iter().filter(|it| it.how == How::Changed).count();
    assert_eq!((pushed[0].how, changed), (How::New, 299));
    assert_eq!(cx.jobs().await.waiting, 2);
}

async fn idempotency_key_makes_a_push_repeatable(cx: Context) {
    let queues = [cx.queue().await, cx.queue().await];
    let pushes = (0..20).map(|nth| {
        let queue = queues[nth % 2].clone();
        tokio::spawn(async move { queue.push(job(1).idempotency_key("order 7")).await })
    });
    let mut ids = BTreeSet::new();
    for push in pushes.collect::<Vec<_>>() {
        ids.insert(push.await.unwrap().unwrap().id);
    }
    assert_eq!(ids.len(), 1);
    one(&queues[0]).await.ack().await.unwrap();
    let again = queues[1].push(job(1).idempotency_key("order 7")).await;
    let again = again.unwrap();
    assert_eq!(
        (again.id, again.how),
        (*ids.first().unwrap(), How::Existing)
    );
    none(&queues[0]).await;
    let both = job(1).idempotency_key("a").unique("b", Unique::Skip);
    let refused = queues[0].push(both).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

async fn paused_queue_gives_nothing_until_it_is_resumed(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.pause().await.unwrap();
    here.push(job(1)).await.unwrap();
    none(&there).await;
    assert!(there.statistics().await.unwrap().paused);
    let waiting = tokio::spawn(async move { there.claim(&Claim::new(1).wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("the queue is paused", &mut waiting).await;
    here.resume().await.unwrap();
    let claimed = soon("the job", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
}

async fn queue_paused_for_a_time_goes_on_by_itself(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.pause_for(MINUTE * 2).await.unwrap();
    here.push(job(1)).await.unwrap();
    cx.elapse(MINUTE).await;
    none(&there).await;
    let told = there.statistics().await.unwrap();
    assert!(told.paused);
    let left = told.resumes_in.unwrap();
    assert!(MINUTE / 2 < left && left <= MINUTE, "{left:?}");
    cx.elapse(MINUTE * 3).await;
    let told = there.statistics().await.unwrap();
    assert_eq!((told.paused, told.resumes_in), (false, None));
    one(&there).await.ack().await.unwrap();
    // Who waits for a job meanwhile gets it when the time has passed, and nobody has to say so.
    here.pause_for(MINUTE / 40).await.unwrap();
    here.push(job(2)).await.unwrap();
    let waiting = tokio::spawn(async move { there.claim(&Claim::new(1).wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("the queue is paused", &mut waiting).await;
    let claimed = soon("the job", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
    for time in [Duration::ZERO, Duration::from_nanos(1), MAX_DELAY * 2] {
        let refused = here.pause_for(time).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("allowed"), "{refused}");
    }
}

async fn latest_pause_counts(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    queue.pause_for(MINUTE).await.unwrap();
    queue.pause().await.unwrap();
    cx.elapse(MINUTE * 2).await;
    none(&queue).await;
    let told = queue.statistics().await.unwrap();
    assert_eq!((told.paused, told.resumes_in), (true, None));
    queue.pause_for(MINUTE).await.unwrap();
    none(&queue).await;
    queue.resume().await.unwrap();
    one(&queue).await.ack().await.unwrap();
}

async fn purge_leaves_what_runs(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..1500).map(job).collect()).await.unwrap();
    let delivery = one(&queue).await;
    queue.push(job(1).delay(MINUTE)).await.unwrap();
    assert_eq!(queue.purge().await.unwrap(), 1500);
    assert_eq!(queue.purge().await.unwrap(), 0);
    delivery.ack().await.unwrap();
}

async fn statistics_tell_what_there_is(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..5).map(job).collect()).await.unwrap();
    queue.push(job(5).delay(MINUTE * 3)).await.unwrap();
    queue
        .push(job(6).priority(Priority::High).max_attempts(1))
        .await
        .unwrap();
    one(&queue).await.reject("no").await.unwrap();
    let _running = by_hand_from(&queue).await;
    cx.elapse(MINUTE / 2).await;
    let told = queue.statistics().await.unwrap();
    let counts = [told.ready, told.running, told.delayed, told.dead].map(|it| (it.count, it.more));
    assert_eq!(counts, [(4, false), (1, false), (1, false), (1, false)]);
    assert!(!told.paused);
    let oldest = told.oldest.unwrap();
    assert!(oldest >= MINUTE / 2 && oldest < MINUTE * 2, "{oldest:?}");
}
