//! Queues: how many of their jobs run at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockapi::limit::{MAX_PERIOD, Quota};
use lockapi::queue::{Claim, Delivery, JobLimit};
use lockapi::worker::Worker;
use lockapi::{Backend, Queue};

use super::queue::{by_hand, by_hand_from, job, lost, none};
use super::unknown::{faults, quiet};
use super::worker::run;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "queue_limited":
    Q36 limited_queue_runs_no_more_at_once;
    Q36 limited_queue_needs_no_more_rights_than_are_noted @ PoorRole [Schema];
    Q36 limited_queue_under_hostile_settings @ HostileRole [Schema];
    Q36 limited_queue_behind_a_proxy @ HostileProxy [Proxy];
    Q36 limit_holds_under_load;
    Q36 limit_holds_in_workers_of_several_programs;
    Q36 place_of_a_job_that_ended_is_given_to_whoever_waits;
    Q36 place_is_kept_until_the_lease_ends;
    Q36 killed_worker_leaves_its_places [Processes];
    Q36 lease_that_has_ended_is_not_extended_in_a_limited_queue;
    Q36 late_completion_takes_nobody_s_place;
    Q36 lowered_limit_interrupts_nothing_and_holds_under_load;
    Q36 raised_limit_is_seen_by_whoever_waits;
    Q36 jobs_that_ran_before_the_limit_have_places;
    Q36 limit_costs_no_attempt;
    Q36 dead_letters_take_no_place;
    Q36 lost_claim_holds_no_second_place @ Relay [Relay];
    Q36 lost_claim_is_found_where_no_permit_is_left @ Relay [Relay];
}

pub(super) fn running(most: u32) -> JobLimit {
    JobLimit::default().running(most)
}

pub(super) fn many() -> Claim {
    Claim::new(100).lease(MINUTE).extended_by_hand()
}

pub(super) async fn claim(queue: &Arc<dyn Queue>) -> Vec<Delivery> {
    queue.claim(&many()).await.unwrap()
}

/// Claims, and answers how many run from now on.
pub(super) async fn begun(queue: &Arc<dyn Queue>) -> usize {
    let claimed = claim(queue).await;
    let count = claimed.len();
    // Dropped, they would be given back.
    std::mem::forget(claimed);
    count
}

