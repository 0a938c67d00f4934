//! The statement of a versioned update. Nowhere else is SQL composed.

use std::collections::HashSet;
use std::fmt::Write;

use crate::error::{Error, ErrorKind, Result};

/// The longest identifier that the server keeps whole, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 63;
/// The most columns of a key, or of a change.
const MAX_COLUMNS: usize = 100;

/// A table of the program with a version column, which is an integer and not NULL.
///
/// Identifiers are quoted, so they are compared as they are written: `Account` is not `account`.
///
/// ```
/// use lockapi::versioned::Table;
///
/// let accounts = Table::new("account", &["id"], "version")?.in_schema("bank")?;
/// let keyed_by_two = Table::new("price", &["shop", "article"], "version")?;
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    name: String,
    keys: Vec<String>,
    version: String,
}

impl Table {
    /// A table by its name, the columns that identify a row, and the column of the version.
    ///
    /// # Errors
    /// `Invalid` for an identifier that is not 1 to 63 bytes or has a NUL, no key, or a column that
    /// is named twice.
    pub fn new(name: &str, keys: &[&str], version: &str) -> Result<Self> {
        let name = quoted(name)?;
        let columns = keys.iter().chain([&version]).copied();
        let mut keys = distinct(columns, &HashSet::new())?;
        let version = keys.pop().unwrap_or_default();
        if keys.is_empty() {
            return Err(invalid(
                "a table with a key of 0 columns; allowed are 1 or more",
            ));
        }
        Ok(Self {
            name,
            keys,
            version,
        })
    }

    /// The same table in a schema; otherwise the `search_path` decides.
    ///
    /// # Errors
    /// `Invalid` for an identifier that is not 1 to 63 bytes or has a NUL.
    pub fn in_schema(mut self, schema: &str) -> Result<Self> {
        self.name = format!("{}.{}", quoted(schema)?, self.name);
        Ok(self)
    }

    /// The statement that sets these columns. Its parameters are the key, the version that was seen
    /// (an `int8`), and the values, each in the order of the columns; it answers at most one row, of
    /// the version that was found and the one that was written.
    ///
    /// The row is locked before it is compared, and the answer is what the lock found, not what the
    /// snapshot has.
    ///
    /// # Errors
    /// `Invalid` for an identifier that is not 1 to 63 bytes or has a NUL, and for a column that is
    /// the version, part of the key, or named twice.
    fn update(&self, columns: &[&str]) -> Result<String> {
        let taken = self.keys.iter().chain([&self.version]).cloned().collect();
        let columns = distinct(columns.iter().copied(), &taken)?;
        let Self {
            name,
            keys,
            version,
        } = self;
        let seen = keys.len() + 1;
        let mut key = String::new();
        for (at, column) in (1..).zip(keys) {
            let and = if at == 1 { "" } else { " AND " };
            // What equals a key of the program is the program's to say: its type may be of an extension.
            // Writing to a string cannot fail.
            let _ok = write!(key, "{and}t.{column} = ${at}");
        }
        let mut set = String::new();
        for (at, column) in (seen + 1..).zip(&columns) {
            let _ok = write!(set, "{column} = ${at}, ");
        }
        let [before, between, after] = frame();
        Ok(format!(
            "{before}SELECT t.{version}::pg_catalog.int8 FROM {name} AS t WHERE {key} FOR NO KEY UPDATE{between}\
             UPDATE {name} AS t SET {set}{version} = t.{version} OPERATOR(pg_catalog.+) 1
               FROM found AS f
              WHERE {key} AND t.{version} OPERATOR(pg_catalog.=) ${seen}::pg_catalog.int8
                AND f.version OPERATOR(pg_catalog.=) ${seen}::pg_catalog.int8
             RETURNING t.{version}::pg_catalog.int8{after}"
        ))
    }
}

/// What the `VersionedUpdate` of each backend crate is made of; `V` is a value of its library.
#[doc(hidden)]
#[derive(Debug)]
pub struct Update<'t, V> {
    table: &'t Table,
    keys: Vec<V>,
    columns: Vec<&'t str>,
    values: Vec<V>,
}

