//! Several mutexes at once, and one name in stripes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockapi::{Backend, ErrorKind, MutexSet, blocking};

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "sets":
    M14 each_key_is_locked_once_in_one_order;
    M14 all_or_nothing;
    M14 one_timeout_for_all;
    M14 timeout_holds_where_the_server_is_silent @ Own [Sql];
    M14 reversed_orders_never_deadlock;
    M14 any_takes_what_is_free_and_no_more;
    M14 any_waits_for_one;
    M14 lost_with_its_session;
    M14 limits_are_told;
    M14 stripes_exclude_by_what_they_are_for;
    M14 blocking_sets_and_stripes;
}

const KEYS: [&str; 3] = ["a", "b", "c"];

fn set(backend: &Arc<dyn Backend>) -> MutexSet {
    backend.mutex_set(KEYS).unwrap()
}

async fn held(cx: &Context) -> usize {
    let mut held = 0;
    for key in KEYS {
        held += cx.locks(cx.lock_id(key)).await.granted;
    }
    held
}

async fn free(cx: &Context) {
    eventually("nobody holds or waits", async || {
        for key in KEYS {
            if cx.locks(cx.lock_id(key)).await != Locks::NONE {
                return false;
            }
        }
        true
    })
    .await;
}

async fn each_key_is_locked_once_in_one_order(cx: Context) {
    let backend = cx.backend().await;
    let one = backend.mutex_set(["a", "b", "a", "c", "b"]).unwrap();
    let other = backend.mutex_set(["c", "b", "a"]).unwrap();
    assert_eq!(one.keys().count(), 3);
    assert!(
        one.keys().eq(other.keys()),
        "whatever order they are named in"
    );
    let guard = one.lock_all().await.unwrap();
    assert_eq!(held(&cx).await, 3);
    assert!(
        guard
            .fences()
            .map(|fence| fence.key().clone())
            .eq(one.keys().cloned())
    );
    let tokens: Vec<i64> = guard.fences().map(|fence| fence.token()).collect();
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    assert_eq!(held(&cx).await, 0, "free when unlock returns");
    let guard = other.try_lock_all().await.unwrap().expect("free");
    for (later, earlier) in guard.fences().zip(tokens) {
        assert!(later.token() > earlier);
    }
    for guard in guard.into_guards() {
        guard.unlock().await.unwrap();
    }
    free(&cx).await;
}

async fn all_or_nothing(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let (set, of_others) = (set(&here), set(&there));
    for key in KEYS {
        let blocker = there.mutex(key).unwrap().lock().await.unwrap();
        assert!(set.try_lock_all().await.unwrap().is_none());
        eventually("nothing is kept", async || held(&cx).await == 1).await;
        let waiting = tokio::spawn({
            let set = set.clone();
            async move { set.lock_all().await }
        });
        tokio::pin!(waiting);
        not_yet("locked although one is held", &mut waiting).await;
        blocker.unlock().await.unwrap();
        let guard = soon("all of them", waiting).await.unwrap().unwrap();
        assert!(of_others.try_lock_all().await.unwrap().is_none());
        assert!(of_others.try_lock_any(1).await.unwrap().is_none());
        drop(guard);
        free(&cx).await;
    }
}

async fn one_timeout_for_all(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let set = set(&here);
    let last = set.keys().last().unwrap().clone();
    let blocker = there.mutex(&last).unwrap().lock().await.unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(300)] {
        let error = set.lock_all_timeout(timeout).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.key(), Some(&*last.to_string()));
        eventually("nothing is kept", async || held(&cx).await == 1).await;
    }
    blocker.unlock().await.unwrap();
    let guard = soon("all of them", set.lock_all_timeout(MINUTE)).await;
    guard.unwrap().unlock().await.unwrap();
    free(&cx).await;
}

async fn timeout_holds_where_the_server_is_silent(cx: Context) {
    let set = set(&cx.backend().await);
    set.lock_all().await.unwrap().unlock().await.unwrap();
    cx.set_silent(true).await;
    // Not what becomes of the attempts, which take longer.
    let short = Duration::from_millis(300);
    let error = set.lock_all_timeout(short).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let error = set.lock_any_timeout(2, short).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    cx.set_silent(false).await;
}

async fn reversed_orders_never_deadlock(cx: Context) {
    const ROUNDS: usize = 25;
    let backends = [cx.backend().await, cx.backend().await];
    let counter = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..8 {
        let keys = if nth % 4 < 2 { ["a", "b"] } else { ["b", "a"] };
        let set = backends[nth % 2].mutex_set(keys).unwrap();
        let counter = Arc::clone(&counter);
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = set.lock_all().await.unwrap();
                let read = counter.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                counter.store(read + 1, Ordering::Relaxed);
                guard.unlock().await.unwrap();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 8 * ROUNDS);
}

async fn any_takes_what_is_free_and_no_more(cx: Context) {
    let (here, there) = (set(&cx.backend().await), set(&cx.backend().await));
    let two = here.lock_any(2).await.unwrap();
    assert_eq!((two.fences().count(), held(&cx).await), (2, 2));
    let rest = there.lock_any(2).await.unwrap();
    assert_eq!((rest.fences().count(), held(&cx).await), (1, 3));
    for set in [&here, &there] {
        assert!(set.try_lock_any(2).await.unwrap().is_none());
    }
    let mut keys: Vec<_> = two.fences().chain(rest.fences()).collect();
    keys.sort_by(|one, other| one.key().cmp(other.key()));
    assert!(keys.iter().map(|fence| fence.key().to_string()).eq(KEYS));
    two.unlock().await.unwrap();
    rest.unlock().await.unwrap();
    let all = there.lock_any(10).await.unwrap();
    assert_eq!(all.fences().count(), 3);
    all.unlock().await.unwrap();
    assert_eq!(held(&cx).await, 0);
}