/// Claims until there is something.
async fn claim_soon(queue: &Arc<dyn Queue>, claim: &Claim) -> Vec<Delivery> {
    soon("a job", async {
        loop {
            let claimed = queue.claim(claim).await.unwrap();
            if !claimed.is_empty() {
                return claimed;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

pub(super) async fn places(queue: &Arc<dyn Queue>) -> u32 {
    queue.limit().await.unwrap().unwrap().running
}

pub(super) async fn push_many(queue: &Arc<dyn Queue>, jobs: usize) {
    queue.push_all((0..jobs).map(job).collect()).await.unwrap();
}

async fn ack_all(claimed: Vec<Delivery>) {
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
}

async fn limited_queue_runs_no_more_at_once(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    assert_eq!(here.limit().await.unwrap(), None);
    push_many(&here, 10).await;
    here.set_limit(running(3)).await.unwrap();
    let limit = there.limit().await.unwrap().unwrap();
    assert_eq!((limit.limit, limit.running), (running(3), 0));
    let mut first = here.claim(&Claim::new(2).lease(MINUTE)).await.unwrap();
    assert_eq!(first.len(), 2);
    let second = claim(&there).await;
    assert_eq!(second.len(), 1);
    none(&here).await;
    none(&there).await;
    assert_eq!(places(&there).await, 3);
    // A completion and a claim in one go.
    let done = first.pop().unwrap();
    let exchange = here
        .exchange(vec![done.ticket()], Some(&many()))
        .await
        .unwrap();
    assert_eq!(exchange.deliveries.len(), 1);
    std::mem::forget(exchange.deliveries);
    for delivery in second {
        delivery.nack("again", Duration::ZERO).await.unwrap();
    }
    let third = claim(&there).await;
    assert_eq!(third.len(), 1);
    none(&here).await;
    there.clear_limit().await.unwrap();
    assert_eq!(here.limit().await.unwrap(), None);
    assert_eq!(begun(&here).await, 6);
    ack_all(third).await;
}

async fn limited_queue_needs_no_more_rights_than_are_noted(cx: Context) {
    limited_queue_runs_no_more_at_once(cx).await;
}

async fn limited_queue_under_hostile_settings(cx: Context) {
    limited_queue_runs_no_more_at_once(cx).await;
}

async fn limited_queue_behind_a_proxy(cx: Context) {
    limited_queue_runs_no_more_at_once(cx).await;
}

/// Counts what runs, and the most that ran.
#[derive(Default)]
struct Counter {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
}

impl Counter {
    fn begin(&self, jobs: usize) {
        let now = self.now.fetch_add(jobs, Ordering::SeqCst) + jobs;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn end(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// The most that ran since this was last asked.
    fn most(&self) -> usize {
        self.most.swap(0, Ordering::SeqCst)
    }
}

/// Claims and completes until so many are done.
async fn consume(queue: Arc<dyn Queue>, counter: Arc<Counter>, all: usize) {
    while counter.done() < all {
        let claimed = queue.claim(&Claim::new(3).lease(MINUTE)).await.unwrap();
        counter.begin(claimed.len());
        for delivery in claimed {
            tokio::task::yield_now().await;
            // By its own count it has ended before the server frees the place.
            counter.end();
            delivery.ack().await.unwrap();
        }
        tokio::task::yield_now().await;
    }
}

async fn limit_holds_under_load(cx: Context) {
    const JOBS: usize = 200;
    let queue = cx.queue().await;
    push_many(&queue, JOBS).await;
    queue.set_limit(running(4)).await.unwrap();
    let counter = Arc::new(Counter::default());
    let mut all = Vec::new();
    for _ in 0..4 {
        let queue = cx.queue().await;
        for _ in 0..2 {
            let work = consume(queue.clone(), counter.clone(), JOBS);
            all.push(tokio::spawn(work));
        }
    }
    for one in all {
        soon("the jobs", one).await.unwrap();
    }
    let most = counter.most();
    assert!((1..=4).contains(&most), "{most} at once");
    assert_eq!(places(&queue).await, 0);
}

async fn limit_holds_in_workers_of_several_programs(cx: Context) {
    const JOBS: usize = 60;
    let counter = Arc::new(Counter::default());
    let backends = [cx.backend().await, cx.backend().await, cx.backend().await];
    let queue = backends[0].queue("work").unwrap();
    push_many(&queue, JOBS).await;
    queue.set_limit(running(5)).await.unwrap();
    let start = |backend: &Arc<dyn Backend>| {
        let counter = counter.clone();
        let worker = Worker::new(backend.queue("work").unwrap());
        run(worker.concurrency(4).handle("count", move |_: usize, _| {
            let counter = counter.clone();
            async move {
                counter.begin(1);
                tokio::task::yield_now().await;
                counter.end();
                Ok(())
            }
        }))
    };
    let workers = backends.each_ref().map(start);
    eventually("all are done", async || {
        cx.pass(Duration::from_millis(20)).await;
        counter.done() >= JOBS
    })
    .await;
    for worker in workers {
        worker.end().await;
    }
    let most = counter.most();
    assert!((1..=5).contains(&most), "{most} at once");
}

async fn place_of_a_job_that_ended_is_given_to_whoever_waits(cx: Context) {
    let queue = cx.queue().await;
    push_many(&queue, 2).await;
    queue.set_limit(running(1)).await.unwrap();
    let held = by_hand_from(&queue).await;
    let waiting = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.claim(&by_hand().wait(MINUTE)).await })
    };
    tokio::pin!(waiting);
    not_yet("the queue is full", &mut waiting).await;
    held.ack().await.unwrap();
    let claimed = soon("the place", waiting).await.unwrap().unwrap();
    assert_eq!(claimed.len(), 1);
}

async fn place_is_kept_until_the_lease_ends(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 4).await;
    here.set_limit(running(2)).await.unwrap();
    let claimed = claim(&here).await;
    assert_eq!(claimed.len(), 2);
    // As if the process had died.
    std::mem::forget(claimed);
    none(&there).await;
    cx.elapse(MINUTE / 2).await;
    none(&there).await;
    cx.elapse(MINUTE).await;
    assert_eq!(places(&there).await, 0);
    assert_eq!(begun(&there).await, 2);
    none(&here).await;
}

async fn killed_worker_leaves_its_places(cx: Context) {
    let queue = cx.queue().await;
    queue.set_limit(running(1)).await.unwrap();
    let mut worker = cx.child("work", &[]);
    assert_eq!(worker.line().await, "ready");
    queue.push_all(vec![job(1), job(2)]).await.unwrap();
    worker.line().await;
    worker.kill();
    none(&queue).await;
    cx.elapse(MINUTE).await;
    let delivery = by_hand_from(&queue).await;
    none(&queue).await;
    delivery.ack().await.unwrap();
    by_hand_from(&queue).await.ack().await.unwrap();
}

async fn lease_that_has_ended_is_not_extended_in_a_limited_queue(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 3).await;
    let delivery = by_hand_from(&here).await;
    cx.elapse(MINUTE * 2).await;
    delivery.extend(MINUTE).await.unwrap();
    there
        .set_limit(JobLimit::default().rate(Quota::per_second(1000)))
        .await
        .unwrap();
    cx.elapse(MINUTE * 2).await;
    delivery.extend(MINUTE).await.unwrap();
    there.set_limit(running(1)).await.unwrap();
    none(&there).await;
    delivery.extend(MINUTE).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    lost(delivery.extend(MINUTE).await);
    let other = by_hand_from(&there).await;
    lost(delivery.extend(MINUTE).await);
    none(&here).await;
    other.extend(MINUTE).await.unwrap();
}

async fn late_completion_takes_nobody_s_place(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 3).await;
    here.set_limit(running(1)).await.unwrap();
    let late = here.claim(&by_hand()).await.unwrap().remove(0);
    cx.elapse(MINUTE * 2).await;
    let taken = by_hand_from(&there).await;
    assert_eq!(taken.id(), late.id(), "it is the first");
    lost(late.ack().await);
    none(&here).await;
    taken.ack().await.unwrap();
    // One that nobody else has got is completed.
    let late = by_hand_from(&here).await;
    cx.elapse(MINUTE * 2).await;
    late.ack().await.unwrap();
    assert_eq!(begun(&there).await, 1);
}

async fn lowered_limit_interrupts_nothing_and_holds_under_load(cx: Context) {
    const JOBS: usize = 150;
    let queue = cx.queue().await;
    push_many(&queue, 100 + JOBS).await;
    queue.set_limit(running(100)).await.unwrap();
    let held = claim(&queue).await;
    assert_eq!(held.len(), 100);
    let counter = Arc::new(Counter::default());
    let mut all = Vec::new();
    for _ in 0..3 {
        let work = consume(cx.queue().await, counter.clone(), JOBS);
        all.push(tokio::spawn(work));
    }
    queue.set_limit(running(1)).await.unwrap();
    for (nth, delivery) in held.into_iter().enumerate() {
        assert_eq!(counter.most(), 0, "{nth} are done");
        delivery.ack().await.unwrap();
        if nth < 99 {
            assert!(places(&queue).await >= 1);
        }
    }
    for one in all {
        soon("the jobs", one).await.unwrap();
    }
    assert_eq!(counter.most(), 1);
}

async fn raised_limit_is_seen_by_whoever_waits(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 5).await;
    here.set_limit(running(1)).await.unwrap();
    let held = by_hand_from(&there).await;
    let wait = |queue: &Arc<dyn Queue>| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.claim(&by_hand().wait(MINUTE)).await })
    };
    let waiting = [wait(&here), wait(&there)];
    tokio::time::sleep(crate::patience::A_MOMENT).await;
    assert!(waiting.iter().all(|it| !it.is_finished()));
    here.set_limit(running(3)).await.unwrap();
    let mut all = Vec::new();
    for one in waiting {
        let claimed = soon("a place", async {
            while !one.is_finished() {
                cx.pass(Duration::from_millis(20)).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            one.await
        });
        all.extend(claimed.await.unwrap().unwrap());
    }
    assert_eq!(all.len(), 2);
    none(&here).await;
    held.ack().await.unwrap();
}

