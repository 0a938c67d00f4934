//! What names, numbers and namespaces mean.

use lockapi::lease::LeaseOptions;
use lockapi::{ErrorKind, Key, LockId, advisory_key};

use crate::context::{Context, MINUTE};
use crate::fixture::Locks;
use crate::harness::register;

register! { "keys":
    V01 similar_names_are_distinct;
    V01 names_outside_the_limits_are_invalid;
    V02 golden_vectors;
    V02 sql_function_agrees [Sql];
    V02 numbers_are_the_locks_of_a_person [Sql];
    V03 namespaces_never_meet;
}

const NAMES: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a\t",
    "a\n",
    "\"a\"",
    "'a'",
    "a';DROP TABLE lockapi.lease;--",
    "a/*",
    "a\\",
    "$1",
    "%s",
    "#",
    "#5",
    "##5",
    "5",
    "#5,6",
    "{a,b}",
    "NULL",
    "\u{e9}",
    "e\u{301}",
    "\u{1f980}",
    "\u{200b}a",
    "\u{202e}a",
];

async fn similar_names_are_distinct(cx: Context) {
    let backend = cx.backend().await;
    let other = cx.backend().await;
    let longest = "x".repeat(255);
    let mut keys: Vec<Key> = NAMES.iter().map(|name| Key::from(*name)).collect();
    keys.extend([Key::from(5), Key::from((5, 6)), Key::from(&*longest)]);
    let (mut mutexes, mut leases) = (Vec::new(), Vec::new());
    for key in &keys {
        let mutex = backend.mutex(key).unwrap();
        mutexes.push(mutex.try_lock().await.unwrap().expect("a lock of its own"));
        let lease = backend.lease(key, LeaseOptions::new(MINUTE)).unwrap();
        leases.push(
            lease
                .try_acquire()
                .await
                .unwrap()
                .expect("a row of its own"),
        );
    }
    for (key, (mutex, lease)) in keys.iter().zip(mutexes.into_iter().zip(leases)) {
        assert_eq!(cx.locks(cx.lock_id(key)).await.granted, 1, "{key:?}");
        assert_eq!(
            cx.holder(&key.to_string()).await.fence,
            lease.fence().token()
        );
        assert_eq!(mutex.fence().key(), key);
        let same = other.mutex(key).unwrap();
        assert!(same.try_lock().await.unwrap().is_none(), "{key:?}");
        mutex.unlock().await.unwrap();
        lease.release().await.unwrap();
    }
}

async fn names_outside_the_limits_are_invalid(cx: Context) {
    let backend = cx.backend().await;
    for name in ["", "a\0b", "\0", &"x".repeat(256), &"\u{1f980}".repeat(64)] {
        let error = backend.mutex(name).unwrap_err();
        assert_eq!(
            (error.kind(), error.operation()),
            (ErrorKind::Invalid, "mutex")
        );
        let error = backend.lease(name, LeaseOptions::new(MINUTE)).unwrap_err();
        assert_eq!(
            (error.kind(), error.operation()),
            (ErrorKind::Invalid, "lease")
        );
    }
}

/// 255 bytes.
const LONGEST: &str = concat!(
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
);

/// Computed elsewhere: the first eight bytes of SHA-256 over namespace, NUL and name.
const GOLDEN: &[(&str, &str, i64)] = &[
    ("default", "reports/daily", 1_183_201_443_085_884_168),
    ("", "x", 4_359_092_777_751_712_752),
    ("default", "x", -6_739_837_767_898_314_985),
    ("a", "bc", 4_664_414_737_393_237_297),
    ("ab", "c", 7_783_115_584_253_305_165),
    ("default", " ", -8_329_004_262_460_622_871),
    ("default", "#5", -4_745_400_719_400_213_527),
    ("default", "it's", -6_204_163_542_569_969_202),
    (
        "default",
        "\u{dc}n\u{ef}c\u{f6}d\u{e9}",
        -4_926_726_910_270_445_810,
    ),
    ("default", "e\u{301}", -8_244_037_567_960_806_522),
    ("billing", "\u{1f980}", 7_299_775_726_211_414_310),
    ("n", LONGEST, 7_036_646_629_022_687_372),
    (LONGEST, "n", -196_483_938_432_853_786),
    ("default", "line\nbreak", 565_932_664_871_741_846),
];

async fn golden_vectors(cx: Context) {
    let backend = cx.backend().await;
    for (namespace, name, key) in GOLDEN {
        assert_eq!(
            advisory_key(namespace, name),
            *key,
            "{namespace:?} {name:?}"
        );
        let lock = LockId {
            key: *key,
            pair: false,
        };
        assert_eq!(Key::from(*name).lock_id(namespace), lock);
    }
    let guard = backend.mutex("door").unwrap().lock().await.unwrap();
    let key = advisory_key(cx.namespace(), "door");
    assert_eq!(cx.locks(LockId { key, pair: false }).await.granted, 1);
    guard.unlock().await.unwrap();
}

async fn sql_function_agrees(cx: Context) {
    for (namespace, name, key) in GOLDEN {
        let quoted = [namespace, name].map(|text| text.replace('\'', "''"));
        let sql = format!(
            "SELECT lockapi.advisory_key('{}', '{}')",
            quoted[0], quoted[1]
        );
        assert_eq!(
            cx.sql(&sql).await,
            [key.to_string()],
            "{namespace:?} {name:?}"
        );
    }
}

async fn numbers_are_the_locks_of_a_person(cx: Context) {
    let backend = cx.backend().await;
    let number = fastrand::i64(..);
    let (class, object) = (fastrand::i32(..), fastrand::i32(..));
    let named = format!("lockapi.advisory_key('{}', 'door')", cx.namespace());
    for (key, typed) in [
        (Key::from(number), format!("'{number}'::int8")),
        (
            Key::from((class, object)),
            format!("'{class}'::int4, '{object}'::int4"),
        ),
        (Key::from("door"), named),
    ] {
        let mutex = backend.mutex(&key).unwrap();
        let take = format!("SELECT pg_try_advisory_lock({typed})");
        assert_eq!(cx.sql(&take).await, ["t"]);
        assert!(mutex.try_lock().await.unwrap().is_none(), "{key:?}");
        cx.sql(&format!("SELECT pg_advisory_unlock({typed})")).await;
        let guard = mutex.try_lock().await.unwrap().expect("free");
        assert_eq!(cx.sql(&take).await, ["f"], "{key:?}");
        guard.unlock().await.unwrap();
    }
}

async fn namespaces_never_meet(cx: Context) {
    let other = cx.elsewhere().await;
    let (here, there) = (cx.backend().await, other.backend().await);
    let guard = here.mutex("door").unwrap().lock().await.unwrap();
    let held = here
        .lease("job", LeaseOptions::new(MINUTE))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    assert_eq!(other.locks(other.lock_id("door")).await, Locks::NONE);
    let mutex = there.mutex("door").unwrap();
    mutex
        .try_lock()
        .await
        .unwrap()
        .expect("free")
        .unlock()
        .await
        .unwrap();
    let lease = there.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    assert!(lease.peek().await.unwrap().is_none());
    lease
        .try_acquire()
        .await
        .unwrap()
        .expect("free")
        .release()
        .await
        .unwrap();
    assert_eq!(cx.holder("job").await.fence, held.fence().token());
    guard.unlock().await.unwrap();
    held.release().await.unwrap();
}
