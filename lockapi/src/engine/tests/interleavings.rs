//! The whole engine on a database in memory: each task of it is a thread of the scheduler, and no time passes. A
//! call that nobody wakes is a deadlock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::ManualClock;
use crate::Stop;
use crate::backend::Backend;
use crate::blocking::{self, block_on};
use crate::id::IdOptions;
use crate::lease::LeaseOptions;
use crate::memory::Database;
use crate::queue::{Claim, Job};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, thread};

const LONG: Duration = Duration::from_secs(3600);

fn explore(program: impl Fn(&Database, Arc<dyn Backend>) + Clone + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    let program = move || {
        let database = Database::with_clock(&ManualClock::default());
        let backend = block_on(database.connect()).unwrap();
        program(&database, backend);
    };
    Runner::new(RandomScheduler::new(100), config.clone()).run(program.clone());
    Runner::new(PctScheduler::new(3, 100), config).run(program);
}

/// Callers of one claim share its statement, and one of them leaves.
#[test]
fn a_job_goes_to_the_one_who_stays() {
    explore(|_, backend| {
        let claims = [(); 2].map(|()| backend.queue("a").unwrap());
        let push = backend.queue("a").unwrap();
        let claim = Claim::new(1).wait(LONG);
        let [staying, leaving] = claims;
        let wants = claim.clone();
        let stays = thread::spawn(move || {
            let delivered = block_on(staying.claim(&wants)).unwrap().pop().unwrap();
            block_on(delivered.ack()).unwrap();
        });
        let leaves = thread::spawn(move || {
            let mut claiming = Box::pin(leaving.claim(&claim));
            for _ in 0..3 {
                drop((&mut claiming).now_or_never());
                thread::yield_now();
            }
        });
        block_on(push.push(Job::new("a", &1).unwrap())).unwrap();
        stays.join().unwrap();
        leaves.join().unwrap();
    });
}

#[test]
fn a_mutex_has_one_holder_and_wakes_the_next() {
    explore(|_, backend| {
        let inside = Arc::new(AtomicUsize::new(0));
        let callers = [(); 3].map(|()| {
            let (mutex, inside) = (backend.mutex("a").unwrap(), Arc::clone(&inside));
            thread::spawn(move || {
                let guard = block_on(mutex.lock()).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0);
                inside.fetch_sub(1, Ordering::AcqRel);
                block_on(guard.unlock()).unwrap();
            })
        });
        let mutex = backend.mutex("a").unwrap();
        drop(mutex.lock().now_or_never());
        for caller in callers {
            caller.join().unwrap();
        }
    });
}

#[test]
fn ids_of_blocks_are_taken_once() {
    explore(|_, backend| {
        let ids = backend.id_gen("a", IdOptions::blocks(2)).unwrap();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let callers = [(); 3].map(|()| {
            let (ids, taken) = (Arc::clone(&ids), Arc::clone(&taken));
            thread::spawn(move || {
                for _ in 0..2 {
                    let id = block_on(ids.next()).unwrap();
                    taken.lock().unwrap().push(id);
                }
            })
        });
        for caller in callers {
            caller.join().unwrap();
        }
        let mut taken = std::mem::take(&mut *taken.lock().unwrap());
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 6);
    });
}

/// Its handlers run on threads of a pool, and the last one stops it.
#[test]
fn a_worker_does_each_job_once_and_stops() {
    explore(|_, backend| {
        let queue = blocking::Backend::from(backend).queue("a").unwrap();
        let pushing = queue.inner().clone();
        let pushes = thread::spawn(move || {
            for _ in 0..2 {
                block_on(pushing.push(Job::new("a", &1).unwrap())).unwrap();
            }
        });
        let (done, stop) = (AtomicUsize::new(0), Stop::new());
        let stops = stop.clone();
        let summary = blocking::Worker::new(&queue)
            .handle("a", move |_: i32, _| {
                if done.fetch_add(1, Ordering::AcqRel) == 1 {
                    stops.stop();
                }
                Ok(())
            })
            .concurrency(1)
            .run(&stop);
        assert_eq!(summary.unwrap().done, 2);
        pushes.join().unwrap();
    });
}

/// Calls that come meanwhile are answered or refused, and no session stays open.
#[test]
fn the_end_leaves_no_call_unanswered_and_no_session_open() {
    explore(|database, backend| {
        let queue = backend.queue("a").unwrap();
        let pushes = thread::spawn(move || {
            drop(block_on(queue.push(Job::new("a", &1).unwrap())));
            drop(block_on(queue.claim(&Claim::new(1))));
        });
        let lease = backend.lease("a", LeaseOptions::new(LONG)).unwrap();
        let mutex = backend.mutex("a").unwrap();
        let holds = thread::spawn(move || {
            let guards = (block_on(lease.acquire()), block_on(mutex.lock()));
            drop(guards);
        });
        block_on(backend.close()).unwrap();
        assert_eq!(database.sessions(), 0);
        pushes.join().unwrap();
        holds.join().unwrap();
        assert_eq!(database.sessions(), 0);
    });
}
