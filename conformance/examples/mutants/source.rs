//! The files of statements, and what is known of their changes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::mutate::{Mutation, mutations};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockapi/src");
const EXPLAINED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/mutants.md");

/// A file, and its text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Below the folder of the sources.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// The text without the comment that it begins with, which not every call carries.
    pub(crate) fn statement(text: &str) -> &str {
        let lines = text.split_inclusive('\n');
        let comment = lines.take_while(|line| line.starts_with("--"));
        &text[comment.map(str::len).sum::<usize>()..]
    }

    pub(crate) fn mutations(&self) -> Vec<Mutation> {
        mutations(&self.text)
    }

    /// The text with a change.
    pub(crate) fn changed(&self, mutation: &Mutation) -> String {
        let mut text = self.text.clone();
        let end = mutation.at + mutation.old.len();
        text.replace_range(mutation.at..end, &mutation.new);
        text
    }
}

/// All files of statements, in the order of their paths.
pub(crate) fn all() -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    find(Path::new(SOURCES), &mut paths)?;
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path)?;
        let path = path.strip_prefix(SOURCES)?.display().to_string();
        Ok(Source { path, text })
    };
    paths.into_iter().map(read).collect()
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

/// Whether the list has a change: a line that begins with the file, the kind, the text that is changed and what it becomes.
pub(crate) fn is_explained(list: &str, source: &Source, mutation: &Mutation) -> bool {
    let new = match mutation.new.trim() {
        "" => "nothing".to_owned(),
        new => format!("`{new}`"),
    };
    let (path, kind, old) = (&source.path, mutation.kind, mutation.old.trim());
    let entry = format!("- `{path}` {kind} `{old}` becomes {new}: ");
    list.lines().any(|line| line.starts_with(&entry))
}
