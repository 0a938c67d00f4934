//! Queues: what is pushed is delivered and acknowledged.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockapi::queue::{Claim, Delivery, Exchange, How, Job, Priority, QueueOptions};
use lockapi::{BackendOptions, ErrorKind, Queue};

use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "queue":
    Q01 what_is_pushed_is_claimed_and_acknowledged_once;
    Q01 empty_queue_gives_nothing;
    Q01 claim_waits_for_a_push_of_this_process;
    Q01 claim_waits_for_a_push_of_another_process;
    Q01 queues_and_namespaces_never_meet;
    Q02 many_workers_lose_and_invent_nothing;
    Q03 claim_takes_as_many_as_it_asks_for;
    Q04 higher_priorities_go_first_and_older_ones_within;
    Q04 delayed_jobs_wait_for_their_time;
    Q04 points_in_time_are_those_of_the_server;
    Q13 batch_of_completions_has_an_answer_for_each;
    Q13 late_completion_is_not_claimed_again;
    Q20 low_priorities_are_not_starved;
    Q20 low_priorities_are_taken_as_well [Transactions];
    W01 waiting_claim_looks_for_what_comes_back;
    W11 claim_by_names_leaves_the_others;
    Q14 claims_are_bounded_by_their_bytes;
    Q01 archive_keeps_what_was_completed;
    Q08 dead_letters_tell_of_every_attempt;
}

pub(super) fn job(number: usize) -> Job {
    Job::new("count", &number).unwrap()
}

pub(super) async fn one(queue: &Arc<dyn Queue>) -> Delivery {
    let mut claimed = queue.claim(&Claim::new(1)).await.unwrap();
    assert_eq!(claimed.len(), 1, "a job is there");
    claimed.remove(0)
}

pub(super) async fn none(queue: &Arc<dyn Queue>) {
    assert!(queue.claim(&Claim::new(10)).await.unwrap().is_empty());
}

