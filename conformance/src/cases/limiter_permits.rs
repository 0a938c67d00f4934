//! Permits of limits that are taken in advance: blocks and reservations.

use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::limit::{PermitRequest, Policy, Quota};

use super::limiter::HOUR;
use crate::context::Context;
use crate::harness::register;
use crate::patience::eventually;

register! { "limiter_permits":
    R12 blocks_never_admit_more;
    R12 block_that_lies_about_loses_its_worth;
    R12 block_of_a_window_ends_with_it;
    R12 unused_permits_are_given_back;
    R19 reservation_is_committed_in_part;
    R19 reservation_expires;
    R18 shadow_reserves_and_permits_and_never_refuses;
}

async fn blocks_never_admit_more(cx: Context) {
    let gcra = Quota::per_hour(1).burst(100);
    let window = Quota::per_hour(100).sliding_window();
    for (key, quota) in [("door", gcra), ("window", window)] {
        let request = PermitRequest::new(key).cost(15);
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let limiter = cx.backend().await.rate_limiter(quota).unwrap();
            let permits = limiter.permits(&request).unwrap();
            tasks.push(tokio::spawn(async move {
                let mut admitted = 0;
                for nth in 0..120 {
                    let ok = if nth % 10 == 0 {
                        limiter.check(key).await.unwrap().is_allowed()
                    } else {
                        permits.take().await.unwrap()
                    };
                    admitted += u64::from(ok);
                }
                assert!(!permits.try_now());
                admitted
            }));
        }
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.unwrap();
        }
        assert_eq!(admitted, 100, "{key}");
    }
}

async fn block_that_lies_about_loses_its_worth(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_second(20).burst(20))
        .unwrap();
    let permits = limiter
        .permits(&PermitRequest::new("door").cost(20))
        .unwrap();
    assert!(permits.take().await.unwrap());
    // So many have flowed back meanwhile, and may be taken by others.
    cx.pass(Duration::from_millis(500)).await;
    let left = (0..20).filter(|_| permits.try_now()).count();
    assert!(left <= 10, "{left}");
    cx.pass(Duration::from_secs(1)).await;
    assert!(!permits.try_now());
}

async fn block_of_a_window_ends_with_it(cx: Context) {
    let window = Quota::new(10, Duration::from_millis(200));
    for quota in [window.fixed_window(), window.sliding_window()] {
        let limiter = cx.backend().await.rate_limiter(quota).unwrap();
        let key = format!("{:?}", quota.algorithm());
        let permits = limiter
            .permits(&PermitRequest::new(&*key).cost(10))
            .unwrap();
        assert!(permits.take().await.unwrap());
        cx.pass(Duration::from_millis(250)).await;
        assert!(!permits.try_now(), "{key}");
    }
}

async fn unused_permits_are_given_back(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(100))
        .unwrap();
    let left = async || {
        limiter
            .peek(&PermitRequest::new("door"))
            .await
            .unwrap()
            .remaining()
    };
    let permits = limiter
        .permits(&PermitRequest::new("door").cost(30))
        .unwrap();
    assert!(!permits.try_now(), "nothing was asked for");
    assert_eq!(left().await, 100);
    assert!(permits.take().await.unwrap());
    assert_eq!(left().await, 70);
    assert!(permits.try_now() && permits.try_now());
    assert_eq!(left().await, 70, "no round trip");
    permits.give_back().await.unwrap();
    assert!(!permits.try_now());
    assert_eq!(left().await, 97);
    assert!(permits.take().await.unwrap());
    drop(permits);
    eventually("given back when dropped", async || left().await == 96).await;
    // As after a crash: what was taken in advance is lost to the caller.
    let lost = limiter
        .permits(&PermitRequest::new("door").cost(30))
        .unwrap();
    assert!(lost.take().await.unwrap());
    std::mem::forget(lost);
    assert_eq!(left().await, 66);
}

