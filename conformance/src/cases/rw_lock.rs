//! What locks promise that readers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::{ErrorKind, RwLock};
use tokio::sync::mpsc;

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "rw_lock":
    M17 readers_share_and_a_writer_is_alone;
    M17 readers_of_a_process_hold_one_lock;
    M17 writer_and_mutex_of_a_key_exclude_each_other;
    M17 readers_behind_a_writer_share;
    M17 served_in_order_of_arrival;
    M17 waiting_writer_of_another_process_is_not_starved;
    M17 waiting_reader_of_another_process_is_not_starved;
    M17 readers_go_on_when_the_writer_before_them_left;
    M17 readers_never_see_half_a_write;
    M17 timeouts_are_kept_and_nothing_is_held_later;
    M09 writers_have_fences_that_increase;
    M11 readers_are_lost_with_their_session;
    V11 dropped_reader_leaves;
}

async fn free(cx: &Context) {
    let lock = cx.lock_id("door");
    eventually("nobody holds it or waits for it", async || {
        cx.locks(lock).await == Locks::NONE
    })
    .await;
}

async fn readers_share_and_a_writer_is_alone(cx: Context) {
    let (here, there) = (cx.rw_lock("door").await, cx.rw_lock("door").await);
    let lock = cx.lock_id("door");
    let one = here.read().await.unwrap();
    let two = soon("another of the process", here.read()).await.unwrap();
    let three = soon("another process", there.read()).await.unwrap();
    let four = there.try_read().await.unwrap().expect("shared");
    assert_eq!(cx.locks(lock).await.granted, 2, "once for each process");
    for lock in [&here, &there] {
        assert!(lock.try_write().await.unwrap().is_none());
    }
    let writing = tokio::spawn({
        let there = Arc::clone(&there);
        async move { there.write().await }
    });
    tokio::pin!(writing);
    not_yet("granted beside readers", &mut writing).await;
    for guard in [one, two, three] {
        guard.unlock().await.unwrap();
    }
    not_yet("granted beside a reader", &mut writing).await;
    four.unlock().await.unwrap();
    let writer = soon("the writer", writing).await.unwrap().unwrap();
    for lock in [&here, &there] {
        assert!(lock.try_read().await.unwrap().is_none());
        assert!(lock.try_write().await.unwrap().is_none());
    }
    writer.unlock().await.unwrap();
    let reader = soon("a reader again", here.read()).await.unwrap();
    reader.unlock().await.unwrap();
    assert_eq!(
        cx.locks(lock).await,
        Locks::NONE,
        "free when unlock returns"
    );
}

async fn readers_of_a_process_hold_one_lock(cx: Context) {
    let door = cx.rw_lock("door").await;
    let lock = cx.lock_id("door");
    let reading = join_all((0..256).map(|_| door.read()));
    let readers = soon("all readers", reading).await;
    let mut readers: Vec<_> = readers.into_iter().map(Result::unwrap).collect();
    assert_eq!(cx.locks(lock).await.granted, 1);
    let last = readers.pop().unwrap();
    for unlocked in join_all(readers.into_iter().map(lockapi::ReadGuard::unlock)).await {
        unlocked.unwrap();
    }
    assert_eq!(cx.locks(lock).await.granted, 1, "one still reads");
    assert!(!last.is_lost());
    last.unlock().await.unwrap();
    assert_eq!(cx.locks(lock).await, Locks::NONE);
}

async fn writer_and_mutex_of_a_key_exclude_each_other(cx: Context) {
    for key in ["door".into(), lockapi::Key::from((7, fastrand::i32(..)))] {
        let (here, there) = (cx.backend().await, cx.backend().await);
        for (one, other) in [(&here, &there), (&here, &here)] {
            let door = one.rw_lock(&key).unwrap();
            let mutex = other.mutex(&key).unwrap();
            let writer = soon("the writer", door.write()).await.unwrap();
            assert!(mutex.try_lock().await.unwrap().is_none());
            writer.unlock().await.unwrap();
            let reader = soon("the reader", door.read()).await.unwrap();
            assert!(mutex.try_lock().await.unwrap().is_none());
            reader.unlock().await.unwrap();
            let guard = soon("the mutex", mutex.lock()).await.unwrap();
            assert!(door.try_write().await.unwrap().is_none());
            assert!(door.try_read().await.unwrap().is_none());
            guard.unlock().await.unwrap();
        }
    }
}

