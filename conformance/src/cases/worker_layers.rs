//! Workers: layers around the attempts of handlers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::queue::Job;
use lockapi::worker::{
    BatchJob, BatchOptions, Context as Working, Failed, Next, Summary, Worker, WorkerOptions,
};
use lockapi::{Queue, blocking};
use tokio::sync::Semaphore;

use super::worker::{Gate, Gated, attempts, job, push, run, summary};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "worker_layers":
    Q30 layers_are_around_each_attempt_in_the_order_in_which_they_were_added;
    Q30 layer_decides_what_comes_of_a_job;
    Q30 panics_and_unreadable_payloads_are_failures_for_layers;
    Q30 layer_that_panics_fails_its_job;
    Q30 layers_are_dropped_with_their_handler;
    Q30 attempt_is_a_handler_that_runs_until_its_layers_have_ended;
    Q30 layers_are_around_each_job_of_a_batch;
    Q30 call_has_its_place_until_the_layers_of_its_jobs_have_ended;
    Q30 layer_cannot_undo_what_its_handler_has_acknowledged [Transactions];
    Q30 layers_of_threads_are_around_each_attempt_and_decide;
    Q30 layers_of_threads_are_around_each_job_of_a_batch;
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn told(outcome: &Result<(), Failed>) -> String {
    match outcome {
        Ok(()) => "done".to_owned(),
        Err(failed) if failed.is_retry() => format!("retry {}", failed.error().unwrap()),
        Err(failed) if failed.is_reject() => format!("reject {}", failed.error().unwrap()),
        Err(failed) => format!("snooze {:?}", failed.error()),
    }
}

/// A layer that tells of each attempt.
fn telling(name: &'static str, log: &Log) -> impl Fn(Working, Next) -> Gated + use<> {
    let log = log.clone();
    move |job, next| {
        let log = log.clone();
        Box::pin(async move {
            let (tag, attempt) = (job.header("tag").unwrap_or("none"), job.attempt());
            log.add(format!("{name} {} {attempt} {tag}", job.name()));
            let outcome = next.run().await;
            log.add(format!("{name} {}", told(&outcome)));
            outcome
        })
    }
}

async fn idle(worker: Worker) -> Summary {
    soon("nothing is due", worker.run_until_idle())
        .await
        .unwrap()
}

/// Both ways to run handlers.
const WAYS: [fn(Worker) -> Worker; 2] = [
    |worker| worker,
    |worker| worker.spawn_with(|work| drop(tokio::spawn(work))),
];

async fn layers_are_around_each_attempt_in_the_order_in_which_they_were_added(cx: Context) {
    for way in WAYS {
        let queue = cx.queue().await;
        let first = job(0).header("tag", "blue");
        queue.push(first).await.unwrap();
        let (log, works) = (Log::default(), Log::default());
        let worker = |log: &Log| {
            let works = works.clone();
            way(Worker::new(queue.clone()))
                .layer(telling("outer", log))
                .handle("count", move |_: usize, job: Working| {
                    works.add("works");
                    let last = job.attempt() == 2;
                    async move {
                        if last {
                            Ok(())
                        } else {
                            Err(Failed::retry_after("no", MINUTE))
                        }
                    }
                })
                .fallback(async |_| Ok(()))
                .layer(telling("inner", log))
        };
        assert_eq!(idle(worker(&log)).await, summary! { claimed: 1, failed: 1 });
        let lines = [
            "outer count 1 blue",
            "inner count 1 blue",
            "inner retry no",
            "outer retry no",
        ];
        assert_eq!(log.lines(), lines);
        cx.elapse(MINUTE).await;
        queue.push(Job::new("other", &1).unwrap()).await.unwrap();
        let log = Log::default();
        assert_eq!(idle(worker(&log).concurrency(1)).await.done, 2);
        let mut lines = log.lines();
        lines.sort_unstable();
        let expected = [
            "inner count 2 blue",
            "inner done",
            "inner done",
            "inner other 1 none",
            "outer count 2 blue",
            "outer done",
            "outer done",
            "outer other 1 none",
        ];
        assert_eq!(lines, expected);
        assert_eq!(works.lines().len(), 2);
    }
}

