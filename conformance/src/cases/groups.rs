//! Groups of jobs: how many run at once, in which order, and whose turn it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::queue::{
    Claim, Delivery, Groups, How, Job, JobLimit, MAX_GROUP_LIMIT, Priority, Unique,
};
use lockapi::worker::{Context as Working, Failed, Worker};
use lockapi::{ErrorKind, Queue};

use super::queue::{by_hand_from, job, lost, none, one};
use super::worker::{Gate, Runs, run};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{A_MOMENT, eventually, not_yet, soon};

register! { "groups":
    Q22 one_job_of_a_group_is_delivered_at_a_time;
    Q22 delivery_tells_its_group;
    Q22 all_programs_share_the_limit;
    Q22 place_is_kept_by_a_delivery_whose_lease_has_ended;
    Q22 place_is_left_by_whatever_ends_a_job;
    Q22 place_is_left_by_a_job_that_is_tried_again;
    Q22 changed_job_waits_in_its_new_group;
    Q22 completion_in_a_transaction_leaves_the_place_at_commit [Transactions];
    Q22 push_in_a_transaction_parks_its_jobs [Transactions];
    Q22 take_in_a_transaction_keeps_to_the_limit [Transactions];
    Q22 workers_keep_to_the_limit;
    Q23 ordered_jobs_are_delivered_in_the_order_of_their_numbers;
    Q23 ordered_jobs_with_keys_keep_the_order_of_their_list;
    Q23 ordered_jobs_with_keys_keep_their_order_in_a_transaction [Transactions];
    Q23 ordered_job_that_is_tried_again_keeps_its_place;
    Q23 ordered_dead_letter_lets_its_group_go_on;
    Q23 ordered_job_that_is_changed_keeps_its_number;
    Q23 workers_keep_the_order;
    Q24 groups_have_their_turns_one_after_the_other;
    Q24 groups_get_turns_in_proportion_to_their_limits;
    Q24 waiting_claim_is_woken_for_a_group;
    Q24 groups_have_their_turn_where_a_limit_holds_jobs_back;
    Q24 groups_that_have_nothing_due_have_no_turns;
    Q24 admission_reads_so_much_and_goes_on_behind [Sql];
    Q24 admission_by_another_program_holds_nobody_up [Sql];
    Q24 idle_worker_takes_the_place_it_has_left;
    Q24 idle_worker_takes_the_place_it_has_left_in_a_transaction [Transactions];
    Q25 limits_are_changed_while_jobs_run;
    Q25 paused_group_waits_while_the_others_go_on;
    Q25 limits_outside_of_their_limits_are_refused;
    Q22 no_name_of_a_mutex_is_in_the_way_of_a_queue;
}

pub(super) fn at_most(jobs: u32) -> JobLimit {
    JobLimit::default().running(jobs)
}

pub(super) fn of(group: &str, number: usize) -> Job {
    job(number).group(group)
}

/// What is there to claim.
pub(super) async fn all(queue: &Arc<dyn Queue>) -> Vec<Delivery> {
    queue.claim(&Claim::new(100)).await.unwrap()
}

