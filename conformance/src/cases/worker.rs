//! Workers: which handler a job goes to, how many run, and what becomes of the jobs.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, Job};
use lockapi::worker::{Context as Working, Failed, Stop, Summary, Terms, Worker};
use lockapi::{ErrorKind, Queue, QueueExt, Result, blocking};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::context::{Context, MINUTE};
use crate::face::off_runtime;
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{A_MOMENT, eventually, not_yet, soon};

register! { "worker":
    Q18 as_many_handlers_run_as_may;
    Q18 spawned_handlers_are_as_many_as_may_run;
    Q18 job_outlives_its_lease_for_as_long_as_its_handler_runs;
    Q18 stopped_worker_lets_handlers_end;
    Q18 stopped_worker_gives_back_what_has_not_ended;
    Q18 dropped_worker_gives_back_what_it_has;
    Q18 panic_and_error_fail_the_job_and_nothing_else;
    Q18 failed_job_comes_back_after_the_backoff;
    Q18 handler_may_put_off_and_reject;
    Q18 handler_is_stopped_when_its_time_is_over;
    Q18 handler_is_stopped_when_its_job_is_lost;
    Q18 jobs_that_nobody_understands_are_dead_letters;
    Q18 fallback_does_what_has_no_handler;
    Q10 handler_may_acknowledge_in_its_transaction [Transactions];
    Q02 workers_do_each_job_once;
    Q18 settings_outside_of_their_limits_are_refused;
    Q18 as_many_threads_run_as_may;
    Q18 thread_is_told_that_its_time_is_over_and_keeps_its_place;
    Q18 blocking_worker_fails_rejects_and_gives_back;
}

/// A handler that has begun, and waits to be told how to end.
struct Begun {
    number: usize,
    job: Working,
    end: oneshot::Sender<Result<(), Failed>>,
}

impl Begun {
    fn end(self, answer: Result<(), Failed>) {
        drop(self.end.send(answer));
    }

    /// Waits until the handler has been dropped.
    async fn dropped(mut self) {
        soon("the handler is dropped", self.end.closed()).await;
        soon("it is told", self.job.lost()).await;
        assert!(self.job.is_lost());
    }
}

struct Gate(mpsc::UnboundedReceiver<Begun>);

impl Gate {
    /// A handler that does what the case says, and where the case hears of it.
    fn new() -> (
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

    async fn begun(&mut self) -> Begun {
        soon("a handler begins", self.0.recv())
            .await
            .expect("the worker is there")
    }

    async fn none_begins(&mut self) {
        not_yet("no handler begins", self.0.recv()).await;
    }
}

type Gated = std::pin::Pin<Box<dyn Future<Output = Result<(), Failed>> + Send>>;

/// A worker that runs.
struct Runs {
    stop: Stop,
    running: JoinHandle<Result<Summary>>,
}

fn run(worker: Worker) -> Runs {
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped.stopped()).await });
    Runs { stop, running }
}

impl Runs {
    async fn end(self) -> Summary {
        self.stop.stop();
        soon("the worker ends", self.running)
            .await
            .unwrap()
            .unwrap()
    }
}

fn job(number: usize) -> Job {
    Job::new("count", &number).unwrap()
}

fn tally(summary: &Summary) -> [u64; 8] {
    let it = summary;
    [
        it.claimed,
        it.done,
        it.failed,
        it.dead,
        it.snoozed,
        it.released,
        it.lost,
        it.unknown,
    ]
}

async fn push(queue: &Arc<dyn Queue>, jobs: usize) {
    queue.push_all((0..jobs).map(job).collect()).await.unwrap();
}

