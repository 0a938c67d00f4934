//! What becomes of deliveries that are settled, where the random sequences of the differential test seldom lead.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::Outcome;
use lockapi::suite::queue::{
    Cancel, DELETED, FOR_EVER, LimitRow, NewJob, Push, SetQueueLimit, Settle,
};

use super::agree;
use super::groups::admit;
use super::queue::{claim, count, extend, nack, name, new_job, push, reject, settle, ticket};
use super::sides::{Plans, Side, Step, UNIT, elapse, number, sql, step};

/// Pushes a job like this for each of the names, each in a group of its own if this one is in a group.
fn push_like(names: &'static [&'static str], job: NewJob) -> Step {
    Arc::new(move |side: &mut Side| {
        let of = |name: &&str| {
            let mut job = job.clone();
            if !job.group.is_empty() {
                job.group.push_str(name);
            }
            job
        };
        let push = Push {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            jobs: names.iter().map(of).collect(),
            topic: None,
        };
        let ids = side.perform(&[push]).remove(0);
        for (name, id) in names.iter().zip(ids) {
            side.give(&format!("job {name}"), id);
        }
        String::new()
    })
}

/// Settles the delivery of `a` in this way, and keeps the job for so long.
fn settle_as(kind: i64, keep: i64) -> Step {
    let batch = move |side: &Side| {
        let error = if kind == 1 { "it failed" } else { "" };
        vec![Settle {
            ticket: ticket(side, "a"),
            kind,
            time: 0,
            error: error.to_owned(),
            keep,
        }]
    };
    step(batch, |_, settled| format!("{settled:?}"))
}

#[test]
fn of_many_outcomes_of_a_delivery_the_first_takes_effect() {
    // Of one job the odd ones, of the other the even ones.
    let many = step(
        |side| {
            let of = |n: usize| {
                let outcome = if n < 2 { nack() } else { reject() };
                let name = if n.is_multiple_of(2) { "b" } else { "a" };
                Settle::new(ticket(side, name), &outcome, FOR_EVER).expect("a statement")
            };
            (0..100).map(of).collect()
        },
        |_, settled| format!("{settled:?}"),
    );
    let steps = [&push(&["a", "b"]), &claim(2), &many, &count(), &claim(2)];
    agree(Plans::Engine, &steps);
}

/// Limits how often jobs are claimed, and not how many run.
fn limit_rate() -> Step {
    let batch = |side: &Side| {
        let row = LimitRow {
            permits: Some(1),
            period: Some(1_000_000_000),
            burst: Some(1),
            step: Some(1_000_000_000),
            ..LimitRow::default()
        };
        vec![SetQueueLimit {
            name: name(side),
            limit: Some(row),
            topics: Vec::new(),
        }]
    };
    step(batch, |_, ()| "limited".to_owned())
}

/// The model knows the limits that are set by their operation.
#[test]
fn a_lease_that_has_ended_is_not_extended_where_its_queue_limits_what_runs() {
    let others = sql(
        "INSERT INTO lockapi.queue_limit (namespace, queue, name, most)
         VALUES ($n, 'other', '', 1), ($n || ' too', 'work', '', 1), ($n, 'work', 'job', 1)",
    );
    let none = sql("SELECT");
    for limit in [
        none,
        others,
        super::limited::limit(1),
        super::limited::unlimit(),
        limit_rate(),
    ] {
        for late in [0, 2] {
            let steps = [
                &push(&["a"]),
                &claim(1),
                &limit,
                &elapse(late),
                &settle(&["a"], extend()),
                &count(),
            ];
            agree(Plans::Engine, &steps);
        }
    }
}

/// Which the model does not keep.
#[test]
fn the_last_ten_errors_are_kept() {
    const KEPT: &str =
        "SELECT pg_catalog.jsonb_array_length(errors) * 10000 + (errors->0->>'attempt')::int8 * 100
                               + (errors->-1->>'attempt')::int8
                          FROM (SELECT errors, namespace FROM lockapi.job
                                 UNION ALL SELECT errors, namespace FROM lockapi.job_archive) AS j
                         WHERE namespace = $n";
    let job = NewJob {
        max_attempts: 100,
        ..new_job()
    };
    let (push, claim, nack) = (push_like(&["a"], job), claim(1), settle(&["a"], nack()));
    let [nine, ten, eleven, twelve, thirteen] =
        [90_109, 100_110, 100_211, 100_312, 100_413].map(|seen| number(KEPT, seen));
    let mut steps = vec![&push];
    for seen in [&nine, &ten, &eleven, &twelve] {
        for _ in 0..if steps.len() == 1 { 9 } else { 1 } {
            steps.extend([&claim, &nack]);
        }
        steps.push(seen);
    }
    // What says nothing of an error leaves them.
    let (release, reject) = (
        settle(&["a"], Outcome::Release),
        settle(&["a"], super::queue::reject()),
    );
    steps.extend([&claim, &release, &twelve, &claim, &reject, &thirteen]);
    agree(Plans::Engine, &steps);
}

#[test]
fn what_has_ended_is_kept_for_as_long_as_is_wanted() {
    const KEPT: &str = "SELECT count(*) * 10000 + coalesce(min(round(extract(epoch FROM expires_at - now()) / 60)), 999)::int8
                          FROM lockapi.job_archive WHERE namespace = $n";
    let task = sql("UPDATE lockapi.job SET task = 'it' WHERE namespace = $n");
    let (completed, rejected) = (6, 1);
    for (kind, keep, of_queue, of_task) in [
        (completed, DELETED, 999, 10_999),
        (completed, 0, 10_000, 10_999),
        (completed, 5 * UNIT, 10_005, 10_999),
        (rejected, FOR_EVER, 10_999, 10_999),
        (rejected, 0, 10_000, 10_999),
        (rejected, 5 * UNIT, 10_005, 10_999),
    ] {
        let (push, claim, settle) = (push(&["a"]), claim(1), settle_as(kind, keep));
        let steps = [&push, &claim, &settle, &number(KEPT, of_queue)];
        agree(Plans::Engine, &steps);
        let steps = [&push, &claim, &task, &settle, &number(KEPT, of_task)];
        agree(Plans::Engine, &steps);
    }
}