pub(super) fn numbers(deliveries: &[Delivery]) -> Vec<usize> {
    let numbers = deliveries.iter().map(|it| it.decode().unwrap());
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// Claims one job, whose number it is.
pub(super) async fn next(queue: &Arc<dyn Queue>, number: usize) -> Delivery {
    let delivery = one(queue).await;
    assert_eq!(delivery.decode::<usize>().unwrap(), number);
    delivery
}

async fn one_job_of_a_group_is_delivered_at_a_time(cx: Context) {
    let queue = cx.queue().await;
    let jobs = vec![
        of("a", 1),
        of("b", 11),
        of("a", 2),
        job(21),
        of("b", 12),
        of("a", 3),
    ];
    queue.push_all(jobs).await.unwrap();
    queue.push(of("a", 4)).await.unwrap();
    // What has no group is there at once, the others with the next claim.
    let mut claimed = all(&queue).await;
    claimed.extend(all(&queue).await);
    assert_eq!(numbers(&claimed), [1, 11, 21]);
    none(&queue).await;
    for expected in [&[2, 12][..], &[3], &[4], &[]] {
        for delivery in claimed {
            delivery.ack().await.unwrap();
        }
        claimed = all(&queue).await;
        assert_eq!(numbers(&claimed), expected);
    }
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn delivery_tells_its_group(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let plain = next(&queue, 1).await;
    assert_eq!(plain.group(), None);
    plain.ack().await.unwrap();
    let group = "'\"\\ {},\u{e4}\u{1F980}";
    queue.push(of(group, 2)).await.unwrap();
    for _ in 0..2 {
        let delivery = next(&queue, 2).await;
        assert_eq!(delivery.group(), Some(group));
        delivery.release().await.unwrap();
    }
}

async fn all_programs_share_the_limit(cx: Context) {
    let queues = [cx.queue().await, cx.queue().await];
    queues[0]
        .set_groups(Groups::default().limit(3))
        .await
        .unwrap();
    queues[0]
        .set_group_limit("b", Some(at_most(1)))
        .await
        .unwrap();
    let jobs = (0..60).map(|nth| of(["a", "b", "c"][nth % 3], nth));
    queues[1].push_all(jobs.collect()).await.unwrap();
    let mut done = 0;
    while done < 60 {
        let claims = (0..8).map(|nth| {
            let queue = queues[nth % 2].clone();
            tokio::spawn(async move { queue.claim(&Claim::new(5)).await.unwrap() })
        });
        let mut running = BTreeMap::<usize, usize>::new();
        let mut claimed = Vec::new();
        for claim in claims.collect::<Vec<_>>() {
            claimed.extend(claim.await.unwrap());
        }
        for number in numbers(&claimed) {
            *running.entry(number % 3).or_default() += 1;
        }
        for (group, most) in [(0, 3), (1, 1), (2, 3)] {
            let running = running.get(&group).copied().unwrap_or_default();
            assert!(running <= most, "{running} of group {group}");
        }
        done += claimed.len();
        for delivery in claimed {
            delivery.ack().await.unwrap();
        }
    }
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn place_is_kept_by_a_delivery_whose_lease_has_ended(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push_all(vec![of("a", 1), of("a", 2)]).await.unwrap();
    let late = by_hand_from(&here).await;
    cx.elapse(MINUTE * 2).await;
    let again = next(&there, 1).await;
    assert_eq!(again.attempt(), 2);
    none(&there).await;
    lost(late.ack().await);
    none(&here).await;
    again.ack().await.unwrap();
    next(&here, 2).await.ack().await.unwrap();
}

async fn place_is_left_by_whatever_ends_a_job(cx: Context) {
    let queue = cx.queue().await;
    queue
        .push_all((1..8).map(|nth| of("a", nth)).collect())
        .await
        .unwrap();
    next(&queue, 1).await.reject("no").await.unwrap();
    let cancelled = next(&queue, 2).await;
    queue.cancel(vec![cancelled.id()]).await.unwrap();
    lost(cancelled.ack().await);
    // One that is given back keeps it.
    next(&queue, 3).await.release().await.unwrap();
    drop(next(&queue, 3).await);
    eventually("it is given back", async || {
        let claimed = all(&queue).await;
        claimed
            .first()
            .is_some_and(|it| it.decode::<usize>().unwrap() == 3)
    })
    .await;
    eventually("it is given back again", async || {
        let claimed = all(&queue).await;
        let Some(delivery) = claimed.into_iter().next() else {
            return false;
        };
        assert_eq!(delivery.decode::<usize>().unwrap(), 3);
        delivery.ack().await.unwrap();
        true
    })
    .await;
    let running = next(&queue, 4).await;
    assert_eq!(queue.purge().await.unwrap(), 3);
    none(&queue).await;
    queue.push(of("a", 8)).await.unwrap();
    none(&queue).await;
    running.ack().await.unwrap();
    next(&queue, 8).await.ack().await.unwrap();
    // A dead letter that is put back waits for its turn.
    queue.push(of("a", 9)).await.unwrap();
    let running = next(&queue, 9).await;
    assert_eq!(queue.redrive(Vec::new()).await.unwrap(), 1);
    none(&queue).await;
    running.ack().await.unwrap();
    next(&queue, 1).await.ack().await.unwrap();
}

async fn place_is_left_by_a_job_that_is_tried_again(cx: Context) {
    let queue = cx.queue().await;
    queue
        .push_all((1..4).map(|nth| of("a", nth)).collect())
        .await
        .unwrap();
    next(&queue, 1).await.nack("no", MINUTE).await.unwrap();
    let second = by_hand_from(&queue).await;
    assert_eq!(second.decode::<usize>().unwrap(), 2);
    none(&queue).await;
    cx.elapse(MINUTE).await;
    // It is due, but another has its place.
    queue
        .settle(second.ticket(), lockapi::queue::Outcome::Extend(MINUTE))
        .await
        .unwrap();
    none(&queue).await;
    second.snooze(MINUTE * 5).await.unwrap();
    let mut claimed = Vec::new();
    for _ in 0..2 {
        let delivery = one(&queue).await;
        none(&queue).await;
        claimed.push(delivery.decode::<usize>().unwrap());
        delivery.ack().await.unwrap();
    }
    claimed.sort_unstable();
    assert_eq!(claimed, [1, 3]);
    none(&queue).await;
    cx.elapse(MINUTE * 5).await;
    next(&queue, 2).await.ack().await.unwrap();
}

async fn changed_job_waits_in_its_new_group(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all(vec![of("a", 1), of("b", 2)]).await.unwrap();
    let first = queue
        .push(of("c", 3).unique("key", Unique::Skip))
        .await
        .unwrap();
    let claimed = all(&queue).await;
    assert_eq!(numbers(&claimed), [1, 2, 3]);
    let mut kept = Vec::new();
    for delivery in claimed {
        if delivery.id() == first.id {
            delivery.release().await.unwrap();
        } else {
            kept.push(delivery);
        }
    }
    // It was admitted in its group, and is parked in another.
    let changed = queue
        .push(of("a", 4).unique("key", Unique::Replace))
        .await
        .unwrap();
    assert_eq!((changed.id, changed.how), (first.id, How::Changed));
    none(&queue).await;
    let unchanged = queue
        .push(of("d", 5).unique("key", Unique::Keep))
        .await
        .unwrap();
    assert_eq!((unchanged.id, unchanged.how), (first.id, How::Changed));
    none(&queue).await;
    let free = queue
        .push(job(6).unique("key", Unique::Replace))
        .await
        .unwrap();
    assert_eq!((free.id, free.how), (first.id, How::Changed));
    next(&queue, 6).await.ack().await.unwrap();
    for delivery in kept {
        delivery.ack().await.unwrap();
    }
}

async fn completion_in_a_transaction_leaves_the_place_at_commit(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push_all(vec![of("a", 1), of("a", 2)]).await.unwrap();
    let delivery = Arc::new(next(&here, 1).await);
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&delivery).await.unwrap();
    none(&there).await;
    tx.rollback().await;
    none(&there).await;
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&delivery).await.unwrap();
    // Whoever pushes to the group does not wait for it.
    there.push(of("a", 3)).await.unwrap();
    none(&there).await;
    tx.commit().await;
    next(&there, 2).await.ack().await.unwrap();
    next(&there, 3).await.ack().await.unwrap();
}

async fn push_in_a_transaction_parks_its_jobs(cx: Context) {
    let queue = cx.queue().await;
    let mut tx = cx.begin().await.unwrap();
    let jobs = vec![of("a", 1), of("a", 2).unique("key", Unique::Skip)];
    tx.push_in(&queue, jobs).await.unwrap();
    queue.push(of("a", 3)).await.unwrap();
    let third = next(&queue, 3).await;
    tx.commit().await;
    none(&queue).await;
    third.ack().await.unwrap();
    next(&queue, 1).await.ack().await.unwrap();
    next(&queue, 2).await.ack().await.unwrap();
}

async fn take_in_a_transaction_keeps_to_the_limit(cx: Context) {
    let queue = cx.queue().await;
    queue
        .push_all((1..4).map(|nth| of("a", nth)).collect())
        .await
        .unwrap();
    for number in 1..4 {
        let mut tx = cx.begin().await.unwrap();
        let mut taken = tx.take_in(&queue, 10).await.unwrap();
        // It is admitted in the background.
        for _ in 0..600 {
            if !taken.is_empty() {
                break;
            }
            cx.pass(Duration::from_millis(50)).await;
            taken = tx.take_in(&queue, 10).await.unwrap();
        }
        assert!(taken.iter().all(|it| it.group() == Some("a")));
        let taken: Vec<usize> = taken.iter().map(|it| it.decode().unwrap()).collect();
        assert_eq!(taken, [number]);
        none(&queue).await;
        tx.commit().await;
    }
    assert_eq!(cx.jobs().await, Jobs::default());
}

/// How many jobs of each group run, and which number ran last.
#[derive(Default)]
pub(super) struct Seen {
    running: [AtomicUsize; GROUPS],
    most: [AtomicUsize; GROUPS],
    order: [Mutex<Vec<usize>>; GROUPS],
}

pub(super) const GROUPS: usize = 7;
const EACH: usize = 12;

impl Seen {
    /// All were done, and no more of a group at once.
    pub(super) fn check(&self, most: usize) {
        for group in 0..GROUPS {
            let ran = self.most[group].load(Ordering::SeqCst);
            assert!(ran <= most, "{ran} at once");
            let done = self.order[group].lock().unwrap().len();
            assert_eq!(done, EACH, "of group {group}");
        }
    }
}

fn of_seven(nth: usize) -> Job {
    of(&format!("g{}", nth % GROUPS), nth)
}

/// Runs workers of two programs until there is nothing to do; one in five first attempts fails.
pub(super) async fn run_workers(cx: &Context, seen: &Arc<Seen>, job: impl Fn(usize) -> Job) {
    let queues = [cx.queue().await, cx.queue().await];
    let jobs = (0..GROUPS * EACH).map(|nth| job(nth).max_attempts(3));
    queues[0].push_all(jobs.collect()).await.unwrap();
    let handler = |seen: Arc<Seen>| {
        move |number: usize, job: Working| {
            let seen = Arc::clone(&seen);
            async move {
                let group = number % GROUPS;
                let running = seen.running[group].fetch_add(1, Ordering::SeqCst) + 1;
                seen.most[group].fetch_max(running, Ordering::SeqCst);
                tokio::task::yield_now().await;
                seen.running[group].fetch_sub(1, Ordering::SeqCst);
                if number.is_multiple_of(5) && job.attempt() == 1 {
                    return Err(Failed::retry_after("once more", Duration::ZERO));
                }
                seen.order[group].lock().unwrap().push(number);
                Ok(())
            }
        }
    };
    let workers = queues.map(|queue| {
        let worker = Worker::new(queue).handle("count", handler(Arc::clone(seen)));
        tokio::spawn(worker.concurrency(8).run_until_idle())
    });
    for worker in workers {
        soon("nothing is left", worker).await.unwrap().unwrap();
    }
}

async fn workers_keep_to_the_limit(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().limit(2)).await.unwrap();
    let seen = Arc::new(Seen::default());
    run_workers(&cx, &seen, of_seven).await;
    seen.check(2);
}

