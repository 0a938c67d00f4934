//! Rate limits: what is admitted, refused and told.

use std::time::Duration;

use lockapi::limit::{PermitRequest, Quota};
use lockapi::{ErrorKind, RateLimiter};

use crate::context::Context;
use crate::harness::register;

register! { "limiter":
    R01 burst_and_then_one_at_each_interval;
    R04 retry_after_is_when_it_is_admitted;
    R05 costs_and_quotas_outside_their_limits_are_invalid;
    R06 denial_writes_nothing;
    R08 quota_changed_while_running;
    R09 peek_takes_nothing;
    R09 refund_gives_back_what_has_not_flowed_back;
    R09 reset_forgets;
    R09 block_refuses_for_its_time;
    R10 all_or_nothing_names_the_limit_that_binds;
    R10 two_quotas_for_one_key_are_invalid;
    R13 idle_rows_are_swept_and_no_others;
    R14 rolled_back_with_the_transaction [Transactions];
    R14 durability_of_the_transaction_stays [Transactions];
    R18 shadow_decides_and_never_refuses;
}

pub(super) const HOUR: Duration = Duration::from_hours(1);
/// Time that the machine may lose within a case.
pub(super) const SLACK: Duration = Duration::from_mins(2);

/// How many of `times` checks are admitted.
pub(super) async fn admitted(limiter: &dyn RateLimiter, key: &str, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(limiter.check(key).await.unwrap().is_allowed());
    }
    admitted
}

async fn burst_and_then_one_at_each_interval(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(5))
        .unwrap();
    for left in (0..5).rev() {
        let decision = limiter.check("door").await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!((decision.limit(), decision.remaining()), (5, left));
        assert_eq!(decision.retry_after(), Duration::ZERO);
    }
    assert_eq!(admitted(&*limiter, "door", 3).await, 0);
    for _ in 0..3 {
        cx.elapse(HOUR).await;
        assert_eq!(admitted(&*limiter, "door", 2).await, 1);
    }
    cx.elapse(HOUR * 3).await;
    assert_eq!(admitted(&*limiter, "door", 5).await, 3);
    // A rest fills it up, and no further.
    cx.elapse(HOUR * 100).await;
    assert_eq!(admitted(&*limiter, "door", 8).await, 5);
    assert_eq!(admitted(&*limiter, "other", 8).await, 5, "keys are apart");
    let elsewhere = cx.elsewhere().await.backend().await;
    let elsewhere = elsewhere.rate_limiter(limiter.policy()).unwrap();
    assert_eq!(
        admitted(&*elsewhere, "door", 8).await,
        5,
        "namespaces are apart"
    );
    let there = cx.backend().await.rate_limiter(limiter.policy()).unwrap();
    assert_eq!(admitted(&*there, "door", 2).await, 0, "processes are not");
}

async fn retry_after_is_when_it_is_admitted(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(4))
        .unwrap();
    assert!(limiter.check_cost("door", 3).await.unwrap().is_allowed());
    let refused = limiter.check_cost("door", 2).await.unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(refused.remaining(), 1);
    let (retry, reset) = (refused.retry_after(), refused.reset_after());
    assert!(
        retry <= HOUR && retry > HOUR.saturating_sub(SLACK),
        "{retry:?}"
    );
    assert!(
        reset <= HOUR * 3 && reset > (HOUR * 3).saturating_sub(SLACK),
        "{reset:?}"
    );
    cx.elapse(retry.saturating_sub(SLACK)).await;
    let refused = limiter.check_cost("door", 2).await.unwrap();
    assert!(!refused.is_allowed());
    cx.elapse(refused.retry_after()).await;
    assert!(limiter.check_cost("door", 2).await.unwrap().is_allowed());
}

