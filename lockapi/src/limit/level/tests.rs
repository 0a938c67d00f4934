//! What the arithmetic of limits promises, at random.

use std::time::Duration;

use super::*;

const START: i64 = 1_700_000_000_000_000_000;

/// Quotas that do not divide evenly, and others.
fn quotas() -> Vec<Quota> {
    let of = |permits, nanos, burst| Quota::new(permits, Duration::from_nanos(nanos)).burst(burst);
    let mut quotas = vec![
        of(7, 1_000_000_000, 7),
        of(1, 1_000_000, 1),
        of(3, 1_000_000, 5),
        of(10_000_000, 1_000_000_000, 1000),
        of(1, 3_600_000_000_000, 20),
    ];
    for permits in [1, 7, 1000] {
        let quota = Quota::new(permits, Duration::from_secs(61));
        quotas.extend([quota.fixed_window(), quota.sliding_window()]);
    }
    quotas
}

fn give_back(level: &mut Level, (price, window, at): (i64, i64, i64), now: i64) {
    level.give_back(&[Refunded { price, window, at }], now);
}

/// Takes at random times, and answers what was taken when.
fn history(quota: &Quota, seed: u64) -> Vec<(i64, i64)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut level, mut now, mut taken) = (Level::default(), START, Vec::new());
    let scale = quota.window() / 4 + quota.interval();
    for _ in 0..300 {
        now += random.i64(0..=scale) / random.i64(1..=20);
        let cost = random.u64(1..=quota.limit().min(3));
        if level.fits(quota, quota.price(cost), now) > 0 {
            level.take(quota, quota.price(cost), now);
            taken.push((now, i64::try_from(cost).unwrap()));
        }
    }
    assert!(taken.len() > 5);
    taken
}

/// What was taken from `from` until just before `until`.
fn within(history: &[(i64, i64)], from: i64, until: i64) -> i64 {
    let inside = history.iter().filter(|(at, _)| (from..until).contains(at));
    inside.map(|(_, cost)| cost).sum()
}

#[test]
fn no_window_holds_more_than_burst_and_rate() {
    for quota in quotas().iter().filter(|quota| quota.window() == 0) {
        for seed in 0..20 {
            let history = history(quota, seed);
            for (n, (from, _)) in history.iter().enumerate() {
                for (until, _) in &history[n..] {
                    let taken = i128::from(within(&history, *from, until + 1));
                    let flowed = i128::from(until - from) * i128::from(quota.permits());
                    let most = i128::from(quota.limit())
                        + flowed / i128::try_from(quota.period().as_nanos()).unwrap();
                    assert!(taken <= most, "{taken} of {most}, {quota:?}");
                }
            }
        }
    }
}

#[test]
fn windows_keep_to_their_definitions() {
    for quota in quotas().iter().filter(|quota| quota.window() > 0) {
        let (window, limit) = (quota.window(), i64::try_from(quota.limit()).unwrap());
        for seed in 0..20 {
            let history = history(quota, seed);
            // Of any window, what a fixed one admits is at most that of two.
            for (from, _) in &history {
                assert!(within(&history, *from, from + window) <= 2 * limit);
            }
            let mut start = START;
            for (at, _) in &history {
                if *at >= start + window || start == START {
                    start = *at;
                    let fixed = quota.algorithm() == Algorithm::FixedWindow;
                    assert!(!fixed || within(&history, start, start + window) <= limit);
                }
            }
        }
    }
}

#[test]
fn retry_after_is_exact() {
    for quota in &quotas() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut level, mut now) = (Level::default(), START);
        for _ in 0..500 {
            let price = quota.price(random.u64(1..=quota.limit().min(3)));
            let wait = level.wait_for(quota, price, now);
            let fits = |at| level.fits(quota, price, at) > 0;
            assert_eq!(wait == 0, fits(now), "{quota:?}");
            assert!(wait == 0 || !fits(now + wait - 1), "{quota:?} {level:?}");
            assert!(fits(now + wait), "{quota:?} {level:?}");
            now += wait;
            level.take(quota, price, now);
            let idle = now + level.idle_in(quota, now);
            let depth = quota.price(quota.limit());
            assert_eq!(level.room(quota, idle), depth, "{quota:?}");
            now += random.i64(0..=quota.interval());
        }
    }
}

