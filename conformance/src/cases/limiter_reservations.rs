//! Many reservations of one limit.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::limit::{Algorithm, MAX_PERIOD, MAX_RESERVATIONS, PermitRequest, Quota};
use lockapi::{ErrorKind, RateLimiter, Reservation};

use super::limiter::HOUR;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::eventually;

register! { "limiter_reservations":
    W04 thousands_of_reservations_end_together;
    W04 reservations_end_in_few_statements @ Own [Sql];
    W04 reservations_beyond_the_bound_are_refused [Futures];
    R12 what_is_replenished_is_withheld_from_one_refund;
    R12 key_recovers_from_thousands_that_expired [Futures];
    R12 what_has_expired_is_swept_where_nobody_asks_again [Futures];
    R12 reservation_of_a_key_that_was_reset_is_lost;
    R12 reservation_is_given_back_to_its_own_algorithm;
}

/// As many as took 47 s while each was ended for itself, under the lock of the row.
const MANY: usize = 8000;

/// How many end at the same time.
const TOGETHER: usize = 200;

async fn reserve(
    limiter: &Arc<dyn RateLimiter>,
    request: &PermitRequest,
    many: usize,
    ttl: Duration,
) -> Vec<Box<dyn Reservation>> {
    // The blocking face has a thread for each call.
    let mut open = Vec::new();
    while open.len() < many {
        let part = (many - open.len()).min(TOGETHER);
        let calls = (0..part).map(|_| limiter.reserve(request, ttl));
        for reserved in join_all(calls).await {
            open.push(reserved.unwrap().unwrap());
        }
    }
    open
}

async fn end(open: Vec<Box<dyn Reservation>>) {
    let mut open = open.into_iter().enumerate();
    loop {
        let part = open.by_ref().take(TOGETHER);
        let calls = part.map(|(nth, one)| {
            if nth % 2 == 0 {
                one.cancel()
            } else {
                one.commit(0)
            }
        });
        let ended = join_all(calls).await;
        if ended.is_empty() {
            return;
        }
        for one in ended {
            one.unwrap();
        }
    }
}

/// What flows back in a case is next to nothing.
fn slow(permits: u64) -> Quota {
    Quota::new(permits.div_ceil(10), MAX_PERIOD).burst(permits)
}

async fn thousands_of_reservations_end_together(cx: Context) {
    let many = cx.crowd(MANY);
    let all = u64::try_from(many / 4 * 5).unwrap();
    let limiter = cx.backend().await.rate_limiter(slow(all)).unwrap();
    let request = PermitRequest::new("door");
    let left = async || limiter.peek(&request).await.unwrap().remaining();
    let open = reserve(&limiter, &request, many, HOUR).await;
    assert_eq!(left().await, all / 5);
    end(open).await;
    // What flowed back while each of them was open is not given back.
    let left = left().await;
    assert!((all - all / 100..=all).contains(&left), "{left}");
    assert_eq!(cx.limit("door").await.unwrap().reserved, 0);
}

/// What an end costs is the change of the limit's row, of which one statement makes one for all that come together.
async fn reservations_end_in_few_statements(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(slow(10_000)).unwrap();
    let request = PermitRequest::new("door");
    let open = reserve(&limiter, &request, TOGETHER * 5, HOUR).await;
    cx.sql(
        "CREATE SEQUENCE changes;
         CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN PERFORM nextval(''public.changes''); RETURN NULL; END';
         CREATE TRIGGER counted AFTER UPDATE ON lockapi.rate_limit
             FOR EACH ROW EXECUTE FUNCTION count_change();
         SELECT ''",
    )
    .await;
    end(open).await;
    let changes = cx.sql("SELECT (nextval('changes') - 1)::text").await;
    let changes: usize = changes[0].parse().unwrap();
    // Of those that come together, some wait for the end of the first ones.
    let together = changes <= 5 * 5 || !cx.calls_arrive_together();
    assert!(changes >= 5 && together, "{changes} changes");
    assert_eq!(cx.limit("door").await.unwrap().reserved, 0);
}

