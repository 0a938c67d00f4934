//! What a mutex promises to one program and its neighbours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::{Error, ErrorKind};
use tokio::sync::mpsc;

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "mutex":
    M01 locked_again_after_unlock;
    M02 second_holder_waits;
    M03 try_lock_on_a_held_key_is_none_at_once;
    M04 timeout_is_kept_and_nothing_is_acquired_later;
    M04 timeout_of_zero_tries_once;
    M05 unprotected_counter_is_exact;
    M07 different_keys_do_not_block_each_other;
    M08 not_reentrant;
    M13 served_in_order_of_arrival;
    M13 hand_over_lets_another_process_in;
    M20 run_exclusive_runs_one_and_skips_others;
    M20 run_exclusive_releases_when_work_panics;
}

async fn locked_again_after_unlock(cx: Context) {
    let mutex = cx.mutex("door").await;
    let lock = cx.lock_id("door");
    for _ in 0..3 {
        let guard = mutex.lock().await.unwrap();
        assert_eq!(cx.locks(lock).await.granted, 1);
        assert!(!guard.is_lost());
        guard.unlock().await.unwrap();
        assert_eq!(
            cx.locks(lock).await,
            Locks::NONE,
            "free when unlock returns"
        );
    }
    drop(mutex.try_lock().await.unwrap().expect("free"));
    eventually("a dropped guard unlocks", async || {
        cx.locks(lock).await == Locks::NONE
    })
    .await;
}

async fn second_holder_waits(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let guard = here.lock().await.unwrap();
    let waiting = tokio::spawn(async move { there.lock().await });
    tokio::pin!(waiting);
    not_yet("granted while another holds", &mut waiting).await;
    assert_eq!(cx.locks(cx.lock_id("door")).await.granted, 1);
    let before = guard.fence().token();
    guard.unlock().await.unwrap();
    let next = soon("the second holder", waiting).await.unwrap().unwrap();
    assert!(next.fence().token() > before);
    next.unlock().await.unwrap();
}

async fn try_lock_on_a_held_key_is_none_at_once(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let guard = here.lock().await.unwrap();
    // Connections are opened for the first.
    assert!(there.try_lock().await.unwrap().is_none());
    let start = Instant::now();
    for _ in 0..5 {
        assert!(there.try_lock().await.unwrap().is_none(), "elsewhere");
        assert!(here.try_lock().await.unwrap().is_none(), "in the process");
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    guard.unlock().await.unwrap();
    let guard = there.try_lock().await.unwrap().expect("free");
    guard.unlock().await.unwrap();
}

async fn timeout_is_kept_and_nothing_is_acquired_later(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let guard = here.lock().await.unwrap();
    for (mutex, timeout) in [(&there, 2000), (&here, 1500)] {
        let timeout = Duration::from_millis(timeout);
        let start = Instant::now();
        let error = mutex.lock_timeout(timeout).await.unwrap_err();
        let took = start.elapsed();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.key(), Some("door"));
        assert!(took > timeout.mul_f64(0.97), "early: {took:?}");
        assert!(took < timeout.mul_f64(1.1), "late: {took:?}");
    }
    guard.unlock().await.unwrap();
    let lock = cx.lock_id("door");
    eventually("nobody holds or waits", async || {
        cx.locks(lock).await == Locks::NONE
    })
    .await;
    for mutex in [&here, &there] {
        let guard = mutex.lock_timeout(MINUTE).await.unwrap();
        guard.unlock().await.unwrap();
    }
}

