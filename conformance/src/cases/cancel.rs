//! Futures that are dropped at each of their poll points.

use std::sync::Arc;
use std::time::Duration;

use lockapi::BackendOptions;
use lockapi::lease::LeaseOptions;
use lockapi::{Backend, LockOwner};

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, poll_then_drop, soon};

register! { "cancel":
    V08 try_lock_dropped [Futures];
    V08 lock_dropped [Futures];
    V08 waiting_lock_dropped [Futures];
    V08 lock_timeout_dropped [Futures];
    V08 unlock_dropped [Futures];
    V08 read_dropped [Futures];
    V08 waiting_read_dropped [Futures];
    V08 write_dropped [Futures];
    V08 lock_all_dropped [Futures];
    V08 lock_any_dropped [Futures];
    V08 lock_of_a_line_dropped [Futures];
    V08 lost_dropped [Futures];
    V08 run_exclusive_dropped [Futures];
    V08 try_acquire_dropped [Futures];
    V08 waiting_acquire_dropped [Futures];
    V08 renew_dropped [Futures];
    V08 release_dropped [Futures];
    V08 peek_dropped [Futures];
    V08 connect_dropped [Futures];
    V08 migrate_dropped @ Empty [Futures, Schema];
}

const MOST_POLLS: usize = 50;

/// Of two backends: each has one for tables, one for renewals, one that holds locks, and four that wait
/// for them.
const MOST_SESSIONS: usize = 14;

/// Drops a future before each of its polls and, between the first and the second, after different
/// times; each time nothing is left behind. What is in braces is done before, each time.
macro_rules! drop_everywhere {
    ($cx:expr, $there:expr, { $($setup:tt)* }, $work:expr) => {
        for polls in 0.. {
            assert!(polls < MOST_POLLS, "it never ends");
            $($setup)*
            let ended = poll_then_drop($work, polls).await;
            left_clean($cx, $there).await;
            if ended.is_some() {
                break;
            }
        }
        for micros in [50, 200, 500, 1000, 2000, 4000] {
            $($setup)*
            let _ended = tokio::time::timeout(Duration::from_micros(micros), $work).await;
            left_clean($cx, $there).await;
        }
    };
}

async fn left_clean(cx: &Context, there: &dyn Backend) {
    let lock = cx.lock_id("door");
    eventually("nothing is locked, waited for or leased", async || {
        cx.locks(lock).await == Locks::NONE && cx.lease("job").await.is_none()
    })
    .await;
    let guard = soon("another locks it", there.mutex("door").unwrap().lock()).await;
    guard.unwrap().unlock().await.unwrap();
    let lease = there.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let guard = soon("another leases it", lease.acquire()).await;
    guard.unwrap().release().await.unwrap();
    // What was dropped while it connected may still be closing its connections.
    eventually("no connection is left behind", async || {
        cx.sessions().await <= MOST_SESSIONS
    })
    .await;
}

async fn pair(cx: &Context) -> (Arc<dyn Backend>, Arc<dyn Backend>) {
    // Notes would be on a connection of their own, which is counted.
    let connect = async || {
        cx.connect(BackendOptions::default().notes(false))
            .await
            .unwrap()
    };
    (connect().await, connect().await)
}

async fn try_lock_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let mutex = here.mutex("door").unwrap();
    drop_everywhere!(&cx, &*there, {}, async {
        drop(mutex.try_lock().await.unwrap());
    });
}

async fn lock_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let mutex = here.mutex("door").unwrap();
    drop_everywhere!(&cx, &*there, {}, async {
        drop(mutex.lock().await.unwrap());
    });
}

async fn waiting_lock_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let mutex = here.mutex("door").unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = there.mutex("door").unwrap().lock().await.unwrap();
            let mutex = Arc::clone(&mutex);
        },
        async move {
            // The holder leaves while the other waits, and when the other leaves.
            let (waited, ()) = tokio::join!(mutex.lock(), async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.unlock().await.unwrap();
            });
            drop(waited.unwrap());
        }
    );
}

async fn lock_timeout_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let mutex = here.mutex("door").unwrap();
    drop_everywhere!(&cx, &*there, {}, async {
        drop(mutex.lock_timeout(MINUTE).await.unwrap());
    });
}

async fn unlock_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let mutex = here.mutex("door").unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = mutex.lock().await.unwrap();
        },
        async { guard.unlock().await.unwrap() }
    );
}

async fn read_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let door = here.rw_lock("door").unwrap();
    drop_everywhere!(&cx, &*there, {}, async {
        let (one, another) = tokio::join!(door.read(), door.read());
        one.unwrap().unlock().await.unwrap();
        drop(another.unwrap());
    });
}

async fn waiting_read_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let door = here.rw_lock("door").unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = there.rw_lock("door").unwrap().write().await.unwrap();
            let door = Arc::clone(&door);
        },
        async move {
            let (waited, ()) = tokio::join!(door.read(), async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.unlock().await.unwrap();
            });
            drop(waited.unwrap());
        }
    );
}

