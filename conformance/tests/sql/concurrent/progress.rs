//! Two sessions at the report of one job.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockapi::admin::JobState;
use lockapi::suite::admin::{ListJobs, ReadJob};
use lockapi::suite::queue::{Report, SweepProgress};

use super::order::{BACKWARD, FORWARD, MIDDLE, Order};
use super::queue::{
    LOCK, ack, claim, claim_and_reject, extend, nack, name, push, reject, settle, ticket,
};
use super::sides::{Plans, Side, Step, elapse, own_url, sql, step};
use super::{Meets, Schedule, agree};

/// Reports that so many percent are done, in the words of the namespace.
fn report(names: &'static [&'static str], percent: i64) -> Step {
    let batch = move |side: &Side| {
        let of = |name: &&str| Report {
            ticket: ticket(side, name),
            millionths: percent * 10_000,
            note: side.namespace.clone(),
        };
        names.iter().map(of).collect()
    };
    step(batch, |_, stored| format!("{stored}"))
}

/// What is shown of the job `a`.
fn shown() -> Step {
    let batch = |side: &Side| {
        vec![ReadJob {
            namespace: side.namespace.clone(),
            id: side.given("job a"),
            payload: false,
        }]
    };
    step(batch, |_, job| {
        let progress = job.map(|job| job.job.progress.map(|progress| progress.percent()));
        format!("{progress:?}")
    })
}

