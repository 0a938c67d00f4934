//! Answers that come late or not at all, of leases and of deliveries.

use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::lease::LeaseOptions;
use lockapi::queue::Claim;
use tokio::runtime::Runtime;

use super::queue::job;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, poll_then_drop, soon};

register! { "lease":
    L06 lease_of_two_seconds_survives_a_silent_connection @ Own;
    L06 delivery_of_two_seconds_survives_a_silent_connection @ Own;
    L09 grant_that_comes_too_late_is_given_back @ Own;
    L13 waiter_behind_a_check_in_backs_off @ Own [Transactions, Sql];
    P13 permits_that_are_lost_in_part_are_given_back [Sql];
    V11 dropped_futures_of_a_dead_runtime_leave_nothing [Futures];
}

/// The shortest ttl that survives a silent connection.
const SHORT: Duration = Duration::from_secs(2);

/// Lets time go by in steps, as it does.
async fn pass_in_steps(cx: &Context, time: Duration) {
    const STEP: Duration = Duration::from_millis(50);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        cx.pass(STEP).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn lease_of_two_seconds_survives_a_silent_connection(cx: Context) {
    let lease = cx
        .backend()
        .await
        .lease("job", LeaseOptions::new(SHORT))
        .unwrap();
    let guard = lease.acquire().await.unwrap();
    // So that there is a connection for renewals that can fall silent.
    guard.renew().await.unwrap();
    for _ in 0..2 {
        cx.set_silent(true).await;
        pass_in_steps(&cx, SHORT + SHORT / 2).await;
        assert!(!guard.is_lost());
        cx.set_silent(false).await;
        // What the silent sessions were sent is done now: they are not to be stopped in the middle.
        pass_in_steps(&cx, SHORT).await;
    }
    assert_eq!(cx.holder("job").await.fence, guard.fence().token());
    guard.release().await.unwrap();
}

async fn delivery_of_two_seconds_survives_a_silent_connection(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push(job(1)).await.unwrap();
    let claim = Claim::new(1).lease(SHORT);
    let delivery = here.claim(&claim).await.unwrap().remove(0);
    delivery.extend(SHORT).await.unwrap();
    cx.set_silent(true).await;
    pass_in_steps(&cx, SHORT + SHORT / 2).await;
    assert!(!delivery.is_lost());
    cx.set_silent(false).await;
    assert!(there.claim(&claim).await.unwrap().is_empty());
    delivery.ack().await.unwrap();
}

async fn grant_that_comes_too_late_is_given_back(cx: Context) {
    let ttl = Duration::from_secs(4);
    let here = cx
        .backend()
        .await
        .lease("job", LeaseOptions::new(ttl))
        .unwrap();
    let there = cx
        .backend()
        .await
        .lease("job", LeaseOptions::new(ttl))
        .unwrap();
    here.acquire().await.unwrap().release().await.unwrap();
    there.acquire().await.unwrap().release().await.unwrap();
    cx.set_silent(true).await;
    let asking = tokio::spawn(async move { here.try_acquire().await });
    pass_in_steps(&cx, ttl).await;
    cx.set_silent(false).await;
    let error = soon("an answer", asking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.key(), Some("job"));
    let waiting = there.acquire_timeout(ttl / 2).await;
    waiting
        .expect("free long before its ttl")
        .release()
        .await
        .unwrap();
}

async fn waiter_behind_a_check_in_backs_off(cx: Context) {
    let here = cx.lease_of("job").await;
    let there = cx.lease_of("job").await;
    let guard = here.acquire().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&guard.fence()).await.unwrap();
    cx.elapse(MINUTE).await;
    assert!(there.try_acquire().await.unwrap().is_none(), "checked in");
    let waiting = tokio::spawn(async move { there.acquire().await });
    // Each attempt looks for the row in the primary key.
    let looks = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'lease_pkey'";
    let looks = async || cx.sql(looks).await[0].parse::<i64>().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = looks().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let looked = looks().await - before;
    // A pause of half a second on average, and four looks for each attempt.
    assert!((4..200).contains(&looked), "{looked} looks in 4 s");
    tx.commit().await;
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}

async fn permits_that_are_lost_in_part_are_given_back(cx: Context) {
    let backend = cx.backend().await;
    let options = LeaseOptions::new(MINUTE).renewed_by_hand();
    let semaphore = backend.semaphore("pool", 3, options).unwrap();
    let guard = semaphore.acquire_many(2).await.unwrap();
    let namespace = cx.namespace();
    // As after a person has given one of them to somebody else.
    let moved = format!(
        "UPDATE lockapi.lease SET fence = fence + 1024, acquisition = acquisition + 1, owner = 'other'
          WHERE namespace = '{namespace}' AND key = 'pool' AND slot = 1 RETURNING owner"
    );
    assert_eq!(cx.sql(&moved).await, ["other"]);
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(guard.is_lost());
    eventually("the other permit is free", async || {
        let slots = cx.slots("pool").await;
        slots.len() == 1 && slots[0].1.owner == "other"
    })
    .await;
    let both = semaphore.try_acquire_many(2).await.unwrap();
    both.expect("both are free").release().await.unwrap();
}

async fn dropped_futures_of_a_dead_runtime_leave_nothing(cx: Context) {
    for polls in 0..4 {
        let own = cx.clone();
        let dying = std::thread::spawn(move || {
            let runtime = Runtime::new().unwrap();
            let held = runtime.block_on(async {
                let backend = own.backend().await;
                let lease = backend.lease("held", LeaseOptions::new(MINUTE)).unwrap();
                (lease.acquire().await.unwrap(), backend)
            });
            // Its tasks are gone when this returns.
            runtime.shutdown_timeout(MINUTE);
            held
        });
        let (guard, backend) = dying.join().unwrap();
        let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
        let semaphore = backend
            .semaphore("pool", 2, LeaseOptions::new(MINUTE))
            .unwrap();
        let election = backend.election("seat", LeaseOptions::new(MINUTE)).unwrap();
        let mutex = backend
            .leased_mutex("door", LeaseOptions::new(MINUTE))
            .unwrap();
        // A backend that has threads of its own does not even notice.
        let dead = soon("an answer", lease.try_acquire()).await.is_err();
        macro_rules! ends {
            ($($work:expr),* $(,)?) => {$(
                if let Some(outcome) = poll_then_drop($work, polls).await {
                    assert_eq!(outcome.is_err(), dead, stringify!($work));
                }
                let outcome = soon("an answer", $work).await;
                assert_eq!(outcome.is_err(), dead, stringify!($work));
                if let Err(error) = &outcome {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                }
                drop(outcome);
            )*};
        }
        ends!(
            lease.try_acquire(),
            lease.acquire(),
            lease.acquire_timeout(MINUTE),
            lease.peek(),
            semaphore.try_acquire_many(2),
            semaphore.acquire_many(2),
            semaphore.acquire_many_timeout(2, MINUTE),
            election.try_campaign(),
            election.campaign(),
            election.campaign_timeout(MINUTE),
            election.leader(),
            mutex.try_lock(),
            mutex.lock(),
            mutex.lock_timeout(MINUTE),
            guard.renew(),
        );
        let mut observer = election.observe();
        let seen = soon("an answer", observer.next()).await;
        assert_eq!(seen.is_err(), dead);
        assert!(!guard.is_lost(), "unknown is not lost");
        assert_eq!(soon("an answer", guard.release()).await.is_err(), dead);
        for key in ["job", "pool", "seat", "door"] {
            let none = async || cx.slots(key).await.is_empty();
            eventually("nothing is held", none).await;
        }
        cx.elapse(MINUTE).await;
    }
}
