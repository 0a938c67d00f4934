//! Guards that are dropped in all the places where guards are dropped.

use std::future::pending;

use lockapi::BackendOptions;
use lockapi::lease::LeaseOptions;
use lockapi::{Backend, LeaseGuard, MutexGuard};
use tokio::runtime::Runtime;

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "guards":
    V11 dropped_inside_a_runtime;
    V11 dropped_outside_of_a_runtime;
    V11 dropped_while_a_runtime_shuts_down;
    V11 dropped_in_a_panic;
    V11 forgotten_guard_goes_with_its_session;
    V11 backend_dropped_before_its_guards;
    V11 runtime_of_the_backend_shuts_down [Futures];
    V11 connections_end_with_the_backend [OwnConnections];
}

type Held = (Box<dyn MutexGuard>, Box<dyn LeaseGuard>);

async fn held(backend: &dyn Backend) -> Held {
    let mutex = backend.mutex("door").unwrap();
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let locked = soon("locked", mutex.lock()).await.unwrap();
    (locked, soon("leased", lease.acquire()).await.unwrap())
}

async fn released(cx: &Context) {
    let lock = cx.lock_id("door");
    eventually("both are released", async || {
        cx.locks(lock).await == Locks::NONE && cx.lease("job").await.is_none()
    })
    .await;
}

async fn dropped_inside_a_runtime(cx: Context) {
    let backend = cx.backend().await;
    for _ in 0..3 {
        drop(held(&*backend).await);
        released(&cx).await;
    }
    let guards = held(&*backend).await;
    tokio::spawn(async move { drop(guards) }).await.unwrap();
    released(&cx).await;
}

async fn dropped_outside_of_a_runtime(cx: Context) {
    let backend = cx.backend().await;
    let guards = held(&*backend).await;
    std::thread::spawn(move || drop(guards)).join().unwrap();
    released(&cx).await;
}

async fn dropped_while_a_runtime_shuts_down(cx: Context) {
    let backend = cx.backend().await;
    let guards = held(&*backend).await;
    std::thread::spawn(move || {
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async move {
            let _guards = guards;
            pending::<()>().await;
        });
        drop(runtime);
    })
    .join()
    .unwrap();
    released(&cx).await;
}

async fn dropped_in_a_panic(cx: Context) {
    let backend = cx.backend().await;
    let guards = held(&*backend).await;
    let panicked = std::thread::spawn(move || {
        let _guards = guards;
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    released(&cx).await;
}

async fn forgotten_guard_goes_with_its_session(cx: Context) {
    let backend = cx.backend().await;
    let (locked, leased) = held(&*backend).await;
    std::mem::forget(locked);
    std::mem::forget(leased);
    assert_eq!(cx.locks(cx.lock_id("door")).await.granted, 1);
    cx.sever().await;
    let other = cx.backend().await;
    let guard = soon("free again", other.mutex("door").unwrap().lock()).await;
    guard.unwrap().unlock().await.unwrap();
    cx.elapse(MINUTE).await;
    let lease = other.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    soon("free again", lease.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn backend_dropped_before_its_guards(cx: Context) {
    let backend = cx.backend().await;
    let (locked, leased) = held(&*backend).await;
    drop(backend);
    leased.renew().await.unwrap();
    assert!(!locked.is_lost());
    locked.unlock().await.unwrap();
    leased.release().await.unwrap();
    released(&cx).await;
    let guards = held(&*cx.backend().await).await;
    drop(guards);
    released(&cx).await;
    eventually("no session is left", async || cx.sessions().await == 0).await;
}

async fn runtime_of_the_backend_shuts_down(cx: Context) {
    let own = cx.clone();
    let (guards, backend) = std::thread::spawn(move || {
        let runtime = Runtime::new().unwrap();
        let held = runtime.block_on(async {
            let backend = own.backend().await;
            (held(&*backend).await, backend)
        });
        runtime.shutdown_background();
        held
    })
    .join()
    .unwrap();
    let (locked, leased) = guards;
    let other = cx.backend().await;
    // A backend that has threads of its own does not even notice.
    let outcome = soon("an answer", backend.mutex("back").unwrap().try_lock()).await;
    if outcome.is_err() {
        soon("told of the loss", locked.lost()).await;
        let guard = soon("free again", other.mutex("door").unwrap().lock()).await;
        guard.unwrap().unlock().await.unwrap();
        soon("an answer", leased.release()).await.unwrap_err();
    }
}

async fn connections_end_with_the_backend(cx: Context) {
    let none = async || cx.sessions().await == 0;
    eventually("the session of the migration ends", none).await;
    // What is noted of them is noted on another.
    let options = BackendOptions::default().notes(false);
    let backend = cx.connect(options).await.unwrap();
    eventually("nothing is kept open before it is needed", async || {
        cx.sessions().await == 0
    })
    .await;
    drop(held(&*backend).await);
    released(&cx).await;
    // That of the mutexes, that of leases, and that of their renewals.
    assert_eq!(cx.sessions().await, 3);
    drop(backend);
    eventually("no session is left", async || cx.sessions().await == 0).await;
}
