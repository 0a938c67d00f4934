//! What clients and servers may send, and what they should not.

use std::io::Cursor;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::Config;
use proptest::{prop_assert, prop_assert_eq, proptest};

use super::*;

/// A message with a type, a length that may be wrong, and some bytes.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        4 => proptest::sample::select(b"PBQSEDCZXd".to_vec()),
        1 => any::<u8>(),
    ];
    let bytes = prop_oneof![
        vec(any::<u8>(), 0..40),
        "\\PC{0,4}\0SELECT \\PC{0,4}\0".prop_map(String::into_bytes),
        "\\PC{0,4}\0\\PC{0,4}".prop_map(String::into_bytes),
    ];
    let wrong = prop_oneof![12 => Just(None), 1 => any::<u32>().prop_map(Some), 1 => (0..9_u32).prop_map(Some)];
    (kind, bytes, wrong).prop_map(|(kind, bytes, wrong)| {
        let length = u32::try_from(bytes.len() + 4).expect("a short message");
        let length = wrong.unwrap_or(length).to_be_bytes();
        [&[kind], &length[..], &bytes[..]].concat()
    })
}

fn messages() -> impl Strategy<Value = Vec<u8>> {
    let several = vec(message(), 0..12).prop_map(|messages| messages.concat());
    prop_oneof![5 => several, 1 => vec(any::<u8>(), 0..60)]
}

fn fault() -> impl Strategy<Value = Option<(Fault, u32)>> {
    let point = prop_oneof![Just(Point::Before), Just(Point::After)];
    let answer = prop_oneof![
        Just(Answer::Nothing),
        Just(Answer::Report("ERROR", "57014")),
        Just(Answer::Report("FATAL", "57P01")),
    ];
    let fault = (point, answer).prop_map(|(point, answer)| Fault {
        statement: "SELECT",
        point,
        answer,
    });
    proptest::option::of((fault, 0..3_u32))
}

fn due() -> Mutex<Due> {
    Mutex::new(Due {
        asked: 1,
        answered: 0,
        broken: None,
    })
}

/// The whole messages that some bytes begin with.
fn whole(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Ok(frame) = frame(&mut bytes) {
        whole.extend(frame);
    }
    whole
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn fuzz_whole_messages_are_passed_on(bytes in messages(), fault in fault()) {
        let broken = fault.is_some();
        let shared = Shared::default();
        *shared.lock() = fault;
        let mut server = Vec::new();
        let mut client = Cursor::new(bytes.clone());
        let ended = ask(&shared, &mut client, &mut server, &due());
        let whole = whole(&bytes);
        prop_assert!(whole.starts_with(&server));
        prop_assert!(bytes.starts_with(&whole));
        if !broken {
            prop_assert_eq!(server, whole);
            prop_assert!(ended.is_err(), "it ends with the connection");
        }
    }

    #[test]
    fn fuzz_answers_are_passed_on(bytes in messages(), broken in proptest::option::of((1..4_u64, fault()))) {
        let due = due();
        let broken = broken.and_then(|(nth, fault)| fault.map(|(fault, _)| (nth, fault.answer)));
        let whole = whole(&bytes);
        due.lock().expect("not poisoned").broken = broken;
        let mut client = Vec::new();
        let ended = answer(&mut &*bytes, &mut client, &due);
        if broken.is_none() {
            prop_assert_eq!(client, whole);
            prop_assert!(ended.is_err(), "it ends with the connection");
        }
    }

    #[test]
    fn fuzz_first_messages_have_a_number(bytes in vec(any::<u8>(), 0..12), length in 0..14_u32) {
        let bytes = [&length.to_be_bytes()[..], &bytes].concat();
        if let Ok((_, message)) = startup(&mut &*bytes) {
            prop_assert!(message.len() >= 8 && bytes.starts_with(&message));
        }
    }
}

#[test]
fn a_first_message_without_a_number_is_refused() {
    assert!(startup(&mut &[0, 0, 0, 4][..]).is_err());
}

#[test]
fn a_length_alone_takes_no_memory() {
    let announced = [b'Q', 0xff, 0xff, 0xff, 0xff, 1, 2];
    let ended = frame(&mut &announced[..]).map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::UnexpectedEof));
}
