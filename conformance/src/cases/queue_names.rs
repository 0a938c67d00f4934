//! Queues: names of jobs that are paused.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, Groups, How, Job, MAX_DELAY, Pause, QueueOptions, Unique};
use lockapi::worker::Worker;
use lockapi::{ErrorKind, Queue};

use super::queue::{by_hand, none};
use super::worker::run;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "queue_names":
    Q32 paused_name_waits_while_others_go_on;
    Q32 paused_name_needs_no_more_rights_than_are_noted @ PoorRole [Schema];
    Q32 paused_name_under_hostile_settings @ HostileRole [Schema];
    Q32 paused_name_behind_a_proxy @ HostileProxy [Proxy];
    Q32 name_paused_for_a_time_goes_on_by_itself;
    Q32 latest_pause_of_a_name_counts;
    Q32 pause_of_a_name_costs_no_attempt;
    Q32 names_are_paused_in_one_queue_only;
    Q32 claims_of_some_names_leave_out_those_that_are_paused;
    Q32 worker_goes_on_with_other_names;
    Q32 many_of_a_paused_name_are_found_at_once_when_it_is_resumed;
    Q32 no_claim_after_a_pause_gets_a_job_of_that_name;
    Q32 paused_name_keeps_its_place_in_a_group;
    Q32 paused_name_keeps_its_unique_key;
    Q32 take_in_leaves_out_names_that_are_paused [Transactions];
    Q32 names_to_pause_have_limits;
}

fn of(name: &str, number: usize) -> Job {
    Job::new(name, &number).unwrap()
}

fn numbers(claimed: &[Delivery]) -> Vec<usize> {
    claimed.iter().map(|it| it.decode().unwrap()).collect()
}

async fn all(queue: &Arc<dyn Queue>) -> Vec<Delivery> {
    queue.claim(&by_hand_many()).await.unwrap()
}

/// Claims jobs and completes them; answers their numbers.
async fn done(queue: &Arc<dyn Queue>, claim: &Claim) -> Vec<usize> {
    let claimed = queue.claim(claim).await.unwrap();
    let done = numbers(&claimed);
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    done
}

fn by_hand_many() -> Claim {
    Claim::new(100).lease(MINUTE * 9).extended_by_hand()
}

async fn paused_name_waits_while_others_go_on(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push_all(vec![of("mail", 1), of("mail", 2), of("report", 3)])
        .await
        .unwrap();
    let mut running = here.claim(&by_hand()).await.unwrap();
    there.pause_name("mail", Pause::UntilResumed).await.unwrap();
    here.push_all(vec![of("mail", 4), of("report", 5)])
        .await
        .unwrap();
    let claimed = all(&here).await;
    assert_eq!(numbers(&claimed), [3, 5]);
    none(&there).await;
    running.remove(0).ack().await.unwrap();
    let waiting = {
        let queue = there.clone();
        tokio::spawn(async move { queue.claim(&by_hand_many().wait(MINUTE)).await })
    };
    tokio::pin!(waiting);
    not_yet("the name is paused", &mut waiting).await;
    here.resume_name("mail").await.unwrap();
    let claimed = soon("the jobs", waiting).await.unwrap().unwrap();
    assert_eq!(numbers(&claimed), [2, 4]);
    assert!(claimed.iter().all(|it| it.attempt() == 1));
}

async fn paused_name_needs_no_more_rights_than_are_noted(cx: Context) {
    paused_name_waits_while_others_go_on(cx).await;
}

async fn paused_name_under_hostile_settings(cx: Context) {
    paused_name_waits_while_others_go_on(cx).await;
}

async fn paused_name_behind_a_proxy(cx: Context) {
    paused_name_waits_while_others_go_on(cx).await;
}