/// Takes all jobs that wait, and answers their attempts.
async fn attempts(queue: &Arc<dyn Queue>) -> Vec<u32> {
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
    assert_eq!(tally(&worker.end().await), [12, 12, 0, 0, 0, 0, 0, 0]);
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
    assert_eq!(tally(&worker.end().await), [2, 1, 1, 0, 0, 0, 0, 0]);
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
    assert_eq!(tally(&summary), [back, 0, 0, 0, 0, back, 0, 0]);
    first.dropped().await;
    second.dropped().await;
    assert_eq!(attempts(&queue).await, [1; 6], "uncounted");
}

async fn dropped_worker_gives_back_what_it_has(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut gate) = Gate::new();
    let worker = run(Worker::new(queue.clone()).handle("count", handler));
    let (first, second) = (gate.begun().await, gate.begun().await);
    worker.running.abort();
    first.dropped().await;
    second.dropped().await;
    eventually("they are back", async || cx.jobs().await.waiting == 2).await;
    assert_eq!(attempts(&queue).await, [1, 1], "uncounted");
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
    assert_eq!(tally(&worker.end().await), [4, 2, 0, 2, 0, 0, 0, 0]);
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
    Worker::new(queue.clone()).poll(Duration::from_millis(20))
}

async fn failed_job_comes_back_after_the_backoff(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 1).await;
    let (handler, mut gate) = Gate::new();
    let terms = Terms::default().backoff(|attempt| MINUTE * attempt);
    let worker = looking(&queue).handle_with("count", terms, handler);
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
    assert_eq!(tally(&worker.end().await), [4, 1, 3, 0, 0, 0, 0, 0]);
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
    assert_eq!(tally(&worker.end().await), [2, 0, 0, 1, 1, 0, 0, 0]);
    assert_eq!(queue.dead_letters(0, 1).await.unwrap()[0].error, "never");
}

async fn handler_is_stopped_when_its_time_is_over(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).max_attempts(1)).await.unwrap();
    let (handler, mut gate) = Gate::new();
    let terms = Terms::default().timeout(Duration::from_millis(30));
    let worker = Worker::new(queue.clone()).handle_with("count", terms, handler);
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
    assert_eq!(tally(&worker.end().await), [1, 0, 0, 0, 0, 0, 1, 0]);
}

async fn jobs_that_nobody_understands_are_dead_letters(cx: Context) {
    let queue = cx.queue().await;
    queue.push(Job::new("other", &1).unwrap()).await.unwrap();
    queue
        .push(Job::new("count", "text").unwrap())
        .await
        .unwrap();
    push(&queue, 1).await;
    let (handler, mut gate) = Gate::new();
    let worker = run(Worker::new(queue.clone()).handle("count", handler));
    gate.begun().await.end(Ok(()));
    eventually("all have ended", async || {
        let jobs = cx.jobs().await;
        (jobs.waiting, jobs.delivered) == (0, 0)
    })
    .await;
    assert_eq!(tally(&worker.end().await), [3, 1, 0, 2, 0, 0, 0, 0]);
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!(
        dead[0].error,
        "this worker has no handler for jobs named \"other\""
    );
    let error = &dead[1].error;
    assert!(error.contains("payload is not what"), "{error}");
    assert!(!error.contains("text"), "without the payload: {error}");
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
    assert_eq!(tally(&worker.end().await), [1, 1, 0, 0, 0, 0, 0, 0]);
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
        assert_eq!(summary.claimed, summary.done);
        total += summary.done;
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
        |worker| worker.terms(Terms::default().timeout(Duration::ZERO)),
        |worker| worker.handle("count", async |_: usize, _| Ok(())),
    ];
    for (nth, set) in refused.into_iter().enumerate() {
        let worker = Worker::new(queue.clone()).handle("count", async |_: usize, _| Ok(()));
        let refused = set(worker).run(std::future::pending());
        let error = soon("it is refused", refused).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{nth}: {error}");
    }
    let error = Worker::new(queue).run(std::future::pending()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
}

/// A handler on a thread that has begun, and waits to be told how to end.
struct Thread {
    job: blocking::Context,
    end: std::sync::mpsc::Sender<Result<(), Failed>>,
}

