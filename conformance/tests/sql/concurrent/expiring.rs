//! A sweep of expired jobs meets a session that has one of them.

use lockapi::suite::queue::{ExpireJobs, FOR_EVER};

use super::queue::{
    LOCK, SHARE, cancel, cancel_as_operator, claim, count, edit, purge, push_each, push_with_ttl,
};
use super::sides::{Plans, Side, Step, UNIT, elapse, number, sql, step};
use super::{Meets, Schedule, agree};

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

/// Whatever the plan is. What is moved in a part is that which has expired first, and the next part follows it.
#[test]
fn parts_of_expired_jobs_follow_the_times() {
    let part = |after: &'static str, most| {
        let batch = move |side: &Side| {
            vec![ExpireJobs {
                namespace: side.namespace.clone(),
                after: (
                    side.given(&format!("micros {after}")),
                    side.given(&format!("job {after}")),
                ),
                most,
                bytes: 1000,
                retentions: Vec::new(),
                keep_dead: FOR_EVER,
            }]
        };
        step(batch, move |side, swept| {
            let last = swept.last.map(|(expired, id)| {
                let name = side.name_of("job", id);
                side.give(&name.replacen("job", "micros", 1), expired);
                name
            });
            format!("moved {}, to {last:?}", swept.deleted)
        })
    };
    let [c, a, b] =
        [(&["c"], 3), (&["a"], 1), (&["b"], 2)].map(|(name, ttl)| push_each(name, ttl * UNIT));
    let (later, first, rest, again) = (elapse(5), part("", 1), part("a", 2), part("c", 2));
    for plans in [Plans::Engine, Plans::Scans] {
        agree(plans, &[&c, &a, &b, &later, &first, &rest, &again]);
    }
}

#[test]
fn what_has_expired_is_kept_for_as_long_as_its_queue_wants() {
    const KEPT: &str = "SELECT count(*) * 10000 + coalesce(min(round(extract(epoch FROM expires_at - now()) / 60)), 999)::int8
                          FROM lockapi.job_archive WHERE namespace = $n";
    let keeping = |queue: &'static str, keep, others| {
        let batch = move |side: &Side| {
            vec![ExpireJobs {
                namespace: side.namespace.clone(),
                after: (0, 0),
                most: 10,
                bytes: 1000,
                retentions: vec![(queue.to_owned(), keep)],
                keep_dead: others,
            }]
        };
        step(batch, |_, swept| format!("moved {}", swept.deleted))
    };
    let task = sql("UPDATE lockapi.job SET task = 'it' WHERE namespace = $n");
    for (queue, keep, others, of_queue) in [
        ("work", FOR_EVER, 5 * UNIT, 10_999),
        ("work", 0, FOR_EVER, 10_000),
        ("work", 5 * UNIT, FOR_EVER, 10_005),
        ("other", 5 * UNIT, FOR_EVER, 10_999),
        ("other", FOR_EVER, 0, 10_000),
        ("other", FOR_EVER, 5 * UNIT, 10_005),
    ] {
        let (push, later) = (push_with_ttl(5), elapse(6));
        let (expire, kept) = (keeping(queue, keep, others), number(KEPT, of_queue));
        agree(Plans::Engine, &[&push, &later, &expire, &kept]);
        let of_task = number(KEPT, 10_999);
        agree(Plans::Engine, &[&push, &task, &later, &expire, &of_task]);
    }
}