async fn reservations_beyond_the_bound_are_refused(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_day(100_000))
        .unwrap();
    let request = PermitRequest::new("door");
    let mut open = reserve(&limiter, &request, MAX_RESERVATIONS - 5, HOUR).await;
    // Of those that come together, as many as there is room for.
    let calls = (0..20).map(|_| limiter.reserve(&request, HOUR));
    let mut refused = 0;
    for reserved in join_all(calls).await {
        match reserved {
            Ok(reserved) => open.push(reserved.unwrap()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!((open.len(), refused), (MAX_RESERVATIONS, 15));
    // Others are not refused, and neither is one that comes after an end.
    assert!(limiter.check("door").await.unwrap().is_allowed());
    drop(reserve(&limiter, &PermitRequest::new("other"), 1, HOUR).await);
    open.pop().unwrap().commit(1).await.unwrap();
    let last = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
    last.cancel().await.unwrap();
    // What has expired makes room as well.
    open.into_iter().for_each(std::mem::forget);
    cx.elapse(HOUR).await;
    let last = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
    last.cancel().await.unwrap();
    assert_eq!(cx.limit("door").await.unwrap().reserved, 0);
}

/// Reservations that are open at the same time give back all but what was replenished meanwhile: once, not once for
/// each.
async fn what_is_replenished_is_withheld_from_one_refund(cx: Context) {
    let limiter = cx
        .backend()
        .await
        .rate_limiter(Quota::per_hour(100))
        .unwrap();
    let hold = HOUR / 20;
    // In an hour's twentieth five of a hundred are replenished.
    let check = async |key: &str| {
        let left = limiter
            .peek(&PermitRequest::new(key))
            .await
            .unwrap()
            .remaining();
        assert!((98..=100).contains(&left), "{key}: {left}");
        // And no more than that can be taken.
        let one = limiter.check_cost(key, left).await.unwrap();
        assert!(one.is_admitted());
        assert!(!limiter.check_cost(key, 3).await.unwrap().is_admitted());
    };
    for way in ["cancelled", "committed", "at once", "expired"] {
        let request = PermitRequest::new(way).cost(10);
        let mut open = reserve(&limiter, &request, 10, hold * 2).await;
        cx.elapse(hold).await;
        match way {
            "cancelled" => {
                for one in open {
                    one.cancel().await.unwrap();
                }
            }
            "committed" => {
                open.reverse();
                for one in open {
                    one.commit(0).await.unwrap();
                }
            }
            "at once" => end(open).await,
            _ => {
                open.into_iter().for_each(std::mem::forget);
                cx.elapse(hold + hold / 10).await;
            }
        }
        check(way).await;
    }
}

async fn key_recovers_from_thousands_that_expired(cx: Context) {
    let window = Quota::new(3000, MAX_PERIOD);
    for quota in [slow(8000), window.fixed_window(), window.sliding_window()] {
        let limiter = cx.backend().await.rate_limiter(quota).unwrap();
        let key = format!("{:?}", quota.algorithm());
        let request = PermitRequest::new(&*key);
        let all = usize::try_from(quota.limit()).unwrap();
        let open = reserve(&limiter, &request, all - 1, HOUR).await;
        open.into_iter().for_each(std::mem::forget);
        let later = reserve(&limiter, &request, 1, HOUR * 3).await;
        assert!(!limiter.check(&*key).await.unwrap().is_allowed());
        cx.elapse(HOUR * 2).await;
        assert!(limiter.check(&*key).await.unwrap().is_allowed(), "{key}");
        let left = limiter.peek(&request).await.unwrap().remaining();
        // Two hours of a permit's eleven have flowed back, and are not given back.
        let least = if quota.algorithm() == Algorithm::Gcra {
            6000
        } else {
            2998
        };
        assert!((least..quota.limit() - 1).contains(&left), "{key}: {left}");
        assert_eq!(cx.limit(&key).await.unwrap().reserved, 1);
        end(later).await;
    }
}

async fn what_has_expired_is_swept_where_nobody_asks_again(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_hour(100));
    let limiter = limiter.unwrap();
    for (key, hold) in [("gone", HOUR), ("kept", HOUR * 20)] {
        let open = reserve(&limiter, &PermitRequest::new(key), 30, hold).await;
        open.into_iter().for_each(std::mem::forget);
    }
    // It sweeps all namespaces.
    limiter.sweep().await.unwrap();
    assert_eq!(cx.limit("gone").await.unwrap().reserved, 30);
    cx.elapse(HOUR + MINUTE * 2).await;
    // A row that the sweep of another process has locked is left to the next one.
    eventually("swept", async || {
        limiter.sweep().await.unwrap();
        cx.limit("gone").await.is_none()
    })
    .await;
    assert_eq!(cx.limit("kept").await.unwrap().reserved, 30);
}

async fn reservation_of_a_key_that_was_reset_is_lost(cx: Context) {
    let limiter = cx.backend().await.rate_limiter(Quota::per_day(10)).unwrap();
    let request = PermitRequest::new("door").cost(6);
    let before = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
    limiter.reset(&"door".into()).await.unwrap();
    let after = limiter.reserve(&request, HOUR).await.unwrap().unwrap();
    let error = before.cancel().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(limiter.peek(&request).await.unwrap().remaining(), 4);
    after.commit(6).await.unwrap();
    assert_eq!(limiter.peek(&request).await.unwrap().remaining(), 4);
}

async fn reservation_is_given_back_to_its_own_algorithm(cx: Context) {
    let cells = Quota::per_day(10);
    let limiter = cx.backend().await.rate_limiter(cells).unwrap();
    for window in [cells.fixed_window(), cells.sliding_window()] {
        let key = format!("{:?}", window.algorithm());
        let request = |quota| PermitRequest::new(&*key).cost(6).quota(quota);
        let left = async |quota| limiter.peek(&request(quota)).await.unwrap().remaining();
        let of_cells = limiter
            .reserve(&request(cells), HOUR)
            .await
            .unwrap()
            .unwrap();
        let of_window = limiter
            .reserve(&request(window), HOUR)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((left(cells).await, left(window).await), (4, 4));
        of_cells.cancel().await.unwrap();
        assert_eq!((left(cells).await, left(window).await), (10, 4));
        of_window.commit(1).await.unwrap();
        assert_eq!((left(cells).await, left(window).await), (10, 9));
    }
}