type Threads = mpsc::UnboundedReceiver<Thread>;

fn on_threads() -> (
    impl Fn(usize, blocking::Context) -> Result<(), Failed> + Send + Sync + 'static,
    Threads,
) {
    let (sender, begun) = mpsc::unbounded_channel();
    let handler = move |_, job| {
        let (end, answer) = std::sync::mpsc::channel();
        drop(sender.send(Thread { job, end }));
        answer.recv().unwrap_or(Ok(()))
    };
    (handler, begun)
}

async fn thread(threads: &mut Threads) -> Thread {
    soon("a handler begins", threads.recv()).await.unwrap()
}

fn run_blocking(worker: blocking::Worker) -> Runs {
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::task::spawn_blocking(move || worker.run(&stopped));
    Runs { stop, running }
}

async fn as_many_threads_run_as_may(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 6).await;
    let (handler, mut threads) = on_threads();
    let worker = blocking::Worker::new(&queue.into());
    let worker = run_blocking(worker.handle("count", handler).concurrency(3));
    let mut at_work = Vec::new();
    for _ in 0..3 {
        at_work.push(thread(&mut threads).await);
    }
    not_yet("no fourth begins", threads.recv()).await;
    for _ in 0..3 {
        at_work.remove(0).end.send(Ok(())).unwrap();
        at_work.push(thread(&mut threads).await);
    }
    drop(at_work);
    eventually("all are told", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(tally(&worker.end().await), [6, 6, 0, 0, 0, 0, 0, 0]);
}

async fn thread_is_told_that_its_time_is_over_and_keeps_its_place(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..2).map(|number| job(number).max_attempts(1)).collect();
    queue.push_all(jobs).await.unwrap();
    let (handler, mut threads) = on_threads();
    let terms = Terms::default().timeout(Duration::from_millis(30));
    let worker = blocking::Worker::new(&queue.into()).handle_with("count", terms, handler);
    let worker = run_blocking(worker.concurrency(1));
    let first = thread(&mut threads).await;
    let job = first.job.clone();
    soon("it is told", off_runtime(move || job.lost())).await;
    assert!(first.job.is_lost());
    eventually("it has failed", async || cx.jobs().await.ended == 1).await;
    not_yet("its place is taken", threads.recv()).await;
    first.end.send(Ok(())).unwrap();
    let second = thread(&mut threads).await;
    eventually("it has failed", async || cx.jobs().await.ended == 2).await;
    // The worker ends although its handler does not.
    assert_eq!(tally(&worker.end().await), [2, 0, 0, 2, 0, 0, 0, 0]);
    second.end.send(Ok(())).unwrap();
}

async fn blocking_worker_fails_rejects_and_gives_back(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..3).map(|number| job(number).max_attempts(1)).collect();
    queue.push_all(jobs).await.unwrap();
    let (gated, mut threads) = on_threads();
    let worker = blocking::Worker::new(&queue.clone().into())
        .handle("count", move |number: usize, job| match number {
            0 => panic!("boom"),
            1 => Err(Failed::reject("never")),
            _ => gated(number, job),
        })
        .grace(Duration::ZERO);
    let worker = run_blocking(worker);
    let last = thread(&mut threads).await;
    eventually("two have failed", async || cx.jobs().await.ended == 2).await;
    let summary = worker.end().await;
    // A claim that was under way may have met what was given back, and gives it back again.
    let back = summary.released;
    assert!(back >= 1, "{summary:?}");
    assert_eq!(tally(&summary), [2 + back, 0, 0, 2, 0, back, 0, 0]);
    assert!(last.job.is_lost());
    tokio::time::sleep(A_MOMENT / 4).await;
    assert_eq!(attempts(&queue).await, [1], "uncounted");
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!(dead[0].error, "the handler panicked: boom");
    assert_eq!(dead[1].error, "never");
}
