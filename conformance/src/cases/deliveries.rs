//! Deliveries: leases that end, attempts that fail, and what is given back.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt;
use lockapi::queue::{Claim, Delivery, Unique};
use lockapi::{ErrorKind, Queue, Result};

use super::queue::{by_hand, by_hand_from, job, lost, none, one};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, poll_then_drop, soon};

register! { "queue":
    Q05 job_is_delivered_again_when_its_lease_has_ended;
    Q05 lease_is_extended_for_as_long_as_the_delivery_lives;
    Q05 delivery_is_lost_here_before_it_can_be_given_away;
    Q06 stale_delivery_changes_nothing;
    Q07 worker_of_the_same_name_cannot_touch_old_deliveries;
    Q08 failed_job_comes_back_after_its_time_and_ends_as_a_dead_letter;
    Q08 rejected_job_is_a_dead_letter_at_once;
    Q08 dead_letters_are_put_back_or_discarded;
    Q08 all_dead_letters_are_put_back_but_twins;
    Q08 dead_letter_that_fails_again_is_put_back_once;
    Q08 last_attempt_that_ends_without_an_answer_is_a_dead_letter;
    Q09 snoozed_and_released_deliveries_do_not_count;
    Q17 cancelled_job_is_lost_to_its_worker;
    V08 dropped_claims_leave_nothing_claimed [Futures];
    V08 answers_that_are_dropped_are_sent;
    Q14 answer_with_a_time_that_is_too_long_gives_the_job_back;
    V11 dropped_delivery_gives_its_job_back;
}

async fn job_is_delivered_again_when_its_lease_has_ended(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push(job(1)).await.unwrap();
    let first = by_hand_from(&here).await;
    none(&there).await;
    cx.elapse(MINUTE).await;
    let second = one(&there).await;
    assert_eq!((second.id(), second.attempt()), (first.id(), 2));
    assert!(second.ticket().token > first.ticket().token);
    lost(first.extend(MINUTE).await);
    assert!(first.is_lost());
    lost(first.ack().await);
    second.ack().await.unwrap();
}

async fn lease_is_extended_for_as_long_as_the_delivery_lives(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push(job(1)).await.unwrap();
    let claim = Claim::new(1).lease(Duration::from_secs(3));
    let delivery = here.claim(&claim).await.unwrap().remove(0);
    for _ in 0..4 {
        cx.pass(Duration::from_millis(1100)).await;
        eventually("it is extended", async || {
            let left = cx.lease_of_jobs().await.unwrap();
            left > Duration::from_secs(2)
        })
        .await;
        none(&there).await;
    }
    assert!(!delivery.is_lost());
    delivery.ack().await.unwrap();
}

async fn delivery_is_lost_here_before_it_can_be_given_away(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let mut lease = Duration::from_millis(400);
    // What comes later than it lasts is not delivered.
    let delivery = loop {
        let claim = Claim::new(1).lease(lease).extended_by_hand();
        match queue.claim(&claim.wait(lease * 2)).await.unwrap().pop() {
            Some(delivery) => break delivery,
            None => lease *= 2,
        }
    };
    cx.pass(lease.saturating_sub(Duration::from_millis(5)))
        .await;
    soon("it is lost", delivery.lost()).await;
    assert!(delivery.is_lost());
}

async fn stale_delivery_changes_nothing(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    for round in 0..5 {
        let stale = by_hand_from(&queue).await;
        cx.elapse(MINUTE).await;
        let fresh = by_hand_from(&queue).await;
        let before = cx.jobs().await;
        match round {
            0 => lost(stale.ack().await),
            1 => lost(stale.nack("late", Duration::ZERO).await),
            2 => lost(stale.snooze(MINUTE).await),
            3 => lost(stale.release().await),
            _ => lost(stale.reject("late").await),
        }
        assert_eq!(cx.jobs().await, before);
        fresh.release().await.unwrap();
    }
    one(&queue).await.ack().await.unwrap();
}

async fn worker_of_the_same_name_cannot_touch_old_deliveries(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let claim = by_hand().worker("mailer");
    let old = queue.claim(&claim).await.unwrap().remove(0);
    cx.elapse(MINUTE).await;
    let new = cx.queue().await.claim(&claim).await.unwrap().remove(0);
    lost(old.ack().await);
    new.ack().await.unwrap();
}

async fn failed_job_comes_back_after_its_time_and_ends_as_a_dead_letter(cx: Context) {
    let queue = cx.queue().await;
    let pushed = queue.push(job(1).max_attempts(2)).await.unwrap();
    let first = one(&queue).await;
    assert!(!first.nack("no mail server", MINUTE).await.unwrap());
    none(&queue).await;
    cx.elapse(MINUTE).await;
    let second = one(&queue).await;
    assert_eq!(second.attempt(), 2);
    let error = format!("still none\0{}", "x".repeat(10_000));
    assert!(second.nack(error, MINUTE).await.unwrap(), "a dead letter");
    cx.elapse(MINUTE).await;
    none(&queue).await;
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    let letter = &dead[0];
    assert_eq!((letter.id, letter.attempts), (pushed.id, 2));
    assert_eq!(
        (letter.name.as_str(), letter.payload.as_str()),
        ("count", "1")
    );
    assert!(letter.error.starts_with("still none") && letter.error.len() <= 8192);
    assert!(!letter.worker.is_empty() && letter.failed_at >= letter.created_at);
}

