//! Workers: handlers that acknowledge their jobs in transactions of their own. Whatever they answer
//! then, the effects of the transaction and the end of the job are one.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::{self, Claim, Delivery, Job};
use lockapi::table::TableMode;
use lockapi::worker::{Failed, Observe, Summary, Worker, WorkerOptions};
use lockapi::{ErrorKind, Queue};
use tokio::sync::mpsc;

use super::worker::{Begun, Gate, Runs, push, run, summary};
use crate::context::{Context, MINUTE};
use crate::fixture::{Jobs, Transaction};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "worker_transactions":
    Q10 commit_and_ok_is_done [Transactions];
    Q10 commit_and_error_is_done [Transactions];
    Q10 commit_and_panic_is_done [Transactions];
    Q10 commit_and_timeout_is_done [Transactions];
    Q10 commit_and_handler_that_its_runtime_drops_is_done [Transactions];
    Q10 commit_and_handler_that_its_runtime_drops_at_the_end_is_done [Transactions];
    Q10 rollback_and_ok_is_a_failed_attempt [Transactions];
    Q10 acknowledgement_that_fails_and_ok_is_a_failed_attempt [Transactions];
    Q10 rollback_and_error_is_a_failed_attempt [Transactions];
    Q10 rollback_and_panic_is_a_failed_attempt [Transactions];
    Q10 rollback_and_reject_is_a_dead_letter [Transactions];
    Q10 transaction_that_commits_after_its_handler_is_waited_for [Transactions];
    Q10 transaction_that_is_rolled_back_after_its_handler_is_a_failed_attempt [Transactions];
    Q10 transaction_that_outlives_its_worker_is_unknown [Transactions];
    Q10 job_that_another_has_by_now_is_lost [Transactions];
    Q10 rollback_and_cancellation_is_lost [Transactions];
    Q10 rollback_and_dead_letter_is_lost [Transactions];
    Q10 rollback_and_kept_completion_by_another_is_lost [Transactions];
    Q10 refused_acknowledgement_of_what_another_has_completed_is_lost [Transactions];
}

/// What became of a scene.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    worker: Summary,
    effects: usize,
    /// Jobs that wait for another attempt.
    waiting: usize,
}

impl Ended {
    const fn new(worker: Summary, effects: usize, waiting: usize) -> Self {
        Self {
            worker,
            effects,
            waiting,
        }
    }
}

fn done() -> Ended {
    Ended::new(summary! { claimed: 1, done: 1 }, 1, 0)
}

fn failed() -> Ended {
    Ended::new(summary! { claimed: 1, failed: 1 }, 0, 1)
}

fn dead() -> Ended {
    Ended::new(summary! { claimed: 1, dead: 1 }, 0, 0)
}

fn lost() -> Ended {
    Ended::new(summary! { claimed: 1, lost: 1 }, 0, 0)
}

/// A worker whose only job has begun, and the queue that its effects are in.
struct Scene {
    cx: Context,
    worker: Runs,
    effects: Arc<dyn Queue>,
    begun: Option<Begun>,
    gate: Gate,
}

impl Scene {
    /// The handler ends as it is told; told `Ok`, it panics if `panics`.
    async fn new(cx: Context, options: WorkerOptions, panics: bool) -> Self {
        let queue = cx.queue().await;
        push(&queue, 1).await;
        let (handler, mut gate) = Gate::new();
        let handler = move |number: usize, job| {
            let work = handler(number, job);
            async move {
                work.await?;
                assert!(!panics, "afterwards");
                Ok(())
            }
        };
        // It claims nothing while its job runs, not even that job when another is to have it.
        let worker = Worker::new(queue)
            .options(options.backoff(|_| MINUTE * 60))
            .concurrency(1)
            .prefetch(0)
            .grace(Duration::from_millis(200))
            .handle("count", handler);
        let worker = run(worker);
        let begun = Some(gate.begun().await);
        let effects = cx.backend().await.queue("effects").unwrap();
        Self {
            cx,
            worker,
            effects,
            begun,
            gate,
        }
    }

    /// The transaction of the handler, with its effect and its completion.
    async fn acknowledge(&self) -> Box<dyn Transaction> {
        let mut tx = self.cx.begin().await.unwrap();
        let job = Job::new("effect", &1).unwrap();
        tx.push_in(&self.effects, vec![job]).await.unwrap();
        let delivery = self.begun.as_ref().unwrap().job.delivery();
        tx.ack_in(delivery).await.unwrap();
        tx
    }

