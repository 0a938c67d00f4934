//! Keys, names, headers and payloads of programs, and ids and places as text.

use std::time::{Duration, SystemTime};

use lockapi_fuzz::text_like;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, prop_assume};

use super::rows::int;
use super::{check, is_refused};
use crate::admin::JobPlace;
use crate::driver::each_host;
use crate::id::{Id, Layout};
use crate::key::{MAX_NAME_BYTES, check_name};
use crate::queue::{Headers, Job};
use crate::{ErrorKind, Key};

/// Texts about as long as a name may be, some of them with a NUL, and short ones with the signs of keys.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        text_like(&["#5", "##5", "#5,6", "5", "#-7", "#", "a\0b", "ä"]),
        "\\PC{60,90}",
        (250..260_usize).prop_map(|length| "k".repeat(length)),
        ("\\PC{0,3}", "\\PC{0,3}").prop_map(|(one, other)| format!("{one}\0{other}")),
    ]
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        3 => name().prop_map(Key::from),
        1 => int().prop_map(Key::from),
        1 => (any::<i32>(), -3..3_i32).prop_map(Key::from),
        1 => (-3..3_i32, -3..3_i32).prop_map(Key::from),
    ]
}

#[test]
fn names_are_checked_by_their_bytes() {
    let known = [
        String::new(),
        "\0".to_owned(),
        "k".repeat(255),
        "k".repeat(256),
        "é".repeat(127) + "k",
        "é".repeat(128),
    ];
    check(known, &name(), |name| {
        let valid = (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains('\0');
        let checked = check_name("name", &name, 1);
        prop_assert!(checked.is_ok() || is_refused(&checked));
        prop_assert_eq!(checked.is_ok(), valid);
        prop_assert_eq!(Key::from(&*name).check().is_ok(), valid);
        Ok(())
    });
}

/// The key that a text in a table stands for.
fn shown(text: &str) -> Option<Key> {
    match text.strip_prefix('#') {
        None => Some(text.into()),
        Some(name) if name.starts_with('#') => Some(name.into()),
        Some(numbers) => match numbers.split_once(',') {
            None => numbers.parse::<i64>().ok().map(Key::from),
            Some((class, object)) => {
                let pair: (i32, i32) = (class.parse().ok()?, object.parse().ok()?);
                Some(pair.into())
            }
        },
    }
}

#[test]
fn keys_are_told_apart() {
    let known = [
        (Key::from("#5"), Key::from(5)),
        (Key::from("5"), Key::from(5)),
        (Key::from("#"), Key::from("##")),
        (Key::from("#5,6"), Key::from((5, 6))),
        (Key::from((0, 5)), Key::from(5)),
        (Key::from((-1, -1)), Key::from(-1)),
        (Key::from(i64::MIN), Key::from((i32::MIN, 0))),
    ];
    check(known, &(key(), key()), |(one, other)| {
        for key in [&one, &other] {
            prop_assert_eq!(shown(&key.to_string()), Some(key.clone()));
        }
        prop_assert_eq!(one == other, one.to_string() == other.to_string());
        prop_assume!(one != other);
        prop_assert!(one.lock_id("n") != other.lock_id("n"), "{one:?} {other:?}");
        Ok(())
    });
}

const PAYLOADS: [&str; 8] = [
    "null",
    r#"{"a":[1,-0.5e+3,"ä\n\"\\\u0000\ud83d\ude00"],"a":{}}"#,
    r#""\ud800""#,
    "1e999",
    "-",
    "[1,]",
    " [ true , false ] ",
    "\u{feff}1",
];

/// JSON of some depth, and what is nearly JSON.
fn payload() -> impl Strategy<Value = String> {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    prop_oneof![
        4 => text_like(&PAYLOADS),
        1 => any::<String>(),
        1 => "[\\[\\]{}:,\"\\\\0-9eE.+\\-ntfrualse ]{0,40}",
        1 => (0..40_000_usize).prop_map(nested),
        1 => any::<String>().prop_map(|text| serde_json::Value::from(text).to_string()),
    ]
}

#[test]
fn payloads_are_json_of_a_limited_size() {
    let known = PAYLOADS.map(|payload| (payload.to_owned(), payload.len()));
    check(known, &(payload(), 0..200_usize), |(payload, most)| {
        match Job::json("name", &*payload) {
            Ok(job) => {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok());
                prop_assert_eq!(job.check(most).is_ok(), payload.len() <= most);
            }
            Err(error) => {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&payload).is_err());
                prop_assert_eq!(error.kind(), ErrorKind::Invalid);
                let told = format!("{error} {error:?}");
                prop_assert!(payload.len() < 12 || !told.contains(&payload));
            }
        }
        Ok(())
    });
}

