//! Workers: handlers that get several jobs in one call.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, Job};
use lockapi::worker::{
    BatchJob, BatchOptions, Context as Working, Failed, Next, Observe, Worker, WorkerOptions,
};
use lockapi::{ErrorKind, Queue, Stop, blocking};
use tokio::sync::{mpsc, oneshot};

use super::worker::{Gate, Gated, Runs, attempts, job, push, run, summary};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "worker_batches":
    Q29 call_begins_when_it_has_as_many_jobs_as_it_may;
    Q29 call_begins_when_its_time_to_gather_is_over;
    Q29 each_job_of_a_call_has_its_own_answer;
    Q29 what_has_no_answer_fails_as_the_call_does;
    Q29 call_that_takes_too_long_fails_what_has_no_answer;
    Q29 answer_counts_before_the_call_ends;
    Q29 job_that_is_lost_is_left_out_of_its_call;
    Q29 job_that_is_lost_during_its_call_ends_no_other;
    Q29 call_is_dropped_when_all_its_jobs_are_lost;
    Q29 payload_that_cannot_be_decoded_fails_its_own_job;
    Q29 stopped_worker_calls_with_what_it_has_gathered;
    Q29 stopped_worker_gives_back_what_has_no_answer;
    Q29 dropped_worker_gives_back_what_it_has_gathered;
    Q29 calls_are_as_many_as_handlers_may_run;
    Q29 call_that_gathers_is_one_of_the_handlers;
    Q29 calls_beside_handlers_of_single_jobs_are_large;
    Q29 all_jobs_are_done_once_by_calls_of_two_workers;
    Q29 gathered_jobs_outlive_their_lease;
    Q29 call_that_nobody_runs_puts_its_jobs_off;
    Q29 job_whose_layers_are_late_is_put_off;
    Q29 call_may_acknowledge_in_a_transaction [Transactions];
    Q29 thread_gets_many_jobs_and_answers_each;
    Q29 thread_of_a_call_is_one_of_the_handlers;
    Q29 options_of_batches_outside_of_their_limits_are_refused;
}

/// A call that has begun, and waits to be told how to end.
struct Call {
    jobs: BTreeMap<usize, BatchJob>,
    end: oneshot::Sender<Result<(), Failed>>,
}

impl Call {
    fn numbers(&self) -> Vec<usize> {
        self.jobs.keys().copied().collect()
    }

    fn answer(&mut self, number: usize, answer: Result<(), Failed>) {
        self.jobs.remove(&number).unwrap().answer(answer);
    }

    fn end(self, answer: Result<(), Failed>) {
        drop(self.end.send(answer));
    }

    fn all_done(mut self) {
        for (_, job) in std::mem::take(&mut self.jobs) {
            job.answer(Ok(()));
        }
        self.end(Ok(()));
    }
}

struct Calls(mpsc::UnboundedReceiver<Call>);

impl Calls {
    /// A handler that does what the case says, and where the case hears of it.
    fn new() -> (
        impl Fn(Vec<(usize, BatchJob)>) -> Gated + Send + Sync + 'static,
        Self,
    ) {
        let (sender, begun) = mpsc::unbounded_channel();
        let handler = move |jobs: Vec<(usize, BatchJob)>| -> Gated {
            let (end, answer) = oneshot::channel();
            let jobs = jobs.into_iter().collect();
            drop(sender.send(Call { jobs, end }));
            Box::pin(async move { answer.await.unwrap_or(Ok(())) })
        };
        (handler, Self(begun))
    }

    async fn begun(&mut self) -> Call {
        soon("a call begins", self.0.recv())
            .await
            .expect("the worker is there")
    }

    async fn none_begins(&mut self) {
        not_yet("no call begins", self.0.recv()).await;
    }
}

fn spawned(worker: Worker) -> Worker {
    worker.spawn_with(|work| drop(tokio::spawn(work)))
}

async fn push_once(queue: &Arc<dyn Queue>, jobs: usize) {
    let jobs = (0..jobs).map(|number| job(number).max_attempts(1));
    queue.push_all(jobs.collect()).await.unwrap();
}

/// The errors of dead letters, by payload.
async fn errors(queue: &Arc<dyn Queue>) -> BTreeMap<String, String> {
    let dead = queue.dead_letters(0, 100).await.unwrap();
    dead.into_iter().map(|it| (it.payload, it.error)).collect()
}