#[test]
fn a_rest_gives_the_burst_and_no_more() {
    for quota in &quotas() {
        let mut level = Level::default();
        for now in [START, START + quota.window() * 3 + quota.interval() * 1000] {
            let one = quota.price(1);
            let mut taken = 0;
            while level.fits(quota, one, now) > 0 {
                level.take(quota, one, now);
                taken += 1;
            }
            assert_eq!(taken, quota.limit(), "{quota:?}");
        }
    }
}

#[test]
fn a_refund_gives_back_no_more_than_was_lost() {
    let quota = Quota::per_second(10);
    let (one, second) = (quota.price(1), 1_000_000_000);
    let mut level = Level::default();
    level.take(&quota, one * 6, START);
    // Half a second later five of six have flowed back: one is left to be given.
    level.take(&quota, one * 5, START + second / 2);
    give_back(&mut level, (one * 6, 0, START), START + second / 2);
    assert_eq!(level.room(&quota, START + second / 2), one * 5);
    give_back(&mut level, (one * 6, 0, START), START + second);
    assert_eq!(level.room(&quota, START + second), one * 10);
}

/// What was open at the same time and is given back leaves what it would be without it, in any order, in one
/// statement or in several.
#[test]
fn what_is_replenished_is_withheld_once() {
    let quota = Quota::per_minute(100);
    let (one, second) = (quota.price(1), 1_000_000_000);
    for (seed, size) in (0..20).flat_map(|seed| [1, 3, 10].map(|size| (seed, size))) {
        let mut level = Level::default();
        let mut open = Vec::new();
        for nth in 0..10 {
            let at = START + nth * 1_000_000;
            level.take(&quota, one * 10, at);
            open.push(Refunded {
                price: one * 10,
                window: 0,
                at,
            });
        }
        match seed {
            0 => (),
            1 => open.reverse(),
            _ => fastrand::Rng::with_seed(seed).shuffle(&mut open),
        }
        let now = START + 3 * second;
        for part in open.chunks(size) {
            level.give_back(part, now);
        }
        let left = level.room(&quota, now) / one;
        assert!((99..=100).contains(&left), "{left}, {seed}, {size}");
    }
}

/// Calls that run for a while, one after the other and beside each other, and use a part of what they reserved: each
/// loses next to nothing, although all that is replenished while it runs is more than it gives back.
#[test]
fn small_refunds_add_up_to_what_is_replenished() {
    let quota = Quota::per_hour(100_000);
    let (one, second) = (quota.price(1), 1_000_000_000);
    for size in [1, 7, 100] {
        let mut level = Level::default();
        let at = |nth: i64| START + nth * 1_000_000;
        (0..100).for_each(|nth| level.take(&quota, one * 500, at(nth)));
        let ended: Vec<_> = (0..100)
            .map(|nth| Refunded {
                price: one * 179,
                window: 0,
                at: at(nth),
            })
            .collect();
        let now = START + 7 * second;
        ended
            .chunks(size)
            .for_each(|part| level.give_back(part, now));
        let left = level.room(&quota, now) / one;
        assert!(left >= 100_000 - 32_100 - 5, "{left}, {size}");
    }
}

