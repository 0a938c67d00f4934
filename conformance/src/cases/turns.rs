//! More locks that are waited for than connections that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::BackendOptions;
use lockapi::{Backend, ErrorKind};

use crate::context::Context;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "turns":
    M13 waits_that_ended_leave_no_place;
    M13 keys_have_their_turn_on_the_sessions_that_wait;
    M13 long_holds_do_not_keep_others_from_waiting;
}

fn keys(many: usize) -> Vec<String> {
    (0..many).map(|n| format!("key {n}")).collect()
}

async fn waits_that_ended_leave_no_place(cx: Context) {
    let there = cx.backend().await;
    let options = BackendOptions::default().max_locks(10).waiters(1);
    let here = cx.connect(options).await.unwrap();
    let mut held = Vec::new();
    for key in keys(20) {
        held.push(there.mutex(key).unwrap().lock().await.unwrap());
    }
    for key in keys(20) {
        let short = Duration::from_millis(20);
        let mutex = here.mutex(key).unwrap();
        // The server may need a moment until it has given up a wait that ended.
        eventually("a place to wait", async || {
            let late = mutex.lock_timeout(short).await.unwrap_err().kind();
            assert!(
                matches!(late, ErrorKind::TimedOut | ErrorKind::Capacity),
                "{late:?}"
            );
            late == ErrorKind::TimedOut
        })
        .await;
    }
    let fresh = here.mutex("fresh").unwrap().try_lock().await.unwrap();
    fresh.unwrap().unlock().await.unwrap();
}

/// Passes a lock on, over and over, within one process.
async fn pass_on(backend: Arc<dyn Backend>, key: String, stop: Arc<AtomicBool>) {
    let mutex = backend.mutex(key).unwrap();
    while !stop.load(Ordering::Relaxed) {
        mutex.lock().await.unwrap().unlock().await.unwrap();
    }
}

async fn keys_have_their_turn_on_the_sessions_that_wait(cx: Context) {
    let there = cx.backend().await;
    let here = cx
        .connect(BackendOptions::default().waiters(1))
        .await
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let keys = keys(5);
    let rivals: Vec<_> = keys
        .iter()
        .flat_map(|key| (0..3).map(move |_| key.clone()))
        .map(|key| tokio::spawn(pass_on(Arc::clone(&there), key, Arc::clone(&stop))))
        .collect();
    let wait = async |key: &String| {
        let mutex = here.mutex(key.as_str()).unwrap();
        soon("its turn", mutex.lock()).await.unwrap()
    };
    // Nobody lets go before all have what they want.
    let guards = join_all(keys.iter().map(wait)).await;
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for rival in rivals {
        soon("the end", rival).await.unwrap();
    }
}

async fn long_holds_do_not_keep_others_from_waiting(cx: Context) {
    let there = cx.backend().await;
    let here = cx
        .connect(BackendOptions::default().waiters(2))
        .await
        .unwrap();
    let mut held = Vec::new();
    for key in keys(5) {
        let guard = there.mutex(key.as_str()).unwrap().lock().await.unwrap();
        let mutex = here.mutex(key.as_str()).unwrap();
        held.push((
            cx.lock_id(key),
            guard,
            tokio::spawn(async move { mutex.lock().await }),
        ));
    }
    let mut own = Vec::new();
    for (lock, guard, waiting) in held {
        // Also while sessions hold what they were given, each has its turn to wait.
        eventually("it waits", async || cx.locks(lock).await.waiting == 1).await;
        guard.unlock().await.unwrap();
        own.push(soon("granted", waiting).await.unwrap().unwrap());
    }
    // Sessions that wait and hold are interrupted to release.
    let guard = there.mutex("last").unwrap().lock().await.unwrap();
    let mutex = here.mutex("last").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let lock = cx.lock_id("last");
    eventually("it waits", async || cx.locks(lock).await.waiting == 1).await;
    for guard in own {
        soon("released", guard.unlock()).await.unwrap();
    }
    guard.unlock().await.unwrap();
    let last = soon("granted", waiting).await.unwrap().unwrap();
    last.unlock().await.unwrap();
}
