//! Values as they are sent and read, and URLs.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use bytes::BytesMut;
use lockapi::driver::{Type, Value, each_host};
use lockapi_fuzz::{check, text_like};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq};
use tokio_postgres::config::Host;
use tokio_postgres::types::{FromSql, IsNull};

use crate::{native, param, parse_config};

const TYPES: [Type; 7] = [
    Type::Bool,
    Type::Int,
    Type::Text,
    Type::Bytes,
    Type::Bools,
    Type::Ints,
    Type::Texts,
];

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        proptest::sample::select(TYPES.to_vec()).prop_map(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<String>().prop_map(Value::Text),
        any::<Vec<u8>>().prop_map(Value::Bytes),
        vec(any::<bool>(), 0..5).prop_map(Value::Bools),
        vec(any::<i64>(), 0..5).prop_map(Value::Ints),
        vec(any::<String>(), 0..5).prop_map(Value::Texts),
        Just(Value::Text(String::new())),
    ]
}

/// Integers, flags, texts and bytes as the server is sent them, by the description of the protocol.
fn sent(value: &Value) -> Option<Vec<u8>> {
    let scalars = |of: u32, items: Vec<Vec<u8>>| {
        let number = |number: usize| u32::try_from(number).expect("few").to_be_bytes();
        // One dimension, without NULL, of the type; its length and its first place.
        let mut sent = [
            number(1),
            [0; 4],
            of.to_be_bytes(),
            number(items.len()),
            number(1),
        ]
        .concat();
        for item in items {
            sent.extend(number(item.len()));
            sent.extend(item);
        }
        sent
    };
    Some(match value {
        Value::Null(_) => return None,
        Value::Bool(value) => vec![u8::from(*value)],
        Value::Int(value) => value.to_be_bytes().to_vec(),
        Value::Text(value) => value.as_bytes().to_vec(),
        Value::Bytes(value) => value.clone(),
        Value::Bools(values) => scalars(16, values.iter().map(|it| vec![u8::from(*it)]).collect()),
        Value::Ints(values) => scalars(
            20,
            values.iter().map(|it| it.to_be_bytes().to_vec()).collect(),
        ),
        Value::Texts(values) => scalars(
            25,
            values.iter().map(|it| it.clone().into_bytes()).collect(),
        ),
    })
}

fn read<'a, T: FromSql<'a>>(
    of: Type,
    bytes: Option<&'a [u8]>,
    wrap: fn(T) -> Value,
) -> Option<Value> {
    let value = Option::<T>::from_sql_nullable(&native(of), bytes).ok()?;
    Some(value.map_or(Value::Null(of), wrap))
}

#[test]
fn values_are_read_as_they_are_sent() {
    let known = TYPES.map(Value::Null).into_iter().chain([
        Value::Int(i64::MIN),
        Value::Text("a\0ä".to_owned()),
        Value::Bytes(vec![0, 255]),
        Value::Bools(Vec::new()),
        Value::Ints(vec![i64::MAX, i64::MIN]),
        Value::Texts(vec![String::new(), "NULL".to_owned(), "{}".to_owned()]),
    ]);
    check(known, &value(), |value| {
        let of = value.type_of();
        let mut out = BytesMut::new();
        let encoded = param(value.clone()).to_sql_checked(&native(of), &mut out);
        let is_null = matches!(encoded.expect("its type is right"), IsNull::Yes);
        let bytes = (!is_null).then(|| out.to_vec());
        prop_assert_eq!(&bytes, &sent(&value));
        prop_assert_eq!(native(of).oid(), of.oid());
        let bytes = bytes.as_deref();
        let found = match of {
            Type::Bool => read(of, bytes, Value::Bool),
            Type::Int => read(of, bytes, Value::Int),
            Type::Text => read(of, bytes, Value::Text),
            Type::Bytes => read(of, bytes, Value::Bytes),
            Type::Bools => read(of, bytes, Value::Bools),
            Type::Ints => read(of, bytes, Value::Ints),
            Type::Texts => read(of, bytes, Value::Texts),
        };
        prop_assert_eq!(found, Some(value));
        Ok(())
    });
}

/// A URL leads to one host, and what is told of one that is not understood does not quote it.
#[test]
fn urls_lead_to_one_host() {
    let known = [
        "postgres://u:secret@host:5432/app?sslmode=disable",
        "postgres://one:1,two:2/app",
        "postgres://one/app?host=two",
        "postgres:///app?host=/run/postgresql",
        "postgres://:5433/app?host=/run/postgresql",
        "postgres://one/app?host=one",
        "postgres:///app?host=one&host=two",
        "postgres:///app?hostaddr=::1,::2",
        "postgres://%2Frun%2Fpostgresql/app",
        "postgres://%2Frun%2Fpostgresql/app?host=//run/postgresql",
        "postgres://[::1]:5433,h/app?target_session_attrs=read-write",
        "postgres://h/app?port=1&port=2",
        "postgres://h:99999/app",
        "postgres://h/app?connect_timeout=x&keepalives_idle=-1",
        "postgres://",
        "host=a,b",
    ];
    check(known.map(str::to_owned), &text_like(&known), |url| {
        for url in each_host(&url).unwrap_or_default() {
            match parse_config(&url) {
                Ok(config) => {
                    let hosts = config.get_hosts().iter().map(|host| match host {
                        Host::Tcp(name) => vec![OsStr::new(name)],
                        // Folders are the same whatever the number of slashes.
                        Host::Unix(folder) => folder.iter().collect::<Vec<&OsStr>>(),
                    });
                    let named: BTreeSet<_> = hosts.filter(|host| *host != [""]).collect();
                    prop_assert!(named.len() <= 1, "{url}");
                    prop_assert!(config.get_hostaddrs().len() <= 1, "{url}");
                    prop_assert!(config.get_connect_timeout().is_some());
                }
                Err(error) => {
                    prop_assert_eq!(error.kind(), lockapi::ErrorKind::Invalid);
                    prop_assert!(!error.to_string().contains("secret"), "{error}");
                }
            }
        }
        Ok(())
    });
}