async fn name_paused_for_a_time_goes_on_by_itself(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.pause_name("mail", Pause::For(MINUTE * 2))
        .await
        .unwrap();
    here.push(of("mail", 1)).await.unwrap();
    cx.elapse(MINUTE).await;
    none(&there).await;
    cx.elapse(MINUTE * 2).await;
    assert_eq!(done(&there, &by_hand_many()).await, [1]);
    // Whoever waits gets the job when the time has passed, and nobody has to say so.
    here.pause_name("mail", Pause::For(MINUTE / 40))
        .await
        .unwrap();
    here.push(of("mail", 2)).await.unwrap();
    let waiting = tokio::spawn(async move { there.claim(&by_hand().wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("the name is paused", &mut waiting).await;
    let claimed = soon("the job", waiting).await.unwrap().unwrap();
    assert_eq!(numbers(&claimed), [2]);
}

async fn latest_pause_of_a_name_counts(cx: Context) {
    let queue = cx.queue().await;
    queue.push(of("mail", 1)).await.unwrap();
    queue.resume_name("mail").await.unwrap();
    queue.pause_name("mail", Pause::For(MINUTE)).await.unwrap();
    queue.pause_name("mail", Pause::UntilResumed).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    none(&queue).await;
    queue.pause_name("mail", Pause::For(MINUTE)).await.unwrap();
    none(&queue).await;
    // A pause of the queue is another one.
    queue.pause().await.unwrap();
    queue.resume().await.unwrap();
    none(&queue).await;
    queue.resume_name("mail").await.unwrap();
    assert_eq!(done(&queue, &by_hand_many()).await, [1]);
}

async fn pause_of_a_name_costs_no_attempt(cx: Context) {
    let queue = cx.queue().await;
    queue.push(of("mail", 1).max_attempts(2)).await.unwrap();
    queue.push(of("mail", 2).max_attempts(1)).await.unwrap();
    let mut claimed = all(&queue).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    queue.pause_name("mail", Pause::UntilResumed).await.unwrap();
    // One fails, and the worker of the other dies.
    claimed
        .remove(0)
        .nack("again", Duration::ZERO)
        .await
        .unwrap();
    std::mem::forget(claimed);
    cx.elapse(MINUTE * 10).await;
    none(&queue).await;
    let dead = queue.dead_letters(0, 9).await.unwrap();
    assert!(dead.is_empty(), "it stays as it is: {dead:?}");
    queue.resume_name("mail").await.unwrap();
    let claimed = all(&queue).await;
    assert_eq!(numbers(&claimed), [1]);
    assert_eq!(claimed[0].attempt(), 2);
    assert_eq!(queue.dead_letters(0, 9).await.unwrap().len(), 1);
}

async fn names_are_paused_in_one_queue_only(cx: Context) {
    let backend = cx.backend().await;
    let other = backend.queue("other").unwrap();
    let queue = cx.queue().await;
    let elsewhere = cx.elsewhere().await.queue().await;
    queue.pause_name("mail", Pause::UntilResumed).await.unwrap();
    for (nth, one) in [&other, &elsewhere, &queue].into_iter().enumerate() {
        one.push(of("mail", nth)).await.unwrap();
    }
    assert_eq!(done(&other, &by_hand_many()).await, [0]);
    assert_eq!(done(&elsewhere, &by_hand_many()).await, [1]);
    none(&queue).await;
    // Names are compared as they are written.
    queue
        .push_all(vec![of("Mail", 3), of("mail ", 4)])
        .await
        .unwrap();
    assert_eq!(done(&queue, &by_hand_many()).await, [3, 4]);
}

async fn claims_of_some_names_leave_out_those_that_are_paused(cx: Context) {
    let queue = cx.queue().await;
    for (nth, name) in ["mail", "report", "import"].into_iter().enumerate() {
        queue.push(of(name, nth)).await.unwrap();
        queue.push(of(name, nth + 10)).await.unwrap();
    }
    for name in ["mail", "import"] {
        queue.pause_name(name, Pause::UntilResumed).await.unwrap();
    }
    let some = by_hand_many().names(["mail", "report"]);
    assert_eq!(done(&queue, &some).await, [1, 11]);
    let only = by_hand_many().names(["mail"]);
    assert!(queue.claim(&only).await.unwrap().is_empty());
    queue.resume_name("mail").await.unwrap();
    assert_eq!(done(&queue, &some).await, [0, 10]);
    none(&queue).await;
}

async fn worker_goes_on_with_other_names(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    queue.pause_name("mail", Pause::UntilResumed).await.unwrap();
    let jobs = (0..20).map(|nth| of(["mail", "report"][nth % 2], nth));
    queue.push_all(jobs.collect()).await.unwrap();
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = |name: &'static str| {
        let done = Arc::clone(&done);
        move |_: usize, _| {
            let done = Arc::clone(&done);
            async move {
                done.lock().unwrap().push(name);
                Ok(())
            }
        }
    };
    let worker = Worker::new(queue.clone())
        .handle("mail", handler("mail"))
        .handle("report", handler("report"));
    let worker = run(worker);
    let count = |name| {
        let done = done.lock().unwrap();
        done.iter().filter(|it| **it == name).count()
    };
    eventually("the others are done", async || count("report") == 10).await;
    assert_eq!(count("mail"), 0);
    queue.resume_name("mail").await.unwrap();
    eventually("all are done", async || count("mail") == 10).await;
    worker.end().await;
}

async fn many_of_a_paused_name_are_found_at_once_when_it_is_resumed(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    for part in 0..3 {
        let jobs = (0..2000).map(|nth| of("mail", part * 2000 + nth));
        here.push_all(jobs.collect()).await.unwrap();
    }
    here.pause_name("mail", Pause::UntilResumed).await.unwrap();
    for nth in 0..20 {
        here.push(of("report", nth)).await.unwrap();
        let claimed = there.claim(&Claim::new(10)).await.unwrap();
        assert_eq!(numbers(&claimed), [nth]);
        for delivery in claimed {
            delivery.ack().await.unwrap();
        }
    }
    none(&there).await;
    here.resume_name("mail").await.unwrap();
    let claimed = there.claim(&by_hand_many()).await.unwrap();
    assert_eq!(numbers(&claimed), (0..100).collect::<Vec<_>>());
}

async fn no_claim_after_a_pause_gets_a_job_of_that_name(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let mut claimed = 0;
    for round in 0..10 {
        let jobs = (0..100).map(|nth| of("mail", nth));
        here.push_all(jobs.collect()).await.unwrap();
        let claiming = {
            let queue = there.clone();
            tokio::spawn(async move {
                let mut all = Vec::new();
                for _ in 0..5 {
                    all.extend(queue.claim(&Claim::new(3).lease(MINUTE)).await.unwrap());
                }
                all
            })
        };
        cx.pass(Duration::from_millis(round)).await;
        here.pause_name("mail", Pause::UntilResumed).await.unwrap();
        none(&there).await;
        none(&here).await;
        let deliveries = claiming.await.unwrap();
        claimed += deliveries.len();
        for delivery in deliveries {
            delivery.ack().await.unwrap();
        }
        none(&there).await;
        here.resume_name("mail").await.unwrap();
    }
    assert_eq!(cx.jobs().await.waiting, 1000 - claimed);
}

async fn paused_name_keeps_its_place_in_a_group(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    for groups in [Groups::default(), Groups::default().ordered()] {
        here.set_groups(groups).await.unwrap();
        there.pause_name("mail", Pause::UntilResumed).await.unwrap();
        let jobs = [("mail", "a", 1), ("report", "a", 2), ("report", "b", 3)];
        let jobs = jobs.map(|(name, group, nth)| of(name, nth).group(group));
        here.push_all(jobs.to_vec()).await.unwrap();
        let mut claimed = all(&there).await;
        assert_eq!(numbers(&claimed), [3]);
        claimed.remove(0).ack().await.unwrap();
        none(&there).await;
        here.resume_name("mail").await.unwrap();
        for expected in [1, 2] {
            let mut claimed = all(&there).await;
            assert_eq!(numbers(&claimed), [expected]);
            claimed.remove(0).ack().await.unwrap();
        }
        none(&there).await;
    }
}

async fn paused_name_keeps_its_unique_key(cx: Context) {
    let queue = cx.queue().await;
    let keyed = |name, nth| of(name, nth).unique("daily", Unique::Skip);
    let id = queue.push(keyed("mail", 1)).await.unwrap().id;
    queue.pause_name("mail", Pause::UntilResumed).await.unwrap();
    let pushed = queue.push(keyed("report", 2)).await.unwrap();
    assert_eq!((pushed.id, pushed.how), (id, How::Existing));
    none(&queue).await;
    // With another name it is another kind of job.
    let replaced = of("report", 3).unique("daily", Unique::Replace);
    assert_eq!(queue.push(replaced).await.unwrap().id, id);
    assert_eq!(done(&queue, &by_hand_many()).await, [3]);
}

async fn take_in_leaves_out_names_that_are_paused(cx: Context) {
    let queue = cx.queue().await;
    queue
        .push_all(vec![of("mail", 1), of("report", 2)])
        .await
        .unwrap();
    queue.pause_name("mail", Pause::UntilResumed).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    let taken = tx.take_in(&queue, 10).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].decode::<usize>().unwrap(), 2);
    tx.commit().await;
    queue.resume_name("mail").await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(tx.take_in(&queue, 10).await.unwrap().len(), 1);
    tx.commit().await;
}

async fn names_to_pause_have_limits(cx: Context) {
    let queue = cx.queue().await;
    let long = "n".repeat(256);
    for name in ["", "a\0b", &long] {
        for refused in [
            queue.pause_name(name, Pause::UntilResumed).await,
            queue.resume_name(name).await,
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{name:?}");
        }
    }
    for time in [Duration::ZERO, MAX_DELAY * 2] {
        let refused = queue.pause_name("mail", Pause::For(time)).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let longest = "'\"\\{},NULL \u{1F980}".repeat(14);
    queue.push(of(&longest, 1)).await.unwrap();
    queue
        .pause_name(&longest, Pause::For(MAX_DELAY))
        .await
        .unwrap();
    none(&queue).await;
    queue.resume_name("another").await.unwrap();
    none(&queue).await;
    queue.resume_name(&longest).await.unwrap();
    assert_eq!(done(&queue, &by_hand_many()).await, [1]);
}
