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
use crate::limit::{Algorithm, Decision, MAX_PERIOD, MAX_PERMITS, Quota};

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

/// Whether the documentation allows a quota, in plain arithmetic.
fn is_allowed(quota: &Quota) -> bool {
    let (permits, limit) = (u128::from(quota.permits()), u128::from(quota.limit()));
    let counts = |count| (1..=1_000_000_000).contains(&count);
    let period = quota.period().as_nanos();
    let year = 366 * 86_400 * 1_000_000_000_u128;
    if !counts(permits) || !counts(limit) || !(1_000_000..=year).contains(&period) {
        return false;
    }
    if quota.algorithm() == Algorithm::Gcra {
        // Ten million a second, and a burst that is there again in ten years.
        return period >= 100 * permits && period.div_ceil(permits) * limit <= 10 * year;
    }
    let plain = Quota::new(quota.permits(), quota.period());
    [plain.fixed_window(), plain.sliding_window()].contains(quota)
}

/// What a permit costs.
fn unit(quota: &Quota) -> i128 {
    match quota.algorithm() {
        Algorithm::Gcra => {
            let (period, permits) = (quota.period().as_nanos(), u128::from(quota.permits()));
            period.div_ceil(permits).cast_signed()
        }
        _ => 1,
    }
}

#[test]
fn quotas_are_checked_without_overflow() {
    let edges = [
        Quota::new(1, MAX_PERIOD).burst(10),
        Quota::new(1, MAX_PERIOD).burst(11),
        Quota::new(MAX_PERMITS, MAX_PERIOD),
        Quota::new(10_000, Duration::from_millis(1)),
        Quota::new(10_001, Duration::from_millis(1)),
        Quota::new(MAX_PERMITS, Duration::from_millis(1)).sliding_window(),
        Quota::new(3, Duration::from_nanos(1_000_001)).fixed_window(),
        Quota::new(u64::MAX, Duration::MAX),
        Quota::per_second(0),
    ];
    let known = edges.into_iter().flat_map(|quota| {
        [0, 1, quota.limit(), quota.limit().saturating_add(1)].map(|cost| (quota, cost))
    });
    check(known, &(quota(), any::<u64>()), |(quota, cost)| {
        prop_assert_eq!(quota.check().is_ok(), is_allowed(&quota), "{:?}", quota);
        if quota.check().is_ok() {
            let limit = quota.limit();
            let price = i128::from(cost.min(limit)) * unit(&quota);
            prop_assert_eq!(i128::from(quota.price(cost.min(limit))), price);
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
    check([], &cases, |(one, other, start, steps)| {
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
    check([], &cases, |(quota, level, now, taken, cost)| {
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

/// One quota on a clock that goes forward, in plain arithmetic.
#[derive(Debug, Default)]
struct Plain {
    /// When all is there again.
    full: i128,
    /// When the window began, if one has.
    began: Option<i128>,
    used: i128,
    before: i128,
}

impl Plain {
    /// Begins the window of a time, if that of the one before has ended.
    fn begin(&mut self, quota: &Quota, now: i128) {
        let window = i128::from(quota.window());
        let slides = quota.is_sliding();
        let Some(began) = self.began else {
            self.began = Some(now);
            return;
        };
        let over = (now - began) / window;
        if over > 0 {
            let next = over == 1 && slides;
            self.before = if next { self.used } else { 0 };
            self.began = Some(if next { began + window } else { now });
            self.used = 0;
        }
    }

    /// The least and the most that may be left.
    fn room(&mut self, quota: &Quota, now: i128) -> (i128, i128) {
        let depth = i128::from(quota.limit()) * unit(quota);
        if quota.algorithm() == Algorithm::Gcra {
            let room = depth - (self.full - now).max(0);
            return (room, room);
        }
        let mut level = Self { ..*self };
        level.begin(quota, now);
        let window = i128::from(quota.window());
        let left = window - (now - level.began.unwrap_or(now));
        // What counts of the window before, and a step of a millionth more.
        let step = window / 1_000_000;
        let counts = (level.before * left + window - 1) / window;
        let steps = step * 1_000_000;
        let most = (level.before * (left + step) / steps).min(level.before) + 1;
        (depth - level.used - most, depth - level.used - counts)
    }

    fn take(&mut self, quota: &Quota, price: i128, now: i128) {
        if quota.algorithm() == Algorithm::Gcra {
            self.full = self.full.max(now) + price;
        } else {
            self.begin(quota, now);
            self.used += price;
        }
    }
}

/// What is left is what plain arithmetic says, and no more is ever taken than the quota has.
#[test]
fn levels_are_those_of_plain_arithmetic() {
    let short =
        (1..20_u64, 1_000_000..2_500_000_u64, 0..3_u8).prop_map(|(permits, period, kind)| {
            let quota = Quota::new(permits, Duration::from_nanos(period));
            match kind {
                0 => quota,
                1 => quota.fixed_window(),
                _ => quota.sliding_window(),
            }
        });
    let passes = prop_oneof![
        2 => (0..3_000_000_i64).prop_map(|nanos| (nanos, 0)),
        // So many millionths of the period.
        3 => (0..2_500_000_i64).prop_map(|part| (0, part)),
        1 => Just((0, 1_000_000)),
    ];
    let step = (passes, 1..=MAX_PERMITS, any::<bool>());
    let quotas = prop_oneof![short, checked()];
    let start = NOW.start..NOW.start * 2;
    check(
        [],
        &(quotas, start, vec(step, 1..16)),
        |(quota, start, steps)| {
            let (mut level, mut plain, mut now) = (Level::default(), Plain::default(), start);
            let mut taken: Vec<(i128, i128)> = Vec::new();
            for ((nanos, millionths), permits, small) in steps {
                let period = i128::try_from(quota.period().as_nanos()).unwrap_or(0);
                let part = period * i128::from(millionths) / 1_000_000;
                now += nanos + i64::try_from(part).unwrap_or(0);
                let permits = if small { permits % 3 + 1 } else { permits }.min(quota.limit());
                let price = quota.price(permits);
                let at = i128::from(now);
                let (least, most) = plain.room(&quota, at);
                let room = i128::from(level.room(&quota, now));
                prop_assert!(
                    (least..=most).contains(&room),
                    "{least} {room} {most} {plain:?}"
                );
                let fits = level.fits(&quota, price, now);
                prop_assert_eq!(i128::from(fits), room.max(0) / i128::from(price));
                let wait = level.wait_for(&quota, price, now);
                if !quota.is_sliding() && wait > 0 {
                    prop_assert_eq!(
                        level.fits(&quota, price, now + wait - 1),
                        0,
                        "it waits too long"
                    );
                }
                if fits > 0 {
                    level.take(&quota, price, now);
                    plain.take(&quota, i128::from(price), at);
                    taken.push((at, i128::from(permits)));
                }
            }
            if quota.algorithm() == Algorithm::Gcra {
                let period = i128::try_from(quota.period().as_nanos()).unwrap_or(0);
                for (first, (begin, _)) in taken.iter().enumerate() {
                    let mut sum = 0;
                    for (at, permits) in &taken[first..] {
                        sum += permits;
                        let refilled = (at - begin) * i128::from(quota.permits());
                        prop_assert!((sum - i128::from(quota.limit())) * period <= refilled);
                    }
                }
            }
            Ok(())
        },
    );
}
