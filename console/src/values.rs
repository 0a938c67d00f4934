//! Values as they are written in arguments.

use std::time::Duration;

use lockapi::Key;
use lockapi::limit::Quota;

/// A key as tables store and lists show it: a name, `#42`, or `#7,42`; a name that begins with `#` has another before
/// it.
///
/// # Errors
/// For what is neither.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    let key = match text.strip_prefix('#') {
        None => Key::from(text),
        Some(name) if name.starts_with('#') => Key::from(name),
        Some(number) => {
            let numbers = match number.split_once(',') {
                Some((class, object)) => class
                    .parse()
                    .ok()
                    .zip(object.parse().ok())
                    .map(|pair: (i32, i32)| Key::from(pair)),
                None => number.parse::<i64>().ok().map(Key::from),
            };
            // In no other form than that.
            let numbers = numbers.filter(|key| key.to_string() == text);
            numbers.ok_or("allowed are a name, #NUMBER of 64 bits, #CLASS,OBJECT of 32 bits each, and ##… for a name that begins with #")?
        }
    };
    match key.check() {
        Ok(()) => Ok(key),
        Err(error) => Err(error.to_string()),
    }
}

/// A quota: `100/1h` is a hundred an hour, and as many at once; `100/1h,5` at most five at once.
///
/// # Errors
/// For what is not that.
pub(crate) fn quota(text: &str) -> Result<Quota, String> {
    const ALLOWED: &str =
        "allowed is PERMITS/PERIOD or PERMITS/PERIOD,BURST, such as 100/1h or 100/1h,5";
    let (permits, rest) = text.split_once('/').ok_or(ALLOWED)?;
    let (period, burst) = match rest.split_once(',') {
        Some((period, burst)) => (period, Some(burst.parse().map_err(|_| ALLOWED)?)),
        None => (rest, None),
    };
    let permits = permits.parse().map_err(|_| ALLOWED)?;
    let quota = Quota::new(
        permits,
        duration(period).map_err(|error| format!("{error}; {ALLOWED}"))?,
    );
    Ok(match burst {
        Some(burst) => quota.burst(burst),
        None => quota,
    })
}

/// A duration: `90s`, `1h 30m`; a unit alone is one of it.
///
/// # Errors
/// For what is not that.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let spelled = match text.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => format!("1{text}"),
        _ => text.to_owned(),
    };
    humantime::parse_duration(&spelled).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_shown() {
        for shown in ["reports/daily", "#42", "#-7", "#7,42", "##5", "日本"] {
            assert_eq!(key(shown).unwrap().to_string(), shown);
        }
        assert_eq!(key("##5").unwrap(), Key::from("#5"));
        for wrong in [
            "",
            "#",
            "#x",
            "#+1",
            "#007",
            "#1,2,3",
            "#99999999999999999999",
        ] {
            assert!(key(wrong).unwrap_err().contains("allowed"), "{wrong}");
        }
    }

    #[test]
    fn quotas_have_a_burst_if_they_say_so() {
        assert_eq!(quota("100/1h").unwrap(), Quota::per_hour(100));
        assert_eq!(quota("100/h").unwrap(), Quota::per_hour(100));
        assert_eq!(
            quota("5/90s,2").unwrap(),
            Quota::new(5, Duration::from_secs(90)).burst(2)
        );
        for wrong in ["", "100", "x/1h", "1/1h,x", "1/1parsec"] {
            assert!(quota(wrong).unwrap_err().contains("allowed"), "{wrong}");
        }
    }
}

#[cfg(test)]
mod fuzz {
    use lockapi_fuzz::{check, text_like};
    use proptest::prelude::{Strategy, any, prop_oneof};
    use proptest::{prop_assert, prop_assert_eq};

    use super::*;

    /// Seconds of each unit, as humantime spells it.
    const UNITS: [(&str, u64); 8] = [
        ("year", 31_557_600),
        ("month", 2_630_016),
        ("w", 604_800),
        ("day", 86_400),
        ("h", 3600),
        ("min", 60),
        ("m", 60),
        ("s", 1),
    ];

