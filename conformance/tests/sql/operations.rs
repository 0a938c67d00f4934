//! The same operations on every driver, decoded alike.

use lockapi::driver::{Connection, Row, Rows, Script, Statement, Type, Value};
use lockapi::memory::Database;
use lockapi::mutex::LockMode;
use lockapi::suite::driver::Operation;
use lockapi::suite::lease::{Abandon, Acquire, Acquired, Peek, Release, Renew, Take, Taken};
use lockapi::suite::memory::ModelState;
use lockapi::suite::mutex::{Check, LockAnswer, LockRequest, MarkSession, Ping};
use lockapi::{ErrorKind, Failure, LockId};

use crate::connection::{Library, LibraryConnection};

#[test]
fn every_library_runs_the_operations() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    for library in Library::ALL {
        println!("on {library:?}");
        pollster::block_on(exercise(&mut LibraryConnection::connect(library, &url)));
    }
}

#[test]
fn a_check_wants_a_living_session_and_no_larger_token() {
    let (url, _runtime) = crate::server();
    let mut holder = LibraryConnection::connect(Library::Sync, &url);
    let mut writer = LibraryConnection::connect(Library::Sync, &url);
    let mark = fastrand::i64(..);
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let mut check = |fence| {
        let check = Check {
            session: mark,
            namespace: namespace.clone(),
            key: "door".to_owned(),
            fence,
        };
        pollster::block_on(writer.perform(&[check])).expect("answered")
    };
    assert_eq!(check(1), [false], "no session has the mark");
    let marked = pollster::block_on(holder.perform(&[MarkSession { mark }]));
    assert!(marked.expect("answered")[0].marked);
    assert_eq!(check(5), [true]);
    assert_eq!(check(5), [true], "again");
    assert_eq!(check(4), [false], "a later holder was here");
    assert_eq!(check(6), [true], "a later holder");
    drop(holder);
    let started = std::time::Instant::now();
    while check(7) == [true] {
        assert!(started.elapsed().as_secs() < 10, "the session is gone");
    }
}

#[test]
fn waiting_for_the_lock_of_no_transaction_is_invalid() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    // Of a mutex the call needs the key and the namespace only.
    let backend = pollster::block_on(Database::new().connect()).expect("a backend");
    let door = backend.mutex(format!("door {}", fastrand::u64(..)));
    let door = door.expect("a mutex");
    let mut holder = LibraryConnection::connect(Library::Sync, &url);
    pollster::block_on(holder.script(Script::Begin("BEGIN"))).expect("begun");
    let time = std::time::Duration::from_millis(200);
    for held in [false, true] {
        for library in Library::ALL {
            let mut connection = LibraryConnection::connect(library, &url);
            let waited = pollster::block_on(door.lock_in(&mut connection, time));
            let error = waited.expect_err("there is no transaction");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{library:?}: {error}");
        }
        if !held {
            let locked = pollster::block_on(door.lock_in(&mut holder, time));
            locked.expect("locked");
        }
    }
}

async fn exercise<C: Connection>(connection: &mut C) {
    locks(connection).await;
    leases(connection).await;
    permits(connection).await;
    every_type(connection).await;
    wrong_types(connection).await;
}

async fn locks<C: Connection>(connection: &mut C) {
    let mark = fastrand::i64(..);
    let marked_session = connection.perform(&[MarkSession { mark }]).await;
    assert!(marked_session.expect("answered")[0].marked);
    let session = mark;
    let lock = |pair| LockId {
        key: fastrand::i64(..),
        pair,
    };
    let (one, two) = (lock(false), lock(true));
    let take = |lock, release| LockRequest {
        lock,
        mode: LockMode::Exclusive,
        release,
        session,
    };
    let steps = [take(one, false), take(two, false), take(lock(true), true)];
    let answers = connection.perform(&steps).await.expect("answered");
    let [
        LockAnswer::Taken(first),
        LockAnswer::Taken(second),
        LockAnswer::NotHeld,
    ] = answers[..]
    else {
        panic!("{answers:?}");
    };
    assert_eq!(first, second, "one token for the batch");
    let releases = [take(one, true), take(two, true)];
    let answers = connection.perform(&releases).await.expect("answered");
    assert_eq!(answers, [LockAnswer::Released, LockAnswer::Released]);
    let pinged = connection.perform(&[Ping { session }]).await;
    pinged.expect("it lives");
    let alone = [take(two, false)];
    let answers = connection.perform(&alone).await.expect("answered");
    assert!(matches!(answers[..], [LockAnswer::Taken(token)] if token > first));
    let answers = connection
        .perform(&[take(two, true)])
        .await
        .expect("answered");
    assert_eq!(answers, [LockAnswer::Released]);
}

