//! Waits that could never end.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use lockapi::BackendOptions;
use lockapi::{Backend, ErrorKind, LockOwner, Mutex, MutexGuard, Result};

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "deadlocks":
    M15 own_key_is_told_at_once;
    M15 cycle_in_a_process_is_told_at_once;
    M15 cycle_of_two_processes_ends_in_one_error;
    M15 cycle_through_another_lock_owner_of_the_process;
    M15 cycle_through_readers;
    M15 waiting_without_a_cycle_is_no_error;
    M15 line_that_left_is_waited_for_no_more;
    M15 line_that_was_served_is_waited_for_no_more;
    M15 wait_that_was_dropped_is_no_cycle [Futures];
    M15 wait_behind_another_that_was_dropped_is_no_cycle [Futures];
    M15 cycle_of_waits_that_take_turns_ends_in_one_error;
    M15 attempt_of_a_branch_keeps_the_wait_of_another;
    M15 by_hand_it_ends_with_the_timeout;
    M15 transactions_in_opposite_order_end_in_one_error [Transactions];
}

type Locked = Result<Box<dyn MutexGuard>>;

/// Begins to wait for a mutex on an owner.
fn begin(mutex: &Arc<dyn Mutex>, owner: &LockOwner) -> tokio::task::JoinHandle<Locked> {
    let mutex = mutex.on(owner);
    tokio::spawn(async move { mutex.lock().await })
}

fn mutex(backend: &Arc<dyn Backend>, key: &str) -> Arc<dyn Mutex> {
    backend.mutex(key).unwrap()
}

fn refused(outcome: Locked) {
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Deadlock);
}

async fn free(cx: &Context, keys: &[&str]) {
    eventually("nobody holds or waits", async || {
        for key in keys {
            if cx.locks(cx.lock_id(*key)).await != Locks::NONE {
                return false;
            }
        }
        true
    })
    .await;
}

/// One of two waits is refused, and the other ends when `release` drops what the first one held.
async fn one_is_refused(
    waits: [tokio::task::JoinHandle<Locked>; 2],
    mut held: [Option<Box<dyn MutexGuard>>; 2],
) {
    let [one, other] = waits;
    let (refused_one, outcome, winner) = match soon("an error", select(one, other)).await {
        Either::Left((outcome, other)) => (0, outcome, other),
        Either::Right((outcome, one)) => (1, outcome, one),
    };
    let error = outcome.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    assert!(!error.is_retryable(), "what is held has to be released");
    tokio::pin!(winner);
    not_yet("granted before it was released", &mut winner).await;
    let own = held[refused_one].take().unwrap();
    assert!(!own.is_lost(), "what was held before stays held");
    own.unlock().await.unwrap();
    let guard = soon("the other", winner).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    for guard in held.into_iter().flatten() {
        guard.unlock().await.unwrap();
    }
}