async fn any_waits_for_one(cx: Context) {
    let (here, there) = (set(&cx.backend().await), set(&cx.backend().await));
    let mut held_here = here.lock_all().await.unwrap().into_guards();
    let error = there.lock_any_timeout(2, Duration::from_millis(300)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    let waiting = tokio::spawn({
        let there = there.clone();
        async move { there.lock_any(2).await }
    });
    tokio::pin!(waiting);
    not_yet("granted although all are held", &mut waiting).await;
    let freed = held_here.pop().unwrap();
    let key = freed.fence().key().clone();
    freed.unlock().await.unwrap();
    let one = soon("the one that was freed", waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(one.fences().map(|fence| fence.key().clone()).eq([key]));
    drop(held_here);
    one.unlock().await.unwrap();
    free(&cx).await;
    eventually("all are had when all are free", async || {
        let some = there.lock_any_timeout(3, MINUTE).await.unwrap();
        let had = some.fences().count();
        some.unlock().await.unwrap();
        had == 3
    })
    .await;
}

async fn lost_with_its_session(cx: Context) {
    let (here, there) = (set(&cx.backend().await), set(&cx.backend().await));
    let guard = here.lock_all().await.unwrap();
    cx.sever().await;
    soon("told of the loss", guard.lost()).await;
    assert!(guard.is_lost());
    let next = soon("the next holder", there.lock_all()).await.unwrap();
    assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!next.is_lost());
    assert_eq!(held(&cx).await, 3, "a stale unlock");
    next.unlock().await.unwrap();
}

async fn limits_are_told(cx: Context) {
    let backend = cx.backend().await;
    let none: [&str; 0] = [];
    let many = (0..=i64::try_from(MutexSet::MAX_KEYS).unwrap()).map(lockapi::Key::from);
    let errors = [
        backend.mutex_set(none).unwrap_err(),
        backend.mutex_set(many).unwrap_err(),
        backend.mutex_set(["a", ""]).unwrap_err(),
        backend.striped("counter", 0).unwrap_err(),
        backend.striped("counter", 1001).unwrap_err(),
        backend.striped(&"n".repeat(254), 2).unwrap_err(),
        set(&backend).lock_any(0).await.unwrap_err(),
        set(&backend).try_lock_any(0).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

async fn stripes_exclude_by_what_they_are_for(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let striped = [&here, &there].map(|backend| backend.striped("counter", 16).unwrap());
    let [here, there] = &striped;
    let guard = here.lock("customer 7").await.unwrap();
    let stripe = guard.fence().key().clone();
    assert!(stripe.to_string().starts_with("counter/"));
    assert!(
        there
            .stripe("customer 7")
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    let short = Duration::from_millis(200);
    let error = there.lock_timeout("customer 7", short).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let names = (0..100).map(|n| n.to_string());
    let others: Vec<String> = names
        .filter(|by| *there.stripe(by).key() != stripe)
        .collect();
    let other = soon("another stripe", there.lock(&others[0]))
        .await
        .unwrap();
    let whole = tokio::spawn({
        let there = there.clone();
        async move { there.lock_all().await }
    });
    tokio::pin!(whole);
    not_yet("locked beside a stripe", &mut whole).await;
    other.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    let whole = soon("the whole", whole).await.unwrap().unwrap();
    assert_eq!(whole.fences().count(), 16);
    for by in &others[..3] {
        assert!(here.stripe(by).try_lock().await.unwrap().is_none());
    }
    whole.unlock().await.unwrap();
}

async fn blocking_sets_and_stripes(cx: Context) {
    let backends = [cx.backend().await, cx.backend().await];
    let work = move || -> lockapi::Result<()> {
        let [here, there] = backends.map(blocking::Backend::from);
        let (here, there) = (here.mutex_set(KEYS)?, there.mutex_set(KEYS)?);
        let guard = here.lock_all()?;
        assert_eq!(guard.fences().count(), here.keys().count());
        assert!(there.try_lock_all()?.is_none() && there.try_lock_any(1)?.is_none());
        let short = Duration::from_millis(100);
        for error in [
            there.lock_all_timeout(short),
            there.lock_any_timeout(1, short),
        ] {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        guard.unlock()?;
        let some = there.lock_any(2)?;
        assert!((1..=2).contains(&some.fences().count()));
        some.into_guards()
            .into_iter()
            .try_for_each(blocking::MutexGuard::unlock)
    };
    tokio::task::spawn_blocking(work).await.unwrap().unwrap();
    free(&cx).await;
    let backends = [cx.backend().await, cx.backend().await];
    let work = move || -> lockapi::Result<()> {
        let [here, there] = backends.map(blocking::Backend::from);
        let (here, there) = (here.striped("counter", 4)?, there.striped("counter", 4)?);
        let guard = here.lock("seven")?;
        assert!(there.stripe("seven").try_lock()?.is_none());
        assert!(there.all().try_lock_all()?.is_none());
        guard.unlock()?;
        there.lock_all()?.unlock()
    };
    tokio::task::spawn_blocking(work).await.unwrap().unwrap();
}