async fn reservation_is_committed_in_part(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_day(10)).unwrap();
    let windows = [
        Quota::per_day(10),
        Quota::per_day(10).fixed_window(),
        Quota::per_day(10).sliding_window(),
    ];
    for quota in windows {
        limiter.set_quota(quota).unwrap();
        let key = format!("{:?}", quota.algorithm());
        let request = PermitRequest::new(&*key).cost(6);
        let left = async || {
            limiter
                .peek(&PermitRequest::new(&*key))
                .await
                .unwrap()
                .remaining()
        };
        let reserved = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
        assert_eq!(reserved.decision().remaining(), 4);
        let refused = limiter.reserve(&request, HOUR).await.unwrap().unwrap_err();
        assert!(!refused.is_allowed() && refused.remaining() == 4);
        reserved.commit(1).await.unwrap();
        assert_eq!(left().await, 9, "{key}");
        let reserved = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
        let error = reserved.commit(7).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        eventually("cancelled", async || left().await == 9).await;
        let two = [request.clone().cost(2), request.clone().cost(3)];
        let one = limiter.reserve(&two[0], HOUR).await.unwrap().unwrap();
        let other = limiter.reserve(&two[1], HOUR).await.unwrap().unwrap();
        assert_eq!(left().await, 4);
        one.cancel().await.unwrap();
        assert_eq!(left().await, 6);
        drop(other);
        eventually("cancelled when dropped", async || left().await == 9).await;
        let row = cx.limit(&key).await.expect("a row");
        assert_eq!(row.reserved, 0);
    }
    let error = limiter
        .reserve(&PermitRequest::new("x"), Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

async fn reservation_expires(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::new(10, HOUR * 1000))
        .unwrap();
    let request = PermitRequest::new("door").cost(6);
    let reserved = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
    assert!(!limiter.check_cost("door", 6).await.unwrap().is_allowed());
    cx.elapse(HOUR + HOUR / 2).await;
    // Those who come after find it ended: by a check, and by several limits at once.
    assert!(limiter.check_cost("door", 6).await.unwrap().is_allowed());
    let error = reserved.commit(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    limiter.reset(&"door".into()).await.unwrap();
    std::mem::forget(limiter.reserve(&request, HOUR).await.unwrap().unwrap());
    cx.elapse(HOUR + HOUR / 2).await;
    let peeked = limiter.peek(&request).await.unwrap();
    assert!(peeked.is_allowed());
    std::mem::forget(limiter.reserve(&request, HOUR).await.unwrap().unwrap());
    cx.elapse(HOUR + HOUR / 2).await;
    let requests = [request, PermitRequest::new("other")];
    assert!(limiter.check_all(&requests).await.unwrap().is_allowed());
}

async fn shadow_reserves_and_permits_and_never_refuses(cx: Context) {
    let policy = Policy::new(Quota::per_day(4));
    let limiter = cx.backend().await.rate_limiter(policy.shadow()).unwrap();
    let left = async || {
        limiter
            .peek(&PermitRequest::new("door"))
            .await
            .unwrap()
            .remaining()
    };
    let request = PermitRequest::new("door").cost(3);
    let first = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
    assert!(first.decision().is_admitted());
    for end in 0..3 {
        let more = limiter.reserve(&request, HOUR).await.unwrap();
        let more = more.expect("it refuses nothing");
        assert!(more.decision().is_allowed() && !more.decision().is_admitted());
        assert!(!more.decision().retry_after().is_zero());
        match end {
            0 => more.commit(2).await.unwrap(),
            1 => more.cancel().await.unwrap(),
            _ => drop(more),
        }
        assert_eq!(left().await, 1, "what was never taken is not given back");
    }
    let more = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
    assert_eq!(more.commit(4).await.unwrap_err().kind(), ErrorKind::Invalid);
    first.commit(3).await.unwrap();
    let permits = limiter.permits(&PermitRequest::new("door")).unwrap();
    for _ in 0..3 {
        assert!(permits.take().await.unwrap());
    }
    assert!(!permits.try_now(), "nothing is at hand");
    assert_eq!(left().await, 0);
    // Without it the same is refused.
    let limiter = cx.backend().await.rate_limiter(policy).unwrap();
    let permits = limiter.permits(&PermitRequest::new("door")).unwrap();
    assert!(!permits.take().await.unwrap());
    assert!(limiter.reserve(&request, HOUR).await.unwrap().is_err());
}
