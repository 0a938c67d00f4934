//! Rows of any shape and number, as the decoder of each operation reads them.

use lockapi_fuzz::{mutated, text_like};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestCaseResult, TestRunner};

use super::batches::{Decoder, decoders};
use super::check;
use crate::ErrorKind;
use crate::driver::{Row, Rows, Type, Value};

/// These read no column: how many rows there are is their answer.
const COUNT_ROWS: [&str; 3] = ["lease.check", "migrate.lock", "schedule.set"];

/// Rows that are hard for each decoder: those of the model, without rows, with each cell in turn NULL or at an edge, with
/// a column less or more, and twice.
fn known(decoders: &[Decoder]) -> Vec<(usize, usize, Rows)> {
    let mut known = Vec::new();
    for (at, decoder) in decoders.iter().enumerate() {
        known.extend((0..3).map(|requests| (at, requests, Vec::new())));
        known.extend((0..4).map(|requests| (at, requests, decoder.rows.clone())));
        let Some(row) = decoder.rows.first().cloned().or_else(|| plain(decoder)) else {
            continue;
        };
        let width = row.0.len();
        for column in 0..width {
            for edge in edges(decoder.columns.get(column).copied()) {
                let mut row = row.clone();
                row.0[column] = edge;
                known.push((at, 1, vec![row]));
            }
        }
        let short = Row(row.0[..width.saturating_sub(1)].to_vec());
        let long = Row([row.0.clone(), vec![Value::Bool(true)]].concat());
        known.extend([short, long].map(|row| (at, 1, vec![row])));
        known.push((at, 1, [decoder.rows.clone(), decoder.rows.clone()].concat()));
    }
    known
}

/// A row of the declared types.
fn plain(decoder: &Decoder) -> Option<Row> {
    let cells = decoder.columns.iter().map(|of| match of {
        Type::Bool => Value::Bool(true),
        Type::Int => Value::Int(1),
        Type::Text => Value::Text("text".to_owned()),
        Type::Bytes => Value::Bytes(vec![1]),
        Type::Bools => Value::Bools(vec![true]),
        Type::Ints => Value::Ints(vec![1]),
        Type::Texts => Value::Texts(vec!["text".to_owned()]),
    });
    (!decoder.columns.is_empty()).then(|| Row(cells.collect()))
}

/// NULL, and what is at the edges of a type.
fn edges(of: Option<Type>) -> Vec<Value> {
    let ints = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    let edges = match of {
        Some(Type::Int) => ints.map(Value::Int).to_vec(),
        Some(Type::Ints) => vec![Value::Ints(Vec::new()), Value::Ints(ints.to_vec())],
        Some(Type::Text) => TEXTS.map(|text| Value::Text(text.to_owned())).to_vec(),
        _ => Vec::new(),
    };
    of.map(Value::Null).into_iter().chain(edges).collect()
}

#[test]
fn any_rows_are_read_or_corrupt() {
    let decoders = decoders();
    let shapes: Vec<_> = decoders
        .iter()
        .map(|it| (it.columns, it.rows.clone()))
        .collect();
    let cases = (0..decoders.len()).prop_flat_map(move |at| {
        let (columns, rows) = shapes[at].clone();
        let rows = prop_oneof![
            vec(row(columns), 0..5),
            mutated(vec![rows], row(columns).boxed()),
        ];
        (Just(at), 0..4_usize, rows)
    });
    check(known(&decoders), &cases, |(at, requests, rows)| {
        corrupt_or_read(&decoders[at], requests, rows)
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
    check([], &cases, |(at, rows)| {
        corrupt_or_read(&decoders[at], rows.len(), rows)
    });
}

/// The rows that a statement answers by its model have the declared columns, and are read.
#[test]
fn rows_of_the_model_are_read() {
    let mut rows_seen = 0;
    for decoder in decoders() {
        for Row(cells) in &decoder.rows {
            let types: Vec<_> = cells.iter().map(Value::type_of).collect();
            assert_eq!(types, decoder.columns, "{}", decoder.name);
        }
        rows_seen += decoder.rows.len();
        let read = (decoder.read)(2, decoder.rows.clone());
        let none = decoder.rows.is_empty();
        if let Err(failure) = read
            && !(none && failure.kind() == ErrorKind::Unavailable)
        {
            panic!("{}: {}", decoder.name, failure.error("decode"));
        }
    }
    assert!(rows_seen > 50, "{rows_seen}");
}

/// Columns that statements have for what they do, and that no decoder reads.
const UNREAD: [(&str, usize); 18] = [
    ("lease.check", 0),
    ("queue.push", 1),
    ("queue.push_keyed", 3),
    // Also of several that are pushed together.
    ("queue.push_keyed", 3),
    ("queue.redrive", 1),
    ("queue.set_paused", 1),
    ("queue.set_name_paused", 1),
    ("queue.set_limit", 1),
    ("schedule.fire", 4),
    ("schedule.run_now", 4),
    ("schedule.release", 1),
    ("schedule.set", 0),
    ("schedule.switch", 1),
    ("admin.cancel_jobs", 2),
    ("admin.edit_jobs", 5),
    ("admin.edit_jobs", 6),
    ("engine.session_settings", 1),
    ("migrate.lock", 0),
];

/// What is wrong with a column is told with its number.
#[test]
fn columns_of_other_types_are_named() {
    let mut runner = TestRunner::deterministic();
    let mut silent = Vec::new();
    for decoder in decoders() {
        for column in 0..decoder.columns.len() {
            if !is_named(&decoder, column, &mut runner) {
                silent.push((decoder.name, column));
            }
        }
    }
    assert_eq!(silent, UNREAD);
}

/// Whether there is a row in which the decoder tells the column.
fn is_named(decoder: &Decoder, column: usize, runner: &mut TestRunner) -> bool {
    let of = decoder.columns[column];
    let words = format!("column {column} of the answer is not of the expected type");
    // Where one is NULL others may be read. Many begin with the number of the request.
    let cell = |of: &Type| prop_oneof![6 => value(*of), 1 => Just(Value::Null(*of))];
    let cells: Vec<_> = decoder.columns.iter().map(cell).collect();
    let rows = (0..3000).map(|nth| {
        let mut cells = cells.new_tree(runner).expect("a row").current();
        if nth % 2 == 0 && decoder.columns[0] == Type::Int {
            cells[0] = Value::Int(1);
        }
        Row(cells)
    });
    decoder.rows.iter().cloned().chain(rows).any(|mut row| {
        row.0[column] = match of {
            Type::Bytes => Value::Bool(true),
            _ => Value::Bytes(Vec::new()),
        };
        let failure = (decoder.read)(1, vec![row]).err();
        let told = failure.map(|failure| failure.error("decode").to_string());
        told.is_some_and(|told| told.contains(&words))
    })
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
    select(vec![
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

/// Words that columns have.
const TEXTS: [&str; 15] = [
    "",
    "ready",
    "running",
    "dead",
    "shared",
    "fired",
    "skipped",
    "held",
    "[]",
    r#"[{"attempt":1,"at":-9223372036854775808,"worker":null,"error":""}]"#,
    r#"[{"attempt":1e99}]"#,
    "[[[[",
    "{}",
    "UTC",
    "* * * * *",
];

/// Words that columns have, what is nearly one, and others.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => select(TEXTS.to_vec()).prop_map(str::to_owned),
        1 => text_like(&TEXTS),
        1 => any::<String>(),
    ]
}