async fn workers_keep_the_order(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    let seen = Arc::new(Seen::default());
    run_workers(&cx, &seen, of_seven).await;
    seen.check(1);
    for order in &seen.order {
        let order = order.lock().unwrap();
        assert!(order.is_sorted(), "{order:?}");
    }
}

async fn ordered_jobs_are_delivered_in_the_order_of_their_numbers(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    let jobs = vec![
        of("a", 1).priority(Priority::Low),
        of("a", 2).delay(MINUTE),
        of("a", 3).priority(Priority::Urgent),
        of("b", 11),
    ];
    queue.push_all(jobs).await.unwrap();
    let claimed = all(&queue).await;
    assert_eq!(numbers(&claimed), [1, 11]);
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    none(&queue).await;
    cx.elapse(MINUTE).await;
    let delayed = next(&queue, 2).await;
    none(&queue).await;
    delayed.ack().await.unwrap();
    next(&queue, 3).await.ack().await.unwrap();
}

/// Jobs of a group whose keys have another order than the jobs.
fn with_keys() -> Vec<Job> {
    vec![
        of("a", 1).unique("z", Unique::Skip),
        of("a", 2).idempotency_key("event 9"),
        of("a", 3),
        of("a", 4).idempotency_key("event 10"),
        of("a", 5).unique("b", Unique::Skip),
        of("a", 6),
        of("a", 7),
    ]
}

