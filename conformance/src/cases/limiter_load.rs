//! Rate limits under load: many writers, processes, keys and waiters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::limit::{Decision, Outage, Policy, Quota, Want};
use lockapi::{BackendExt, ErrorKind, RateLimiter, RateLimiterExt};

use super::limiter::HOUR;
use crate::child::Parent;
use crate::context::Context;
use crate::flood::{DOORS, Record, judge};
use crate::harness::register;
use crate::patience::{eventually, poll_then_drop, soon};

register! { "limiter_load":
    R02 twelve_writers_take_no_more_than_the_burst;
    R02 no_window_holds_more_than_burst_and_rate [Processes];
    R02 role_with_hostile_settings @ HostileRole [Schema];
    R02 behind_a_proxy @ HostileProxy [Proxy];
    R03 goodput_is_the_rate_at_ten_times_the_load;
    R06 denial_leaves_the_row_untouched [Sql];
    R07 clock_steps_heal_within_a_burst [Sql];
    R11 thousand_keys_in_any_order;
    R12 blocks_never_admit_more;
    R12 unused_permits_are_given_back;
    R15 waiters_are_admitted_in_order [Futures];
    R15 wait_that_will_not_do_ends_at_once;
    R15 dropped_waiter_takes_nothing [Futures];
    R17 declared_policy_decides_in_an_outage @ Own;
    R19 reservation_is_committed_in_part;
    R19 reservation_expires;
    R20 crash_of_the_server_forgets_nothing @ Own;
    V08 check_dropped [Futures];
}

/// Asks for permits as fast as it can, and says what was decided.
pub(super) async fn flood(cx: Context, arguments: Vec<String>, mut parent: Parent) {
    let decisions = arguments[0].parse().unwrap();
    let backend = cx.backend().await;
    let flooded = crate::flood::flood(&*backend, decisions, 3, |record| parent.say(record));
    flooded.await.unwrap();
    parent.say("done");
    parent.line().await;
}

async fn no_window_holds_more_than_burst_and_rate(cx: Context) {
    const DECISIONS: usize = 400;
    let decisions = DECISIONS.to_string();
    let mut children: Vec<_> = (0..4).map(|_| cx.child("flood", &[&decisions])).collect();
    let mut history: Vec<Record> = Vec::new();
    for (nth, child) in children.iter_mut().enumerate() {
        for said in 0.. {
            let line = child.line().await;
            if line == "done" {
                break;
            }
            history.push(line.parse().unwrap());
            match (nth, said) {
                (0, 100) => {
                    child.kill();
                    break;
                }
                (1, 100) => {
                    child.pause();
                    cx.pass(Duration::from_millis(100)).await;
                    child.resume();
                }
                _ => {}
            }
        }
    }
    assert!(history.len() > 3 * DECISIONS);
    for (nth, door) in DOORS.iter().enumerate() {
        let of = history.iter().filter(|one| one.door == nth).copied();
        let found = judge(&door.quota, &of.collect::<Vec<_>>(), 2);
        assert_eq!(found.excess, None, "{}", door.key);
        assert!(found.admitted > 0, "{}", door.key);
    }
}

async fn twelve_writers_take_no_more_than_the_burst(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let quota = Quota::per_hour(1).burst(101);
    let window = Quota::per_hour(101).fixed_window();
    for (key, quota) in [("door", quota), ("window", window)] {
        let tasks = (0..12).map(|nth| {
            let backend = if nth % 2 == 0 { &here } else { &there };
            let limiter = backend.rate_limiter(quota).unwrap();
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..20 {
                    admitted += u64::from(limiter.check(key).await.unwrap().is_allowed());
                }
                admitted
            })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            admitted += task.await.unwrap();
        }
        assert_eq!(admitted, 101, "{key}");
    }
}

/// All that a limiter does, at a place where it is not easy.
async fn works(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(3)).unwrap();
    let windows = Want::new("window").quota(Quota::per_hour(2).sliding_window());
    let wants = [Want::new("door"), windows];
    let checks = (0..5).map(|_| limiter.check_all(&wants));
    let verdicts = join_all(checks).await;
    let allowed = verdicts
        .into_iter()
        .filter(|one| one.as_ref().unwrap().is_allowed());
    assert_eq!(allowed.count(), 2);
    let checks = (0..5).map(|_| limiter.check("door"));
    let decisions = join_all(checks).await;
    let allowed = decisions
        .into_iter()
        .filter(|one| one.as_ref().unwrap().is_allowed());
    assert_eq!(allowed.count(), 1);
    limiter.block(&"door".into(), HOUR).await.unwrap();
    limiter.reset(&"door".into()).await.unwrap();
    let reserved = limiter
        .reserve(&Want::new("door").cost(3), HOUR)
        .await
        .unwrap();
    reserved.unwrap().commit(1).await.unwrap();
    let decision = limiter.check_cost("door", 2).await.unwrap();
    assert!(decision.is_allowed());
    limiter.refund(&decision).await.unwrap();
    let peeked = limiter.peek(&Want::new("door").cost(2)).await.unwrap();
    assert!(peeked.is_allowed());
    limiter.sweep().await.unwrap();
}

