//! Locks of a transaction of the user.

use std::time::{Duration, Instant};

use lockapi::ErrorKind;

use crate::context::Context;
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "transactions":
    M18 commit_and_rollback_release [Transactions];
    M18 transaction_and_guard_exclude_each_other [Transactions];
    M18 transaction_survives_a_timeout [Transactions];
    M18 settings_are_what_they_were [Transactions];
    M18 timeout_outside_the_limits_is_invalid [Transactions];
    M18 nothing_is_left_prepared_in_the_session [Transactions];
}

async fn commit_and_rollback_release(cx: Context) {
    let mutex = cx.mutex("door").await;
    let lock = cx.lock_id("door");
    for commit in [true, false] {
        for wait in [true, false] {
            let mut tx = cx.begin().await.unwrap();
            if wait {
                tx.lock_in(&mutex, Duration::from_secs(5)).await.unwrap();
            } else {
                assert!(tx.try_lock_in(&mutex).await.unwrap());
            }
            assert_eq!(cx.locks(lock).await.granted, 1);
            assert!(mutex.try_lock().await.unwrap().is_none());
            if commit {
                tx.commit().await;
            } else {
                tx.rollback().await;
            }
            let guard = soon("released", mutex.lock()).await.unwrap();
            guard.unlock().await.unwrap();
        }
    }
}

async fn transaction_and_guard_exclude_each_other(cx: Context) {
    let mutex = cx.mutex("door").await;
    let guard = mutex.lock().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert!(!tx.try_lock_in(&mutex).await.unwrap());
    let same = cx.mutex("door").await;
    let waiting = tokio::spawn(async move {
        tx.lock_in(&same, Duration::from_secs(20)).await.unwrap();
        tx
    });
    tokio::pin!(waiting);
    not_yet("locked while a guard holds", &mut waiting).await;
    guard.unlock().await.unwrap();
    let tx = soon("the transaction", waiting).await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    tx.commit().await;
    assert_eq!(cx.locks(cx.lock_id("door")).await, Locks::NONE);
}

async fn transaction_survives_a_timeout(cx: Context) {
    let backend = cx.backend().await;
    let (mutex, other) = (
        backend.mutex("door").unwrap(),
        backend.mutex("other").unwrap(),
    );
    let guard = mutex.lock().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert!(tx.try_lock_in(&other).await.unwrap());
    let start = Instant::now();
    let timeout = Duration::from_millis(500);
    let error = tx.lock_in(&mutex, timeout).await.unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(took > timeout && took < timeout * 2, "{took:?}");
    assert_eq!(tx.query("SELECT 'usable'").await, "usable");
    assert_eq!(cx.locks(cx.lock_id("other")).await.granted, 1, "kept");
    guard.unlock().await.unwrap();
    tx.lock_in(&mutex, timeout).await.unwrap();
    tx.commit().await;
    assert_eq!(cx.locks(cx.lock_id("other")).await, Locks::NONE);
}

async fn settings_are_what_they_were(cx: Context) {
    const SETTINGS: &str = "SELECT concat_ws(' ', current_setting('lock_timeout'),
        current_setting('statement_timeout'), current_setting('search_path'))";
    let mutex = cx.mutex("door").await;
    let mut tx = cx.begin().await.unwrap();
    tx.query("SELECT set_config('lock_timeout', '1234ms', true)")
        .await;
    tx.query("SELECT set_config('statement_timeout', '98s', false)")
        .await;
    let before = tx.query(SETTINGS).await;
    tx.lock_in(&mutex, Duration::from_secs(5)).await.unwrap();
    assert_eq!(tx.query(SETTINGS).await, before, "after success");
    let other = cx.mutex("other").await;
    let guard = other.lock().await.unwrap();
    tx.lock_in(&other, Duration::from_millis(20))
        .await
        .unwrap_err();
    assert_eq!(tx.query(SETTINGS).await, before, "after a timeout");
    assert!(!tx.try_lock_in(&other).await.unwrap());
    assert_eq!(tx.query(SETTINGS).await, before, "after a try");
    guard.unlock().await.unwrap();
    tx.rollback().await;
}

async fn timeout_outside_the_limits_is_invalid(cx: Context) {
    let mutex = cx.mutex("door").await;
    let mut tx = cx.begin().await.unwrap();
    for timeout in [Duration::ZERO, Duration::from_hours(25 * 24), Duration::MAX] {
        let error = tx.lock_in(&mutex, timeout).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    tx.lock_in(&mutex, Duration::from_nanos(1)).await.unwrap();
    tx.commit().await;
}

/// Behind a pooler the next statement may run in another session.
async fn nothing_is_left_prepared_in_the_session(cx: Context) {
    const PREPARED: &str = "SELECT count(*)::text FROM pg_prepared_statements
        WHERE statement LIKE '%pg_try_advisory_xact_lock%' AND statement NOT LIKE '%pg_prepared_statements%'";
    let mutex = cx.mutex("door").await;
    let mut tx = cx.begin().await.unwrap();
    for _ in 0..2 {
        assert!(tx.try_lock_in(&mutex).await.unwrap());
    }
    assert_eq!(tx.query(PREPARED).await, "0");
    tx.commit().await;
}