async fn all_in_order(queue: &Arc<dyn Queue>) {
    for number in 1..=7 {
        next(queue, number).await.ack().await.unwrap();
    }
    none(queue).await;
}

async fn ordered_jobs_with_keys_keep_the_order_of_their_list(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    let pushed = queue.push_all(with_keys()).await.unwrap();
    assert!(pushed.is_sorted_by_key(|it| it.id), "{pushed:?}");
    all_in_order(&queue).await;
}

async fn ordered_jobs_with_keys_keep_their_order_in_a_transaction(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.push_in(&queue, with_keys()).await.unwrap();
    tx.commit().await;
    all_in_order(&queue).await;
}

async fn ordered_job_that_is_tried_again_keeps_its_place(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    queue.push_all(vec![of("a", 1), of("a", 2)]).await.unwrap();
    next(&queue, 1).await.nack("no", MINUTE).await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE).await;
    next(&queue, 1).await.snooze(MINUTE).await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE).await;
    next(&queue, 1).await.ack().await.unwrap();
    next(&queue, 2).await.ack().await.unwrap();
}

async fn ordered_job_that_is_changed_keeps_its_number(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    let keyed = |number| of("a", number).unique("key", Unique::Replace);
    let first = queue.push(keyed(1)).await.unwrap();
    queue.push(of("a", 2)).await.unwrap();
    let changed = queue.push(keyed(3)).await.unwrap();
    assert_eq!((changed.id, changed.how), (first.id, How::Changed));
    next(&queue, 3).await.ack().await.unwrap();
    next(&queue, 2).await.ack().await.unwrap();
}

