use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Semaphore;

use crate::blocking::block_on;
use crate::engine::ManualClock;
use crate::memory::Database;
use crate::queue::{Groups, Job, Queue};
use crate::stop::Stop;
use crate::wait::unless;
use crate::worker::{
    BatchJob, BatchOptions, Context, Failed, Next, SharedConcurrency, Worker, WorkerOptions,
};

const HANDLERS: usize = 8;

/// What a handler holds.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        panic!("a destructor");
    }
}

async fn queue_of(jobs: usize) -> Arc<dyn Queue> {
    let backend = Database::new().connect().await.unwrap();
    let queue = backend.queue("work").unwrap();
    let jobs = (0..jobs).map(|number| Job::new("count", &number).unwrap());
    queue.push_all(jobs.collect()).await.unwrap();
    queue
}

/// A worker whose handlers never end, how many have begun, and how many were dropped.
async fn at_work() -> (Worker, Arc<Semaphore>, Arc<AtomicUsize>) {
    let queue = queue_of(HANDLERS).await;
    let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::default());
    let (adds, drops) = (Arc::clone(&begun), Arc::clone(&dropped));
    let worker = Worker::new(queue)
        .concurrency(HANDLERS)
        .grace(Duration::ZERO)
        .handle("count", move |_: usize, _: Context| {
            let guard = Guard(Arc::clone(&drops));
            adds.add_permits(1);
            async move {
                let _guard = guard;
                pending().await
            }
        });
    (worker, begun, dropped)
}

async fn all(begun: Arc<Semaphore>) {
    let many = u32::try_from(HANDLERS).unwrap();
    begun.acquire_many(many).await.unwrap().forget();
}

#[test]
fn destructor_that_panics_keeps_no_other_handler_from_being_dropped() {
    block_on(async {
        let (worker, begun, dropped) = at_work().await;
        let run = Box::pin(worker.run(Stop::new()));
        assert!(unless(all(begun), run).await.is_none(), "it was dropped");
        assert_eq!(dropped.load(Ordering::Acquire), HANDLERS);
    });
}

#[test]
fn destructor_that_panics_keeps_no_other_job_from_going_back() {
    block_on(async {
        let (worker, begun, dropped) = at_work().await;
        let summary = worker.run(all(begun)).await.unwrap();
        assert_eq!(summary.released, u64::try_from(HANDLERS).unwrap());
        assert_eq!(dropped.load(Ordering::Acquire), HANDLERS);
    });
}

#[test]
fn destructor_of_a_call_that_panics_keeps_no_job_from_going_back() {
    block_on(async {
        let (_, begun, dropped) = at_work().await;
        let queue = queue_of(HANDLERS).await;
        let (adds, drops) = (Arc::clone(&begun), Arc::clone(&dropped));
        let handler = move |jobs: Vec<(usize, BatchJob)>| {
            let guard = Guard(Arc::clone(&drops));
            adds.add_permits(jobs.len());
            async move {
                let (_guard, _jobs) = (guard, jobs);
                pending().await
            }
        };
        let worker = Worker::new(queue)
            .concurrency(1)
            .grace(Duration::ZERO)
            .handle_batch("count", BatchOptions::new(HANDLERS), handler);
        let summary = worker.run(all(begun)).await.unwrap();
        assert_eq!(summary.released, u64::try_from(HANDLERS).unwrap());
        assert_eq!(dropped.load(Ordering::Acquire), 1);
    });
}