async fn rejected_job_is_a_dead_letter_at_once(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    one(&queue)
        .await
        .reject("nobody knows this kind")
        .await
        .unwrap();
    none(&queue).await;
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!(dead[0].error, "nobody knows this kind");
}

async fn all_dead_letters_are_put_back_but_twins(cx: Context) {
    const PLAIN: usize = 1100;
    let queue = cx.queue().await;
    for nth in 0..2 {
        let twin = job(nth).unique("twin", Unique::Skip);
        queue.push(twin).await.unwrap();
        one(&queue).await.reject("no").await.unwrap();
    }
    for part in [PLAIN / 2; 2] {
        let jobs = (0..part).map(job).collect();
        queue.push_all(jobs).await.unwrap();
        assert_eq!(rejected(&*queue, part).await, part);
    }
    let redriven = queue.redrive(Vec::new()).await.unwrap();
    assert_eq!(redriven, u64::try_from(PLAIN).unwrap() + 1);
    assert_eq!(queue.dead_letters(0, 10).await.unwrap().len(), 1);
}

/// Rejects so many jobs, if there are as many; answers how many it were.
async fn rejected(queue: &dyn Queue, most: usize) -> usize {
    let claim = Claim::new(most).extended_by_hand();
    let deliveries = queue.claim(&claim).await.unwrap();
    let many = deliveries.len();
    let rejected = deliveries.into_iter().map(|delivery| delivery.reject("no"));
    for rejected in futures_util::future::join_all(rejected).await {
        rejected.unwrap();
    }
    many
}

/// A part puts back 1,000; those of the first are dead letters again when the next ones are read.
async fn dead_letter_that_fails_again_is_put_back_once(cx: Context) {
    const LETTERS: usize = 4500;
    let (queue, there) = (cx.queue().await, cx.queue().await);
    for part in [LETTERS / 10; 10] {
        let jobs = (0..part).map(job).collect();
        queue.push_all(jobs).await.unwrap();
        assert_eq!(rejected(&*queue, part).await, part);
    }
    let again = tokio::spawn(async move {
        loop {
            rejected(&*there, 500).await;
        }
    });
    let redriven = queue.redrive(Vec::new()).await.unwrap();
    assert_eq!(redriven, u64::try_from(LETTERS).unwrap());
    again.abort();
}

async fn dead_letters_are_put_back_or_discarded(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..5).map(|nth| job(nth).max_attempts(1)).collect();
    let pushed = queue.push_all(jobs).await.unwrap();
    for delivery in queue.claim(&Claim::new(5)).await.unwrap() {
        assert!(delivery.nack("no", Duration::ZERO).await.unwrap());
    }
    let ids: Vec<i64> = pushed.iter().map(|it| it.id).collect();
    assert_eq!(queue.dead_letters(0, 2).await.unwrap().len(), 2);
    assert_eq!(queue.dead_letters(ids[2], 10).await.unwrap().len(), 2);
    assert_eq!(queue.redrive(vec![ids[1], ids[1], 0]).await.unwrap(), 1);
    let back = one(&queue).await;
    assert_eq!((back.id(), back.attempt()), (ids[1], 1));
    back.ack().await.unwrap();
    assert_eq!(queue.discard(vec![ids[0]]).await.unwrap(), 1);
    assert_eq!(queue.redrive(Vec::new()).await.unwrap(), 3);
    assert_eq!(queue.discard(Vec::new()).await.unwrap(), 0);
    assert_eq!(queue.claim(&Claim::new(5)).await.unwrap().len(), 3);
    let refused = queue.dead_letters(0, 1001).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

async fn last_attempt_that_ends_without_an_answer_is_a_dead_letter(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).max_attempts(1)).await.unwrap();
    let hung = by_hand_from(&queue).await;
    cx.elapse(MINUTE).await;
    none(&queue).await;
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert!(dead[0].error.contains("lease"), "{}", dead[0].error);
    lost(hung.ack().await);
}

async fn snoozed_and_released_deliveries_do_not_count(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).max_attempts(1)).await.unwrap();
    one(&queue).await.snooze(MINUTE).await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE).await;
    let again = one(&queue).await;
    assert_eq!(again.attempt(), 1);
    again.release().await.unwrap();
    let again = one(&queue).await;
    assert_eq!(again.attempt(), 1);
    again.ack().await.unwrap();
}

