//! Rows of any shape and number, as the decoder of each operation reads them.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::batches::{Decoder, decoders};
use super::check;
use crate::ErrorKind;
use crate::driver::{Row, Rows, Type, Value};

/// These read no column: how many rows there are is their answer.
const COUNT_ROWS: [&str; 3] = ["lease.check", "migrate.lock", "schedule.set"];

#[test]
fn any_rows_are_read_or_corrupt() {
    let decoders = decoders();
    let columns: Vec<_> = decoders.iter().map(|one| one.columns).collect();
    let cases = (0..decoders.len()).prop_flat_map(move |at| {
        let columns = columns[at];
        (Just(at), 0..4_usize, vec(row(columns), 0..5))
    });
    check(&cases, |(at, requests, rows)| {
        let decoder = &decoders[at];
        corrupt_or_read(decoder, requests, rows)
    });
}

/// As many rows as there are requests, in whatever way they are numbered, of the declared types.
#[test]
fn rows_of_the_declared_types_are_read_or_corrupt() {
    let decoders = decoders();
    let columns: Vec<_> = decoders.iter().map(|one| one.columns).collect();
    let cases = (0..decoders.len()).prop_flat_map(move |at| {
        let columns: Vec<_> = columns[at].iter().map(|of| value(*of)).collect();
        (Just(at), vec(columns.prop_map(Row), 0..5))
    });
    check(&cases, |(at, rows)| {
        corrupt_or_read(&decoders[at], rows.len(), rows)
    });
}

#[test]
fn rows_without_the_declared_columns_are_corrupt() {
    for decoder in decoders() {
        if COUNT_ROWS.contains(&decoder.name) {
            continue;
        }
        let width = decoder.columns.len();
        let strange = Row(vec![Value::Bytes(vec![0]); width]);
        for row in [strange, Row(Vec::new())] {
            let read = (decoder.read)(1, vec![row]);
            let kind = read.err().map(|failure| failure.error("decode").kind());
            assert_eq!(kind, Some(ErrorKind::Corrupt), "{}", decoder.name);
        }
    }
}

fn corrupt_or_read(decoder: &Decoder, requests: usize, rows: Rows) -> TestCaseResult {
    let none = rows.is_empty();
    match (decoder.read)(requests, rows) {
        // Statements for the session that holds locks answer nothing in others.
        Err(failure) if none && failure.kind() == ErrorKind::Unavailable => Ok(()),
        Err(failure) if failure.error("decode").kind() != ErrorKind::Corrupt => {
            let problem = format!("{}: {}", decoder.name, failure.error("decode"));
            Err(TestCaseError::fail(problem))
        }
        _ => Ok(()),
    }
}

/// Mostly of the declared types.
fn row(columns: &'static [Type]) -> impl Strategy<Value = Row> {
    let cell = |of: Type| {
        prop_oneof![
            16 => value(of),
            1 => Just(Value::Null(of)),
            1 => any_type().prop_flat_map(value),
        ]
    };
    let cells: Vec<_> = columns.iter().map(|of| cell(*of)).collect();
    let width = prop_oneof![
        12 => Just(columns.len()),
        1 => 0..=columns.len(),
        1 => Just(columns.len() + 1),
    ];
    (cells, width).prop_map(|(mut cells, width)| {
        cells.resize(width, Value::Bool(true));
        Row(cells)
    })
}

fn any_type() -> impl Strategy<Value = Type> {
    proptest::sample::select(vec![
        Type::Bool,
        Type::Int,
        Type::Text,
        Type::Bytes,
        Type::Bools,
        Type::Ints,
        Type::Texts,
    ])
}

fn value(of: Type) -> proptest::strategy::BoxedStrategy<Value> {
    match of {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Int => int().prop_map(Value::Int).boxed(),
        Type::Text => text().prop_map(Value::Text).boxed(),
        Type::Bytes => vec(any::<u8>(), 0..4).prop_map(Value::Bytes).boxed(),
        Type::Bools => vec(any::<bool>(), 0..4).prop_map(Value::Bools).boxed(),
        Type::Ints => vec(int(), 0..4).prop_map(Value::Ints).boxed(),
        Type::Texts => vec(text(), 0..4).prop_map(Value::Texts).boxed(),
    }
}

/// Small numbers, as places and codes are, and those at the edges of the type.
pub(super) fn int() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -5..5_i64,
        1 => any::<i64>(),
        1 => (0..3_i64).prop_map(|by| i64::MIN + by),
        1 => (0..3_i64).prop_map(|by| i64::MAX - by),
    ]
}

/// Words that columns have, and others.
fn text() -> impl Strategy<Value = String> {
    let words = vec![
        "shared",
        "fired",
        "skipped",
        "held",
        "[]",
        r#"[{"attempt":1,"at":-9223372036854775808,"worker":null,"error":""}]"#,
        r#"[{"attempt":1e99}]"#,
        "[[[[",
        "UTC",
        "* * * * *",
    ];
    prop_oneof![
        proptest::sample::select(words).prop_map(str::to_owned),
        any::<String>(),
    ]
}
