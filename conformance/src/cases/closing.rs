//! Backends that are closed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lockapi::id::{IdOptions, Layout};
use lockapi::lease::LeaseOptions;
use lockapi::limit::{Outage, PermitRequest, Policy, Quota};
use lockapi::queue::{Claim, Delivery, Outcome};
use lockapi::{Backend, ErrorKind};

use super::queue::job;
use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "close":
    W12 close_gives_back_all_that_is_held;
    W12 close_waits_for_what_was_dropped;
    W12 close_makes_a_leader_resign;
    W12 close_of_an_unreachable_server_tells_of_it @ Own;
    W12 calls_after_close_are_refused;
    W12 close_that_is_dropped_goes_on [Futures];
    W12 close_gives_worker_numbers_back;
    W12 close_gives_blocks_of_permits_back;
    W12 no_policy_decides_after_close;
    W12 close_refuses_who_waits;
    W12 close_ends_what_goes_on [Futures];
    W12 close_ends_all_connections [OwnConnections];
}

async fn close(backend: &Arc<dyn Backend>) {
    soon("it is closed", backend.close()).await.unwrap();
}

async fn close_gives_back_all_that_is_held(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push_all((0..3).map(job).collect()).await.unwrap();
    let lease = backend
        .lease("job", LeaseOptions::new(MINUTE * 60))
        .unwrap();
    let lease = lease.acquire().await.unwrap();
    let mutex = backend.mutex("door").unwrap().lock().await.unwrap();
    let claimed = queue.claim(&Claim::new(2)).await.unwrap();
    close(&backend).await;
    // At once, and not in a while.
    assert!(cx.lease("job").await.is_none());
    assert_eq!(cx.locks(cx.lock_id("door")).await, Locks::NONE);
    let jobs = cx.jobs().await;
    assert_eq!((jobs.waiting, jobs.delivered), (3, 0));
    soon("told", lease.lost()).await;
    soon("told", mutex.lost()).await;
    for delivery in claimed {
        assert!(delivery.is_lost());
    }
    let other = cx.queue().await;
    for delivery in other.claim(&Claim::new(3)).await.unwrap() {
        assert_eq!(delivery.attempt(), 1, "uncounted");
    }
}

async fn close_waits_for_what_was_dropped(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push_all((0..50).map(job).collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(50)).await.unwrap();
    let mut leases = Vec::new();
    for nth in 0..20 {
        let lease = backend.lease(format!("job {nth}"), LeaseOptions::new(MINUTE));
        leases.push(lease.unwrap().acquire().await.unwrap());
    }
    // As workers do that are dropped.
    for ticket in claimed.iter().map(Delivery::ticket) {
        queue.settle_later(ticket, Outcome::Ack);
    }
    drop(leases);
    close(&backend).await;
    for nth in 0..20 {
        assert!(cx.lease(&format!("job {nth}")).await.is_none(), "{nth}");
    }
    assert_eq!(cx.jobs().await.waiting, 0);
}

async fn close_makes_a_leader_resign(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let options = || LeaseOptions::new(MINUTE * 60);
    let leader = here.election("boss", options()).unwrap();
    let leader = leader.campaign().await.unwrap();
    let successor = there.election("boss", options()).unwrap();
    let successor = tokio::spawn(async move { successor.campaign().await });
    close(&here).await;
    let successor = soon("there is a successor", successor).await.unwrap();
    assert!(!successor.unwrap().is_lost());
    soon("told", leader.lost()).await;
}

async fn close_of_an_unreachable_server_tells_of_it(cx: Context) {
    let options = lockapi::BackendOptions::default().timeout(Duration::from_secs(2));
    let backend = cx.connect(options).await.unwrap();
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let _lease = lease.acquire().await.unwrap();
    cx.set_reachable(false).await;
    let refused = soon("an answer", backend.close()).await.unwrap_err();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Indeterminate];
    assert!(kinds.contains(&refused.kind()), "{refused}");
    assert!(refused.to_string().contains("1 of 1"), "{refused}");
}

async fn calls_after_close_are_refused(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let mutex = backend.mutex("door").unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    close(&backend).await;
    close(&backend).await;
    let refused = |kind, what| assert_eq!(kind, ErrorKind::Unavailable, "{what}");
    let error = soon("push", queue.push(job(1))).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    refused(error.kind(), "push");
    let error = soon("acquire", lease.acquire()).await.unwrap_err();
    refused(error.kind(), "acquire");
    let error = soon("lock", mutex.lock()).await.unwrap_err();
    refused(error.kind(), "lock");
    let claim = Claim::new(1);
    let error = soon("claim", queue.claim(&claim)).await.unwrap_err();
    refused(error.kind(), "claim");
}

