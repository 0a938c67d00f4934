//! Session locks over a server that is slow, hangs, or cancels what a session runs.

mod driver;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use driver::{Control, Probe, connect};

use crate::MutexGuard;
use crate::backend::Backend;
use crate::blocking::block_on;
use crate::engine::Clock;
use crate::engine::{BackendOptions, Driver, ManualClock, start_with};
use crate::error::ErrorKind;
use crate::memory::Database;

const MS: Duration = Duration::from_millis(1);

type BoxedGuard = Box<dyn MutexGuard>;
type Locking = Pin<Box<dyn Future<Output = crate::Result<BoxedGuard>>>>;

fn lock(backend: &Arc<dyn Backend>, key: &str) -> BoxedGuard {
    block_on(backend.mutex(key).unwrap().lock()).unwrap()
}

fn waiting(
    backend: &Arc<dyn Backend>,
    key: &'static str,
) -> std::thread::JoinHandle<crate::Result<BoxedGuard>> {
    let backend = Arc::clone(backend);
    std::thread::spawn(move || block_on(backend.mutex(key).unwrap().lock()))
}

/// Has the backend's waiting session hold the key, which the other gives up.
fn by_waiting(
    backend: &Arc<dyn Backend>,
    other: &Arc<dyn Backend>,
    key: &'static str,
) -> BoxedGuard {
    let theirs = lock(other, key);
    let waits = waiting(backend, key);
    std::thread::sleep(MS * 60);
    block_on(theirs.unlock()).unwrap();
    let guard = waits.join().unwrap().unwrap();
    std::thread::sleep(MS * 120);
    guard
}

#[test]
fn everybody_is_told_when_the_other_half_left() {
    let (database, control) = (Database::new(), Arc::<Control>::default());
    control.manual.store(true, Ordering::SeqCst);
    let probe = Probe(database, Arc::clone(&control));
    let backend = block_on(start_with(
        "probe",
        Driver::new(probe),
        BackendOptions::default().notes(false),
        Clock::real(),
    ))
    .unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let turn = |times: usize| {
        for _ in 0..times {
            let mut tasks = std::mem::take(&mut *control.tasks.lock().unwrap());
            tasks.retain_mut(|task| {
                task.as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            });
            control.tasks.lock().unwrap().append(&mut tasks);
        }
    };
    let ask = |key: String| -> Locking {
        let mutex = backend.mutex(key).unwrap();
        Box::pin(async move { mutex.lock().await })
    };
    let mut first = ask("first".into());
    assert!(first.as_mut().poll(&mut context).is_pending());
    turn(20);
    let Poll::Ready(Ok(guard)) = first.as_mut().poll(&mut context) else {
        panic!("not granted")
    };
    drop(guard);
    turn(20);
    // The worker rests. A hundred ask at once, as join_all does on the thread that runs the worker.
    let mut pending: Vec<_> = (0..100).map(|n| ask(format!("k{n}"))).collect();
    for one in &mut pending {
        assert!(one.as_mut().poll(&mut context).is_pending());
    }
    control.gate_shut.store(true, Ordering::SeqCst);
    turn(5);
    // While the first half is at the server, the callers of the other half leave.
    pending.truncate(64);
    control.gate_shut.store(false, Ordering::SeqCst);
    turn(1000);
    let mut told = 0;
    for one in &mut pending {
        told += usize::from(one.as_mut().poll(&mut context).is_ready());
    }
    assert_eq!(told, 64, "callers that are never answered");
}

#[test]
fn a_session_has_one_worker() {
    let clock = ManualClock::default();
    let (backend, database, control) = connect(BackendOptions::default().waiters(1), Some(&clock));
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    let mut lost = 0;
    for _ in 0..5 {
        let guard = by_waiting(&backend, &other, "a");
        block_on(guard.unlock()).unwrap();
        std::thread::sleep(MS * 50);
        control.slow_close.store(true, Ordering::SeqCst);
        clock.advance(Duration::from_secs(10));
        std::thread::sleep(MS * 100);
        // The worker has retired and closes its connection. Another is started meanwhile.
        let (one, two) = (lock(&other, "b"), lock(&other, "c"));
        let waits = waiting(&backend, "b");
        std::thread::sleep(MS * 900);
        control.slow_close.store(false, Ordering::SeqCst);
        block_on(one.unlock()).unwrap();
        let guard = waits.join().unwrap().unwrap();
        clock.advance(MS * 200);
        std::thread::sleep(MS * 50);
        lost += usize::from(block_on(guard.unlock()).is_err());
        block_on(two.unlock()).unwrap();
        std::thread::sleep(MS * 50);
    }
    assert_eq!(lost, 0, "unlocks of what is held");
    // One that has retired may still be closing its connection.
    assert!(control.most_waiters.load(Ordering::SeqCst) <= 2);
}