async fn timeout_of_zero_tries_once(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let guard = here.lock_timeout(Duration::ZERO).await.unwrap();
    for mutex in [&here, &there] {
        let error = mutex.lock_timeout(Duration::ZERO).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
    guard.unlock().await.unwrap();
}

async fn unprotected_counter_is_exact(cx: Context) {
    const TASKS: usize = 64;
    const ROUNDS: usize = 1000;
    let mutexes = [cx.mutex("door").await, cx.mutex("door").await];
    let counter = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..TASKS {
        let mutex = Arc::clone(&mutexes[nth % 2]);
        let counter = Arc::clone(&counter);
        tasks.spawn(async move {
            use std::sync::atomic::Ordering::Relaxed;
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.unwrap();
                let read = counter.load(Relaxed);
                tokio::task::yield_now().await;
                counter.store(read + 1, Relaxed);
                guard.unlock().await.unwrap();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(
        counter.load(std::sync::atomic::Ordering::Relaxed),
        TASKS * ROUNDS
    );
}

async fn different_keys_do_not_block_each_other(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let front = here.mutex("front").unwrap().lock().await.unwrap();
    let waiter = there.mutex("front").unwrap();
    let waiting = tokio::spawn(async move { waiter.lock().await.unwrap().unlock().await });
    let lock = cx.lock_id("front");
    eventually("it waits, or is seen to be held", async || {
        cx.locks(lock).await.granted == 1
    })
    .await;
    for backend in [&here, &there] {
        let back = soon("another key", backend.mutex("back").unwrap().lock()).await;
        back.unwrap().unlock().await.unwrap();
    }
    front.unlock().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap();
}

async fn not_reentrant(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let again = backend.mutex("door").unwrap();
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(again.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { again.lock().await });
    tokio::pin!(waiting);
    not_yet("locked twice", &mut waiting).await;
    guard.unlock().await.unwrap();
    let second = soon("the second", waiting).await.unwrap().unwrap();
    assert_eq!(cx.locks(cx.lock_id("door")).await.granted, 1);
    second.unlock().await.unwrap();
    assert_eq!(
        cx.locks(cx.lock_id("door")).await,
        Locks::NONE,
        "held once, released once"
    );
}

async fn served_in_order_of_arrival(cx: Context) {
    let mutex = cx.mutex("door").await;
    let guard = mutex.lock().await.unwrap();
    let (sender, mut order) = mpsc::unbounded_channel();
    for nth in 0..8 {
        let (mutex, sender) = (Arc::clone(&mutex), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            sender.send(nth).unwrap();
            guard.unlock().await.unwrap();
        });
        // Long enough for it to have arrived.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    guard.unlock().await.unwrap();
    for expected in 0..8 {
        let nth = soon("the next waiter", order.recv()).await.unwrap();
        assert_eq!(nth, expected);
    }
}

async fn hand_over_lets_another_process_in(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    // A program that always has somebody waiting.
    let mut greedy = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mutex = Arc::clone(&here);
        greedy.spawn(async move {
            loop {
                let guard = mutex.lock().await.unwrap();
                tokio::task::yield_now().await;
                guard.unlock().await.unwrap();
            }
        });
    }
    let lock = cx.lock_id("door");
    eventually("the greedy program is at it", async || {
        cx.locks(lock).await.granted == 1
    })
    .await;
    for _ in 0..3 {
        let guard = soon("another program's turn", there.lock()).await.unwrap();
        guard.unlock().await.unwrap();
    }
    greedy.abort_all();
}

async fn run_exclusive_runs_one_and_skips_others(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let outcome = here
        .run_exclusive(async |fence| {
            let skipped = there
                .run_exclusive(async |_| -> Result<(), Error> { panic!("ran as well") })
                .await;
            assert!(skipped.unwrap().is_none());
            Ok::<_, Error>(fence.token())
        })
        .await;
    let token = outcome.unwrap().expect("it ran");
    assert_eq!(cx.locks(cx.lock_id("door")).await, Locks::NONE);
    let later = there
        .run_exclusive(async |fence| Ok::<_, Error>(fence.token()))
        .await;
    assert!(later.unwrap().expect("it ran") > token);
    let waited = here
        .run_exclusive_wait(async |_| Ok::<_, Error>("waited"))
        .await;
    assert_eq!(waited.unwrap(), "waited");
}

async fn run_exclusive_releases_when_work_panics(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let panicked = tokio::spawn(async move {
        here.run_exclusive(async |_| -> Result<(), Error> { panic!("on purpose") })
            .await
    });
    assert!(panicked.await.unwrap_err().is_panic());
    let guard = soon("released by the panic", there.lock()).await.unwrap();
    guard.unlock().await.unwrap();
}