async fn ordered_dead_letter_lets_its_group_go_on(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    let jobs = vec![
        of("a", 1).max_attempts(1),
        of("a", 2),
        of("a", 3),
        of("a", 4),
    ];
    let pushed = queue.push_all(jobs).await.unwrap();
    next(&queue, 1).await.nack("no", MINUTE).await.unwrap();
    queue.cancel(vec![pushed[2].id]).await.unwrap();
    let second = next(&queue, 2).await;
    // It has its number still, so it is before what was pushed after it.
    assert_eq!(queue.redrive(Vec::new()).await.unwrap(), 1);
    second.ack().await.unwrap();
    next(&queue, 1).await.ack().await.unwrap();
    next(&queue, 4).await.ack().await.unwrap();
}

async fn groups_have_their_turns_one_after_the_other(cx: Context) {
    const MANY: usize = 1000;
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().limit(2)).await.unwrap();
    queue
        .push_all((0..MANY).map(|nth| of("many", nth)).collect())
        .await
        .unwrap();
    one(&queue).await.ack().await.unwrap();
    let few = (0..9).map(|nth| of(&format!("few {nth}"), MANY + nth));
    queue.push_all(few.collect()).await.unwrap();
    let mut found = 0;
    // Before each of them there are at most as many of the large group as its limit says.
    for _ in 0..9 * 3 + 2 {
        let delivery = one(&queue).await;
        found += usize::from(delivery.decode::<usize>().unwrap() >= MANY);
        delivery.ack().await.unwrap();
    }
    assert_eq!(found, 9);
    // An urgent job of a group goes before its others.
    queue
        .push(of("many", MANY + 99).priority(Priority::Urgent))
        .await
        .unwrap();
    let mut urgent = false;
    for _ in 0..4 {
        let delivery = one(&queue).await;
        urgent |= delivery.priority() == Priority::Urgent;
        delivery.ack().await.unwrap();
    }
    assert!(urgent);
}