async fn role_with_hostile_settings(cx: Context) {
    works(cx).await;
}

async fn behind_a_proxy(cx: Context) {
    works(cx).await;
}

async fn goodput_is_the_rate_at_ten_times_the_load(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(3))
        .unwrap();
    let overload = async || {
        let checks = join_all((0..10).map(|_| limiter.check("door"))).await;
        let allowed = checks
            .into_iter()
            .filter(|one| one.as_ref().unwrap().is_allowed());
        allowed.count()
    };
    assert_eq!(overload().await, 3);
    for _ in 0..10 {
        cx.elapse(HOUR).await;
        assert_eq!(overload().await, 1);
    }
}

async fn denial_leaves_the_row_untouched(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(1)).unwrap();
    let other = cx.backend().await.rate_limiter(Quota::per_hour(1)).unwrap();
    assert!(limiter.check("door").await.unwrap().is_allowed());
    // A lock on the row would show in xmax, and a new version in the others.
    let sql = format!(
        "SELECT concat_ws(' ', ctid, xmin, xmax) FROM lockapi.rate_limit WHERE namespace = '{}'",
        cx.namespace()
    );
    let before = cx.sql(&sql).await;
    for _ in 0..3 {
        assert!(!limiter.check("door").await.unwrap().is_allowed());
        assert!(!other.check("door").await.unwrap().is_allowed());
        let wants = [Want::new("door"), Want::new("new")];
        assert!(!limiter.check_all(&wants).await.unwrap().is_allowed());
    }
    assert_eq!(cx.sql(&sql).await, before);
}

