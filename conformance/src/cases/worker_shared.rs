//! Workers of several queues that share a number of handlers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::worker::{Context as Working, SharedConcurrency, Worker};
use lockapi::{ErrorKind, Queue, Stop, blocking};

use super::worker::{Begun, Gate, push, run};
use crate::context::Context;
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "worker_shared":
    Q34 handlers_of_several_queues_are_shared_by_weight;
    Q34 what_a_queue_does_not_use_others_do;
    Q34 handlers_of_a_worker_that_was_dropped_are_free;
    Q34 workers_of_both_faces_share_handlers;
    Q34 settings_of_shared_handlers_outside_of_their_limits_are_refused;
}

async fn queues(cx: &Context, jobs: [usize; 2]) -> [Arc<dyn Queue>; 2] {
    let backend = cx.backend().await;
    let queues = ["mails", "reports"].map(|name| backend.queue(name).unwrap());
    for (queue, jobs) in queues.iter().zip(jobs) {
        push(queue, jobs).await;
    }
    queues
}

/// How many handlers of each queue run, which are told to end one at a time.
struct Running {
    gate: Gate,
    begun: [Vec<Begun>; 2],
}

impl Running {
    fn new(gate: Gate) -> Self {
        Self {
            gate,
            begun: Default::default(),
        }
    }

    async fn next(&mut self) {
        let begun = self.gate.begun().await;
        self.begun[usize::from(begun.job.queue().name() == "reports")].push(begun);
    }

    fn end(&mut self, queue: usize) {
        self.begun[queue].pop().unwrap().end(Ok(()));
    }

    fn counts(&self) -> [usize; 2] {
        [self.begun[0].len(), self.begun[1].len()]
    }
}

async fn handlers_of_several_queues_are_shared_by_weight(cx: Context) {
    let [mails, reports] = queues(&cx, [20, 20]).await;
    let handlers = SharedConcurrency::new(4);
    let (handler, gate) = Gate::new();
    let mut running = Running::new(gate);
    let mails = Worker::new(mails)
        .handle("count", handler.clone())
        .share(&handlers, 3);
    let reports = Worker::new(reports)
        .handle("count", handler)
        .share(&handlers, 1);
    let (mails, reports) = (run(mails), run(reports));
    for _ in 0..4 {
        running.next().await;
    }
    running.gate.none_begins().await;
    // Whoever was there first may have taken what the other had not asked for yet.
    for _ in 0..4 {
        match running.counts() {
            [3, 1] => break,
            [4, _] => running.end(0),
            _ => running.end(1),
        }
        running.next().await;
    }
    for queue in [0, 1, 0, 0, 1] {
        assert_eq!(running.counts(), [3, 1]);
        running.end(queue);
        running.next().await;
    }
    assert_eq!(running.counts(), [3, 1]);
    running.gate.none_begins().await;
    mails.stop.stop();
    reports.stop.stop();
    for queue in [0, 0, 0, 1] {
        running.end(queue);
    }
    let (mails, reports) = (mails.end().await, reports.end().await);
    assert!(
        mails.done >= 6 && reports.done >= 3,
        "{mails:?} {reports:?}"
    );
}

async fn what_a_queue_does_not_use_others_do(cx: Context) {
    let [mails, reports] = queues(&cx, [8, 0]).await;
    let handlers = SharedConcurrency::new(4);
    let (handler, gate) = Gate::new();
    let mut running = Running::new(gate);
    let worker = |queue: &Arc<dyn Queue>| {
        Worker::new(Arc::clone(queue))
            .handle("count", handler.clone())
            .poll(Duration::from_millis(50))
            .share(&handlers, 1)
    };
    let workers = [run(worker(&mails)), run(worker(&reports))];
    // A queue that is found empty leaves what is its own.
    for _ in 0..4 {
        running.next().await;
    }
    assert_eq!(running.counts(), [4, 0]);
    push(&reports, 1).await;
    running.gate.none_begins().await;
    running.end(0);
    running.next().await;
    assert_eq!(running.counts(), [3, 1]);
    // It has no more.
    for queue in [1, 0, 0, 0] {
        running.end(queue);
        running.next().await;
        assert_eq!(running.counts()[1], 0);
    }
    for _ in 0..4 {
        running.end(0);
    }
    eventually("all are told", async || cx.jobs().await == Jobs::default()).await;
    let [mails, reports] = workers;
    assert_eq!(mails.end().await.done, 8);
    assert_eq!(reports.end().await.done, 1);
}

