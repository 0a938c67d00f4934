use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::blocking::block_on;
use crate::memory::Database;
use crate::queue::Job;
use crate::stop::Stop;
use crate::wait::unless;
use crate::worker::{Context, Worker};

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
