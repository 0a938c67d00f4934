//! Roles with unhelpful settings, standbys and proxies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::lease::LeaseOptions;
use lockapi::limit::{PermitRequest, Policy, Quota};
use lockapi::table::{Table, TableMode};
use lockapi::{Backend, BackendOptions, Capabilities, Error, ErrorKind};

use super::queue::job;
use crate::context::{Context, MINUTE};
use crate::fixture::{Locks, Place};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "places":
    V06 mutex_under_hostile_settings @ HostileRole [Schema];
    V06 lease_under_hostile_settings @ HostileRole [Schema];
    V06 migration_under_hostile_settings @ HostileRole [Schema];
    V06 lease_under_hostile_settings_behind_a_proxy @ HostileProxy [Proxy];
    M19 hot_standby_is_refused @ Standby [Standby];
    M19 transactions_on_a_hot_standby_take_nothing @ Standby [Standby, Transactions];
    M19 proxy_is_detected @ Proxy [Proxy];
    M19 proxy_with_one_session_is_detected @ HostileProxy [Proxy];
    M19 leases_work_behind_a_proxy @ Proxy [Proxy];
    M19 mutexes_work_behind_a_proxy_in_session_mode @ SessionProxy [Proxy];
    M19 proxy_that_begins_to_share_sessions_gives_no_lock_twice @ SessionProxy [Proxy];
    M19 proxy_in_statement_mode_is_refused @ StatementProxy [Proxy];
    M19 direct_connection_is_not_taken_for_a_proxy;
}

async fn mutex_under_hostile_settings(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let guard = here.lock().await.unwrap();
    assert!(there.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { there.lock().await });
    tokio::pin!(waiting);
    // Longer than any timeout of the role, several times.
    for _ in 0..6 {
        not_yet("granted, or given up, while another holds", &mut waiting).await;
    }
    assert!(!guard.is_lost());
    let token = guard.fence().token();
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(next.fence().token() > token);
    next.unlock().await.unwrap();
}

async fn lease_under_hostile_settings(cx: Context) {
    exercise_leases(&cx).await;
}

async fn lease_under_hostile_settings_behind_a_proxy(cx: Context) {
    exercise_leases(&cx).await;
}

async fn leases_work_behind_a_proxy(cx: Context) {
    exercise_leases(&cx).await;
}

/// Two backends exclude each other, leases expire, and are renewed by themselves.
async fn exercise_leases(cx: &Context) {
    let (one, other) = (cx.backend().await, cx.backend().await);
    let by_hand = || LeaseOptions::new(MINUTE).renewed_by_hand().data("d");
    let here = one.lease("job", by_hand()).unwrap();
    let there = other.lease("job", by_hand()).unwrap();
    for _ in 0..3 {
        let guard = here.acquire().await.unwrap();
        assert!(there.try_acquire().await.unwrap().is_none());
        assert_eq!(
            there.peek().await.unwrap().expect("held").token,
            guard.fence().token()
        );
        guard.renew().await.unwrap();
        cx.elapse(MINUTE).await;
        let next = there.try_acquire().await.unwrap().expect("expired");
        assert!(next.fence().token() > guard.fence().token());
        assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
        next.release().await.unwrap();
    }
    let ttl = Duration::from_secs(2);
    let guard = one
        .lease("kept", LeaseOptions::new(ttl))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let start = Instant::now();
    while start.elapsed() < ttl * 2 {
        cx.pass(ttl / 6).await;
        eventually("renewed", async || guard.remaining() > ttl / 2).await;
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

async fn migration_under_hostile_settings(cx: Context) {
    cx.backend().await.migrate().await.unwrap();
}

async fn hot_standby_is_refused(cx: Context) {
    let connecting = cx.connect(BackendOptions::default());
    let error = soon("an answer", connecting).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("standby"), "{error}");
}

async fn transactions_on_a_hot_standby_take_nothing(cx: Context) {
    // The handles are those of a program that reaches the primary.
    let primary = cx.at(Place::Shared).await;
    let mutex = primary.mutex("door").await;
    let queue = primary.queue().await;
    let limiter = primary.backend().await;
    let limiter = limiter.rate_limiter(Policy::new(Quota::per_second(10)));
    let (limiter, lock) = (limiter.unwrap(), primary.lock_id("door"));
    let refused = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable());
    };
    let mut tx = cx.begin().await.unwrap();
    refused(tx.try_lock_in(&mutex).await.unwrap_err());
    assert_eq!(cx.locks(lock).await, Locks::NONE);
    refused(tx.lock_in(&mutex, MINUTE).await.unwrap_err());
    assert_eq!(cx.locks(lock).await, Locks::NONE);
    let settings = "SELECT current_setting('lock_timeout') || current_setting('statement_timeout')";
    assert_eq!(tx.query(settings).await, "00", "as they were");
    let table = || Table::from(("lockapi", "lease"));
    for timeout in [None, Some(MINUTE)] {
        let locking = tx.lock_table_in(table(), TableMode::RowExclusive, timeout);
        refused(locking.await.unwrap_err());
    }
    let locked = "SELECT count(*)::text FROM pg_locks
                   WHERE relation = 'lockapi.lease'::regclass AND mode = 'RowExclusiveLock'";
    assert_eq!(tx.query(locked).await, "0");
    refused(tx.take_in(&queue, 1).await.unwrap_err());
    tx.rollback().await;
    let mut tx = cx.begin().await.unwrap();
    refused(tx.push_in(&queue, vec![job(1)]).await.unwrap_err());
    tx.rollback().await;
    let mut tx = cx.begin().await.unwrap();
    let requests = [PermitRequest::new("door")];
    refused(tx.check_all_in(&limiter, &requests).await.unwrap_err());
    tx.rollback().await;
}