async fn readers_behind_a_writer_share(cx: Context) {
    let door = cx.rw_lock("door").await;
    let writer = door.write().await.unwrap();
    let mut reading = join_all([door.read(), door.read()]);
    // Soon after the writer came, so that the lock is passed on within the process.
    assert!(futures_util::poll!(&mut reading).is_pending());
    writer.unlock().await.unwrap();
    let readers = soon("both at once", reading).await;
    for reader in readers {
        reader.unwrap().unlock().await.unwrap();
    }
}

async fn served_in_order_of_arrival(cx: Context) {
    let door = cx.rw_lock("door").await;
    let first = door.read().await.unwrap();
    let (sender, mut order) = mpsc::unbounded_channel();
    for (nth, writes) in [true, false, false, true, false].into_iter().enumerate() {
        let (door, sender) = (Arc::clone(&door), sender.clone());
        tokio::spawn(async move {
            if writes {
                let guard = door.write().await.unwrap();
                sender.send(nth).unwrap();
                guard.unlock().await.unwrap();
            } else {
                let guard = door.read().await.unwrap();
                sender.send(nth).unwrap();
                guard.unlock().await.unwrap();
            }
        });
        // Long enough for it to have arrived.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        door.try_read().await.unwrap().is_none(),
        "a writer came before"
    );
    not_yet("served beside a reader", order.recv()).await;
    first.unlock().await.unwrap();
    let mut served = Vec::new();
    for _ in 0..5 {
        served.push(soon("the next", order.recv()).await.unwrap());
    }
    // The two readers between the writers hold it together.
    served[1..3].sort_unstable();
    assert_eq!(served, [0, 1, 2, 3, 4]);
}

/// Two readers of a program, of whom one always holds the lock: each unlocks when the other has it,
/// or else after a second.
fn always_read(door: &Arc<dyn RwLock>) -> tokio::task::JoinSet<()> {
    let (one, other) = (mpsc::channel(1), mpsc::channel(1));
    let mut readers = tokio::task::JoinSet::new();
    for (told, mut hears) in [(one.0, other.1), (other.0, one.1)] {
        let door = Arc::clone(door);
        readers.spawn(async move {
            loop {
                let reader = door.read().await.unwrap();
                // A full channel has told it before.
                let _full = told.try_send(());
                let heard = tokio::time::timeout(Duration::from_secs(1), hears.recv());
                let _neither = heard.await;
                reader.unlock().await.unwrap();
            }
        });
    }
    readers
}

async fn waiting_writer_of_another_process_is_not_starved(cx: Context) {
    let (here, there) = (cx.rw_lock("door").await, cx.rw_lock("door").await);
    let mut readers = always_read(&here);
    let lock = cx.lock_id("door");
    eventually("they read", async || cx.locks(lock).await.granted == 1).await;
    for _ in 0..2 {
        let writer = soon("the writer's turn", there.write()).await.unwrap();
        writer.unlock().await.unwrap();
    }
    // The same for one who waits for the mutex.
    let mutex = cx.mutex("door").await;
    let guard = soon("the mutex's turn", mutex.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    readers.abort_all();
}

async fn waiting_reader_of_another_process_is_not_starved(cx: Context) {
    let (here, there) = (cx.rw_lock("door").await, cx.rw_lock("door").await);
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let door = Arc::clone(&here);
        writers.spawn(async move {
            loop {
                let guard = door.write().await.unwrap();
                tokio::task::yield_now().await;
                guard.unlock().await.unwrap();
            }
        });
    }
    let lock = cx.lock_id("door");
    eventually("they write", async || cx.locks(lock).await.granted == 1).await;
    for _ in 0..3 {
        for door in [&there, &here] {
            let reader = soon("a reader's turn", door.read()).await.unwrap();
            reader.unlock().await.unwrap();
        }
    }
    writers.abort_all();
}

