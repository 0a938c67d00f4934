//! What an inspector tells of those who wait, and how often they had to.

use std::sync::Arc;
use std::time::Duration;

use lockapi::admin::{Contention, Filter};
use lockapi::lease::LeaseOptions;
use lockapi::{Backend, ErrorKind};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "waits":
    H02 waiter_is_seen_with_who_is_in_its_way;
    H02 waits_within_a_process_are_seen;
    H02 waiting_statement_and_blocker_are_known [Sessions];
    H03 mutex_that_was_not_free_is_counted;
    H03 lease_that_was_not_free_is_counted;
}

async fn waiter_is_seen_with_who_is_in_its_way(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let guard = here.lock().await.unwrap();
    let waiting = tokio::spawn(async move { there.lock().await });
    eventually("the wait is noted", async || {
        let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
        waiters.iter().any(|one| one.owner.is_some())
    })
    .await;
    let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
    assert_eq!(waiters.len(), 1, "{waiters:?}");
    assert_eq!(waiters[0].name, "door");
    if backend.capabilities().sessions {
        let held = inspector.locks(&Filter::key("door")).await.unwrap();
        let blockers: Vec<_> = waiters[0].blockers.iter().map(|one| one.pid).collect();
        assert_eq!(Some(blockers[0]), held[0].pid);
    }
    let first = waiters[0].waits_for;
    eventually("it goes on waiting", async || {
        let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
        // Beyond the time that a statement waits for.
        let longer = waiters.first().and_then(|one| one.waits_for);
        longer > first && longer > Some(Duration::from_millis(1500))
    })
    .await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    eventually("nobody waits", async || {
        inspector
            .waiters(&Filter::key("door"))
            .await
            .unwrap()
            .is_empty()
    })
    .await;
    next.unlock().await.unwrap();
}

async fn waits_within_a_process_are_seen(cx: Context) {
    let mutex = cx.mutex("door").await;
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let guard = mutex.lock().await.unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually("the wait is noted", async || {
        let waiters = inspector.waiters(&Filter::new()).await.unwrap();
        waiters.len() == 1 && waiters[0].name == "door" && waiters[0].owner.is_some()
    })
    .await;
    if backend.capabilities().sessions {
        let held = inspector.locks(&Filter::key("door")).await.unwrap();
        let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
        let blockers: Vec<_> = waiters[0].blockers.iter().map(|one| one.pid).collect();
        assert_eq!(
            blockers,
            held[0].pid.as_slice(),
            "the program's own session"
        );
    }
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

async fn waiting_statement_and_blocker_are_known(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let inspector = cx.backend().await.inspector();
    let guard = here.lock().await.unwrap();
    let waiting = tokio::spawn(async move { there.lock().await });
    eventually("it waits at the server", async || {
        let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
        let known = |one: &lockapi::admin::Waiter| {
            let statement = one.statement.as_deref().unwrap_or_default();
            one.pid.is_some()
                && statement.contains("await_lock")
                && one.blockers.len() == 1
                && one.blockers[0].application.is_some()
        };
        waiters.iter().any(known)
    })
    .await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

/// What a backend has counted for a key.
fn counted(backend: &dyn Backend, key: &str) -> Option<Contention> {
    let inspector = backend.inspector();
    let mut counted = inspector.contention(&Filter::key(key)).unwrap();
    assert!(counted.len() <= 1, "{counted:?}");
    counted.pop()
}

async fn mutex_that_was_not_free_is_counted(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let (mutex, other) = (here.mutex("door").unwrap(), there.mutex("door").unwrap());
    let guard = other.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let brief = Duration::from_millis(10);
    let late = mutex.lock_timeout(brief).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let (waiter, lock) = (here.mutex("door").unwrap(), cx.lock_id("door"));
    let waiting = tokio::spawn(async move { waiter.lock().await });
    eventually("another waits", async || cx.locks(lock).await.waiting == 1).await;
    tokio::time::sleep(brief).await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    let seen = counted(&*here, "door").expect("it was not free");
    assert_eq!((seen.key.as_str(), seen.leased), ("door", false));
    assert_eq!((seen.refusals, seen.timeouts, seen.waits), (1, 1, 1));
    assert_eq!(seen.hand_overs, 0);
    assert!(!seen.waited.is_zero());
    assert_eq!(counted(&*there, "door"), None, "it was free for that one");
    // Within a process it is passed on, unless it was held for long.
    eventually("it is passed on", async || {
        let round = (0..4).map(|_| here.mutex("door").unwrap());
        let round: Vec<_> = round
            .map(|mutex| tokio::spawn(async move { mutex.lock().await?.unlock().await }))
            .collect();
        for one in round {
            soon("its turn", one).await.unwrap().unwrap();
        }
        counted(&*here, "door").unwrap().hand_overs > 0
    })
    .await;
    let seen = counted(&*here, "door").unwrap();
    assert!(seen.waits > seen.hand_overs, "{seen:?}");
    let free = here.mutex("free").unwrap();
    free.lock().await.unwrap().unlock().await.unwrap();
    let all = here.inspector().contention(&Filter::new()).unwrap();
    assert_eq!(all, [seen], "what is free is not counted");
    let none = here.inspector().contention(&Filter::new().limit(0));
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn lease_that_was_not_free_is_counted(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let open = |backend: &dyn Backend| backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let (lease, other) = (open(&*here), open(&*there));
    let guard = other.acquire().await.unwrap();
    assert!(lease.try_acquire().await.unwrap().is_none());
    let brief = Duration::from_millis(10);
    let late = lease.acquire_timeout(brief).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    guard.release().await.unwrap();
    lease.acquire().await.unwrap().release().await.unwrap();
    let seen = counted(&*here, "job").expect("it was not free");
    assert!(seen.leased);
    // What the late caller had asked for may have come in the way of the next.
    assert_eq!((seen.refusals, seen.timeouts), (1, 1));
    let waits = seen.waits;
    // Nobody sees who waits for a lease; the release may come before the attempt.
    eventually("a wait is counted", async || {
        let guard = other.acquire().await.unwrap();
        let lease = Arc::clone(&lease);
        let waiting = tokio::spawn(async move { lease.acquire().await?.release().await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap().unwrap();
        counted(&*here, "job").unwrap().waits > waits
    })
    .await;
    assert!(!counted(&*here, "job").unwrap().waited.is_zero());
    assert_eq!(counted(&*there, "job"), None, "it was free for that one");
}
