//! Other processes, and what happens when they are killed or stopped.

use std::fs;
use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::lease::LeaseOptions;

use super::Role;
use crate::child::Parent;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "processes":
    M06 unprotected_counter_is_exact [Processes];
    M09 fences_increase_over_processes [Processes];
    M12 killed_holder_is_replaced [Processes];
    M12 killed_waiter_does_not_keep_its_place [Processes];
    L01 killed_holder_is_replaced_after_its_ttl [Processes];
    L11 stopped_holder_cannot_write [Processes, Transactions];
}

pub(super) const ROLES: &[(&str, Role)] = &[
    ("count", |cx, arguments, parent| {
        Box::pin(count(cx, arguments, parent))
    }),
    ("lock", |cx, arguments, parent| {
        Box::pin(lock(cx, arguments, parent))
    }),
    ("lease", |cx, arguments, parent| {
        Box::pin(lease(cx, arguments, parent))
    }),
    ("flood", |cx, arguments, parent| {
        Box::pin(super::limiter_load::flood(cx, arguments, parent))
    }),
];

/// Increments the number in a file, so many times, under a mutex.
async fn count(cx: Context, arguments: Vec<String>, parent: Parent) {
    let mutex = cx.mutex("door").await;
    let rounds: usize = arguments[1].parse().unwrap();
    for _ in 0..rounds {
        let guard = mutex.lock().await.unwrap();
        let number: usize = fs::read_to_string(&arguments[0]).unwrap().parse().unwrap();
        fs::write(&arguments[0], (number + 1).to_string()).unwrap();
        guard.unlock().await.unwrap();
    }
    parent.say("done");
}

/// Says when it starts to wait for a mutex and with which token it got it; unlocks when told.
async fn lock(cx: Context, _: Vec<String>, mut parent: Parent) {
    let mutex = cx.mutex("door").await;
    parent.say("waiting");
    let guard = mutex.lock().await.unwrap();
    parent.say(guard.fence());
    parent.line().await;
    guard.unlock().await.unwrap();
    parent.say("unlocked");
    parent.line().await;
}

/// Acquires a lease and then, whenever it is told, tries to write as its holder.
async fn lease(cx: Context, arguments: Vec<String>, mut parent: Parent) {
    let ttl = Duration::from_millis(arguments[0].parse().unwrap());
    let lease = cx
        .backend()
        .await
        .lease("job", LeaseOptions::new(ttl))
        .unwrap();
    let guard = lease.acquire().await.unwrap();
    parent.say(guard.fence());
    loop {
        parent.line().await;
        let mut tx = cx.begin().await.unwrap();
        let outcome = tx.check_in(&guard.fence()).await;
        // A writer that is stopped inside its transaction keeps the lease for as long.
        tx.rollback().await;
        match outcome {
            Ok(()) => parent.say("written"),
            Err(error) => parent.say(format!("{:?}", error.kind())),
        }
    }
}

async fn unprotected_counter_is_exact(cx: Context) {
    let file = std::env::temp_dir().join(format!("lockapi-count-{:016x}", fastrand::u64(..)));
    let path = file.to_str().unwrap();
    fs::write(&file, "0").unwrap();
    let mut children: Vec<_> = (0..4).map(|_| cx.child("count", &[path, "250"])).collect();
    for child in &mut children {
        assert_eq!(child.line().await, "done");
    }
    let number = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(number, "1000");
}

async fn fences_increase_over_processes(cx: Context) {
    let mutex = cx.mutex("door").await;
    let mut last = 0;
    for _ in 0..2 {
        let mut child = cx.child("lock", &[]);
        assert_eq!(child.line().await, "waiting");
        let token: i64 = child.line().await.parse().unwrap();
        assert!(token > last);
        child.tell("unlock");
        assert_eq!(child.line().await, "unlocked");
        let guard = mutex.lock().await.unwrap();
        assert!(guard.fence().token() > token);
        last = guard.fence().token();
        guard.unlock().await.unwrap();
    }
}

async fn killed_holder_is_replaced(cx: Context) {
    let mutex = cx.mutex("door").await;
    let mut holder = cx.child("lock", &[]);
    assert_eq!(holder.line().await, "waiting");
    let token: i64 = holder.line().await.parse().unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::pin!(waiting);
    not_yet("granted while a process holds", &mut waiting).await;
    holder.kill();
    let guard = soon("the next holder", waiting).await.unwrap().unwrap();
    assert!(guard.fence().token() > token);
    guard.unlock().await.unwrap();
}

async fn killed_waiter_does_not_keep_its_place(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let lock = cx.lock_id("door");
    let guard = here.lock().await.unwrap();
    let mut first = cx.child("lock", &[]);
    assert_eq!(first.line().await, "waiting");
    eventually("it waits at the server", async || {
        cx.locks(lock).await.waiting == 1
    })
    .await;
    let waiting = tokio::spawn(async move { there.lock().await });
    eventually("both wait", async || cx.locks(lock).await.waiting == 2).await;
    first.kill();
    guard.unlock().await.unwrap();
    let next = soon("the waiter that lives", waiting)
        .await
        .unwrap()
        .unwrap();
    next.unlock().await.unwrap();
    eventually("nobody waits any more", async || {
        cx.locks(lock).await == crate::fixture::Locks::NONE
    })
    .await;
}

async fn killed_holder_is_replaced_after_its_ttl(cx: Context) {
    let lease = cx.lease_of("job").await;
    let mut holder = cx.child("lease", &["60000"]);
    let token: i64 = holder.line().await.parse().unwrap();
    holder.kill();
    assert!(
        lease.try_acquire().await.unwrap().is_none(),
        "not before its end"
    );
    cx.elapse(MINUTE).await;
    let guard = lease.try_acquire().await.unwrap().expect("expired");
    assert!(guard.fence().token() > token);
    guard.release().await.unwrap();
}

async fn stopped_holder_cannot_write(cx: Context) {
    let lease = cx.lease_of("job").await;
    let mut holder = cx.child("lease", &["60000"]);
    let token: i64 = holder.line().await.parse().unwrap();
    holder.tell("write");
    assert_eq!(holder.line().await, "written");
    holder.pause();
    cx.elapse(MINUTE).await;
    let guard = lease.try_acquire().await.unwrap().expect("expired");
    assert!(guard.fence().token() > token);
    holder.resume();
    holder.tell("write");
    assert_eq!(holder.line().await, format!("{:?}", ErrorKind::Lost));
    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&guard.fence()).await.unwrap();
    tx.commit().await;
    guard.release().await.unwrap();
}
