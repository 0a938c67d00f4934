//! Rate limits under load: many writers, processes and keys.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::limit::{Decision, PermitRequest, Quota};

use super::limiter::HOUR;
use crate::child::Parent;
use crate::context::Context;
use crate::flood::{DOORS, Record, check};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "limiter_load":
    R02 twelve_writers_take_no_more_than_the_burst;
    R02 no_window_holds_more_than_burst_and_rate [Processes];
    R02 role_with_hostile_settings @ HostileRole [Schema];
    R02 behind_a_proxy @ HostileProxy [Proxy];
    R03 goodput_is_the_rate_at_ten_times_the_load;
    R06 denial_leaves_the_row_untouched [Sql];
    R10 calls_with_a_key_in_common_are_decided_together;
    R10 calls_that_are_alike_take_what_there_is;
    R10 calls_of_one_key_and_several_quotas_are_decided_together;
    R10 callers_that_leave_take_nothing_of_a_window [Futures];
    R11 thousand_keys_in_any_order;
    R11 rows_are_locked_in_the_order_of_their_keys [Sql, Transactions];
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
        let found = check(&door.quota, &of.collect::<Vec<_>>(), 2);
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
    let windows = PermitRequest::new("window").quota(Quota::per_hour(2).sliding_window());
    let requests = [PermitRequest::new("door"), windows];
    let checks = (0..5).map(|_| limiter.check_all(&requests));
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
        .reserve(&PermitRequest::new("door").cost(3), HOUR)
        .await
        .unwrap();
    reserved.unwrap().commit(1).await.unwrap();
    let decision = limiter.check_cost("door", 2).await.unwrap();
    assert!(decision.is_allowed());
    limiter.refund(&decision).await.unwrap();
    let peeked = limiter
        .peek(&PermitRequest::new("door").cost(2))
        .await
        .unwrap();
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
        let requests = [PermitRequest::new("door"), PermitRequest::new("new")];
        assert!(!limiter.check_all(&requests).await.unwrap().is_allowed());
    }
    assert_eq!(cx.sql(&sql).await, before);
}

async fn calls_with_a_key_in_common_are_decided_together(cx: Context) {
    for (name, tenant) in [
        ("cells", Quota::per_hour(100)),
        ("fixed", Quota::per_hour(100).fixed_window()),
        ("sliding", Quota::per_hour(100).sliding_window()),
    ] {
        let limiter = cx.backend().await.rate_limiter(Quota::per_hour(2)).unwrap();
        let tenant = || PermitRequest::new(format!("{name} tenant")).quota(tenant);
        let calls = (0..300).map(|nth| {
            let limiter = limiter.clone();
            let user = format!("{name} user {}", nth % 150);
            async move {
                let requests = [PermitRequest::new(user), tenant()];
                limiter.check_all(&requests).await.unwrap()
            }
        });
        let verdicts = soon("all are decided", join_all(calls)).await;
        let admitted = verdicts.iter().filter(|one| one.is_allowed()).count();
        assert_eq!(admitted, 100, "{name}: as many as the tenant has");
        for refused in verdicts.iter().filter(|one| !one.is_allowed()) {
            let binding = refused.binding().unwrap();
            assert!(binding.retry_after() > Duration::ZERO);
        }
        // Who was refused has lost nothing.
        let users: Vec<_> = (0..150).map(|nth| format!("{name} user {nth}")).collect();
        let requests: Vec<_> = users
            .iter()
            .map(|user| PermitRequest::new(&**user))
            .collect();
        let peeked = join_all(requests.iter().map(|request| limiter.peek(request))).await;
        let left: u64 = peeked.into_iter().map(|one| one.unwrap().remaining()).sum();
        assert_eq!(left, 150 * 2 - 100, "{name}");
        assert_eq!(limiter.peek(&tenant()).await.unwrap().remaining(), 0);
    }
}

async fn calls_that_are_alike_take_what_there_is(cx: Context) {
    for quota in [
        Quota::per_hour(40).fixed_window(),
        Quota::per_hour(40).sliding_window(),
    ] {
        let limiter = cx.backend().await.rate_limiter(quota).unwrap();
        let key = format!("{:?}", quota.algorithm());
        let calls = (0..1000).map(|_| limiter.check(&*key));
        let decisions = soon("all are decided", join_all(calls)).await;
        let decisions: Vec<_> = decisions.into_iter().map(Result::unwrap).collect();
        let mut left: Vec<_> = decisions
            .iter()
            .filter(|one| one.is_allowed())
            .map(Decision::remaining)
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            (0..40).collect::<Vec<_>>(),
            "each was told what is left after it"
        );
    }
}