#[test]
fn an_interrupt_does_not_hit_what_follows_the_wait() {
    let (backend, database, control) = connect(BackendOptions::default().waiters(1), None);
    drop(lock(&backend, "main"));
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    let precious = by_waiting(&backend, &other, "precious");
    let released = by_waiting(&backend, &other, "released");
    let theirs = lock(&other, "theirs");
    control
        .execution
        .lock()
        .unwrap()
        .insert("mutex.lock_request", MS * 100);
    let waits = waiting(&backend, "theirs");
    // The slice times out; what it may have left is cleared by a statement. Now somebody unlocks.
    let start = Instant::now();
    while control.executing.lock().unwrap().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(MS);
    }
    let unlocked = block_on(released.unlock());
    control.execution.lock().unwrap().clear();
    std::thread::sleep(MS * 100);
    let is_lost = precious.is_lost();
    block_on(theirs.unlock()).unwrap();
    drop(waits.join().unwrap());
    assert!(!is_lost && unlocked.is_ok());
}

#[test]
fn an_interrupt_that_comes_before_the_wait_is_repeated() {
    let (backend, database, control) = connect(BackendOptions::default().waiters(1), None);
    drop(lock(&backend, "main"));
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    let guards: Vec<_> = ["a", "b", "c", "d"]
        .map(|key| by_waiting(&backend, &other, key))
        .into_iter()
        .collect();
    let theirs = lock(&other, "theirs");
    control
        .latency
        .lock()
        .unwrap()
        .insert("mutex.wait", MS * 20);
    let waits = waiting(&backend, "theirs");
    std::thread::sleep(MS * 70);
    let mut times = Vec::new();
    for guard in guards {
        let start = Instant::now();
        block_on(guard.unlock()).unwrap();
        times.push(start.elapsed());
    }
    block_on(theirs.unlock()).unwrap();
    drop(waits.join().unwrap());
    assert!(times.iter().all(|time| *time < MS * 100));
}

#[test]
fn readers_go_on_after_a_writer_elsewhere_gave_up() {
    let (backend, database, _) = connect(BackendOptions::default(), None);
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    let long = block_on(backend.rw_lock("k").unwrap().read()).unwrap();
    std::thread::sleep(MS * 150);
    let writer = {
        let other = Arc::clone(&other);
        std::thread::spawn(move || {
            block_on(other.rw_lock("k").unwrap().write_timeout(MS * 400)).map(drop)
        })
    };
    std::thread::sleep(MS * 100);
    assert!(writer.join().unwrap().is_err(), "the writer gave up");
    std::thread::sleep(Duration::from_secs(1));
    let here = block_on(
        backend
            .rw_lock("k")
            .unwrap()
            .read_timeout(Duration::from_secs(3)),
    );
    let tried = block_on(backend.rw_lock("k").unwrap().try_read())
        .unwrap()
        .is_some();
    let granted = here.is_ok();
    block_on(long.unlock()).unwrap();
    assert!(granted && tried);
}

#[test]
fn a_wait_whose_connection_hangs_is_polled() {
    let (backend, database, control) = connect(
        BackendOptions::default()
            .waiters(2)
            .timeout(Duration::from_secs(2)),
        None,
    );
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    drop(lock(&backend, "main"));
    let theirs = lock(&other, "k");
    control.hangs.store(true, Ordering::SeqCst);
    let waits = {
        let backend = Arc::clone(&backend);
        std::thread::spawn(move || {
            block_on(
                backend
                    .mutex("k")
                    .unwrap()
                    .lock_timeout(Duration::from_secs(15)),
            )
        })
    };
    std::thread::sleep(MS * 100);
    block_on(theirs.unlock()).unwrap();
    let outcome = waits.join().unwrap();
    assert!(outcome.is_ok());
}

