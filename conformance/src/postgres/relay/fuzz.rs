//! What clients and servers may send, and what they should not.

use lockapi_fuzz::{bytes_like, check};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq};

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
        let mut message = of(kind, &bytes);
        if let Some(length) = wrong {
            message[1..5].copy_from_slice(&length.to_be_bytes());
        }
        message
    })
}

/// A message as it should be.
fn of(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len() + 4).expect("a short message");
    [&[kind], &length.to_be_bytes()[..], bytes].concat()
}

/// What clients and servers say to each other.
fn talks() -> Vec<Vec<u8>> {
    let prepared = [
        of(b'P', b"name\0SELECT 1\0\0\0"),
        of(b'B', b"\0name\0\0\0\0\0\0\0"),
        of(b'E', b"\0\0\0\0\0"),
        of(b'S', b""),
    ];
    let answer = [
        of(b'D', b"\0\x01\0\0\0\x011"),
        of(b'C', b"SELECT 1\0"),
        of(b'Z', b"I"),
    ];
    vec![
        prepared.concat(),
        answer.concat(),
        [of(b'Q', b"SELECT 1\0"), of(b'X', b"")].concat(),
        [of(b'Z', b"I"), of(b'Z', b"E")].concat(),
        [of(b'B', b"\0name\0"), of(b'P', b"name"), of(b'Q', b"")].concat(),
    ]
}

/// Talks that end after each byte, and lengths that cannot be.
fn known() -> Vec<Vec<u8>> {
    let talks = talks();
    let cut = talks
        .iter()
        .flat_map(|talk| (0..=talk.len()).map(|end| talk[..end].to_vec()));
    let lengths = [0, 3, 4, 5, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    let wrong = lengths.map(|length: u32| [&b"Q"[..], &length.to_be_bytes()[..], b"\0"].concat());
    cut.chain(wrong).collect()
}

fn messages() -> impl Strategy<Value = Vec<u8>> {
    let several = vec(message(), 0..12).prop_map(|messages| messages.concat());
    prop_oneof![5 => several, 5 => bytes_like(talks()), 1 => vec(any::<u8>(), 0..60)]
}

/// Where what is sent is cut into parts, as the network does.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![Just(vec![1]), Just(vec![1000]), vec(1..9_usize, 1..5)]
}

/// Bytes that come in parts of these lengths.
struct Parts {
    bytes: Vec<u8>,
    at: usize,
    cuts: std::iter::Cycle<std::vec::IntoIter<usize>>,
    written: Vec<u8>,
}

impl Parts {
    fn new(bytes: &[u8], cuts: Vec<usize>) -> Self {
        let cuts = cuts.into_iter().cycle();
        Self {
            bytes: bytes.to_vec(),
            at: 0,
            cuts,
            written: Vec::new(),
        }
    }
}

