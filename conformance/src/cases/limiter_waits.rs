//! Waiting for limits, and leaving before the answer is there.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::ErrorKind;
use lockapi::limit::{Decision, PermitRequest, Policy, Quota};

use super::limiter::HOUR;
use crate::context::Context;
use crate::harness::register;
use crate::patience::{eventually, not_yet, poll_then_drop, soon};

register! { "limiter_waits":
    R15 waiters_are_admitted_in_order [Futures];
    R15 wait_that_will_not_do_ends_at_once;
    R15 dropped_waiter_takes_nothing [Futures];
    R15 reset_ends_a_wait [Futures];
    R15 thousands_are_admitted_together;
    R15 nobody_waits_for_another_policy [Futures];
    R15 waiters_that_leave_take_nothing [Futures];
    R15 changed_quota_applies_to_those_who_wait [Futures];
    V08 check_dropped [Futures];
    V08 checks_dropped_between_their_answers [Futures, Transactions];
    V08 what_is_given_back_is_so_when_dropped [Futures];
}

async fn waiters_are_admitted_in_order(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_second(50).burst(5))
        .unwrap();
    assert!(limiter.check_cost("door", 5).await.unwrap().is_allowed());
    let order = Mutex::new(Vec::new());
    let wait = async |nth: usize| {
        // The first wants the most, and is not overtaken by those that want less.
        let request = PermitRequest::new("door").cost(if nth == 0 { 5 } else { 1 });
        let decision = limiter
            .until_ready(&request, Duration::from_mins(1))
            .await
            .unwrap();
        assert!(decision.is_allowed());
        order.lock().unwrap().push(nth);
    };
    // They are polled for the first time in this order.
    soon("all are admitted", join_all((0..8).map(wait))).await;
    let order = order.into_inner().unwrap();
    assert_eq!(order, (0..8).collect::<Vec<_>>());
}

async fn reset_ends_a_wait(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(1)).unwrap();
    assert!(limiter.check("door").await.unwrap().is_admitted());
    let request = PermitRequest::new("door");
    let waiting = limiter.until_ready(&request, Duration::from_hours(24));
    let (admitted, ()) = tokio::join!(soon("admitted", waiting), async {
        limiter.reset(&"door".into()).await.unwrap();
        // It looks again in a second.
        cx.elapse(Duration::from_secs(2)).await;
    });
    assert!(admitted.unwrap().is_allowed());
}

/// They need not one statement each.
async fn thousands_are_admitted_together(cx: Context) {
    const MANY: usize = 1000;
    const LIMIT: u64 = 2000;
    for quota in [
        Quota::per_day(1).burst(LIMIT),
        Quota::per_day(LIMIT).fixed_window(),
    ] {
        let limiter = cx.backend().await.rate_limiter(quota).unwrap();
        let key = format!("{:?}", quota.algorithm());
        let cost = |nth: usize| if nth.is_multiple_of(3) { 2 } else { 1 };
        let request = |nth: usize| PermitRequest::new(&*key).cost(cost(nth));
        let waits = (0..MANY).map(async |nth| {
            let request = request(nth);
            limiter.until_ready(&request, Duration::from_mins(1)).await
        });
        let decisions = soon("all are admitted", join_all(waits)).await;
        let decisions: Vec<_> = decisions.into_iter().map(Result::unwrap).collect();
        let times: HashSet<_> = decisions.iter().map(Decision::taken_at).collect();
        let together = times.len() < MANY / 5 || !cx.calls_arrive_together();
        assert!(together, "{} statements", times.len());
        // Each was told what is left behind it.
        let mut left: Vec<_> = decisions.iter().map(Decision::remaining).collect();
        left.sort_unstable();
        left.dedup();
        assert_eq!(left.len(), MANY);
        for (nth, decision) in decisions.iter().enumerate() {
            assert!(decision.is_admitted() && decision.cost() == cost(nth));
        }
        let sum: u64 = decisions.iter().map(Decision::cost).sum();
        assert_eq!(left[0], LIMIT - sum);
        assert_eq!(
            limiter.peek(&request(1)).await.unwrap().remaining(),
            left[0]
        );
    }
}