/// Sweeps the row of a job.
fn sweep(name: &'static str) -> Step {
    let batch = move |side: &Side| {
        vec![SweepProgress {
            after: side.given(&format!("job {name}")) - 1,
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

/// What is listed of the jobs that wait or run, or are dead letters.
fn listed() -> Step {
    let batch = |side: &Side| {
        let of = |state| ListJobs {
            name: name(side),
            state,
            job: String::new(),
            group: String::new(),
            tag: String::new(),
            created: (0, i64::MAX / 1000),
            after: None,
            examined: 10,
            most: 10,
        };
        [of(None), of(Some(JobState::Failed))]
    };
    Arc::new(move |side: &mut Side| {
        // One list at a time.
        let pages = batch(side).map(|list| side.perform(&[list]).remove(0));
        let jobs = pages.into_iter().flat_map(|page| page.jobs);
        let of = jobs.map(|job| (job.attempt, job.progress.map(|progress| progress.percent())));
        format!("{:?}", of.collect::<Vec<_>>())
    })
}

#[test]
fn a_list_shows_what_was_reported_of_the_last_delivery() {
    let (push, claim, report) = (push(&["a"]), claim(1), report(&["a"], 40));
    let [nack, reject] = [nack(), reject()].map(|outcome| settle(&["a"], outcome));
    for ends in [&nack, &reject] {
        let steps = [
            &push,
            &listed(),
            &claim,
            &report,
            &listed(),
            ends,
            &listed(),
        ];
        agree(Plans::Engine, &steps);
    }
}

#[test]
fn a_report_waits_for_nobody_at_its_job() {
    for first in [
        sql(LOCK),
        settle(&["a"], extend()),
        report(&["b"], 10),
        sql("SELECT FROM lockapi.job_archive WHERE namespace = $n FOR UPDATE"),
    ] {
        let before = [&push(&["a", "b"]), &claim(2)];
        let schedule = Schedule::new(&before, &first, &report(&["a"], 40), Meets::Passes);
        schedule.then(&shown()).run();
    }
    let before = [&push(&["a"]), &claim(1)];
    for second in [
        ack(&["a"]),
        settle(&["a"], nack()),
        settle(&["a"], extend()),
    ] {
        let first = report(&["a"], 40);
        let schedule = Schedule::new(&before, &first, &second, Meets::Passes);
        schedule.then(&shown()).run();
    }
}

#[test]
fn the_report_that_comes_last_stays() {
    let (push, claim, told) = (push(&["a"]), claim(1), report(&["a"], 10));
    for before in [&[&push, &claim] as &[&Step], &[&push, &claim, &told]] {
        let (first, second) = (report(&["a"], 40), report(&["a"], 30));
        let schedule = Schedule::new(before, &first, &second, Meets::Waits);
        schedule.then(&shown()).run();
    }
}

/// The delivery that is known is not the latest then.
fn claim_and_report_by_another() -> Step {
    let (claim, report) = (claim(1), report(&["a"], 20));
    Arc::new(move |side: &mut Side| {
        let mine = side.given("delivery a");
        let answers = format!("{} {}", claim(side), report(side));
        side.give("delivery a", mine);
        answers
    })
}

/// Its job is still its own in its snapshot, and the row is not any more when it may go on.
#[test]
fn a_late_report_does_not_replace_that_of_the_next_delivery() {
    let (push, claim, told) = (push(&["a"]), claim(1), report(&["a"], 10));
    let late = elapse(2);
    for before in [
        &[&push, &claim, &late] as &[&Step],
        &[&push, &claim, &told, &late],
    ] {
        let first = claim_and_report_by_another();
        let schedule = Schedule::new(before, &first, &report(&["a"], 90), Meets::Waits);
        schedule.then(&shown()).run();
    }
}

/// One after the other, where nobody else sweeps: where the job has no report, a part is of others.
#[test]
fn reports_are_swept_with_the_last_of_their_job() {
    let (push, claim, report) = (push(&["a"]), claim(1), report(&["a"], 40));
    let (sweep, ack) = (sweep("a"), ack(&["a"]));
    let lock = sql("SELECT FROM lockapi.job_progress WHERE note = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.job_progress WHERE note = $n FOR KEY SHARE");
    for first in [&sweep, &lock, &share] {
        let before = [&push, &claim, &report, &ack];
        let schedule = Schedule::new(&before, first, &sweep, Meets::Skips("0 swept"));
        schedule.at(own_url()).run();
    }
    let (nack, dead) = (settle(&["a"], nack()), claim_and_reject());
    for steps in [
        &[&push, &claim, &report, &sweep, &shown()] as &[&Step],
        &[&push, &claim, &report, &nack, &sweep, &shown()],
        &[&push, &dead, &report, &sweep, &shown()],
        &[&push, &claim, &report, &ack, &sweep, &sweep],
    ] {
        as_in_the_model(Plans::Engine, steps);
    }
    in_parts();
}

fn as_in_the_model(plans: Plans, steps: &[&Step]) {
    let on = |mut side: Side| {
        side.namespace = format!("n{:016x}", fastrand::u64(..));
        let mut given = BTreeMap::new();
        let seen = steps.iter().map(|step| side.run(step, &mut given));
        seen.collect::<Vec<_>>()
    };
    let server = on(Side::server(own_url(), plans));
    assert_eq!(server, on(Side::model()), "the server and the model");
}

/// A part is what follows in the order of the numbers, whatever the plan is.
fn in_parts() {
    let part = |most| {
        let batch = move |side: &Side| {
            vec![SweepProgress {
                after: side.given("job a") - 1,
                most,
            }]
        };
        step(batch, |side, swept| {
            let last = swept.last.map(|last| side.name_of("job", last));
            format!("{} swept, to {last:?}", swept.deleted)
        })
    };
    let steps = [
        &push(&["a", "b", "c"]),
        &claim(3),
        &report(&["c", "a", "b"], 40),
        &ack(&["a", "b"]),
        &part(1),
        &part(2),
    ];
    as_in_the_model(Plans::Scans, &steps);
}

#[test]
fn reports_are_stored_in_the_order_of_numbers() {
    let (push, claim, told) = (push(FORWARD), claim(3), report(BACKWARD, 10));
    for before in [&[&push, &claim] as &[&Step], &[&push, &claim, &told]] {
        let of = |names| report(names, 40);
        Order::new(before, &of(MIDDLE), &of(FORWARD), &of(BACKWARD)).run();
    }
}

#[test]
fn of_many_reports_of_a_delivery_the_last_is_stored() {
    let many = step(
        |side| {
            let of = |percent: i64| Report {
                ticket: ticket(side, if percent % 2 == 0 { "a" } else { "b" }),
                millionths: percent * 10_000,
                note: String::new(),
            };
            (0..100).map(of).collect()
        },
        |_, stored| stored.to_string(),
    );
    let steps = [&push(&["a", "b"]), &claim(2), &many, &shown()];
    agree(Plans::Engine, &steps);
}

/// Reports by the number of one job and the delivery of another.
fn report_mixed() -> Step {
    let batch = |side: &Side| {
        let (mut mine, other) = (ticket(side, "a"), ticket(side, "b"));
        mine.token = other.token;
        vec![Report {
            ticket: mine,
            millionths: 0,
            note: String::new(),
        }]
    };
    step(batch, |_, stored| stored.to_string())
}

#[test]
fn the_delivery_of_another_job_reports_nothing() {
    let (push, claim, mixed) = (push(&["a", "b"]), claim(2), report_mixed());
    let dead = settle(&["b"], reject());
    agree(
        Plans::Engine,
        &[&push, &claim, &mixed, &shown(), &dead, &mixed, &shown()],
    );
}
