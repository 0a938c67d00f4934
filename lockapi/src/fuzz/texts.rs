//! Keys, names and payloads of programs, and ids as text.

use std::time::{Duration, SystemTime};

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, prop_assume};

use super::rows::int;
use super::{check, is_refused};
use crate::id::{Id, Layout};
use crate::key::{MAX_NAME_BYTES, check_name};
use crate::queue::Job;
use crate::{ErrorKind, Key};

/// Texts about as long as a name may be, some of them with a NUL, and short ones with the signs of keys.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[#,\\-0-9]{0,6}",
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
    check(&name(), |name| {
        let valid = (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains('\0');
        let checked = check_name("name", &name, 1);
        prop_assert!(checked.is_ok() || is_refused(&checked));
        prop_assert_eq!(checked.is_ok(), valid);
        prop_assert_eq!(Key::from(&*name).check().is_ok(), valid);
        Ok(())
    });
}

#[test]
fn keys_are_told_apart() {
    check(&(key(), key()), |(one, other)| {
        prop_assert_eq!(one == other, one.to_string() == other.to_string());
        prop_assume!(one != other);
        prop_assert!(one.lock_id("n") != other.lock_id("n"), "{one:?} {other:?}");
        Ok(())
    });
}

/// JSON of some depth, and what is nearly JSON.
fn payload() -> impl Strategy<Value = String> {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    prop_oneof![
        any::<String>(),
        "[\\[\\]{}:,\"\\\\0-9eE.+\\-ntfrualse ]{0,40}",
        (0..40_000_usize).prop_map(nested),
        any::<String>().prop_map(|text| serde_json::Value::from(text).to_string()),
    ]
}

#[test]
fn payloads_are_json_of_a_limited_size() {
    check(&(payload(), 0..200_usize), |(payload, most)| {
        match Job::json("name", &*payload) {
            Ok(job) => {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok());
                prop_assert_eq!(job.check(most).is_ok(), payload.len() <= most);
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Invalid);
                let told = format!("{error} {error:?}");
                prop_assert!(payload.len() < 12 || !told.contains(&payload));
            }
        }
        Ok(())
    });
}

#[test]
fn texts_of_ids_are_those_of_a_number() {
    // A text of an id with one sign changed.
    let changed = |form: fn(Id) -> String| {
        (0..=i64::MAX, any::<usize>(), any::<char>()).prop_map(move |(id, at, sign)| {
            let id = Id::try_from(id).expect("not negative");
            let mut signs: Vec<_> = form(id).chars().collect();
            let at = at % signs.len();
            signs[at] = sign;
            signs.into_iter().collect::<String>()
        })
    };
    let texts = prop_oneof![
        changed(Id::base32),
        changed(Id::base62),
        changed(|id| id.to_string()),
    ];
    check(&texts, |text| {
        if let Ok(id) = Id::from_base32(&text) {
            let plain = text.to_uppercase().replace('O', "0");
            prop_assert_eq!(id.base32(), plain.replace(['I', 'L'], "1"));
        }
        if let Ok(id) = Id::from_base62(&text) {
            prop_assert_eq!(id.base62(), &*text);
        }
        if let Ok(id) = text.parse::<Id>() {
            let digits = text.trim_start_matches('0');
            let written = id.to_string();
            prop_assert_eq!(written.trim_start_matches('0'), digits);
        }
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
    check(&cases, |((time, worker, sequence), one, other, epoch)| {
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
    });
}