/// A shadow refuses nothing, and another quota is another wait.
async fn nobody_waits_for_another_policy(cx: Context) {
    let backend = cx.backend().await;
    let quota = Quota::per_hour(1);
    let strict = backend.rate_limiter(quota).unwrap();
    let shadow = backend.rate_limiter(Policy::new(quota).shadow()).unwrap();
    let request = PermitRequest::new("door");
    assert!(strict.check("door").await.unwrap().is_admitted());
    let day = Duration::from_hours(24);
    let mut waiting = Box::pin(strict.until_ready(&request, day));
    not_yet("there is no room", &mut waiting).await;
    let others = async {
        for _ in 0..3 {
            let ready = shadow.until_ready(&request, day).await.unwrap();
            assert!(ready.is_allowed() && !ready.is_admitted());
        }
        let wide = request.clone().quota(Quota::per_hour(1).burst(100));
        let ready = strict.until_ready(&wide, day).await.unwrap();
        assert!(ready.is_admitted());
    };
    tokio::select! {
        () = soon("they do not wait", others) => (),
        _ = &mut waiting => panic!("there is no room"),
    }
}

/// Also when it is the one that asks for those behind it.
async fn waiters_that_leave_take_nothing(cx: Context) {
    let quota = Quota::per_day(1).burst(100);
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    let request = PermitRequest::new("door");
    let waiters: Vec<_> = (0..60)
        .map(|_| {
            let (limiter, request) = (limiter.clone(), request.clone());
            tokio::spawn(async move {
                let day = Duration::from_hours(24);
                limiter.until_ready(&request, day).await.unwrap().cost()
            })
        })
        .collect();
    let mut taken = 0;
    for (nth, waiter) in waiters.into_iter().enumerate() {
        if nth % 2 == 0 {
            waiter.abort();
        }
        if let Ok(cost) = soon("nobody is in the way", waiter).await {
            taken += cost;
        }
    }
    assert!(taken >= 30);
    eventually("what nobody got is there", async || {
        limiter.peek(&request).await.unwrap().remaining() + taken == 100
    })
    .await;
}

async fn changed_quota_applies_to_those_who_wait(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(1)).unwrap();
    let request = PermitRequest::new("door");
    assert!(limiter.check("door").await.unwrap().is_admitted());
    let day = Duration::from_hours(24);
    let waits = join_all((0..4).map(|_| limiter.until_ready(&request, day)));
    let mut waiting = Box::pin(waits);
    not_yet("there is no room", &mut waiting).await;
    limiter.set_quota(Quota::per_hour(1).burst(100)).unwrap();
    // It looks again in a second.
    cx.elapse(Duration::from_secs(2)).await;
    for ready in soon("there is room", waiting).await {
        assert!(ready.unwrap().is_admitted());
    }
    let large = request.cost(90);
    let mut waiting = limiter.until_ready(&large, day * 30);
    assert!(limiter.check_cost("door", 90).await.unwrap().is_admitted());
    not_yet("there is no room", &mut waiting).await;
    limiter.set_quota(Quota::per_hour(10)).unwrap();
    cx.elapse(Duration::from_secs(2)).await;
    let error = soon("it never fits", waiting).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::Invalid, "until_ready")
    );
}

async fn wait_that_will_not_do_ends_at_once(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(1)).unwrap();
    let request = PermitRequest::new("door");
    let day = Duration::from_hours(24);
    let ready = limiter
        .until_ready(&request, Duration::from_mins(1))
        .await
        .unwrap();
    assert!(ready.is_allowed());
    let waiting = limiter.until_ready(&request, HOUR / 2);
    let error = soon("it is clear that it will not do", waiting)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::TimedOut, "until_ready")
    );
    assert_eq!(error.key(), Some("door"));
    let error = limiter
        .until_ready(&request.clone().cost(2), day)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "it would wait for ever");
}