impl<'t, V> Update<'t, V> {
    /// Of a row of this table.
    #[must_use]
    pub fn of(table: &'t Table) -> Self {
        Self {
            table,
            keys: Vec::new(),
            columns: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Adds the value of the next column of the key.
    #[must_use]
    pub fn key(mut self, value: V) -> Self {
        self.keys.push(value);
        self
    }

    /// Sets a column.
    #[must_use]
    pub fn set(mut self, column: &'t str, value: V) -> Self {
        self.columns.push(column);
        self.values.push(value);
        self
    }

    /// The statement and its parameters, for a row that was `seen` with this version.
    ///
    /// # Errors
    /// `Invalid` for columns that cannot be, and a key that has too many values or too few.
    pub fn statement(self, seen: V) -> Result<(String, Vec<V>)> {
        let (found, columns) = (self.keys.len(), self.table.keys.len());
        if found != columns {
            return Err(invalid(format!(
                "{found} values for the key; allowed are exactly {columns}, one for each of its columns"
            )));
        }
        let sql = self.table.update(&self.columns)?;
        let mut parameters = self.keys;
        parameters.push(seen);
        parameters.extend(self.values);
        Ok((sql, parameters))
    }
}

/// The statement around its two parts: what stands before the one that locks the row and reads its
/// version, between it and the one that writes it, and after both.
fn frame() -> [&'static str; 3] {
    const SQL: &str = crate::driver::without_comment(include_str!("frame.sql"));
    let (before, rest) = SQL.split_once("{found}").unwrap_or((SQL, ""));
    let (between, after) = rest.split_once("{written}").unwrap_or((rest, ""));
    [before, between, after]
}

/// Quotes identifiers, each of which occurs once and is not taken.
fn distinct<'a>(
    names: impl Iterator<Item = &'a str>,
    taken: &HashSet<String>,
) -> Result<Vec<String>> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for name in names {
        let column = quoted(name)?;
        if taken.contains(&column) || !seen.insert(column.clone()) {
            return Err(invalid(format!(
                "the column {column} is named twice, or is the version or part of the key; allowed is each column once"
            )));
        }
        all.push(column);
    }
    if all.len() > MAX_COLUMNS {
        return Err(invalid(format!(
            "{} columns; allowed are at most {MAX_COLUMNS}",
            all.len()
        )));
    }
    Ok(all)
}

/// The identifier in quotes, as the server reads it back.
pub(crate) fn quoted(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > MAX_IDENTIFIER_BYTES {
        return Err(invalid(format!(
            "an identifier of {} bytes; allowed are 1 to {MAX_IDENTIFIER_BYTES}",
            name.len()
        )));
    }
    if name.contains('\0') {
        return Err(invalid(
            "an identifier has a NUL, which PostgreSQL cannot store in text",
        ));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "update_versioned", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_cannot_leave_their_quotes() {
        let nasty = "a\" = 1; DROP TABLE t; --";
        let table = Table::new(nasty, &[nasty], "version").unwrap();
        let sql = table.in_schema(nasty).unwrap().update(&["x\""]).unwrap();
        let quoted = "\"a\"\" = 1; DROP TABLE t; --\"";
        assert!(sql.contains(&format!("{quoted}.{quoted}")), "{sql}");
        assert!(sql.contains("\"x\"\"\" = $3"), "{sql}");
        assert_eq!(sql.replace(quoted, "").matches("DROP").count(), 0);
    }

    #[test]
    fn what_cannot_be_an_identifier_is_refused() {
        let long = "x".repeat(64);
        for name in ["", "a\0b", long.as_str()] {
            for table in [
                Table::new(name, &["id"], "version"),
                Table::new("t", &[name], "version"),
                Table::new("t", &["id"], name),
                Table::new("t", &["id"], "version").and_then(|table| table.in_schema(name)),
            ] {
                assert_eq!(table.unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
            }
        }
        let table = Table::new("t", &["id", "part"], "version").unwrap();
        for columns in [&["id"][..], &["version"], &["a", "a"], &["\0"]] {
            assert!(table.update(columns).is_err(), "{columns:?}");
        }
        assert!(Table::new("t", &[], "version").is_err());
        assert!(Table::new("t", &["id", "id"], "version").is_err());
        assert!(Table::new("t", &["version"], "version").is_err());
        assert!(table.update(&[]).is_ok(), "only the version");
    }
}
