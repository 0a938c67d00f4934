//! Queues while things break.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use lockapi::queue::{Claim, Delivery, Job, Settled, Ticket, Unique};
use lockapi::{ErrorKind, Queue};

use super::Role;
use super::queue::acked;
use crate::child::Parent;
use crate::context::{Context, MINUTE};
use crate::fixture::{Answer, Fault, Point};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "queue":
    Q15 lost_notifications_cost_only_time;
    Q15 push_whose_caller_left_wakes_claims [Futures];
    Q15 push_whose_answer_was_lost_wakes_claims @ Relay [Relay];
    Q19 completion_and_takeover_have_one_outcome;
    Q21 crash_loses_no_push_that_was_answered @ Own [Processes];
    Q02 killed_workers_lose_no_job [Processes];
    Q10 effects_happen_once_although_workers_are_killed [Processes, Transactions, Sql];
    Q05 stopped_worker_cannot_finish_what_another_owns [Processes];
    X03 jobs_pushed_here_are_claimed_there [Processes];
    V06 queue_under_hostile_settings @ HostileRole [Schema];
    V06 queue_under_hostile_settings_behind_a_proxy @ HostileProxy [Proxy];
    V05 queue_needs_no_more_rights_than_are_noted @ PoorRole [Schema];
    V09 full_pool_of_the_program_does_not_matter_to_a_queue [Pool];
    V10 unreachable_server_is_told_and_comes_back @ Own;
}

pub(super) const ROLES: &[(&str, Role)] = &[
    ("work", |cx, arguments, parent| {
        Box::pin(work(cx, arguments, parent))
    }),
    ("transfer", |cx, arguments, parent| {
        Box::pin(transfer(cx, arguments, parent))
    }),
];

/// Notes each job in a table, in the transaction that completes it.
async fn transfer(cx: Context, _: Vec<String>, parent: Parent) {
    let queue = cx.queue().await;
    let claim = Claim::new(3).lease(MINUTE).wait(MINUTE).extended_by_hand();
    parent.say("ready");
    loop {
        for delivery in queue.claim(&claim).await.unwrap() {
            let delivery = Arc::new(delivery);
            let namespace = cx.namespace();
            let note = format!("SELECT note_effect('{namespace}', {})", delivery.payload());
            let mut tx = cx.begin().await.unwrap();
            // A process of a test leaks a little.
            tx.query(Box::leak(note.into_boxed_str())).await;
            match tx.ack_in(&delivery).await {
                Ok(()) => tx.commit().await,
                Err(_) => tx.rollback().await,
            }
        }
    }
}

/// Claims one job after the other, says which, and completes each when it is told to.
async fn work(cx: Context, _: Vec<String>, mut parent: Parent) {
    let queue = cx.queue().await;
    let claim = Claim::new(1).lease(MINUTE).wait(MINUTE).extended_by_hand();
    parent.say("ready");
    loop {
        for delivery in queue.claim(&claim).await.unwrap() {
            parent.say(delivery.payload());
            parent.line().await;
            match delivery.ack().await {
                Ok(()) => parent.say("done"),
                Err(error) => parent.say(format!("{:?}", error.kind())),
            }
        }
    }
}

fn job(number: usize) -> Job {
    Job::new("count", &number).unwrap()
}

async fn lost_notifications_cost_only_time(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    assert!(here.claim(&Claim::new(1)).await.unwrap().is_empty());
    for number in 0..3 {
        cx.sever().await;
        // A session that has just been ended may be noticed by the push only.
        eventually("a push gets through", async || {
            there.push(job(number)).await.is_ok()
        })
        .await;
        let look = Claim::new(10).wait(Duration::from_millis(200));
        eventually("it is found", async || {
            let claimed = here.claim(&look).await.unwrap_or_default();
            let found = !claimed.is_empty();
            for delivery in claimed {
                drop(delivery.ack().await);
            }
            cx.pass(Duration::from_millis(50)).await;
            found
        })
        .await;
    }
}