async fn proxy_is_detected(cx: Context) {
    for _ in 0..5 {
        connect_through_proxy(&cx).await;
    }
}

async fn connect_through_proxy(cx: &Context) {
    let backend = cx.backend().await;
    let can = backend.capabilities();
    assert!(!can.session_locks && !can.notifications);
    let error = backend.mutex("door").unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Unsupported, Some("door"))
    );
    assert!(
        error.to_string().contains("transaction-pooling proxy"),
        "{error}"
    );
}

/// One that waits for itself gives up after five seconds, each time.
async fn proxy_with_one_session_is_detected(cx: Context) {
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        connect_through_proxy(&cx).await;
        fastest = fastest.min(start.elapsed());
    }
    assert!(
        fastest < Duration::from_secs(5),
        "it waited for itself: {fastest:?}"
    );
}

async fn mutexes_work_behind_a_proxy_in_session_mode(cx: Context) {
    let (one, other) = (cx.backend().await, cx.backend().await);
    assert!(is_direct(one.capabilities()) && is_direct(other.capabilities()));
    let (here, there) = (one.mutex("door").unwrap(), other.mutex("door").unwrap());
    let guard = here.lock().await.unwrap();
    assert!(there.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { there.lock().await });
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

/// Its file was changed while programs hold locks. They lose them, or are refused others, but exclude each other.
async fn proxy_that_begins_to_share_sessions_gives_no_lock_twice(cx: Context) {
    let options = || BackendOptions::default().heartbeat(Duration::from_millis(50));
    let (one, other) = (cx.connect(options()), cx.connect(options()));
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    let of = |backend: &Arc<dyn Backend>, key: &str| backend.mutex(key).unwrap();
    let held = of(&one, "held").lock().await.unwrap();
    let (mut idle, mut refused) = (Some(held), 0);
    cx.share_sessions().await;
    for n in 0..200 {
        let key = format!("k{n}");
        let (here, there, again) = (of(&one, &key), of(&other, &key), of(&other, "held"));
        let (here, there, again) =
            futures_util::join!(here.try_lock(), there.try_lock(), again.try_lock());
        // Of any kind: statements that another program has prepared are called as ours are.
        let answers = [&here, &there, &again];
        refused += answers.iter().filter(|answer| answer.is_err()).count();
        // The proxy ends a session that a client leaves in the middle of something, and what it has locked.
        if let (Ok(Some(_)), Some(held)) = (&again, &idle) {
            soon("the loss of what the other was given", held.lost()).await;
            idle = None;
        }
        if let (Ok(Some(here)), Ok(Some(there))) = (&here, &there) {
            let either = futures_util::future::select(here.lost(), there.lost());
            soon("the loss of one of two locks", either).await;
        }
        for guard in [here, there, again].into_iter().flatten().flatten() {
            // It may be lost by now.
            let _told = guard.unlock().await;
        }
    }
    assert!(refused > 0, "the sessions are not shared");
}

async fn proxy_in_statement_mode_is_refused(cx: Context) {
    let connecting = cx.connect(BackendOptions::default());
    let error = soon("an answer", connecting).await.unwrap_err();
    // PgBouncer tells why and hangs up, and libpq may lose what it told.
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

fn is_direct(can: Capabilities) -> bool {
    can.session_locks && can.notifications
}

async fn direct_connection_is_not_taken_for_a_proxy(cx: Context) {
    for _ in 0..5 {
        assert!(is_direct(cx.backend().await.capabilities()));
    }
    // Neither when others connect at the same time.
    let connecting = (0..8).map(|_| cx.connect(BackendOptions::default()));
    for backend in futures_util::future::join_all(connecting).await {
        assert!(is_direct(backend.unwrap().capabilities()));
    }
    assert_ne!(cx.at(Place::Shared).await.namespace(), cx.namespace());
}