async fn readers_go_on_when_the_writer_before_them_left(cx: Context) {
    let door = cx.rw_lock("door").await;
    let first = door.read().await.unwrap();
    let writing = tokio::spawn({
        let door = Arc::clone(&door);
        async move { door.write_timeout(Duration::from_secs(3)).await }
    });
    eventually("the writer waits", async || {
        door.try_read().await.unwrap().is_none()
    })
    .await;
    let second = soon("the reader behind it", door.read()).await.unwrap();
    let error = soon("the writer's end", writing)
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(!first.is_lost() && !second.is_lost());
    first.unlock().await.unwrap();
    second.unlock().await.unwrap();
    free(&cx).await;
}

async fn readers_never_see_half_a_write(cx: Context) {
    const ROUNDS: usize = 100;
    let doors = [cx.rw_lock("door").await, cx.rw_lock("door").await];
    let halves = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..16 {
        let (door, halves) = (Arc::clone(&doors[nth % 2]), Arc::clone(&halves));
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                if (nth / 2 + round) % 4 == 0 {
                    let guard = door.write().await.unwrap();
                    for half in &*halves {
                        let read = half.load(Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        half.store(read + 1, Ordering::Relaxed);
                    }
                    guard.unlock().await.unwrap();
                } else {
                    let guard = door.read().await.unwrap();
                    let [one, other] = &*halves;
                    let one = one.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    assert_eq!(one, other.load(Ordering::Relaxed), "half a write");
                    guard.unlock().await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let written = 16 * ROUNDS / 4;
    for half in &*halves {
        assert_eq!(half.load(Ordering::Relaxed), written);
    }
}

async fn timeouts_are_kept_and_nothing_is_held_later(cx: Context) {
    let (here, there) = (cx.rw_lock("door").await, cx.rw_lock("door").await);
    let short = Duration::from_millis(300);
    let reader = here.read_timeout(Duration::ZERO).await.unwrap();
    for door in [&here, &there] {
        let error = door.write_timeout(short).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.key(), Some("door"));
        let error = door.write_timeout(Duration::ZERO).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
    reader.unlock().await.unwrap();
    let writer = here.write_timeout(MINUTE).await.unwrap();
    for door in [&here, &there] {
        let error = door.read_timeout(short).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
    writer.unlock().await.unwrap();
    free(&cx).await;
    for door in [&here, &there] {
        let reader = door.read_timeout(MINUTE).await.unwrap();
        reader.unlock().await.unwrap();
    }
}

async fn writers_have_fences_that_increase(cx: Context) {
    let (here, there) = (cx.rw_lock("door").await, cx.rw_lock("door").await);
    let mutex = cx.mutex("door").await;
    let mut last = 0;
    for nth in 0..9 {
        let guard = match nth % 3 {
            0 => here.write().await,
            1 => mutex.lock().await,
            _ => there.write().await,
        };
        let guard = guard.unwrap();
        assert!(guard.fence().token() > last);
        last = guard.fence().token();
        guard.unlock().await.unwrap();
        here.read().await.unwrap().unlock().await.unwrap();
    }
}

async fn readers_are_lost_with_their_session(cx: Context) {
    let (here, there) = (cx.rw_lock("door").await, cx.rw_lock("door").await);
    let (one, two) = (here.read().await.unwrap(), here.read().await.unwrap());
    cx.sever().await;
    soon("told of the loss", one.lost()).await;
    soon("told of the loss", two.lost()).await;
    let writer = soon("the writer", there.write()).await.unwrap();
    for guard in [one, two] {
        assert!(guard.is_lost());
        assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    }
    assert!(here.try_read().await.unwrap().is_none(), "a stale unlock");
    writer.unlock().await.unwrap();
    let reader = soon("a reader again", here.read()).await.unwrap();
    reader.unlock().await.unwrap();
}

async fn dropped_reader_leaves(cx: Context) {
    let backend = cx.backend().await;
    let door = backend.rw_lock("door").unwrap();
    let (one, two) = (door.read().await.unwrap(), door.read().await.unwrap());
    std::thread::spawn(move || drop(one)).join().unwrap();
    assert_eq!(cx.locks(cx.lock_id("door")).await.granted, 1);
    let panicked = tokio::spawn(async move {
        let _guard = two;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    free(&cx).await;
}
