//! Workers: how handlers end, and what becomes of their jobs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::Queue;
use lockapi::queue::{Delivery, Job};
use lockapi::worker::{Ending, Failed, Observe, Worker, WorkerOptions};

use super::worker::{Gate, attempts, job, push, run, summary};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "worker":
    Q18 panic_and_error_fail_the_job_and_nothing_else;
    Q18 failed_job_comes_back_after_the_backoff;
    Q18 handler_may_put_off_and_reject;
    Q18 handler_is_stopped_when_its_time_is_over;
    Q18 handler_is_stopped_when_its_job_is_lost;
    Q18 fallback_does_what_has_no_handler;
    Q18 failure_is_sent_although_the_worker_is_dropped [Transactions, Schema];
    Q18 handler_that_nobody_runs_is_put_off;
    Q18 worker_that_is_dropped_tells_of_its_handlers;
    Q10 handler_may_acknowledge_in_its_transaction [Transactions];
}

async fn panic_and_error_fail_the_job_and_nothing_else(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..4).map(|number| job(number).max_attempts(1)).collect();
    queue.push_all(jobs).await.unwrap();
    let worker = Worker::new(queue.clone()).handle("count", async |number: usize, _| {
        match number {
            0 => panic!("boom {number}"),
            1 => drop("x".parse::<u8>()?),
            _ => {}
        }
        Ok(())
    });
    let worker = run(worker);
    eventually("all have ended", async || {
        let jobs = cx.jobs().await;
        (jobs.waiting, jobs.delivered) == (0, 0)
    })
    .await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 4, done: 2, dead: 2 }
    );
    let dead = queue.dead_letters(0, 10).await.unwrap();
    let errors: BTreeMap<&str, &str> = dead
        .iter()
        .map(|it| (it.payload.as_str(), it.error.as_str()))
        .collect();
    assert_eq!(errors["0"], "the handler panicked: boom 0");
    assert_eq!(errors["1"], "invalid digit found in string");
}

/// A worker that looks often: the fixture moves time without telling anybody.
fn looking(queue: &Arc<dyn Queue>) -> Worker {
    // Time that is moved while a claim is under way is taken from its lease.
    Worker::new(queue.clone())
        .poll(Duration::from_millis(20))
        .lease(MINUTE * 60)
}

async fn failed_job_comes_back_after_the_backoff(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 1).await;
    let (handler, mut gate) = Gate::new();
    let options = WorkerOptions::default().backoff(|attempt| MINUTE * attempt);
    let worker = looking(&queue).handle_with("count", options, handler);
    let worker = run(worker);
    for (attempt, answer, time) in [
        (1, Failed::retry("no"), MINUTE),
        (2, Failed::retry("no"), MINUTE * 2),
        (3, Failed::retry_after("no", MINUTE * 7), MINUTE * 7),
    ] {
        let begun = gate.begun().await;
        assert_eq!(begun.job.attempt(), attempt);
        begun.end(Err(answer));
        eventually("it is told", async || cx.jobs().await.waiting == 1).await;
        cx.elapse(time.saturating_sub(MINUTE / 2)).await;
        gate.none_begins().await;
        cx.elapse(MINUTE / 2).await;
    }
    gate.begun().await.end(Ok(()));
    eventually("it is told", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 4, done: 1, failed: 3 }
    );
}

async fn handler_may_put_off_and_reject(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).max_attempts(1)).await.unwrap();
    let (handler, mut gate) = Gate::new();
    let worker = run(looking(&queue).handle("count", handler));
    gate.begun().await.end(Err(Failed::snooze(MINUTE)));
    eventually("it is told", async || cx.jobs().await.waiting == 1).await;
    gate.none_begins().await;
    cx.elapse(MINUTE).await;
    let begun = gate.begun().await;
    assert_eq!(begun.job.attempt(), 1, "it does not count");
    begun.end(Err(Failed::reject("never")));
    eventually("it is told", async || cx.jobs().await.ended == 1).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 2, dead: 1, snoozed: 1 }
    );
    assert_eq!(queue.dead_letters(0, 1).await.unwrap()[0].error, "never");
}

async fn handler_is_stopped_when_its_time_is_over(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).max_attempts(1)).await.unwrap();
    let (handler, mut gate) = Gate::new();
    let options = WorkerOptions::default().timeout(Duration::from_millis(30));
    let worker = Worker::new(queue.clone()).handle_with("count", options, handler);
    let worker = run(worker);
    gate.begun().await.dropped().await;
    eventually("it is told", async || cx.jobs().await.ended == 1).await;
    assert_eq!(worker.end().await.dead, 1);
    let dead = queue.dead_letters(0, 1).await.unwrap();
    assert_eq!(dead[0].error, "the handler did not end within 30ms");
}

