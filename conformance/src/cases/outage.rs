//! Full pools, servers that are away, and limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::BackendOptions;
use lockapi::ErrorKind;
use lockapi::lease::LeaseOptions;
use lockapi::limit::{PermitRequest, Quota};
use lockapi::queue::Claim;
use lockapi::schedule::Task;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::queue::job;
use crate::context::{Context, MINUTE};
use crate::face::off_runtime;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "outage":
    V09 full_pool_of_the_program_does_not_matter [Pool];
    V10 unreachable_server_is_unavailable_and_comes_back @ Own;
    V10 options_outside_the_limits_are_invalid;
    L07 lease_is_kept_over_a_short_outage @ Own;
    L06 lease_is_lost_locally_in_a_long_outage @ Own;
    V10 silent_server_is_given_up_and_comes_back @ Own;
    V10 holder_behind_a_silent_server_is_told_whatever_the_time_limit @ Own;
    V10 callers_in_line_are_refused_together @ Own;
    V10 silent_server_blocks_no_thread_of_the_program @ Own [Futures];
    L06 lease_is_lost_locally_while_the_server_is_silent @ Own;
    M16 ten_thousand_locks_use_one_connection @ Own [OwnConnections];
    M16 beyond_the_limit_is_capacity_and_harms_nobody;
    M16 full_lock_table_is_capacity_and_harms_nobody @ Cramped [Sql];
}

async fn full_pool_of_the_program_does_not_matter(cx: Context) {
    let (backend, pool) = cx.connect_beside_full_pool().await.expect("a pool");
    let mutex = backend.mutex("door").unwrap();
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let locked = soon("locked", mutex.lock()).await.unwrap();
    let leased = soon("leased", lease.acquire()).await.unwrap();
    soon("renewed", leased.renew()).await.unwrap();
    soon("released", leased.release()).await.unwrap();
    soon("unlocked", locked.unlock()).await.unwrap();
    drop(pool);
}

async fn unreachable_server_is_unavailable_and_comes_back(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let locked = mutex.lock().await.unwrap();
    cx.set_reachable(false).await;
    soon("told of the loss", locked.lost()).await;
    for _ in 0..2 {
        // Each of them is answered in bounded time.
        let (tried, locked, leased, peeked, connected) = tokio::join!(
            soon("an answer", mutex.try_lock()),
            soon("an answer", mutex.lock()),
            soon("an answer", lease.try_acquire()),
            soon("an answer", lease.peek()),
            soon("an answer", cx.connect(BackendOptions::default())),
        );
        for error in [
            tried.unwrap_err(),
            locked.unwrap_err(),
            leased.unwrap_err(),
            peeked.unwrap_err(),
            connected.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.is_retryable());
        }
    }
    cx.set_reachable(true).await;
    eventually("it locks again", async || {
        mutex.try_lock().await.is_ok_and(|it| it.is_some())
    })
    .await;
    eventually("it leases again", async || {
        lease.try_acquire().await.is_ok_and(|it| it.is_some())
    })
    .await;
}

async fn options_outside_the_limits_are_invalid(cx: Context) {
    let day = Duration::from_hours(24);
    for options in [
        BackendOptions::default().max_locks(0),
        BackendOptions::default().waiters(65),
        BackendOptions::default().timeout(Duration::from_secs(1)),
        BackendOptions::default().timeout(day * 2),
        BackendOptions::default().heartbeat(Duration::ZERO),
        BackendOptions::default().heartbeat(Duration::MAX),
    ] {
        let text = format!("{options:?}");
        let error = cx.connect(options).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.operation()),
            (ErrorKind::Invalid, "connect"),
            "{text}"
        );
    }
    let lowest = BackendOptions::default()
        .waiters(0)
        .timeout(Duration::from_secs(2))
        .max_locks(1);
    let (here, there) = (cx.mutex("door").await, cx.connect(lowest).await.unwrap());
    // With nothing to wait on, it polls.
    let guard = here.lock().await.unwrap();
    let waiter = there.mutex("door").unwrap();
    let waiting = tokio::spawn(async move { waiter.lock().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    guard.unlock().await.unwrap();
    soon("polled", waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

async fn lease_is_kept_over_a_short_outage(cx: Context) {
    let ttl = Duration::from_secs(30);
    let backend = cx.backend().await;
    let lease = backend.lease("job", LeaseOptions::new(ttl)).unwrap();
    let guard = lease.acquire().await.unwrap();
    cx.set_reachable(false).await;
    let error = soon("an answer", guard.renew()).await.unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Lost, "unknown is not lost");
    assert!(!guard.is_lost());
    assert!(guard.remaining() > Duration::ZERO);
    cx.set_reachable(true).await;
    eventually("it is renewed", async || guard.renew().await.is_ok()).await;
    assert!(guard.remaining() > ttl / 2);
    guard.release().await.unwrap();
    assert!(cx.lease("job").await.is_none());
}

async fn lease_is_lost_locally_in_a_long_outage(cx: Context) {
    let ttl = Duration::from_secs(2);
    let backend = cx.backend().await;
    let start = Instant::now();
    let guard = backend
        .lease("job", LeaseOptions::new(ttl))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    cx.set_reachable(false).await;
    soon("lost while nothing answers", guard.lost()).await;
    assert!(start.elapsed() < ttl * 2 + Duration::from_secs(1));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    cx.set_reachable(true).await;
}

/// All that the program has is one thread.
async fn silent_server_blocks_no_thread_of_the_program(cx: Context) {
    let (ready, opened) = oneshot::channel();
    let (silence, silent) = oneshot::channel();
    let own = cx.clone();
    let program = off_runtime(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = BackendOptions::default().timeout(Duration::from_secs(2));
            let backend = own.connect(options).await.unwrap();
            let mutex = backend.mutex("door").unwrap();
            let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
            mutex.lock().await.unwrap().unlock().await.unwrap();
            lease.acquire().await.unwrap().release().await.unwrap();
            ready.send(()).unwrap();
            silent.await.unwrap();
            let asked = async { tokio::join!(mutex.try_lock(), lease.try_acquire(), lease.peek()) };
            tokio::pin!(asked);
            let mut longest = Duration::ZERO;
            loop {
                let slept = Instant::now();
                tokio::select! {
                    _ = &mut asked => break longest,
                    () = tokio::time::sleep(Duration::from_millis(10)) => {}
                }
                longest = longest.max(slept.elapsed());
            }
        })
    });
    let break_off = async {
        opened.await.unwrap();
        cx.set_silent(true).await;
        silence.send(()).unwrap();
    };
    let (longest, ()) = soon("answered", async { tokio::join!(program, break_off) }).await;
    cx.set_silent(false).await;
    assert!(longest > Duration::ZERO, "the server was not silent");
    assert!(longest < Duration::from_secs(1), "blocked for {longest:?}");
}

