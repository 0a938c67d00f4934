//! Workers: which handler a job goes to, how many run, and what becomes of the jobs.

use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, Job};
use lockapi::worker::{Context as Working, Failed, Summary, Worker, WorkerOptions};
use lockapi::{ErrorKind, Queue, Result, Stop};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "worker":
    Q18 as_many_handlers_run_as_may;
    Q18 spawned_handlers_are_as_many_as_may_run;
    Q18 job_outlives_its_lease_for_as_long_as_its_handler_runs;
    Q18 stopped_worker_lets_handlers_end;
    Q18 stopped_worker_gives_back_what_has_not_ended;
    Q18 dropped_worker_gives_back_what_it_has;
    Q02 workers_do_each_job_once;
    Q18 settings_outside_of_their_limits_are_refused;
}

/// A handler that has begun, and waits to be told how to end.
pub(super) struct Begun {
    pub(super) number: usize,
    pub(super) job: Working,
    pub(super) end: oneshot::Sender<Result<(), Failed>>,
}

impl Begun {
    pub(super) fn end(self, answer: Result<(), Failed>) {
        drop(self.end.send(answer));
    }

    /// Waits until the handler has been dropped.
    pub(super) async fn dropped(mut self) {
        soon("the handler is dropped", self.end.closed()).await;
        soon("it is told", self.job.lost()).await;
        assert!(self.job.is_lost());
    }
}

pub(super) struct Gate(mpsc::UnboundedReceiver<Begun>);

impl Gate {
    /// A handler that does what the case says, and where the case hears of it.
    pub(super) fn new() -> (
        impl Fn(usize, Working) -> Gated + Clone + Send + Sync + 'static,
        Self,
    ) {
        let (sender, begun) = mpsc::unbounded_channel();
        let handler = move |number, job| -> Gated {
            let sender = sender.clone();
            Box::pin(async move {
                let (end, answer) = oneshot::channel();
                drop(sender.send(Begun { number, job, end }));
                answer.await.unwrap_or(Ok(()))
            })
        };
        (handler, Self(begun))
    }

    pub(super) async fn begun(&mut self) -> Begun {
        soon("a handler begins", self.0.recv())
            .await
            .expect("the worker is there")
    }

    pub(super) async fn none_begins(&mut self) {
        not_yet("no handler begins", self.0.recv()).await;
    }
}

pub(super) type Gated = std::pin::Pin<Box<dyn Future<Output = Result<(), Failed>> + Send>>;

/// A worker that runs.
pub(super) struct Runs {
    pub(super) stop: Stop,
    pub(super) running: JoinHandle<Result<Summary>>,
}

pub(super) fn run(worker: Worker) -> Runs {
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    Runs { stop, running }
}

impl Runs {
    pub(super) async fn end(self) -> Summary {
        self.stop.stop();
        soon("the worker ends", self.running)
            .await
            .unwrap()
            .unwrap()
    }
}

pub(super) fn job(number: usize) -> Job {
    Job::new("count", &number).unwrap()
}

/// What a worker did, by the fields that are not zero.
macro_rules! summary {
    { $($field:ident: $value:expr),* } => {{
        let mut summary = lockapi::worker::Summary::default();
        $(summary.$field = $value;)*
        summary
    }};
}
pub(super) use summary;

pub(super) async fn push(queue: &Arc<dyn Queue>, jobs: usize) {
    queue.push_all((0..jobs).map(job).collect()).await.unwrap();
}

/// Takes all jobs that wait, and answers their attempts.
pub(super) async fn attempts(queue: &Arc<dyn Queue>) -> Vec<u32> {
    let claimed = queue.claim(&Claim::new(100)).await.unwrap();
    let attempts = claimed.iter().map(Delivery::attempt).collect();
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    attempts
}

async fn as_many_handlers_run_as_may(cx: Context) {
    bounded(cx, |worker| worker).await;
}

async fn spawned_handlers_are_as_many_as_may_run(cx: Context) {
    bounded(cx, |worker| {
        worker.spawn_with(|work| drop(tokio::spawn(work)))
    })
    .await;
}