async fn groups_get_turns_in_proportion_to_their_limits(cx: Context) {
    const JOBS: usize = 90;
    let queue = cx.queue().await;
    queue.set_group_limit("b", Some(at_most(3))).await.unwrap();
    for group in ["a", "b"] {
        let jobs = (0..JOBS).map(|nth| of(group, nth));
        queue.push_all(jobs.collect()).await.unwrap();
    }
    let mut done = [0; 2];
    while done.iter().max() < Some(&60) {
        let delivery = by_hand_from(&queue).await;
        done[usize::from(delivery.group() == Some("b"))] += 1;
        delivery.ack().await.unwrap();
    }
    // An admission may meet some of a group in the line; equal turns would be 60.
    assert!((15..=30).contains(&done[0]), "{done:?}");
}

/// A claim that gets as many jobs as there is room for has not looked for more.
async fn groups_have_their_turn_where_a_limit_holds_jobs_back(cx: Context) {
    let queue = cx.queue().await;
    queue.set_limit(at_most(1)).await.unwrap();
    let low = |number| job(number).priority(Priority::Low);
    queue.push_all((0..20).map(low).collect()).await.unwrap();
    let urgent = of("a", 100).priority(Priority::High);
    queue.push(urgent).await.unwrap();
    eventually("the group has its turn", async || {
        // There are always others that take all the room.
        queue.push(low(1)).await.unwrap();
        let mut turn = false;
        for delivery in queue.claim(&Claim::new(2)).await.unwrap() {
            turn |= delivery.group().is_some();
            delivery.ack().await.unwrap();
        }
        turn
    })
    .await;
}

async fn waiting_claim_is_woken_for_a_group(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let claim = Claim::new(1).wait(MINUTE * 60);
    let waiting = here.claim(&claim);
    tokio::pin!(waiting);
    not_yet("there is no job", &mut waiting).await;
    there.push_all(vec![of("a", 1), of("a", 2)]).await.unwrap();
    let first = soon("the first", waiting).await.unwrap().remove(0);
    let waiting = there.claim(&claim);
    tokio::pin!(waiting);
    not_yet("its group has no room", &mut waiting).await;
    first.ack().await.unwrap();
    let second = soon("the second", waiting).await.unwrap().remove(0);
    assert_eq!(second.decode::<usize>().unwrap(), 2);
    second.ack().await.unwrap();
}

async fn groups_that_have_nothing_due_have_no_turns(cx: Context) {
    const MANY: usize = 5000;
    let queue = cx.queue().await;
    let later = (0..MANY).map(|nth| of(&format!("later {nth}"), nth).delay(MINUTE));
    queue.push_all(later.collect()).await.unwrap();
    none(&queue).await;
    // They are all before it.
    queue
        .push_all(vec![of("now", MANY), of("now", MANY + 1)])
        .await
        .unwrap();
    next(&queue, MANY).await.ack().await.unwrap();
    next(&queue, MANY + 1).await.ack().await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE).await;
    one(&queue).await.ack().await.unwrap();
}

/// A worker that has handlers to spare for the jobs of one group, and never polls.
async fn idle_worker(cx: &Context) -> (Runs, Gate) {
    let queue = cx.queue().await;
    queue
        .push_all((0..3).map(|nth| of("a", nth)).collect())
        .await
        .unwrap();
    let (handler, gate) = Gate::new();
    let worker = Worker::new(queue).concurrency(4).poll(MINUTE * 60);
    (run(worker.handle("count", handler)), gate)
}

/// One program admits at a time; the others go on with what they have to do, and admit after it.
async fn admission_by_another_program_holds_nobody_up(cx: Context) {
    let queue = cx.queue().await;
    let namespace = cx.namespace().replace('\'', "''");
    let turn = format!("lockapi.advisory_key('{namespace}', repeat('#', 256) || 'groups work')");
    let claim = Claim::new(1).wait(MINUTE);
    let found = async |number| {
        let mut found = soon("it is admitted", queue.claim(&claim)).await.unwrap();
        assert_eq!(numbers(&found), [number]);
        found.remove(0).ack().await.unwrap();
    };
    queue.push(of("g", 0)).await.unwrap();
    cx.sql(&format!("SELECT pg_advisory_lock({turn})")).await;
    none(&queue).await;
    tokio::join!(found(0), async {
        tokio::time::sleep(A_MOMENT).await;
        cx.sql(&format!("SELECT pg_advisory_unlock({turn})")).await;
    });
    queue.push(of("g", 1)).await.unwrap();
    cx.sql(&format!("SELECT pg_advisory_lock({turn})")).await;
    let waits = format!(
        "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
            AND (classid::int8 << 32) | objid::int8 = {turn}"
    );
    for number in 2..100 {
        queue.push(job(number)).await.unwrap();
        assert_eq!(cx.sql(&waits).await, ["0"], "nobody waits for it");
        next(&queue, number).await.ack().await.unwrap();
        assert_eq!(cx.sql(&waits).await, ["0"], "nobody waits for it");
    }
    cx.sql(&format!("SELECT pg_advisory_unlock({turn})")).await;
    found(1).await;
}

