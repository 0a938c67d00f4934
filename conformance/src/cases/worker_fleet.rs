//! Workers: several that share a queue, of the same program or of two versions of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, Job, Priority};
use lockapi::worker::{Context as Working, Ending, Failed, Observe, Worker, WorkerOptions};
use lockapi::{Queue, Stop};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use super::worker::{Gate, push, run, summary};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::eventually;

register! { "worker_fleet":
    W11 jobs_of_a_new_name_wait_for_the_new_version;
    W11 jobs_that_nobody_handles_are_found;
    W11 payloads_of_a_new_kind_are_tried_again_by_the_new_version;
    Q18 jobs_that_cannot_begin_go_back_to_idle_workers;
    Q18 jobs_that_cannot_begin_go_back_although_the_executor_is_blocked;
    W05 panics_of_callbacks_end_nothing;
}

/// Looks often, since nobody tells of what comes back.
fn looking(queue: Arc<dyn Queue>) -> Worker {
    // Time that is moved while something is claimed is taken from its lease.
    Worker::new(queue)
        .poll(Duration::from_millis(20))
        .lease(MINUTE * 1000)
}

async fn jobs_of_a_new_name_wait_for_the_new_version(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    let jobs = (0..20).map(|number| Job::new("new", &number).unwrap().max_attempts(1));
    here.push_all(jobs.collect()).await.unwrap();
    push(&here, 1).await;
    let (handler, mut gate) = Gate::new();
    let old = run(looking(here).handle("count", handler));
    gate.begun().await.end(Ok(()));
    let both = |done: &Arc<AtomicUsize>| {
        let done = Arc::clone(done);
        move |_: usize, _: Working| {
            done.fetch_add(1, Ordering::AcqRel);
            async { Ok::<_, Failed>(()) }
        }
    };
    let done = Arc::new(AtomicUsize::new(0));
    let new = looking(there.clone()).handle("new", both(&done));
    let new = run(new);
    eventually("the new version does them", async || {
        cx.elapse(MINUTE).await;
        done.load(Ordering::Acquire) == 20
    })
    .await;
    eventually("it is told", async || cx.jobs().await == Jobs::default()).await;
    let old = old.end().await;
    assert_eq!((old.claimed, old.dead), (1, 0), "it claims what it handles");
    assert_eq!(new.end().await.done, 20);
    assert_eq!(there.dead_letters(0, 1).await.unwrap().len(), 0);
}

async fn jobs_that_nobody_handles_are_found(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 3).await;
    for priority in [Priority::Low, Priority::High] {
        let job = Job::new("new", &1).unwrap().priority(priority);
        queue.push(job).await.unwrap();
    }
    let later = Job::new("later", &1).unwrap().delay(MINUTE * 10);
    queue.push(later).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    let found = queue.unhandled(vec!["count".to_owned()]).await.unwrap();
    let [new] = &*found else { panic!("{found:?}") };
    assert_eq!((new.name.as_str(), new.jobs), ("new", 2));
    assert!(new.waited >= MINUTE * 2 && new.waited < MINUTE * 4);
    let claim = Claim::new(10).names(["new"]);
    let claimed = queue.claim(&claim).await.unwrap();
    assert_eq!(claimed.len(), 2);
    let found = queue.unhandled(vec!["count".to_owned()]).await.unwrap();
    assert!(found.is_empty(), "what is claimed is handled: {found:?}");
    let all = queue.unhandled(Vec::new()).await.unwrap();
    assert_eq!((all[0].name.as_str(), all[0].jobs), ("count", 3));
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
}

async fn payloads_of_a_new_kind_are_tried_again_by_the_new_version(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push(Job::new("count", &(7, "new")).unwrap())
        .await
        .unwrap();
    let options = WorkerOptions::default().backoff(|_| MINUTE);
    let (handler, _gate) = Gate::new();
    let old = looking(here)
        .options(options.clone())
        .handle("count", handler);
    let old = run(old);
    eventually("the old version has tried", async || {
        let jobs = cx.jobs().await;
        (jobs.waiting, jobs.delivered) == (1, 0)
            && there.statistics().await.unwrap().delayed.count == 1
    })
    .await;
    let old = old.end().await;
    assert_eq!(old, summary! { claimed: 1, failed: 1 });
    let seen = Arc::new(Mutex::new(0));
    let heard = Arc::clone(&seen);
    let new = looking(there).handle("count", move |new: (usize, String), _: Working| {
        *heard.lock().unwrap() = new.0;
        async { Ok::<_, Failed>(()) }
    });
    let new = run(new);
    cx.elapse(MINUTE).await;
    eventually("the new one does it", async || {
        cx.jobs().await == Jobs::default()
    })
    .await;
    assert_eq!(new.end().await.done, 1);
    assert_eq!(*seen.lock().unwrap(), 7);
}