fn of(pairs: &[(String, String)]) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in pairs {
        headers.insert(name, value);
    }
    headers
}

#[test]
fn headers_are_read_as_they_are_written() {
    let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let known = [
        Vec::new(),
        pair("", ""),
        pair("TraceParent", "\"\\\u{1}\u{7f}\u{2028}ä😀"),
        pair("a\0", "b\0"),
        pair(&"n".repeat(64), &"v".repeat(1024)),
        pair(&"n".repeat(65), ""),
        pair("limit-by", ""),
        (0..33).map(|n| (n.to_string(), String::new())).collect(),
        (0..8).map(|n| (n.to_string(), "v".repeat(1024))).collect(),
    ];
    let name = prop_oneof!["[a-zA-Z!-~]{0,5}", "[ -~]{62,66}", any::<String>()];
    let value = prop_oneof![
        any::<String>(),
        "[a\u{0}\"\\\\]{0,5}",
        (1020..1030_usize).prop_map(|length| "v".repeat(length)),
    ];
    check(known, &vec((name, value), 0..36), |pairs| {
        let headers = of(&pairs);
        prop_assert_eq!(&Headers::read(headers.column().as_deref()), &headers);
        prop_assert_eq!(headers.written().is_empty(), headers.is_empty());
        let is_name = |name: &str| {
            (1..=64).contains(&name.len()) && name.bytes().all(|it| it.is_ascii_graphic())
        };
        let is_value = |value: &str| value.len() <= 1024 && !value.contains('\0');
        let bytes: usize = headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let limit = headers.get("LIMIT-BY");
        let allowed = headers.len() <= 32
            && bytes <= 8192
            && headers
                .iter()
                .all(|(name, value)| is_name(name) && is_value(value))
            && limit.is_none_or(|key| (1..=255).contains(&key.len()));
        let checked = headers.check();
        prop_assert!(checked.is_ok() || is_refused(&checked));
        prop_assert_eq!(checked.is_ok(), allowed);
        Ok(())
    });
}

/// As programs of others may have written them.
#[test]
fn any_column_of_headers_is_read() {
    let known = [
        "",
        "null",
        "[]",
        r#"{"A":"1","a":"2"}"#,
        r#"{"a":1,"b":null,"c":{"d":"e"},"f":"g"}"#,
        r#"{"a":"\ud800"}"#,
        r#"{"a":"b"} x"#,
    ];
    let columns = prop_oneof![4 => text_like(&known), 1 => payload()];
    check(known.map(str::to_owned), &columns, |column| {
        let read = Headers::read(Some(&column));
        let object = serde_json::from_str::<serde_json::Map<_, _>>(&column).unwrap_or_default();
        let texts: Vec<_> = object
            .iter()
            .filter(|(_, value)| value.is_string())
            .collect();
        for (name, value) in read.iter() {
            let of_it = |(other, text): &&(&String, &serde_json::Value)| {
                other.to_ascii_lowercase() == name && text.as_str() == Some(value)
            };
            prop_assert!(texts.iter().any(|it| of_it(&it)), "{name}");
        }
        for (name, _) in texts {
            prop_assert!(read.get(name).is_some(), "{name}");
        }
        Ok(())
    });
}

