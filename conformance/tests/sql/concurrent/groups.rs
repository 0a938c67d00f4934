//! Two sessions at one group.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockapi::admin::JobEdit;
use lockapi::queue::{Outcome, Priority};
use lockapi::suite::queue::{Admit, LimitRow, NewJob, Push, SetGroupLimit, SetGroups, Take};

use super::queue::{
    ack, cancel, cancel_as_operator, claim, count, edit, edit_by, name, new_job, purge, settle,
    take,
};
use super::sides::{Plans, Side, Step, UNIT, elapse, number, sql, step, url};
use super::{Meets, Schedule, agree};

/// Pushes a job of the group `g` for each of the names.
fn push(names: &'static [&'static str]) -> Step {
    Arc::new(|side: &mut Side| {
        let mut job = new_job();
        "g".clone_into(&mut job.group);
        let push = Push {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            jobs: names.iter().map(|_| job.clone()).collect(),
            topic: None,
        };
        let ids = side.perform(&[push]).remove(0);
        for (name, id) in names.iter().zip(ids) {
            side.give(&format!("job {name}"), id);
        }
        String::new()
    })
}

pub(super) fn admit() -> Step {
    let batch = |side: &Side| {
        vec![Admit {
            name: name(side),
            groups: 10,
        }]
    };
    step(batch, |_, admitted| match admitted {
        Some(admitted) => format!("admitted {}", admitted.jobs),
        None => "another admits".to_owned(),
    })
}

fn set_groups(most: i64, ordered: bool) -> Step {
    let batch = move |side: &Side| {
        vec![SetGroups {
            name: name(side),
            limit: LimitRow {
                running: Some(most),
                ..LimitRow::default()
            },
            ordered,
            topic: 0,
        }]
    };
    step(batch, |_, ()| "set".to_owned())
}

fn nack() -> Outcome {
    Outcome::Nack {
        error: "it failed".to_owned(),
        after: std::time::Duration::ZERO,
    }
}

const NONE: Meets = Meets::Skips("admitted 0");
/// As a push that changes a job has it.
const LOCK_FIRST: &str =
    "SELECT FROM lockapi.job WHERE namespace = $n ORDER BY id LIMIT 1 FOR UPDATE";
/// No group has more admitted jobs than its limit, whatever the model says.
const ADMITTED: &str =
    "SELECT count(*) FROM lockapi.job WHERE namespace = $n AND group_key = 'g' AND due_at IS NULL";

/// The second does nothing while the first admits, and sees what that has admitted when it is run again.
#[test]
fn one_admits_at_a_time() {
    for (most, ordered) in [(1, false), (2, false), (1, true)] {
        let before = [&set_groups(most, ordered), &push(&["a", "b", "c"])];
        let skips = Meets::Skips("another admits");
        let schedule = Schedule::new(&before, &admit(), &admit(), skips);
        let schedule = schedule.then(&number(ADMITTED, most));
        schedule.then(&claim(5)).then(&admit()).run();
    }
}

/// Where it takes a snapshot before it waits, it sees an older state, and fails.
#[test]
fn stricter_isolation_admits_no_more() {
    let mut sides = [0, 1, 2].map(|session| {
        let mut side = Side::server(url(), Plans::Engine);
        side.session = session;
        side
    });
    let namespace = format!("n{:016x}", fastrand::u64(..));
    for side in &mut sides {
        side.namespace.clone_from(&namespace);
    }
    let [mut observer, mut first, mut second] = sides;
    let mut given = std::collections::BTreeMap::new();
    observer.run(&set_groups(1, false), &mut given);
    observer.run(&push(&["a", "b"]), &mut given);
    second.script("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM lockapi.queue LIMIT 1");
    first.run(&admit(), &mut given);
    let batch = [Admit {
        name: name(&second),
        groups: 10,
    }];
    let failure = second.attempt(&batch).expect_err("it sees an older state");
    assert_eq!(failure.sqlstate.as_deref(), Some("40001"));
    second.script("ROLLBACK");
    observer.run(&number(ADMITTED, 1), &mut given);
}

/// What is pushed, or ends, beside an admission is seen by the next one, and nobody waits.
#[test]
fn a_place_that_is_left_is_found_by_the_next_admission() {
    let before = [&push(&["a", "b"]), &admit(), &claim(1)];
    for first in [
        ack(&["a"]),
        settle(&["a"], Outcome::Ack),
        settle(&["a"], nack()),
        settle(&["a"], Outcome::Snooze(std::time::Duration::from_mins(5))),
        cancel(&["a"]),
        cancel_as_operator(),
    ] {
        let schedule = Schedule::new(&before, &first, &admit(), NONE);
        schedule.then(&count()).then(&claim(5)).run();
    }
    let before = [&push(&["a", "b"]), &admit()];
    let schedule = Schedule::new(&before, &take(1), &admit(), NONE);
    schedule.then(&claim(5)).run();
    let schedule = Schedule::new(&[], &push(&["a", "b"]), &admit(), NONE);
    schedule.then(&claim(5)).run();
}

