//! The files of statements and of migrations, and what is known of their changes.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::mutate::{Mutation, mutations};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockapi/src");
const MIGRATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockapi/migrations");
const EXPLAINED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/mutants.md");

/// A file, and its text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Below the folder of the sources, or `migrations/` and the name of the file.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Of a migration, what may be changed: the functions that no later one defines again.
    pub(crate) functions: Vec<Function>,
}

/// Where a function is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// All of its definition.
    definition: Range<usize>,
    /// What it does.
    body: Range<usize>,
}

impl Source {
    /// The text without the comment that it begins with, which not every call carries.
    pub(crate) fn statement(text: &str) -> &str {
        let lines = text.split_inclusive('\n');
        let comment = lines.take_while(|line| line.starts_with("--"));
        &text[comment.map(str::len).sum::<usize>()..]
    }

    /// Whether it makes functions, instead of being a statement.
    pub(crate) fn is_migration(&self) -> bool {
        !self.functions.is_empty()
    }

    pub(crate) fn mutations(&self) -> Vec<Mutation> {
        let mut all = mutations(&self.text);
        all.retain(|it| !self.is_migration() || self.function_of(it).is_some());
        all
    }

    fn function_of(&self, mutation: &Mutation) -> Option<&Function> {
        let mut functions = self.functions.iter();
        functions.find(|function| function.body.contains(&mutation.at))
    }

    /// The definition of the function that a change is in, as the changed text has it, where the function exists.
    pub(crate) fn redefinition(&self, changed: &str, mutation: &Mutation) -> Option<String> {
        let definition = self.function_of(mutation)?.definition.clone();
        let definition = &changed[definition];
        let new = definition
            .trim_start_matches(CREATE)
            .trim_start_matches(REPLACE);
        Some(format!("{REPLACE}{new}"))
    }

    /// The text with a change.
    pub(crate) fn changed(&self, mutation: &Mutation) -> String {
        let mut text = self.text.clone();
        let end = mutation.at + mutation.old.len();
        text.replace_range(mutation.at..end, &mutation.new);
        text
    }
}

/// How a definition of a function begins.
const CREATE: &str = "CREATE FUNCTION lockapi.";
const REPLACE: &str = "CREATE OR REPLACE FUNCTION lockapi.";

/// All files of statements, and all that make functions, in the order of their paths.
pub(crate) fn all() -> Result<Vec<Source>> {
    let mut all = Vec::new();
    for (path, text) in read(SOURCES, "")? {
        all.push(Source {
            path,
            text,
            functions: Vec::new(),
        });
    }
    let migrations = read(MIGRATIONS, "migrations/")?;
    // By name, the file that has the last definition.
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, (_, text)) in migrations.iter().enumerate() {
        last.extend(functions(text).into_iter().map(|(name, _)| (name, at)));
    }
    for (at, (path, text)) in migrations.iter().enumerate() {
        let own = functions(text).into_iter();
        let own = own.filter(|(name, _)| last.get(name) == Some(&at));
        let functions: Vec<_> = own.map(|(_, function)| function).collect();
        if !functions.is_empty() {
            let (path, text) = (path.clone(), text.clone());
            all.push(Source {
                path,
                text,
                functions,
            });
        }
    }
    Ok(all)
}

/// The files of a folder, in the order of their paths.
fn read(folder: &str, before: &str) -> Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    find(Path::new(folder), &mut paths)?;
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path)?;
        let path = path.strip_prefix(folder)?.display();
        Ok((format!("{before}{path}"), text))
    };
    paths.into_iter().map(read).collect()
}

/// The functions that a script defines, by their names.
fn functions(text: &str) -> Vec<(&str, Function)> {
    const QUOTE: &str = "$$";
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(begin) = text[from..].find("CREATE ").map(|at| from + at) {
        from = begin + 1;
        let definition = &text[begin..];
        let name = definition.strip_prefix(CREATE);
        let Some(rest) = name.or_else(|| definition.strip_prefix(REPLACE)) else {
            continue;
        };
        let name = rest.split('(').next().unwrap_or_default();
        let mut quotes = text[begin..].match_indices(QUOTE).map(|(at, _)| begin + at);
        let (Some(open), Some(close)) = (quotes.next(), quotes.next()) else {
            continue;
        };
        let Some(end) = text[close..].find(';').map(|at| close + at + 1) else {
            continue;
        };
        let function = Function {
            definition: begin..end,
            body: open + QUOTE.len()..close,
        };
        found.push((name, function));
        from = end;
    }
    found
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "sql") {
            found.push(path);
        }
    }
    Ok(())
}

/// The list of changes that no test can tell, or need not.
pub(crate) fn explained() -> String {
    fs::read_to_string(EXPLAINED).unwrap_or_default()
}

/// Lines as an entry of the list has them.
pub(crate) fn in_one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.join(" ").trim().to_owned()
}

/// Whether the list has a change: a line that begins with the file, the kind, the text that is changed and what it becomes.
pub(crate) fn is_explained(list: &str, source: &Source, mutation: &Mutation) -> bool {
    let new = match &*in_one_line(&mutation.new) {
        "" => "nothing".to_owned(),
        new => format!("`{new}`"),
    };
    let (path, kind, old) = (&source.path, mutation.kind, in_one_line(&mutation.old));
    let entry = format!("- `{path}` {kind} `{old}` becomes {new}: ");
    list.lines().any(|line| line.starts_with(&entry))
}

#[cfg(test)]
mod cases {
    use super::*;

    #[test]
    fn functions_are_found() {
        let text = "CREATE TABLE a (b int);\nCREATE FUNCTION lockapi.one(a int8) RETURNS int8 AS $$\n  SELECT 1;\n$$;\n\
                    CREATE OR REPLACE FUNCTION lockapi.two() RETURNS int8 AS $$ SELECT 2 $$ LANGUAGE sql;\n";
        let found = functions(text);
        let told: Vec<_> = found
            .iter()
            .map(|(name, it)| {
                (
                    *name,
                    text[it.body.clone()].trim(),
                    &text[it.definition.clone()][..14],
                )
            })
            .collect();
        let expected = [
            ("one", "SELECT 1;", "CREATE FUNCTIO"),
            ("two", "SELECT 2", "CREATE OR REPL"),
        ];
        assert_eq!(told, expected);
        assert!(text[found[1].1.definition.clone()].ends_with("LANGUAGE sql;"));
    }

    #[test]
    fn only_the_last_definition_is_changed() {
        let all = all().unwrap();
        let admits = |source: &&Source| {
            let changed = source.mutations();
            let mut of = changed
                .iter()
                .filter_map(|it| source.redefinition(&source.text, it));
            of.any(|text| text.starts_with("CREATE OR REPLACE FUNCTION lockapi.admit("))
        };
        let paths: Vec<_> = all.iter().filter(admits).map(|it| &*it.path).collect();
        assert_eq!(paths, ["migrations/0028_key_turns.sql"]);
    }
}