async fn nothing_left(cx: &Context) {
    eventually("all are told", async || {
        let Jobs {
            waiting, delivered, ..
        } = cx.jobs().await;
        (waiting, delivered) == (0, 0)
    })
    .await;
}

async fn call_begins_when_it_has_as_many_jobs_as_it_may(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 7).await;
    let (handler, mut calls) = Calls::new();
    let options = BatchOptions::new(3).gather(MINUTE);
    let worker = run(Worker::new(queue.clone()).handle_batch("count", options, handler));
    let (first, second) = (calls.begun().await, calls.begun().await);
    let mut seen = [first.numbers(), second.numbers()];
    seen.sort_unstable();
    assert_eq!(seen, [[0, 1, 2], [3, 4, 5]]);
    calls.none_begins().await;
    queue.push_all(vec![job(7), job(8)]).await.unwrap();
    let third = calls.begun().await;
    assert_eq!(third.numbers(), [6, 7, 8]);
    for call in [first, second, third] {
        call.all_done();
    }
    nothing_left(&cx).await;
    assert_eq!(worker.end().await, summary! { claimed: 9, done: 9 });
}

async fn call_begins_when_its_time_to_gather_is_over(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut calls) = Calls::new();
    let options = BatchOptions::new(3).gather(Duration::from_secs(1));
    let worker = run(spawned(Worker::new(queue)).handle_batch("count", options, handler));
    calls.none_begins().await;
    let call = calls.begun().await;
    assert_eq!(call.numbers(), [0, 1]);
    call.all_done();
    nothing_left(&cx).await;
    assert_eq!(worker.end().await.done, 2);
}

async fn each_job_of_a_call_has_its_own_answer(cx: Context) {
    let queue = cx.queue().await;
    push_once(&queue, 6).await;
    queue.push(job(6)).await.unwrap();
    let (handler, mut calls) = Calls::new();
    let worker = run(spawned(Worker::new(queue.clone())).handle_batch(
        "count",
        BatchOptions::new(10),
        handler,
    ));
    let mut call = calls.begun().await;
    assert_eq!(call.numbers(), [0, 1, 2, 3, 4, 5, 6]);
    call.answer(0, Ok(()));
    call.answer(1, Err(Failed::retry("one")));
    call.answer(2, Err(Failed::reject("two")));
    call.answer(3, Err(Failed::snooze(MINUTE)));
    call.answer(4, Ok(()));
    call.answer(6, Err(Failed::retry_after("six", MINUTE)));
    // The fifth is left.
    call.end(Ok(()));
    eventually("all have ended", async || cx.jobs().await.delivered == 0).await;
    let expected = summary! { claimed: 7, done: 2, dead: 3, snoozed: 1, failed: 1 };
    assert_eq!(worker.end().await, expected);
    let errors = errors(&queue).await;
    assert_eq!(errors["1"], "one");
    assert_eq!(errors["2"], "two");
    assert_eq!(
        errors["5"],
        "the handler ended without an answer for this job"
    );
    cx.elapse(MINUTE).await;
    let mut attempts = attempts(&queue).await;
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 2], "one of them was put off");
}

/// One call, which answers the job 0 and then ends as `end` does; the errors of the others.
async fn ends(cx: &Context, set: fn(Worker) -> Worker, end: fn() -> Result<(), Failed>) -> String {
    let queue = cx.queue().await;
    push_once(&queue, 3).await;
    let worker = set(Worker::new(queue.clone())).handle_batch(
        "count",
        BatchOptions::new(3),
        move |jobs: Vec<(usize, BatchJob)>| async move {
            // What is kept beyond the call is answered with it.
            let mut kept = Vec::new();
            for (number, job) in jobs {
                match number {
                    0 => job.answer(Ok(())),
                    _ => kept.push(job),
                }
            }
            tokio::spawn(async move {
                for job in &kept {
                    job.lost().await;
                }
            });
            end()
        },
    );
    let done = soon("nothing is due", worker.run_until_idle()).await;
    assert_eq!(done.unwrap(), summary! { claimed: 3, done: 1, dead: 2 });
    let errors = errors(&queue).await;
    assert_eq!(errors["1"], errors["2"]);
    assert_eq!(queue.discard(dead(&queue).await).await.unwrap(), 2);
    errors["1"].clone()
}

