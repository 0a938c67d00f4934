//! Workers of blocking programs, whose handlers run on threads.

use std::time::Duration;

use lockapi::worker::{Failed, WorkerOptions};
use lockapi::{Result, Stop, blocking};
use tokio::sync::mpsc;

use super::worker::{Runs, attempts, job, push, summary};
use crate::context::Context;
use crate::face::off_runtime;
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{A_MOMENT, eventually, not_yet, soon};

register! { "worker":
    Q18 as_many_threads_run_as_may;
    Q18 thread_is_told_that_its_time_is_over_and_keeps_its_place;
    Q18 blocking_worker_fails_rejects_and_gives_back;
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
    assert_eq!(worker.end().await, summary! { claimed: 6, done: 6 });
}

async fn thread_is_told_that_its_time_is_over_and_keeps_its_place(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..2).map(|number| job(number).max_attempts(1)).collect();
    queue.push_all(jobs).await.unwrap();
    let (handler, mut threads) = on_threads();
    let options = WorkerOptions::default().timeout(Duration::from_millis(30));
    let worker = blocking::Worker::new(&queue.into()).handle_with("count", options, handler);
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
    assert_eq!(worker.end().await, summary! { claimed: 2, dead: 2 });
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
    assert_eq!(
        summary,
        summary! { claimed: 2 + back, dead: 2, released: back }
    );
    assert!(last.job.is_lost());
    tokio::time::sleep(A_MOMENT / 4).await;
    assert_eq!(attempts(&queue).await, [1], "uncounted");
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!(dead[0].error, "the handler panicked: boom");
    assert_eq!(dead[1].error, "never");
}
