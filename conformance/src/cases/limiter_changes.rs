//! Rate limits whose quotas differ or change, and rows that others have written.

use std::time::Duration;

use lockapi::RateLimiter;
use lockapi::limit::{PermitRequest, Quota};

use super::limiter::HOUR;
use crate::context::Context;
use crate::harness::register;

register! { "limiter_changes":
    W11 two_bursts_of_one_rate_admit_the_larger;
    W11 smaller_quota_heals_in_the_time_of_the_larger;
    W11 another_algorithm_begins_anew_and_once;
    W11 windows_of_two_lengths_count_together;
    W11 short_window_does_not_make_a_long_one_forget;
    W11 refund_of_a_long_window_leaves_what_a_short_one_took;
    W11 sweep_keeps_what_a_longer_window_counts;
    W10 row_of_any_numbers_is_no_overflow [Sql];
    W09 step_back_of_the_clock_forgets_nothing;
}

/// Takes one permit by itself, or with another limit that never refuses.
async fn takes(limiter: &dyn RateLimiter, key: &str, quota: Quota, beside: bool) -> bool {
    let request = PermitRequest::new(key).quota(quota);
    if !beside {
        let decisions = limiter.check_each(&[request]).await.unwrap();
        return decisions[0].is_allowed();
    }
    let large = PermitRequest::new("large").quota(Quota::per_hour(1_000_000));
    let verdict = limiter.check_all(&[request, large]).await.unwrap();
    verdict.is_allowed()
}

async fn admitted(limiter: &dyn RateLimiter, key: &str, quota: Quota, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(takes(limiter, key, quota, false).await);
    }
    admitted
}

async fn two_bursts_of_one_rate_admit_the_larger(cx: Context) {
    let (large, small) = (Quota::per_hour(100), Quota::per_hour(100).burst(10));
    let limiter = cx.backend().await.rate_limiter(large).unwrap();
    for (key, beside) in [("one", false), ("lines", true)] {
        let mut sum = 0;
        for round in 0..300 {
            let quota = if round % 4 == 0 { small } else { large };
            sum += usize::from(takes(&*limiter, key, quota, beside).await);
        }
        // A permit flows back in 36 seconds.
        assert!((100..=108).contains(&sum), "{key}: {sum}");
    }
    // In one statement.
    let requests: Vec<_> = (0..300)
        .map(|nth| PermitRequest::new("batch").quota(if nth % 4 == 0 { small } else { large }))
        .collect();
    let decisions = limiter.check_each(&requests).await.unwrap();
    let sum = decisions.iter().filter(|one| one.is_allowed()).count();
    assert!((100..=108).contains(&sum), "{sum}");
}

async fn smaller_quota_heals_in_the_time_of_the_larger(cx: Context) {
    let (large, small) = (Quota::per_hour(8), Quota::per_hour(2).burst(1));
    let limiter = cx.backend().await.rate_limiter(large).unwrap();
    assert!(limiter.check_cost("door", 8).await.unwrap().is_allowed());
    limiter.set_quota(small).unwrap();
    let refused = limiter.check("door").await.unwrap();
    assert!(!refused.is_allowed());
    let retry = refused.retry_after();
    assert!(retry <= HOUR && retry > HOUR * 9 / 10, "{retry:?}");
    cx.elapse(HOUR * 3 / 4).await;
    assert_eq!(admitted(&*limiter, "door", small, 2).await, 0);
    cx.elapse(HOUR / 4).await;
    assert_eq!(admitted(&*limiter, "door", small, 2).await, 1);
}

async fn another_algorithm_begins_anew_and_once(cx: Context) {
    let cells = Quota::per_hour(10);
    let limiter = cx.backend().await.rate_limiter(cells).unwrap();
    for (key, window) in [
        ("fixed", cells.fixed_window()),
        ("sliding", cells.sliding_window()),
    ] {
        for first in [cells, window] {
            let then = if first == cells { window } else { cells };
            let key = format!("{key} {first:?}");
            assert_eq!(admitted(&*limiter, &key, first, 12).await, 10, "{key}");
            assert_eq!(admitted(&*limiter, &key, then, 10).await, 10, "{key}");
            for quota in [first, then, first, then] {
                assert_eq!(admitted(&*limiter, &key, quota, 2).await, 0, "{key}");
            }
            cx.elapse(HOUR * 2).await;
            assert_eq!(admitted(&*limiter, &key, first, 12).await, 10, "{key}");
        }
    }
}

