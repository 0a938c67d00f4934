//! What a mutex promises that is a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::{Error, ErrorKind, Mutex};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "leased_mutex":
    K01 it_excludes_and_tokens_grow;
    K02 waiters_are_served_in_their_order;
    K03 an_unprotected_counter_is_exact;
    K04 a_stale_unlock_frees_nothing;
    K05 work_is_dropped_when_it_is_lost;
    K06 no_transaction_can_hold_it_and_it_can_be_checked_in_one [Transactions];
    K07 minimum_hold_outlasts_the_work;
    K08 it_works_where_session_locks_do_not @ Proxy [Proxy];
}

fn by_hand() -> LeaseOptions {
    LeaseOptions::new(MINUTE).renewed_by_hand()
}

async fn mutex(cx: &Context, options: LeaseOptions) -> Arc<dyn Mutex> {
    cx.backend().await.leased_mutex("door", options).unwrap()
}

async fn it_excludes_and_tokens_grow(cx: Context) {
    exercise(&cx).await;
}

async fn it_works_where_session_locks_do_not(cx: Context) {
    let backend = cx.backend().await;
    assert!(!backend.capabilities().session_locks);
    let error = backend.mutex("door").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("leased_mutex"), "{error}");
    exercise(&cx).await;
    an_unprotected_counter_is_exact(cx).await;
}

async fn exercise(cx: &Context) {
    let (here, there) = (mutex(cx, by_hand()).await, mutex(cx, by_hand()).await);
    assert!(here.is_leased());
    assert_eq!(here.namespace(), cx.namespace());
    let guard = here.lock().await.unwrap();
    assert!(there.try_lock().await.unwrap().is_none());
    assert!(here.try_lock().await.unwrap().is_none(), "not reentrant");
    for timeout in [Duration::ZERO, Duration::from_millis(50)] {
        let late = soon("an answer", there.lock_timeout(timeout)).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    let waiting = tokio::spawn(async move { there.lock().await });
    tokio::pin!(waiting);
    not_yet("locked while another holds it", &mut waiting).await;
    let token = guard.fence().token();
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(next.fence().token() > token);
    next.unlock().await.unwrap();
    drop(here.try_lock().await.unwrap().expect("free"));
    eventually("free", async || cx.slots("door").await.is_empty()).await;
}

async fn waiters_are_served_in_their_order(cx: Context) {
    let mutex = mutex(&cx, by_hand()).await;
    let guard = mutex.lock().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for nth in 0..4 {
        let (mutex, sender) = (Arc::clone(&mutex), sender.clone());
        let mut waiting = tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            sender.send(nth).unwrap();
            guard.unlock().await.unwrap();
        });
        not_yet("locked while another holds it", &mut waiting).await;
    }
    guard.unlock().await.unwrap();
    for nth in 0..4 {
        assert_eq!(soon("the next", order.recv()).await, Some(nth));
    }
}

async fn an_unprotected_counter_is_exact(cx: Context) {
    let programs = [mutex(&cx, by_hand()).await, mutex(&cx, by_hand()).await];
    let counter = Arc::new(AtomicU64::new(0));
    let tasks = (0..8).map(|task| {
        let (mutex, counter) = (Arc::clone(&programs[task % 2]), Arc::clone(&counter));
        tokio::spawn(async move {
            for _ in 0..5 {
                let guard = mutex.lock().await.unwrap();
                let before = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(before + 1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("every task has its turn", task).await.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), 40);
}

async fn a_stale_unlock_frees_nothing(cx: Context) {
    let (here, there) = (mutex(&cx, by_hand()).await, mutex(&cx, by_hand()).await);
    let stale = here.lock().await.unwrap();
    cx.elapse(MINUTE).await;
    let next = there.try_lock().await.unwrap().expect("expired");
    assert!(next.fence().token() > stale.fence().token());
    let error = stale.unlock().await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("door")));
    assert!(here.try_lock().await.unwrap().is_none());
    next.unlock().await.unwrap();
}

async fn work_is_dropped_when_it_is_lost(cx: Context) {
    let ttl = Duration::from_millis(1500);
    let mutex = mutex(&cx, LeaseOptions::new(ttl)).await;
    let runs = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&runs);
    let running = tokio::spawn(async move {
        let work = async |_| {
            begun.store(true, Ordering::SeqCst);
            std::future::pending::<Result<(), Error>>().await
        };
        mutex.run_exclusive(work).await
    });
    eventually("it runs", async || runs.load(Ordering::SeqCst)).await;
    cx.elapse(ttl * 2).await;
    let outcome = soon("the work is dropped", running).await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

async fn no_transaction_can_hold_it_and_it_can_be_checked_in_one(cx: Context) {
    let mutex = mutex(&cx, by_hand()).await;
    let guard = mutex.lock().await.unwrap();
    let mut tx = cx.begin().await.expect("a transaction");
    let error = tx.try_lock_in(&mutex).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = tx.lock_in(&mutex, MINUTE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    tx.check_in(&guard.fence()).await.unwrap();
    tx.commit().await;
    cx.elapse(MINUTE).await;
    let mut tx = cx.begin().await.expect("a transaction");
    let error = tx.check_in(&guard.fence()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    tx.rollback().await;
}

async fn minimum_hold_outlasts_the_work(cx: Context) {
    let options = by_hand().minimum_hold(MINUTE / 2);
    let mutex = mutex(&cx, options).await;
    assert!(
        mutex
            .run_exclusive(async |_| Ok::<_, Error>(()))
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        mutex
            .run_exclusive(async |_| Ok::<_, Error>(()))
            .await
            .unwrap()
            .is_none()
    );
    cx.elapse(MINUTE / 2).await;
    assert!(
        mutex
            .run_exclusive(async |_| Ok::<_, Error>(()))
            .await
            .unwrap()
            .is_some()
    );
}
