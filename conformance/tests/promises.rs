//! Every promise has a sentence in `docs/promises.md`, and every sentence has cases.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The id that a text starts with, a letter and two digits, and what comes behind it.
fn id(text: &str) -> Option<(String, &str)> {
    let (id, rest) = text.split_at_checked(3)?;
    let (letter, number) = id.split_at_checked(1)?;
    let is_id = letter.bytes().all(|it| it.is_ascii_alphabetic())
        && number.bytes().all(|it| it.is_ascii_digit());
    is_id.then(|| (id.to_ascii_uppercase(), rest))
}

/// The id of a line of `register!`, of one of `interop.rs`, or of a test such as `fn x04_…`.
fn id_of_case(line: &str) -> Option<String> {
    let line = line.trim_start_matches([' ', '(']);
    let (start, end) = match line.split_at_checked(1)? {
        ("\"", _) => ("\"", "\","),
        ("f", _) => ("fn ", "_"),
        _ => ("", " "),
    };
    let (id, rest) = id(line.strip_prefix(start)?)?;
    let rest = rest.strip_prefix(end.trim_start_matches(start))?;
    (start != "" || rest.ends_with(';')).then_some(id)
}
