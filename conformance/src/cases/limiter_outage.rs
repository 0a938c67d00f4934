//! Rate limits when clocks are set, and when the database is away.

use std::sync::Arc;

use lockapi::limit::{Outage, PermitRequest, Policy, Quota};
use lockapi::{ErrorKind, RateLimiter};

use super::limiter::HOUR;
use crate::context::Context;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "limiter_outage":
    R07 clock_steps_heal_within_a_burst [Sql];
    W09 limits_while_the_clock_of_a_server_is_set @ SetClock [Schema];
    R17 declared_policy_decides_in_an_outage @ Own;
    R20 crash_of_the_server_forgets_nothing @ Own;
}

async fn clock_steps_heal_within_a_burst(cx: Context) {
    let quota = Quota::per_hour(1).burst(3);
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    let shift = async |days: i64| {
        let by = days * 24 * 3600 * 1_000_000_000;
        let namespace = cx.namespace();
        let sql = format!(
            "UPDATE lockapi.rate_limit SET at = at + {by}, tat = tat + {by}, started = started + {by}
              WHERE namespace = '{namespace}'"
        );
        cx.sql(&sql).await;
    };
    for key in ["door", "lines"] {
        let ask = async || {
            if key == "door" {
                let decision = limiter.check(key).await.unwrap();
                (decision.is_allowed(), decision.retry_after())
            } else {
                let requests = [
                    PermitRequest::new(key),
                    PermitRequest::new("large").quota(Quota::per_hour(1000)),
                ];
                let verdict = limiter.check_all(&requests).await.unwrap();
                let retry = verdict.binding().unwrap().retry_after();
                (verdict.is_allowed(), retry)
            }
        };
        for _ in 0..3 {
            assert!(ask().await.0);
        }
        // The clock goes back: what was taken seems to lie in the future.
        shift(30).await;
        let (allowed, retry) = ask().await;
        assert!(!allowed);
        assert!(retry <= HOUR, "{retry:?}");
        cx.elapse(retry).await;
        assert!(ask().await.0);
        // It goes forward: one burst, and no more.
        shift(-30).await;
        for nth in 0..5 {
            assert_eq!(ask().await.0, nth < 3);
        }
    }
    for quota in [
        Quota::per_hour(3).fixed_window(),
        Quota::per_hour(3).sliding_window(),
    ] {
        let key = format!("{:?}", quota.algorithm());
        limiter.set_quota(quota).unwrap();
        for days in [30, -30] {
            shift(days).await;
            for nth in 0..5 {
                let decision = limiter.check(&*key).await.unwrap();
                assert_eq!(decision.is_allowed(), nth < 3, "{key}");
            }
        }
    }
}

async fn limits_while_the_clock_of_a_server_is_set(cx: Context) {
    let cells = Quota::per_hour(3).burst(3);
    for (key, quota) in [
        ("cells", cells),
        ("fixed", Quota::per_hour(3).fixed_window()),
        ("sliding", Quota::per_hour(3).sliding_window()),
    ] {
        let limiter = cx.backend().await.rate_limiter(quota).unwrap();
        let admitted = async || {
            let mut admitted = 0;
            for _ in 0..5 {
                let decision = limiter.check(key).await.unwrap();
                assert!(decision.retry_after() <= HOUR * 2, "{key}: {decision:?}");
                admitted += u32::from(decision.is_allowed());
            }
            admitted
        };
        assert_eq!(admitted().await, 3, "{key}");
        // At most one burst for a step, whatever its length.
        cx.set_clock_back(HOUR * 24 * 30).await;
        assert!(admitted().await <= 3, "{key}");
        assert_eq!(admitted().await, 0, "{key}");
        cx.set_clock_ahead(HOUR * 24 * 60).await;
        assert_eq!(admitted().await, 3, "{key}");
        assert_eq!(admitted().await, 0, "{key}");
        cx.set_clock_back(HOUR * 24 * 30).await;
    }
}

async fn declared_policy_decides_in_an_outage(cx: Context) {
    let backend = cx.backend().await;
    let policy = Policy::new(Quota::per_hour(10));
    let limiter = |outage| backend.rate_limiter(policy.outage(outage)).unwrap();
    let (fail, open) = (limiter(Outage::Fail), limiter(Outage::Open));
    let (closed, share) = (limiter(Outage::Closed), limiter(Outage::Share(2)));
    assert!(fail.check("door").await.unwrap().is_allowed());
    cx.set_reachable(false).await;
    let error = soon("bounded", fail.check("door")).await.unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Indeterminate
    ));
    let count = async |limiter: &Arc<dyn RateLimiter>| {
        let mut allowed = 0;
        for _ in 0..20 {
            let decision = soon("bounded", limiter.check("door")).await.unwrap();
            assert_eq!(decision.basis(), lockapi::limit::Basis::Outage);
            allowed += usize::from(decision.is_allowed());
        }
        allowed
    };
    assert_eq!(count(&open).await, 20);
    assert_eq!(count(&closed).await, 0);
    assert_eq!(count(&share).await, 5);
    let requests = [PermitRequest::new("door"), PermitRequest::new("other")];
    assert!(open.check_all(&requests).await.unwrap().is_allowed());
    assert!(!closed.check_all(&requests).await.unwrap().is_allowed());
    assert!(
        open.peek(&requests[0]).await.is_err(),
        "no policy tells what is left"
    );
    cx.set_reachable(true).await;
    for limiter in [&open, &closed, &share] {
        eventually("the database decides again", async || {
            let decision = limiter.check("door").await.unwrap();
            decision.basis() == lockapi::limit::Basis::Database
        })
        .await;
    }
}

async fn crash_of_the_server_forgets_nothing(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(5)).unwrap();
    for _ in 0..5 {
        assert!(limiter.check("door").await.unwrap().is_allowed());
    }
    cx.crash().await;
    eventually("it answers again", async || {
        limiter.check("other").await.is_ok()
    })
    .await;
    assert!(!limiter.check("door").await.unwrap().is_allowed());
}