/// Whoever runs the handlers may drop them later than the worker gives their jobs back, as when it is dropped or has to stop.
#[test]
fn handlers_of_a_worker_that_ends_are_told_before_they_are_dropped() {
    for stops in [false, true] {
        let queue = block_on(queue_of(HANDLERS));
        let begun = Arc::new(Semaphore::new(0));
        let (contexts, kept): (Arc<Mutex<Vec<Context>>>, Arc<Mutex<Vec<_>>>) = Default::default();
        let (adds, theirs, keeps) = (Arc::clone(&begun), Arc::clone(&contexts), Arc::clone(&kept));
        let worker = Worker::new(queue)
            .concurrency(HANDLERS)
            .grace(Duration::ZERO)
            .spawn_with(move |mut work| {
                assert!((&mut work).now_or_never().is_none());
                keeps.lock().unwrap().push(work);
            })
            .handle("count", move |_: usize, cx: Context| {
                theirs.lock().unwrap().push(cx);
                adds.add_permits(1);
                pending::<Result<(), Failed>>()
            });
        block_on(async {
            if stops {
                let summary = worker.run(all(begun)).await.unwrap();
                assert_eq!(summary.released, u64::try_from(HANDLERS).unwrap());
            } else {
                let run = Box::pin(worker.run(Stop::new()));
                assert!(unless(all(begun), run).await.is_none(), "it was dropped");
            }
        });
        let contexts = contexts.lock().unwrap();
        assert!(contexts.iter().all(Context::is_lost), "others have its job");
        assert_eq!(kept.lock().unwrap().len(), HANDLERS);
    }
}

/// Ends in a way that a number chooses.
fn end(chance: usize) -> Result<(), Failed> {
    match chance % 10 {
        0 => Err(Failed::retry_after("again", Duration::ZERO)),
        1 => Err(Failed::snooze(Duration::ZERO)),
        2 => Err(Failed::reject("no")),
        3 => panic!("by chance"),
        _ => Ok(()),
    }
}

/// A layer that waits, does not run the handler, or decides, by chance.
async fn by_chance(_: Context, next: Next) -> Result<(), Failed> {
    for _ in 0..fastrand::usize(..3) {
        crate::wait::yield_now().await;
    }
    match fastrand::usize(..20) {
        0 => end(fastrand::usize(..)),
        1 => next.run().await.and_then(|()| end(fastrand::usize(..))),
        _ => next.run().await,
    }
}

async fn answer_by_chance(jobs: Vec<(usize, BatchJob)>) -> Result<(), Failed> {
    let mut kept = Vec::new();
    for (_, job) in jobs {
        match fastrand::usize(..8) {
            0 => drop(job),
            1 => kept.push(job),
            2 => crate::wait::yield_now().await,
            _ => job.answer(end(fastrand::usize(4..))),
        }
    }
    if fastrand::usize(..5) == 0 {
        return end(fastrand::usize(..));
    }
    for job in kept {
        job.answer(Ok(()));
    }
    Ok(())
}