async fn close_ends_all_connections(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push(job(1)).await.unwrap();
    let _waiting = queue.claim(&Claim::new(1)).await.unwrap();
    let _locked = backend.mutex("door").unwrap().lock().await.unwrap();
    close(&backend).await;
    crate::patience::eventually("no session is left", async || cx.sessions().await == 0).await;
}

/// Nobody who waits is granted what others give back.
async fn close_refuses_who_waits(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let (_guard, _held) = (mutex.lock().await.unwrap(), lease.acquire().await.unwrap());
    let (there, other) = (mutex.clone(), lease.clone());
    let locking = tokio::spawn(async move { there.lock().await.map(drop) });
    let leasing = tokio::spawn(async move { other.acquire().await.map(drop) });
    crate::patience::eventually("both wait", async || {
        tokio::task::yield_now().await;
        !locking.is_finished() && !leasing.is_finished()
    })
    .await;
    close(&backend).await;
    for (what, waiting) in [("mutex", locking), ("lease", leasing)] {
        let refused = soon("refused", waiting).await.unwrap();
        let kind = refused.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Unavailable), "{what}");
    }
    assert!(cx.lease("job").await.is_none());
    assert_eq!(cx.locks(cx.lock_id("door")).await, Locks::NONE);
}

/// A program that goes on asking keeps nothing open, and nothing of what it gets.
async fn close_ends_what_goes_on(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push_all((0..200).map(job).collect()).await.unwrap();
    let asking = (0..8).map(|_| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let mut claimed = Vec::new();
            while let Ok(part) = queue.claim(&Claim::new(3)).await {
                claimed.extend(part);
                let _pushed = queue.push(job(7)).await;
            }
            claimed
        })
    });
    let asking: Vec<_> = asking.collect();
    tokio::task::yield_now().await;
    close(&backend).await;
    for asking in asking {
        drop(soon("it ends", asking).await.unwrap());
    }
    assert_eq!(cx.jobs().await.delivered, 0);
}

async fn close_that_is_dropped_goes_on(cx: Context) {
    let backend = cx.backend().await;
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let lease = lease.acquire().await.unwrap();
    let mutex = backend.mutex("door").unwrap();
    let guard = mutex.lock().await.unwrap();
    drop(backend.close().now_or_never());
    soon("told", lease.lost()).await;
    soon("told", guard.lost()).await;
    eventually("nothing is held", async || {
        cx.lease("job").await.is_none() && cx.locks(cx.lock_id("door")).await == Locks::NONE
    })
    .await;
    let refused = soon("an answer", mutex.lock()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn close_gives_worker_numbers_back(cx: Context) {
    let layout = Layout::new(41, 1, 21).unwrap();
    let mut closed = Vec::new();
    for nth in 0..5 {
        let backend = cx.backend().await;
        let options = IdOptions::snowflake(layout);
        let ids = backend.id_gen("few", options).unwrap();
        let id = ids.next().await;
        assert!(id.is_ok(), "{nth}: {id:?}");
        close(&backend).await;
        let refused = soon("an answer", ids.next()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
        closed.push(ids);
    }
}

async fn close_gives_blocks_of_permits_back(cx: Context) {
    let quota = Quota::per_day(1000).fixed_window();
    let backend = cx.backend().await;
    let limiter = backend.rate_limiter(quota).unwrap();
    let permits = limiter.permits(&PermitRequest::new("door").cost(100));
    let permits = permits.unwrap();
    for _ in 0..5 {
        assert!(permits.take().await.unwrap());
    }
    close(&backend).await;
    let other = cx.backend().await.rate_limiter(quota).unwrap();
    let left = other.peek(&PermitRequest::new("door")).await.unwrap();
    assert_eq!(left.remaining(), 995);
    assert!(!permits.try_now());
    let refused = soon("an answer", permits.take()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn no_policy_decides_after_close(cx: Context) {
    let backend = cx.backend().await;
    let policy = Policy::new(Quota::per_second(10)).outage(Outage::Open);
    let limiter = backend.rate_limiter(policy).unwrap();
    assert!(limiter.check("door").await.unwrap().is_allowed());
    close(&backend).await;
    for _ in 0..2 {
        let refused = soon("an answer", limiter.check("door")).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