/// The number that a text has in a base, by the places of its signs.
fn number(text: &str, signs: &str, length: usize) -> Option<i64> {
    if text.chars().count() != length {
        return None;
    }
    let mut number = 0_u128;
    for sign in text.chars() {
        number = number * signs.len() as u128 + signs.find(sign)? as u128;
    }
    i64::try_from(number).ok()
}

#[test]
fn texts_of_ids_are_those_of_a_number() {
    const SIGNS_32: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    const SIGNS_62: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let known = [
        "",
        "0",
        "-1",
        "+1",
        " 1",
        "9223372036854775807",
        "9223372036854775808",
        "00000000000000000000001",
        "0000000000000",
        "7ZZZZZZZZZZZZ",
        "7zzzzzzzzzzzz",
        "8000000000000",
        "oOiIlL0000000",
        "UUUUUUUUUUUUU",
        "00000000000",
        "AzL8n0Y58m7",
        "AzL8n0Y58m8",
        "zzzzzzzzzzz",
        "000000000é",
        "１２３",
    ];
    let of = |form: fn(Id) -> String| {
        (0..=i64::MAX).prop_map(move |id| form(Id::try_from(id).expect("not negative")))
    };
    let texts = prop_oneof![
        3 => text_like(&known),
        1 => of(Id::base32),
        1 => of(Id::base62),
        1 => of(|id| id.to_string()),
        1 => "[0-9A-Za-z]{13}",
        1 => "[0-9A-Za-z]{11}",
    ];
    check(known.map(str::to_owned), &texts, |text| {
        let read = |read: crate::Result<Id>| read.ok().map(i64::from);
        let plain = text
            .to_ascii_uppercase()
            .replace('O', "0")
            .replace(['I', 'L'], "1");
        let (in_32, in_62) = (number(&plain, SIGNS_32, 13), number(&text, SIGNS_62, 11));
        prop_assert_eq!(read(Id::from_base32(&text)), in_32);
        prop_assert_eq!(read(Id::from_base62(&text)), in_62);
        let digits = !text.is_empty() && text.chars().all(|sign| sign.is_ascii_digit());
        let decimal = text.parse::<i64>().ok().filter(|_| digits);
        prop_assert_eq!(read(text.parse()), decimal);
        for id in [in_32, in_62, decimal].into_iter().flatten() {
            let id = Id::try_from(id)?;
            prop_assert_eq!(number(&id.base32(), SIGNS_32, 13), Some(id.into()));
            prop_assert_eq!(number(&id.base62(), SIGNS_62, 11), Some(id.into()));
        }
        Ok(())
    });
}

/// Addresses of pages have them.
#[test]
fn places_are_read_as_they_are_written() {
    let known = [
        "0.0.0",
        "3.-1.9223372036854775807",
        "4.1.1",
        "1.1",
        "1.1.1.1",
        "+1.1.1",
        "01.1.1",
        "-0.1.1",
        "",
    ];
    check(known.map(str::to_owned), &text_like(&known), |text| {
        match text.parse::<JobPlace>() {
            Ok(place) => {
                prop_assert!((0..=3).contains(&place.priority));
                prop_assert_eq!(place.to_string(), text);
            }
            refused => prop_assert!(is_refused(&refused)),
        }
        Ok(())
    });
}

const URLS: [&str; 17] = [
    "postgres://u:secret@one,two:5433/app?target_session_attrs=read-write&sslmode=require",
    "postgresql:///app",
    "postgres://host",
    "postgres://one,[::1]:5433?target_session_attrs=primary",
    "postgres://u:sec,ret@host/app",
    "postgres://u:a/secret@one,two/db",
    "postgres://u:a?secret@one,two/db",
    "postgres://one,,two/app",
    "postgres://one%2ctwo/app",
    "postgres:///app?host=one&host=two",
    "postgres:///app?hostaddr=::1%2C::2",
    "postgres://one,two/app?port=1",
    "postgres://one,two/app?load_balance_hosts=random&&=",
    "postgres://one,two/app?target_session_attrs=standby",
    "postgres://one,two/app?target_session_attrs=postgres://u:sec,ret@host/app",
    "mysql://u:secret@host/app",
    "postgres://?",
];