async fn own_key_is_told_at_once(cx: Context) {
    let backend = cx.backend().await;
    let owner = LockOwner::new();
    let door = mutex(&backend, "door");
    let shared = backend.rw_lock("door").unwrap().on(&owner);
    let guard = owner.lock(&*door).await.unwrap();
    refused(soon("an error", owner.lock(&*door)).await);
    refused(soon("an error", door.on(&owner).lock_timeout(MINUTE)).await);
    refused(soon("an error", shared.write()).await);
    let error = soon("an error", shared.read()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert_eq!((error.operation(), error.key()), ("read", Some("door")));
    let set = backend.mutex_set(["window", "door"]).unwrap().on(&owner);
    let error = soon("an error", set.lock_all()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(door.on(&owner).try_lock().await.unwrap().is_none());
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    free(&cx, &["door", "window"]).await;
    let reader = shared.read().await.unwrap();
    assert!(soon("an error", shared.read()).await.is_err());
    refused(soon("an error", shared.write()).await);
    reader.unlock().await.unwrap();
    let guard = soon("free again", owner.lock(&*door)).await.unwrap();
    // Another branch of the same task is another owner.
    not_yet("locked twice", LockOwner::new().lock(&*door)).await;
    guard.unlock().await.unwrap();
}

async fn cycle_in_a_process_is_told_at_once(cx: Context) {
    let backend = cx.backend().await;
    let keys = ["a", "b", "c"];
    let owners = keys.map(|_| LockOwner::new());
    let mutexes = keys.map(|key| mutex(&backend, key));
    let mut guards = Vec::new();
    for (owner, mutex) in owners.iter().zip(&mutexes) {
        guards.push(owner.lock(&**mutex).await.unwrap());
    }
    let mut waits = Vec::new();
    for nth in 0..2 {
        let mut wait = begin(&mutexes[nth + 1], &owners[nth]);
        not_yet("granted although it is held", &mut wait).await;
        waits.push(wait);
    }
    refused(soon("an error", owners[2].lock(&*mutexes[0])).await);
    for guard in guards.into_iter().rev() {
        assert!(!guard.is_lost());
        guard.unlock().await.unwrap();
        if let Some(wait) = waits.pop() {
            let guard = soon("the next of the owner", wait).await.unwrap();
            guard.unwrap().unlock().await.unwrap();
        }
    }
    free(&cx, &keys).await;
}

async fn cycle_of_two_processes_ends_in_one_error(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    for _ in 0..2 {
        let owners = [LockOwner::new(), LockOwner::new()];
        let a = owners[0].lock(&*mutex(&here, "a")).await.unwrap();
        let b = owners[1].lock(&*mutex(&there, "b")).await.unwrap();
        let waits = [
            begin(&mutex(&here, "b"), &owners[0]),
            begin(&mutex(&there, "a"), &owners[1]),
        ];
        one_is_refused(waits, [Some(a), Some(b)]).await;
        free(&cx, &["a", "b"]).await;
    }
}

async fn cycle_through_another_lock_owner_of_the_process(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let [one, two, three] = [(); 3].map(|()| LockOwner::new());
    let a = one.lock(&*mutex(&here, "a")).await.unwrap();
    let b = two.lock(&*mutex(&here, "b")).await.unwrap();
    let c = three.lock(&*mutex(&there, "c")).await.unwrap();
    // The first waits for the second, which waits for the third, which waits for the first.
    let mut first = begin(&mutex(&here, "b"), &one);
    not_yet("granted although it is held", &mut first).await;
    let waits = [
        begin(&mutex(&here, "c"), &two),
        begin(&mutex(&there, "a"), &three),
    ];
    let [second, third] = waits;
    match soon("an error", select(second, third)).await {
        Either::Left((outcome, third)) => {
            refused(outcome.unwrap());
            b.unlock().await.unwrap();
            let guard = soon("the first", first).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
            a.unlock().await.unwrap();
            let guard = soon("the third", third).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
            c.unlock().await.unwrap();
        }
        Either::Right((outcome, second)) => {
            refused(outcome.unwrap());
            c.unlock().await.unwrap();
            let guard = soon("the second", second).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
            b.unlock().await.unwrap();
            let guard = soon("the first", first).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
            a.unlock().await.unwrap();
        }
    }
    free(&cx, &["a", "b", "c"]).await;
}

async fn cycle_through_readers(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let owners = [LockOwner::new(), LockOwner::new()];
    let [one, other] = [(&here, 0), (&there, 1)].map(|(backend, nth)| {
        let lock: &LockOwner = &owners[nth];
        backend.rw_lock("a").unwrap().on(lock)
    });
    let readers = [one.read().await.unwrap(), other.read().await.unwrap()];
    // Each would become the writer.
    let mut waits = [one, other].map(|lock| tokio::spawn(async move { lock.write().await }));
    for wait in &mut waits {
        refused(soon("an error", wait).await.unwrap());
    }
    for reader in readers {
        assert!(!reader.is_lost());
        reader.unlock().await.unwrap();
    }
    // One reads what the other wants to write, and the other has what the first wants.
    let reader = here
        .rw_lock("a")
        .unwrap()
        .on(&owners[0])
        .read()
        .await
        .unwrap();
    let b = owners[1].lock(&*mutex(&there, "b")).await.unwrap();
    let writing = begin(&mutex(&there, "a"), &owners[1]);
    let locking = begin(&mutex(&here, "b"), &owners[0]);
    match soon("an error", select(writing, locking)).await {
        Either::Left((outcome, locking)) => {
            refused(outcome.unwrap());
            b.unlock().await.unwrap();
            let guard = soon("the mutex", locking).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
            reader.unlock().await.unwrap();
        }
        Either::Right((outcome, writing)) => {
            refused(outcome.unwrap());
            reader.unlock().await.unwrap();
            let guard = soon("the writer", writing).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
            b.unlock().await.unwrap();
        }
    }
    free(&cx, &["a", "b"]).await;
}

async fn waiting_without_a_cycle_is_no_error(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let owners = [(); 3].map(|()| LockOwner::new());
    let a = owners[0].lock(&*mutex(&here, "a")).await.unwrap();
    let b = owners[1].lock(&*mutex(&there, "b")).await.unwrap();
    let waits = [
        begin(&mutex(&here, "b"), &owners[0]),
        begin(&mutex(&there, "b"), &owners[2]),
        begin(&mutex(&there, "a"), &owners[2]),
    ];
    // Long enough for several looks of each.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(
        waits.iter().all(|wait| !wait.is_finished()),
        "told or granted"
    );
    b.unlock().await.unwrap();
    let [one, two, three] = waits;
    let next = soon("one of two", select(one, two)).await;
    let (guard, other) = match next {
        Either::Left((guard, other)) | Either::Right((guard, other)) => (guard, other),
    };
    guard.unwrap().unwrap().unlock().await.unwrap();
    let guard = soon("the other", other).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    a.unlock().await.unwrap();
    let guard = soon("the last", three).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    free(&cx, &["a", "b"]).await;
}

async fn line_that_left_is_waited_for_no_more(cx: Context) {
    let backend = cx.backend().await;
    let (one, other) = (LockOwner::new(), LockOwner::new());
    let a = one.lock(&*mutex(&backend, "a")).await.unwrap();
    let b = other.lock(&*mutex(&backend, "b")).await.unwrap();
    let short = Duration::from_millis(50);
    let error = mutex(&backend, "b").on(&one).lock_timeout(short).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    // The first waits no longer, so this is no cycle.
    let mut wait = begin(&mutex(&backend, "a"), &other);
    not_yet("granted although it is held", &mut wait).await;
    a.unlock().await.unwrap();
    let guard = soon("granted", wait).await.unwrap().unwrap();
    // Nor does the first hold anything.
    let mut wait = begin(&mutex(&backend, "a"), &one);
    not_yet("granted although it is held", &mut wait).await;
    guard.unlock().await.unwrap();
    b.unlock().await.unwrap();
    soon("granted", wait)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

async fn wait_that_was_dropped_is_no_cycle(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let (one, other) = (LockOwner::new(), LockOwner::new());
    let a = one.lock(&*mutex(&here, "a")).await.unwrap();
    let b = other.lock(&*mutex(&there, "b")).await.unwrap();
    let (waits, lock) = (mutex(&here, "b").on(&one), cx.lock_id("b"));
    let mut waiting = Box::pin(waits.lock());
    let seen = eventually("it waits", async || cx.locks(lock).await.waiting == 1);
    match select(&mut waiting, Box::pin(seen)).await {
        Either::Left((granted, _)) => panic!("it is held: {granted:?}"),
        Either::Right(((), _)) => drop(waiting),
    }
    // Nobody waits for the other owner any more.
    let wait = begin(&mutex(&there, "a"), &other);
    let lock = cx.lock_id("a");
    eventually("it waits", async || cx.locks(lock).await.waiting == 1).await;
    a.unlock().await.unwrap();
    let guard = soon("granted", wait).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    b.unlock().await.unwrap();
    free(&cx, &["a", "b"]).await;
}

async fn wait_behind_another_that_was_dropped_is_no_cycle(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let [one, other, third] = [(); 3].map(|()| LockOwner::new());
    let a = one.lock(&*mutex(&here, "a")).await.unwrap();
    let b = other.lock(&*mutex(&here, "b")).await.unwrap();
    let c = third.lock(&*mutex(&there, "c")).await.unwrap();
    let behind = mutex(&here, "a").on(&other);
    let mut behind = Box::pin(behind.lock());
    not_yet("granted although it is held", &mut behind).await;
    // Two wait for the third owner now.
    let wait = begin(&mutex(&here, "c"), &one);
    let lock = cx.lock_id("c");
    eventually("it waits", async || cx.locks(lock).await.waiting == 1).await;
    // And one again, who does not hold this.
    drop(behind);
    let next = begin(&mutex(&there, "b"), &third);
    let lock = cx.lock_id("b");
    eventually("it waits", async || cx.locks(lock).await.waiting == 1).await;
    b.unlock().await.unwrap();
    for (guard, wait) in [(None, next), (Some(c), wait)] {
        if let Some(guard) = guard {
            guard.unlock().await.unwrap();
        }
        let guard = soon("granted", wait).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
    a.unlock().await.unwrap();
    free(&cx, &["a", "b", "c"]).await;
}

async fn cycle_of_waits_that_take_turns_ends_in_one_error(cx: Context) {
    let few = || cx.connect(BackendOptions::default().waiters(1));
    let (here, there) = (few().await.unwrap(), few().await.unwrap());
    let elsewhere = cx.backend().await;
    let mut kept = Vec::new();
    for key in ["c", "d", "e", "f"] {
        kept.push(mutex(&elsewhere, key).lock().await.unwrap());
    }
    let owners = [LockOwner::new(), LockOwner::new()];
    let a = owners[0].lock(&*mutex(&here, "a")).await.unwrap();
    let b = owners[1].lock(&*mutex(&there, "b")).await.unwrap();
    let other = |backend, key| begin(&mutex(backend, key), &LockOwner::new());
    // With three turns in each process, those of the cycle are not at the same time.
    let mut others = vec![other(&here, "c")];
    let one = begin(&mutex(&here, "b"), &owners[0]);
    others.push(other(&here, "d"));
    let two = begin(&mutex(&there, "a"), &owners[1]);
    others.extend(["e", "f"].map(|key| other(&there, key)));
    one_is_refused([one, two], [Some(a), Some(b)]).await;
    for (guard, wait) in kept.into_iter().zip(others) {
        guard.unlock().await.unwrap();
        let guard = soon("granted", wait).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
    free(&cx, &["a", "b", "c", "d", "e", "f"]).await;
}

async fn attempt_of_a_branch_keeps_the_wait_of_another(cx: Context) {
    let backend = cx.backend().await;
    let (one, other) = (LockOwner::new(), LockOwner::new());
    let a = one.lock(&*mutex(&backend, "a")).await.unwrap();
    let b = other.lock(&*mutex(&backend, "b")).await.unwrap();
    let mut wait = begin(&mutex(&backend, "b"), &one);
    not_yet("granted although it is held", &mut wait).await;
    let tried = mutex(&backend, "b").on(&one).try_lock().await.unwrap();
    assert!(tried.is_none());
    refused(
        soon("told", begin(&mutex(&backend, "a"), &other))
            .await
            .unwrap(),
    );
    b.unlock().await.unwrap();
    let guard = soon("granted", wait).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    a.unlock().await.unwrap();
    free(&cx, &["a", "b"]).await;
}

async fn line_that_was_served_is_waited_for_no_more(cx: Context) {
    // With one session that waits, for one owner after the other.
    let here = cx
        .connect(BackendOptions::default().waiters(1))
        .await
        .unwrap();
    let there = cx.backend().await;
    let (one, other) = (LockOwner::new(), LockOwner::new());
    let b = one.lock(&*mutex(&here, "b")).await.unwrap();
    let a = mutex(&there, "a").lock().await.unwrap();
    let mut wait = begin(&mutex(&here, "a"), &one);
    not_yet("granted although it is held", &mut wait).await;
    a.unlock().await.unwrap();
    let a = soon("granted", wait).await.unwrap().unwrap();
    a.unlock().await.unwrap();
    b.unlock().await.unwrap();
    // Who waits now has never held the other.
    let b = mutex(&here, "b").lock().await.unwrap();
    let c = other.lock(&*mutex(&there, "c")).await.unwrap();
    let waits = [
        begin(&mutex(&here, "c"), &LockOwner::new()),
        begin(&mutex(&there, "b"), &other),
    ];
    for key in ["c", "b"] {
        let lock = cx.lock_id(key);
        eventually("it waits", async || cx.locks(lock).await.waiting == 1).await;
    }
    // Long enough for several looks.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    b.unlock().await.unwrap();
    let [last, next] = waits;
    let b = soon("the mutex", next).await.unwrap().unwrap();
    b.unlock().await.unwrap();
    c.unlock().await.unwrap();
    let c = soon("the other mutex", last).await.unwrap().unwrap();
    c.unlock().await.unwrap();
    free(&cx, &["a", "b", "c"]).await;
}

async fn by_hand_it_ends_with_the_timeout(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let a = mutex(&here, "a").lock().await.unwrap();
    let b = mutex(&there, "b").lock().await.unwrap();
    let timeout = Duration::from_millis(400);
    let (one, other) = (mutex(&here, "b"), mutex(&there, "a"));
    let outcomes = tokio::join!(one.lock_timeout(timeout), other.lock_timeout(timeout));
    for outcome in [outcomes.0, outcomes.1] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    assert!(!a.is_lost() && !b.is_lost());
    a.unlock().await.unwrap();
    b.unlock().await.unwrap();
    free(&cx, &["a", "b"]).await;
}

async fn transactions_in_opposite_order_end_in_one_error(cx: Context) {
    let (a, b) = (cx.mutex("a").await, cx.mutex("b").await);
    let (mut one, mut other) = (cx.begin().await.unwrap(), cx.begin().await.unwrap());
    one.lock_in(&a, MINUTE).await.unwrap();
    other.lock_in(&b, MINUTE).await.unwrap();
    let first = async {
        let outcome = one.lock_in(&b, MINUTE).await;
        one.rollback().await;
        outcome
    };
    let second = async {
        let outcome = other.lock_in(&a, MINUTE).await;
        other.rollback().await;
        outcome
    };
    let both = async { tokio::join!(first, second) };
    let outcomes = soon("both end", both).await;
    let errors: Vec<_> = [outcomes.0, outcomes.1]
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].kind(), ErrorKind::Deadlock, "{}", errors[0]);
    free(&cx, &["a", "b"]).await;
}