/// Whatever is given back when, no more can be taken than if what was given back had never been taken: what was used
/// keeps to burst and rate in any window.
#[test]
fn what_is_given_back_never_admits_more_than_if_it_was_not_taken() {
    struct Open {
        nth: usize,
        at: i64,
        price: i64,
    }
    const DEPTH: i64 = 1000;
    let (mut given, mut refunds) = (0, 0);
    for seed in 0..3000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut level, mut now) = (Level::default(), START);
        // When it was taken, and what of it was used or is open.
        let mut used: Vec<(i64, i64)> = Vec::new();
        let mut open: Vec<Open> = Vec::new();
        let (step, most) = (random.i64(1..=60), random.i64(1..=200));
        for _ in 0..120 {
            now += random.i64(0..=step) * random.i64(0..=1);
            let price = random.i64(1..=most);
            if random.u8(0..5) < 3 && level.debt(now) + price <= DEPTH {
                level.move_back(now);
                (level.tat, level.at) = (level.tat.max(now) + price, now);
                let nth = used.len();
                open.push(Open {
                    nth,
                    at: now,
                    price,
                });
                used.push((now, price));
            } else if !open.is_empty() {
                let many = random.usize(1..=open.len().min(4));
                let part: Vec<_> = (0..many)
                    .map(|_| {
                        let one = open.swap_remove(random.usize(..open.len()));
                        let price = random.i64(0..=one.price);
                        let price = if random.bool() { one.price } else { price };
                        used[one.nth].1 -= price;
                        let (window, at) = (0, one.at);
                        Refunded { price, window, at }
                    })
                    .collect();
                let before = level.debt(now);
                level.give_back(&part, now);
                given += before - level.debt(now);
                refunds += part.iter().map(|one| one.price).sum::<i64>();
            }
            let tat = used
                .iter()
                .fold(0, |tat: i64, (at, used)| tat.max(*at) + used);
            let without = (tat - now).max(0);
            assert!(
                level.debt(now) >= without,
                "{} < {without}, {seed}",
                level.debt(now)
            );
        }
        for (n, (from, _)) in used.iter().enumerate() {
            for (nth, (until, _)) in used.iter().enumerate().skip(n) {
                let inside: i64 = used[n..=nth].iter().map(|(_, used)| used).sum();
                assert!(inside <= DEPTH + until - from, "{seed}");
            }
        }
    }
    assert!(given * 2 > refunds, "{given} of {refunds}");
}

#[test]
fn a_clock_that_goes_back_is_healed_within_a_burst() {
    for quota in &quotas() {
        let mut level = Level::default();
        level.take(quota, quota.price(1), START);
        let before = START - 86_400_000_000_000;
        let full = quota.price(quota.limit());
        assert_eq!(
            level.room(quota, before),
            full - quota.price(1),
            "{quota:?}"
        );
        let wait = level.idle_in(quota, before);
        level.move_back(before);
        assert!(level.room(quota, before + wait - 1) < full, "{quota:?}");
        assert_eq!(level.room(quota, before + wait), full, "{quota:?}");
    }
}

/// Quotas of one key: what each admits, and those of one rate together.
#[test]
fn no_quota_loosens_another() {
    let hour = |permits, burst| Quota::per_hour(permits).burst(burst);
    let sets = [
        vec![hour(100, 1), hour(100, 7), hour(100, 100)],
        vec![hour(100, 3), hour(3600, 10), hour(7, 7)],
    ];
    for (set, seed) in sets
        .iter()
        .flat_map(|set| (0..40).map(move |seed| (set, seed)))
    {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut level, mut now, mut taken) = (Level::default(), START, Vec::new());
        for _ in 0..400 {
            now += random.i64(0..3) * random.i64(0..=20_000_000_000);
            let quota = &set[random.usize(..set.len())];
            let cost = random.u64(1..=quota.limit().min(3));
            if level.fits(quota, quota.price(cost), now) > 0 {
                level.take(quota, quota.price(cost), now);
                taken.push((now, i64::try_from(cost).unwrap(), *quota));
            }
        }
        let most = |quota: &Quota, time: i64| {
            i64::try_from(quota.limit()).unwrap() + time / quota.interval()
        };
        for (n, (from, ..)) in taken.iter().enumerate() {
            for (until, ..) in &taken[n..] {
                let inside = || {
                    let inside = taken.iter();
                    inside.filter(|(at, ..)| (from..=until).contains(&at))
                };
                for quota in set {
                    let own = inside().filter(|(.., of)| of == quota);
                    let own: i64 = own.map(|(_, cost, _)| cost).sum();
                    assert!(own <= most(quota, until - from), "{own}, {quota:?}");
                }
                if set.iter().all(|quota| quota.permits() == 100) {
                    let all: i64 = inside().map(|(_, cost, _)| cost).sum();
                    assert!(all <= most(&set[2], until - from), "{all}");
                }
            }
        }
    }
}

