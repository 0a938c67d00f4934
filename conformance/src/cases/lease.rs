//! What a lease promises about holding, expiring and changing hands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::lease::LeaseOptions;
use lockapi::{Error, ErrorKind};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, poll_then_drop, soon};

register! { "lease":
    L01 acquired_renewed_expired_reacquired;
    L02 live_one_is_not_given_away_and_an_expired_one_is;
    L03 renewal_after_expiry_is_lost_and_inserts_nothing;
    L03 renewal_after_takeover_is_lost;
    L04 release_by_the_old_holder_does_not_touch_the_new_one;
    L08 owner_and_data_are_readable;
    L08 minimum_hold_outlasts_an_early_release;
    L08 minimum_hold_does_not_prolong_a_late_release;
    L08 minimum_hold_does_not_keep_what_nobody_got [Futures];
    L10 ttl_outside_the_limits_is_invalid;
    L10 longest_and_shortest_ttl_are_exact;
    L13 waiter_is_granted_after_release;
    L13 waiter_is_granted_after_expiry_with_its_full_ttl;
    L13 timeout_is_kept_and_nothing_is_acquired_later;
    L14 run_exclusive_runs_one_and_skips_others;
    L14 work_is_dropped_when_the_lease_is_lost;
    L15 acquisitions_of_a_batch_exclude_each_other;
}

/// LeaseOptions that nobody renews.
fn by_hand(ttl: Duration) -> LeaseOptions {
    LeaseOptions::new(ttl).renewed_by_hand()
}

async fn acquired_renewed_expired_reacquired(cx: Context) {
    let lease = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    assert!(cx.lease("job").await.is_none());
    assert!(lease.peek().await.unwrap().is_none());
    let first = lease.try_acquire().await.unwrap().expect("free");
    assert_eq!(cx.holder("job").await.fence, first.fence().token());
    assert!(!first.is_lost());
    assert!(first.remaining() <= MINUTE.mul_f64(0.98));
    assert!(first.remaining() > MINUTE / 2);
    cx.elapse(MINUTE / 2).await;
    assert!(cx.holder("job").await.remaining < micros(MINUTE.mul_f64(0.6)));
    first.renew().await.unwrap();
    assert!(cx.holder("job").await.remaining > micros(MINUTE.mul_f64(0.9)));
    cx.elapse(MINUTE.mul_f64(0.9)).await;
    assert_eq!(cx.holder("job").await.fence, first.fence().token());
    cx.elapse(MINUTE).await;
    assert!(cx.lease("job").await.is_none());
    let second = lease.try_acquire().await.unwrap().expect("expired");
    assert!(second.fence().token() > first.fence().token());
    second.release().await.unwrap();
    assert!(cx.lease("job").await.is_none(), "free when release returns");
    let error = first.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap()
}

async fn live_one_is_not_given_away_and_an_expired_one_is(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let there = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let first = here.try_acquire().await.unwrap().expect("free");
    assert!(there.try_acquire().await.unwrap().is_none());
    assert!(here.try_acquire().await.unwrap().is_none(), "not reentrant");
    cx.elapse(MINUTE.mul_f64(0.95)).await;
    assert!(
        there.try_acquire().await.unwrap().is_none(),
        "not yet expired"
    );
    cx.elapse(MINUTE.mul_f64(0.05)).await;
    let second = there.try_acquire().await.unwrap().expect("expired");
    assert!(second.fence().token() > first.fence().token());
    assert_eq!(cx.holder("job").await.fence, second.fence().token());
    assert!(here.try_acquire().await.unwrap().is_none(), "held anew");
    second.release().await.unwrap();
}

async fn renewal_after_expiry_is_lost_and_inserts_nothing(cx: Context) {
    let lease = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let guard = lease.try_acquire().await.unwrap().expect("free");
    cx.elapse(MINUTE * 2).await;
    let error = guard.renew().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.key(), Some("job"));
    assert!(guard.is_lost());
    soon("told of the loss", guard.lost()).await;
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(cx.lease("job").await.is_none(), "not revived");
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    let next = lease.try_acquire().await.unwrap().expect("expired");
    next.release().await.unwrap();
}