impl Read for Parts {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = &self.bytes[self.at..];
        let length = self
            .cuts
            .next()
            .unwrap_or(1)
            .min(left.len())
            .min(into.len());
        into[..length].copy_from_slice(&left[..length]);
        self.at += length;
        Ok(length)
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

/// The whole messages that some bytes begin with, by their places alone.
fn whole(bytes: &[u8]) -> Vec<&[u8]> {
    let mut whole = Vec::new();
    let mut at = 0;
    while at + 5 <= bytes.len() {
        let length = bytes[at + 1..at + 5]
            .iter()
            .fold(0, |sum, byte| sum * 256 + usize::from(*byte));
        let end = at + 1 + length;
        if length < 4 || end > bytes.len() {
            break;
        }
        whole.push(&bytes[at..end]);
        at = end;
    }
    whole
}

#[test]
fn frames_are_the_same_in_any_parts() {
    let known = known().into_iter().map(|bytes| (bytes, vec![1]));
    check(known, &(messages(), cuts()), |(bytes, cuts)| {
        let mut parts = Parts::new(&bytes, cuts);
        let mut frames = Vec::new();
        let ended = loop {
            match frame(&mut parts) {
                Ok(frame) => frames.push(frame),
                Err(error) => break error.kind(),
            }
        };
        let whole = whole(&bytes);
        prop_assert_eq!(&frames, &whole);
        let rest = &bytes[whole.concat().len()..];
        let is_wrong = rest.len() >= 5 && rest[1..4] == [0, 0, 0] && rest[4] < 4;
        let expected = if is_wrong {
            ErrorKind::InvalidData
        } else {
            ErrorKind::UnexpectedEof
        };
        prop_assert_eq!(ended, expected);
        Ok(())
    });
}

#[test]
fn whole_messages_are_passed_on() {
    let known = known().into_iter().map(|bytes| (bytes, vec![1], None));
    check(
        known,
        &(messages(), cuts(), fault()),
        |(bytes, cuts, fault)| {
            let broken = fault.is_some();
            let shared = Shared::default();
            *shared.lock() = fault;
            let mut server = Vec::new();
            let mut client = Parts::new(&bytes, cuts);
            let due = due();
            let ended = ask(&shared, &mut client, &mut server, &due);
            let whole = whole(&bytes);
            prop_assert!(whole.concat().starts_with(&server));
            if !broken {
                prop_assert_eq!(server, whole.concat());
                prop_assert!(
                    ended.is_err() && client.written.is_empty(),
                    "it ends with the connection"
                );
                let asked = whole
                    .iter()
                    .filter(|message| matches!(message[0], b'S' | b'Q'))
                    .count();
                prop_assert_eq!(due.lock().expect("not poisoned").asked, 1 + asked as u64);
            }
            Ok(())
        },
    );
}

#[test]
fn answers_are_passed_on() {
    let known = known().into_iter().flat_map(|bytes| {
        let broken = (2, Answer::Report("ERROR", "57014"));
        [
            (bytes.clone(), vec![1], None),
            (bytes, vec![1], Some(broken)),
        ]
    });
    let broken = proptest::option::of((1..4_u64, fault()));
    let broken =
        broken.prop_map(|broken| broken.and_then(|(nth, fault)| Some((nth, fault?.0.answer))));
    check(
        known,
        &(messages(), cuts(), broken),
        |(bytes, cuts, broken)| {
            let due = due();
            due.lock().expect("not poisoned").broken = broken;
            let mut client = Vec::new();
            let ended = answer(&mut Parts::new(&bytes, cuts), &mut client, &due);
            answered(&whole(&bytes), broken, &client, ended.is_ok())
        },
    );
}

/// What the client has to see: all answers but the one that is broken, and in its place what is told instead.
fn answered(
    whole: &[&[u8]],
    broken: Option<(u64, Answer)>,
    client: &[u8],
    ended: bool,
) -> TestCaseResult {
    let mut expected = Vec::new();
    let (mut nth, mut ends) = (1, false);
    for message in whole {
        let is_last = message[0] == b'Z';
        let told = broken
            .filter(|(broken, _)| *broken == nth)
            .map(|(_, answer)| answer);
        nth += u64::from(is_last);
        match told {
            None => expected.extend_from_slice(message),
            Some(Answer::Report("ERROR", code)) if is_last => {
                prop_assert!(code.len() == 5);
                expected.extend(super::told(&Answer::Report("ERROR", code)));
                expected.extend_from_slice(message);
            }
            Some(answer) if is_last => {
                expected.extend(super::told(&answer));
                ends = true;
                break;
            }
            Some(_) => {}
        }
    }
    prop_assert_eq!(client, &expected);
    prop_assert_eq!(ended, ends);
    Ok(())
}

#[test]
fn first_messages_have_a_number() {
    let known = (0..12_usize).flat_map(|cut| {
        let message = [0, 0, 0, 8, 0, 3, 0, 0, b'a', 0, b'b', 0][..cut].to_vec();
        [(message.clone(), vec![1]), (message, vec![100])]
    });
    let first = (vec(any::<u8>(), 0..12), 0..14_u32);
    let first = first.prop_map(|(bytes, length)| [&length.to_be_bytes()[..], &bytes].concat());
    check(known, &(first, cuts()), |(bytes, cuts)| {
        let length = bytes
            .first_chunk()
            .map(|length| u32::from_be_bytes(*length) as usize);
        let message = length.and_then(|length| bytes.get(..length));
        let number = message.and_then(|message| message.get(4..)?.first_chunk().copied());
        let expected = number.zip(message);
        let found = startup(&mut Parts::new(&bytes, cuts)).ok();
        let expected =
            expected.map(|(number, message)| (u32::from_be_bytes(number), message.to_vec()));
        prop_assert_eq!(found, expected);
        Ok(())
    });
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