async fn completion_and_takeover_have_one_outcome(cx: Context) {
    const ROUNDS: usize = 20;
    const JOBS: usize = 200;
    let (here, there) = (cx.queue().await, cx.queue().await);
    let claim = |most| Claim::new(most).lease(MINUTE).extended_by_hand();
    for round in 0..ROUNDS {
        here.push_all((0..JOBS).map(job).collect()).await.unwrap();
        let first = here.claim(&claim(JOBS)).await.unwrap();
        assert_eq!(first.len(), JOBS);
        cx.elapse(MINUTE).await;
        // In parts, some of which travel with a claim of their own.
        let completions = first.chunks(JOBS / 4).enumerate().map(|(nth, part)| {
            let (here, part) = (here.clone(), tickets(part));
            let own = (nth % 2 == round % 2).then(|| claim(JOBS / 4));
            tokio::spawn(async move {
                let answer = here.exchange(part.clone(), own.as_ref()).await.unwrap();
                (part, answer)
            })
        });
        let completions: Vec<_> = completions.collect();
        let takeovers = (0..4).map(|_| {
            let there = there.clone();
            tokio::spawn(async move { there.claim(&claim(JOBS / 4)).await.unwrap() })
        });
        let mut outcomes = BTreeMap::<i64, usize>::new();
        let mut taken = Vec::new();
        for takeover in takeovers.collect::<Vec<_>>() {
            taken.extend(takeover.await.unwrap());
        }
        for completion in completions {
            let (part, answer) = completion.await.unwrap();
            let done = part.iter().zip(acked(&answer)).filter(|(_, acked)| *acked);
            for (ticket, _) in done {
                *outcomes.entry(ticket.id).or_default() += 1;
            }
            taken.extend(answer.deliveries);
        }
        // Rows that a completion had locked, which came too late to count.
        taken.extend(there.claim(&claim(JOBS)).await.unwrap());
        for ticket in tickets(&taken) {
            *outcomes.entry(ticket.id).or_default() += 1;
        }
        assert_eq!(
            outcomes.len(),
            JOBS,
            "round {round}: neither done nor delivered"
        );
        assert!(
            outcomes.values().all(|it| *it == 1),
            "round {round}: {outcomes:?}"
        );
        let answer = there.exchange(tickets(&taken), None).await.unwrap();
        assert!(acked(&answer).iter().all(|acked| *acked), "round {round}");
    }
    assert_eq!(cx.jobs().await, crate::fixture::Jobs::default());
}

fn tickets(deliveries: &[Delivery]) -> Vec<Ticket> {
    deliveries.iter().map(Delivery::ticket).collect()
}

async fn crash_loses_no_push_that_was_answered(cx: Context) {
    let queue = cx.queue().await;
    let stop = Arc::new(AtomicBool::new(false));
    let pushing = tokio::spawn({
        let (queue, stop) = (queue.clone(), Arc::clone(&stop));
        async move {
            let mut answered = BTreeSet::new();
            // One that finds the connection gone before it is sent gets through after the crash.
            while !stop.load(Ordering::Acquire) {
                match queue.push(job(answered.len())).await {
                    Ok(pushed) => answered.insert(pushed.id),
                    Err(_) => break,
                };
            }
            answered
        }
    });
    eventually("some are pushed", async || cx.jobs().await.waiting > 200).await;
    cx.crash().await;
    stop.store(true, Ordering::Release);
    let answered = soon("the push ends", pushing).await.unwrap();
    assert!(answered.len() > 100);
    let found = Mutex::new(BTreeSet::new());
    eventually("all are claimed", async || {
        for delivery in queue.claim(&Claim::new(1000)).await.unwrap_or_default() {
            found.lock().unwrap().insert(delivery.id());
            delivery.ack().await.unwrap();
        }
        answered.is_subset(&found.lock().unwrap())
    })
    .await;
    let found = found.into_inner().unwrap();
    assert!(found.len() <= answered.len() + 1, "one may be unknown");
}

async fn killed_workers_lose_no_job(cx: Context) {
    let queue = cx.queue().await;
    let mut worker = cx.child("work", &[]);
    assert_eq!(worker.line().await, "ready");
    queue.push(job(1)).await.unwrap();
    assert_eq!(worker.line().await, "1");
    worker.kill();
    assert!(
        queue.claim(&Claim::new(1)).await.unwrap().is_empty(),
        "not before its lease ends"
    );
    cx.elapse(MINUTE).await;
    let delivery = queue.claim(&Claim::new(1)).await.unwrap().remove(0);
    assert_eq!(delivery.attempt(), 2);
    delivery.ack().await.unwrap();
}

