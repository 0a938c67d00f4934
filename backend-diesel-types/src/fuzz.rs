//! Columns as servers may send them.

use std::num::NonZeroU32;

use diesel::pg::PgValue;
use lockapi::driver::{Type, Value};
use lockapi_fuzz::{bytes_like, check};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::prop_assert_eq;

use crate::value::{Column, read};

/// An array of one dimension, by the description of the protocol.
fn array(of: Type, items: &[Option<Vec<u8>>]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).expect("few").to_be_bytes().to_vec();
    let nulls = items.contains(&None);
    let mut bytes = [
        number(usize::from(!items.is_empty())),
        number(nulls.into()),
        of.oid().to_be_bytes().to_vec(),
    ]
    .concat();
    if !items.is_empty() {
        bytes.extend([number(items.len()), number(1)].concat());
    }
    for item in items {
        match item {
            Some(item) => bytes.extend([number(item.len()), item.clone()].concat()),
            None => bytes.extend([255; 4]),
        }
    }
    bytes
}

/// The value that bytes stand for, by the description of the protocol.
fn expected(oid: u32, bytes: &[u8]) -> Option<Value> {
    let int = |bytes: &[u8]| Some(i64::from_be_bytes(bytes.try_into().ok()?));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some(match oid {
        17 => Value::Bytes(bytes.to_vec()),
        20 => Value::Int(int(bytes)?),
        25 => Value::Text(text(bytes)?),
        _ => return None,
    })
}

fn found(oid: u32, bytes: &[u8]) -> Option<Value> {
    let oid = NonZeroU32::new(oid).expect("a type");
    let lookup = move || oid;
    match read(PgValue::new(bytes, &lookup)) {
        Ok(Column::Value(value)) => Some(value),
        _ => None,
    }
}

#[test]
fn columns_are_read_or_refused() {
    let bytes = [
        &b""[..],
        b"\0",
        b"\x01",
        b"\xff",
        b"\0\0\0\0\0\0\0\x07",
        b"text",
        "ä\0".as_bytes(),
    ]
    .map(<[u8]>::to_vec);
    let known = bytes
        .iter()
        .flat_map(|bytes| [16, 17, 20, 25, 23, 1000].map(|oid| (oid, bytes.clone())));
    let oids = proptest::sample::select(vec![17, 20, 25]);
    check(
        known,
        &(oids, bytes_like(bytes.to_vec())),
        |(oid, bytes)| {
            if [17, 20, 25].contains(&oid) {
                prop_assert_eq!(found(oid, &bytes), expected(oid, &bytes));
            } else if oid == 23 {
                prop_assert_eq!(found(oid, &bytes), None);
            } else {
                found(oid, &bytes);
            }
            Ok(())
        },
    );
}

#[test]
fn arrays_are_read_as_they_are_sent() {
    let ints = vec(any::<i64>(), 0..5).prop_map(Value::Ints);
    let flags = vec(any::<bool>(), 0..5).prop_map(Value::Bools);
    let texts = vec(any::<String>(), 0..5).prop_map(Value::Texts);
    let known = [
        Value::Ints(Vec::new()),
        Value::Texts(vec![String::new()]),
        Value::Ints(vec![i64::MIN]),
    ];
    check(known, &prop_oneof![ints, flags, texts], |value| {
        let (of, items): (_, Vec<Vec<u8>>) = match &value {
            Value::Ints(items) => (
                Type::Int,
                items.iter().map(|it| it.to_be_bytes().to_vec()).collect(),
            ),
            Value::Bools(items) => (
                Type::Bool,
                items.iter().map(|it| vec![u8::from(*it)]).collect(),
            ),
            Value::Texts(items) => (
                Type::Text,
                items.iter().map(|it| it.clone().into_bytes()).collect(),
            ),
            _ => return Ok(()),
        };
        let items: Vec<_> = items.into_iter().map(Some).collect();
        prop_assert_eq!(
            found(value.type_of().oid(), &array(of, &items)),
            Some(value)
        );
        Ok(())
    });
}

/// What is no array of elements that are there is refused, and takes no memory for what it only announces.
#[test]
fn broken_arrays_are_refused() {
    let whole = array(Type::Int, &[Some(vec![0; 8]), Some(vec![1; 8])]);
    let cut = (0..whole.len()).map(|end| whole[..end].to_vec());
    let with_null = array(Type::Int, &[None, Some(vec![0; 8])]);
    for bytes in cut.chain([with_null]) {
        assert_eq!(found(Type::Ints.oid(), &bytes), None, "{bytes:?}");
    }
    let near = bytes_like(vec![whole.clone(), array(Type::Int, &[])]);
    check([whole], &near, |bytes| {
        // It does not panic; and what is read is what is there.
        if let Some(Value::Ints(items)) = found(Type::Ints.oid(), &bytes) {
            let sent = items.iter().all(|item| {
                let item = item.to_be_bytes();
                bytes.windows(8).any(|it| it == item)
            });
            prop_assert_eq!(sent, true);
        }
        Ok(())
    });
}
