//! Rows of jobs that somebody has locked: nobody is held up, nothing is forgotten, and what was wished
//! happens once they are free.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::BackendOptions;
use lockapi::queue::{Claim, Delivery, How, Job, Unique};
use lockapi::schedule::{Overlap, Task};
use lockapi::{Backend, ErrorKind};

use super::deliveries::{ANSWERS, answering, was_answered};
use super::queue::{acked, by_hand_from, job, lost, none, one};
use crate::context::{Context, MINUTE};
use crate::fixture::{Answer, Fault, Jobs, Point, Transaction};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "locked":
    W01 claims_go_on_beside_a_completion_that_is_held_up [Transactions];
    W01 completions_are_answered_one_by_one [Transactions];
    W01 extension_that_is_held_up_keeps_the_delivery [Transactions];
    W01 delivery_dropped_while_it_is_locked_comes_back [Transactions];
    W01 answers_dropped_while_the_job_is_locked_are_sent [Transactions, Schema];
    W01 locked_job_is_cancelled_when_it_is_free [Transactions];
    W01 refused_cancellation_names_some_of_many_locked_jobs [Transactions];
    Q17 many_jobs_are_cancelled_in_parts @ Relay [Relay];
    W01 change_of_a_locked_job_times_out [Transactions];
    W01 change_in_a_transaction_waits_for_another [Transactions];
    W01 jobs_that_are_being_claimed_are_cancelled;
    Q11 push_of_several_is_all_or_none [Transactions];
    Q11 keys_of_one_push_meet_each_other;
    Q11 replacement_has_all_its_attempts;
    S03 redrive_of_a_run_waits_for_its_task [Transactions, Schema];
}

/// A backend that gives up soon.
async fn impatient(cx: &Context) -> Arc<dyn Backend> {
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    cx.connect(options).await.unwrap()
}

async fn claims_go_on_beside_a_completion_that_is_held_up(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..40).map(job).collect()).await.unwrap();
    let claim = Claim::new(10).lease(MINUTE);
    let mut claimed: Vec<_> = queue.claim(&claim).await.unwrap();
    let held = Arc::new(claimed.remove(0));
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&held).await.unwrap();
    let mut tickets = vec![held.ticket()];
    for round in 0..3 {
        tickets.extend(claimed.iter().map(Delivery::ticket));
        let exchange = queue.exchange(tickets.clone(), Some(&claim));
        let answer = soon("an exchange", exchange).await.unwrap();
        let (first, rest) = answer.acked.split_first().unwrap();
        let first = first.as_ref().unwrap_err();
        assert_eq!(first.kind(), ErrorKind::TimedOut, "{first}");
        assert!(
            rest.iter().all(|it| matches!(it, Ok(true))),
            "round {round}"
        );
        assert_eq!(answer.deliveries.len(), 10, "round {round}");
        claimed = answer.deliveries;
        tickets.truncate(1);
    }
    tx.rollback().await;
    let answer = queue.exchange(tickets, Some(&claim)).await.unwrap();
    assert_eq!(acked(&answer), [true]);
}

async fn completions_are_answered_one_by_one(cx: Context) {
    let queue = impatient(&cx).await.queue("work").unwrap();
    queue.push_all((0..10).map(job).collect()).await.unwrap();
    let mut claimed = queue.claim(&Claim::new(10).lease(MINUTE)).await.unwrap();
    let tickets: Vec<_> = claimed.iter().map(Delivery::ticket).collect();
    let held = Arc::new(claimed.remove(0));
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&held).await.unwrap();
    let answer = soon("answers", queue.exchange(tickets.clone(), None)).await;
    let acked = answer.unwrap().acked;
    let kind = acked[0].as_ref().unwrap_err().kind();
    assert_eq!(kind, ErrorKind::TimedOut);
    assert!(
        acked[1..].iter().all(|it| matches!(it, Ok(true))),
        "{acked:?}"
    );
    tx.rollback().await;
    let answer = queue.exchange(tickets[..1].to_vec(), None).await.unwrap();
    assert_eq!(super::queue::acked(&answer), [true]);
}

