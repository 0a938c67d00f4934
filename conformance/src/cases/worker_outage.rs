//! Workers: what they send, and what they keep while things break.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::queue::{Claim, Job};
use lockapi::worker::{Context as Working, Ending, Failed, Observe, Worker};
use lockapi::{Error, ErrorKind, Queue, Stop};
use tokio::sync::mpsc;

use super::Role;
use super::queue_spy::QueueSpy;
use crate::child::Parent;
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, soon};
use crate::wrapped::Wrapped;

register! { "worker":
    Q18 completions_travel_with_the_next_claim;
    Q18 lone_completion_is_told_at_once;
    Q18 what_was_claimed_ahead_goes_back_at_once;
    Q15 claim_waits_no_longer_than_it_says;
    V10 completions_survive_an_unreachable_server @ Own;
    V10 completion_whose_answer_was_lost_is_told_again;
    V10 refusal_of_the_server_stops_the_worker;
    V10 what_was_done_is_completed_where_a_claim_is_refused;
    Q18 worker_is_not_idle_before_what_it_returns_has_gone_back;
    Q18 outcome_of_a_job_whose_row_is_locked_is_sent_again;
    Q18 error_that_the_database_cannot_store_is_escaped;
    Q02 killed_worker_loses_nothing [Processes];
}

pub(super) const ROLES: &[(&str, Role)] = &[("serve", |cx, arguments, parent| {
    Box::pin(serve(cx, arguments, parent))
})];

/// Runs a worker whose handlers say which job they have, and never end.
async fn serve(cx: Context, _: Vec<String>, parent: Parent) {
    let parent = Arc::new(parent);
    let worker = Worker::new(cx.queue().await)
        .lease(MINUTE)
        .concurrency(3)
        .handle("count", move |number: usize, _| {
            let parent = Arc::clone(&parent);
            async move {
                parent.say(number);
                std::future::pending().await
            }
        });
    worker.run(Stop::new()).await.unwrap();
}

async fn claim_waits_no_longer_than_it_says(cx: Context) {
    let queue = QueueSpy::new(cx.queue().await, Duration::from_millis(100));
    queue.busy.store(true, Ordering::Release);
    let spied: Arc<dyn Queue> = Arc::clone(&queue) as _;
    let claim = Claim::new(1).wait(Duration::from_millis(300));
    let claimed = soon("the end of the wait", spied.claim(&claim)).await;
    assert!(claimed.unwrap().is_empty());
    let exchanges = queue.exchanges.lock().unwrap().len();
    assert!(exchanges <= 4, "{exchanges} exchanges");
}

/// Counts what a worker tells.
#[derive(Clone, Default)]
struct Watch {
    done: Arc<AtomicUsize>,
    failures: Arc<AtomicUsize>,
}

impl Observe for Watch {
    fn finished(&self, _: &lockapi::queue::Delivery, ending: &Ending, _: Duration) {
        if *ending == Ending::Done {
            self.done.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn failed(&self, _: &Error) {
        self.failures.fetch_add(1, Ordering::AcqRel);
    }
}

fn job(number: usize) -> Job {
    Job::new("count", &number).unwrap()
}

async fn all_are_done(cx: &Context) {
    eventually("all are done", async || cx.jobs().await == Jobs::default()).await;
}

async fn completions_travel_with_the_next_claim(cx: Context) {
    const JOBS: usize = 20;
    let queue = cx.queue().await;
    queue.push_all((0..JOBS).map(job).collect()).await.unwrap();
    let spied = QueueSpy::new(queue, Duration::ZERO);
    // Nothing is pushed any more, whatever is told late.
    spied.deaf.store(true, Ordering::Release);
    let stop = Stop::new();
    let worker = Worker::new(spied.clone())
        .concurrency(1)
        .prefetch(0)
        .poll(MINUTE)
        .handle("count", async |_: usize, _| Ok(()));
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    all_are_done(&cx).await;
    stop.stop();
    let summary = soon("the worker ends", running).await.unwrap().unwrap();
    assert_eq!(summary.done, 20);
    let exchanges = spied.exchanges.lock().unwrap().clone();
    assert_eq!(exchanges[0], (0, 1));
    for exchange in &exchanges[1..JOBS] {
        assert_eq!(*exchange, (1, 1), "{exchanges:?}");
    }
    // The last may look once more, from the beginning of the queue.
    assert!(exchanges.len() <= JOBS + 2, "{exchanges:?}");
}

/// A handler that ends when it is told to, for even numbers, and at once for the others.
fn even_ones_wait() -> (
    impl Fn(usize, Working) -> futures_util::future::BoxFuture<'static, Answer> + Send + Sync + 'static,
    mpsc::UnboundedReceiver<tokio::sync::oneshot::Sender<()>>,
) {
    let (sender, waiting) = mpsc::unbounded_channel();
    let handler = move |number: usize, _: Working| {
        let sender = sender.clone();
        let work: futures_util::future::BoxFuture<'static, Answer> = Box::pin(async move {
            if number.is_multiple_of(2) {
                let (end, ended) = tokio::sync::oneshot::channel::<()>();
                drop(sender.send(end));
                drop(ended.await);
            }
            Ok(())
        });
        work
    };
    (handler, waiting)
}