async fn windows_of_two_lengths_count_together(cx: Context) {
    let minute = Quota::new(10, Duration::from_mins(1)).fixed_window();
    let day = Quota::per_day(60).fixed_window();
    let limiter = cx.backend().await.rate_limiter(day).unwrap();
    // The minutes of one do not end the day of the other.
    let mut sum = 0;
    for _ in 0..20 {
        sum += admitted(&*limiter, "door", day, 20).await;
        cx.elapse(Duration::from_mins(61)).await;
        admitted(&*limiter, "door", minute, 1).await;
    }
    assert!(sum <= 60, "{sum}");
    // And the shorter is right again when the longer has ended.
    let refused = limiter
        .check_each(&[PermitRequest::new("door").quota(minute)])
        .await;
    let refused = &refused.unwrap()[0];
    assert!(!refused.is_allowed());
    assert!(refused.retry_after() <= HOUR * 24);
    cx.elapse(refused.retry_after()).await;
    assert_eq!(admitted(&*limiter, "door", minute, 12).await, 10);
    cx.elapse(Duration::from_mins(1)).await;
    assert_eq!(admitted(&*limiter, "door", minute, 12).await, 10);
}

async fn short_window_does_not_make_a_long_one_forget(cx: Context) {
    let long = Quota::per_hour(100).sliding_window();
    let limiter = cx.backend().await.rate_limiter(long).unwrap();
    for short in [
        Quota::per_minute(1000).sliding_window(),
        Quota::per_minute(1000).fixed_window(),
    ] {
        let key = format!("{:?}", short.algorithm());
        assert_eq!(admitted(&*limiter, &key, long, 1).await, 1);
        cx.elapse(Duration::from_secs(3570)).await;
        assert_eq!(admitted(&*limiter, &key, long, 100).await, 99);
        // What the long one took at the end of its hour counts during the next.
        for minutes in [1, 3, 2] {
            cx.elapse(Duration::from_mins(minutes)).await;
            assert_eq!(admitted(&*limiter, &key, short, 1).await, 1);
            let again = admitted(&*limiter, &key, long, 100).await;
            assert!(again <= 15, "{key}: {again}");
        }
    }
}

async fn refund_of_a_long_window_leaves_what_a_short_one_took(cx: Context) {
    let long = Quota::per_hour(100).fixed_window();
    let short = Quota::per_minute(100).sliding_window();
    let limiter = cx.backend().await.rate_limiter(long).unwrap();
    let of_long = PermitRequest::new("door").cost(99).quota(long);
    let of_short = PermitRequest::new("door").cost(90).quota(short);
    let one = |quota| [PermitRequest::new("door").quota(quota)];
    let taken = limiter.check_each(&one(long)).await.unwrap();
    assert!(taken[0].is_allowed());
    cx.elapse(Duration::from_secs(3570)).await;
    let reserved = limiter.reserve(&of_long, HOUR).await.unwrap().unwrap();
    cx.elapse(Duration::from_secs(90)).await;
    let later = limiter.check_each(&[of_short]).await.unwrap();
    assert!(later[0].is_allowed());
    cx.elapse(Duration::from_secs(65)).await;
    let later = limiter.check_each(&one(short)).await.unwrap();
    assert!(later[0].is_allowed());
    let counts = async || {
        let level = cx.limit("door").await.unwrap();
        (level.before, level.used)
    };
    assert_eq!(counts().await, (90, 1));
    reserved.cancel().await.unwrap();
    assert_eq!(counts().await, (90, 1));
}