async fn effects_happen_once_although_workers_are_killed(cx: Context) {
    const JOBS: usize = 150;
    // Several cases may be at it at the same time.
    cx.sql(
        "SELECT pg_advisory_lock(hashtext('effect'));
         CREATE TABLE IF NOT EXISTS effect (namespace text NOT NULL, job int8 NOT NULL);
         CREATE OR REPLACE FUNCTION note_effect(text, int8) RETURNS text LANGUAGE sql
             AS 'INSERT INTO public.effect VALUES ($1, $2) RETURNING job::text';
         SELECT pg_advisory_unlock(hashtext('effect'))",
    )
    .await;
    let queue = cx.queue().await;
    queue.push_all((0..JOBS).map(job).collect()).await.unwrap();
    for round in 0..4 {
        let mut worker = cx.child("transfer", &[]);
        assert_eq!(worker.line().await, "ready");
        let before = cx.jobs().await;
        eventually("it has done some", async || {
            let now = cx.jobs().await;
            now.waiting + now.delivered + 10 < before.waiting + before.delivered
        })
        .await;
        worker.kill();
        assert!(
            cx.jobs().await.waiting > 0,
            "round {round} is killed at work"
        );
        cx.elapse(MINUTE).await;
    }
    let _worker = cx.child("transfer", &[]);
    let nothing = crate::fixture::Jobs::default();
    eventually("all is done", async || cx.jobs().await == nothing).await;
    let effects = format!(
        "SELECT concat_ws(' ', count(*), count(DISTINCT job), min(job), max(job)) FROM effect WHERE namespace = '{}'",
        cx.namespace()
    );
    assert_eq!(
        cx.sql(&effects).await,
        [format!("{JOBS} {JOBS} 0 {}", JOBS - 1)]
    );
}

async fn stopped_worker_cannot_finish_what_another_owns(cx: Context) {
    let queue = cx.queue().await;
    let mut worker = cx.child("work", &[]);
    assert_eq!(worker.line().await, "ready");
    queue.push(job(1)).await.unwrap();
    assert_eq!(worker.line().await, "1");
    worker.pause();
    cx.elapse(MINUTE).await;
    let delivery = queue.claim(&Claim::new(1)).await.unwrap().remove(0);
    worker.resume();
    worker.tell("finish");
    assert_eq!(worker.line().await, format!("{:?}", ErrorKind::Lost));
    let kept = queue.settle(delivery.ticket(), lockapi::queue::Outcome::Extend(MINUTE));
    assert_eq!(kept.await.unwrap(), Settled::Done);
    delivery.ack().await.unwrap();
}

async fn jobs_pushed_here_are_claimed_there(cx: Context) {
    let queue = cx.queue().await;
    let mut worker = cx.child("work", &[]);
    assert_eq!(worker.line().await, "ready");
    for number in 0..3 {
        queue.push(job(number)).await.unwrap();
        assert_eq!(worker.line().await, number.to_string());
        worker.tell("finish");
        assert_eq!(worker.line().await, "done");
    }
    assert_eq!(cx.jobs().await, crate::fixture::Jobs::default());
}

async fn unreachable_server_is_told_and_comes_back(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    cx.set_reachable(false).await;
    let failed = soon("the push ends", queue.push(job(2))).await.unwrap_err();
    assert!(
        matches!(
            failed.kind(),
            ErrorKind::Unavailable | ErrorKind::Indeterminate
        ),
        "{failed:?}"
    );
    let failed = soon("the claim ends", queue.claim(&Claim::new(1))).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    cx.set_reachable(true).await;
    eventually("it is claimed", async || {
        let claimed = queue.claim(&Claim::new(10)).await.unwrap_or_default();
        claimed.iter().any(|delivery| delivery.payload() == "1")
    })
    .await;
}