async fn costs_and_quotas_outside_their_limits_are_invalid(cx: Context) {
    let backend = cx.backend().await;
    let quotas = [
        Quota::per_second(0),
        Quota::per_second(u64::MAX),
        Quota::per_second(1).burst(0),
        Quota::new(1, Duration::ZERO),
        Quota::new(1, Duration::MAX),
        Quota::new(1, Duration::from_hours(366 * 24)).burst(1_000_000_000),
    ];
    let limiter = backend.rate_limiter(Quota::per_hour(10)).unwrap();
    for quota in quotas {
        let error = backend.rate_limiter(quota).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{quota:?}");
        let error = limiter.set_quota(quota).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{quota:?}");
    }
    for cost in [0, 11, u64::MAX] {
        let error = limiter.check_cost("door", cost).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{cost}");
        let requests = [
            PermitRequest::new("door").cost(cost),
            PermitRequest::new("other"),
        ];
        let error = limiter.check_all(&requests).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{cost}");
    }
    for key in ["", "nul\0", &"x".repeat(256)] {
        let error = limiter.check(key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let error = limiter.block(&key.into(), HOUR).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = limiter
        .block(&"door".into(), Duration::MAX)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let error = limiter.check_all(&[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(cx.limit("door").await, None, "nothing was sent");
    // The largest that is allowed works.
    let most = Quota::new(1_000_000_000, Duration::from_hours(366 * 24));
    let limiter = backend.rate_limiter(most).unwrap();
    let decision = limiter.check_cost("most", 1_000_000_000).await.unwrap();
    assert!(decision.is_allowed());
    assert!(
        !limiter
            .check_cost("most", 1_000_000_000)
            .await
            .unwrap()
            .is_allowed()
    );
}

async fn denial_writes_nothing(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(2)).unwrap();
    let sliding = Quota::per_hour(2).sliding_window();
    let requests = [
        PermitRequest::new("door"),
        PermitRequest::new("new"),
        PermitRequest::new("window").quota(sliding),
    ];
    assert_eq!(admitted(&*limiter, "door", 3).await, 2);
    let window = PermitRequest::new("window").quota(sliding).cost(2);
    let filled = limiter
        .check_each(std::slice::from_ref(&window))
        .await
        .unwrap();
    assert!(filled[0].is_allowed());
    let before = (cx.limit("door").await, cx.limit("window").await);
    for _ in 0..3 {
        assert!(!limiter.check_all(&requests).await.unwrap().is_allowed());
        assert!(!limiter.check("door").await.unwrap().is_allowed());
        let refused = limiter
            .check_each(std::slice::from_ref(&window))
            .await
            .unwrap();
        assert!(!refused[0].is_allowed());
    }
    assert_eq!((cx.limit("door").await, cx.limit("window").await), before);
    assert_eq!(cx.limit("new").await, None);
}

async fn quota_changed_while_running(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(10))
        .unwrap();
    assert_eq!(admitted(&*limiter, "door", 12).await, 10);
    // What was taken stays taken until it has flowed back, also for a smaller one.
    limiter.set_quota(Quota::per_hour(2).burst(1)).unwrap();
    assert_eq!(limiter.policy().quota().limit(), 1);
    cx.elapse(HOUR / 2).await;
    assert_eq!(admitted(&*limiter, "door", 3).await, 0);
    cx.elapse(HOUR / 2).await;
    assert_eq!(admitted(&*limiter, "door", 3).await, 1);
    // Of a larger one there is more at once.
    limiter.set_quota(Quota::per_hour(2).burst(6)).unwrap();
    assert_eq!(admitted(&*limiter, "door", 8).await, 5);
}

async fn peek_takes_nothing(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(3)).unwrap();
    let request = PermitRequest::new("door").cost(2);
    for _ in 0..3 {
        let peeked = limiter.peek(&request).await.unwrap();
        assert!(peeked.is_allowed());
        assert_eq!(
            (peeked.remaining(), peeked.reset_after()),
            (3, Duration::ZERO)
        );
    }
    assert_eq!(cx.limit("door").await, None);
    assert!(limiter.check_cost("door", 2).await.unwrap().is_allowed());
    let peeked = limiter.peek(&request).await.unwrap();
    assert_eq!((peeked.is_allowed(), peeked.remaining()), (false, 1));
    assert!(!peeked.retry_after().is_zero());
}

async fn refund_gives_back_what_has_not_flowed_back(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(1).burst(10))
        .unwrap();
    let first = limiter.check_cost("door", 6).await.unwrap();
    let refused = limiter.check_cost("door", 6).await.unwrap();
    limiter.refund(&refused).await.unwrap();
    assert_eq!(admitted(&*limiter, "door", 6).await, 4, "nothing was taken");
    limiter.refund(&first).await.unwrap();
    assert_eq!(admitted(&*limiter, "door", 8).await, 6);
    // Two of six have flowed back after two hours, so four are to be given back.
    limiter.reset(&"door".into()).await.unwrap();
    let early = limiter.check_cost("door", 6).await.unwrap();
    cx.elapse(HOUR * 2).await;
    assert_eq!(admitted(&*limiter, "door", 9).await, 6);
    limiter.refund(&early).await.unwrap();
    let left = limiter
        .peek(&PermitRequest::new("door"))
        .await
        .unwrap()
        .remaining();
    // The decision knows the time at which it was taken; the rows were made older since.
    assert!((4..=6).contains(&left), "{left}");
    for quota in [
        Quota::per_hour(5).fixed_window(),
        Quota::per_hour(5).sliding_window(),
    ] {
        limiter.set_quota(quota).unwrap();
        let key = format!("{:?}", quota.algorithm());
        let decision = limiter.check_cost(&*key, 4).await.unwrap();
        limiter.refund(&decision).await.unwrap();
        assert_eq!(admitted(&*limiter, &key, 8).await, 5, "{key}");
    }
}

