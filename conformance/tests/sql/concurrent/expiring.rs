//! A sweep of expired jobs meets a session that has one of them.

use lockapi::suite::queue::{ExpireJobs, FOR_EVER};

use super::queue::{
    LOCK, SHARE, cancel, cancel_as_operator, claim, count, edit, purge, push_each, push_with_ttl,
};
use super::sides::{Side, Step, UNIT, elapse, sql, step};
use super::{Meets, Schedule};

/// Moves expired jobs to the dead letters, of so many that are examined.
pub(super) fn expire(most: i64) -> Step {
    let batch = move |side: &Side| {
        vec![ExpireJobs {
            namespace: side.namespace.clone(),
            after: (0, 0),
            most,
            bytes: 1000,
            retentions: Vec::new(),
            keep_dead: FOR_EVER,
        }]
    };
    step(batch, |_, swept| format!("moved {}", swept.deleted))
}

/// As somebody has it who changes something else.
const UPDATE: &str = "UPDATE lockapi.job SET attempt = attempt WHERE namespace = $n";

#[test]
fn an_expired_job_that_another_has_is_skipped() {
    let before = [&push_with_ttl(5), &elapse(6)];
    for first in [
        claim(1),
        cancel(&["a"]),
        cancel_as_operator(),
        edit(),
        purge(),
        expire(10),
        sql(LOCK),
        sql(SHARE),
        sql(UPDATE),
    ] {
        let schedule = Schedule::new(&before, &first, &expire(10), Meets::Skips("moved 0"));
        schedule.then(&count()).run();
    }
}

/// The job that the sweep moves is the first, and that of the other session the second.
#[test]
fn an_expired_job_is_moved_beside_one_that_another_has() {
    let before = [&push_each(&["a", "b"], 5 * UNIT), &elapse(6)];
    let schedule = Schedule::new(&before, &cancel(&["b"]), &expire(10), {
        Meets::Skips("moved 1")
    });
    schedule.partly(&expire(1)).then(&count()).run();
}