/// Each is decided by its own quota, and told what that has left; nobody else waits for them.
async fn calls_of_one_key_and_several_quotas_are_decided_together(cx: Context) {
    let calls = cx.crowd(5000);
    let (larger, smaller) = (calls / 5 * 2, calls / 5);
    let limits = [larger, smaller].map(|many| u64::try_from(many).unwrap());
    let kinds = [
        limits.map(|many| Quota::per_day(1).burst(many)),
        limits.map(|many| Quota::per_hour(many).fixed_window()),
        limits.map(|many| Quota::per_hour(many).sliding_window()),
    ];
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(1)).unwrap();
    for quotas in kinds {
        let name = format!("{:?}", quotas[0].algorithm());
        let request = |nth: usize| PermitRequest::new(&*name).quota(quotas[nth % 2]);
        let (each, all) = ((0..calls).step_by(2), (1..calls).step_by(2));
        let each = each.map(|nth| async move { (nth, request(nth / 2)) });
        let each = each.map(async |call| {
            let (nth, request) = call.await;
            let decided = limiter.check_each(&[request]).await.unwrap();
            (nth / 2 % 2, decided[0].clone())
        });
        let all = all.map(async |nth| {
            let requests = [
                request(nth / 2),
                PermitRequest::new(format!("{name} {nth}")).quota(quotas[0]),
            ];
            let verdict = limiter.check_all(&requests).await.unwrap();
            assert_eq!(verdict.is_admitted(), verdict.decisions()[0].is_admitted());
            (nth / 2 % 2, verdict.decisions()[0].clone())
        });
        let others = async {
            for nth in 0..8 {
                let key = format!("{name}, other {nth}");
                let other = limiter.check(key);
                assert!(
                    soon("nobody waits for them", other)
                        .await
                        .unwrap()
                        .is_admitted()
                );
            }
        };
        let deciding = async { tokio::join!(join_all(each), join_all(all), others) };
        let (each, all, ()) = soon("all are decided", deciding).await;
        let admitted = |kind: usize| {
            let of = each.iter().chain(&all).filter(|(of, _)| *of == kind);
            of.filter(|(_, one)| one.is_admitted()).count()
        };
        assert_eq!(admitted(0) + admitted(1), larger, "{name}");
        assert!(admitted(1) <= smaller, "{name}");
        // They need not one statement each.
        let taken = each.iter().chain(&all).map(|(_, one)| one.taken_at());
        let statements = taken.collect::<HashSet<_>>().len();
        let together = statements < 500 || !cx.calls_arrive_together();
        assert!(together, "{name}: {statements} statements");
        for (kind, one) in each.iter().chain(&all) {
            let (quota, left) = (quotas[*kind], one.remaining());
            assert_eq!(one.quota(), quota, "{name}");
            assert!(left < quota.limit(), "{name}");
        }
        let peeked = limiter.peek(&request(0)).await.unwrap();
        assert_eq!(peeked.remaining(), 0, "{name}");
    }
}

async fn callers_that_leave_take_nothing_of_a_window(cx: Context) {
    let quota = Quota::per_hour(40).fixed_window();
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    let calls: Vec<_> = (0..1000)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check("a").await.unwrap().is_allowed() })
        })
        .collect();
    let mut admitted = 0;
    for (nth, call) in calls.into_iter().enumerate() {
        if nth % 2 == 0 {
            call.abort();
        }
        if let Ok(allowed) = call.await {
            admitted += u64::from(allowed);
        }
    }
    eventually("what nobody got is there", async || {
        let left = limiter
            .peek(&PermitRequest::new("a"))
            .await
            .unwrap()
            .remaining();
        left + admitted == 40
    })
    .await;
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
            let requests: Vec<_> = keys.iter().map(|key| PermitRequest::new(&**key)).collect();
            let decisions = limiter.check_each(&requests).await.unwrap();
            assert!(decisions.iter().all(Decision::is_allowed));
            for (request, decision) in keys.iter().zip(&decisions) {
                assert_eq!(decision.key(), &(&**request).into(), "in the order asked");
            }
            order.shuffle(&mut keys);
            let requests: Vec<_> = keys
                .iter()
                .take(300)
                .map(|key| PermitRequest::new(&**key))
                .collect();
            limiter.check_all(&requests).await.map(drop).unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("no deadlock", task).await.unwrap();
    }
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    let requests: Vec<_> = keys.iter().map(|key| PermitRequest::new(&**key)).collect();
    let peeked = join_all(requests.iter().map(|request| limiter.peek(request))).await;
    let left: u64 = peeked.into_iter().map(|one| one.unwrap().remaining()).sum();
    assert_eq!(left, 8 * 1000 - 4 * (1000 + 300));
}

async fn rows_are_locked_in_the_order_of_their_keys(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(9)).unwrap();
    let keys = ["z", "y", "x", "w", "v", "u", "first"];
    let requests = keys.map(PermitRequest::new);
    for decision in limiter.check_each(&requests).await.unwrap() {
        assert!(decision.is_allowed());
    }
    let mut tx = cx.begin().await.unwrap();
    let held = tx.check_all_in(&limiter, &requests[6..]).await;
    assert!(held.unwrap().is_allowed());
    let sql = format!(
        "SELECT count(*) FROM (SELECT FROM lockapi.rate_limit WHERE namespace = '{}' \
         FOR NO KEY UPDATE SKIP LOCKED) AS free",
        cx.namespace()
    );
    let (all, each) = (limiter.check_all(&requests), limiter.check_each(&requests));
    let mut waiting = Box::pin(futures_util::future::join(all, each));
    not_yet("the first row is locked", &mut waiting).await;
    eventually(
        "who waits for the first has locked none of the others",
        async || cx.sql(&sql).await == ["6"],
    )
    .await;
    tx.rollback().await;
    drop(waiting);
}
