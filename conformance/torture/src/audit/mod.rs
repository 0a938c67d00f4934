//! What has to be true when all programs have ended.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::{ErrorKind, blocking};
use postgres::Client;

use crate::Result;
use crate::history::Violation;
use crate::programs::limited::FEW;
use crate::programs::schedules::{SCHEDULER, TASKS};
use crate::programs::{KEYS, PERMITS, TTL};
use crate::server::{Server, USER};

mod dead_letters;
mod kept;
mod queues;

pub(crate) use dead_letters::{listed, put_back};
use kept::{Kept, dropped};

/// Within this time nothing is left, also of sessions whose programs were killed.
pub(crate) const LEFT: Duration = TTL.saturating_add(Duration::from_secs(15));
/// In this part of it, what would end by itself.
const SOONER: u32 = 10;
/// Within this time all can be had.
const PATIENCE: Duration = Duration::from_secs(20);

fn count(client: &mut Client, sql: &str) -> Result<i64> {
    Ok(client.query_one(sql, &[])?.get(0))
}

/// Waits until a number is zero; answers what it is in the end.
fn wait_for_none(mut count: impl FnMut() -> Result<i64>, patience: Duration) -> Result<i64> {
    let start = Instant::now();
    loop {
        let count = count()?;
        if count == 0 || start.elapsed() > patience {
            return Ok(count);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Has no task fired any more; all of them are there.
pub(crate) fn disable_tasks(server: &Server) -> Result<Vec<Violation>> {
    let backend = blocking::Backend::connect(lockapi_postgres::connect_url(server.url()))?;
    let scheduler = backend.scheduler(SCHEDULER)?;
    let mut violations = Vec::new();
    for (task, _) in TASKS {
        if !scheduler.disable(task)? {
            violations.push(Violation {
                promise: "all can be had in the end",
                what: format!("there is no task {task}"),
            });
        }
    }
    backend.close()?;
    Ok(violations)
}

/// Waits until there are no jobs; what is left after that time is a violation, also if it is done later.
pub(crate) fn drained(client: &mut Client, patience: Duration) -> Result<Option<Violation>> {
    drains(|| jobs(client), patience)
}

/// How many jobs there are.
pub(crate) fn jobs(client: &mut Client) -> Result<i64> {
    count(client, "SELECT count(*) FROM lockapi.job")
}

fn drains(jobs: impl FnMut() -> Result<i64>, patience: Duration) -> Result<Option<Violation>> {
    let left = wait_for_none(jobs, patience)?;
    Ok((left > 0).then(|| Violation {
        promise: "the queue drains",
        what: format!("{left} jobs are left after {} s", patience.as_secs()),
    }))
}

/// No session, no lock, no lease, no dead job, and nothing that holds a place or is in the way of jobs is left.
pub(crate) fn left(client: &mut Client, patience: Duration) -> Result<Vec<Violation>> {
    let things = [
        (
            "sessions",
            format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}'"),
        ),
        (
            "advisory locks",
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'".to_owned(),
        ),
        (
            "leases",
            "SELECT count(*) FROM lockapi.lease
              WHERE released_at IS NULL AND expires_at > clock_timestamp()"
                .to_owned(),
        ),
        (
            "dead letters",
            format!(
                "SELECT count(*) FROM lockapi.job_archive WHERE status = 'failed' AND queue <> '{FEW}'"
            ),
        ),
        (
            "places in limited queues",
            // As the library counts them.
            "SELECT count(*)
               FROM lockapi.queue_limit AS l
              CROSS JOIN unnest(l.ids, l.tokens) AS u (id, token)
               JOIN lockapi.job AS j ON j.id = u.id AND j.token = u.token
              WHERE j.lease_until > clock_timestamp()"
                .to_owned(),
        ),
        (
            "admitted jobs of groups",
            "SELECT count(*) FROM lockapi.job WHERE group_key IS NOT NULL AND due_at IS NULL"
                .to_owned(),
        ),
        (
            "limits of groups",
            "SELECT count(*) FROM lockapi.group_limit".to_owned(),
        ),
        (
            "paused names",
            "SELECT count(*) FROM lockapi.paused_name".to_owned(),
        ),
        (
            "paused queues",
            "SELECT count(*) FROM lockapi.queue WHERE paused".to_owned(),
        ),
    ];
    let mut violations = Vec::new();
    for (name, sql) in things {
        // What would end by itself has to be given back before.
        let ends = ["leases", "places in limited queues"].contains(&name);
        let patience = if ends { patience / SOONER } else { patience };
        let left = wait_for_none(|| count(client, &sql), patience)?;
        if left > 0 {
            violations.push(Violation {
                promise: "nothing is left",
                what: format!("{left} {name}"),
            });
        }
    }
    Ok(violations)
}

/// A new process gets every lock, lease and permit, and all else; on a machine that is quick it keeps what it has.
pub(crate) fn all_can_be_had(server: &Server, is_quick: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    let backend = match blocking::Backend::connect(lockapi_postgres::connect_url(server.url())) {
        Ok(backend) => backend,
        Err(error) => {
            return vec![Violation {
                promise: "all can be had in the end",
                what: format!("connect: {error}"),
            }];
        }
    };
    let mut note = |what: &str, had: lockapi::Result<()>| {
        if let Err(error) = had {
            violations.push(Violation {
                promise: "all can be had in the end",
                what: format!("{what}: {error}"),
            });
        }
    };
    let terms = || LeaseOptions::new(TTL);
    let kept = Kept::begin(&backend);
    for key in KEYS {
        let mutex = backend.mutex(key).and_then(|it| it.lock_timeout(PATIENCE));
        note("mutex", mutex.and_then(blocking::MutexGuard::unlock));
        let lease = backend.lease(key, terms());
        let lease = lease.and_then(|it| it.acquire_timeout(PATIENCE));
        note("lease", lease.and_then(blocking::LeaseGuard::release));
        let term = backend.election(key, terms());
        let term = term.and_then(|it| it.campaign_timeout(PATIENCE));
        note("term", term.and_then(blocking::LeaseGuard::release));
        let leased = backend.leased_mutex(key, terms());
        let leased = leased.and_then(|it| it.lock_timeout(PATIENCE));
        note(
            "leased mutex",
            leased.and_then(blocking::MutexGuard::unlock),
        );
        note("limit", permit(&backend, &format!("audit {key}")));
    }
    let semaphore = backend.semaphore("permits", PERMITS, terms());
    let permits = semaphore.and_then(|it| it.acquire_many_timeout(PERMITS, PATIENCE));
    note("semaphore", permits.and_then(blocking::LeaseGuard::release));
    queues::can_be_used(&backend, &mut note);
    note("what was dropped", dropped(&backend));
    let kept = kept.and_then(|kept| kept.end(&backend));
    note(
        "what is held",
        kept.or_else(|error| if is_quick { Err(error) } else { Ok(()) }),
    );
    note("close", backend.close());
    violations
}

/// A permit of a key that nobody has used can be had at once.
fn permit(backend: &blocking::Backend, key: &str) -> lockapi::Result<()> {
    let decision = backend.rate_limiter(Quota::per_second(10))?.check(key)?;
    if decision.is_admitted() {
        return Ok(());
    }
    let message = format!("{key} has no permit: {decision:?}");
    Err(lockapi::Error::new(ErrorKind::TimedOut, "check", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_that_are_refused_are_told() {
        let database = lockapi::memory::Database::new();
        let backend = blocking::Backend::connect(database.connect()).unwrap();
        assert!(permit(&backend, "a").is_ok());
        // They are replenished meanwhile.
        assert!((0..1000).any(|_| permit(&backend, "a").is_err()));
        assert!(permit(&backend, "b").is_ok());
    }

    #[test]
    fn jobs_that_are_left_are_told() {
        let promise = |jobs: &[i64], seconds| {
            let mut counts = jobs.iter();
            let count = || Ok(counts.next().copied().unwrap_or_default());
            let violation = drains(count, Duration::from_secs(seconds)).unwrap();
            violation.map(|it| it.promise)
        };
        assert_eq!(promise(&[0], 0), None);
        assert_eq!(promise(&[7, 3, 0], 60), None);
        assert_eq!(promise(&[3], 0), Some("the queue drains"));
    }
}