/// One after the other they would take minutes.
async fn callers_in_line_are_refused_together(cx: Context) {
    const CALLERS: usize = 600;
    let (backend, other) = (cx.backend().await, cx.backend().await);
    let options = LeaseOptions::new(MINUTE);
    let held = other.lease("job", options.clone()).unwrap();
    let held = held.acquire().await.unwrap();
    let lease = backend.lease("job", options).unwrap();
    let limiter = backend.rate_limiter(Quota::per_second(10)).unwrap();
    let permits = limiter
        .permits(&PermitRequest::new("door").cost(5))
        .unwrap();
    let queue = backend.queue("work").unwrap();
    let scheduler = backend.scheduler("work").unwrap();
    let task = Task::every("report", MINUTE * 60, job(1));
    scheduler.set(task).await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..CALLERS {
        let lease = Arc::clone(&lease);
        waiting.spawn(async move { lease.acquire().await.map(drop) });
    }
    assert!(lease.try_acquire().await.unwrap().is_none());
    cx.set_reachable(false).await;
    for _ in 0..CALLERS {
        let permits = Arc::clone(&permits);
        waiting.spawn(async move { permits.take().await.map(drop) });
    }
    for _ in 0..CALLERS {
        let limiter = Arc::clone(&limiter);
        waiting.spawn(async move {
            let gate = PermitRequest::new("gate");
            let ready = limiter.until_ready(&gate, Duration::from_secs(20));
            ready.await.map(drop)
        });
    }
    for _ in 0..CALLERS {
        let queue = Arc::clone(&queue);
        waiting.spawn(async move {
            // As many as one claim may have, so each is sent alone.
            let claim = Claim::new(1000).wait(Duration::from_secs(20));
            queue.claim(&claim).await.map(drop)
        });
        let scheduler = Arc::clone(&scheduler);
        waiting.spawn(async move { scheduler.run_now("report").await.map(drop) });
    }
    let refused = soon("all are refused", waiting.join_all()).await;
    for outcome in refused {
        // One was perhaps asking when the connection ended.
        let kind = outcome.unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::Unavailable | ErrorKind::Indeterminate),
            "{kind:?}"
        );
    }
    cx.set_reachable(true).await;
    eventually("permits are there again", async || {
        permits.take().await.is_ok()
    })
    .await;
    drop(held);
}

async fn silent_server_is_given_up_and_comes_back(cx: Context) {
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    let backend = cx.connect(options).await.unwrap();
    let mutex = backend.mutex("door").unwrap();
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let locked = mutex.lock().await.unwrap();
    let leased = lease.acquire().await.unwrap();
    cx.set_silent(true).await;
    let (renewed, peeked) = tokio::join!(
        soon("an answer", leased.renew()),
        soon("an answer", lease.peek()),
    );
    // Where a new session is served, the second try succeeds.
    for error in [renewed.err(), peeked.err()].into_iter().flatten() {
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::Indeterminate
            ),
            "{error}"
        );
    }
    soon("told of the loss", locked.lost()).await;
    assert!(!leased.is_lost(), "unknown is not lost");
    cx.set_silent(false).await;
    eventually("it locks again", async || {
        mutex.try_lock().await.is_ok_and(|it| it.is_some())
    })
    .await;
    eventually("it renews again", async || leased.renew().await.is_ok()).await;
    leased.release().await.unwrap();
}

