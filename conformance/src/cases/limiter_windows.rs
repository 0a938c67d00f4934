//! Rate limits that count in windows.

use lockapi::limit::Quota;

use super::limiter::{HOUR, SLACK, admitted};
use crate::context::Context;
use crate::harness::register;

register! { "limiter_windows":
    R16 fixed_window_ends_at_once;
    R16 sliding_window_counts_a_part_of_the_one_before;
}

async fn fixed_window_ends_at_once(cx: Context) {
    let quota = Quota::per_hour(4).fixed_window();
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    assert_eq!(admitted(&*limiter, "door", 3).await, 3);
    cx.elapse(HOUR.saturating_sub(SLACK)).await;
    assert_eq!(admitted(&*limiter, "door", 3).await, 1);
    let refused = limiter.check_cost("door", 2).await.unwrap();
    assert!(refused.retry_after() <= SLACK && !refused.retry_after().is_zero());
    assert_eq!(refused.remaining(), 0);
    cx.elapse(refused.retry_after()).await;
    // All are back, and the window starts with the first that is taken.
    cx.elapse(HOUR / 2).await;
    assert_eq!(admitted(&*limiter, "door", 6).await, 4);
    cx.elapse(HOUR.saturating_sub(SLACK)).await;
    assert_eq!(admitted(&*limiter, "door", 2).await, 0);
}

async fn sliding_window_counts_a_part_of_the_one_before(cx: Context) {
    let quota = Quota::per_hour(10).sliding_window();
    let limiter = cx.backend().await.rate_limiter(quota).unwrap();
    assert_eq!(admitted(&*limiter, "door", 12).await, 10);
    let refused = limiter.check("door").await.unwrap();
    // One of ten has slid out after a tenth of the next window.
    let (retry, due) = (refused.retry_after(), HOUR + HOUR / 10);
    assert!(
        retry <= due && retry > due.saturating_sub(SLACK),
        "{retry:?}"
    );
    cx.elapse(retry.saturating_sub(SLACK)).await;
    assert!(!limiter.check("door").await.unwrap().is_allowed());
    cx.elapse(SLACK).await;
    assert!(limiter.check("door").await.unwrap().is_allowed());
    assert!(!limiter.check("door").await.unwrap().is_allowed());
    cx.elapse(HOUR / 2).await;
    // Four of ten still count, and the one since.
    assert_eq!(admitted(&*limiter, "door", 8).await, 5);
    cx.elapse(HOUR * 3).await;
    assert_eq!(admitted(&*limiter, "door", 12).await, 10);
}