async fn reset_forgets(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(2)).unwrap();
    assert_eq!(admitted(&*limiter, "door", 3).await, 2);
    limiter.block(&"door".into(), HOUR).await.unwrap();
    limiter.reset(&"door".into()).await.unwrap();
    assert_eq!(admitted(&*limiter, "door", 3).await, 2);
    limiter.reset(&"never used".into()).await.unwrap();
}

async fn block_refuses_for_its_time(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(3)).unwrap();
    let window = Quota::per_hour(3).fixed_window();
    assert!(limiter.check("door").await.unwrap().is_allowed());
    for quota in [limiter.policy().quota(), window] {
        limiter.set_quota(quota).unwrap();
        limiter.block(&"door".into(), HOUR * 3).await.unwrap();
        let refused = limiter.check("door").await.unwrap();
        assert_eq!((refused.is_allowed(), refused.remaining()), (false, 0));
        let retry = refused.retry_after();
        assert!(
            retry <= HOUR * 3 && retry > (HOUR * 3).saturating_sub(SLACK),
            "{retry:?}"
        );
        let requests = [PermitRequest::new("door"), PermitRequest::new("other")];
        let verdict = limiter.check_all(&requests).await.unwrap();
        assert!(!verdict.is_allowed());
        assert_eq!(verdict.binding().unwrap().key(), &"door".into());
        cx.elapse((HOUR * 3).saturating_sub(SLACK)).await;
        assert!(!limiter.check("door").await.unwrap().is_allowed());
        cx.elapse(SLACK).await;
        assert!(limiter.check("door").await.unwrap().is_allowed());
    }
    limiter.block(&"new".into(), HOUR).await.unwrap();
    assert!(!limiter.check("new").await.unwrap().is_allowed());
    limiter.block(&"new".into(), Duration::ZERO).await.unwrap();
    assert!(limiter.check("new").await.unwrap().is_allowed());
}

async fn all_or_nothing_names_the_limit_that_binds(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(10))
        .unwrap();
    let everybody = Quota::per_day(4).sliding_window();
    let requests = |cost| {
        [
            PermitRequest::new("user").cost(cost),
            PermitRequest::new("everybody").cost(cost).quota(everybody),
            PermitRequest::new("third").quota(Quota::per_hour(100)),
        ]
    };
    let verdict = limiter.check_all(&requests(3)).await.unwrap();
    assert!(verdict.is_allowed());
    let left: Vec<_> = verdict
        .decisions()
        .iter()
        .map(lockapi::limit::Decision::remaining)
        .collect();
    assert_eq!(left, [7, 1, 99]);
    assert_eq!(verdict.binding().unwrap().key(), &"everybody".into());
    let verdict = limiter.check_all(&requests(2)).await.unwrap();
    assert!(!verdict.is_allowed());
    let binding = verdict.binding().unwrap();
    assert_eq!(binding.key(), &"everybody".into());
    assert!(binding.retry_after() > HOUR * 23);
    let left = async |key: &str| {
        limiter
            .peek(&PermitRequest::new(key))
            .await
            .unwrap()
            .remaining()
    };
    assert_eq!(left("user").await, 7, "nothing was taken");
    // What one call wants twice of a key counts together.
    let twice = [
        PermitRequest::new("user").cost(4),
        PermitRequest::new("user").cost(4),
    ];
    assert!(!limiter.check_all(&twice).await.unwrap().is_allowed());
    let twice = [
        PermitRequest::new("user").cost(4),
        PermitRequest::new("user").cost(3),
    ];
    assert!(limiter.check_all(&twice).await.unwrap().is_allowed());
    assert_eq!(left("user").await, 0);
    // Of two that refuse the one that does so for longer.
    for turn in 0..3 {
        let mut requests = requests(2);
        requests.rotate_left(turn);
        let verdict = limiter.check_all(&requests).await.unwrap();
        assert_eq!(verdict.binding().unwrap().key(), &"everybody".into());
    }
}