pub(super) fn lost<T: std::fmt::Debug>(outcome: lockapi::Result<T>) {
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

/// What became of completions, none of which was held up.
pub(super) fn acked(answer: &Exchange) -> Vec<bool> {
    let acked = answer.acked.iter().map(|acked| *acked.as_ref().unwrap());
    acked.collect()
}

pub(super) fn by_hand() -> Claim {
    Claim::new(1).lease(MINUTE).extended_by_hand()
}

pub(super) async fn by_hand_from(queue: &Arc<dyn Queue>) -> Delivery {
    let mut claimed = queue.claim(&by_hand()).await.unwrap();
    assert_eq!(claimed.len(), 1, "a job is there");
    claimed.remove(0)
}

async fn what_is_pushed_is_claimed_and_acknowledged_once(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let pushed = here.push(job(7)).await.unwrap();
    assert_eq!(pushed.how, How::New);
    let delivery = one(&there).await;
    assert_eq!(delivery.id(), pushed.id);
    assert_eq!((delivery.name(), delivery.payload()), ("count", "7"));
    assert_eq!(delivery.decode::<u32>().unwrap(), 7);
    assert_eq!(
        delivery.decode::<String>().unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!((delivery.attempt(), delivery.max_attempts()), (1, 20));
    assert!(delivery.ticket().token > 0 && !delivery.is_lost());
    none(&here).await;
    let ticket = delivery.ticket();
    delivery.ack().await.unwrap();
    assert_eq!(cx.jobs().await, Jobs::default());
    let again = here.exchange(vec![ticket], None).await.unwrap();
    assert_eq!(acked(&again), [false], "acknowledged twice");
}

async fn empty_queue_gives_nothing(cx: Context) {
    let queue = cx.queue().await;
    none(&queue).await;
    let waited = Claim::new(1).wait(Duration::from_millis(5));
    let waiting = tokio::spawn(async move { queue.claim(&waited).await });
    eventually("the wait ends", async || {
        // The clocks of some subjects stand still until they are moved.
        cx.pass(Duration::from_millis(1)).await;
        waiting.is_finished()
    })
    .await;
}

async fn claim_waits_for_a_push_of_this_process(cx: Context) {
    let queue = cx.queue().await;
    let waiting = queue.clone();
    let waiting = tokio::spawn(async move { waiting.claim(&Claim::new(1).wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("there is no job", &mut waiting).await;
    queue.push(job(1)).await.unwrap();
    let claimed = soon("the job", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
}

async fn claim_waits_for_a_push_of_another_process(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let waiting = tokio::spawn(async move { here.claim(&Claim::new(1).wait(MINUTE)).await });
    tokio::pin!(waiting);
    not_yet("there is no job", &mut waiting).await;
    there.push(job(1)).await.unwrap();
    let claimed = soon("the job", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
}

async fn queues_and_namespaces_never_meet(cx: Context) {
    let backend = cx.backend().await;
    let (mails, bills) = (
        backend.queue("mails").unwrap(),
        backend.queue("bills").unwrap(),
    );
    let elsewhere = cx.elsewhere().await.backend().await.queue("mails").unwrap();
    mails.push(job(1)).await.unwrap();
    none(&bills).await;
    none(&elsewhere).await;
    let delivery = one(&mails).await;
    assert!(bills.cancel(vec![delivery.id()]).await.unwrap().is_empty());
    assert!(
        elsewhere
            .cancel(vec![delivery.id()])
            .await
            .unwrap()
            .is_empty()
    );
    delivery.ack().await.unwrap();
}

async fn many_workers_lose_and_invent_nothing(cx: Context) {
    const JOBS: usize = 10_000;
    let queues = [cx.queue().await, cx.queue().await];
    let pushed: Vec<_> = (0..JOBS).map(job).collect();
    queues[0].push_all(pushed).await.unwrap();
    let workers = (0..32).map(|nth| {
        let queue = queues[nth % 2].clone();
        tokio::spawn(async move {
            let mut done = Vec::new();
            loop {
                let claimed = queue.claim(&Claim::new(1 + nth)).await.unwrap();
                if claimed.is_empty() {
                    return done;
                }
                for delivery in claimed {
                    done.push(delivery.decode::<usize>().unwrap());
                    delivery.ack().await.unwrap();
                }
            }
        })
    });
    let mut done = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        done.extend(worker.await.unwrap());
    }
    done.sort_unstable();
    assert_eq!(done, (0..JOBS).collect::<Vec<_>>());
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn claim_takes_as_many_as_it_asks_for(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..10).map(job).collect()).await.unwrap();
    let first = queue.claim(&Claim::new(3)).await.unwrap();
    assert_eq!(first.len(), 3);
    assert_eq!(cx.jobs().await.delivered, 3);
    let rest = queue.claim(&Claim::new(1000)).await.unwrap();
    assert_eq!(rest.len(), 7);
    let numbers: Vec<usize> = first
        .iter()
        .chain(&rest)
        .map(|it| it.decode().unwrap())
        .collect();
    assert_eq!(
        numbers,
        (0..10).collect::<Vec<_>>(),
        "in the order of their time"
    );
    for most in [0, 1001] {
        let refused = queue.claim(&Claim::new(most)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
}

async fn higher_priorities_go_first_and_older_ones_within(cx: Context) {
    let queue = cx.queue().await;
    let order = [
        Priority::Low,
        Priority::Normal,
        Priority::Urgent,
        Priority::High,
        Priority::Normal,
        Priority::Urgent,
    ];
    for (number, priority) in order.into_iter().enumerate() {
        queue.push(job(number).priority(priority)).await.unwrap();
    }
    let claimed = queue.claim(&Claim::new(6)).await.unwrap();
    let numbers: Vec<usize> = claimed.iter().map(|it| it.decode().unwrap()).collect();
    assert_eq!(numbers, [2, 5, 3, 1, 4, 0]);
    assert_eq!(claimed[0].priority(), Priority::Urgent);
}

async fn delayed_jobs_wait_for_their_time(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).delay(MINUTE * 2)).await.unwrap();
    queue.push(job(2).delay(MINUTE)).await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE).await;
    let delivery = one(&queue).await;
    assert_eq!(delivery.payload(), "2");
    delivery.ack().await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE).await;
    assert_eq!(one(&queue).await.payload(), "1");
    let far = queue.push(job(3).delay(Duration::MAX)).await;
    assert_eq!(far.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn points_in_time_are_those_of_the_server(cx: Context) {
    let queue = cx.queue().await;
    let now = SystemTime::now();
    queue.push(job(1).at(now + MINUTE * 60)).await.unwrap();
    queue.push(job(2).at(now - MINUTE * 60)).await.unwrap();
    queue.push(job(3).at(SystemTime::UNIX_EPOCH)).await.unwrap();
    let claimed = queue.claim(&Claim::new(10)).await.unwrap();
    let numbers: Vec<usize> = claimed.iter().map(|it| it.decode().unwrap()).collect();
    assert_eq!(
        numbers,
        [2, 3],
        "what is past is due at once, in the order of the pushes"
    );
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    cx.elapse(MINUTE * 61).await;
    assert_eq!(one(&queue).await.payload(), "1");
    let year = Duration::from_hours(365 * 24);
    let far = queue.push(job(4).at(now + year * 9000)).await;
    assert_eq!(far.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn batch_of_completions_has_an_answer_for_each(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..4).map(job).collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(3)).await.unwrap();
    let tickets: Vec<_> = claimed.iter().map(Delivery::ticket).collect();
    let mut stale = tickets[2];
    stale.token -= 1;
    // Of two completions of a job that of the latest delivery counts, also behind a stale one.
    let acks = vec![tickets[0], stale, tickets[1], tickets[0]];
    let answer = queue.exchange(acks, Some(&Claim::new(1))).await.unwrap();
    assert_eq!(acked(&answer), [true, false, true, false]);
    assert_eq!(answer.deliveries.len(), 1, "claimed in the same round trip");
    assert_eq!(cx.jobs().await.delivered, 2);
    let answer = queue.exchange(vec![stale, tickets[2]], None).await.unwrap();
    assert_eq!(acked(&answer), [false, true]);
}

async fn late_completion_is_not_claimed_again(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push_all((0..3).map(job).collect()).await.unwrap();
    let late = by_hand_from(&here).await;
    cx.elapse(MINUTE).await;
    let acks = vec![late.ticket()];
    let answer = there.exchange(acks, Some(&Claim::new(3))).await.unwrap();
    assert_eq!(acked(&answer), [true]);
    let ids: Vec<_> = answer.deliveries.iter().map(Delivery::id).collect();
    assert!(ids.len() == 2 && !ids.contains(&late.id()), "{ids:?}");
}

async fn low_priorities_are_not_starved(cx: Context) {
    let queue = cx.queue().await;
    let urgent = (0..200).map(|nth| job(nth).priority(Priority::Urgent));
    queue.push_all(urgent.collect()).await.unwrap();
    let low = queue.push(job(1).priority(Priority::Low)).await.unwrap().id;
    let mut claims = 0;
    loop {
        claims += 1;
        let delivery = one(&queue).await;
        let id = delivery.id();
        delivery.ack().await.unwrap();
        if id == low {
            break;
        }
    }
    assert!((2..=20).contains(&claims), "claim {claims} was the low one");
}

async fn archive_keeps_what_was_completed(cx: Context) {
    let options = QueueOptions::default().archive(MINUTE);
    let backend = cx.backend().await;
    let queue = backend.open_queue("work".to_owned(), options).unwrap();
    queue.push_all((0..2).map(job).collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(2)).await.unwrap();
    let tickets = claimed.iter().map(Delivery::ticket).collect();
    let answer = queue.exchange(tickets, Some(&Claim::new(1))).await.unwrap();
    assert_eq!(acked(&answer), [true, true]);
    queue.push(job(3)).await.unwrap();
    one(&queue).await.ack().await.unwrap();
    let jobs = cx.jobs().await;
    assert_eq!((jobs.waiting, jobs.delivered, jobs.ended), (0, 0, 3));
}

async fn low_priorities_are_taken_as_well(cx: Context) {
    let queue = cx.queue().await;
    let urgent = (0..600).map(|nth| job(nth).priority(Priority::Urgent));
    queue.push_all(urgent.collect()).await.unwrap();
    let low = queue.push(job(1).priority(Priority::Low)).await.unwrap().id;
    for _ in 0..600 {
        let mut tx = cx.begin().await.unwrap();
        let taken = tx.take_in(&queue, 1).await.unwrap();
        tx.commit().await;
        if taken[0].id() == low {
            return;
        }
    }
    panic!("all urgent ones were taken before the low one");
}

/// Nobody tells of the end of a lease in another process.
async fn waiting_claim_looks_for_what_comes_back(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push_all((0..2).map(job).collect()).await.unwrap();
    let (left, dropped) = (by_hand_from(&here).await, by_hand_from(&here).await);
    let claim = Claim::new(1).wait(MINUTE * 60);
    let waiting = there.claim(&claim);
    tokio::pin!(waiting);
    not_yet("both have a lease", &mut waiting).await;
    dropped.nack("again", Duration::ZERO).await.unwrap();
    let claimed = soon("what was given back elsewhere", waiting).await;
    claimed.unwrap().remove(0).ack().await.unwrap();
    let waiting = there.claim(&claim);
    tokio::pin!(waiting);
    not_yet("one has a lease", &mut waiting).await;
    cx.elapse(MINUTE).await;
    let claimed = soon("its lease has ended", waiting).await.unwrap();
    assert_eq!(claimed[0].id(), left.id());
}

async fn claim_by_names_leaves_the_others(cx: Context) {
    let queue = cx.queue().await;
    let named = |name: &str, nth: usize| Job::new(name, &nth).unwrap();
    let jobs = (0..30).map(|nth| named(["a", "b", "c"][nth % 3], nth));
    queue.push_all(jobs.collect()).await.unwrap();
    let claim = Claim::new(7).names(["c", "a", "c"]);
    let mut claimed = Vec::new();
    loop {
        let part = queue.claim(&claim).await.unwrap();
        if part.is_empty() {
            break;
        }
        claimed.extend(part);
    }
    assert_eq!(claimed.len(), 20);
    assert!(claimed.iter().all(|it| ["a", "c"].contains(&it.name())));
    // Who takes all finds those that were passed over.
    let rest = queue.claim(&Claim::new(100)).await.unwrap();
    assert_eq!(rest.len(), 10);
    assert!(rest.iter().all(|delivery| delivery.name() == "b"));
    let many = Claim::new(1).names((0..1001).map(|nth| nth.to_string()));
    let refused = queue.claim(&many).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

async fn claims_are_bounded_by_their_bytes(cx: Context) {
    // Megabytes take a busy machine longer than the usual time limit.
    let options = BackendOptions::default().timeout(MINUTE);
    let backend = cx.connect(options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    let large = "x".repeat(1 << 20);
    let jobs = (0..20).map(|nth| Job::new("large", &(nth, &large[..1_000_000])).unwrap());
    queue.push_all(jobs.collect()).await.unwrap();
    let mut parts = Vec::new();
    while parts.iter().sum::<usize>() < 20 {
        let part = queue.claim(&Claim::new(20)).await.unwrap();
        assert!(!part.is_empty());
        parts.push(part.len());
        for delivery in part {
            delivery.ack().await.unwrap();
        }
    }
    assert_eq!(parts, [9, 9, 2], "8 MiB, and what begins within");
}

async fn dead_letters_tell_of_every_attempt(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).max_attempts(14)).await.unwrap();
    let claim = Claim::new(1).lease(MINUTE).extended_by_hand().worker("ada");
    let mut silent = None;
    for attempt in 1..=13 {
        let delivery = queue.claim(&claim).await.unwrap().remove(0);
        if attempt == 13 {
            cx.elapse(MINUTE * 2).await;
            silent = Some(delivery);
        } else {
            let error = format!("{attempt} {}", "x".repeat(2000));
            delivery.nack(error, Duration::ZERO).await.unwrap();
        }
    }
    let last = queue.claim(&claim).await.unwrap().remove(0);
    last.reject("the end").await.unwrap();
    lost(silent.unwrap().ack().await);
    let letter = queue.dead_letters(0, 10).await.unwrap().remove(0);
    assert_eq!((&*letter.error, letter.attempts), ("the end", 14));
    let told: Vec<_> = letter.history.iter().map(|it| it.attempt).collect();
    assert_eq!(told, (5..=14).collect::<Vec<_>>(), "the last ten");
    assert!(letter.history.iter().all(|it| it.worker == "ada"));
    assert_eq!(letter.history[0].error.len(), 1000);
    assert!(letter.history[8].error.contains("lease ended"));
    assert_eq!(letter.history[9].error, "the end");
    assert!(letter.history.is_sorted_by_key(|it| it.at));
}