async fn dead(queue: &Arc<dyn Queue>) -> Vec<i64> {
    let dead = queue.dead_letters(0, 100).await.unwrap();
    dead.iter().map(|it| it.id).collect()
}

async fn what_has_no_answer_fails_as_the_call_does(cx: Context) {
    for set in [spawned as fn(Worker) -> Worker, |worker| worker] {
        let failed = ends(&cx, set, || Err(Failed::retry("all"))).await;
        assert_eq!(failed, "all");
        let panicked = ends(&cx, set, || panic!("boom")).await;
        assert_eq!(panicked, "the handler panicked: boom");
    }
}

async fn call_that_takes_too_long_fails_what_has_no_answer(cx: Context) {
    let queue = cx.queue().await;
    push_once(&queue, 3).await;
    let (handler, mut calls) = Calls::new();
    let time = WorkerOptions::default().timeout(Duration::from_secs(1));
    // The time to gather is not part of it.
    let options = BatchOptions::new(4)
        .gather(Duration::from_millis(1200))
        .options(time);
    let worker = run(Worker::new(queue.clone()).handle_batch("count", options, handler));
    let mut call = calls.begun().await;
    call.answer(0, Ok(()));
    soon("the call is dropped", call.end.closed()).await;
    eventually("they have failed", async || cx.jobs().await.ended == 2).await;
    assert!(call.jobs[&1].is_lost());
    assert_eq!(
        worker.end().await,
        summary! { claimed: 3, done: 1, dead: 2 }
    );
    let error = &errors(&queue).await["1"];
    assert_eq!(error, "the handler did not end within 1s");
}

async fn answer_counts_before_the_call_ends(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut calls) = Calls::new();
    let worker = run(Worker::new(queue).handle_batch("count", BatchOptions::new(2), handler));
    let mut call = calls.begun().await;
    call.answer(0, Ok(()));
    eventually("it is told", async || cx.jobs().await.delivered == 1).await;
    call.all_done();
    nothing_left(&cx).await;
    assert_eq!(worker.end().await.done, 2);
}

const LEASE: Duration = Duration::from_millis(1500);

async fn cancel(queue: &Arc<dyn Queue>, id: i64) {
    assert_eq!(queue.cancel(vec![id]).await.unwrap(), [id]);
}

async fn job_that_is_lost_is_left_out_of_its_call(cx: Context) {
    let (queue, there) = (cx.queue().await, cx.queue().await);
    let id = queue.push(job(0)).await.unwrap().id;
    queue.push(job(1)).await.unwrap();
    let (handler, mut calls) = Calls::new();
    let options = BatchOptions::new(3).gather(MINUTE);
    let worker = Worker::new(queue.clone()).handle_batch("count", options, handler);
    let seen = Seen::default();
    let worker = run(worker.lease(LEASE).observe(seen.clone()));
    seen.gathered(2).await;
    cancel(&there, id).await;
    cx.pass(Duration::from_millis(600)).await;
    eventually("it is lost", async || {
        seen.lost.load(Ordering::Acquire) == 1
    })
    .await;
    // The place of what is lost stays taken.
    queue.push(job(2)).await.unwrap();
    let call = calls.begun().await;
    assert_eq!(call.numbers(), [1, 2]);
    call.all_done();
    nothing_left(&cx).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 3, done: 2, lost: 1 }
    );
}

/// How many jobs an observer was told have begun, and are lost.
#[derive(Clone, Default)]
struct Seen {
    begun: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
}

impl Seen {
    /// Waits until jobs are not only claimed but gathered.
    async fn gathered(&self, jobs: usize) {
        let all = async || self.begun.load(Ordering::Acquire) == jobs;
        eventually("they are gathered", all).await;
    }
}

impl Observe for Seen {
    fn started(&self, _: &Delivery) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    fn finished(&self, _: &Delivery, ending: &lockapi::worker::Ending, _: Duration) {
        if *ending == lockapi::worker::Ending::Lost {
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
    }
}

async fn job_that_is_lost_during_its_call_ends_no_other(cx: Context) {
    let (queue, there) = (cx.queue().await, cx.queue().await);
    push(&queue, 2).await;
    let (handler, mut calls) = Calls::new();
    let worker = Worker::new(queue).handle_batch("count", BatchOptions::new(2), handler);
    let worker = run(spawned(worker.lease(LEASE)));
    let mut call = calls.begun().await;
    let lost = &call.jobs[&0];
    cancel(&there, lost.id()).await;
    cx.pass(Duration::from_millis(600)).await;
    soon("it is told", lost.lost()).await;
    assert!(lost.is_lost() && !call.jobs[&1].is_lost());
    not_yet("the call goes on", call.end.closed()).await;
    call.all_done();
    nothing_left(&cx).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 2, done: 1, lost: 1 }
    );
}