#[test]
fn a_process_that_polls_has_its_turn_beside_a_busy_one() {
    let (backend, database, _) = connect(BackendOptions::default().waiters(0), None);
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let (other, stop) = (Arc::clone(&other), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock(&other, "k");
                    std::thread::sleep(MS);
                    block_on(guard.unlock()).unwrap();
                }
            })
        })
        .collect();
    std::thread::sleep(MS * 100);
    let outcome = block_on(
        backend
            .mutex("k")
            .unwrap()
            .lock_timeout(Duration::from_secs(15)),
    );
    stop.store(true, Ordering::SeqCst);
    let kind = outcome.as_ref().map(drop).map_err(crate::Error::kind);
    drop(outcome);
    for one in busy {
        one.join().unwrap();
    }
    assert!(kind.is_ok());
}

#[test]
fn a_lock_that_was_dropped_does_not_count() {
    let (backend, _, _) = connect(BackendOptions::default().max_locks(1), None);
    let mut refused = 0;
    for _ in 0..50 {
        drop(lock(&backend, "a"));
        match block_on(backend.mutex("b").unwrap().try_lock()) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Capacity);
                refused += 1;
            }
            Ok(guard) => drop(guard),
        }
        std::thread::sleep(MS * 5);
    }
    assert_eq!(refused, 0);
}

#[test]
fn a_ping_that_is_cancelled_costs_nothing() {
    let (backend, _, control) = connect(BackendOptions::default().heartbeat(MS * 50), None);
    let guards: Vec<_> = ["a", "b", "c"]
        .map(|key| lock(&backend, key))
        .into_iter()
        .collect();
    control.cancel_pings.store(true, Ordering::SeqCst);
    std::thread::sleep(MS * 200);
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0);
}

#[test]
fn what_closes_leaves_no_worker() {
    let (backend, database, control) = connect(BackendOptions::default().waiters(2), None);
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    let theirs = lock(&other, "k");
    let mutex = backend.mutex("k").unwrap();
    {
        let mut wait = std::pin::pin!(mutex.lock());
        let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        std::thread::sleep(MS * 50);
    }
    drop(mutex);
    drop(backend);
    std::thread::sleep(Duration::from_secs(1));
    let alive = control.waiters_alive.load(Ordering::SeqCst);
    assert_eq!(alive, 0);
    drop(theirs);
}

#[test]
fn a_session_that_holds_and_waits_can_die() {
    // The session that holds and waits is ended: what it holds is told, who waits goes on.
    let (backend, database, _) = connect(BackendOptions::default().waiters(1), None);
    drop(lock(&backend, "main"));
    let other = block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
    let held = by_waiting(&backend, &other, "held");
    let theirs = lock(&other, "theirs");
    let waits = waiting(&backend, "theirs");
    std::thread::sleep(MS * 100);
    database.sever();
    block_on(held.lost());
    let granted = waits
        .join()
        .unwrap()
        .map(drop)
        .map_err(|error| error.kind());
    assert!(granted.is_ok());
    drop(theirs);
}

#[test]
fn a_writer_among_readers_of_two_processes_has_its_turn() {
    let (here, database, _) = connect(BackendOptions::default(), None);
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .flat_map(|_| {
            let there =
                block_on(database.connect_with(BackendOptions::default().notes(false))).unwrap();
            (0..3).map(move |_| Arc::clone(&there))
        })
        .map(|there| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = block_on(there.rw_lock("k").unwrap().read()).unwrap();
                    std::thread::sleep(MS * 30);
                    block_on(guard.unlock()).unwrap();
                }
            })
        })
        .collect();
    std::thread::sleep(MS * 200);
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let guard = block_on(
            here.rw_lock("k")
                .unwrap()
                .write_timeout(Duration::from_secs(10)),
        );
        times.push((guard.is_ok(), start.elapsed()));
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(times.iter().all(|(granted, _)| *granted));
}
