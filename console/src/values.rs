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
        for wrong in ["", "#", "#x", "#1,2,3", "#99999999999999999999"] {
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