async fn extension_that_is_held_up_keeps_the_delivery(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let delivery = Arc::new(by_hand_from(&queue).await);
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&delivery).await.unwrap();
    let extended = soon("an answer", delivery.extend(MINUTE)).await;
    assert_eq!(extended.unwrap_err().kind(), ErrorKind::TimedOut);
    let operator = cx.backend().await.operator();
    let cancelling = operator.cancel_job(delivery.queue().name(), delivery.id(), "no");
    let cancelled = soon("an answer", cancelling).await;
    assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::TimedOut);
    tx.rollback().await;
    delivery.extend(Duration::from_secs(2)).await.unwrap();
    assert!(!delivery.is_lost());
    cx.elapse(MINUTE).await;
    soon("its loss is told", delivery.lost()).await;
}

async fn delivery_dropped_while_it_is_locked_comes_back(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let claim = Claim::new(1).lease(MINUTE * 60);
    let delivery = queue.claim(&claim).await.unwrap().remove(0);
    let delivery = Arc::new(delivery);
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&delivery).await.unwrap();
    drop(delivery);
    // What is told in the background is told before this is answered.
    none(&queue).await;
    tx.rollback().await;
    let claim = Claim::new(1).wait(MINUTE);
    let claimed = queue.claim(&claim);
    let claimed = soon("it is there again", claimed).await.unwrap();
    assert_eq!(claimed.len(), 1);
}

/// Locks the jobs of the namespace until the end of the transaction.
async fn lock_jobs(cx: &Context, tx: &mut dyn Transaction) {
    let lock = format!(
        "SELECT count(*)::text FROM (SELECT FROM lockapi.job WHERE namespace = '{}' FOR UPDATE) AS j",
        cx.namespace()
    );
    assert_ne!(tx.query(lock.leak()).await, "0");
}

async fn answers_dropped_while_the_job_is_locked_are_sent(cx: Context) {
    let queue = cx.queue().await;
    for how in ANSWERS {
        queue.push(job(1)).await.unwrap();
        let claim = Claim::new(1).lease(MINUTE * 600);
        let delivery = queue.claim(&claim).await.unwrap().remove(0);
        let mut tx = cx.begin().await.unwrap();
        lock_jobs(&cx, &mut *tx).await;
        not_yet("it is held up", answering(delivery, how)).await;
        tx.rollback().await;
        was_answered(&cx, &queue, how).await;
    }
}