/// However many groups have a job that is not due.
async fn admission_reads_so_much_and_goes_on_behind(cx: Context) {
    const DELAYED: usize = 10_000;
    let backend = cx.backend().await;
    let [queue, other] = ["work", "other"].map(|name| backend.queue(name).unwrap());
    let admit = async |queue: &str| {
        let namespace = cx.namespace().replace('\'', "''");
        cx.sql(&format!(
            "SELECT concat_ws(' ', admitted, looked) FROM lockapi.admit('{namespace}', '{queue}', 256)"
        ))
        .await
    };
    let delayed = |nth: usize| of(&format!("g{nth:05}"), nth).delay(MINUTE * 60);
    for first in (0..DELAYED).step_by(1000) {
        let jobs = (first..first + 1000).map(delayed);
        queue.push_all(jobs.collect()).await.unwrap();
    }
    assert_eq!(admit("work").await, ["0 0"], "nothing is due");
    queue.push(of("last", DELAYED)).await.unwrap();
    assert_eq!(admit("work").await, ["0 256"]);
    assert_eq!(admit("work").await, ["1 1"]);
    // A claim finds it by itself.
    one(&queue).await.ack().await.unwrap();
    queue.push(of("last of all", 0)).await.unwrap();
    let claim = Claim::new(1).wait(MINUTE);
    let found = soon("the job is there", queue.claim(&claim));
    let mut found = found.await.unwrap();
    assert_eq!(numbers(&found), [0]);
    found.remove(0).ack().await.unwrap();
    // Of what is due first nothing has room, and is more than is looked at to see whether others are due.
    for first in [0, 600] {
        let jobs = (first..first + 600).map(|nth| of("a", nth));
        queue.push_all(jobs.collect()).await.unwrap();
    }
    let held = one(&queue).await;
    for _ in 0..2 {
        admit("work").await;
    }
    queue.push(of("g07000 and a half", 0)).await.unwrap();
    let mut answers = Vec::new();
    while answers.len() < 4 && !answers.iter().any(|it: &String| it.starts_with("1 ")) {
        answers.extend(admit("work").await);
    }
    assert_eq!(
        answers.last().map(String::as_str),
        Some("1 2"),
        "{answers:?}"
    );
    held.ack().await.unwrap();
    // Groups with a job that is due are all looked at.
    let jobs = (0..100).map(|nth| of(&format!("g{nth:03}"), nth));
    other.push_all(jobs.collect()).await.unwrap();
    assert_eq!(admit("other").await, ["100 100"]);
}

async fn idle_worker_takes_the_place_it_has_left(cx: Context) {
    let (worker, mut gate) = idle_worker(&cx).await;
    for answer in [Ok(()), Err(Failed::reject("no")), Ok(())] {
        let begun = gate.begun().await;
        gate.none_begins().await;
        begun.end(answer);
    }
    worker.end().await;
}

async fn idle_worker_takes_the_place_it_has_left_in_a_transaction(cx: Context) {
    let (worker, mut gate) = idle_worker(&cx).await;
    for _ in 0..3 {
        let begun = gate.begun().await;
        gate.none_begins().await;
        let mut tx = cx.begin().await.unwrap();
        tx.ack_in(begun.job.delivery()).await.unwrap();
        tx.commit().await;
        begun.end(Ok(()));
    }
    worker.end().await;
}