async fn clock_steps_heal_within_a_burst(cx: Context) {
    let quota = Quota::per_hour(1).burst(3);
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    let shift = async |days: i64| {
        let by = days * 24 * 3600 * 1_000_000_000;
        let (namespace, sql) = (cx.namespace(), "UPDATE lockapi.rate_limit SET tat = tat +");
        let sql = format!("{sql} {by}, started = started + {by} WHERE namespace = '{namespace}'");
        cx.sql(&sql).await;
    };
    for key in ["door", "lines"] {
        let ask = async || {
            if key == "door" {
                let decision = limiter.check(key).await.unwrap();
                (decision.is_allowed(), decision.retry_after())
            } else {
                let wants = [
                    Want::new(key),
                    Want::new("large").quota(Quota::per_hour(1000)),
                ];
                let verdict = limiter.check_all(&wants).await.unwrap();
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

async fn thousand_keys_in_any_order(cx: Context) {
    let quota = Quota::per_hour(8);
    let keys: Vec<_> = (0..1000).map(|nth| format!("key {nth}")).collect();
    let tasks = (0..4).map(|nth| {
        let (cx, mut keys) = (cx.clone(), keys.clone());
        tokio::spawn(async move {
            let limiter = cx.backend().await.rate_limiter(quota).unwrap();
            let mut order = fastrand::Rng::with_seed(nth);
            order.shuffle(&mut keys);
            let wants: Vec<_> = keys.iter().map(|key| Want::new(&**key)).collect();
            let decisions = limiter.check_each(&wants).await.unwrap();
            assert!(decisions.iter().all(Decision::is_allowed));
            for (want, decision) in keys.iter().zip(&decisions) {
                assert_eq!(decision.key(), &(&**want).into(), "in the order asked");
            }
            order.shuffle(&mut keys);
            let wants: Vec<_> = keys.iter().take(300).map(|key| Want::new(&**key)).collect();
            limiter.check_all(&wants).await.map(drop).unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("no deadlock", task).await.unwrap();
    }
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    let wants: Vec<_> = keys.iter().map(|key| Want::new(&**key)).collect();
    let peeked = join_all(wants.iter().map(|want| limiter.peek(want))).await;
    let left: u64 = peeked.into_iter().map(|one| one.unwrap().remaining()).sum();
    assert_eq!(left, 8 * 1000 - 4 * (1000 + 300));
}

async fn blocks_never_admit_more(cx: Context) {
    let gcra = Quota::per_hour(1).burst(100);
    let window = Quota::per_hour(100).sliding_window();
    for (key, quota) in [("door", gcra), ("window", window)] {
        let want = Want::new(key).cost(15);
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let limiter = cx.backend().await.rate_limiter(quota).unwrap();
            let permits = limiter.permits(&want).unwrap();
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

async fn unused_permits_are_given_back(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(100))
        .unwrap();
    let left = async || limiter.peek(&Want::new("door")).await.unwrap().remaining();
    let permits = limiter.permits(&Want::new("door").cost(30)).unwrap();
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
    let lost = limiter.permits(&Want::new("door").cost(30)).unwrap();
    assert!(lost.take().await.unwrap());
    std::mem::forget(lost);
    assert_eq!(left().await, 66);
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
        let want = Want::new("door").cost(if nth == 0 { 5 } else { 1 });
        let decision = limiter
            .until_ready(&want, Duration::from_mins(1))
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

async fn wait_that_will_not_do_ends_at_once(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(1)).unwrap();
    let want = Want::new("door");
    let day = Duration::from_hours(24);
    let ready = limiter
        .until_ready(&want, Duration::from_mins(1))
        .await
        .unwrap();
    assert!(ready.is_allowed());
    let waiting = limiter.until_ready(&want, HOUR / 2);
    let error = soon("it is clear that it will not do", waiting)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::TimedOut, "until_ready")
    );
    assert_eq!(error.key(), Some("door"));
    let error = limiter
        .until_ready(&want.clone().cost(2), day)
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
    let want = Want::new("door").cost(2);
    let time = Duration::from_hours(24);
    assert!(limiter.check("door").await.unwrap().is_allowed());
    let mut first = Box::pin(limiter.until_ready(&want, time));
    let mut second = Box::pin(limiter.until_ready(&want, time));
    for waiter in [&mut first, &mut second] {
        crate::patience::not_yet("admitted", waiter).await;
    }
    drop(first);
    drop(second);
    cx.elapse(HOUR).await;
    let next = limiter.until_ready(&want, time);
    assert!(
        soon("nobody is in the way", next)
            .await
            .unwrap()
            .is_allowed()
    );
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
    let wants = [Want::new("door"), Want::new("other")];
    assert!(open.check_all(&wants).await.unwrap().is_allowed());
    assert!(!closed.check_all(&wants).await.unwrap().is_allowed());
    assert!(
        open.peek(&wants[0]).await.is_err(),
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
        let want = Want::new(&*key).cost(6);
        let left = async || limiter.peek(&Want::new(&*key)).await.unwrap().remaining();
        let reserved = limiter.reserve(&want, HOUR).await.unwrap().unwrap();
        assert_eq!(reserved.decision().remaining(), 4);
        let refused = limiter.reserve(&want, HOUR).await.unwrap().unwrap_err();
        assert!(!refused.is_allowed() && refused.remaining() == 4);
        reserved.commit(1).await.unwrap();
        assert_eq!(left().await, 9, "{key}");
        let reserved = limiter.reserve(&want, HOUR).await.unwrap().unwrap();
        let error = reserved.commit(7).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        eventually("cancelled", async || left().await == 9).await;
        let two = [want.clone().cost(2), want.clone().cost(3)];
        let one = limiter.reserve(&two[0], HOUR).await.unwrap().unwrap();
        let other = limiter.reserve(&two[1], HOUR).await.unwrap().unwrap();
        assert_eq!(left().await, 4);
        one.cancel().await.unwrap();
        assert_eq!(left().await, 6);
        drop(other);
        eventually("cancelled when dropped", async || left().await == 9).await;
        let row = cx.limit(&key).await.expect("a row");
        assert!(row.reserved.is_empty());
    }
    let error = limiter
        .reserve(&Want::new("x"), Duration::ZERO)
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
    let want = Want::new("door").cost(6);
    let reserved = limiter.reserve(&want, HOUR).await.unwrap().unwrap();
    assert!(!limiter.check_cost("door", 6).await.unwrap().is_allowed());
    cx.elapse(HOUR + HOUR / 2).await;
    // Those who come after find it ended: by a check, and by several limits at once.
    assert!(limiter.check_cost("door", 6).await.unwrap().is_allowed());
    let error = reserved.commit(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    limiter.reset(&"door".into()).await.unwrap();
    std::mem::forget(limiter.reserve(&want, HOUR).await.unwrap().unwrap());
    cx.elapse(HOUR + HOUR / 2).await;
    let peeked = limiter.peek(&want).await.unwrap();
    assert!(peeked.is_allowed());
    std::mem::forget(limiter.reserve(&want, HOUR).await.unwrap().unwrap());
    cx.elapse(HOUR + HOUR / 2).await;
    let wants = [want, Want::new("other")];
    assert!(limiter.check_all(&wants).await.unwrap().is_allowed());
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

async fn check_dropped(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(9))
        .unwrap();
    let wants = [Want::new("door"), Want::new("other")];
    let left = async || {
        let decisions = wants.iter().map(|want| limiter.peek(want));
        let left = join_all(decisions).await;
        left.into_iter()
            .map(|one| one.unwrap().remaining())
            .collect::<Vec<_>>()
    };
    for polls in 0..4 {
        let mut taken = 0;
        taken += u64::from(poll_then_drop(limiter.check("door"), polls).await.is_some());
        let verdict = poll_then_drop(limiter.check_all(&wants), polls).await;
        taken += u64::from(verdict.is_some());
        let reserved = poll_then_drop(limiter.reserve(&wants[0], HOUR), polls).await;
        drop(reserved);
        let rest = [9 - taken, 9 - u64::from(verdict.is_some())];
        eventually("what nobody waits for is given back", async || {
            left().await == rest
        })
        .await;
        for want in ["door", "other"] {
            limiter.reset(&want.into()).await.unwrap();
        }
    }
}