/// Decides by the number of the job, and tells which the handler got.
fn deciding(number: usize, next: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    match number {
        0 => Ok(()),
        1 => Err(Failed::reject("not this one")),
        2 => next().map_err(|failed| Failed::reject(failed.error().unwrap())),
        3 => next().or(Ok(())),
        4 => next().and(Err(Failed::snooze(MINUTE))),
        _ => next(),
    }
}

fn number(payload: &str) -> usize {
    payload.parse().unwrap_or(usize::MAX)
}

fn handled(number: usize) -> Result<(), Failed> {
    match number {
        2 | 3 => Err(Failed::retry("no")),
        _ => Ok(()),
    }
}

fn decided() -> Summary {
    summary! { claimed: 6, done: 3, dead: 2, snoozed: 1 }
}

async fn errors(queue: &Arc<dyn Queue>) -> Vec<String> {
    let dead = queue.dead_letters(0, 100).await.unwrap();
    let mut errors: Vec<_> = dead.into_iter().map(|it| it.error).collect();
    errors.sort_unstable();
    errors
}

async fn layer_decides_what_comes_of_a_job(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 6).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let runs = Arc::clone(&ran);
    let worker = Worker::new(queue.clone())
        .layer(async |job: Working, next: Next| {
            let number = number(job.payload());
            if number < 2 {
                return deciding(number, || unreachable!("it does not run"));
            }
            let outcome = next.run().await;
            deciding(number, || outcome)
        })
        .handle("count", move |number: usize, _| {
            runs.fetch_add(1, Ordering::AcqRel);
            async move { handled(number) }
        });
    assert_eq!(idle(worker).await, decided());
    assert_eq!(ran.load(Ordering::Acquire), 4);
    assert_eq!(errors(&queue).await, ["no", "not this one"]);
    cx.elapse(MINUTE).await;
    assert_eq!(attempts(&queue).await, [1], "uncounted");
}

async fn panics_and_unreadable_payloads_are_failures_for_layers(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    queue
        .push(Job::new("count", "text").unwrap())
        .await
        .unwrap();
    let log = Log::default();
    let worker = Worker::new(queue.clone())
        .layer(telling("outer", &log))
        .layer(async |_, next: Next| {
            next.run().await.ok();
            panic!("a layer")
        })
        .layer(telling("inner", &log))
        .handle("count", async |_: usize, _| panic!("boom"));
    assert_eq!(idle(worker).await, summary! { claimed: 2, failed: 2 });
    let lines = log.lines();
    let has = |line: &str| lines.iter().filter(|it| it.contains(line)).count();
    assert_eq!(
        has("inner retry the handler panicked: boom"),
        1,
        "{lines:?}"
    );
    assert_eq!(
        has("inner retry the payload cannot be read"),
        0,
        "{lines:?}"
    );
    assert_eq!(has("cannot be read as the expected type"), 1, "{lines:?}");
    assert_eq!(
        has("outer retry the handler panicked: a layer"),
        2,
        "{lines:?}"
    );
}

async fn layer_that_panics_fails_its_job(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(0).max_attempts(1)).await.unwrap();
    queue.push(job(1).max_attempts(1)).await.unwrap();
    queue.push(job(2)).await.unwrap();
    let worker = Worker::new(queue.clone())
        .layer(|job: Working, next: Next| {
            assert!(job.payload() != "0", "at once");
            async move {
                next.run().await?;
                assert!(job.payload() != "1", "afterwards");
                Ok(())
            }
        })
        .handle("count", async |_: usize, _| Ok(()));
    assert_eq!(
        idle(worker).await,
        summary! { claimed: 3, done: 1, dead: 2 }
    );
    let said = ["afterwards", "at once"].map(|it| format!("the handler panicked: {it}"));
    assert_eq!(errors(&queue).await, said);
}

/// Tells when it is dropped.
struct Told(Log);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.add("dropped");
    }
}