    fn answer(&mut self, answer: Result<(), Failed>) {
        self.begun.take().unwrap().end(answer);
    }

    /// Waits until no worker has a job any more.
    async fn settled(&self) {
        let delivered = async || self.cx.jobs().await.delivered == 0;
        eventually("it is settled", delivered).await;
    }

    /// Ends the worker, and answers what became of its job.
    async fn end(mut self) -> Ended {
        not_yet("it does not run again", self.gate.begun()).await;
        let summary: Summary = self.worker.end().await;
        let claimed = self.effects.claim(&Claim::new(10)).await.unwrap();
        let effects = claimed.len();
        for delivery in claimed {
            delivery.ack().await.unwrap();
        }
        Ended::new(summary, effects, self.cx.jobs().await.waiting)
    }
}

async fn answered(cx: Context, commits: bool, answer: Result<(), Failed>, panics: bool) -> Ended {
    let mut scene = Scene::new(cx, WorkerOptions::default(), panics).await;
    let tx = scene.acknowledge().await;
    if commits {
        tx.commit().await;
    } else {
        tx.rollback().await;
    }
    scene.answer(answer);
    scene.settled().await;
    scene.end().await
}

async fn commit_and_ok_is_done(cx: Context) {
    assert_eq!(answered(cx, true, Ok(()), false).await, done());
}

async fn commit_and_error_is_done(cx: Context) {
    let error = Err(Failed::retry("no"));
    assert_eq!(answered(cx, true, error, false).await, done());
}

async fn commit_and_panic_is_done(cx: Context) {
    assert_eq!(answered(cx, true, Ok(()), true).await, done());
}

/// Sends when it is told that nobody runs a handler.
#[derive(Clone)]
struct Dropped(mpsc::UnboundedSender<()>);

impl Observe for Dropped {
    fn dropped(&self, _: &Delivery) {
        let _sent = self.0.send(());
    }
}

async fn commit_and_handler_that_its_runtime_drops_is_done(cx: Context) {
    handler_that_its_runtime_drops(cx, false).await;
}

async fn commit_and_handler_that_its_runtime_drops_at_the_end_is_done(cx: Context) {
    handler_that_its_runtime_drops(cx, true).await;
}