/// Each URL of several is one of a single host, with the rest of the URL.
#[test]
fn urls_are_divided_into_hosts() {
    let known = URLS.map(str::to_owned).into_iter();
    let many = (15..18).map(|count| format!("postgres://{}h/app", "h,".repeat(count)));
    check(known.chain(many), &text_like(&URLS), |url| {
        let each = each_host(&url);
        let Ok(each) = each else {
            prop_assert!(is_refused(&each));
            let told = each.map_err(|error| format!("{error} {error:?}"));
            prop_assert!(
                !told.is_err_and(|told| told.contains("secret") || told.contains("sec,ret"))
            );
            return Ok(());
        };
        let parts = |url: &str| {
            let rest = url
                .split_once("://")
                .map_or("", |(_, rest)| rest)
                .to_owned();
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, tail) = rest.split_at(end);
            let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
            let path = tail.split('?').next().unwrap_or_default();
            (user.to_owned(), hosts.to_owned(), path.to_owned())
        };
        let (user, hosts, path) = parts(&url);
        prop_assert!((1..=16).contains(&each.len()));
        let mut found = Vec::new();
        for one in &each {
            prop_assert_eq!(each_host(one)?, std::slice::from_ref(one));
            let (same_user, host, same_path) = parts(one);
            prop_assert_eq!((&same_user, &same_path), (&user, &path));
            let options = one.split_once('?').map_or("", |(_, options)| options);
            let is_wish = |option: &str| option.starts_with("target_session_attrs=");
            prop_assert!(!options.split('&').any(is_wish), "{one}");
            found.push(host);
        }
        prop_assert_eq!(found.join(","), hosts);
        Ok(())
    });
}

#[test]
fn parts_of_ids_make_up_the_id() {
    let bits = (0..64_u32, 0..20_u32, 0..25_u32);
    let exact = (1..17_u32, 1..23_u32).prop_map(|(worker, sequence)| {
        let time = 63 - worker - sequence;
        (time, worker, sequence)
    });
    let layouts = prop_oneof![
        exact,
        bits,
        Just((u32::MAX, 1, 1)),
        Just((1, u32::MAX, u32::MAX))
    ];
    let cases = (layouts, 0..=i64::MAX, 0..=i64::MAX, any::<u64>());
    let known = [
        ((41, 10, 12), 0, i64::MAX, 0),
        ((41, 10, 12), (1 << 22) - 1, 1 << 22, u64::MAX),
        ((40, 1, 22), 1, 1, 1 << 40),
        ((63, 0, 0), 0, i64::MAX, 0),
    ];
    check(
        known,
        &cases,
        |((time, worker, sequence), one, other, epoch)| {
            let Ok(layout) = Layout::new(time, worker, sequence) else {
                return Ok(());
            };
            let epoch = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(epoch >> 16));
            let since = epoch.and_then(|epoch| layout.since(epoch).ok());
            for layout in [Some(layout), since].into_iter().flatten() {
                let [low, high] = if one < other {
                    [one, other]
                } else {
                    [other, one]
                };
                let [low, high] = [low, high].map(|id| Id::try_from(id).expect("not negative"));
                let parts = [low, high].map(|id| layout.decode(id));
                prop_assert!(parts[0].time <= parts[1].time);
                for (id, parts) in [low, high].into_iter().zip(parts) {
                    let since = parts.time.duration_since(layout.epoch());
                    let millis = since.expect("after the epoch").as_millis();
                    let bits = millis << (worker + sequence)
                        | u128::from(parts.worker) << sequence
                        | u128::from(parts.sequence);
                    prop_assert_eq!(bits, u128::from(i64::from(id).unsigned_abs()));
                    let after = parts.time + Duration::from_millis(1);
                    // The last millisecond is not used.
                    let used = after <= layout.end();
                    let range = layout.bounds(parts.time..after);
                    prop_assert!(!used || range.contains(&i64::from(id)), "{range:?} {id}");
                }
            }
            Ok(())
        },
    );
}