type Answer = std::result::Result<(), lockapi::worker::Failed>;

async fn lone_completion_is_told_at_once(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all(vec![job(0), job(1)]).await.unwrap();
    let (handler, mut waiting) = even_ones_wait();
    let spied = QueueSpy::new(queue, Duration::ZERO);
    // Nothing else is to be sent that it could travel with.
    spied.deaf.store(true, Ordering::Release);
    let worker = Worker::new(spied).handle("count", handler);
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    let end = soon("one waits", waiting.recv()).await.unwrap();
    eventually("the other is told", async || cx.jobs().await.delivered == 1).await;
    drop(end);
    all_are_done(&cx).await;
    stop.stop();
    let summary = soon("the worker ends", running).await.unwrap().unwrap();
    assert_eq!(summary.done, 2);
}

async fn what_was_claimed_ahead_goes_back_at_once(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..8).map(|number| job(number * 2 + 1));
    let jobs = jobs.chain((0..8).map(|number| job(number * 2)));
    queue.push_all(jobs.collect()).await.unwrap();
    let (handler, mut waiting) = even_ones_wait();
    let spied = QueueSpy::new(queue.clone(), Duration::from_millis(25));
    let worker = Worker::new(spied)
        .handle("count", handler)
        .concurrency(2)
        .prefetch(3)
        .grace(MINUTE * 10);
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    let ends = [
        soon("one waits", waiting.recv()).await.unwrap(),
        soon("two wait", waiting.recv()).await.unwrap(),
    ];
    eventually("short jobs were claimed ahead", async || {
        cx.jobs().await.delivered == 5
    })
    .await;
    stop.stop();
    eventually("they are back", async || {
        let jobs = cx.jobs().await;
        (jobs.waiting, jobs.delivered) == (6, 2)
    })
    .await;
    drop(ends);
    let summary = soon("the worker ends", running).await.unwrap().unwrap();
    assert_eq!((summary.done, summary.released), (10, 3));
    for delivery in queue.claim(&Claim::new(10)).await.unwrap() {
        assert_eq!(delivery.attempt(), 1, "uncounted");
    }
}

async fn completions_survive_an_unreachable_server(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all(vec![job(0), job(2)]).await.unwrap();
    let (handler, mut waiting) = even_ones_wait();
    let watch = Watch::default();
    let worker = Worker::new(queue)
        .handle("count", handler)
        .observe(watch.clone())
        .lease(MINUTE * 5);
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    let first = soon("one waits", waiting.recv()).await.unwrap();
    let second = soon("two wait", waiting.recv()).await.unwrap();
    cx.set_reachable(false).await;
    drop((first, second));
    eventually("both are done", async || {
        watch.done.load(Ordering::Acquire) == 2
    })
    .await;
    // What was under way then, and what was told after it.
    let failures = watch.failures.load(Ordering::Acquire);
    eventually("it is not told", async || {
        watch.failures.load(Ordering::Acquire) >= failures + 2
    })
    .await;
    cx.set_reachable(true).await;
    all_are_done(&cx).await;
    stop.stop();
    let summary = soon("the worker ends", running).await.unwrap().unwrap();
    assert_eq!(summary.claimed, 2, "neither was done again");
    assert_eq!(summary.done + summary.unknown, 2, "{summary:?}");
}