/// The two definitions, whatever windows of other lengths take meanwhile.
#[test]
fn no_window_loosens_another() {
    let minutes = |many: u64| Duration::from_secs(many * 60);
    let sets = [
        [
            Quota::new(10, minutes(1)).fixed_window(),
            Quota::new(60, minutes(60)).fixed_window(),
            Quota::new(20, minutes(7)).sliding_window(),
        ],
        [
            Quota::new(50, minutes(1)).sliding_window(),
            Quota::new(60, minutes(30)).sliding_window(),
            Quota::new(20, minutes(7)).fixed_window(),
        ],
    ];
    for (seed, set) in (0..60).flat_map(|seed| sets.iter().map(move |set| (seed, set))) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut level, mut now, mut taken) = (Level::default(), START, Vec::new());
        for _ in 0..2000 {
            now += random.i64(0..=60_000_000_000) / random.i64(1..=20);
            let quota = &set[random.usize(..set.len())];
            let wait = level.wait_for(quota, 1, now);
            let fits = |at| level.fits(quota, 1, at) > 0;
            assert_eq!(wait == 0, fits(now), "{quota:?}");
            assert!(wait == 0 || !fits(now + wait - 1), "{quota:?} {level:?}");
            assert!(fits(now + wait), "{quota:?} {level:?}");
            let full = now + level.idle_in(quota, now);
            let limit = i64::try_from(quota.limit()).unwrap();
            assert_eq!(level.room(quota, full), limit, "{quota:?}");
            if wait == 0 {
                level.take(quota, 1, now);
                taken.push((now, *quota));
            }
            assert!(level.forgotten() <= now + 2 * set[1].window());
        }
        for quota in set {
            let own = taken.iter().filter(|(_, of)| of == quota);
            let own: Vec<_> = own.map(|(at, _)| (*at, 1)).collect();
            for (from, _) in &own {
                let most = 2 * i64::try_from(quota.limit()).unwrap();
                assert!(
                    within(&own, *from, from + quota.window()) <= most,
                    "{quota:?}"
                );
            }
            let limit = i128::from(quota.limit());
            let slides = quota.algorithm() == Algorithm::SlidingWindow;
            for (n, (from, _)) in own.iter().enumerate().filter(|_| slides) {
                for (taken, (until, _)) in (1..).zip(&own[n..]) {
                    let most =
                        limit + limit * i128::from(until - from) / i128::from(quota.window()) + 1;
                    assert!(taken <= most, "{taken} of {most}, {quota:?}");
                }
            }
        }
    }
}

/// What a long sliding window took counts for it, however often short ones take after that.
#[test]
fn short_window_does_not_make_a_long_one_forget() {
    let (second, hour) = (1_000_000_000, 3_600_000_000_000);
    let long = Quota::per_hour(100).sliding_window();
    for short in [
        Quota::per_second(1000).sliding_window(),
        Quota::per_second(1000).fixed_window(),
    ] {
        let mut level = Level::default();
        level.take(&long, 1, START);
        level.take(&long, 99, START + hour - second);
        for after in [1, 3, 10, 60] {
            let now = START + hour + after * second;
            level.take(&short, 1, now);
            assert!(level.room(&long, now) <= after, "{short:?} {level:?}");
        }
        // Two hours later the short one is alone again.
        let now = START + hour * 3;
        level.take(&short, 1, now);
        level.take(&short, 1, now + 2 * second);
        assert_eq!(level.span, second, "{short:?}");
    }
}

/// What is given back to a window that is over is not taken off another.
#[test]
fn refund_of_a_long_window_leaves_what_a_short_one_took() {
    let (second, hour) = (1_000_000_000, 3_600_000_000_000);
    let long = Quota::per_hour(100).fixed_window();
    let short = Quota::per_second(100).sliding_window();
    let mut level = Level::default();
    level.take(&long, 1, START);
    let at = START + hour - second;
    level.take(&long, 99, at);
    let now = START + hour + second;
    level.take(&short, 90, now);
    let later = level.started + second;
    level.take(&short, 1, later);
    assert_eq!((level.before, level.used), (90, 1));
    give_back(&mut level, (99, hour, at), later);
    assert_eq!((level.before, level.used), (90, 1));
    give_back(&mut level, (90, second, now), later);
    assert_eq!((level.before, level.used), (0, 1));
}

#[test]
fn another_algorithm_begins_anew() {
    let gcra = Quota::per_hour(100);
    for window in [gcra.fixed_window(), gcra.sliding_window()] {
        for (first, then) in [(gcra, window), (window, gcra)] {
            let mut level = Level::default();
            level.take(&first, first.price(100), START);
            assert_eq!(level.fits(&then, then.price(1), START), 100);
            level.take(&then, then.price(100), START);
            // Back and forth gives nothing.
            for quota in [first, then] {
                assert_eq!(level.fits(&quota, quota.price(1), START), 0, "{quota:?}");
            }
        }
    }
}
