//! Fencing tokens, lost sessions and stale holders.

use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::{ErrorKind, Key, advisory_key};

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "fences":
    M09 increase_over_holders_and_backends;
    M09 increase_over_hand_overs;
    M09 increase_over_a_crash_of_the_server @ Own;
    M09 tokens_that_a_crash_took_back_are_not_given_again @ Own;
    M09 tokens_above_those_of_a_session_being_opened_outlive_a_crash @ Own [Sql];
    M10 unlock_after_the_session_ended_is_lost;
    M10 stale_unlock_does_not_free_the_successor;
    M11 killed_session_loses_the_guard_and_serves_the_waiter;
    M11 killed_waiter_session_is_replaced [Sql];
    M11 old_fence_is_rejected_by_check_in [Transactions];
    M11 check_in_of_a_later_holder_waits_for_an_earlier_one [Transactions];
    M11 older_fence_is_rejected_after_a_newer_one [Transactions];
    M11 lock_has_one_fence_whatever_it_is_called [Transactions];
    L11 check_in_rejects_an_expired_holder [Transactions];
    L11 check_in_rejects_a_released_holder [Transactions];
    L11 check_in_rejects_a_holder_that_a_person_released [Sql, Transactions];
    L11 check_in_keeps_the_lease_until_the_transaction_ends [Transactions];
}

async fn increase_over_holders_and_backends(cx: Context) {
    let backends = [cx.backend().await, cx.backend().await, cx.backend().await];
    let (mut locked, mut leased) = (0, 0);
    for nth in 0..30 {
        let backend = &backends[nth % 3];
        let guard = backend.mutex("door").unwrap().lock().await.unwrap();
        assert!(guard.fence().token() > locked);
        locked = guard.fence().token();
        guard.unlock().await.unwrap();
        let guard = backend
            .lease("job", LeaseOptions::new(MINUTE))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        assert!(guard.fence().token() > leased);
        leased = guard.fence().token();
        guard.release().await.unwrap();
    }
    drop(backends);
    let guard = cx.mutex("door").await.lock().await.unwrap();
    assert!(guard.fence().token() > locked, "after all have gone");
    guard.unlock().await.unwrap();
}