async fn handler_is_stopped_when_its_job_is_lost(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let id = here.push(job(1)).await.unwrap().id;
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(here).handle("count", handler);
    let worker = run(worker.lease(Duration::from_millis(1500)));
    let begun = gate.begun().await;
    assert_eq!(there.cancel(vec![id]).await.unwrap(), [id]);
    cx.pass(Duration::from_millis(600)).await;
    begun.dropped().await;
    assert_eq!(worker.end().await, summary! { claimed: 1, lost: 1 });
}

async fn fallback_does_what_has_no_handler(cx: Context) {
    let queue = cx.queue().await;
    queue.push(Job::new("other", &7).unwrap()).await.unwrap();
    push(&queue, 1).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&seen);
    let worker = Worker::new(queue)
        .handle("count", async |_: usize, _| Ok(()))
        .fallback(move |job| {
            let heard = Arc::clone(&heard);
            async move {
                let text = format!("{} {}", job.name(), job.payload());
                heard.lock().unwrap().push(text);
                Ok(())
            }
        });
    let worker = run(worker);
    eventually("all are done", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(worker.end().await.done, 2);
    assert_eq!(*seen.lock().unwrap(), ["other 7"]);
}

async fn handler_may_acknowledge_in_its_transaction(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 1).await;
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(queue.clone()).handle("count", handler);
    let worker = run(worker.lease(Duration::from_millis(1500)));
    let mut begun = gate.begun().await;
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(begun.job.delivery()).await.unwrap();
    tx.commit().await;
    // The worker learns that the job has ended.
    cx.pass(Duration::from_millis(600)).await;
    not_yet("the handler goes on", begun.end.closed()).await;
    begun.end(Ok(()));
    assert_eq!(worker.end().await, summary! { claimed: 1, done: 1 });
}

/// The worker is dropped while it sends that, and a transaction has locked the job.
async fn failure_is_sent_although_the_worker_is_dropped(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 1).await;
    let (handler, mut gate) = Gate::new();
    let worker = run(looking(&queue).handle("count", handler));
    let begun = gate.begun().await;
    let mut tx = cx.begin().await.unwrap();
    let lock = format!(
        "SELECT id::text FROM lockapi.job WHERE namespace = '{}' FOR UPDATE",
        cx.namespace()
    );
    tx.query(lock.leak()).await;
    begun.end(Err(Failed::retry_after("no", MINUTE * 60)));
    // It asks again and again.
    tokio::time::sleep(Duration::from_millis(100)).await;
    worker.running.abort();
    assert!(worker.running.await.unwrap_err().is_cancelled());
    tx.rollback().await;
    eventually("it is known", async || cx.jobs().await.waiting == 1).await;
    assert_eq!(attempts(&queue).await, [0; 0], "it is put off");
    cx.elapse(MINUTE * 60).await;
    assert_eq!(attempts(&queue).await, [2], "it counted");
}

/// A runtime that has shut down drops what is spawned on it.
async fn handler_that_nobody_runs_is_put_off(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 3).await;
    let seen = Seen::default();
    let (spawned, worked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let worker = |kept: bool| {
        let (spawned, worked) = (Arc::clone(&spawned), Arc::clone(&worked));
        Worker::new(queue.clone())
            .observe(seen.clone())
            .handle("count", move |_: usize, _| {
                worked.fetch_add(1, Ordering::AcqRel);
                async { Ok(()) }
            })
            .spawn_with(move |work| {
                spawned.fetch_add(1, Ordering::AcqRel);
                if kept {
                    tokio::spawn(work);
                }
            })
    };
    let idle = soon("nothing is due", worker(false).run_until_idle()).await;
    assert_eq!(idle.unwrap(), summary! { claimed: 3, snoozed: 3 });
    assert_eq!(spawned.load(Ordering::Acquire), 3);
    assert_eq!(seen.0.load(Ordering::Acquire), 3);
    cx.elapse(MINUTE).await;
    let done = soon("they are run", worker(true).run_until_idle()).await;
    assert_eq!(done.unwrap(), summary! { claimed: 3, done: 3 });
}

async fn worker_that_is_dropped_tells_of_its_handlers(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut gate) = Gate::new();
    let told = Told::default();
    let worker = Worker::new(queue.clone()).concurrency(2).prefetch(0);
    let worker = run(worker.observe(told.clone()).handle("count", handler));
    let begun = [gate.begun().await, gate.begun().await];
    worker.running.abort();
    soon("it is dropped", worker.running).await.unwrap_err();
    let endings = told.0.lock().unwrap().clone();
    assert_eq!(endings, [Ending::Released, Ending::Released]);
    drop(begun);
}

/// How an observer was told that handlers ended.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Ending>>>);

impl Observe for Told {
    fn finished(&self, _: &Delivery, ending: &Ending, _: Duration) {
        self.0.lock().unwrap().push(ending.clone());
    }
}

/// How many handlers an observer was told nobody ran.
#[derive(Clone, Default)]
struct Seen(Arc<AtomicUsize>);

impl Observe for Seen {
    fn dropped(&self, _: &Delivery) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