async fn limits_are_changed_while_jobs_run(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.set_groups(Groups::default().limit(10)).await.unwrap();
    here.push_all((0..40).map(|nth| of("a", nth)).collect())
        .await
        .unwrap();
    let mut running = all(&there).await;
    assert_eq!(running.len(), 10);
    there.set_groups(Groups::default()).await.unwrap();
    for _ in 0..9 {
        running.pop().unwrap().ack().await.unwrap();
        none(&here).await;
    }
    assert!(!running[0].is_lost(), "nobody is interrupted");
    here.set_group_limit("a", Some(at_most(5))).await.unwrap();
    let mut more = all(&there).await;
    assert_eq!(more.len(), 4);
    here.set_group_limit("a", None).await.unwrap();
    here.set_groups(Groups::default().ordered()).await.unwrap();
    running.pop().unwrap().ack().await.unwrap();
    while let Some(delivery) = more.pop() {
        none(&there).await;
        delivery.ack().await.unwrap();
    }
    let last = all(&there).await;
    assert_eq!(last.len(), 1);
}

async fn paused_group_waits_while_the_others_go_on(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    for groups in [Groups::default(), Groups::default().ordered()] {
        here.set_groups(groups).await.unwrap();
        here.push_all(vec![of("a", 1), of("a", 2), of("b", 3)])
            .await
            .unwrap();
        let running = one(&here).await;
        assert_eq!(numbers(std::slice::from_ref(&running)), [1]);
        there.set_group_limit("a", Some(at_most(0))).await.unwrap();
        next(&here, 3).await.ack().await.unwrap();
        // What runs goes on to its end, and what fails waits like the others.
        running.nack("again", Duration::ZERO).await.unwrap();
        none(&there).await;
        cx.elapse(MINUTE).await;
        none(&here).await;
        let waiting = {
            let queue = there.clone();
            tokio::spawn(async move { queue.claim(&Claim::new(1).wait(MINUTE)).await })
        };
        tokio::pin!(waiting);
        not_yet("the group is paused", &mut waiting).await;
        here.set_group_limit("a", None).await.unwrap();
        let claimed = soon("a job", waiting).await.unwrap().unwrap();
        for delivery in claimed {
            delivery.ack().await.unwrap();
        }
        one(&here).await.ack().await.unwrap();
        assert_eq!(cx.jobs().await, Jobs::default());
    }
}

async fn limits_outside_of_their_limits_are_refused(cx: Context) {
    let queue = cx.queue().await;
    for groups in [
        Groups::default().limit(0),
        Groups::default().limit(MAX_GROUP_LIMIT + 1),
        Groups::default().limit(2).ordered(),
    ] {
        let refused = queue.set_groups(groups).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("allowed"), "{refused}");
    }
    for (group, limit) in [
        ("a".to_owned(), Some(at_most(MAX_GROUP_LIMIT + 1))),
        ("a".to_owned(), Some(JobLimit::default())),
        (String::new(), Some(at_most(1))),
        ("a".repeat(10 << 10), None),
    ] {
        let refused = queue.set_group_limit(&group, limit).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        let (allowed, neither) = ("allowed", "neither running jobs nor a rate");
        let refused = refused.to_string();
        assert!(
            refused.contains(allowed) || refused.contains(neither),
            "{refused}"
        );
        if group != "a" {
            let refused = queue.push(of(&group, 1)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
        }
    }
    let long = "ä".repeat(127);
    queue.push(of(&long, 1)).await.unwrap();
    queue
        .set_group_limit(&long, Some(at_most(MAX_GROUP_LIMIT)))
        .await
        .unwrap();
    next(&queue, 1).await.ack().await.unwrap();
}

async fn no_name_of_a_mutex_is_in_the_way_of_a_queue(cx: Context) {
    let backend = cx.backend().await;
    let queue = cx.queue().await;
    let mut held = Vec::new();
    for name in ["groups", "#groups", "queue", "scheduler", "leader of"] {
        let mutex = backend.mutex(format!("{name} {}", queue.name())).unwrap();
        held.push(mutex.lock().await.unwrap());
    }
    queue.push(of("a", 1)).await.unwrap();
    one(&queue).await.ack().await.unwrap();
    for guard in held {
        guard.unlock().await.unwrap();
    }
}