async fn leases<C: Connection>(connection: &mut C) {
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let acquire = |key: &str| Acquire {
        namespace: namespace.clone(),
        key: key.to_owned(),
        slot: 0,
        acquisition: fastrand::i64(..),
        ttl: 60_000_000,
        hold: 0,
        owner: "o'wner".to_owned(),
        data: "\u{1f980} {\"a,b\"}".to_owned(),
    };
    let batch = [acquire("a"), acquire("b"), acquire("a")];
    let answers = connection.perform(&batch).await.expect("answered");
    let [
        Acquired::Granted(fence),
        Acquired::Granted(_),
        Acquired::Held(_),
    ] = answers[..]
    else {
        panic!("{answers:?}");
    };
    let again = connection.perform(&batch[..1]).await.expect("answered");
    assert_eq!(again, [Acquired::Granted(fence)], "a repeated request");
    let peek = Peek {
        namespace: namespace.clone(),
        key: "a".to_owned(),
        slot: 0,
    };
    let peeked = connection
        .perform(std::slice::from_ref(&peek))
        .await
        .expect("answered")
        .remove(0);
    let peeked = peeked.expect("held");
    assert_eq!(
        (peeked.owner, peeked.data),
        (batch[0].owner.clone(), batch[0].data.clone())
    );
    let renew = |fence| Renew {
        namespace: namespace.clone(),
        key: "a".to_owned(),
        slots: [0].into(),
        fence,
        ttl: 60_000_000,
    };
    let answers = connection.perform(&[renew(fence), renew(fence + 1)]).await;
    assert_eq!(answers.expect("answered"), [true, false]);
    let release = Release {
        namespace: namespace.clone(),
        key: "a".to_owned(),
        slots: [0].into(),
        fence,
    };
    let answers = connection.perform(&[release.clone(), release]).await;
    assert_eq!(answers.expect("answered").first(), Some(&true));
    assert_eq!(connection.perform(&[peek]).await.expect("answered"), [None]);
}

/// What repetitions of a request for permits find, and how what nobody was told of goes back.
async fn permits<C: Connection>(connection: &mut C) {
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let take = |acquisition, count| Take {
        namespace: namespace.clone(),
        key: "pool".to_owned(),
        permits: 4,
        count,
        acquisition,
        ttl: 60_000_000,
        hold: 30_000_000,
        owner: "o".to_owned(),
        data: String::new(),
    };
    let taken = async |connection: &mut C, batch: &[Take]| {
        let answers = connection.perform(batch).await.expect("answered");
        let of = |answer| match answer {
            Taken::Granted { fence, slots } => Some((fence, slots)),
            Taken::Refused { .. } => None,
        };
        answers.into_iter().map(of).collect::<Vec<_>>()
    };
    // The rows have to be made first.
    taken(connection, &[take(1, 4)]).await;
    let first = taken(connection, &[take(1, 1), take(2, 2)]).await;
    let [Some(one), Some(two)] = &first[..] else {
        panic!("{first:?}");
    };
    assert!(two.0 > one.0);
    let again = taken(connection, &[take(2, 2), take(1, 1), take(3, 1)]).await;
    assert_eq!(
        again[..2],
        [Some(two.clone()), Some(one.clone())],
        "repeated"
    );
    let third = again[2].clone().expect("the last one");
    assert_eq!(
        third.1[..],
        [4],
        "what was repeated is not taken from others"
    );
    let renew = |(fence, slots): &(i64, std::sync::Arc<[i64]>)| Renew {
        namespace: namespace.clone(),
        key: "pool".to_owned(),
        slots: slots.clone(),
        fence: *fence,
        ttl: 60_000_000,
    };
    let answers = connection
        .perform(&[renew(one), renew(two), renew(&third)])
        .await;
    assert_eq!(answers.expect("answered"), [true, true, true]);
    assert_eq!(taken(connection, &[take(4, 2)]).await, [None]);
    let but = |acquisition, granted| Abandon {
        namespace: namespace.clone(),
        key: "pool".to_owned(),
        first: 1,
        last: 4,
        acquisition,
        granted,
    };
    let abandon = |acquisition| but(acquisition, 0);
    let answers = connection.perform(&[but(2, two.0), abandon(9)]).await;
    assert_eq!(answers.expect("answered"), [false, false]);
    let answers = connection.perform(&[but(2, two.0 - 1), abandon(9)]).await;
    assert_eq!(answers.expect("answered"), [true, false]);
    let next = taken(connection, &[take(4, 2)]).await;
    let next = next[0]
        .clone()
        .expect("free at once, whatever the minimum hold");
    assert_eq!(next.1, two.1);
    let answers = connection.perform(&[abandon(2), abandon(1)]).await;
    assert_eq!(answers.expect("answered"), [false, true]);
    let answers = connection.perform(&[renew(&next), renew(two)]).await;
    assert_eq!(answers.expect("answered"), [true, false]);
}