/// The server ends such a session by itself, and then others have the lock.
async fn holder_behind_a_silent_server_is_told_whatever_the_time_limit(cx: Context) {
    let options = BackendOptions::default().timeout(MINUTE * 60);
    let backend = cx.connect(options).await.unwrap();
    let locked = backend.mutex("door").unwrap().lock().await.unwrap();
    cx.set_silent(true).await;
    soon("told of the loss", locked.lost()).await;
    cx.set_silent(false).await;
}

async fn lease_is_lost_locally_while_the_server_is_silent(cx: Context) {
    let ttl = Duration::from_secs(1);
    let backend = cx.backend().await;
    let options = LeaseOptions::new(ttl).renewed_by_hand();
    let lease = backend.lease("job", options).unwrap();
    let guard = lease.acquire().await.unwrap();
    let start = Instant::now();
    cx.set_silent(true).await;
    let looking = lease.peek();
    tokio::pin!(looking);
    let _pending = futures_util::poll!(&mut looking);
    soon("lost while nothing answers", guard.lost()).await;
    assert!(start.elapsed() < ttl * 2);
    cx.set_silent(false).await;
    drop(soon("an answer", looking).await);
    let error = soon("an answer", guard.renew()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(cx.lease("job").await.is_none() || guard.is_lost());
}

async fn ten_thousand_locks_use_one_connection(cx: Context) {
    const LOCKS: usize = 10_000;
    // What is noted of them is noted on another.
    let options = BackendOptions::default().notes(false);
    let backend = cx.connect(options).await.unwrap();
    let locking = (0..LOCKS).map(|nth| {
        let mutex = backend.mutex(format!("door-{nth}")).unwrap();
        async move { mutex.lock().await }
    });
    let mut guards = Vec::new();
    for chunk in locking.collect::<Vec<_>>().into_iter().array_chunks_by(200) {
        for guard in futures_util::future::join_all(chunk).await {
            guards.push(guard.unwrap());
        }
    }
    assert_eq!(cx.sessions().await, 1);
    for nth in [0, LOCKS / 2, LOCKS - 1] {
        assert_eq!(
            cx.locks(cx.lock_id(&*format!("door-{nth}"))).await.granted,
            1
        );
    }
    let error = backend
        .mutex("one more")
        .unwrap()
        .try_lock()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity);
    for chunk in guards.into_iter().array_chunks_by(200) {
        let unlocking = chunk.into_iter().map(lockapi::MutexGuard::unlock);
        for outcome in futures_util::future::join_all(unlocking).await {
            outcome.unwrap();
        }
    }
    assert_eq!(cx.sessions().await, 1);
    let guard = backend.mutex("one more").unwrap().lock().await.unwrap();
    guard.unlock().await.unwrap();
}

trait Chunks: Iterator + Sized {
    /// The items in groups of so many.
    fn array_chunks_by(mut self, size: usize) -> impl Iterator<Item = Vec<Self::Item>> {
        std::iter::from_fn(move || {
            let chunk: Vec<_> = self.by_ref().take(size).collect();
            (!chunk.is_empty()).then_some(chunk)
        })
    }
}

impl<I: Iterator> Chunks for I {}

async fn beyond_the_limit_is_capacity_and_harms_nobody(cx: Context) {
    let backend = cx
        .connect(BackendOptions::default().max_locks(3))
        .await
        .unwrap();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(backend.mutex(name).unwrap().lock().await.unwrap());
    }
    let mutex = backend.mutex("d").unwrap();
    for _ in 0..2 {
        let error = mutex.lock().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.key()),
            (ErrorKind::Capacity, Some("d"))
        );
        assert!(error.is_retryable());
    }
    assert_eq!(cx.locks(cx.lock_id("d")).await.granted, 0);
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    guards.pop().unwrap().unlock().await.unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    for guard in guards {
        guard.unlock().await.unwrap();
    }
}

async fn full_lock_table_is_capacity_and_harms_nobody(cx: Context) {
    let backend = cx.backend().await;
    let mut guards = Vec::new();
    let error = loop {
        assert!(guards.len() < 20_000, "the lock table never fills");
        let locking = (0..100).map(|nth| {
            let mutex = backend
                .mutex(format!("door-{}", guards.len() + nth))
                .unwrap();
            async move { mutex.lock().await }
        });
        let mut full = None;
        for outcome in futures_util::future::join_all(locking).await {
            match outcome {
                Ok(guard) => guards.push(guard),
                Err(error) => full = Some(error),
            }
        }
        if let Some(error) = full {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    assert!(guards.len() > 100);
    assert!(
        guards.iter().all(|guard| !guard.is_lost()),
        "others are unaffected"
    );
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    backend
        .mutex("door")
        .unwrap()
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}