/// A job of two attempts.
#[test]
fn what_fails_at_its_last_attempt_is_a_dead_letter() {
    let fails = settle(&["a"], nack());
    for outcome in [
        nack(),
        reject(),
        Outcome::Snooze(Duration::ZERO),
        Outcome::Defer(Duration::ZERO),
        Outcome::Release,
        Outcome::Abandon,
        Outcome::Extend(Duration::from_mins(1)),
        Outcome::Ack,
    ] {
        let outcome = settle(&["a"], outcome);
        let (push, claim, count) = (push(&["a"]), claim(1), count());
        let steps = [&push, &claim, &outcome, &count];
        agree(Plans::Engine, &steps);
        let steps = [&push, &claim, &fails, &claim, &outcome, &count, &claim];
        agree(Plans::Engine, &steps);
    }
}

/// The number of one job, and the delivery of another.
#[test]
fn the_delivery_of_another_job_settles_nothing() {
    let (push, claim) = (push(&["a", "b"]), claim(2));
    for kind in 0..=7 {
        let mixed = step(
            move |side| {
                let (mut mine, other) = (ticket(side, "a"), ticket(side, "b"));
                mine.token = other.token;
                vec![Settle {
                    ticket: mine,
                    kind,
                    time: 0,
                    error: String::new(),
                    keep: FOR_EVER,
                }]
            },
            |_, settled| format!("{settled:?}"),
        );
        agree(Plans::Engine, &[&push, &claim, &mixed, &count()]);
    }
}

/// It was begun in time if it is snoozed, and was not if it is deferred.
#[test]
fn what_is_put_off_is_due_then_and_expires_or_not() {
    // Whether it is parked, when it is due, whether it expires, and which attempt was the last.
    const STATE: &str = "SELECT (due_at IS NOT NULL AND run_at > now() + interval '1000 years')::int4::int8 * 10000
                                + round(extract(epoch FROM coalesce(due_at, run_at) - now()) / 60)::int8 * 100
                                + (expires_at IS NOT NULL)::int4 * 10 + attempt
                           FROM lockapi.job WHERE namespace = $n";
    let half_an_hour = Duration::from_mins(30);
    let later = Outcome::Nack {
        error: "it failed".to_owned(),
        after: half_an_hour,
    };
    for (outcome, state) in [
        (later, 3011),
        (Outcome::Snooze(half_an_hour), 3000),
        (Outcome::Defer(half_an_hour), 3010),
        (Outcome::Release, 10),
        (Outcome::Abandon, 11),
        (Outcome::Extend(half_an_hour), 11),
    ] {
        for group in ["", "g"] {
            let job = NewJob {
                group: group.to_owned(),
                ttl: 60 * UNIT,
                ..new_job()
            };
            let is_parked = !group.is_empty() && state >= 3000;
            let state = state + i64::from(is_parked) * 10_000;
            let steps = [
                &push_like(&["a"], job),
                &admit(),
                &claim(1),
                &settle(&["a"], outcome.clone()),
                &number(STATE, state),
                &count(),
            ];
            agree(Plans::Engine, &steps);
        }
    }
}

/// So they keep the order of their numbers.
#[test]
fn what_is_put_off_together_is_due_together() {
    const DUE: &str = "SELECT count(DISTINCT coalesce(due_at, run_at)) * 10
                              + bool_and(coalesce(due_at, run_at) > now() + interval '30 min')::int4
                         FROM lockapi.job WHERE namespace = $n";
    let later = Outcome::Nack {
        error: "it failed".to_owned(),
        after: Duration::from_mins(30),
    };
    for group in ["", "g"] {
        let job = NewJob {
            group: group.to_owned(),
            ..new_job()
        };
        let names = &["a", "b", "c"];
        let steps = [
            &push_like(names, job),
            &admit(),
            &claim(3),
            &sql("BEGIN"),
            &settle(names, later.clone()),
            &number(DUE, 11),
            &sql("COMMIT"),
            &count(),
        ];
        agree(Plans::Engine, &steps);
    }
}

/// Cancels the job `a`, and keeps it for so long.
fn cancel_and_keep(keep: i64) -> Step {
    let batch = move |side: &Side| {
        vec![Cancel {
            name: name(side),
            ids: vec![side.given("job a")],
            keep,
        }]
    };
    step(batch, |_, answer| {
        format!("{} {}", answer.cancelled.len(), answer.locked.len())
    })
}

#[test]
fn only_what_is_named_is_cancelled_and_kept_for_as_long_as_is_wanted() {
    const KEPT: &str = "SELECT count(*) * 10000 + coalesce(min(round(extract(epoch FROM expires_at - now()) / 60)), 999)::int8
                          FROM lockapi.job_archive WHERE namespace = $n";
    let task = sql("UPDATE lockapi.job SET task = 'it' WHERE namespace = $n");
    for (keep, kept) in [(FOR_EVER, 10_999), (0, 10_000), (5 * UNIT, 10_005)] {
        let (push, cancel) = (push(&["a", "b"]), cancel_and_keep(keep));
        let steps = [&push, &cancel, &count(), &number(KEPT, kept), &cancel];
        agree(Plans::Engine, &steps);
        let kept = number(KEPT, 10_999);
        agree(Plans::Engine, &[&push, &task, &cancel, &kept]);
    }
}