async fn call_is_dropped_when_all_its_jobs_are_lost(cx: Context) {
    let (queue, there) = (cx.queue().await, cx.queue().await);
    push(&queue, 2).await;
    let (handler, mut calls) = Calls::new();
    let worker = Worker::new(queue).handle_batch("count", BatchOptions::new(2), handler);
    let worker = run(worker.lease(LEASE).concurrency(1));
    let mut call = calls.begun().await;
    for job in call.jobs.values() {
        cancel(&there, job.id()).await;
    }
    cx.pass(Duration::from_millis(600)).await;
    soon("the call is dropped", call.end.closed()).await;
    push(&there, 1).await;
    calls.begun().await.all_done();
    nothing_left(&cx).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 3, done: 1, lost: 2 }
    );
}

async fn payload_that_cannot_be_decoded_fails_its_own_job(cx: Context) {
    let queue = cx.queue().await;
    push_once(&queue, 2).await;
    let unreadable = Job::new("count", "text").unwrap().max_attempts(1);
    queue.push(unreadable).await.unwrap();
    let (handler, mut calls) = Calls::new();
    let options = BatchOptions::new(3).gather(MINUTE);
    let worker = run(Worker::new(queue.clone()).handle_batch("count", options, handler));
    let call = calls.begun().await;
    assert_eq!(call.numbers(), [0, 1]);
    call.all_done();
    eventually("all have ended", async || cx.jobs().await.delivered == 0).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 3, done: 2, dead: 1 }
    );
    let errors = errors(&queue).await;
    assert!(errors["\"text\""].contains("cannot be read"), "{errors:?}");
}

async fn stopped_worker_calls_with_what_it_has_gathered(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut calls) = Calls::new();
    let options = BatchOptions::new(3).gather(MINUTE);
    let worker = Worker::new(queue).handle_batch("count", options, handler);
    let seen = Seen::default();
    let worker = run(worker.grace(MINUTE * 10).observe(seen.clone()));
    seen.gathered(2).await;
    calls.none_begins().await;
    worker.stop.stop();
    let call = calls.begun().await;
    assert_eq!(call.numbers(), [0, 1]);
    call.all_done();
    assert_eq!(worker.end().await, summary! { claimed: 2, done: 2 });
}

async fn stopped_worker_gives_back_what_has_no_answer(cx: Context) {
    for set in [spawned as fn(Worker) -> Worker, |worker| worker] {
        let queue = cx.queue().await;
        push(&queue, 3).await;
        let (handler, mut calls) = Calls::new();
        let worker =
            Worker::new(queue.clone()).handle_batch("count", BatchOptions::new(3), handler);
        let worker = run(set(worker).concurrency(1).grace(Duration::ZERO));
        let mut call = calls.begun().await;
        call.answer(0, Ok(()));
        eventually("it is told", async || cx.jobs().await.delivered == 2).await;
        let summary = worker.end().await;
        // A claim that was under way may have met what was given back, and gives it back again.
        let back = summary.released;
        assert!(back >= 2, "{summary:?}");
        assert_eq!(
            summary,
            summary! { claimed: 1 + back, done: 1, released: back }
        );
        soon("the call is dropped", call.end.closed()).await;
        assert_eq!(attempts(&queue).await, [1, 1], "uncounted");
    }
}

async fn dropped_worker_gives_back_what_it_has_gathered(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut calls) = Calls::new();
    let options = BatchOptions::new(3).gather(MINUTE);
    let worker = Worker::new(queue.clone()).handle_batch("count", options, handler);
    let seen = Seen::default();
    let worker = run(worker.observe(seen.clone()));
    seen.gathered(2).await;
    // A claim for the third place that is under way must not meet what comes back.
    queue.pause().await.unwrap();
    worker.running.abort();
    eventually("they are back", async || cx.jobs().await.waiting == 2).await;
    queue.resume().await.unwrap();
    assert!(soon("no call begins", calls.0.recv()).await.is_none());
    assert_eq!(attempts(&queue).await, [1, 1], "uncounted");
}