    #[test]
    fn keys_are_read_as_they_are_shown() {
        let known = [
            "",
            "#",
            "##",
            "###",
            "#42",
            "#-7",
            "#-0",
            "#+1",
            "#007",
            "#1,2",
            "#1,+2",
            "#1,2,3",
            "#2147483648,0",
            "#9223372036854775807",
            "#9223372036854775808",
            "# 1",
            "a\0",
            "é",
        ];
        let long = "k".repeat(256);
        let texts =
            prop_oneof![2 => text_like(&known), 1 => any::<i64>().prop_map(|n| format!("#{n}"))];
        let known = known.map(str::to_owned).into_iter().chain([long]);
        check(known, &texts, |text| {
            match key(&text) {
                Ok(key) => prop_assert_eq!(key.to_string(), text),
                Err(told) => {
                    prop_assert!(
                        told.contains("allowed") || told.contains("cannot store"),
                        "{told}"
                    );
                    prop_assert!(text.starts_with('#') || Key::from(text).check().is_err());
                }
            }
            Ok(())
        });
    }

    #[test]
    fn durations_are_sums_of_their_units() {
        let known = [
            "90s",
            "1h 30m",
            "h",
            "min",
            "",
            " ",
            "1",
            "s1",
            "18446744073709551615s",
            "1year 1month",
            "0s",
            "-1s",
            "1.5s",
            "1 s",
            "１s",
        ];
        let sums = proptest::collection::vec((0..9_u64, 0..UNITS.len()), 1..4);
        let sums = sums.prop_map(|parts| {
            let text: Vec<_> = parts
                .iter()
                .map(|(n, at)| format!("{n}{}", UNITS[*at].0))
                .collect();
            let sum: u64 = parts.iter().map(|(n, at)| n * UNITS[*at].1).sum();
            (text.join(" "), Some(Duration::from_secs(sum)))
        });
        let huge = (any::<u64>(), 0..UNITS.len()).prop_map(|(n, at)| {
            let sum = n.checked_mul(UNITS[at].1).map(Duration::from_secs);
            (format!("{n}{}", UNITS[at].0), sum)
        });
        let single = (0..UNITS.len()).prop_map(|at| {
            (
                UNITS[at].0.to_owned(),
                Some(Duration::from_secs(UNITS[at].1)),
            )
        });
        let valid = prop_oneof![sums, huge, single];
        check([], &valid, |(text, expected)| {
            prop_assert_eq!(duration(&text).ok(), expected);
            Ok(())
        });
        check(known.map(str::to_owned), &text_like(&known), |text| {
            if let Ok(time) = duration(&text) {
                let written = humantime::format_duration(time).to_string();
                prop_assert_eq!(duration(&written), Ok(time));
            }
            Ok(())
        });
    }

    #[test]
    fn quotas_are_those_of_their_parts() {
        let known = [
            "100/1h",
            "100/h",
            "5/90s,2",
            "",
            "100",
            "/",
            "/,",
            "1/1h,",
            "1/,1",
            "1/1h,1,1",
            "+1/1s",
            "0/1s",
            "18446744073709551615/1s,18446744073709551615",
            "18446744073709551616/1s",
            "1/1s/1s",
            "1//1s",
        ];
        check(known.map(str::to_owned), &text_like(&known), |text| {
            let parts = text.split_once('/').map(|(permits, rest)| {
                (
                    permits,
                    rest.split_once(',')
                        .map_or((rest, None), |(period, burst)| (period, Some(burst))),
                )
            });
            let number = |text: &str| text.parse::<u64>().ok();
            let expected = parts.and_then(|(permits, (period, burst))| {
                let quota = Quota::new(number(permits)?, duration(period).ok()?);
                match burst {
                    Some(burst) => Some(quota.burst(number(burst)?)),
                    None => Some(quota),
                }
            });
            match quota(&text) {
                Ok(quota) => prop_assert_eq!(Some(quota), expected),
                Err(told) => prop_assert!(expected.is_none() && told.contains("allowed"), "{told}"),
            }
            Ok(())
        });
    }
}
