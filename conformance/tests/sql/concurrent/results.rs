//! Two sessions at the result of one job.

use std::collections::BTreeMap;

use lockapi::queue::{JobResult, ResultValue};
use lockapi::suite::queue::{Ack, AckWithResult, DELETED, ReadResult, SweepQueues, SweepResults};

use super::queue::{ack, claim, name, push, ticket};
use super::sides::{Plans, Side, Step, UNIT, elapse, own_url, sql, step};
use super::{Meets, Schedule, agree};

/// Completes deliveries with the result `value`, which is kept for so many minutes.
pub(super) fn ack_with_result(names: &'static [&'static str], value: i64, minutes: i64) -> Step {
    let batch = move |side: &Side| {
        let of = |name: &&str| AckWithResult {
            ack: Ack {
                ticket: ticket(side, name),
                keep: DELETED,
            },
            result: ResultValue::new(&value).expect("a result"),
            retention: minutes * UNIT,
        };
        names.iter().map(of).collect()
    };
    step(batch, |_, done| format!("{done}"))
}

/// What is known of the job `a`.
pub(super) fn result() -> Step {
    let batch = |side: &Side| {
        vec![ReadResult {
            name: name(side),
            id: side.given("job a"),
        }]
    };
    step(batch, |_, result: JobResult<ResultValue>| {
        format!("{:?}", result.decode::<i64>().expect("a number"))
    })
}

/// Sweeps the row of a job.
fn sweep(name: &'static str, most: i64) -> Step {
    let batch = move |side: &Side| {
        vec![SweepResults {
            after: side.given(&format!("job {name}")) - 1,
            most,
        }]
    };
    step(batch, |side, swept| {
        let last = swept.last.map(|last| side.name_of("job", last));
        format!("{} swept, to {last:?}", swept.deleted)
    })
}

#[test]
fn a_lookup_waits_for_nobody_and_sees_what_is_committed() {
    let before = [&push(&["a"]), &claim(1)];
    for first in [ack_with_result(&["a"], 7, 5), ack(&["a"])] {
        let schedule = Schedule::new(&before, &first, &result(), Meets::Skips("Pending"));
        schedule.then(&result()).run();
    }
}

#[test]
fn of_two_completions_one_stores_its_result() {
    let before = [&push(&["a"]), &claim(1)];
    let mine = ack_with_result(&["a"], 7, 5);
    for (first, second) in [
        (&mine, &ack_with_result(&["a"], 8, 5)),
        (&mine, &ack(&["a"])),
        (&ack(&["a"]), &mine),
    ] {
        let schedule = Schedule::new(&before, first, second, Meets::Waits);
        schedule.then(&result()).run();
    }
}

#[test]
fn of_several_completions_in_a_batch_the_first_stores_its_result() {
    let many = step(
        |side| {
            let of = |value: i64| AckWithResult {
                ack: Ack {
                    ticket: ticket(side, if value % 2 == 0 { "b" } else { "a" }),
                    keep: if value < 50 { UNIT } else { DELETED },
                },
                result: ResultValue::new(&value).expect("a result"),
                retention: UNIT * (1 + value),
            };
            (1..100).map(of).collect()
        },
        |_, done| done.to_string(),
    );
    // The archive keeps both for a minute.
    let swept = step(
        |side| {
            vec![SweepQueues {
                namespace: side.namespace.clone(),
                from: (0, 0),
                most: 10,
            }]
        },
        |_, swept| format!("{} swept", swept.deleted),
    );
    let (push, claim, late) = (push(&["a", "b"]), claim(2), elapse(3));
    agree(
        Plans::Engine,
        &[
            &push,
            &claim,
            &many,
            &result(),
            &swept,
            &late,
            &swept,
            &result(),
        ],
    );
}

/// A part is what follows in the order of the numbers, whatever the plan is, and where nobody else sweeps.
#[test]
fn results_are_swept_in_parts() {
    let steps = [
        &push(&["a", "b", "c"]),
        &claim(3),
        &ack_with_result(&["c"], 7, 5),
        &ack_with_result(&["a"], 7, 1),
        &ack_with_result(&["b"], 7, 1),
        &elapse(2),
        &sweep("a", 1),
        &sweep("a", 2),
        &sweep("c", 1),
    ];
    let on = |mut side: Side| {
        side.namespace = format!("n{:016x}", fastrand::u64(..));
        let mut given = BTreeMap::new();
        let seen = steps.iter().map(|step| side.run(step, &mut given));
        seen.collect::<Vec<_>>()
    };
    let server = on(Side::server(own_url(), Plans::Scans));
    assert_eq!(server, on(Side::model()), "the server and the model");
}

#[test]
fn a_result_that_another_has_is_swept_later() {
    let (push, claim, ack) = (push(&["a"]), claim(1), ack_with_result(&["a"], 7, 1));
    let late = elapse(2);
    let lock = sql("SELECT FROM lockapi.job_result WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.job_result WHERE namespace = $n FOR KEY SHARE");
    for first in [&sweep("a", 1), &lock, &share] {
        let before = [&push, &claim, &ack, &late];
        let meets = Meets::Skips("0 swept, to Some(\"job a\")");
        let schedule = Schedule::new(&before, first, &sweep("a", 1), meets);
        schedule.at(own_url()).run();
    }
}