async fn sweep_keeps_what_a_longer_window_counts(cx: Context) {
    let minute = Quota::per_minute(5).sliding_window();
    let day = Quota::per_day(5).sliding_window();
    let limiter = cx.backend().await.rate_limiter(minute).unwrap();
    assert_eq!(admitted(&*limiter, "longer", day, 6).await, 5);
    assert_eq!(admitted(&*limiter, "longer", minute, 6).await, 0);
    assert_eq!(admitted(&*limiter, "shorter", minute, 6).await, 5);
    for hours in [1, 22, 24] {
        cx.elapse(HOUR * hours).await;
        let left = async || limiter.peek(&PermitRequest::new("longer").quota(day)).await;
        let shorter = async || {
            limiter
                .peek(&PermitRequest::new("shorter").quota(day))
                .await
        };
        let before = (
            left().await.unwrap().remaining(),
            shorter().await.unwrap().remaining(),
        );
        while limiter.sweep().await.unwrap() > 0 {}
        let after = (
            left().await.unwrap().remaining(),
            shorter().await.unwrap().remaining(),
        );
        assert_eq!(before, after, "after {hours} hours");
        assert_eq!(cx.limit("longer").await.is_some(), hours < 24 * 2);
        assert!(cx.limit("shorter").await.is_none());
    }
}

async fn row_of_any_numbers_is_no_overflow(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(5)).unwrap();
    let namespace = cx.namespace();
    let columns = [
        "at",
        "tat",
        "started",
        "span",
        "used",
        "before",
        "slide",
        "span_before",
        "blocked_until",
        "due",
        "reserved",
        "taken",
        "withheld_from",
        "withheld",
    ];
    let numbers = [
        i64::MIN,
        -4_000_000_000_000_000_000,
        -1,
        0,
        1_000_000_000,
        31_622_400_000_000_000,
        4_000_000_000_000_000_000,
        i64::MAX,
    ];
    let quotas = [
        Quota::per_hour(5),
        Quota::per_hour(5).fixed_window(),
        Quota::per_hour(5).sliding_window(),
        Quota::new(1_000_000_000, Duration::from_hours(366 * 24)).sliding_window(),
    ];
    for column in columns {
        for number in numbers {
            let key = format!("{column} {number}");
            let _ = limiter.check(&*key).await.unwrap();
            // What no limit can have led to is refused by the table; the rest is decided.
            cx.sql(&format!(
                "DO $$ BEGIN
                     UPDATE lockapi.rate_limit SET {column} = {number}::int8
                      WHERE namespace = '{namespace}' AND key = '{key}';
                 EXCEPTION WHEN check_violation OR numeric_value_out_of_range THEN NULL; END $$"
            ))
            .await;
            for quota in quotas {
                let request = PermitRequest::new(&*key).quota(quota);
                let _ = limiter.peek(&request).await.unwrap();
                let each = limiter
                    .check_each(std::slice::from_ref(&request))
                    .await
                    .unwrap();
                limiter.refund(&each[0]).await.unwrap();
                let both = [
                    request.clone(),
                    PermitRequest::new("other").quota(Quota::per_second(1000)),
                ];
                let _ = limiter.check_all(&both).await.unwrap();
            }
            let longest = limiter.check(&*key).await.unwrap().retry_after();
            let blocked = column == "blocked_until";
            assert!(blocked || longest <= HOUR * 24 * 3660, "{key}: {longest:?}");
            limiter.reset(&key.into()).await.unwrap();
        }
    }
    limiter.sweep().await.unwrap();
}

async fn step_back_of_the_clock_forgets_nothing(cx: Context) {
    for quota in [
        Quota::per_hour(10),
        Quota::per_hour(10).fixed_window(),
        Quota::per_hour(10).sliding_window(),
    ] {
        let limiter = cx.backend().await.rate_limiter(quota).unwrap();
        let key = format!("{:?}", quota.algorithm());
        assert_eq!(admitted(&*limiter, &key, quota, 12).await, 10);
        cx.set_clock_back(HOUR * 24).await;
        // As much is taken as before, and comes back in the same time.
        let refused = limiter.check(&*key).await.unwrap();
        assert!(!refused.is_allowed(), "{key}");
        assert!(refused.retry_after() <= HOUR * 2, "{key}: {refused:?}");
        cx.elapse(HOUR * 2).await;
        assert_eq!(admitted(&*limiter, &key, quota, 12).await, 10, "{key}");
    }
}