async fn layers_are_dropped_with_their_handler(cx: Context) {
    let (queue, there) = (cx.queue().await, cx.queue().await);
    let id = queue.push(job(0)).await.unwrap().id;
    let (handler, mut gate) = Gate::new();
    let log = Log::default();
    let told = log.clone();
    let worker = |timeout: Option<Duration>| {
        let (handler, told) = (handler.clone(), told.clone());
        let options = timeout.map_or_else(WorkerOptions::default, |time| {
            WorkerOptions::default().timeout(time)
        });
        Worker::new(queue.clone())
            .options(options)
            .lease(Duration::from_millis(1500))
            .grace(Duration::ZERO)
            .layer(move |_, next: Next| {
                let told = Told(told.clone());
                async move {
                    let _told = told;
                    next.run().await
                }
            })
            .handle("count", handler)
    };
    let lost = run(worker(None));
    let begun = gate.begun().await;
    assert_eq!(there.cancel(vec![id]).await.unwrap(), [id]);
    cx.pass(Duration::from_millis(600)).await;
    begun.dropped().await;
    eventually("the layer is dropped", async || log.lines().len() == 1).await;
    assert_eq!(lost.end().await, summary! { claimed: 1, lost: 1 });
    queue.push(job(1).max_attempts(1)).await.unwrap();
    let late = run(worker(Some(Duration::from_millis(30))));
    gate.begun().await.dropped().await;
    eventually("it is told", async || cx.jobs().await.ended == 2).await;
    assert_eq!(log.lines().len(), 2);
    assert_eq!(late.end().await.dead, 1);
    queue.push(job(2)).await.unwrap();
    let stopped = run(worker(None));
    let begun = gate.begun().await;
    assert!(stopped.end().await.released > 0);
    begun.dropped().await;
    assert!(log.lines().len() > 2);
    assert_eq!(attempts(&queue).await, [1], "uncounted");
}

