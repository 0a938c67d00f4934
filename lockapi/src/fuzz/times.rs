//! Cron expressions, and the times that tasks are due.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, sample};

use super::check;
use super::rows::int;
use crate::ErrorKind;
use crate::lease::micros;
use crate::schedule::cron::Cron;
use crate::schedule::operations::Due;
use crate::schedule::{MAX_EVERY, Recurrence};

/// The most time that one expression may take on a machine that is busy. One that is never due takes some
/// tenths of a second without optimisation: it is looked for until the year 5000.
const PATIENCE: Duration = Duration::from_secs(60);

/// 0001 and 9999 in microseconds since 1970.
const CALENDAR: std::ops::Range<i64> = -62_135_596_800_000_000..253_402_300_800_000_000;

/// A field of an expression: mostly one that means something in some place.
fn field() -> impl Strategy<Value = String> {
    let number = || {
        prop_oneof![
            (0..7_u32).prop_map(|n| n.to_string()),
            (0..32_u32).prop_map(|n| n.to_string()),
            (0..60_u32).prop_map(|n| n.to_string()),
            any::<u64>().prop_map(|n| n.to_string()),
            sample::select(vec![
                "L", "W", "*", "?", "MON", "sun", "JAN", "dec", "5L", "15W", "LW", "1#5", "7#1",
                "FRI#L"
            ])
            .prop_map(str::to_owned),
        ]
    };
    let joined = (
        number(),
        sample::select(vec!["", "-", "/", ",", "#", "~"]),
        number(),
    );
    prop_oneof![
        8 => number(),
        4 => joined.prop_map(|(one, sign, other)| {
            if sign.is_empty() { one } else { format!("{one}{sign}{other}") }
        }),
        1 => "[0-9*/,#LW?\\-]{0,8}",
    ]
}

fn expression() -> impl Strategy<Value = String> {
    let named = vec![
        "@daily",
        "@yearly",
        "@hourly",
        "@reboot",
        "@",
        "0 0 29 2 1#5",
        "0 0 30 2 *",
    ];
    prop_oneof![
        10 => vec(field(), 5..7).prop_map(|fields| fields.join(" ")),
        1 => vec(field(), 0..9).prop_map(|fields| fields.join("  ")),
        1 => sample::select(named).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => (0..300_usize).prop_map(|length| "1,".repeat(length)),
    ]
}

fn zone() -> impl Strategy<Value = String> {
    let zones = vec![
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Africa/Casablanca",
        "America/Scoresbysund",
        "Antarctica/Troll",
    ];
    prop_oneof![
        20 => sample::select(zones).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => 0..4_102_444_800_000_000_i64,
        2 => CALENDAR,
        1 => int(),
    ]
}

#[test]
fn expressions_have_a_next_time_or_none() {
    let cases = (expression(), zone(), time());
    check(&cases, |(expression, zone, after)| {
        let began = Instant::now();
        let cron = match Cron::new(&expression, &zone) {
            Ok(cron) => cron,
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Invalid);
                return Ok(());
            }
        };
        match cron.next(after) {
            Ok(Some(next)) => {
                prop_assert!(next > after, "{next}");
                prop_assert_eq!(next % 1_000_000, 0);
                // The one before is before it, and has it as its next one.
                prop_assert_eq!(cron.next(next - 1)?, Some(next));
            }
            Ok(None) => {}
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
                prop_assert!(!CALENDAR.contains(&after), "{error}");
            }
        }
        prop_assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        Ok(())
    });
}

fn recurrence() -> impl Strategy<Value = Recurrence> {
    let most = micros(MAX_EVERY);
    let every = prop_oneof![
        1..most,
        Just(1),
        Just(most),
        Just(i64::MAX),
        1..1_000_000_i64
    ];
    let cron = (expression(), zone());
    prop_oneof![
        every.prop_map(Recurrence::Every),
        cron.prop_map(|(expression, zone)| Recurrence::Cron { expression, zone }),
    ]
}

/// As rows of other versions and other programs may have them.
#[test]
fn tasks_that_are_due_have_a_bounded_number_of_runs() {
    let cases = (recurrence(), time(), time(), -1..4_i64, int());
    check(&cases, |(recurrence, next, now, misfire, misfire_most)| {
        let due = Due {
            name: "task".to_owned(),
            version: 1,
            next,
            now,
            recurrence,
            misfire,
            misfire_most: misfire_most.min(1000),
        };
        let began = Instant::now();
        if let Ok(firing) = due.recurrence.fire(&due) {
            prop_assert!(firing.runs.len() <= 1000);
            prop_assert!(firing.runs.iter().all(|run| run.at <= now));
            prop_assert!(firing.runs.iter().all(|run| run.missed >= 0));
            prop_assert!(firing.runs.is_sorted_by(|one, other| one.at < other.at));
            prop_assert!(firing.next.is_none_or(|next| next > now), "{firing:?}");
        }
        prop_assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        Ok(())
    });
}