async fn jobs_that_ran_before_the_limit_have_places(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push_many(&here, 10).await;
    let mut held = here.claim(&Claim::new(4).lease(MINUTE)).await.unwrap();
    there.set_limit(running(5)).await.unwrap();
    assert_eq!(places(&here).await, 4);
    assert_eq!(begun(&there).await, 1);
    none(&here).await;
    held.remove(0).ack().await.unwrap();
    assert_eq!(begun(&there).await, 1);
    // A limit of the rate alone notes nothing.
    let rate = JobLimit::default().rate(Quota::per_second(1000));
    here.set_limit(rate).await.unwrap();
    assert_eq!(places(&here).await, 0);
    assert_eq!(begun(&here).await, 4);
    here.set_limit(running(9)).await.unwrap();
    assert_eq!(places(&here).await, 3 + 2 + 4);
    none(&there).await;
}

async fn limit_costs_no_attempt(cx: Context) {
    let queue = cx.queue().await;
    queue
        .push_all(vec![job(1).max_attempts(1), job(2).max_attempts(1)])
        .await
        .unwrap();
    queue.set_limit(running(1)).await.unwrap();
    let first = by_hand_from(&queue).await;
    for _ in 0..20 {
        none(&queue).await;
    }
    first.ack().await.unwrap();
    let second = by_hand_from(&queue).await;
    assert_eq!(second.attempt(), 1);
    second.ack().await.unwrap();
    assert!(queue.dead_letters(0, 9).await.unwrap().is_empty());
}