/// All that programs do to a queue, by two backends.
async fn exercise(here: &Arc<dyn Queue>, there: &Arc<dyn Queue>) {
    let keyed = job(5).unique("key", Unique::Replace);
    here.push_all((0..5).map(job).chain([keyed]).collect())
        .await
        .unwrap();
    here.push(job(6).idempotency_key("key")).await.unwrap();
    let mut claimed = there.claim(&Claim::new(6)).await.unwrap();
    assert_eq!(claimed.len(), 6);
    claimed.remove(0).ack().await.unwrap();
    assert!(!claimed.remove(0).nack("no", Duration::ZERO).await.unwrap());
    claimed.remove(0).reject("never").await.unwrap();
    claimed.remove(0).extend(MINUTE).await.unwrap();
    drop(claimed);
    here.pause().await.unwrap();
    assert!(there.statistics().await.unwrap().paused);
    here.resume().await.unwrap();
    assert_eq!(there.dead_letters(0, 10).await.unwrap().len(), 1);
    assert_eq!(there.redrive(Vec::new()).await.unwrap(), 1);
    let moment = Duration::from_millis(200);
    eventually("the rest comes back", async || {
        for delivery in here.claim(&Claim::new(10).wait(moment)).await.unwrap() {
            delivery.ack().await.unwrap();
        }
        let told = here.statistics().await.unwrap();
        (told.ready.count, told.running.count) == (0, 0)
    })
    .await;
}

async fn queue_under_hostile_settings(cx: Context) {
    exercise(&cx.queue().await, &cx.queue().await).await;
}

async fn queue_under_hostile_settings_behind_a_proxy(cx: Context) {
    exercise(&cx.queue().await, &cx.queue().await).await;
}

async fn queue_needs_no_more_rights_than_are_noted(cx: Context) {
    exercise(&cx.queue().await, &cx.queue().await).await;
}

async fn full_pool_of_the_program_does_not_matter_to_a_queue(cx: Context) {
    let (backend, _full) = cx.connect_beside_full_pool().await.expect("a pool");
    let queue = backend.queue("work").unwrap();
    exercise(&queue, &cx.queue().await).await;
}

/// Claims until there is nothing, and answers what [`Queue::arrival`] waits for more than.
async fn empty(queue: &Arc<dyn Queue>) -> u64 {
    loop {
        let claimed = queue.exchange(Vec::new(), Some(&Claim::new(100))).await;
        let claimed = claimed.unwrap();
        for delivery in claimed.deliveries {
            delivery.ack().await.unwrap();
        }
        if !claimed.more {
            return claimed.seen;
        }
    }
}

async fn push_whose_caller_left_wakes_claims(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    // Behind a transaction-pooling proxy nobody listens, and there are no mutexes.
    let listens = cx.backend().await.mutex("session").is_ok();
    let mut left = 0;
    for turns in (0..2000).cycle().take(20_000) {
        let seen = (empty(&here).await, empty(&there).await);
        let turns = async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        };
        let pushing = Box::pin(here.push(job(1)));
        let pushed = match select(pushing, Box::pin(turns)).await {
            Either::Left((pushed, _)) => Some(pushed.unwrap()),
            Either::Right(_) => None,
        };
        if pushed.is_some() {
            continue;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        if cx.jobs().await.waiting == 0 {
            // It was not sent.
            continue;
        }
        let (here, there) = (
            here.arrival(seen.0, MINUTE * 10),
            there.arrival(seen.1, MINUTE * 10),
        );
        soon("claims of this process are woken", here).await;
        if listens {
            soon("and those of another", there).await;
        }
        left += 1;
        if left == 3 {
            return;
        }
    }
    panic!("no push was sent whose caller had left: {left}");
}

async fn push_whose_answer_was_lost_wakes_claims(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let _listening = (empty(&here).await, empty(&there).await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let seen = (empty(&here).await, empty(&there).await);
    let fault = Fault {
        statement: "INTO lockapi.job (",
        point: Point::After,
        answer: Answer::Nothing,
    };
    cx.break_next(fault, 1).await;
    let unknown = here.push(job(1)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Indeterminate, "{unknown}");
    assert_eq!(cx.mend().await, 0);
    soon(
        "claims of this process are woken",
        here.arrival(seen.0, MINUTE * 10),
    )
    .await;
    soon("and those of another", there.arrival(seen.1, MINUTE * 10)).await;
    assert_eq!(cx.jobs().await.waiting, 1);
}