async fn dropped_waiter_takes_nothing(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(2))
        .unwrap();
    let request = PermitRequest::new("door").cost(2);
    let time = Duration::from_hours(24);
    assert!(limiter.check("door").await.unwrap().is_allowed());
    let mut first = Box::pin(limiter.until_ready(&request, time));
    let mut second = Box::pin(limiter.until_ready(&request, time));
    for waiter in [&mut first, &mut second] {
        not_yet("admitted", waiter).await;
    }
    drop(first);
    drop(second);
    cx.elapse(HOUR).await;
    let next = limiter.until_ready(&request, time);
    assert!(
        soon("nobody is in the way", next)
            .await
            .unwrap()
            .is_allowed()
    );
}

async fn check_dropped(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(9))
        .unwrap();
    let requests = [PermitRequest::new("door"), PermitRequest::new("other")];
    let left = async || {
        let decisions = requests.iter().map(|request| limiter.peek(request));
        let left = join_all(decisions).await;
        left.into_iter()
            .map(|one| one.unwrap().remaining())
            .collect::<Vec<_>>()
    };
    for polls in 0..4 {
        let mut taken = 0;
        taken += u64::from(poll_then_drop(limiter.check("door"), polls).await.is_some());
        let verdict = poll_then_drop(limiter.check_all(&requests), polls).await;
        taken += u64::from(verdict.is_some());
        let reserved = poll_then_drop(limiter.reserve(&requests[0], HOUR), polls).await;
        drop(reserved);
        let permits = limiter
            .permits(&PermitRequest::new("door").cost(5))
            .unwrap();
        let permit = poll_then_drop(permits.take(), polls).await;
        taken += u64::from(permit.is_some());
        drop(permits);
        let rest = [9 - taken, 9 - u64::from(verdict.is_some())];
        eventually("what nobody waits for is given back", async || {
            left().await == rest
        })
        .await;
        for request in ["door", "other"] {
            limiter.reset(&request.into()).await.unwrap();
        }
    }
}

async fn checks_dropped_between_their_answers(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(9)).unwrap();
    let keys = ["one", "two", "three", "four", "held"];
    let mut tx = cx.begin().await.unwrap();
    let held = tx
        .check_all_in(&limiter, &[PermitRequest::new("held")])
        .await;
    assert!(held.unwrap().is_allowed());
    // Some keys do not travel with the one that waits for the transaction.
    let requests = keys.map(|key| [PermitRequest::new(key), PermitRequest::new("held")]);
    let checks = join_all(requests.iter().map(|requests| limiter.check_each(requests)));
    not_yet("the transaction is open", checks).await;
    tx.rollback().await;
    for key in keys {
        let request = PermitRequest::new(key);
        eventually("what nobody was told of is given back", async || {
            limiter.peek(&request).await.unwrap().remaining() == 9
        })
        .await;
    }
}

async fn what_is_given_back_is_so_when_dropped(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(20))
        .unwrap();
    let left = async |key: &str| {
        limiter
            .peek(&PermitRequest::new(key))
            .await
            .unwrap()
            .remaining()
    };
    // Those of one key that travel together are done one after the other.
    let checks = join_all((0..8).map(|_| limiter.check("door"))).await;
    for decision in checks {
        poll_then_drop(limiter.refund(&decision.unwrap()), 1).await;
    }
    eventually("given back", async || left("door").await == 20).await;
    let request = PermitRequest::new("desk").cost(2);
    let reserved = join_all((0..8).map(|_| limiter.reserve(&request, HOUR))).await;
    assert_eq!(left("desk").await, 4);
    for one in reserved {
        poll_then_drop(one.unwrap().unwrap().commit(1), 1).await;
    }
    eventually("committed", async || left("desk").await == 12).await;
}