async fn dead_letters_take_no_place(cx: Context) {
    let queue = cx.queue().await;
    let dead = (0..5).map(|nth| job(nth).max_attempts(1));
    queue.push_all(dead.collect()).await.unwrap();
    std::mem::forget(claim(&queue).await);
    cx.elapse(MINUTE * 2).await;
    push_many(&queue, 3).await;
    let rate = Quota::per_hour(2);
    queue.set_limit(running(2).rate(rate)).await.unwrap();
    let mut claimed = claim_soon(&queue, &many()).await;
    while claimed.len() < 2 {
        claimed.extend(claim_soon(&queue, &many()).await);
    }
    assert_eq!(queue.dead_letters(0, 9).await.unwrap().len(), 5);
    none(&queue).await;
    assert_eq!(claimed[0].attempt(), 1);
}

async fn lost_claim_holds_no_second_place(cx: Context) {
    let backend = quiet(&cx).await;
    let queue = backend.queue("work").unwrap();
    // None comes back meanwhile.
    let limit = running(1).rate(Quota::new(1000, MAX_PERIOD));
    queue.set_limit(limit).await.unwrap();
    let mut done = 0;
    for fault in faults("UPDATE lockapi.job AS j") {
        let told = format!("{fault:?}");
        push_many(&queue, 2).await;
        cx.break_next(fault, 1).await;
        let claimed = soon("an answer", queue.claim(&by_hand())).await;
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        let mut claimed = claimed.unwrap_or_else(|error| panic!("{told}: {error}"));
        if claimed.is_empty() {
            // The lost one may have been under way.
            claimed = claim_soon(&queue, &by_hand()).await;
        }
        assert_eq!(claimed.len(), 1, "{told}");
        assert_eq!(claimed[0].attempt(), 1, "{told}");
        none(&queue).await;
        assert_eq!(places(&queue).await, 1, "{told}");
        claimed.remove(0).ack().await.unwrap();
        by_hand_from(&queue).await.ack().await.unwrap();
        done += 2;
    }
    // As many permits were taken as jobs were done.
    let owed = format!(
        "SELECT round((tat - at) / step::numeric) FROM lockapi.queue_limit WHERE namespace = '{}'",
        cx.namespace()
    );
    assert_eq!(cx.sql(&owed).await, [done.to_string()]);
}

async fn lost_claim_is_found_where_no_permit_is_left(cx: Context) {
    let backend = quiet(&cx).await;
    for (n, fault) in faults("UPDATE lockapi.job AS j").enumerate() {
        let told = format!("{fault:?}");
        let queue = backend.queue(format!("work {n}")).unwrap();
        let limit = JobLimit::default().rate(Quota::per_day(1));
        queue.set_limit(limit).await.unwrap();
        push_many(&queue, 2).await;
        cx.break_next(fault, 1).await;
        let claimed = soon("an answer", queue.claim(&by_hand())).await;
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        let mut claimed = claimed.unwrap_or_else(|error| panic!("{told}: {error}"));
        if claimed.is_empty() {
            // The lost one may have been under way.
            claimed = claim_soon(&queue, &by_hand()).await;
        }
        assert_eq!(claimed.len(), 1, "{told}");
        assert_eq!(claimed[0].attempt(), 1, "{told}");
        none(&queue).await;
    }
}