/// A job that is admitted and put off is parked again.
#[test]
fn a_place_is_left_by_a_job_that_is_put_off() {
    let before = [&push(&["a", "b"]), &admit()];
    let schedule = Schedule::new(&before, &put_off(), &admit(), NONE);
    let schedule = schedule.then(&number(ADMITTED, 1));
    schedule.then(&admit()).then(&claim(5)).run();
    // One that is parked, while it is admitted.
    let parked = [&push(&["a"])];
    for edit in [put_off(), edit()] {
        let schedule = Schedule::new(
            &parked,
            &admit(),
            &edit,
            Meets::Skips("edited 0 locked 1 used up None"),
        );
        schedule.then(&claim(5)).run();
        let schedule = Schedule::new(&parked, &edit, &admit(), NONE);
        schedule.then(&admit()).then(&claim(5)).run();
    }
}

/// Jobs that are limited by a key besides are read first and locked then: of what has changed or is locked meanwhile nothing is
/// admitted, and nobody waits.
#[test]
fn a_job_with_a_key_that_is_put_off_is_not_admitted() {
    const KEYED: [Parked; 1] = [Parked {
        by: "k",
        ..job_of("g")
    }];
    for ordered in [false, true] {
        for first in [put_off(), cancel(&["a"]), sql(LOCK_FIRST)] {
            let parked = [&set_groups(2, ordered), &park(&KEYED)];
            let schedule = Schedule::new(&parked, &first, &admit(), NONE);
            schedule.then(&admit()).then(&claim(5)).run();
        }
    }
}

/// It is due as of now, and neither parked nor counted twice.
#[test]
fn an_admitted_job_with_another_priority_keeps_its_place() {
    for priority in [Priority::Urgent, Priority::Low] {
        let steps = [
            &push(&["a", "b"]),
            &admit(),
            &edit_by(JobEdit::new().priority(priority)),
            &number(ADMITTED, 1),
            &admit(),
            &claim(5),
        ];
        agree(Plans::Engine, &steps);
    }
}

/// Makes the job `a` due in a far future.
fn put_off() -> Step {
    let far = SystemTime::UNIX_EPOCH + Duration::from_hours(50_000_000);
    edit_by(JobEdit::new().at(far))
}

#[test]
fn nobody_waits_for_an_admission() {
    let before = [
        &push(&["a", "b"]),
        &admit(),
        &claim(1),
        &set_groups(2, false),
    ];
    for (second, meets) in [
        (push(&["c"]), Meets::Passes),
        (ack(&["a"]), Meets::Passes),
        (settle(&["a"], nack()), Meets::Passes),
        (cancel(&["a"]), Meets::Passes),
        (
            cancel(&["b"]),
            Meets::Skips("cancelled [] locked [\"job b\"]"),
        ),
        (claim(1), Meets::Skips("done [], picked 0:")),
        (purge(), Meets::Skips("purged 0")),
        (set_groups(3, false), Meets::Waits),
    ] {
        // An admission notes that it was, so whoever sets limits waits for it.
        let schedule = Schedule::new(&before, &admit(), &second, meets);
        schedule.then(&count()).run();
    }
}

#[test]
fn a_locked_job_holds_up_an_ordered_group() {
    let parked = [&set_groups(1, true), &push(&["a", "b"])];
    for first in [sql(LOCK_FIRST), cancel(&["a"])] {
        let schedule = Schedule::new(&parked, &first, &admit(), NONE);
        schedule.then(&claim(5)).run();
    }
    // Without an order another one is admitted.
    let parked = [&set_groups(1, false), &push(&["a", "b"])];
    let schedule = Schedule::new(&parked, &sql(LOCK_FIRST), &admit(), Meets::Passes);
    schedule.then(&number(ADMITTED, 1)).run();
    let schedule = Schedule::new(&parked, &cancel(&["a"]), &admit(), Meets::Passes);
    schedule.only_if_committed().then(&claim(5)).run();
}

/// The place belongs to the row, so it is kept while a lease has ended and nobody has noticed.
#[test]
fn an_expired_delivery_keeps_the_place() {
    let before = [&push(&["a", "b"]), &admit(), &claim(1), &elapse(2)];
    let schedule = Schedule::new(&before, &claim(1), &admit(), Meets::Passes);
    schedule.then(&number(ADMITTED, 1)).then(&claim(5)).run();
}