async fn calls_are_as_many_as_handlers_may_run(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 9).await;
    let (handler, mut calls) = Calls::new();
    let worker = Worker::new(queue).handle_batch("count", BatchOptions::new(3), handler);
    let worker = run(worker.concurrency(2));
    let mut seen = Vec::new();
    let (first, second) = (calls.begun().await, calls.begun().await);
    calls.none_begins().await;
    seen.extend(first.numbers());
    first.all_done();
    let third = calls.begun().await;
    for call in [second, third] {
        seen.extend(call.numbers());
        call.all_done();
    }
    nothing_left(&cx).await;
    assert_eq!(worker.end().await.done, 9);
    seen.sort_unstable();
    assert_eq!(seen, (0..9).collect::<Vec<_>>());
}

async fn call_that_gathers_is_one_of_the_handlers(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 1).await;
    let (one, mut gate) = Gate::new();
    let (many, mut calls) = Calls::new();
    let options = BatchOptions::new(3).gather(MINUTE);
    let worker = Worker::new(queue.clone())
        .handle("one", one)
        .handle_batch("count", options, many);
    let worker = run(worker.concurrency(1));
    eventually("it is gathered", async || cx.jobs().await.delivered == 1).await;
    queue.push(Job::new("one", &7).unwrap()).await.unwrap();
    gate.none_begins().await;
    // What is gathered is claimed although there is no place for the other.
    queue.push_all(vec![job(1), job(2)]).await.unwrap();
    let call = calls.begun().await;
    assert_eq!(call.numbers(), [0, 1, 2]);
    gate.none_begins().await;
    call.all_done();
    let begun = gate.begun().await;
    push(&queue, 3).await;
    calls.none_begins().await;
    begun.end(Ok(()));
    calls.begun().await.all_done();
    nothing_left(&cx).await;
    let ended = worker.end().await;
    assert_eq!((ended.done, ended.claimed), (7, 7 + ended.released));
}

async fn calls_beside_handlers_of_single_jobs_are_large(cx: Context) {
    const EACH: usize = 600;
    let queue = cx.queue().await;
    let jobs = (0..EACH).flat_map(|number| {
        let one = Job::new("one", &number).unwrap();
        [one, job(number)]
    });
    queue.push_all(jobs.collect()).await.unwrap();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let called = Arc::clone(&sizes);
    let options = BatchOptions::new(200).gather(Duration::from_secs(20));
    let worker = Worker::new(queue)
        .handle("one", async |_: usize, _| Ok(()))
        .handle_batch("count", options, move |jobs: Vec<(usize, BatchJob)>| {
            called.lock().unwrap().push(jobs.len());
            for (_, job) in jobs {
                job.answer(Ok(()));
            }
            async { Ok(()) }
        })
        .concurrency(2);
    let worker = run(worker);
    nothing_left(&cx).await;
    assert_eq!(worker.end().await.done, 2 * 600);
    assert_eq!(*sizes.lock().unwrap(), [200; 3]);
}

async fn all_jobs_are_done_once_by_calls_of_two_workers(cx: Context) {
    const JOBS: usize = 2000;
    let queues = [cx.queue().await, cx.queue().await];
    let done = Arc::new(Mutex::new(Vec::new()));
    let workers = queues.each_ref().map(|queue| {
        let done = Arc::clone(&done);
        let options = BatchOptions::new(70).gather(Duration::from_millis(20));
        let worker = spawned(Worker::new(queue.clone())).handle_batch(
            "count",
            options,
            move |jobs: Vec<(usize, BatchJob)>| {
                let done = Arc::clone(&done);
                async move {
                    tokio::task::yield_now().await;
                    for (number, job) in jobs {
                        done.lock().unwrap().push(number);
                        job.answer(Ok(()));
                    }
                    Ok(())
                }
            },
        );
        run(worker)
    });
    push(&queues[0], JOBS / 2).await;
    let rest = (JOBS / 2..JOBS).map(job).collect();
    queues[1].push_all(rest).await.unwrap();
    nothing_left(&cx).await;
    let mut total = 0;
    for worker in workers {
        let ended = worker.end().await;
        assert_eq!(ended.claimed, ended.done + ended.released, "{ended:?}");
        total += ended.done;
    }
    assert_eq!(total, 2000);
    let mut done = done.lock().unwrap().clone();
    done.sort_unstable();
    assert_eq!(done, (0..JOBS).collect::<Vec<_>>());
}

