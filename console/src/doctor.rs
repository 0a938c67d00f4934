//! `lockapi doctor`: what is wrong with a database.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use clap::Args;
use lockapi::admin::{Finding, Severity, examine, reach, watch_leases};
use serde::Serialize;
use tokio::time::timeout;

use crate::arguments::Global;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::plain;
use crate::values::duration;

/// How long the server has to answer, beside the time that is watched.
const PATIENCE: Duration = Duration::from_secs(30);
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
const LONGEST_WATCH: Duration = Duration::from_mins(10);
/// Clocks that differ by more than this are told.
const CLOCKS: Duration = Duration::from_secs(2);

/// Look for what is wrong: settings of the server, a pooler on the way, the schema, tables that are too large, old
/// transactions, jobs and tasks that nobody sees to, locks that are waited for, limits that are blocked
///
/// With --watch it also looks for leases and leaderships that are acquired again and again: the tables keep no history. Limits
/// that refuse all the time, or never, it does not find: refusals are not written, and the programs have the quotas.
///
/// Exits with 0 if there is nothing worse than a notice, with 3 if there are warnings, with 4 if something is critical,
/// and with 122 if the database cannot be reached.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// From which age on transactions, waits and due jobs are faults
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    older_than: Duration,
    /// Also watch for so long (up to 10m) who acquires leases: told are those whose token is another in three of about twenty
    /// readings of the first 10,000
    #[arg(long, value_name = "TIME", value_parser = watched)]
    watch: Option<Duration>,
}

fn watched(text: &str) -> std::result::Result<Duration, String> {
    let time = duration(text)?;
    if time < SHORTEST_WATCH || time > LONGEST_WATCH {
        return Err("it may be from 1s to 10m".to_owned());
    }
    Ok(time)
}

#[derive(Debug, Serialize)]
struct Told {
    severity: String,
    fault: String,
    subject: String,
    detail: String,
    why: String,
    remedy: String,
}

impl From<Finding> for Told {
    fn from(finding: Finding) -> Self {
        Self {
            severity: finding.severity.to_string(),
            fault: finding.fault.to_owned(),
            subject: finding.subject,
            detail: finding.detail,
            why: finding.why.to_owned(),
            remedy: finding.remedy,
        }
    }
}

impl Told {
    fn words(&self) -> String {
        let remedy = self
            .remedy
            .lines()
            .map(plain)
            .collect::<Vec<_>>()
            .join("\n          ");
        format!(
            "{}: {}: {} [{}]\n    why   {}\n    do    {remedy}\n",
            self.severity,
            plain(&self.subject),
            plain(&self.detail),
            self.fault,
            self.why
        )
    }
}

impl Doctor {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        let patience = PATIENCE + self.watch.unwrap_or_default();
        let looked = timeout(patience, self.look(global)).await;
        let (findings, ahead) = looked.map_err(|_| {
            Failure::new(
                Exit::Unreachable,
                format!("the server did not answer within {patience:?}"),
            )
        })??;
        let worst = findings.first().map(|finding| finding.severity);
        let mut told: Vec<Told> = findings.into_iter().map(Told::from).collect();
        let mut exit = match worst {
            Some(Severity::Critical) => Exit::Critical,
            Some(Severity::Warning) => Exit::Warning,
            _ => Exit::Success,
        };
        if let Some(ahead) = ahead {
            told.push(ahead);
            if exit == Exit::Success {
                exit = Exit::Warning;
            }
        }
        global.output().value(&told, |told| {
            if told.is_empty() {
                return "Nothing is wrong.".to_owned();
            }
            told.iter().map(Told::words).collect::<Vec<_>>().join("\n")
        })?;
        Ok(exit)
    }

    /// What was found, and how far the clocks are apart.
    async fn look(&self, global: &Global) -> Result<(Vec<Finding>, Option<Told>)> {
        let connector = lockapi_sqlx::connector_url(&global.place.url()?)?;
        let reached = reach(connector).await?;
        let mut findings = reached.findings;
        let Some(mut connection) = reached.connection else {
            return Ok((findings, None));
        };
        let before = SystemTime::now();
        let server = lockapi::admin::clock(&mut connection).await?;
        let after = SystemTime::now();
        findings.extend(examine(&mut connection, self.older_than).await?);
        if let Some(time) = self.watch {
            findings.extend(watch_leases(&mut connection, time).await?);
        }
        findings.sort_by_key(|finding| Reverse(finding.severity));
        Ok((findings, apart(before, server, after)))
    }
}

/// Whether the time of the server lies far outside of those between which it was asked for.
fn apart(before: SystemTime, server: SystemTime, after: SystemTime) -> Option<Told> {
    let ahead = server.duration_since(after).unwrap_or_default();
    let behind = before.duration_since(server).unwrap_or_default();
    let (by, which) = if ahead > behind {
        (ahead, "ahead of")
    } else {
        (behind, "behind")
    };
    (by > CLOCKS).then(|| Told {
        severity: Severity::Warning.to_string(),
        fault: "clocks".to_owned(),
        subject: "the clock".to_owned(),
        detail: format!("that of the server is {} {which} that of this machine", crate::output::spoken(by)),
        why: "The server's clock alone decides when leases expire and jobs are due; a clock that is set expires them early or late."
            .to_owned(),
        remedy: "Have both machines keep time by NTP, and let it slew instead of step.".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_are_told() {
        let now = SystemTime::now();
        let second = Duration::from_secs(1);
        assert!(apart(now, now + second, now + second).is_none());
        assert!(
            apart(now, now + second, now).is_none(),
            "a second is no fault"
        );
        let ahead = apart(now, now + 10 * second, now + second).unwrap();
        assert!(ahead.detail.contains("9.0s ahead"), "{}", ahead.detail);
        let behind = apart(now, now - 60 * second, now).unwrap();
        assert!(behind.detail.contains("1m 0s behind"), "{}", behind.detail);
    }
}
