//! What becomes of deliveries that are settled, where the random sequences of the differential test seldom lead.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::Outcome;
use lockapi::suite::queue::{DELETED, FOR_EVER, LimitRow, NewJob, Push, SetQueueLimit, Settle};

use super::agree;
use super::queue::{claim, count, extend, nack, name, new_job, push, reject, settle, ticket};
use super::sides::{Plans, Side, Step, UNIT, elapse, number, sql, step};

/// Pushes the job `a`, which has many attempts.
fn push_patient() -> Step {
    Arc::new(|side: &mut Side| {
        let job = NewJob {
            max_attempts: 100,
            ..new_job()
        };
        let push = Push {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            jobs: vec![job],
            topic: None,
        };
        let id = side.perform(&[push])[0][0];
        side.give("job a", id);
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
                let name = if n % 2 == 0 { "b" } else { "a" };
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
    let (push, claim, nack) = (push_patient(), claim(1), settle(&["a"], nack()));
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

/// It was begun in time if it is snoozed, and was not if it is deferred.
#[test]
fn what_is_put_off_is_due_then_and_expires_or_not() {
    // When it is due, whether it expires, and which attempt was the last.
    const STATE: &str =
        "SELECT round(extract(epoch FROM coalesce(due_at, run_at) - now()) / 60)::int8 * 100
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
        let steps = [
            &super::queue::push_with_ttl(60),
            &claim(1),
            &settle(&["a"], outcome),
            &number(STATE, state),
            &count(),
        ];
        agree(Plans::Engine, &steps);
    }
}
