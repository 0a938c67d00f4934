use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::blocking::block_on;
use crate::engine::ManualClock;
use crate::memory::Database;
use crate::queue::{Groups, Job};
use crate::stop::Stop;
use crate::wait::unless;
use crate::worker::{Context, Failed, Worker};

const HANDLERS: usize = 8;

/// What a handler holds.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        panic!("a destructor");
    }
}

/// A worker whose handlers never end, how many have begun, and how many were dropped.
async fn at_work() -> (Worker, Arc<Semaphore>, Arc<AtomicUsize>) {
    let backend = Database::new().connect().await.unwrap();
    let queue = backend.queue("work").unwrap();
    for number in 0..HANDLERS {
        queue
            .push(Job::new("count", &number).unwrap())
            .await
            .unwrap();
    }
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