/// So many jobs of a priority that are due after so many minutes: of one group, or each of a group of its own whose name
/// begins like that.
#[derive(Clone, Copy)]
struct Parked {
    group: &'static str,
    each: bool,
    count: usize,
    priority: i64,
    delay: i64,
    /// The key that they are limited by besides.
    by: &'static str,
}

fn park(parked: &'static [Parked]) -> Step {
    Arc::new(|side: &mut Side| {
        let of = |one: &'static Parked| {
            (0..one.count).map(move |nth| {
                let mut job = NewJob {
                    group: if one.each {
                        format!("{}{nth:03}", one.group)
                    } else {
                        one.group.to_owned()
                    },
                    priority: one.priority,
                    delay: one.delay * UNIT,
                    ..new_job()
                };
                if !one.by.is_empty() {
                    job.headers.insert("limit-by", one.by);
                }
                job
            })
        };
        let push = Push {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            jobs: parked.iter().flat_map(of).collect(),
            topic: None,
        };
        // The first one is called `a`.
        let first = side.perform(&[push])[0][0];
        side.give("job a", first);
        String::new()
    })
}

/// What an admission of so many groups answers.
fn admit_of(groups: i64) -> Step {
    let batch = move |side: &Side| {
        vec![Admit {
            name: name(side),
            groups,
        }]
    };
    step(batch, |_, admitted| {
        let admitted = admitted.expect("nobody else admits");
        let next = admitted.next_due.map(|due| (due + UNIT / 2) / UNIT);
        format!(
            "admitted {} of {}, next {next:?}",
            admitted.jobs, admitted.examined
        )
    })
}

const fn job_of(group: &'static str) -> Parked {
    Parked {
        group,
        each: false,
        count: 1,
        priority: 2,
        delay: 0,
        by: "",
    }
}

/// What is not due is passed over in parts of 256; a job that is due is found behind them, in its group and after it, and
/// nothing else is looked at.
#[test]
fn a_job_that_is_due_is_found_behind_those_that_are_not() {
    const LATER: Parked = Parked {
        count: 600,
        priority: 0,
        delay: 5,
        ..job_of("g")
    };
    const GROUPS: Parked = Parked {
        each: true,
        ..LATER
    };
    const EXACTLY: Parked = Parked {
        count: 256,
        ..GROUPS
    };
    const CASES: &[&[Parked]] = &[
        // In a group that has more than a part of them, and none.
        &[LATER, job_of("g")],
        &[LATER],
        // Behind such groups.
        &[LATER, job_of("h")],
        // Behind many groups, at the end of a part, and in front of others.
        &[GROUPS, job_of("h")],
        &[
            EXACTLY,
            job_of("h"),
            Parked {
                group: "i",
                count: 40,
                ..GROUPS
            },
        ],
        &[EXACTLY, job_of("g255")],
        &[EXACTLY, job_of("g254"), job_of("g256")],
        &[GROUPS],
    ];
    for parked in CASES {
        // From the first group on, from one in between, from the last one, and from one that is behind all.
        for reached in ["", "g", "g100", "h", "z"] {
            let mut steps = vec![set_groups(2, false)];
            if let Some(first) = REACHED.iter().find(|one| one[0].group == reached) {
                steps.extend([park(first), admit_of(10)]);
            }
            steps.push(park(parked));
            steps.extend([admit_of(10), admit_of(1), admit_of(10)]);
            let steps: Vec<_> = steps.iter().collect();
            agree(Plans::Engine, &steps);
        }
    }
}

const REACHED: [&[Parked]; 4] = [
    &[job_of("g")],
    &[job_of("g100")],
    &[job_of("h")],
    &[job_of("z")],
];

/// Turns, limits and orders, with so many groups at a time that they end in between.
#[test]
fn groups_have_their_turns_as_in_the_model() {
    const MANY: Parked = Parked {
        count: 5,
        each: true,
        ..job_of("m")
    };
    const FULL: Parked = Parked {
        count: 6,
        ..job_of("f")
    };
    const LATER: Parked = Parked {
        count: 2,
        delay: 5,
        ..job_of("d")
    };
    const LOW: Parked = Parked {
        count: 40,
        priority: 3,
        ..job_of("l")
    };
    const HIGH: Parked = Parked { priority: 1, ..LOW };
    for ordered in [false, true] {
        for most in [1, 3, 9] {
            for groups in [1, 2, 3, 10] {
                let mut steps = vec![
                    set_groups(most, ordered),
                    park(&[MANY, FULL, MANY, LATER, LOW, FULL, HIGH, MANY]),
                ];
                for _ in 0..20 {
                    steps.extend([admit_of(groups), admit_of(groups), done()]);
                }
                let steps: Vec<_> = steps.iter().collect();
                agree(Plans::Engine, &steps);
            }
        }
    }
}