/// While the worker stops, or before.
async fn handler_that_its_runtime_drops(cx: Context, stops: bool) {
    let queue = cx.queue().await;
    push(&queue, 1).await;
    let (handler, mut gate) = Gate::new();
    let (spawned, mut handlers) = mpsc::unbounded_channel();
    let (told, mut dropped) = mpsc::unbounded_channel();
    let worker = Worker::new(queue)
        .observe(Dropped(told))
        .concurrency(1)
        .prefetch(0)
        .handle("count", handler)
        .spawn_with(move |work| {
            let _sent = spawned.send(tokio::spawn(work).abort_handle());
        });
    let worker = run(worker);
    let begun = gate.begun().await;
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(begun.job.delivery()).await.unwrap();
    tx.commit().await;
    if stops {
        worker.stop.stop();
    }
    handlers.recv().await.unwrap().abort();
    if !stops {
        soon("it is told", dropped.recv()).await.unwrap();
    }
    let summary: Summary = worker.end().await;
    assert_eq!(summary, summary! { claimed: 1, done: 1 });
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn commit_and_timeout_is_done(cx: Context) {
    // Ample time for the commit, which has to come first.
    let options = WorkerOptions::default().timeout(Duration::from_secs(4));
    let mut scene = Scene::new(cx, options, false).await;
    scene.acknowledge().await.commit().await;
    scene.begun.take().unwrap().dropped().await;
    assert_eq!(scene.end().await, done());
}

async fn rollback_and_ok_is_a_failed_attempt(cx: Context) {
    assert_eq!(answered(cx, false, Ok(()), false).await, failed());
}

async fn acknowledgement_that_fails_and_ok_is_a_failed_attempt(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    let mut tx = scene.cx.begin().await.unwrap();
    // What does not exist ends the transaction.
    let none = tx.lock_table_in("no_such_table".into(), TableMode::Share, None);
    none.await.unwrap_err();
    let delivery = scene.begun.as_ref().unwrap().job.delivery();
    tx.ack_in(delivery).await.unwrap_err();
    tx.rollback().await;
    scene.answer(Ok(()));
    scene.settled().await;
    assert_eq!(scene.end().await, failed());
}

async fn rollback_and_error_is_a_failed_attempt(cx: Context) {
    let error = Err(Failed::retry("no"));
    assert_eq!(answered(cx, false, error, false).await, failed());
}

async fn rollback_and_panic_is_a_failed_attempt(cx: Context) {
    assert_eq!(answered(cx, false, Ok(()), true).await, failed());
}

async fn rollback_and_reject_is_a_dead_letter(cx: Context) {
    let error = Err(Failed::reject("never"));
    assert_eq!(answered(cx, false, error, false).await, dead());
}

async fn transaction_that_commits_after_its_handler_is_waited_for(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    let tx = scene.acknowledge().await;
    scene.answer(Ok(()));
    let jobs = async || scene.cx.jobs().await;
    assert_eq!(jobs().await.delivered, 1);
    not_yet("it is not settled", scene.settled()).await;
    tx.commit().await;
    scene.settled().await;
    assert_eq!(scene.end().await, done());
}

async fn transaction_that_is_rolled_back_after_its_handler_is_a_failed_attempt(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    let tx = scene.acknowledge().await;
    scene.answer(Ok(()));
    not_yet("it is not settled", scene.settled()).await;
    tx.rollback().await;
    scene.settled().await;
    assert_eq!(scene.end().await, failed());
}

async fn transaction_that_outlives_its_worker_is_unknown(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    let (tx, cx) = (scene.acknowledge().await, scene.cx.clone());
    scene.answer(Ok(()));
    let ended = scene.end().await;
    assert_eq!(ended.worker, summary! { claimed: 1, unknown: 1 });
    tx.commit().await;
    let effect = Jobs {
        waiting: 1,
        ..Jobs::default()
    };
    assert_eq!(cx.jobs().await, effect, "the job is done all the same");
}

async fn job_that_another_has_by_now_is_lost(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    scene.acknowledge().await.rollback().await;
    scene.cx.elapse(MINUTE).await;
    let other = scene.cx.queue().await.claim(&Claim::new(1)).await.unwrap();
    scene.answer(Ok(()));
    let cx = scene.cx.clone();
    let ended = scene.end().await;
    assert_eq!(
        (ended.worker.done, ended.effects),
        (0, 0),
        "nothing was done"
    );
    for delivery in other {
        delivery.ack().await.unwrap();
    }
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn rollback_and_cancellation_is_lost(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    scene.acknowledge().await.rollback().await;
    let id = scene.begun.as_ref().unwrap().job.id();
    let cancelled = scene.cx.queue().await.cancel(vec![id]).await.unwrap();
    assert_eq!(cancelled, [id]);
    scene.answer(Ok(()));
    assert_eq!(scene.end().await, lost());
}

/// The delivery of another, after the lease of the scene's has ended.
async fn taken_over(scene: &Scene) -> Delivery {
    scene.cx.elapse(MINUTE).await;
    let backend = scene.cx.backend().await;
    let options = queue::QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.open_queue("work".to_owned(), options).unwrap();
    let claim = Claim::new(1).wait(MINUTE);
    queue.claim(&claim).await.unwrap().remove(0)
}

async fn rollback_and_dead_letter_is_lost(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    scene.acknowledge().await.rollback().await;
    let other = taken_over(&scene).await;
    other.reject("never").await.unwrap();
    scene.answer(Ok(()));
    assert_eq!(scene.end().await, lost());
}

async fn refused_acknowledgement_of_what_another_has_completed_is_lost(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    scene.cx.elapse(MINUTE).await;
    let claim = Claim::new(1).wait(MINUTE);
    let mut other = scene.cx.queue().await.claim(&claim).await.unwrap();
    other.remove(0).ack().await.unwrap();
    let mut tx = scene.cx.begin().await.unwrap();
    let delivery = scene.begun.as_ref().unwrap().job.delivery();
    let refused = tx.ack_in(delivery).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Lost);
    tx.rollback().await;
    scene.answer(Ok(()));
    assert_eq!(scene.end().await, lost());
}

async fn rollback_and_kept_completion_by_another_is_lost(cx: Context) {
    let mut scene = Scene::new(cx, WorkerOptions::default(), false).await;
    scene.acknowledge().await.rollback().await;
    taken_over(&scene).await.ack().await.unwrap();
    scene.answer(Ok(()));
    assert_eq!(scene.end().await, lost());
}
