//! Jobs that expire before they are delivered.

use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::queue::{Claim, How, Unique};

use super::queue::{by_hand_from, job, none, one};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;

register! { "queue":
    Q08 jobs_that_are_not_begun_in_time_are_dead_letters;
    Q08 expired_jobs_that_no_worker_claims_are_swept;
}

async fn jobs_that_are_not_begun_in_time_are_dead_letters(cx: Context) {
    let queue = cx.queue().await;
    let short = |nth| job(nth).ttl(MINUTE);
    queue.push(short(1)).await.unwrap();
    queue.push(short(2).delay(MINUTE * 10)).await.unwrap();
    let begun = by_hand_from(&queue).await;
    queue.push(short(3)).await.unwrap();
    begun.extend(MINUTE * 5).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    none(&queue).await;
    begun.ack().await.unwrap();
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!((dead.len(), &*dead[0].payload), (1, "3"));
    assert_eq!((dead[0].attempts, dead[0].history.len()), (0, 1));
    // Put back it is delivered whenever that is.
    queue.redrive(Vec::new()).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    let again = one(&queue).await;
    assert_eq!(again.payload(), "3");
    again.ack().await.unwrap();
    cx.elapse(MINUTE * 6).await;
    let later = one(&queue).await;
    assert_eq!(later.payload(), "2", "its time began when it was due");
    later.ack().await.unwrap();
    // One that was never begun does not keep another of its key out.
    let keyed = |nth| short(nth).unique("key", Unique::Skip);
    let first = queue.push(keyed(5)).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    let second = queue.push(keyed(6)).await.unwrap();
    // The sweep of expired jobs may have been there before it.
    let dead = queue.dead_letters(0, 10).await.unwrap();
    if let Some(swept) = dead.iter().find(|job| job.id == first.id) {
        assert_eq!((&*swept.payload, second.how), ("5", How::New));
    } else {
        assert_eq!((second.id, second.how), (first.id, How::Changed));
    }
    let begun = one(&queue).await;
    assert_eq!(begun.payload(), "6");
    begun.nack("later", MINUTE * 5).await.unwrap();
    cx.elapse(MINUTE * 6).await;
    let again = one(&queue).await;
    assert_eq!(again.payload(), "6", "it was begun in time");
    again.ack().await.unwrap();
    // So was one that its handler has postponed, whose delivery does not count.
    queue.push(short(7)).await.unwrap();
    one(&queue).await.snooze(MINUTE * 5).await.unwrap();
    cx.elapse(MINUTE * 6).await;
    let again = one(&queue).await;
    assert_eq!((again.payload(), again.attempt()), ("7", 1));
    again.ack().await.unwrap();
    // And one that was given back, in a queue with others that want its key.
    let keyed = |nth| short(nth).unique("begun", Unique::Skip);
    let begun = queue.push(keyed(8)).await.unwrap();
    let claim = Claim::new(1).lease(MINUTE * 5).extended_by_hand();
    let delivery = queue.claim(&claim).await.unwrap().remove(0);
    cx.elapse(MINUTE * 2).await;
    delivery.release().await.unwrap();
    let other = queue.push(keyed(9)).await.unwrap();
    assert_eq!((other.id, other.how), (begun.id, How::Existing));
    let again = one(&queue).await;
    assert_eq!((again.payload(), again.attempt()), ("8", 1));
    again.ack().await.unwrap();
    let long = job(4).ttl(Duration::from_hours(24 * 366 * 11));
    let refused = queue.push(long).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

async fn expired_jobs_that_no_worker_claims_are_swept(cx: Context) {
    let (backend, elsewhere) = (cx.backend().await, cx.elsewhere().await);
    let (queue, paused) = (
        backend.queue("work").unwrap(),
        backend.queue("paused").unwrap(),
    );
    let short = |nth| job(nth).ttl(MINUTE);
    queue.push(short(0)).await.unwrap();
    let begun = by_hand_from(&queue).await;
    begun.nack("later", Duration::ZERO).await.unwrap();
    let keyed = |nth| short(nth).unique("key", Unique::Skip);
    let jobs = vec![short(1), job(2).ttl(MINUTE * 10), job(3)];
    queue.push_all(jobs).await.unwrap();
    queue.push(keyed(4)).await.unwrap();
    paused.pause().await.unwrap();
    paused.push(short(5)).await.unwrap();
    elsewhere.queue().await.push(short(6)).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    elsewhere.elapse(MINUTE * 2).await;
    // What is taken in transactions has not expired.
    if let Some(mut tx) = cx.begin().await {
        let taken = tx.take_in(&queue, 10).await.unwrap();
        let mut taken: Vec<_> = taken.iter().map(|it| it.payload().to_owned()).collect();
        taken.sort_unstable();
        assert_eq!(taken, ["0", "2", "3"]);
        tx.rollback().await;
    }
    let counts = async |cx: &Context| {
        let Jobs { waiting, ended, .. } = cx.jobs().await;
        (waiting, ended)
    };
    assert_eq!(counts(&cx).await, (6, 0));
    cx.expire_jobs().await;
    assert_eq!(counts(&cx).await, (3, 3));
    assert_eq!(counts(&elsewhere).await, (1, 0), "another namespace");
    let dead = queue.dead_letters(0, 10).await.unwrap();
    let told: Vec<_> = dead
        .iter()
        .map(|it| (&*it.payload, it.attempts, it.history.len(), &*it.error))
        .collect();
    let late = "it was not delivered in time";
    assert_eq!(told, [("1", 0, 1, late), ("4", 0, 1, late)]);
    assert_eq!(paused.dead_letters(0, 10).await.unwrap().len(), 1);
    cx.expire_jobs().await;
    assert_eq!(counts(&cx).await, (3, 3), "again");
    let pushed = queue.push(keyed(7)).await.unwrap();
    assert_eq!(pushed.how, How::New, "the key is free");
    let claimed = queue.claim(&Claim::new(10)).await.unwrap();
    let mut claimed: Vec<_> = claimed.iter().map(|it| it.payload().to_owned()).collect();
    claimed.sort_unstable();
    assert_eq!(claimed, ["0", "2", "3", "7"]);
}