async fn completion_whose_answer_was_lost_is_told_again(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let spied = QueueSpy::new(queue, Duration::ZERO);
    spied.lose.store(true, Ordering::Release);
    let watch = Watch::default();
    let worker = Worker::new(spied.clone())
        .observe(watch.clone())
        .handle("count", async |_: usize, _| Ok(()));
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    eventually("it is told again", async || {
        let exchanges = spied.exchanges.lock().unwrap();
        exchanges.iter().filter(|(told, _)| *told == 1).count() == 2
    })
    .await;
    stop.stop();
    let summary = soon("the worker ends", running).await.unwrap().unwrap();
    assert_eq!((summary.claimed, summary.done, summary.unknown), (1, 0, 1));
    assert_eq!(watch.failures.load(Ordering::Acquire), 1);
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn refusal_of_the_server_stops_the_worker(cx: Context) {
    let spied = QueueSpy::new(cx.queue().await, Duration::ZERO);
    spied.refuse.store(true, Ordering::Release);
    let worker = Worker::new(spied.clone()).handle("count", async |_: usize, _| Ok(()));
    let ended = soon("the worker ends", worker.run(Stop::new())).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unsupported);
}

async fn what_was_done_is_completed_where_a_claim_is_refused(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..3).map(job).collect()).await.unwrap();
    let spied = QueueSpy::new(queue, Duration::ZERO);
    spied.refuse_claims.store(true, Ordering::Release);
    let worker = Worker::new(spied.clone())
        .concurrency(3)
        .handle("count", async |_: usize, _| Ok(()));
    let ended = soon("the worker ends", worker.run(Stop::new())).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(cx.jobs().await, Jobs::default());
}

/// What is left of a job that is rejected with this error.
async fn rejected(cx: &Context, spied: &Arc<Wrapped<QueueSpy>>, error: &'static str) -> String {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let worker = Worker::new(spied.clone())
        .lease(MINUTE)
        .handle("count", move |_: usize, _| {
            std::future::ready(Err(Failed::reject(error)))
        });
    let summary = soon("the worker ends", worker.run_until_idle())
        .await
        .unwrap();
    assert_eq!((summary.dead, summary.lost), (1, 0), "{summary:?}");
    let letters = queue.dead_letters(0, 9).await.unwrap();
    assert_eq!(letters.len(), 1);
    letters[0].error.clone()
}

async fn outcome_of_a_job_whose_row_is_locked_is_sent_again(cx: Context) {
    let spied = QueueSpy::new(cx.queue().await, Duration::ZERO);
    spied.locked.store(3, Ordering::Release);
    assert_eq!(rejected(&cx, &spied, "no").await, "no");
}

async fn error_that_the_database_cannot_store_is_escaped(cx: Context) {
    let spied = QueueSpy::new(cx.queue().await, Duration::ZERO);
    spied.ascii.store(true, Ordering::Release);
    let error = rejected(&cx, &spied, "a \u{2192} b").await;
    assert_eq!(error, "a \\u{2192} b");
}

async fn killed_worker_loses_nothing(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..3).map(job).collect()).await.unwrap();
    let mut child = cx.child("serve", &[]);
    for _ in 0..3 {
        child.line().await;
    }
    child.kill();
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&attempts);
    let worker = Worker::new(queue).poll(Duration::from_millis(20)).handle(
        "count",
        move |_: usize, job: Working| {
            seen.lock().unwrap().push(job.attempt());
            async { Ok(()) }
        },
    );
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    cx.elapse(MINUTE).await;
    all_are_done(&cx).await;
    stop.stop();
    let summary = soon("the worker ends", running).await.unwrap().unwrap();
    assert_eq!(summary.done, 3);
    assert_eq!(*attempts.lock().unwrap(), [2, 2, 2]);
}

async fn worker_is_not_idle_before_what_it_returns_has_gone_back(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(0)).await.unwrap();
    let spied = QueueSpy::new(queue, Duration::ZERO);
    spied.late.store(true, Ordering::Release);
    let worker = Worker::new(spied).handle("count", async |_: usize, _| Ok(()));
    let summary = soon("the worker ends", worker.run_until_idle()).await;
    let summary = summary.unwrap();
    assert_eq!((summary.released, summary.done, summary.lost), (1, 1, 0));
    assert_eq!(cx.jobs().await, Jobs::default());
}