async fn renewal_after_takeover_is_lost(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let there = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let stale = here.try_acquire().await.unwrap().expect("free");
    cx.elapse(MINUTE).await;
    let owner = there.try_acquire().await.unwrap().expect("expired");
    let before = cx.holder("job").await;
    cx.elapse(MINUTE / 2).await;
    assert_eq!(stale.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    let after = cx.holder("job").await;
    assert_eq!(after.fence, before.fence);
    assert!(after.remaining < before.remaining, "renewed by a stranger");
    owner.renew().await.unwrap();
    owner.release().await.unwrap();
}

async fn release_by_the_old_holder_does_not_touch_the_new_one(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let there = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let (told, dropped) = (
        here.try_acquire().await.unwrap().expect("free"),
        Duration::from_millis(50),
    );
    cx.elapse(MINUTE).await;
    let second = there.try_acquire().await.unwrap().expect("expired");
    assert_eq!(told.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(cx.holder("job").await.fence, second.fence().token());
    cx.elapse(MINUTE).await;
    let third = here.try_acquire().await.unwrap().expect("expired");
    drop(second);
    tokio::time::sleep(dropped).await;
    assert_eq!(cx.holder("job").await.fence, third.fence().token());
    third.release().await.unwrap();
}

async fn owner_and_data_are_readable(cx: Context) {
    let options = by_hand(MINUTE).owner("node-7").data(r#"{"port":8080}"#);
    let lease = cx.backend().await.lease("job", options).unwrap();
    let reader = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let guard = lease.acquire().await.unwrap();
    cx.elapse(MINUTE / 4).await;
    guard.renew().await.unwrap();
    cx.elapse(MINUTE / 4).await;
    let held = reader.peek().await.unwrap().expect("held");
    assert_eq!((&*held.owner, &*held.data), ("node-7", r#"{"port":8080}"#));
    assert_eq!(held.token, guard.fence().token());
    let around = |what: Duration, wanted: Duration| {
        assert!(
            what > wanted.mul_f64(0.9) && what < wanted.mul_f64(1.1),
            "{what:?}"
        );
    };
    around(held.age, MINUTE / 2);
    around(held.remaining, MINUTE.mul_f64(0.75));
    guard.release().await.unwrap();
    assert!(reader.peek().await.unwrap().is_none());
    let other = reader.acquire().await.unwrap();
    let held = reader.peek().await.unwrap().expect("held");
    assert_eq!(&*held.data, "", "not what the one before had left");
    assert_ne!(held.owner, "", "the default tells the process");
    other.release().await.unwrap();
}

async fn minimum_hold_outlasts_an_early_release(cx: Context) {
    let options = by_hand(MINUTE).minimum_hold(MINUTE / 2);
    let (here, there) = (cx.backend().await, cx.backend().await);
    let lease = here.lease("job", options.clone()).unwrap();
    let other = there.lease("job", options).unwrap();
    let guard = lease.acquire().await.unwrap();
    let token = guard.fence().token();
    guard.release().await.unwrap();
    let kept = other.peek().await.unwrap().expect("not free");
    assert!(kept.released, "nobody works on it");
    assert_eq!(kept.token, token);
    assert!(kept.remaining <= MINUTE / 2 && kept.remaining > MINUTE / 4);
    assert!(
        other.try_acquire().await.unwrap().is_none(),
        "kept from others"
    );
    assert!(
        lease.try_acquire().await.unwrap().is_none(),
        "kept from all"
    );
    cx.elapse(MINUTE / 2).await;
    assert!(other.peek().await.unwrap().is_none());
    let guard = other.try_acquire().await.unwrap().expect("free");
    assert!(guard.fence().token() > token);
    assert!(!other.peek().await.unwrap().expect("held").released);
    guard.release().await.unwrap();
    // Who has resigned does not lead, although nobody can follow yet.
    let options = by_hand(MINUTE).minimum_hold(MINUTE / 2);
    let election = here.election("seat", options).unwrap();
    let term = election.campaign().await.unwrap();
    assert!(election.leader().await.unwrap().is_some());
    term.release().await.unwrap();
    assert!(election.leader().await.unwrap().is_none());
    assert!(election.try_campaign().await.unwrap().is_none());
}

/// Whoever has left, at any moment, before he had the lease has done nothing under it.
async fn minimum_hold_does_not_keep_what_nobody_got(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    for polls in 1..8 {
        let key = format!("job {polls}");
        let hold = LeaseOptions::new(MINUTE).minimum_hold(MINUTE);
        let lease = here.lease(&*key, hold).unwrap();
        if let Some(granted) = poll_then_drop(lease.try_acquire(), polls).await {
            // So many polls are enough.
            assert!(granted.unwrap().is_some());
            break;
        }
        let other = there.lease(&*key, LeaseOptions::new(MINUTE)).unwrap();
        eventually("it is free", async || {
            other.try_acquire().await.unwrap().is_some()
        })
        .await;
    }
}

async fn minimum_hold_does_not_prolong_a_late_release(cx: Context) {
    let options = by_hand(MINUTE).minimum_hold(MINUTE / 4);
    let lease = cx.backend().await.lease("job", options).unwrap();
    let guard = lease.acquire().await.unwrap();
    cx.elapse(MINUTE / 2).await;
    guard.release().await.unwrap();
    let next = lease.try_acquire().await.unwrap();
    next.expect("free at once").release().await.unwrap();
}

async fn ttl_outside_the_limits_is_invalid(cx: Context) {
    let backend = cx.backend().await;
    let year = lockapi::lease::MAX_TTL;
    for ttl in [
        Duration::ZERO,
        Duration::from_micros(1),
        year + Duration::from_nanos(1),
        year * 10,
        Duration::MAX,
    ] {
        let error = backend.lease("job", LeaseOptions::new(ttl)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{ttl:?}");
        let hold = LeaseOptions::new(MINUTE).minimum_hold(ttl);
        if ttl > MINUTE {
            let error = backend.lease("job", hold).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "a hold of {ttl:?}");
        }
    }
    for options in [
        LeaseOptions::new(MINUTE).minimum_hold(MINUTE + Duration::from_nanos(1)),
        LeaseOptions::new(MINUTE).owner("o".repeat(256)),
        LeaseOptions::new(MINUTE).owner("o\0"),
        LeaseOptions::new(MINUTE).data("d".repeat(4097)),
        LeaseOptions::new(MINUTE).data("d\0"),
    ] {
        let error = backend.lease("job", options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

async fn longest_and_shortest_ttl_are_exact(cx: Context) {
    let backend = cx.backend().await;
    let longest = lockapi::lease::MAX_TTL;
    let options = by_hand(longest)
        .minimum_hold(longest)
        .owner("o".repeat(255))
        .data("d".repeat(4096));
    let guard = backend
        .lease("long", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let held = cx.holder("long").await;
    assert!(
        held.remaining > micros(longest.saturating_sub(MINUTE))
            && held.remaining <= micros(longest)
    );
    assert_eq!((held.owner.len(), held.data.len()), (255, 4096));
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let odd = Duration::from_micros(12_345_678_901);
    let guard = backend
        .lease("odd", by_hand(odd))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let held = cx.holder("odd").await;
    assert!(held.remaining + held.age <= micros(odd) + 1000, "{held:?}");
    assert!(held.remaining + held.age >= micros(odd) - 1000, "{held:?}");
    guard.release().await.unwrap();
    let mut shortest = lockapi::lease::MIN_TTL;
    // A grant that takes longer than it lasts is given back, and behind a proxy all of the shortest may.
    let guard = loop {
        let lease = backend.lease("short", by_hand(shortest)).unwrap();
        match lease.acquire().await {
            Ok(guard) => break guard,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        shortest += lockapi::lease::MIN_TTL;
    };
    soon("lost after its ttl", guard.lost()).await;
}

async fn waiter_is_granted_after_release(cx: Context) {
    for near in [true, false] {
        let backend = cx.backend().await;
        let other = if near {
            Arc::clone(&backend)
        } else {
            cx.backend().await
        };
        let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
        let waiter = other.lease("job", LeaseOptions::new(MINUTE)).unwrap();
        let guard = lease.acquire().await.unwrap();
        let waiting = tokio::spawn(async move { waiter.acquire().await });
        tokio::pin!(waiting);
        not_yet("acquired while another holds", &mut waiting).await;
        let token = guard.fence().token();
        guard.release().await.unwrap();
        let next = soon("the waiter", waiting).await.unwrap().unwrap();
        assert!(next.fence().token() > token);
        next.release().await.unwrap();
    }
}

async fn waiter_is_granted_after_expiry_with_its_full_ttl(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let there = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let stale = here.acquire().await.unwrap();
    // So that the waiter's first attempt is over when time moves.
    assert!(there.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { there.acquire().await });
    tokio::pin!(waiting);
    not_yet("acquired while another holds", &mut waiting).await;
    cx.elapse(MINUTE).await;
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(cx.holder("job").await.remaining > micros(MINUTE.mul_f64(0.8)));
    assert!(next.remaining() > MINUTE.mul_f64(0.8));
    assert!(next.fence().token() > stale.fence().token());
    next.release().await.unwrap();
}

async fn timeout_is_kept_and_nothing_is_acquired_later(cx: Context) {
    let here = cx.lease_of("job").await;
    let there = cx.lease_of("job").await;
    let guard = here.acquire().await.unwrap();
    let timeout = Duration::from_millis(1500);
    let start = Instant::now();
    let error = there.acquire_timeout(timeout).await.unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(took > timeout.mul_f64(0.97), "early: {took:?}");
    assert!(took < timeout.mul_f64(1.1), "late: {took:?}");
    guard.release().await.unwrap();
    // An attempt that was on its way may be granted; then it is given back, long before it expires.
    eventually("nobody holds it", async || cx.lease("job").await.is_none()).await;
    let guard = here.acquire_timeout(timeout).await.unwrap();
    guard.release().await.unwrap();
}

async fn run_exclusive_runs_one_and_skips_others(cx: Context) {
    let (here, there) = (cx.lease_of("job").await, cx.lease_of("job").await);
    let outcome = here
        .run_exclusive(async |fence| {
            let skipped = there
                .run_exclusive(async |_| -> Result<(), Error> { panic!("ran as well") })
                .await;
            assert!(skipped.unwrap().is_none());
            Ok::<_, Error>(fence.token())
        })
        .await;
    let token = outcome.unwrap().expect("it ran");
    assert!(cx.lease("job").await.is_none());
    let later = there
        .run_exclusive_wait(async |fence| Ok::<_, Error>(fence.token()))
        .await;
    assert!(later.unwrap() > token);
    let panicking = Arc::clone(&here);
    let panicked = tokio::spawn(async move {
        panicking
            .run_exclusive(async |_| -> Result<(), Error> { panic!("on purpose") })
            .await
    });
    assert!(panicked.await.unwrap_err().is_panic());
    eventually("released by the panic", async || {
        cx.lease("job").await.is_none()
    })
    .await;
}

async fn work_is_dropped_when_the_lease_is_lost(cx: Context) {
    let ttl = Duration::from_millis(1500);
    let lease = cx
        .backend()
        .await
        .lease("job", LeaseOptions::new(ttl))
        .unwrap();
    let (began, begun) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        lease
            .run_exclusive(async |_| {
                began.send(()).unwrap();
                std::future::pending::<Result<(), Error>>().await
            })
            .await
    });
    soon("it runs", begun).await.unwrap();
    cx.elapse(ttl * 2).await;
    let outcome = soon("the work is dropped", running).await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

async fn acquisitions_of_a_batch_exclude_each_other(cx: Context) {
    let backend = cx.backend().await;
    for round in 0..20 {
        let key = format!("job-{round}");
        let attempts = (0..16).map(|_| {
            let lease = backend.lease(&*key, LeaseOptions::new(MINUTE)).unwrap();
            tokio::spawn(async move { lease.try_acquire().await })
        });
        let mut guards = Vec::new();
        for attempt in attempts.collect::<Vec<_>>() {
            guards.extend(attempt.await.unwrap().unwrap());
        }
        assert_eq!(guards.len(), 1, "holders of {key}");
    }
}
