//! How a process keeps its leases, and learns that it has lost them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::ErrorKind;
use lockapi::lease::LeaseOptions;

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "holding":
    L05 renewed_by_itself_across_ten_ttl;
    L05 renewal_stops_at_release;
    L05 release_races_renewal;
    L05 lost_lease_is_not_revived;
    L06 lost_locally_before_it_can_be_granted;
    L06 lost_while_the_runtime_is_starved;
    L09 abandoned_acquisition_leaves_one_holder;
    L12 a_thousand_leases_are_renewed_together [OwnConnections];
}

async fn renewed_by_itself_across_ten_ttl(cx: Context) {
    let ttl = Duration::from_secs(2);
    let backend = cx.backend().await;
    let guard = backend
        .lease("job", LeaseOptions::new(ttl))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let other = cx.lease_of("job").await;
    for _ in 0..30 {
        cx.pass(ttl / 3).await;
        eventually("renewed", async || guard.remaining() > ttl / 2).await;
    }
    assert!(!guard.is_lost());
    assert!(other.try_acquire().await.unwrap().is_none());
    assert_eq!(cx.holder("job").await.fence, guard.fence().token());
    guard.release().await.unwrap();
}

async fn renewal_stops_at_release(cx: Context) {
    let ttl = Duration::from_millis(300);
    let backend = cx.backend().await;
    for told in [true, false] {
        let guard = backend
            .lease("job", LeaseOptions::new(ttl))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        if told {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
        eventually("free", async || cx.lease("job").await.is_none()).await;
        let next = cx.lease_of("job").await.acquire().await.unwrap();
        for _ in 0..4 {
            cx.pass(ttl / 3).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(cx.holder("job").await.fence, next.fence().token());
        }
        assert!(
            cx.holder("job").await.remaining < 60_000_000,
            "renewed by a stranger"
        );
        next.release().await.unwrap();
    }
}

async fn release_races_renewal(cx: Context) {
    const ROUNDS: usize = 10_000;
    const TASKS: usize = 50;
    let backend = cx.backend().await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let backend = Arc::clone(&backend);
        tasks.spawn(async move {
            let key = format!("job-{task}");
            let lease = backend.lease(&*key, LeaseOptions::new(MINUTE)).unwrap();
            for _ in 0..ROUNDS / TASKS {
                let guard = lease
                    .try_acquire()
                    .await
                    .unwrap()
                    .expect("free: released before");
                // The renewal is sent; its answer meets the release.
                {
                    let renewing = guard.renew();
                    let _ = futures_util::poll!(renewing);
                }
                guard.release().await.unwrap();
            }
            lease.peek().await.unwrap()
        });
    }
    while let Some(ended) = tasks.join_next().await {
        assert_eq!(ended.unwrap(), None, "revived");
    }
}

async fn lost_lease_is_not_revived(cx: Context) {
    let ttl = Duration::from_millis(600);
    let backend = cx.backend().await;
    let guard = backend
        .lease("job", LeaseOptions::new(ttl))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    cx.elapse(ttl * 2).await;
    soon("told of the loss", guard.lost()).await;
    for _ in 0..4 {
        cx.pass(ttl / 3).await;
        assert!(cx.lease("job").await.is_none(), "revived");
    }
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

async fn lost_locally_before_it_can_be_granted(cx: Context) {
    let ttl = Duration::from_secs(1);
    let options = LeaseOptions::new(ttl).renewed_by_hand();
    let lease = cx.backend().await.lease("job", options.clone()).unwrap();
    let other = cx.backend().await.lease("job", options).unwrap();
    for _ in 0..2 {
        let guard = lease.acquire().await.unwrap();
        let there = u64::try_from(cx.holder("job").await.remaining).unwrap();
        // Read after it, so that the time in between counts for neither.
        assert!(
            guard.remaining() < Duration::from_micros(there),
            "the holder believes it for longer"
        );
        // It waits until the server gives the lease away.
        let next = soon("the next holder", other.acquire()).await.unwrap();
        assert!(guard.is_lost(), "two believe that they hold it");
        drop(next);
    }
}

async fn lost_while_the_runtime_is_starved(cx: Context) {
    let ttl = Duration::from_millis(400);
    let backend = cx.backend().await;
    let options = LeaseOptions::new(ttl).renewed_by_hand();
    let guard = backend
        .lease("job", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    // Every worker of the runtime is busy, and no task gets to run.
    let workers = tokio::runtime::Handle::current().metrics().num_workers();
    let until = Instant::now() + ttl * 3;
    for _ in 1..workers {
        tokio::spawn(async move { while Instant::now() < until {} });
    }
    while !guard.is_lost() {
        assert!(
            Instant::now() < until,
            "not lost while the runtime is starved"
        );
        std::thread::yield_now();
    }
}

async fn abandoned_acquisition_leaves_one_holder(cx: Context) {
    let backend = cx.backend().await;
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    drop(lease.acquire().await.unwrap());
    for _ in 0..10 {
        // The server ends the session while requests are under way: they are sent again.
        let asking: Vec<_> = (0..8)
            .map(|_| {
                let lease = Arc::clone(&lease);
                tokio::spawn(async move { lease.try_acquire().await })
            })
            .collect();
        cx.sever().await;
        let mut guards = Vec::new();
        for asked in asking {
            guards.extend(asked.await.unwrap().ok().flatten());
        }
        assert!(guards.len() <= 1, "several holders");
        if let Some(guard) = guards.pop() {
            assert_eq!(cx.holder("job").await.fence, guard.fence().token());
            guard.release().await.unwrap();
        }
        eventually("free again", async || cx.lease("job").await.is_none()).await;
    }
}

async fn a_thousand_leases_are_renewed_together(cx: Context) {
    const LEASES: usize = 1000;
    let ttl = Duration::from_secs(6);
    let backend = cx.backend().await;
    let mut guards = Vec::new();
    for tens in 0..LEASES / 100 {
        let asking = (0..100).map(|nth| {
            let lease = backend
                .lease(format!("job-{tens}-{nth}"), LeaseOptions::new(ttl))
                .unwrap();
            async move { lease.try_acquire().await }
        });
        for asked in futures_util::future::join_all(asking).await {
            guards.push(asked.unwrap().expect("free"));
        }
    }
    cx.pass(ttl / 3).await;
    eventually("all renewed", async || {
        guards
            .iter()
            .all(|guard| guard.remaining() > ttl.mul_f64(0.7))
    })
    .await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert_eq!(
        cx.sessions().await,
        2,
        "one connection acquires them, another renews them"
    );
    for guard in guards {
        drop(guard);
    }
    eventually("all released", async || {
        cx.lease("job-9-99").await.is_none()
    })
    .await;
}