async fn gathered_jobs_outlive_their_lease(cx: Context) {
    let (queue, there) = (cx.queue().await, cx.queue().await);
    push(&queue, 1).await;
    let (handler, mut calls) = Calls::new();
    let options = BatchOptions::new(2).gather(MINUTE);
    let worker = Worker::new(queue).handle_batch("count", options, handler);
    let seen = Seen::default();
    let worker = run(worker.lease(Duration::from_secs(3)).observe(seen.clone()));
    seen.gathered(1).await;
    for _ in 0..4 {
        cx.pass(Duration::from_millis(1100)).await;
        eventually("it is extended", async || {
            cx.lease_of_jobs().await.unwrap() > Duration::from_secs(2)
        })
        .await;
        assert!(there.claim(&Claim::new(1)).await.unwrap().is_empty());
    }
    there.push(job(1)).await.unwrap();
    calls.begun().await.all_done();
    nothing_left(&cx).await;
    assert_eq!(worker.end().await, summary! { claimed: 2, done: 2 });
}

/// A runtime that has shut down drops what is spawned on it: here the call, and not the attempts.
async fn call_that_nobody_runs_puts_its_jobs_off(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 3).await;
    let (handler, mut calls) = Calls::new();
    let spawned = AtomicUsize::new(0);
    let options = BatchOptions::new(4).gather(MINUTE);
    let worker = Worker::new(queue.clone())
        .handle_batch("count", options, handler)
        .spawn_with(move |work| {
            if spawned.fetch_add(1, Ordering::AcqRel) < 3 {
                tokio::spawn(work);
            }
        });
    let idle = soon("nothing is due", worker.run_until_idle()).await;
    assert_eq!(idle.unwrap(), summary! { claimed: 3, snoozed: 3 });
    assert!(calls.0.recv().await.is_none(), "none has begun");
    cx.elapse(MINUTE).await;
    assert_eq!(attempts(&queue).await, [1, 1, 1], "uncounted");
}

async fn job_whose_layers_are_late_is_put_off(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 2).await;
    let (handler, mut calls) = Calls::new();
    let (sender, held) = oneshot::channel::<()>();
    let held = Arc::new(tokio::sync::Mutex::new(Some(held)));
    let worker = Worker::new(queue.clone())
        .handle_batch("count", BatchOptions::new(2), handler)
        .layer(move |job: Working, next: Next| {
            let held = Arc::clone(&held);
            async move {
                if job.payload() == "0"
                    && let Some(held) = held.lock().await.take()
                {
                    drop(held.await);
                }
                next.run().await
            }
        });
    let worker = run(worker.lease(MINUTE * 60));
    let call = calls.begun().await;
    assert_eq!(call.numbers(), [1]);
    drop(sender);
    eventually("it is put off", async || cx.jobs().await.delivered == 1).await;
    call.all_done();
    calls.begun().await.all_done();
    nothing_left(&cx).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 3, done: 2, snoozed: 1 }
    );
}

async fn call_may_acknowledge_in_a_transaction(cx: Context) {
    let queue = cx.queue().await;
    push_once(&queue, 3).await;
    let (handler, mut calls) = Calls::new();
    let worker =
        run(Worker::new(queue.clone()).handle_batch("count", BatchOptions::new(3), handler));
    let mut call = calls.begun().await;
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(call.jobs[&0].delivery()).await.unwrap();
    tx.commit().await;
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(call.jobs[&1].delivery()).await.unwrap();
    tx.rollback().await;
    call.answer(2, Ok(()));
    call.end(Ok(()));
    eventually("all have ended", async || cx.jobs().await.delivered == 0).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 3, done: 2, dead: 1 }
    );
    assert!(errors(&queue).await["1"].contains("rolled back"));
}

/// A call on a thread that has begun, and waits to be told how to end.
struct Thread {
    jobs: BTreeMap<usize, blocking::BatchJob>,
    end: std::sync::mpsc::Sender<Result<(), Failed>>,
}

type Threads = mpsc::UnboundedReceiver<Thread>;