async fn bounded(cx: Context, set: impl FnOnce(Worker) -> Worker) {
    let queue = cx.queue().await;
    push(&queue, 12).await;
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(queue).handle("count", handler).concurrency(5);
    let worker = run(set(worker));
    let mut at_work = Vec::new();
    for _ in 0..5 {
        at_work.push(gate.begun().await);
    }
    gate.none_begins().await;
    let mut seen: Vec<usize> = at_work.iter().map(|it| it.number).collect();
    for round in 0..7 {
        at_work.remove(0).end(Ok(()));
        at_work.push(gate.begun().await);
        seen.push(at_work[4].number);
        if round == 3 {
            gate.none_begins().await;
        }
    }
    for begun in at_work {
        begun.end(Ok(()));
    }
    eventually("all are told", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(worker.end().await, summary! { claimed: 12, done: 12 });
    seen.sort_unstable();
    assert_eq!(seen, (0..12).collect::<Vec<_>>());
}

async fn job_outlives_its_lease_for_as_long_as_its_handler_runs(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    push(&here, 1).await;
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(here).handle("count", handler);
    let worker = run(worker.lease(Duration::from_secs(3)));
    let begun = gate.begun().await;
    for _ in 0..4 {
        cx.pass(Duration::from_millis(1100)).await;
        eventually("it is extended", async || {
            cx.lease_of_jobs().await.unwrap() > Duration::from_secs(2)
        })
        .await;
        assert!(there.claim(&Claim::new(1)).await.unwrap().is_empty());
    }
    begun.end(Ok(()));
    eventually("it is told", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(worker.end().await.done, 1);
}

async fn stopped_worker_lets_handlers_end(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 6).await;
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(queue.clone()).handle("count", handler);
    let mut worker = run(worker.concurrency(2).grace(MINUTE * 10));
    let (first, second) = (gate.begun().await, gate.begun().await);
    worker.stop.stop();
    not_yet("handlers run", &mut worker.running).await;
    first.end(Ok(()));
    eventually("it is told", async || cx.jobs().await.delivered == 1).await;
    gate.none_begins().await;
    second.end(Err(Failed::retry_after("no", Duration::ZERO)));
    assert_eq!(
        worker.end().await,
        summary! { claimed: 2, done: 1, failed: 1 }
    );
    let mut attempts = attempts(&queue).await;
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 1, 1, 1, 2]);
}

async fn stopped_worker_gives_back_what_has_not_ended(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 6).await;
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(queue.clone()).handle("count", handler);
    let worker = run(worker.concurrency(2).grace(Duration::ZERO));
    let (first, second) = (gate.begun().await, gate.begun().await);
    let summary = worker.end().await;
    // A claim that was under way may have met what was given back, and gives it back again.
    let back = summary.released;
    assert!(back >= 2, "{summary:?}");
    assert_eq!(summary, summary! { claimed: back, released: back });
    first.dropped().await;
    second.dropped().await;
    assert_eq!(attempts(&queue).await, [1; 6], "uncounted");
}

async fn dropped_worker_gives_back_what_it_has(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut gate) = Gate::new();
    // With as many as it may have it claims no more: what comes back stays.
    let worker = Worker::new(queue.clone())
        .handle("count", handler)
        .concurrency(2);
    let worker = run(worker);
    let (first, second) = (gate.begun().await, gate.begun().await);
    worker.running.abort();
    first.dropped().await;
    second.dropped().await;
    eventually("they are back", async || cx.jobs().await.waiting == 2).await;
    assert_eq!(attempts(&queue).await, [1, 1], "uncounted");
}

async fn workers_do_each_job_once(cx: Context) {
    const JOBS: usize = 2000;
    let queues = [cx.queue().await, cx.queue().await];
    let done = Arc::new(Mutex::new(Vec::new()));
    let workers: Vec<_> = queues
        .iter()
        .map(|queue| {
            let done = Arc::clone(&done);
            let worker = Worker::new(queue.clone())
                .handle("count", move |number: usize, _| {
                    let done = Arc::clone(&done);
                    async move {
                        tokio::task::yield_now().await;
                        done.lock().unwrap().push(number);
                        Ok(())
                    }
                })
                .spawn_with(|work| drop(tokio::spawn(work)));
            run(worker)
        })
        .collect();
    push(&queues[0], JOBS / 2).await;
    let rest = (JOBS / 2..JOBS).map(job).collect();
    queues[1].push_all(rest).await.unwrap();
    eventually("all are done", async || cx.jobs().await == Jobs::default()).await;
    let mut total = 0;
    for worker in workers {
        let summary = worker.end().await;
        // What a busy machine did not begin soon was given back, and claimed again.
        let (done, released) = (summary.done, summary.released);
        let claimed = done + released;
        assert_eq!(
            summary,
            summary! { claimed: claimed, done: done, released: released }
        );
        total += done;
    }
    assert_eq!(total, 2000);
    let mut done = done.lock().unwrap().clone();
    done.sort_unstable();
    assert_eq!(done, (0..JOBS).collect::<Vec<_>>());
}

async fn settings_outside_of_their_limits_are_refused(cx: Context) {
    type Set = fn(Worker) -> Worker;
    let queue = cx.queue().await;
    let refused: [Set; 9] = [
        |worker| worker.concurrency(0),
        |worker| worker.concurrency(1001),
        |worker| worker.prefetch(1001),
        |worker| worker.poll(Duration::ZERO),
        |worker| worker.grace(Duration::MAX),
        |worker| worker.lease(Duration::ZERO),
        |worker| worker.name("x".repeat(256)),
        |worker| worker.options(WorkerOptions::default().timeout(Duration::ZERO)),
        |worker| worker.handle("count", async |_: usize, _| Ok(())),
    ];
    for (nth, set) in refused.into_iter().enumerate() {
        let worker = Worker::new(queue.clone()).handle("count", async |_: usize, _| Ok(()));
        let refused = set(worker).run(Stop::new());
        let error = soon("it is refused", refused).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{nth}: {error}");
    }
    let error = Worker::new(queue).run(Stop::new()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
}