/// Handlers that are quick until some hang.
#[derive(Default)]
struct Hanging {
    begun: AtomicUsize,
    go: Mutex<bool>,
    changed: Condvar,
}

impl Hanging {
    const QUICK: usize = 150;

    /// Does a job, and blocks its thread if it hangs.
    fn work(&self) {
        if self.begun.fetch_add(1, Ordering::AcqRel) >= Self::QUICK {
            let go = self.go.lock().unwrap();
            drop(self.changed.wait_while(go, |go| !*go).unwrap());
        }
    }

    fn let_go(&self) {
        *self.go.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// What handlers that hang have claimed ahead is done by an idle worker. All that hang are let go in the
/// end.
async fn hostages(cx: Context, spawns: bool) {
    const JOBS: usize = 2 * Hanging::QUICK;
    let (here, there) = (cx.queue().await, cx.queue().await);
    push(&here, JOBS).await;
    let hanging = Arc::new(Hanging::default());
    let work = Arc::clone(&hanging);
    let worker = looking(here).concurrency(4);
    let worker = worker.handle("count", move |_: usize, _: Working| {
        let work = Arc::clone(&work);
        async move {
            if spawns {
                spawn_blocking(move || work.work()).await?;
            } else {
                work.work();
            }
            Ok(())
        }
    });
    let stop = Stop::new();
    let stopped = stop.clone();
    // In a runtime of its own, so that what is blocked is the worker and nobody else.
    let hung = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(worker.run(stopped))
    });
    // Blocked, it has handlers in hand that have begun and do nothing.
    let (hangs, in_hand) = if spawns { (4, 0) } else { (1, 3) };
    let begun = || hanging.begun.load(Ordering::Acquire);
    eventually("handlers hang", async || begun() == Hanging::QUICK + hangs).await;
    let done = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&done);
    let idle = looking(there).handle("count", move |_: usize, _: Working| {
        counted.fetch_add(1, Ordering::AcqRel);
        async { Ok::<_, Failed>(()) }
    });
    let idle = run(idle);
    eventually(
        "the idle worker does what has not begun there",
        async || done.load(Ordering::Acquire) + begun() >= JOBS - in_hand,
    )
    .await;
    hanging.let_go();
    eventually("all are done", async || cx.jobs().await == Jobs::default()).await;
    stop.stop();
    let hung = call(move || hung.join().unwrap()).await.unwrap();
    let idle = idle.end().await;
    let all = u64::try_from(JOBS).unwrap();
    assert_eq!(hung.done + idle.done, all, "{hung:?} {idle:?}");
    assert_eq!((hung.lost, idle.lost), (0, 0), "{hung:?} {idle:?}");
}

async fn call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap()
}

async fn jobs_that_cannot_begin_go_back_to_idle_workers(cx: Context) {
    hostages(cx, true).await;
}

async fn jobs_that_cannot_begin_go_back_although_the_executor_is_blocked(cx: Context) {
    hostages(cx, false).await;
}

/// Panics whenever it is told something.
struct Panicking;

impl Observe for Panicking {
    fn claimed(&self, _: usize) {
        panic!("claimed");
    }

    fn started(&self, _: &Delivery) {
        panic!("started");
    }

    fn finished(&self, _: &Delivery, _: &Ending, _: Duration) {
        panic!("finished");
    }
}

async fn panics_of_callbacks_end_nothing(cx: Context) {
    let queue = cx.queue().await;
    push(&queue, 3).await;
    let spawned = AtomicUsize::new(0);
    let worker = looking(queue.clone())
        .observe(Panicking)
        .options(WorkerOptions::default().backoff(|_| panic!("backoff")))
        .spawn_with(move |work| {
            assert!(spawned.fetch_add(1, Ordering::AcqRel) > 0, "spawning");
            tokio::spawn(work);
        })
        .handle("count", async |_: usize, job: Working| {
            if job.attempt() == 1 {
                return Err(Failed::retry("no"));
            }
            Ok(())
        });
    let worker = run(worker);
    eventually("all are done", async || {
        cx.elapse(MINUTE * 60).await;
        cx.jobs().await == Jobs::default()
    })
    .await;
    assert_eq!(worker.end().await.done, 3);
}
