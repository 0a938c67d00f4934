//! Finds faults of a database: in settings and schema, transactions that keep rows from being vacuumed, work
//! that makes no progress.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::driver::{Connection, Operation};
use crate::engine::{Clock, Timer};
use crate::error::{Error, Result};
use crate::failure::{Failure, is_missing_object};
use crate::lease::micros;
use crate::migrate::{self, MIGRATIONS};

mod catalog;
mod operations;
mod pooler;
mod schema;
mod turnover;

use operations::Object;
pub use operations::{
    ExamineIndexes, ExamineLimits, ExamineServer, ExamineSessions, ExamineSpace, ExamineTables,
    ExamineWork, ListAcquired, ListObjects, ReadClock,
};
pub use pooler::{ExaminedConnection, Reached, reach};
pub use schema::EXPECTED;
pub use turnover::watch_leases;

use catalog::FAULTS;

const OPERATION: &str = "examine";

/// Blocks of rate limits that end sooner are no fault.
const BLOCK: Duration = Duration::from_secs(24 * 60 * 60);

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing.
    Notice,
    /// It needs attention.
    Warning,
    /// It breaks a guarantee, or will.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

/// A fault that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// A name that programs can compare, such as `old_snapshot`.
    pub fault: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a session, a setting, a table, a queue.
    pub subject: String,
    /// What was found.
    pub detail: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do.
    pub remedy: String,
}

/// Finds the faults of the database that was [reached](reach), the worst
/// first. Transactions, waits and due jobs count as faults once they are as old as `age`.
///
/// # Guarantees
/// It only reads, and reads a bounded part of each queue. It works without the schema, with that of another version,
/// and on a standby; what the role may not read is a finding.
///
/// # Errors
/// `Unavailable` where the server does not answer.
pub async fn examine(connection: &mut ExaminedConnection, age: Duration) -> Result<Vec<Finding>> {
    let failed = |failure: Failure| failure.error(OPERATION);
    let age = micros(age);
    let mut found = Vec::new();
    found.extend(
        connection
            .perform(&[ExamineServer])
            .await
            .map_err(failed)?
            .concat(),
    );
    let sessions = connection.perform(&[ExamineSessions { age }]).await;
    found.extend(sessions.map_err(failed)?.concat());
    let objects = connection.perform(&[ListObjects]).await.map_err(failed)?;
    let objects = objects.concat();
    if objects.is_empty() {
        found.push(Fault::new("no_schema", "lockapi", "there is no schema"));
        return Ok(findings(found));
    }
    found.extend(
        connection
            .perform(&[ExamineTables])
            .await
            .map_err(failed)?
            .concat(),
    );
    let space = connection.perform(&[ExamineSpace]).await;
    found.extend(space.map_err(failed)?.concat());
    let version = match migrate::applied(connection).await {
        Ok(applied) => {
            found.extend(versions(&applied));
            applied.last().map_or(0, |last| last.version)
        }
        Err(error) if is_denied(&error) => {
            found.push(Fault::new(
                "unreadable",
                "lockapi.migration",
                &error.to_string(),
            ));
            0
        }
        Err(error) => return Err(error),
    };
    let current = MIGRATIONS.last().map_or(0, |last| last.version);
    if version == current {
        let unread = connection.perform(&[ExamineIndexes]).await;
        let unread = unread.map_err(failed)?.concat();
        found.extend(schema::drift(&objects, &unread));
    }
    read_rows(connection, ExamineWork { age }, &mut found).await?;
    let block = i64::try_from(BLOCK.as_nanos()).unwrap_or(i64::MAX);
    read_rows(connection, ExamineLimits { block }, &mut found).await?;
    Ok(findings(found))
}

/// Reads what is wrong in the rows of tables, which may be missing or not to be read.
async fn read_rows<O: Operation<Output = Vec<Fault>>>(
    connection: &mut ExaminedConnection,
    one: O,
    found: &mut Vec<Fault>,
) -> Result<()> {
    match connection.perform(&[one]).await {
        Ok(faults) => found.extend(faults.concat()),
        Err(failure) if failure.broken => return Err(failure.error(OPERATION)),
        Err(failure) => {
            let is_missing = failure.sqlstate.as_deref().is_some_and(is_missing_object);
            // In another version of the schema, which is found already.
            if is_missing && !found.is_empty() {
                return Ok(());
            }
            let error = failure.error(OPERATION);
            let fault = if is_denied(&error) {
                "unreadable"
            } else {
                "unexamined"
            };
            found.push(Fault::new(fault, "the tables", &error.to_string()));
        }
    }
    Ok(())
}

