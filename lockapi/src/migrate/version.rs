//! In words: which version of the schema there is, and which one is needed.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Applied, MIGRATIONS};
use crate::driver::{Connection, Script};
use crate::engine::begin;
use crate::error::{Error, ErrorKind, Failure};
use crate::failure::is_missing_object;

/// Whether the server says that a schema, a table, a column or a function is not there.
pub(crate) fn is_missing(failure: &Failure) -> bool {
    failure.sqlstate.as_deref().is_some_and(is_missing_object)
}

/// The failure of a statement that found something missing, told by the versions as far as they can be
/// read.
pub(crate) async fn explain<N: Connection>(connection: &mut N, failure: Failure) -> Failure {
    match read(connection).await {
        Ok(found) => version_mismatch(found, &failure),
        Err(other) if other.broken => Failure {
            broken: true,
            ..failure
        },
        Err(_) => failure,
    }
}

/// The latest migration that was applied; 0 where there is no schema.
async fn read<N: Connection>(connection: &mut N) -> Result<i64, Failure> {
    begin(connection).await?;
    let applied = connection.perform(&[Applied]).await;
    connection.script(Script::Rollback).await?;
    match applied {
        Ok(applied) => Ok(latest(&applied.concat())),
        Err(failure) if is_missing(&failure) => Ok(0),
        Err(failure) => Err(failure),
    }
}

/// The latest of the migrations that were applied.
pub(super) fn latest(applied: &[(i64, String)]) -> i64 {
    let versions = applied.iter().map(|(version, _)| *version);
    versions.max().unwrap_or(0)
}

/// What there is, and what is needed.
pub(super) fn state(found: i64) -> String {
    let needed = MIGRATIONS.last().map_or(0, |last| last.version);
    match found {
        0 => format!("the schema lockapi does not exist; this library needs version {needed}"),
        _ => {
            format!("the schema lockapi is at version {found}; this library needs version {needed}")
        }
    }
}

fn version_mismatch(found: i64, failure: &Failure) -> Failure {
    let needed = MIGRATIONS.last().map_or(0, |last| last.version);
    let advice = match found.cmp(&needed) {
        Ordering::Less => "run `migrate()` as a role that may change it",
        Ordering::Greater => "use a library for that version",
        Ordering::Equal => "some of its objects were removed, or the role lacks privileges on them",
    };
    let code = failure.sqlstate.as_deref().unwrap_or_default();
    let message = format!("{}: {advice}: {} ({code})", state(found), failure.message());
    let error = Error::new(ErrorKind::Unsupported, "connect", message);
    let error = error.caused(failure.sqlstate.clone(), Arc::clone(&failure.source));
    Failure {
        source: Arc::new(error),
        ..failure.clone()
    }
}
