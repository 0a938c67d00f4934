//! Watching who acquires leases: their rows tell of the latest holder only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::operations::Acquired;
use super::{
    ExaminedConnection, Fault, Finding, ListAcquired, ReadClock, findings, is_denied, start_timer,
};
use crate::driver::Connection;
use crate::error::Result;
use crate::failure::Failure;

/// How often leases are read in the time that they are watched for.
const READINGS: u32 = 20;
/// At most as often as this.
const PAUSE: Duration = Duration::from_millis(200);
/// So many acquisitions are too many.
const CHANGES: u32 = 3;

/// There is no such table or column, which is found in another way.
const MISSING: &[&str] = &["42P01", "42703", "3F000"];

/// A lease that was acquired while it was watched.
#[derive(Debug)]
struct Turnover {
    latest: Acquired,
    changes: u32,
    owners: BTreeSet<String>,
}

/// Watches for a time who acquires leases and leaderships, and tells which are acquired again and again: those whose token
/// was another in three readings or more, and of leases those that more than one holder had.
///
/// # Guarantees
/// It only reads: about twenty times, at most each 200 ms, the first 10,000 leases in the order of their keys. What is
/// acquired more than once between two readings is counted once.
///
/// # Errors
/// `Unavailable` where the server does not answer.
pub async fn watch_leases(
    connection: &mut ExaminedConnection,
    time: Duration,
) -> Result<Vec<Finding>> {
    let failed = |failure: Failure| failure.error("watch_leases");
    let timer = start_timer()?;
    let until = timer.now().saturating_add(time);
    let since = connection.perform(&[ReadClock]).await.map_err(failed)?;
    let since = since.first().copied().unwrap_or_default();
    let mut seen = BTreeMap::new();
    while timer.now() < until {
        timer.sleep((time / READINGS).max(PAUSE)).await;
        match connection.perform(&[ListAcquired { since }]).await {
            Ok(acquired) => count(&mut seen, acquired.concat()),
            Err(failure) if failure.broken => return Err(failed(failure)),
            Err(failure)
                if failure
                    .sqlstate
                    .as_deref()
                    .is_some_and(|code| MISSING.contains(&code)) =>
            {
                return Ok(Vec::new());
            }
            Err(failure) => {
                let error = failed(failure);
                if is_denied(&error) {
                    let fault = Fault::new("unreadable", "lockapi.lease", &error.to_string());
                    return Ok(findings(vec![fault]));
                }
                return Err(error);
            }
        }
    }
    Ok(findings(faults(&seen, time)))
}

fn count(seen: &mut BTreeMap<(String, bool), Turnover>, acquired: Vec<Acquired>) {
    for latest in acquired {
        let key = (latest.lease.clone(), latest.leads);
        let turnover = seen.entry(key).or_insert_with(|| Turnover {
            latest: latest.clone(),
            changes: 1,
            owners: BTreeSet::from([latest.owner.clone()]),
        });
        if turnover.latest.fence != latest.fence {
            turnover.changes += 1;
            turnover.owners.insert(latest.owner.clone());
            turnover.latest = latest;
        }
    }
}

fn faults(seen: &BTreeMap<(String, bool), Turnover>, time: Duration) -> Vec<Fault> {
    let is_flapping = |turnover: &&Turnover| {
        let passed_on = turnover.latest.leads || turnover.owners.len() > 1;
        turnover.changes >= CHANGES && passed_on
    };
    let fault = |turnover: &Turnover| {
        let name = if turnover.latest.leads {
            "flapping_leader"
        } else {
            "flapping_lease"
        };
        let detail = format!(
            "it was acquired {} times or more within {time:?}, by {} holders; the last is {}",
            turnover.changes,
            turnover.owners.len(),
            turnover.latest.owner
        );
        Fault::new(name, &turnover.latest.lease, &detail)
    };
    seen.values().filter(is_flapping).map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(leads: bool, holders: &[(i64, &str)]) -> Vec<Fault> {
        let mut seen = BTreeMap::new();
        for (fence, owner) in holders {
            let lease = Acquired {
                lease: "default/nightly".to_owned(),
                leads,
                fence: *fence,
                owner: (*owner).to_owned(),
            };
            count(&mut seen, vec![lease]);
        }
        faults(&seen, Duration::from_secs(5))
    }

    #[test]
    fn three_acquisitions_are_told() {
        assert_eq!(read(true, &[(1, "a"), (1, "a"), (1, "a")]), []);
        assert_eq!(read(true, &[(1, "a"), (2, "b"), (2, "b")]), []);
        let found = read(true, &[(1, "a"), (2, "b"), (3, "a")]);
        assert_eq!(found[0].name, "flapping_leader");
        assert!(found[0].detail.contains("3 times"), "{found:?}");
        assert!(found[0].detail.contains("2 holders"), "{found:?}");
    }

    #[test]
    fn a_leader_alone_flaps_and_a_holder_alone_does_not() {
        let alone = [(1, "a"), (2, "a"), (3, "a")];
        assert_eq!(read(true, &alone)[0].name, "flapping_leader");
        assert_eq!(read(false, &alone), []);
        let passed_on = [(1, "a"), (2, "b"), (3, "a")];
        assert_eq!(read(false, &passed_on)[0].name, "flapping_lease");
    }
}