async fn attempt_is_a_handler_that_runs_until_its_layers_have_ended(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut gate) = Gate::new();
    let (ends, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (end, may) = (Arc::clone(&ends), Arc::clone(&may_end));
    let worker = Worker::new(queue)
        .layer(move |_, next: Next| {
            let (end, may) = (Arc::clone(&end), Arc::clone(&may));
            async move {
                let outcome = next.run().await;
                end.add_permits(1);
                may.acquire().await?.forget();
                outcome
            }
        })
        .handle("count", handler);
    let worker = run(worker.concurrency(1));
    gate.begun().await.end(Ok(()));
    soon("it has ended", ends.acquire()).await.unwrap().forget();
    gate.none_begins().await;
    may_end.add_permits(2);
    gate.begun().await.end(Ok(()));
    eventually("all are told", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(worker.end().await.done, 2);
}

async fn layers_are_around_each_job_of_a_batch(cx: Context) {
    for way in WAYS {
        let queue = cx.queue().await;
        push(&queue, 6).await;
        let calls = Log::default();
        let called = calls.clone();
        let options = BatchOptions::new(10).gather(Duration::from_millis(50));
        let worker = way(Worker::new(queue.clone()))
            .handle_batch("count", options, move |jobs: Vec<(usize, BatchJob)>| {
                called.add(jobs.len().to_string());
                for (number, job) in jobs {
                    job.answer(handled(number));
                }
                async { Ok(()) }
            })
            .layer(async |job: Working, next: Next| {
                let number = number(job.payload());
                if number < 2 {
                    return deciding(number, || unreachable!("it does not run"));
                }
                let outcome = next.run().await;
                deciding(number, || outcome)
            });
        assert_eq!(idle(worker).await, decided());
        assert_eq!(calls.lines(), ["4"]);
        assert_eq!(errors(&queue).await, ["no", "not this one"]);
        clear(&cx, &queue).await;
    }
}

async fn call_has_its_place_until_the_layers_of_its_jobs_have_ended(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 4).await;
    let (ends, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (end, may) = (Arc::clone(&ends), Arc::clone(&may_end));
    let worker = Worker::new(queue)
        .layer(move |job: Working, next: Next| {
            let (end, may) = (Arc::clone(&end), Arc::clone(&may));
            async move {
                let outcome = next.run().await;
                if job.payload() == "1" {
                    end.add_permits(1);
                    may.acquire().await?.forget();
                }
                outcome
            }
        })
        .handle_batch("count", BatchOptions::new(2), move |jobs| {
            for (number, job) in jobs {
                let _: usize = number;
                job.answer(Ok(()));
            }
            async { Ok(()) }
        });
    let worker = run(worker.concurrency(1).prefetch(0));
    soon("it has ended", ends.acquire()).await.unwrap().forget();
    not_yet("no other call begins", async {
        while cx.jobs().await.waiting == 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    may_end.add_permits(1);
    eventually("all are told", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(worker.end().await, summary! { claimed: 4, done: 4 });
}

/// Ends what a scene has left.
async fn clear(cx: &Context, queue: &Arc<dyn Queue>) {
    cx.elapse(MINUTE).await;
    assert_eq!(attempts(queue).await, [1], "uncounted");
    let dead = queue.dead_letters(0, 100).await.unwrap();
    let dead = dead.iter().map(|it| it.id).collect();
    assert_eq!(queue.discard(dead).await.unwrap(), 2);
}

async fn layer_cannot_undo_what_its_handler_has_acknowledged(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(0).max_attempts(1)).await.unwrap();
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(queue)
        .layer(async |_, next: Next| {
            next.run().await?;
            Err(Failed::reject("never"))
        })
        .handle("count", handler);
    let worker = run(worker);
    let begun = gate.begun().await;
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(begun.job.delivery()).await.unwrap();
    tx.commit().await;
    begun.end(Ok(()));
    eventually("it is told", async || cx.jobs().await == Jobs::default()).await;
    assert_eq!(worker.end().await, summary! { claimed: 1, done: 1 });
}

async fn idle_on_threads(worker: blocking::Worker) -> Summary {
    let worker = tokio::task::spawn_blocking(move || worker.run_until_idle());
    soon("nothing is due", worker).await.unwrap().unwrap()
}

fn told_on_thread(
    name: &'static str,
    log: &Log,
) -> impl Fn(blocking::Context, blocking::Next) -> Result<(), Failed> + use<> {
    let log = log.clone();
    move |job, next| {
        log.add(format!("{name} {} {}", job.name(), job.attempt()));
        let outcome = next.run();
        log.add(format!("{name} {}", told(&outcome)));
        outcome
    }
}

async fn layers_of_threads_are_around_each_attempt_and_decide(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 6).await;
    let worker = blocking::Worker::new(&queue.clone().into())
        .handle("count", |number: usize, _| handled(number))
        .layer(|job, next| deciding(number(job.payload()), || next.run()));
    assert_eq!(idle_on_threads(worker).await, decided());
    assert_eq!(errors(&queue).await, ["no", "not this one"]);
    clear(&cx, &queue).await;
    queue.push(job(7)).await.unwrap();
    let log = Log::default();
    let worker = blocking::Worker::new(&queue.into())
        .layer(told_on_thread("outer", &log))
        .handle("count", |_: usize, _| panic!("boom"))
        .layer(told_on_thread("inner", &log));
    assert_eq!(idle_on_threads(worker).await.failed, 1);
    let lines = [
        "outer count 1",
        "inner count 1",
        "inner retry the handler panicked: boom",
        "outer retry the handler panicked: boom",
    ];
    assert_eq!(log.lines(), lines);
}

async fn layers_of_threads_are_around_each_job_of_a_batch(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 6).await;
    let calls = Log::default();
    let called = calls.clone();
    let options = BatchOptions::new(10).gather(Duration::from_millis(100));
    let worker = blocking::Worker::new(&queue.clone().into())
        .handle_batch(
            "count",
            options,
            move |jobs: Vec<(usize, blocking::BatchJob)>| {
                called.add(jobs.len().to_string());
                for (number, job) in jobs {
                    job.answer(handled(number));
                }
                Ok(())
            },
        )
        .layer(|job, next| deciding(number(job.payload()), || next.run()));
    assert_eq!(idle_on_threads(worker).await, decided());
    assert_eq!(calls.lines(), ["4"]);
    assert_eq!(errors(&queue).await, ["no", "not this one"]);
    clear(&cx, &queue).await;
}