fn start_timer() -> Result<Timer> {
    Timer::start(&Clock::real()).map_err(|error| {
        let message = format!("the thread of the timer could not be started: {error}");
        Failure::connect(None, message).error(OPERATION)
    })
}

/// Reads the clock of the server.
///
/// # Errors
/// `Unavailable` where the server does not answer.
pub async fn clock(connection: &mut ExaminedConnection) -> Result<SystemTime> {
    let now = connection.perform(&[ReadClock]).await;
    let now = now.map_err(|failure| failure.error("clock"))?;
    Ok(super::since_epoch(now.first().copied().unwrap_or_default()))
}

fn is_denied(error: &Error) -> bool {
    error.sqlstate() == Some("42501")
}

fn versions(applied: &[migrate::AppliedMigration]) -> Vec<Fault> {
    let find = |version| applied.iter().find(|it| it.version == version);
    let mut faults = Vec::new();
    for migration in MIGRATIONS {
        let named = format!("version {} ({})", migration.version, migration.name);
        match find(migration.version) {
            None => faults.push(Fault::new("old_schema", &named, "it was not applied")),
            Some(it) if it.checksum != migration.checksum() => {
                faults.push(Fault::new(
                    "other_schema",
                    &named,
                    "it was applied with another text",
                ));
            }
            Some(_) => {}
        }
    }
    let last = MIGRATIONS.last().map_or(0, |last| last.version);
    for later in applied.iter().filter(|it| it.version > last) {
        let named = format!("version {}", later.version);
        faults.push(Fault::new(
            "later_schema",
            &named,
            "this program does not know it",
        ));
    }
    faults
}

/// What a statement found, or what was seen beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(crate) name: String,
    pub(crate) subject: String,
    pub(crate) detail: String,
    /// Statements that mend it, where it is known.
    pub(crate) mend: Option<String>,
}

impl Fault {
    fn new(name: &str, subject: &str, detail: &str) -> Self {
        Self {
            name: name.to_owned(),
            subject: subject.to_owned(),
            detail: detail.to_owned(),
            mend: None,
        }
    }
}

/// With what is known of each, the worst first.
fn findings(faults: Vec<Fault>) -> Vec<Finding> {
    let finding = |fault: Fault| {
        let known = FAULTS.iter().find(|known| known.fault == fault.name)?;
        let remedy = fault
            .mend
            .unwrap_or_else(|| known.remedy.replace("{subject}", &fault.subject));
        Some(Finding {
            fault: known.fault,
            severity: known.severity,
            subject: fault.subject,
            detail: fault.detail,
            why: known.why,
            remedy,
        })
    };
    let mut findings: Vec<Finding> = faults.into_iter().filter_map(finding).collect();
    findings.sort_by(|one, other| {
        let worst = other.severity.cmp(&one.severity);
        worst.then_with(|| (one.fault, &one.subject).cmp(&(other.fault, &other.subject)))
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name in the statements, which are `'name' AS fault` or the first of a branch.
    #[test]
    fn what_statements_find_is_known() {
        let texts = [
            include_str!("server.sql"),
            include_str!("sessions.sql"),
            include_str!("tables.sql"),
            include_str!("work.sql"),
            include_str!("limits.sql"),
            include_str!("indexes.sql"),
        ];
        let mut seen = 0;
        for text in texts {
            for line in text.lines().filter(|line| line.starts_with("SELECT")) {
                for quoted in line.split('\'').skip(1).step_by(2).take(2) {
                    let is_name = quoted
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                    let of_fault = line.starts_with(&format!("SELECT '{quoted}'"))
                        || line.starts_with("SELECT CASE WHEN o.paused");
                    if is_name && of_fault {
                        seen += 1;
                        assert!(FAULTS.iter().any(|known| known.fault == quoted), "{quoted}");
                    }
                }
            }
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn the_worst_comes_first() {
        let faults = ["dead_letters", "no_schema", "old_snapshot"];
        let faults = faults.map(|name| Fault::new(name, "a", "b")).to_vec();
        let found: Vec<_> = findings(faults).into_iter().map(|it| it.severity).collect();
        assert_eq!(
            found,
            [Severity::Critical, Severity::Warning, Severity::Notice]
        );
    }
}