async fn cancelled_job_is_lost_to_its_worker(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let running = here.push(job(1)).await.unwrap().id;
    let delivery = by_hand_from(&here).await;
    let waiting = here.push(job(2).delay(MINUTE)).await.unwrap().id;
    let cancelled = there.cancel(vec![waiting, running, 0]).await.unwrap();
    assert_eq!(
        BTreeSet::from_iter(cancelled),
        BTreeSet::from([running, waiting])
    );
    lost(delivery.extend(MINUTE).await);
    soon("it is lost", delivery.lost()).await;
    lost(delivery.ack().await);
    cx.elapse(MINUTE).await;
    none(&here).await;
    assert_eq!(here.dead_letters(0, 10).await.unwrap().len(), 0);
}

async fn dropped_claims_leave_nothing_claimed(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..3).map(job).collect()).await.unwrap();
    for polls in 0..4 {
        let claim = Claim::new(2).wait(MINUTE);
        let ended = poll_then_drop(queue.claim(&claim), polls).await;
        for delivery in ended.into_iter().flat_map(|claimed| claimed.unwrap()) {
            delivery.release().await.unwrap();
        }
        // What was asked for may still be on its way, and what is given back after it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        eventually("nothing is claimed", async || {
            cx.jobs().await.delivered == 0
        })
        .await;
    }
    let mut attempts = BTreeMap::new();
    for delivery in queue.claim(&Claim::new(3)).await.unwrap() {
        attempts.insert(delivery.id(), delivery.attempt());
    }
    assert_eq!(attempts.len(), 3);
    assert!(
        attempts.values().all(|attempt| *attempt == 1),
        "{attempts:?}"
    );
}

/// The answers to a delivery.
pub(super) const ANSWERS: [&str; 5] = ["ack", "nack", "reject", "snooze", "release"];

/// Answers it, which begins at once.
pub(super) fn answering(
    delivery: Delivery,
    how: &str,
) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
    match how {
        "ack" => Box::pin(delivery.ack()),
        "nack" => Box::pin(delivery.nack("no", MINUTE).map_ok(drop)),
        "reject" => Box::pin(delivery.reject("no")),
        "snooze" => Box::pin(delivery.snooze(MINUTE)),
        _ => Box::pin(delivery.release()),
    }
}

/// Waits until a delivery, the first of the only job, has been answered so, and ends the job.
pub(super) async fn was_answered(cx: &Context, queue: &Arc<dyn Queue>, how: &str) {
    let (waiting, ended) = match how {
        "ack" => (0, 0),
        "reject" => (0, 1),
        _ => (1, 0),
    };
    let jobs = Jobs {
        waiting,
        delivered: 0,
        ended,
    };
    let what = format!("it was answered: {how}");
    eventually(&what, async || cx.jobs().await == jobs).await;
    if how == "reject" {
        let dead = queue.dead_letters(0, 10).await.unwrap();
        assert_eq!(dead[0].error, "no");
        assert_eq!(queue.discard(Vec::new()).await.unwrap(), 1);
    }
    if how == "nack" || how == "snooze" {
        none(queue).await;
        cx.elapse(MINUTE).await;
    }
    if waiting > 0 {
        let again = one(queue).await;
        assert_eq!(again.attempt(), if how == "nack" { 2 } else { 1 }, "{how}");
        again.ack().await.unwrap();
    }
}

async fn answers_that_are_dropped_are_sent(cx: Context) {
    let queue = cx.queue().await;
    for polls in 0..4 {
        for how in ANSWERS {
            queue.push(job(1)).await.unwrap();
            let claim = Claim::new(1).lease(MINUTE * 600);
            let delivery = queue.claim(&claim).await.unwrap().remove(0);
            drop(poll_then_drop(answering(delivery, how), polls).await);
            was_answered(&cx, &queue, how).await;
        }
    }
}

async fn answer_with_a_time_that_is_too_long_gives_the_job_back(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    for attempt in 1..=2 {
        let claim = Claim::new(1).lease(MINUTE * 600).wait(MINUTE);
        let delivery = queue.claim(&claim).await.unwrap().remove(0);
        assert_eq!(delivery.attempt(), attempt, "it counts");
        let refused = if attempt == 1 {
            delivery.nack("no", Duration::MAX).await.map(drop)
        } else {
            delivery.snooze(Duration::MAX).await
        };
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        eventually("it is back", async || cx.jobs().await.waiting == 1).await;
    }
}

async fn dropped_delivery_gives_its_job_back(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).max_attempts(2)).await.unwrap();
    drop(one(&queue).await);
    eventually("it is back", async || cx.jobs().await.waiting == 1).await;
    let again = one(&queue).await;
    assert_eq!(again.attempt(), 2, "it counts");
    // Off every runtime.
    std::thread::spawn(move || drop(again)).join().unwrap();
    eventually("it is a dead letter", async || {
        cx.jobs().await
            == Jobs {
                ended: 1,
                ..Jobs::default()
            }
    })
    .await;
    let dead = queue.dead_letters(0, 1).await.unwrap();
    assert!(dead[0].error.contains("dropped"), "{}", dead[0].error);
}