/// Workers of all kinds end all jobs, and give each an ending.
#[test]
fn jobs_end_whatever_calls_and_layers_do() {
    const JOBS: usize = 300;
    for seed in 0..20 {
        fastrand::seed(seed);
        let queue = block_on(queue_of(0));
        let jobs = (0..JOBS).map(|number| {
            let name = ["count", "other", "one"][fastrand::usize(..3)];
            Job::new(name, &number).unwrap().max_attempts(1000)
        });
        block_on(queue.push_all(jobs.collect())).unwrap();
        let options = || {
            let gather = Duration::from_millis(3).mul_f64(fastrand::f64());
            BatchOptions::new(fastrand::usize(1..=40)).gather(gather)
        };
        let mut worker = Worker::new(Arc::clone(&queue))
            .concurrency(fastrand::usize(1..=6))
            .options(WorkerOptions::default().backoff(|_| Duration::ZERO))
            .handle_batch("count", options(), answer_by_chance)
            .handle_batch("other", options(), answer_by_chance);
        worker = match fastrand::usize(..3) {
            0 => worker.handle("one", async |_: usize, _| end(fastrand::usize(..))),
            1 => worker.fallback(async |_| end(fastrand::usize(..))),
            _ => worker.handle_batch("one", options(), answer_by_chance),
        };
        for _ in 0..fastrand::usize(..3) {
            worker = worker.layer(by_chance);
        }
        if fastrand::usize(..2) == 0 {
            worker = worker.prefetch(fastrand::usize(..50));
        }
        let threads = tokio::runtime::Runtime::new().unwrap();
        if fastrand::usize(..2) == 0 {
            let handle = threads.handle().clone();
            worker = worker.spawn_with(move |work| drop(handle.spawn(work)));
        }
        let stop = Stop::new();
        let ended = stop.clone();
        let watched = Arc::clone(&queue);
        let watch = std::thread::spawn(move || {
            for _ in 0..4000 {
                let counts = block_on(watched.statistics()).unwrap();
                if counts.ready.count + counts.running.count + counts.delayed.count == 0 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            ended.stop();
        });
        let summary = block_on(worker.run(&stop)).unwrap();
        watch.join().unwrap();
        let all = u64::try_from(JOBS).unwrap();
        assert_eq!(summary.done + summary.dead, all, "{seed}: {summary:?}");
        let ends = summary.done + summary.dead + summary.failed + summary.snoozed;
        assert_eq!(summary.claimed, ends + summary.released, "{seed}");
    }
}

/// Jobs of one group on a worker with more handlers than it may have, while the clock stands still: nothing is
/// polled. Returns how many have run.
async fn one_group(answer: fn() -> Result<(), Failed>) -> usize {
    const JOBS: usize = 12;
    let database = Database::with_clock(&ManualClock::default());
    let queue = database.connect().await.unwrap().queue("work").unwrap();
    queue.set_groups(Groups::default().limit(2)).await.unwrap();
    let jobs = (0..JOBS).map(|number| Job::new("count", &number).unwrap().group("tenant"));
    queue.push_all(jobs.collect()).await.unwrap();
    let (ran, stop) = (Arc::new(AtomicUsize::new(0)), Stop::new());
    let (adds, all) = (Arc::clone(&ran), stop.clone());
    let worker = Worker::new(queue)
        .concurrency(4)
        .handle("count", move |_: usize, _: Context| {
            if adds.fetch_add(1, Ordering::AcqRel) + 1 == JOBS {
                all.stop();
            }
            std::future::ready(answer())
        });
    let late = stop.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(10));
        late.stop();
    });
    worker.run(&stop).await.unwrap();
    ran.load(Ordering::Acquire)
}

#[test]
fn room_that_a_worker_leaves_in_a_group_is_its_own_at_once() {
    assert_eq!(block_on(one_group(|| Ok(()))), 12);
    assert_eq!(block_on(one_group(|| Err(Failed::reject("no")))), 12);
}

/// Stops after a time in which anything that can happen has.
fn stop_late(stop: &Stop) {
    let late = stop.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(10));
        late.stop();
    });
}

#[test]
fn concurrency_of_a_worker_leaves_shared_handlers_to_others() {
    const SHARED: usize = 6;
    block_on(async {
        let (shared, stop) = (SharedConcurrency::new(SHARED), Stop::new());
        let begun = Arc::new(AtomicUsize::new(0));
        let worker = async |weight| {
            let (begun, all) = (Arc::clone(&begun), stop.clone());
            Worker::new(queue_of(SHARED).await)
                .share(&shared, weight)
                .grace(Duration::ZERO)
                .handle("count", move |_: usize, _: Context| {
                    if begun.fetch_add(1, Ordering::AcqRel) + 1 == SHARED {
                        all.stop();
                    }
                    pending()
                })
        };
        let (few, many) = (worker(3).await.concurrency(1), worker(1).await);
        stop_late(&stop);
        let ended = futures_util::future::join(few.run(&stop), many.run(&stop)).await;
        let released = (ended.0.unwrap().released, ended.1.unwrap().released);
        let begun = begun.load(Ordering::Acquire);
        assert_eq!((begun, released), (SHARED, (1, 5)));
    });
}
