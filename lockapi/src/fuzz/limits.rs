//! Quotas at the edges of their types, and states that statements may answer.

use std::ops::Range;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq};

use super::rows::int;
use super::{check, is_refused};
use crate::Key;
use crate::limit::level::{Level, Refunded};
use crate::limit::raw_decision::{Outcome, RawDecision};
use crate::limit::{Decision, MAX_PERIOD, MAX_PERMITS, Quota};

/// The clock of a server, in nanoseconds: from 2000 until the end of the times that the table takes, in 2096.
const NOW: Range<i64> = 946_684_800_000_000_000..4_000_000_000_000_000_000;

fn permits() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..1000_u64,
        1..=MAX_PERMITS,
        MAX_PERMITS - 1..MAX_PERMITS + 2,
        0..2_u64,
        Just(u64::MAX)
    ]
}

fn period() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (1..366 * 86_400_u64).prop_map(Duration::from_secs),
        (1..5_000_000_000_u64).prop_map(Duration::from_nanos),
        Just(MAX_PERIOD),
        Just(MAX_PERIOD + Duration::from_nanos(1)),
        Just(Duration::ZERO),
        Just(Duration::MAX),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    let burst = proptest::option::weighted(0.3, permits());
    (permits(), period(), burst, 0..3_u8).prop_map(|(permits, period, burst, algorithm)| {
        let quota = Quota::new(permits, period);
        let quota = burst.map_or(quota, |burst| quota.burst(burst));
        match algorithm {
            0 => quota,
            1 => quota.fixed_window(),
            _ => quota.sliding_window(),
        }
    })
}

/// Quotas that were checked.
fn checked() -> impl Strategy<Value = Quota> {
    quota().prop_filter("a valid quota", |quota| quota.check().is_ok())
}

#[test]
fn quotas_are_checked_without_overflow() {
    check(&(quota(), any::<u64>()), |(quota, cost)| {
        if quota.check().is_ok() {
            let limit = quota.limit();
            prop_assert_eq!(quota.check_cost(cost).is_ok(), (1..=limit).contains(&cost));
            prop_assert!(quota.price(limit) > 0 && quota.price(1) > 0);
            prop_assert!(quota.price(limit) < i64::MAX / 4, "{quota:?}");
        } else {
            prop_assert!(is_refused(&quota.check()));
        }
        Ok(())
    });
}

/// What happens to a state: something is taken by one of two quotas, or given back, or time passes or runs back.
#[test]
fn states_never_overflow_and_say_when_there_is_room() {
    let step = (any::<bool>(), 1..=MAX_PERMITS, 0..4_u8, time());
    let cases = (checked(), checked(), NOW, vec(step, 1..12));
    check(&cases, |(one, other, start, steps)| {
        let (mut level, mut now) = (Level::default(), start);
        for (first, permits, what, time) in steps {
            let quota = if first { one } else { other };
            let price = quota.price(permits.min(quota.limit()));
            match what {
                0 => now = now.saturating_add(time).clamp(NOW.start, NOW.end),
                1 => {
                    let (window, at) = (quota.window(), now.saturating_sub(time.abs()));
                    level.give_back(&[Refunded { price, window, at }], now);
                }
                _ if level.fits(&quota, price, now) > 0 => level.take(&quota, price, now),
                _ => {}
            }
            if level.is_ahead(now) {
                // What is told is as of now, and is not stored: the clock may be put right again.
                continue;
            }
            let wait = level.wait_for(&quota, price, now);
            prop_assert_eq!(wait == 0, level.fits(&quota, price, now) > 0);
            prop_assert!(
                level.fits(&quota, price, now + wait) > 0,
                "{wait} {level:?}"
            );
            let idle = level.idle_in(&quota, now);
            prop_assert!(idle >= 0);
            let room = level.room(&quota, now + idle);
            prop_assert_eq!(room, quota.price(quota.limit()), "{} {:?}", idle, level);
        }
        Ok(())
    });
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![
        0..2_000_000_000_i64,
        0..400 * 86_400_000_000_000_i64,
        -2_000_000_000..0_i64
    ]
}

/// A state that the constraints of the table let through, whoever wrote it.
fn stored() -> impl Strategy<Value = Level> {
    const LEAST: i64 = -4_000_000_000_000_000_000;
    const BURST: i64 = 316_224_000_000_000_000;
    const SPAN: i64 = 31_622_400_000_000_000;
    let at = prop_oneof![Just(LEAST), Just(-LEAST), Just(0), LEAST..-LEAST, NOW];
    let near = |edge: i64| {
        let below = (1..100_000_000_000_i64).prop_map(move |by| edge.saturating_sub(by));
        prop_oneof![Just(LEAST), Just(edge), LEAST..=edge, below]
    };
    let times = at.prop_flat_map(move |at| (Just(at), near(at + BURST), near(at)));
    let span = || prop_oneof![Just(0), Just(SPAN), 0..=SPAN, 0..2_000_000_000_i64];
    let count = || prop_oneof![Just(0), Just(1_000_000_000), 0..=1_000_000_000_i64];
    let windows = (span(), span(), span(), count(), count());
    let withheld = (LEAST..=-LEAST, 0..=BURST);
    (times, windows, int(), withheld).prop_map(
        |((at, tat, started), windows, blocked_until, withheld)| {
            let (span, slide, span_before, used, before) = windows;
            Level {
                at,
                tat,
                started,
                span,
                used,
                before,
                slide,
                span_before,
                withheld_from: withheld.0,
                withheld: withheld.1,
                blocked_until,
                reserved: 0,
            }
        },
    )
}

#[test]
fn any_stored_state_is_decided() {
    let cases = (checked(), stored(), NOW, any::<bool>(), 1..=MAX_PERMITS);
    check(&cases, |(quota, level, now, taken, cost)| {
        let cost = cost.min(quota.limit());
        let outcome = if taken {
            Outcome::Taken(1)
        } else {
            Outcome::Refused
        };
        let raw = RawDecision {
            outcome,
            level: level.clone(),
            now,
        };
        let decision = Decision::decided(&Key::from("key"), quota, cost, &raw);
        prop_assert!(decision.remaining() <= quota.limit(), "{decision:?}");
        prop_assert_eq!(decision.is_admitted(), taken);
        let mut level = level;
        let price = quota.price(cost);
        let (window, at) = (quota.window(), now);
        level.give_back(&[Refunded { price, window, at }], now);
        if level.fits(&quota, price, now) > 0 {
            level.take(&quota, price, now);
        }
        Ok(())
    });
}
