//! Cron expressions, and the times that tasks are due.

use chrono::{
    DateTime, Datelike, Days, LocalResult, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Timelike,
};
use chrono_tz::Tz;
use lockapi_fuzz::text_like;
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

const EXPRESSIONS: [&str; 17] = [
    "* * * * *",
    "0 3 * * *",
    "30 2 * * *",
    "*/7 1-3 * * *",
    "0 0 29 2 *",
    "0 0 30 2 *",
    "0 0 29 2 1#5",
    "0 0 L * *",
    "0 0 15W * MON-FRI",
    "0 0 1 1 0,7",
    "59 59 23 31 12 *",
    "5-1 * * * *",
    "*/0 * * * *",
    "0 0 * jan,Dec FRI#L",
    "@daily",
    "@reboot",
    "@",
];

fn expression() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => vec(field(), 5..7).prop_map(|fields| fields.join(" ")),
        6 => text_like(&EXPRESSIONS),
        1 => vec(field(), 0..9).prop_map(|fields| fields.join("  ")),
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
    let known = EXPRESSIONS.into_iter().flat_map(|expression| {
        let times = [0, CALENDAR.start, CALENDAR.end - 1, i64::MIN, i64::MAX];
        times.map(|time| (expression.to_owned(), "Europe/Berlin".to_owned(), time))
    });
    check(known, &cases, |(expression, zone, after)| {
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
    let known = [1, 1_000_000, i64::MAX].into_iter().flat_map(|every| {
        let times = [
            (0, 0),
            (i64::MIN, i64::MAX),
            (i64::MAX, i64::MIN),
            (0, i64::MAX),
        ];
        times.map(|(next, now)| (Recurrence::Every(every), next, now, 2, 1000))
    });
    let fired = std::cell::Cell::new(0);
    check(
        known,
        &cases,
        |(recurrence, next, now, misfire, misfire_most)| {
            let due = Due {
                name: "task".to_owned(),
                version: 1,
                next,
                now,
                recurrence,
                misfire,
                misfire_most: misfire_most.min(1000),
            };
            if let Ok(firing) = due.recurrence.fire(&due) {
                fired.set(fired.get() + 1);
                prop_assert!(firing.runs.len() <= 1000);
                prop_assert!(firing.runs.iter().all(|run| run.at <= now));
                prop_assert!(firing.runs.iter().all(|run| run.missed >= 0));
                prop_assert!(firing.runs.is_sorted_by(|one, other| one.at < other.at));
                prop_assert!(firing.next.is_none_or(|next| next > now), "{firing:?}");
            }
            Ok(())
        },
    );
    assert!(fired.get() > 0, "none was fired");
}

/// A field whose values are known.
#[derive(Clone, Debug)]
struct Field {
    text: String,
    /// A bit for each.
    values: u64,
}

impl Field {
    fn has(&self, value: u32) -> bool {
        self.values >> value & 1 == 1
    }

    fn is_any(&self) -> bool {
        self.text == "*"
    }

    /// Whether it is one number.
    fn is_fixed(&self) -> bool {
        self.text.bytes().all(|byte| byte.is_ascii_digit())
    }
}

/// Wildcards, numbers, and lists of numbers, ranges and steps, of values from `least` to `most`.
fn known_field(least: u32, most: u32) -> impl Strategy<Value = Field> + Clone {
    let part = (0..4_u8, least..=most, least..=most, 1..=most).prop_map(
        move |(form, one, other, step)| {
            let (low, high) = (one.min(other), one.max(other));
            let (text, from, to, step) = match form {
                0 => (one.to_string(), one, one, 1),
                1 => (format!("{low}-{high}"), low, high, 1),
                2 => (format!("*/{step}"), least, most, step),
                _ => (format!("{low}-{high}/{step}"), low, high, step),
            };
            let values = (from..=to)
                .step_by(step as usize)
                .fold(0, |all, value| all | 1_u64 << value);
            Field { text, values }
        },
    );
    let any = Field {
        text: "*".to_owned(),
        values: u64::MAX,
    };
    let number = (least..=most).prop_map(|n| Field {
        text: n.to_string(),
        values: 1 << n,
    });
    let list = vec(part, 1..4).prop_map(|parts| Field {
        text: parts
            .iter()
            .map(|part| &*part.text)
            .collect::<Vec<_>>()
            .join(","),
        values: parts.iter().fold(0, |all, part| all | part.values),
    });
    prop_oneof![2 => Just(any), 3 => number, 2 => list]
}

/// Seconds, minute, hour, day of the month, month, day of the week.
type Fields = [Field; 6];

fn known_fields() -> impl Strategy<Value = Fields> {
    let seconds = prop_oneof![
        4 => Just(Field { text: "0".to_owned(), values: 1 }),
        1 => known_field(0, 59),
    ];
    let time = (seconds, known_field(0, 59), known_field(0, 23));
    let weekday = known_field(0, 7).prop_map(|mut field| {
        // Both are Sunday.
        field.values |= field.values >> 7 & 1;
        field
    });
    let day = (known_field(1, 31), known_field(1, 12), weekday);
    (time, day).prop_map(|((second, minute, hour), (day, month, weekday))| {
        [second, minute, hour, day, month, weekday]
    })
}

fn cron(fields: &Fields, zone: &str) -> crate::Result<Cron> {
    let texts: Vec<_> = fields.iter().map(|field| &*field.text).collect();
    // The seconds may be left out.
    let texts = if texts[0] == "0" { &texts[1..] } else { &texts };
    Cron::new(&texts.join(" "), zone)
}

fn is_day(fields: &Fields, date: NaiveDate) -> bool {
    let [.., day, month, weekday] = fields;
    let by_day = day.has(date.day());
    let by_weekday = weekday.has(date.weekday().num_days_from_sunday());
    let is_day = if day.is_any() || weekday.is_any() {
        by_day && by_weekday
    } else {
        by_day || by_weekday
    };
    month.has(date.month()) && is_day
}

fn is_due(fields: &Fields, time: NaiveDateTime) -> bool {
    let [second, minute, hour, ..] = fields;
    second.has(time.second())
        && minute.has(time.minute())
        && hour.has(time.hour())
        && is_day(fields, time.date())
}

/// Looks at each minute of the days that are meant, until one is due or four years and a day have passed.
fn search(fields: &Fields, after: NaiveDateTime) -> Option<NaiveDateTime> {
    let days = after.date().iter_days().take(4 * 366);
    let mut minutes = days.filter(|day| is_day(fields, *day)).flat_map(|day| {
        (0..24 * 60).filter_map(move |minute| day.and_hms_opt(minute / 60, minute % 60, 0))
    });
    minutes.find_map(|minute| {
        if !(fields[1].has(minute.minute()) && fields[2].has(minute.hour())) {
            return None;
        }
        let mut seconds = (0..60).filter_map(|second| minute.with_second(second));
        seconds.find(|time| is_due(fields, *time) && *time > after)
    })
}

fn naive(micros: i64) -> NaiveDateTime {
    let time = DateTime::from_timestamp_micros(micros).expect("a time of the calendar");
    time.naive_utc()
}

/// The next times are those that a search finds which looks at each minute.
#[test]
fn next_times_are_those_of_a_search() {
    let any = |text: &str| Field {
        text: text.to_owned(),
        values: u64::MAX,
    };
    let one = |value: u32| Field {
        text: value.to_string(),
        values: 1 << value,
    };
    let known = [
        [one(0), any("*"), any("*"), any("*"), any("*"), any("*")],
        [any("*"), any("*"), any("*"), any("*"), any("*"), any("*")],
        [one(0), one(0), one(0), one(29), one(2), any("*")],
        [one(0), one(0), one(0), one(31), any("*"), one(0)],
        [one(59), one(59), one(23), one(31), one(12), any("*")],
    ];
    // From 1970 to 2100, which is no leap year.
    let times = prop_oneof![
        0..4_102_444_800_000_000_i64,
        (0..130 * 366_i64).prop_map(|day| day * 86_400_000_000),
        (0..130 * 366_i64).prop_map(|day| day * 86_400_000_000 - 1),
    ];
    let known = known.into_iter().flat_map(|fields| {
        [0, 951_782_399_999_999, 4_107_542_399_000_000].map(|time| (fields.clone(), time))
    });
    check(known, &(known_fields(), times), |(fields, mut after)| {
        let cron = cron(&fields, "UTC")?;
        for _ in 0..3 {
            let found = search(&fields, naive(after));
            let next = cron.next(after)?;
            let Some(found) = found else {
                // It is looked for much longer.
                let seen = naive(after).date() + Days::new(4 * 366);
                prop_assert!(
                    next.is_none_or(|next| naive(next).date() >= seen),
                    "{next:?}"
                );
                break;
            };
            prop_assert_eq!(next.map(naive), Some(found));
            after = found.and_utc().timestamp_micros();
        }
        Ok(())
    });
}

/// The time on the clocks of a zone.
fn clock(zone: Tz, second: i64) -> NaiveDateTime {
    let time = DateTime::from_timestamp(second, 0).expect("a time of the calendar");
    time.with_timezone(&zone).naive_local()
}

/// Looks at each minute, for three days.
fn search_in(zone: Tz, fields: &Fields, after: i64) -> Option<i64> {
    let fixed = fields[..3].iter().all(Field::is_fixed);
    let first = after.div_euclid(60) * 60 + 60;
    (0..3 * 24 * 60)
        .map(|minute| first + minute * 60)
        .find(|second| {
            let (before, now) = (clock(zone, second - 60), clock(zone, *second));
            let skipped = (now - before).num_minutes() - 1;
            let in_gap =
                || (1..=skipped).any(|minute| is_due(fields, before + TimeDelta::minutes(minute)));
            let repeated = || match zone.from_local_datetime(&now) {
                LocalResult::Ambiguous(_, later) => later.timestamp() == *second,
                _ => false,
            };
            (is_due(fields, now) && !(fixed && repeated())) || (fixed && in_gap())
        })
}

/// A day before a change of the clocks, or some hours.
fn near_change() -> impl Strategy<Value = (Tz, i64)> {
    let changes = vec![
        (Tz::Europe__Berlin, 1_774_746_000),
        (Tz::Europe__Berlin, 1_792_890_000),
        (Tz::America__New_York, 1_772_953_200),
        (Tz::America__New_York, 1_793_512_800),
        (Tz::Australia__Lord_Howe, 1_775_314_800),
        (Tz::Australia__Lord_Howe, 1_791_041_400),
        (Tz::Antarctica__Troll, 1_774_746_000),
        (Tz::Antarctica__Troll, 1_792_890_000),
        (Tz::Africa__Casablanca, 1_771_120_800),
        (Tz::Africa__Casablanca, 1_774_144_800),
        (Tz::America__Scoresbysund, 1_711_846_800),
        (Tz::Asia__Kolkata, 1_774_746_000),
    ];
    (sample::select(changes), -3000..60_i64)
        .prop_map(|((zone, change), minutes)| (zone, change + minutes * 60))
}

/// Where clocks are changed, a time is due as it is promised of [`Task::cron`](crate::schedule::Task::cron).
#[test]
fn next_times_follow_the_clocks_of_a_zone() {
    check(
        [],
        &(known_fields(), near_change()),
        |(mut fields, (zone, mut after))| {
            fields[0] = Field {
                text: "0".to_owned(),
                values: 1,
            };
            let cron = cron(&fields, zone.name())?;
            for _ in 0..4 {
                let found = search_in(zone, &fields, after);
                let next = cron.next(after * 1_000_000)?.map(|next| next / 1_000_000);
                let Some(found) = found else {
                    prop_assert!(next.is_none_or(|next| next > after + 3 * 86_400));
                    break;
                };
                prop_assert_eq!(next, Some(found), "{} after {}", found, after);
                after = found;
            }
            Ok(())
        },
    );
}