type ThreadJobs = Vec<(usize, blocking::BatchJob)>;

fn on_threads() -> (
    impl Fn(ThreadJobs) -> Result<(), Failed> + Send + Sync + 'static,
    Threads,
) {
    let (sender, begun) = mpsc::unbounded_channel();
    let handler = move |jobs: ThreadJobs| {
        let (end, answer) = std::sync::mpsc::channel();
        let jobs = jobs.into_iter().collect();
        drop(sender.send(Thread { jobs, end }));
        answer.recv().unwrap_or_else(|_| panic!("boom"))
    };
    (handler, begun)
}

async fn thread(threads: &mut Threads) -> Thread {
    soon("a call begins", threads.recv()).await.unwrap()
}

fn run_blocking(worker: blocking::Worker) -> Runs {
    let stop = Stop::new();
    let stopped = stop.clone();
    let running = tokio::task::spawn_blocking(move || worker.run(&stopped));
    Runs { stop, running }
}

async fn thread_gets_many_jobs_and_answers_each(cx: Context) {
    let queue = cx.queue().await;
    push_once(&queue, 4).await;
    let (handler, mut threads) = on_threads();
    let worker = blocking::Worker::new(&queue.clone().into());
    let worker = run_blocking(worker.handle_batch("count", BatchOptions::new(4), handler));
    let mut call = thread(&mut threads).await;
    assert_eq!(call.jobs.len(), 4);
    call.jobs.remove(&0).unwrap().answer(Ok(()));
    let rejected = Err(Failed::reject("one"));
    call.jobs.remove(&1).unwrap().answer(rejected);
    eventually("they are told", async || cx.jobs().await.delivered == 2).await;
    call.end.send(Ok(())).unwrap();
    eventually("all have ended", async || cx.jobs().await.delivered == 0).await;
    let end = queue.push(job(4).max_attempts(1)).await;
    assert!(end.is_ok());
    drop(thread(&mut threads).await);
    eventually("it has failed", async || cx.jobs().await.ended == 4).await;
    assert_eq!(
        worker.end().await,
        summary! { claimed: 5, done: 1, dead: 4 }
    );
    let errors = errors(&queue).await;
    assert_eq!(errors["1"], "one");
    let left = "the handler ended without an answer for this job";
    assert_eq!((&*errors["2"], &*errors["3"]), (left, left));
    assert_eq!(errors["4"], "the handler panicked: boom");
}

async fn thread_of_a_call_is_one_of_the_handlers(cx: Context) {
    let queue = cx.queue().await;
    push_once(&queue, 4).await;
    let (handler, mut threads) = on_threads();
    let time = WorkerOptions::default().timeout(Duration::from_millis(30));
    let options = BatchOptions::new(2).options(time);
    let worker = blocking::Worker::new(&queue.into()).handle_batch("count", options, handler);
    let worker = run_blocking(worker.concurrency(1));
    let first = thread(&mut threads).await;
    eventually("they have failed", async || cx.jobs().await.ended == 2).await;
    assert!(first.jobs.values().all(|job| job.is_lost()));
    not_yet("its place is taken", threads.recv()).await;
    first.end.send(Ok(())).unwrap();
    let second = thread(&mut threads).await;
    eventually("they have failed", async || cx.jobs().await.ended == 4).await;
    // The worker ends although its handler does not.
    let ended = worker.end().await;
    assert_eq!(ended.dead, 4, "{ended:?}");
    second.end.send(Ok(())).unwrap();
}

async fn options_of_batches_outside_of_their_limits_are_refused(cx: Context) {
    let queue = cx.queue().await;
    let zero = WorkerOptions::default().timeout(Duration::ZERO);
    let refused = [
        BatchOptions::new(0),
        BatchOptions::new(1001),
        BatchOptions::new(1).gather(Duration::from_millis(60_001)),
        BatchOptions::new(1).options(zero),
    ];
    for options in refused {
        let (handler, _) = Calls::new();
        let worker = Worker::new(queue.clone()).handle_batch("count", options, handler);
        let error = soon("it is refused", worker.run(Stop::new())).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let (one, _) = Gate::new();
    let (many, _) = Calls::new();
    let worker = Worker::new(queue)
        .handle_batch("count", BatchOptions::new(1), many)
        .handle("count", one);
    let error = soon("it is refused", worker.run(Stop::new())).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
}
