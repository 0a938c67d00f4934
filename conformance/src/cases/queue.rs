//! Queues: what is pushed is delivered, acknowledged, failed and delivered again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockapi::queue::{Claim, Delivery, How, Job, Priority, Terms, Unique};
use lockapi::{ErrorKind, Queue, QueueExt};

use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, not_yet, poll_then_drop, soon};

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
    Q05 job_is_delivered_again_when_its_lease_has_ended;
    Q05 lease_is_extended_for_as_long_as_the_delivery_lives;
    Q05 delivery_is_lost_here_before_it_can_be_given_away;
    Q06 stale_delivery_changes_nothing;
    Q07 worker_of_the_same_name_cannot_touch_old_deliveries;
    Q08 failed_job_comes_back_after_its_time_and_ends_as_a_dead_letter;
    Q08 rejected_job_is_a_dead_letter_at_once;
    Q08 dead_letters_are_put_back_or_discarded;
    Q08 last_attempt_that_ends_without_an_answer_is_a_dead_letter;
    Q09 snoozed_and_released_deliveries_do_not_count;
    Q11 unique_key_keeps_one_job_of_many_pushes;
    Q11 unique_key_may_replace_or_keep;
    Q12 idempotency_key_makes_a_push_repeatable;
    Q13 batch_of_completions_has_an_answer_for_each;
    Q17 paused_queue_gives_nothing_until_it_is_resumed;
    Q17 cancelled_job_is_lost_to_its_worker;
    Q17 purge_leaves_what_runs;
    Q17 statistics_tell_what_there_is;
    Q20 low_priorities_are_not_starved;
    Q01 archive_keeps_what_was_completed;
    V08 dropped_claims_leave_nothing_claimed [Futures];
    V11 dropped_delivery_gives_its_job_back;
}

fn job(number: usize) -> Job {
    Job::new("count", &number).unwrap()
}

async fn one(queue: &Arc<dyn Queue>) -> Delivery {
    let mut claimed = queue.claim(&Claim::new(1)).await.unwrap();
    assert_eq!(claimed.len(), 1, "a job is there");
    claimed.remove(0)
}

async fn none(queue: &Arc<dyn Queue>) {
    assert!(queue.claim(&Claim::new(10)).await.unwrap().is_empty());
}

fn lost<T: std::fmt::Debug>(outcome: lockapi::Result<T>) {
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
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
    assert_eq!(again.acked, [false], "acknowledged twice");
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
    use lockapi::BackendExt;

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
    const JOBS: usize = 1000;
    let queues = [cx.queue().await, cx.queue().await];
    let pushed: Vec<_> = (0..JOBS).map(job).collect();
    queues[0].push_all(pushed).await.unwrap();
    let workers = (0..16).map(|nth| {
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

fn by_hand() -> Claim {
    Claim::new(1).lease(MINUTE).extended_by_hand()
}

async fn by_hand_from(queue: &Arc<dyn Queue>) -> Delivery {
    let mut claimed = queue.claim(&by_hand()).await.unwrap();
    assert_eq!(claimed.len(), 1, "a job is there");
    claimed.remove(0)
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
    let claim = Claim::new(1)
        .lease(Duration::from_millis(400))
        .extended_by_hand();
    let delivery = queue.claim(&claim).await.unwrap().remove(0);
    cx.pass(Duration::from_millis(395)).await;
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
        How::Existing,
        "what runs is not changed"
    );
    let other = queue.push(job(5).unique("other", Unique::Replace)).await;
    assert_eq!(other.unwrap().how, How::New);
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

async fn batch_of_completions_has_an_answer_for_each(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..4).map(job).collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(3)).await.unwrap();
    let tickets: Vec<_> = claimed.iter().map(Delivery::ticket).collect();
    let mut stale = tickets[2];
    stale.token -= 1;
    let acks = vec![tickets[0], stale, tickets[1], tickets[0]];
    let answer = queue.exchange(acks, Some(&Claim::new(1))).await.unwrap();
    assert_eq!(answer.acked, [true, false, true, false]);
    assert_eq!(answer.deliveries.len(), 1, "claimed in the same round trip");
    assert_eq!(cx.jobs().await.delivered, 2);
    let answer = queue.exchange(vec![tickets[2], stale], None).await.unwrap();
    assert_eq!(answer.acked, [true, false]);
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
    let terms = Terms::default().archive(MINUTE);
    let backend = cx.backend().await;
    let queue = backend.open_queue("work".to_owned(), terms).unwrap();
    queue.push_all((0..2).map(job).collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(2)).await.unwrap();
    let tickets = claimed.iter().map(Delivery::ticket).collect();
    let answer = queue.exchange(tickets, Some(&Claim::new(1))).await.unwrap();
    assert_eq!(answer.acked, [true, true]);
    queue.push(job(3)).await.unwrap();
    one(&queue).await.ack().await.unwrap();
    let jobs = cx.jobs().await;
    assert_eq!((jobs.waiting, jobs.delivered, jobs.ended), (0, 0, 3));
}

async fn dropped_claims_leave_nothing_claimed(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..3).map(job).collect()).await.unwrap();
    for polls in 0..4 {
        let claim = Claim::new(2).wait(MINUTE);
        drop(poll_then_drop(queue.claim(&claim), polls).await);
        // What was asked for is done before the first answer, what was given back before the second.
        queue.statistics().await.unwrap();
        queue.statistics().await.unwrap();
        assert_eq!(cx.jobs().await.delivered, 0, "after {polls} polls");
    }
    let mut attempts = BTreeMap::new();
    for delivery in queue.claim(&Claim::new(3)).await.unwrap() {
        attempts.insert(delivery.id(), delivery.attempt());
    }
    assert_eq!(attempts.len(), 3);
    assert!(
        attempts.values().all(|attempt| *attempt <= 2),
        "{attempts:?}"
    );
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