async fn increase_over_hand_overs(cx: Context) {
    let mutexes = [cx.mutex("door").await, cx.mutex("door").await];
    let tokens = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..16 {
        let (mutex, tokens) = (mutexes[nth % 2].clone(), tokens.clone());
        tasks.spawn(async move {
            for _ in 0..50 {
                let guard = mutex.lock().await.unwrap();
                tokens.lock().unwrap().push(guard.fence().token());
                guard.unlock().await.unwrap();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 800);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

async fn increase_over_a_crash_of_the_server(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let options = LeaseOptions::new(MINUTE).renewed_by_hand();
    let lease = backend.lease("job", options).unwrap();
    let (mut locked, mut leased) = (0, 0);
    for _ in 0..2 {
        // Many tokens that need not be on disk yet, and one of a lease.
        for _ in 0..300 {
            let guard = mutex.lock().await.unwrap();
            assert!(guard.fence().token() > locked);
            locked = guard.fence().token();
            guard.unlock().await.unwrap();
        }
        let guard = lease.acquire().await.unwrap();
        assert!(guard.fence().token() > leased);
        leased = guard.fence().token();
        cx.crash().await;
        // What was held is still held, and can be released after the crash.
        eventually("released", async || guard.renew().await.is_ok()).await;
        guard.release().await.unwrap();
        eventually("the server is back", async || {
            mutex.try_lock().await.is_ok()
        })
        .await;
    }
}

async fn tokens_that_a_crash_took_back_are_not_given_again(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let mut last = 0;
    for draws in [10, 200, 300] {
        for _ in 0..draws {
            let guard = mutex.lock().await.unwrap();
            assert!(guard.fence().token() > last, "a token was given twice");
            last = guard.fence().token();
            guard.unlock().await.unwrap();
        }
        cx.crash().await;
        eventually("the server is back", async || {
            mutex.try_lock().await.is_ok()
        })
        .await;
    }
}

async fn tokens_above_those_of_a_session_being_opened_outlive_a_crash(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let guard = mutex.lock().await.unwrap();
    let mut last = guard.fence().token();
    guard.unlock().await.unwrap();
    for _ in 0..2 {
        // What a session that opens skips is not on disk before it is answered.
        cx.sql(
            "BEGIN;
             SELECT max(nextval('lockapi.fence_seq')) FROM generate_series(1, 20000)",
        )
        .await;
        let guard = mutex.lock().await.unwrap();
        assert!(guard.fence().token() > last, "a token was given twice");
        last = guard.fence().token();
        cx.crash().await;
        eventually("lost", async || guard.is_lost()).await;
        let guard = soon("locked again", mutex.lock()).await.unwrap();
        assert!(guard.fence().token() > last, "a token was given twice");
        last = guard.fence().token();
        guard.unlock().await.unwrap();
    }
}

async fn unlock_after_the_session_ended_is_lost(cx: Context) {
    let mutex = cx.mutex("door").await;
    let guard = mutex.lock().await.unwrap();
    cx.sever().await;
    let error = guard.unlock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.key(), Some("door"));
    let guard = soon("locked again", mutex.lock()).await.unwrap();
    guard.unlock().await.unwrap();
}

async fn stale_unlock_does_not_free_the_successor(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let stale = [
        here.lock().await.unwrap(),
        cx.mutex("other").await.lock().await.unwrap(),
    ];
    cx.sever().await;
    eventually("lost", async || stale.iter().all(|guard| guard.is_lost())).await;
    let successor = soon("the successor", here.lock()).await.unwrap();
    for guard in stale {
        assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    }
    assert!(!successor.is_lost());
    assert_eq!(cx.locks(cx.lock_id("door")).await.granted, 1);
    assert!(there.try_lock().await.unwrap().is_none());
    successor.unlock().await.unwrap();
}

/// Somebody is in the queue of the server.
async fn waits(cx: &Context) {
    let lock = cx.lock_id("door");
    eventually("it waits at the server", async || {
        cx.locks(lock).await.waiting == 1
    })
    .await;
}

async fn killed_session_loses_the_guard_and_serves_the_waiter(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let guard = here.lock().await.unwrap();
    assert!(!guard.is_lost());
    not_yet("lost for no reason", guard.lost()).await;
    let again = std::sync::Arc::clone(&there);
    let waiting = tokio::spawn(async move { there.lock().await });
    tokio::pin!(waiting);
    waits(&cx).await;
    not_yet("granted while another holds", &mut waiting).await;
    cx.sever().await;
    soon("told of the loss", guard.lost()).await;
    assert!(guard.is_lost());
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(next.fence().token() > guard.fence().token());
    drop(guard);
    // The session of the waiter may have been ended after it was granted.
    if next.unlock().await.is_err() {
        let guard = soon("locked again", again.lock()).await.unwrap();
        guard.unlock().await.unwrap();
    }
}

async fn killed_waiter_session_is_replaced(cx: Context) {
    let mutex = cx.mutex("door").await;
    // A person has it, whose session stays.
    let key = cx.lock_id("door").key;
    cx.sql(&format!("SELECT pg_advisory_lock({key})")).await;
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::pin!(waiting);
    waits(&cx).await;
    not_yet("granted while another holds", &mut waiting).await;
    cx.sever().await;
    not_yet("granted, or given up", &mut waiting).await;
    cx.sql(&format!("SELECT pg_advisory_unlock({key})")).await;
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

async fn old_fence_is_rejected_by_check_in(cx: Context) {
    let mutex = cx.mutex("door").await;
    let guard = mutex.lock().await.unwrap();
    let stale = guard.fence();
    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&stale).await.unwrap();
    tx.check_in(&stale).await.unwrap();
    tx.commit().await;
    cx.sever().await;
    // Whether or not the holder knows it yet.
    let mut tx = cx.begin().await.unwrap();
    let error = tx.check_in(&stale).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    tx.rollback().await;
    soon("told of the loss", guard.lost()).await;
    let next = soon("locked again", mutex.lock()).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(
        tx.check_in(&stale).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    tx.check_in(&next.fence()).await.unwrap();
    tx.rollback().await;
    let fence = next.fence();
    next.unlock().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(
        tx.check_in(&fence).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    tx.rollback().await;
}

async fn check_in_of_a_later_holder_waits_for_an_earlier_one(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let guard = here.lock().await.unwrap();
    let mut writing = cx.begin().await.unwrap();
    writing.check_in(&guard.fence()).await.unwrap();
    // The lock changes hands while the first holder's write is under way.
    guard.unlock().await.unwrap();
    let next = there.lock().await.unwrap();
    let fence = next.fence();
    let mut later = cx.begin().await.unwrap();
    let checking = tokio::spawn(async move {
        later.check_in(&fence).await.unwrap();
        later.commit().await;
    });
    tokio::pin!(checking);
    not_yet("two holders write at once", &mut checking).await;
    writing.commit().await;
    soon("the later holder", checking).await.unwrap();
    next.unlock().await.unwrap();
}

async fn older_fence_is_rejected_after_a_newer_one(cx: Context) {
    let mutex = cx.mutex("door").await;
    let other = cx.mutex("door").await;
    // Both sessions live on, so only the tokens tell the holders apart.
    let stale = mutex.lock().await.unwrap();
    let mut early = cx.begin().await.unwrap();
    early.query("SELECT 'a statement before'").await;
    let fence = stale.fence();
    drop(stale);
    let next = soon("the successor", other.lock()).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&next.fence()).await.unwrap();
    tx.commit().await;
    assert_eq!(
        early.check_in(&fence).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    early.rollback().await;
    next.unlock().await.unwrap();
}

/// A number is the same lock in each namespace, and so is the number of a name.
async fn lock_has_one_fence_whatever_it_is_called(cx: Context) {
    let (here, there) = (cx.backend().await, cx.elsewhere().await.backend().await);
    let number = fastrand::i64(..);
    let of_name = advisory_key(cx.namespace(), "door");
    let pair = (fastrand::i32(..), fastrand::i32(..));
    for (one, other) in [
        (Key::from(number), Key::from(number)),
        (Key::from(pair), Key::from(pair)),
        (Key::from("door"), Key::from(of_name)),
    ] {
        let guard = here.mutex(&one).unwrap().lock().await.unwrap();
        let stale = guard.fence();
        let mut writing = cx.begin().await.unwrap();
        writing.check_in(&stale).await.unwrap();
        drop(guard);
        let successor = there.mutex(&other).unwrap();
        let next = soon("the successor", successor.lock()).await.unwrap();
        let fence = next.fence();
        let mut later = cx.begin().await.unwrap();
        let checking = tokio::spawn(async move {
            later.check_in(&fence).await.unwrap();
            later.commit().await;
        });
        tokio::pin!(checking);
        not_yet("two holders write at once", &mut checking).await;
        writing.commit().await;
        soon("the later holder", checking).await.unwrap();
        next.unlock().await.unwrap();
    }
}

fn by_hand() -> LeaseOptions {
    LeaseOptions::new(MINUTE).renewed_by_hand()
}

async fn check_in_rejects_an_expired_holder(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand()).unwrap();
    let there = cx.backend().await.lease("job", by_hand()).unwrap();
    let stale = here.acquire().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&stale.fence()).await.unwrap();
    tx.commit().await;
    cx.elapse(MINUTE).await;
    assert!(!stale.is_lost(), "the holder does not know yet");
    let mut tx = cx.begin().await.unwrap();
    let error = tx.check_in(&stale.fence()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "expired");
    tx.rollback().await;
    let next = there.acquire().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    let error = tx.check_in(&stale.fence()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "followed by another");
    tx.check_in(&next.fence()).await.unwrap();
    tx.commit().await;
    next.release().await.unwrap();
}

async fn check_in_rejects_a_released_holder(cx: Context) {
    let options = by_hand().minimum_hold(MINUTE / 2);
    let lease = cx.backend().await.lease("job", options).unwrap();
    let guard = lease.acquire().await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(
        tx.check_in(&fence).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    tx.rollback().await;
}

async fn check_in_rejects_a_holder_that_a_person_released(cx: Context) {
    let lease = cx.backend().await.lease("job", by_hand()).unwrap();
    let guard = lease.acquire().await.unwrap();
    let namespace = cx.namespace();
    let release = format!(
        "UPDATE lockapi.lease SET released_at = clock_timestamp() WHERE namespace = '{namespace}'"
    );
    cx.sql(&release).await;
    let mut tx = cx.begin().await.unwrap();
    let error = tx.check_in(&guard.fence()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    tx.rollback().await;
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
}

async fn check_in_keeps_the_lease_until_the_transaction_ends(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand()).unwrap();
    let there = cx.backend().await.lease("job", by_hand()).unwrap();
    let guard = here.acquire().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&guard.fence()).await.unwrap();
    // The holder itself is not in its own way.
    soon("the holder renews", guard.renew()).await.unwrap();
    soon("the holder releases", guard.release()).await.unwrap();
    let taken = there.acquire_timeout(Duration::from_millis(300)).await;
    assert_eq!(
        taken.unwrap_err().kind(),
        ErrorKind::TimedOut,
        "taken during the write"
    );
    tx.commit().await;
    let next = soon("after the write", there.acquire()).await.unwrap();
    next.release().await.unwrap();
    assert_eq!(cx.locks(cx.lock_id("job")).await, Locks::NONE);
}