/// Sends a value of every type, and NULL of every type, and gets them back.
#[derive(Clone)]
struct Echo(Vec<Value>);

const TYPES: &[Type] = &[
    Type::Bool,
    Type::Int,
    Type::Text,
    Type::Bytes,
    Type::Bools,
    Type::Ints,
    Type::Texts,
];

impl Operation for Echo {
    type Output = Vec<Value>;

    const STATEMENT: Statement = Statement {
        name: "driver.echo",
        sql: "SELECT $1::bool AS a, $2::int8 AS b, $3::text AS c, $4::bytea AS d, $5::bool[] AS e,
                     $6::int8[] AS f, $7::text[] AS g",
        params: TYPES,
        columns: TYPES,
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch[0].0.clone()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<Value>>, Failure> {
        Ok(rows.into_iter().map(|Row(values)| values).collect())
    }

    fn model(batch: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(batch[0].0.clone())])
    }
}

async fn every_type<C: Connection>(connection: &mut C) {
    let texts = ["", "NULL", "a,b", "\"{}\\'", "\u{1f980}"].map(str::to_owned);
    for values in [
        TYPES.iter().map(|of| Value::Null(*of)).collect(),
        vec![
            Value::Bool(true),
            Value::Int(i64::MIN),
            Value::Text(texts.concat()),
            Value::Bytes((0..=255).collect()),
            Value::Bools(vec![true, false]),
            Value::Ints(vec![i64::MAX, 0, i64::MIN]),
            Value::Texts(texts.to_vec()),
        ],
        vec![
            Value::Bool(false),
            Value::Int(0),
            Value::Text(String::new()),
            Value::Bytes(Vec::new()),
            Value::Bools(Vec::new()),
            Value::Ints(Vec::new()),
            Value::Texts(Vec::new()),
        ],
    ] {
        let echoed = connection
            .perform(&[Echo(values.clone())])
            .await
            .expect("answered");
        assert_eq!(echoed, [values]);
    }
}

/// Declares an `int8` where the server answers something else.
#[derive(Clone)]
struct Wrong<const NTH: usize>;

macro_rules! wrong {
    ($($nth:literal $sql:literal;)*) => {$(
        impl Operation for Wrong<$nth> {
            type Output = i64;

            const STATEMENT: Statement = Statement {
                name: "driver.wrong",
                sql: $sql,
                params: &[],
                columns: &[Type::Int],
            };

            fn params(_: &[Self]) -> Vec<Value> {
                Vec::new()
            }

            fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
                rows.into_iter().map(|mut row| row.int(0)).collect()
            }

            fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
                None
            }
        }
    )*};
}

wrong! {
    0 "SELECT 1::int4 AS a";
    1 "SELECT 1::int2 AS a";
    2 "SELECT '1'::text AS a";
    3 "SELECT 1::numeric AS a";
    4 "SELECT true AS a";
    5 "SELECT '2020-01-01'::timestamptz AS a";
    6 "SELECT NULL::int8 AS a";
}

async fn wrong_types<C: Connection>(connection: &mut C) {
    async fn refused<C: Connection, const NTH: usize>(connection: &mut C)
    where
        Wrong<NTH>: Operation<Output = i64>,
    {
        let failure = connection
            .perform(&[Wrong::<NTH>])
            .await
            .expect_err("refused");
        assert_eq!(failure.kind(), ErrorKind::Corrupt, "statement {NTH}");
    }
    refused::<C, 0>(connection).await;
    refused::<C, 1>(connection).await;
    refused::<C, 2>(connection).await;
    refused::<C, 3>(connection).await;
    refused::<C, 4>(connection).await;
    refused::<C, 5>(connection).await;
    refused::<C, 6>(connection).await;
}