async fn write_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let door = here.rw_lock("door").unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let reader = door.read().await.unwrap();
            let door = Arc::clone(&door);
        },
        async move {
            let (waited, ()) = tokio::join!(door.write(), async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                reader.unlock().await.unwrap();
            });
            drop(waited.unwrap());
        }
    );
}

async fn lock_all_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let set = here.mutex_set(["door", "window", "roof"]).unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = there.mutex("roof").unwrap().lock().await.unwrap();
            let set = set.clone();
        },
        async move {
            let (waited, ()) = tokio::join!(set.lock_all(), async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.unlock().await.unwrap();
            });
            drop(waited.unwrap());
        }
    );
    let guard = soon("nothing is left locked", set.lock_all()).await;
    guard.unwrap().unlock().await.unwrap();
}

async fn lock_any_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let set = here.mutex_set(["door", "window"]).unwrap();
    let of_others = there.mutex_set(["door", "window"]).unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = of_others.lock_all().await.unwrap();
            let set = set.clone();
        },
        async move {
            let (waited, ()) = tokio::join!(set.lock_any(1), async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.unlock().await.unwrap();
            });
            drop(waited.unwrap());
        }
    );
}

async fn lock_of_a_line_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let owner = LockOwner::new();
    let (door, window) = (here.mutex("door").unwrap(), here.mutex("window").unwrap());
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = there.mutex("door").unwrap().lock().await.unwrap();
            let (door, window, owner) = (Arc::clone(&door), Arc::clone(&window), owner.clone());
        },
        async move {
            let held = owner.lock(&*window).await.unwrap();
            let (waited, ()) = tokio::join!(owner.lock(&*door), async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.unlock().await.unwrap();
            });
            drop(waited.unwrap());
            held.unlock().await.unwrap();
        }
    );
    // What was dropped is not counted as the owner's.
    let guard = soon("free", owner.lock(&*window)).await.unwrap();
    guard.unlock().await.unwrap();
}

async fn lost_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let (mutex, lease) = (
        here.mutex("door").unwrap(),
        here.lease("job", LeaseOptions::new(MINUTE)),
    );
    let lease = lease.unwrap();
    for polls in 0..3 {
        let (locked, leased) = (mutex.lock().await.unwrap(), lease.acquire().await.unwrap());
        if polls < 2 {
            assert_eq!(poll_then_drop(locked.lost(), polls).await, None);
            assert_eq!(poll_then_drop(leased.lost(), polls).await, None);
        }
        assert!(!locked.is_lost() && !leased.is_lost());
        locked.unlock().await.unwrap();
        leased.release().await.unwrap();
        left_clean(&cx, &*there).await;
    }
}

async fn run_exclusive_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let mutex = here.mutex("door").unwrap();
    let lease = here.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    drop_everywhere!(&cx, &*there, {}, async {
        let work = async |_| {
            tokio::task::yield_now().await;
            Ok::<_, lockapi::Error>(())
        };
        mutex.run_exclusive(work).await.unwrap();
        lease.run_exclusive_wait(work).await.unwrap();
    });
}

async fn try_acquire_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let lease = here.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    drop_everywhere!(&cx, &*there, {}, async {
        drop(lease.try_acquire().await.unwrap());
    });
}

async fn waiting_acquire_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let lease = here.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let other = there.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = other.acquire().await.unwrap();
            let lease = Arc::clone(&lease);
        },
        async move {
            let (waited, ()) = tokio::join!(lease.acquire_timeout(MINUTE), async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.release().await.unwrap();
            });
            drop(waited.unwrap());
        }
    );
}

async fn renew_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let lease = here.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = lease.acquire().await.unwrap();
        },
        async move { guard.renew().await.unwrap() }
    );
}

async fn release_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let lease = here.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    drop_everywhere!(
        &cx,
        &*there,
        {
            let guard = lease.acquire().await.unwrap();
        },
        async { guard.release().await.unwrap() }
    );
}

async fn peek_dropped(cx: Context) {
    let (here, there) = pair(&cx).await;
    let lease = here.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    drop_everywhere!(&cx, &*there, {}, async {
        drop(lease.peek().await.unwrap());
    });
}

async fn connect_dropped(cx: Context) {
    let there = cx.backend().await;
    drop_everywhere!(&cx, &*there, {}, async { drop(cx.backend().await) });
    drop(there);
    eventually("no session is left", async || cx.sessions().await == 0).await;
}

async fn migrate_dropped(cx: Context) {
    let here = cx.backend().await;
    for polls in 0..MOST_POLLS {
        if poll_then_drop(here.migrate(), polls).await.is_some() {
            break;
        }
    }
    cx.backend().await.migrate().await.unwrap();
    left_clean(&cx, &*cx.backend().await).await;
    drop(here);
    eventually("no session is left", async || cx.sessions().await == 0).await;
}