async fn refused_cancellation_names_some_of_many_locked_jobs(cx: Context) {
    const MANY: usize = 2500;
    let queue = impatient(&cx).await.queue("work").unwrap();
    let pushed = queue.push_all((0..MANY).map(job).collect()).await.unwrap();
    let ids: Vec<_> = pushed.iter().map(|pushed| pushed.id).collect();
    let mut tx = cx.begin().await.unwrap();
    let taken = tx.take_in(&queue, 1000).await.unwrap();
    assert_eq!(taken.len(), 1000);
    let refused = soon("an answer", queue.cancel(ids)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    let words = refused.to_string();
    assert!(words.len() < 400, "{} bytes", words.len());
    assert!(words.contains(&taken[0].id().to_string()), "{words}");
    assert!(words.contains("1500 others were cancelled"), "{words}");
    tx.rollback().await;
    assert_eq!(cx.jobs().await.waiting, 1000);
}

/// A later part fails: the error says how many were cancelled before.
async fn many_jobs_are_cancelled_in_parts(cx: Context) {
    const MANY: usize = 3000;
    let queue = cx.queue().await;
    let pushed = queue.push_all((0..MANY).map(job).collect()).await.unwrap();
    let mut ids: Vec<_> = pushed.iter().map(|pushed| pushed.id).collect();
    // Then numbers that nothing has.
    ids.extend((1..1_000_000).map(|nth| i64::MAX - nth));
    let there = queue.clone();
    let cancelling = tokio::spawn(async move { there.cancel(ids).await });
    eventually("the first are cancelled", async || {
        cx.jobs().await.waiting == 0
    })
    .await;
    cx.break_next(
        Fault {
            statement: "'cancelled', coalesce",
            point: Point::After,
            answer: Answer::Report("ERROR", "57014"),
        },
        1,
    )
    .await;
    let refused = soon("an answer", cancelling).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let words = refused.to_string();
    assert!(words.contains("3000 others were cancelled"), "{words}");
    assert_eq!(cx.mend().await, 0);
}

async fn change_of_a_locked_job_times_out(cx: Context) {
    let queue = impatient(&cx).await.queue("work").unwrap();
    for rule in [Unique::Replace, Unique::Keep] {
        let keyed = |nth| job(nth).unique("key", rule);
        queue.push(keyed(1)).await.unwrap();
        let mut tx = cx.begin().await.unwrap();
        tx.push_in(&queue, vec![keyed(2)]).await.unwrap();
        let refused = soon("an answer", queue.push(keyed(3))).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
        assert!(
            refused.to_string().contains("locked by an open"),
            "{refused}"
        );
        tx.rollback().await;
        let delivery = one(&queue).await;
        assert_eq!(delivery.payload(), "1", "it did not happen");
        delivery.ack().await.unwrap();
    }
}

async fn change_in_a_transaction_waits_for_another(cx: Context) {
    let queue = cx.queue().await;
    for (rule, commit) in [
        (Unique::Replace, true),
        (Unique::Replace, false),
        (Unique::Keep, true),
        (Unique::Keep, false),
    ] {
        let keyed = |nth| job(nth).unique("key", rule);
        let first = queue.push(keyed(1)).await.unwrap();
        let mut tx = cx.begin().await.unwrap();
        tx.push_in(&queue, vec![keyed(2)]).await.unwrap();
        let mut other = cx.begin().await.unwrap();
        let (there, job) = (queue.clone(), keyed(3));
        let pushing = tokio::spawn(async move {
            let pushed = other.push_in(&there, vec![job]).await;
            other.commit().await;
            pushed
        });
        tokio::pin!(pushing);
        not_yet("the other has it", &mut pushing).await;
        if commit {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        let pushed = soon("it has its turn", pushing).await.unwrap().unwrap();
        assert_eq!((pushed[0].id, pushed[0].how), (first.id, How::Changed));
        let delivery = one(&queue).await;
        assert_eq!(delivery.payload(), "3");
        delivery.ack().await.unwrap();
    }
}

async fn locked_job_is_cancelled_when_it_is_free(cx: Context) {
    let queue = impatient(&cx).await.queue("work").unwrap();
    for commit in [true, false] {
        queue.push_all((0..3).map(job).collect()).await.unwrap();
        let mut claimed = queue.claim(&Claim::new(3).lease(MINUTE)).await.unwrap();
        let ids: Vec<_> = claimed.iter().map(Delivery::id).collect();
        let held = Arc::new(claimed.remove(0));
        let mut tx = cx.begin().await.unwrap();
        tx.ack_in(&held).await.unwrap();
        let refused = soon("an answer", queue.cancel(ids[..2].to_vec())).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
        assert!(
            refused.to_string().contains(&ids[0].to_string()),
            "{refused}"
        );
        let (ids, queue) = (ids.clone(), queue.clone());
        let cancel = ids.clone();
        let cancelled = tokio::spawn(async move { queue.cancel(cancel).await });
        // It asks again and again.
        tokio::task::yield_now().await;
        if commit {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        let cancelled = soon("an answer", cancelled).await.unwrap().unwrap();
        let left = if commit {
            vec![ids[2]]
        } else {
            vec![ids[0], ids[2]]
        };
        assert_eq!(cancelled, left);
        lost(held.extend(MINUTE).await);
    }
}

async fn jobs_that_are_being_claimed_are_cancelled(cx: Context) {
    const JOBS: usize = 500;
    let (here, there) = (cx.queue().await, cx.queue().await);
    let jobs = (0..JOBS).map(|nth| job(nth).max_attempts(100));
    let pushed = here.push_all(jobs.collect()).await.unwrap();
    let ids: Vec<_> = pushed.iter().map(|pushed| pushed.id).collect();
    let claim = Claim::new(7);
    let claims = (0..64).map(|_| async { drop(there.claim(&claim).await.unwrap()) });
    let parts = ids.chunks(50).map(|part| here.cancel(part.to_vec()));
    let (_, cancelled) = tokio::join!(join_all(claims), join_all(parts));
    let cancelled: Vec<_> = cancelled.into_iter().flat_map(Result::unwrap).collect();
    assert!(cancelled == ids, "{} of {JOBS}", cancelled.len());
    assert_eq!(cx.jobs().await.ended, JOBS);
}

async fn push_of_several_is_all_or_none(cx: Context) {
    let queue = impatient(&cx).await.queue("work").unwrap();
    let jobs = || -> Vec<Job> {
        vec![
            job(0),
            job(1).unique("a", Unique::Skip),
            job(2).unique("held", Unique::Replace),
            job(3).idempotency_key("c"),
        ]
    };
    let mut tx = cx.begin().await.unwrap();
    let held = job(9).unique("held", Unique::Skip);
    tx.push_in(&queue, vec![held]).await.unwrap();
    let refused = soon("an answer", queue.push_all(jobs())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
    tx.rollback().await;
    assert_eq!(cx.jobs().await, Jobs::default(), "none of them");
    let how = |pushed: Vec<lockapi::queue::Pushed>| -> Vec<How> {
        pushed.into_iter().map(|pushed| pushed.how).collect()
    };
    let pushed = queue.push_all(jobs()).await.unwrap();
    assert_eq!(how(pushed), [How::New; 4]);
    let again = queue.push_all(jobs()).await.unwrap();
    let expected = [How::New, How::Existing, How::Changed, How::Existing];
    assert_eq!(how(again), expected);
    assert_eq!(cx.jobs().await.waiting, 5);
}

async fn keys_of_one_push_meet_each_other(cx: Context) {
    let queue = cx.queue().await;
    let same = |nth| job(nth).unique("same", Unique::Keep);
    let pushed = queue
        .push_all(vec![same(1), job(2), same(3)])
        .await
        .unwrap();
    let how: Vec<_> = pushed.iter().map(|pushed| pushed.how).collect();
    assert_eq!(how, [How::New, How::New, How::Changed]);
    assert_eq!(pushed[0].id, pushed[2].id);
    assert_eq!(cx.jobs().await.waiting, 2);
}

async fn replacement_has_all_its_attempts(cx: Context) {
    let queue = cx.queue().await;
    let keyed = |nth| job(nth).max_attempts(2).unique("key", Unique::Replace);
    queue.push(keyed(1)).await.unwrap();
    let first = one(&queue).await;
    let running = queue.push(keyed(2)).await.unwrap();
    assert_eq!((running.id, running.how), (first.id(), How::Running));
    first.nack("the old one failed", MINUTE).await.unwrap();
    assert_eq!(queue.push(keyed(3)).await.unwrap().how, How::Changed);
    for attempt in 1..=2 {
        let delivery = one(&queue).await;
        assert_eq!((delivery.payload(), delivery.attempt()), ("3", attempt));
        delivery.nack("", Duration::ZERO).await.unwrap();
    }
    assert_eq!(queue.dead_letters(0, 10).await.unwrap().len(), 1);
}

async fn redrive_of_a_run_waits_for_its_task(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("nightly").unwrap();
    let schedule = backend.scheduler("nightly").unwrap();
    let task = Task::every("report", Duration::from_hours(24), job(1)).overlap(Overlap::Skip);
    schedule.set(task).await.unwrap();
    schedule.run_now("report").await.unwrap();
    one(&queue).await.reject("no").await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    // As a node that fires it.
    let version = format!(
        "SELECT version::text FROM lockapi.task WHERE namespace = '{}' FOR UPDATE",
        backend.namespace()
    );
    let version: &'static str = version.leak();
    let before = tx.query(version).await;
    let there = queue.clone();
    let redriven = tokio::spawn(async move { there.redrive(Vec::new()).await });
    none(&queue).await;
    tx.rollback().await;
    assert_eq!(soon("an answer", redriven).await.unwrap().unwrap(), 1);
    let mut tx = cx.begin().await.unwrap();
    assert_ne!(
        tx.query(version).await,
        before,
        "who read before fires nothing"
    );
    tx.rollback().await;
    one(&queue).await.ack().await.unwrap();
}
