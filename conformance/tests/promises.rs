//! Every promise has a row in `docs/promises.md`, and every row has cases.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The id that a text begins with, a letter and two digits, if `end` follows it.
fn id(text: &str, end: &str) -> Option<String> {
    let (id, rest) = text.split_at_checked(3)?;
    let mut bytes = id.bytes();
    let is_id = bytes.next().is_some_and(|it| it.is_ascii_alphabetic())
        && bytes.all(|it| it.is_ascii_digit());
    (is_id && rest.starts_with(end)).then(|| id.to_ascii_uppercase())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a text")
}

fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(read(&path));
        }
    }
}

fn ids_of_cases(package: &Path) -> BTreeSet<String> {
    let (mut cases, mut tests) = (Vec::new(), Vec::new());
    sources(&package.join("src/cases"), &mut cases);
    sources(&package.join("tests"), &mut tests);
    let mut ids = BTreeSet::new();
    // `M05 name;`, one a line, up to the brace that closes the macro.
    for block in cases
        .iter()
        .flat_map(|text| text.split("register! {").skip(1))
    {
        let lines = block.lines().take_while(|line| *line != "}");
        ids.extend(lines.filter_map(|line| id(line.trim_start(), " ")));
    }
    // `("X01", "name")`: cases in which two backends meet.
    let pairs = read(&package.join("src/cases/interop.rs"));
    let strings = pairs.split('"').filter(|text| text.len() == 3);
    ids.extend(strings.filter_map(|text| id(text, "")));
    // `fn x04_name()`: tests outside of the registry.
    let names = tests.iter().flat_map(|text| text.split("fn ").skip(1));
    ids.extend(names.filter_map(|name| id(name, "_")));
    ids
}

#[test]
fn are_those_of_the_cases() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cases = ids_of_cases(package);
    assert!(cases.len() > 100, "the sources are not there: {cases:?}");
    let document = read(&package.join("../docs/promises.md"));
    let rows = document.lines().filter_map(|line| line.strip_prefix("| "));
    let rows: BTreeSet<_> = rows.filter_map(|row| id(row, " | ")).collect();
    let unwritten: Vec<_> = cases.difference(&rows).collect();
    assert!(
        unwritten.is_empty(),
        "docs/promises.md has no row for {unwritten:?}"
    );
    let unkept: Vec<_> = rows.difference(&cases).collect();
    assert!(
        unkept.is_empty(),
        "docs/promises.md has rows without a case: {unkept:?}"
    );
}