/// Keys with more jobs than they have room for, beside each other, beside their groups, and of groups whose first job has none or
/// another.
#[test]
fn groups_share_keys_as_in_the_model() {
    const EACH: Parked = Parked {
        count: 7,
        each: true,
        by: "k",
        ..job_of("e")
    };
    const OTHER: Parked = Parked { by: "m", ..EACH };
    const PLAIN: Parked = Parked { by: "", ..EACH };
    const OWN: Parked = Parked {
        count: 3,
        ..job_of("k")
    };
    const SAME: Parked = Parked { by: "k", ..OWN };
    const URGENT: Parked = Parked {
        priority: 0,
        by: "m",
        ..OWN
    };
    for ordered in [false, true] {
        for most in [1, 2, 9] {
            for groups in [1, 3, 10, 256] {
                let mut steps = vec![
                    set_groups(most, ordered),
                    park(&[EACH, PLAIN, OWN, OTHER, SAME, URGENT, EACH]),
                ];
                for _ in 0..25 {
                    steps.extend([admit_of(groups), admit_of(groups), done()]);
                }
                let steps: Vec<_> = steps.iter().collect();
                agree(Plans::Engine, &steps);
            }
        }
    }
}

/// Claims and completes all jobs that are admitted.
fn done() -> Step {
    let batch = |side: &Side| {
        vec![Take {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            most: 1000,
            priorities: vec![0, 1, 2, 3],
            worker: "worker".to_owned(),
            keep: UNIT,
        }]
    };
    step(batch, |_, taken| {
        let mut groups: Vec<_> = taken
            .unwrap_or_default()
            .iter()
            .map(|job| job.group.clone())
            .collect();
        groups.sort_unstable();
        format!("took {groups:?}")
    })
}

/// A burst, of which one permit comes back in so many minutes.
fn rate(burst: i64, minutes: i64) -> LimitRow {
    LimitRow {
        running: Some(4),
        permits: Some(1),
        period: Some(minutes * UNIT * 1000),
        burst: Some(burst),
        step: Some(minutes * UNIT * 1000),
    }
}

fn set_rates(limit: LimitRow, ordered: bool) -> Step {
    let batch = move |side: &Side| {
        vec![SetGroups {
            name: name(side),
            limit,
            ordered,
            topic: 0,
        }]
    };
    step(batch, |_, ()| "set".to_owned())
}

fn set_rate_of(group: &'static str, limit: LimitRow) -> Step {
    let batch = move |side: &Side| {
        vec![SetGroupLimit {
            name: name(side),
            group: group.to_owned(),
            limit: Some(limit),
            topic: 0,
        }]
    };
    step(batch, move |_, ()| format!("set of {group}"))
}

/// Permits of groups and of keys, taken and come back, while the clock goes on and back and the rates are changed.
#[test]
fn permits_are_those_of_the_model() {
    const EACH: Parked = Parked {
        count: 12,
        each: true,
        ..job_of("e")
    };
    const KEYED: Parked = Parked { by: "k", ..EACH };
    const OWN: Parked = Parked {
        count: 15,
        ..job_of("k")
    };
    // It is set back while no row has been idle for so long that it was swept, which the model does not do.
    const MINUTES: [i64; 16] = [0, 4, -2, 4, -5, 8, -6, 3, 12, 60, 1, 30, 100, 9, 200, 7];
    const PARKED: [&[Parked]; 2] = [&[EACH, OWN, EACH, EACH], &[EACH, KEYED, OWN, KEYED]];
    for parked in PARKED {
        for ordered in [false, true] {
            for groups in [1, 3, 20] {
                let mut steps = vec![
                    set_rates(rate(3, 10), ordered),
                    set_rate_of("e001", rate(1, 30)),
                    set_rate_of(
                        "e002",
                        LimitRow {
                            running: Some(2),
                            ..LimitRow::default()
                        },
                    ),
                    park(parked),
                ];
                for (nth, minutes) in MINUTES.into_iter().enumerate() {
                    steps.extend([admit_of(groups), done(), admit_of(groups), admit_of(50)]);
                    steps.extend([elapse(minutes), admit_of(20), done()]);
                    match nth {
                        4 => steps.push(set_rates(rate(2, 15), ordered)),
                        8 => steps.push(set_rates(rate(5, 5), ordered)),
                        10 => steps.push(set_rate_of("k", rate(1, 20))),
                        _ => {}
                    }
                }
                let steps: Vec<_> = steps.iter().collect();
                agree(Plans::Engine, &steps);
            }
        }
    }
}