async fn two_quotas_for_one_key_are_invalid(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(10))
        .unwrap();
    let requests = [
        PermitRequest::new("door"),
        PermitRequest::new("door").quota(Quota::per_hour(9)),
    ];
    let error = limiter.check_all(&requests).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    // Each for itself, they follow each other.
    let decisions = limiter.check_each(&requests).await.unwrap();
    assert!(decisions.iter().all(lockapi::limit::Decision::is_allowed));
}

async fn idle_rows_are_swept_and_no_others(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(2)).unwrap();
    let sliding = PermitRequest::new("window").quota(Quota::per_hour(2).sliding_window());
    assert_eq!(admitted(&*limiter, "idle", 2).await, 2);
    assert!(
        limiter
            .check_each(std::slice::from_ref(&sliding))
            .await
            .unwrap()[0]
            .is_allowed()
    );
    limiter.block(&"blocked".into(), HOUR * 9).await.unwrap();
    let reserved = limiter
        .reserve(&PermitRequest::new("reserved"), HOUR * 9)
        .await;
    cx.elapse(HOUR * 3).await;
    assert_eq!(admitted(&*limiter, "busy", 3).await, 2);
    while limiter.sweep().await.unwrap() > 0 {}
    let there = async |key: &str| cx.limit(key).await.is_some();
    assert!(!there("idle").await && !there("window").await);
    assert!(there("busy").await && there("blocked").await);
    reserved.unwrap().unwrap().commit(1).await.unwrap();
    assert_eq!(admitted(&*limiter, "idle", 3).await, 2, "as before");
    assert_eq!(admitted(&*limiter, "busy", 3).await, 0);
    assert!(!limiter.check("blocked").await.unwrap().is_allowed());
}

async fn rolled_back_with_the_transaction(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(3)).unwrap();
    let requests = [
        PermitRequest::new("door").cost(2),
        PermitRequest::new("window").quota(Quota::per_hour(2).fixed_window()),
    ];
    let left = async || limiter.peek(&requests[0]).await.unwrap().remaining();
    let mut tx = cx.begin().await.unwrap();
    let verdict = tx.check_all_in(&limiter, &requests).await.unwrap();
    assert!(verdict.is_allowed());
    let verdict = tx.check_all_in(&limiter, &requests).await.unwrap();
    assert!(!verdict.is_allowed(), "the transaction sees what it took");
    tx.rollback().await;
    assert_eq!(left().await, 3);
    let mut tx = cx.begin().await.unwrap();
    assert!(
        tx.check_all_in(&limiter, &requests)
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(left().await, 3, "not yet");
    tx.commit().await;
    assert_eq!(left().await, 1);
    // A refusal locks nothing, and leaves the transaction as it was.
    let mut tx = cx.begin().await.unwrap();
    assert!(
        !tx.check_all_in(&limiter, &requests)
            .await
            .unwrap()
            .is_allowed()
    );
    assert!(limiter.check("door").await.unwrap().is_allowed());
    let error = tx.check_all_in(&limiter, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(tx.query("SELECT 'usable'").await, "usable");
    tx.commit().await;
}

async fn durability_of_the_transaction_stays(cx: Context) {
    let policy = lockapi::limit::Policy::new(Quota::per_hour(3)).relaxed();
    let limiter = cx.backend().await.rate_limiter(policy).unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.query("SELECT set_config('synchronous_commit', 'on', true)")
        .await;
    let verdict = tx
        .check_all_in(&limiter, &[PermitRequest::new("door")])
        .await;
    assert!(verdict.unwrap().is_allowed());
    let setting = tx.query("SELECT current_setting('synchronous_commit')");
    assert_eq!(setting.await, "on");
    tx.commit().await;
}

async fn shadow_decides_and_never_refuses(cx: Context) {
    let policy = lockapi::limit::Policy::new(Quota::per_hour(2)).shadow();
    let limiter = cx.backend().await.rate_limiter(policy).unwrap();
    for nth in 0..4 {
        let decision = limiter.check("door").await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.is_admitted(), nth < 2);
        assert_eq!(decision.retry_after().is_zero(), nth < 2);
    }
    let verdict = limiter
        .check_all(&[PermitRequest::new("door"), PermitRequest::new("new")])
        .await
        .unwrap();
    assert!(verdict.is_allowed() && !verdict.is_admitted());
    assert_eq!(cx.limit("new").await, None, "of none when not of all");
}