async fn handlers_of_a_worker_that_was_dropped_are_free(cx: Context) {
    let [mails, reports] = queues(&cx, [2, 2]).await;
    let handlers = SharedConcurrency::new(2);
    let (handler, gate) = Gate::new();
    let mut running = Running::new(gate);
    let worker = |queue| {
        let worker = Worker::new(queue).handle("count", handler.clone());
        run(worker.share(&handlers, 1))
    };
    let first = worker(mails);
    running.next().await;
    running.next().await;
    assert_eq!(running.counts(), [2, 0]);
    let second = worker(reports);
    running.gate.none_begins().await;
    first.running.abort();
    running.next().await;
    running.next().await;
    assert_eq!(running.counts(), [2, 2]);
    for begun in std::mem::take(&mut running.begun[0]) {
        begun.dropped().await;
    }
    running.end(1);
    running.end(1);
    assert_eq!(second.end().await.done, 2);
}

/// How many run, and the most that did.
#[derive(Default)]
struct Counted {
    running: AtomicUsize,
    peak: AtomicUsize,
    done: Mutex<Vec<(String, usize)>>,
}

impl Counted {
    fn begin(&self) {
        let running = self.running.fetch_add(1, Ordering::AcqRel) + 1;
        self.peak.fetch_max(running, Ordering::AcqRel);
    }

    fn end(&self, queue: &str, number: usize) {
        self.done.lock().unwrap().push((queue.to_owned(), number));
        self.running.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn workers_of_both_faces_share_handlers(cx: Context) {
    let [mails, reports] = queues(&cx, [60, 60]).await;
    let handlers = SharedConcurrency::new(3);
    let counted = Arc::new(Counted::default());
    let (on_tasks, on_threads) = (Arc::clone(&counted), Arc::clone(&counted));
    let mails = Worker::new(mails)
        .share(&handlers, 1)
        .spawn_with(|work| drop(tokio::spawn(work)))
        .handle("count", move |number: usize, job: Working| {
            let counted = Arc::clone(&on_tasks);
            async move {
                counted.begin();
                tokio::time::sleep(Duration::from_millis(1)).await;
                counted.end(job.queue().name(), number);
                Ok(())
            }
        });
    let reports = blocking::Worker::new(&reports.into())
        .share(&handlers, 2)
        .handle("count", move |number: usize, job| {
            on_threads.begin();
            std::thread::sleep(Duration::from_millis(1));
            on_threads.end(job.queue().name(), number);
            Ok(())
        });
    let stop = Stop::new();
    let stopped = stop.clone();
    let reports = tokio::task::spawn_blocking(move || reports.run(&stopped));
    let mails = run(mails);
    eventually("all are told", async || cx.jobs().await == Jobs::default()).await;
    stop.stop();
    let reports = soon("the worker ends", reports).await.unwrap().unwrap();
    assert_eq!((mails.end().await.done, reports.done), (60, 60));
    assert!(counted.peak.load(Ordering::Acquire) <= 3);
    let mut done = counted.done.lock().unwrap().clone();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done.len(), 120);
}

async fn settings_of_shared_handlers_outside_of_their_limits_are_refused(cx: Context) {
    let queue = cx.queue().await;
    let worker = |handlers: &SharedConcurrency, weight| {
        let worker = Worker::new(queue.clone()).handle("count", async |_: usize, _| Ok(()));
        worker.share(handlers, weight)
    };
    let good = SharedConcurrency::new(1);
    for (handlers, weight, message) in [
        (0, 1, "a shared concurrency of 0; allowed are 1 to 1000"),
        (
            1001,
            1,
            "a shared concurrency of 1001; allowed are 1 to 1000",
        ),
        (1, 0, "a weight of 0; allowed are 1 to 1000"),
        (1, 1001, "a weight of 1001; allowed are 1 to 1000"),
    ] {
        let handlers = SharedConcurrency::new(handlers);
        let error = worker(&handlers, weight)
            .run_until_idle()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(message), "{error}");
    }
    let first = run(worker(&good, 1));
    eventually("it runs", async || {
        format!("{good:?}").contains("workers: 1")
    })
    .await;
    let error = worker(&good, 1).run_until_idle().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let message = "a shared concurrency of 1 has 1 workers already; each needs a handler";
    assert!(error.to_string().contains(message), "{error}");
    first.end().await;
    worker(&good, 1).run_until_idle().await.unwrap();
}
