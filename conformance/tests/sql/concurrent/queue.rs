//! Two sessions at one job.

use std::fmt::Write as _;
use std::sync::Arc;

use lockapi::admin::JobEdit;
use lockapi::queue::{Headers, Outcome, Priority, Ticket};
use lockapi::suite::admin::{CancelJobs, EditJobs};
use lockapi::suite::queue::{
    Ack, Cancel, CompleteAndClaim, CountJobs, CountRunning, DELETED, Discard, FOR_EVER, Name,
    NewJob, Purge, Push, ReadDeliveryState, Redrive, SetNamePaused, SetPaused, Settle, Take,
};

use super::queue_keys::{Key, push_key};
use super::results::ack_with_result;
use super::sides::{Plans, Side, Step, UNIT, elapse, sql, step, url};
use super::{Meets, Schedule};

pub(super) fn name(side: &Side) -> Name {
    Name {
        namespace: side.namespace.clone(),
        queue: "work".to_owned(),
    }
}

pub(super) fn new_job() -> NewJob {
    NewJob {
        group: String::new(),
        headers: Headers::default(),
        name: "job".to_owned(),
        payload: "1".to_owned(),
        priority: 2,
        at: 0,
        delay: 0,
        max_attempts: 2,
        ttl: 0,
    }
}

/// Pushes a job for each of the names.
pub(super) fn push(names: &'static [&'static str]) -> Step {
    push_each(names, 0)
}

/// Pushes the job `a` with a time to live of so many minutes.
pub(super) fn push_with_ttl(minutes: i64) -> Step {
    push_each(&["a"], minutes * UNIT)
}

/// With a time to live in microseconds.
pub(super) fn push_each(names: &'static [&'static str], ttl: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let job = NewJob { ttl, ..new_job() };
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

pub(super) fn ticket(side: &Side, name: &str) -> Ticket {
    Ticket {
        id: side.given(&format!("job {name}")),
        token: side.given(&format!("delivery {name}")),
    }
}

/// Completes deliveries, and claims so many jobs; the deliveries have the names of the jobs.
pub(super) fn complete_and_claim(done: &'static [&'static str], most: i64) -> Step {
    exchange(done, most, false, false)
}

/// With `again` the answer to the claim before was lost; with `limited` the queue is said to have a limit.
pub(super) fn exchange(
    done: &'static [&'static str],
    most: i64,
    again: bool,
    limited: bool,
) -> Step {
    Arc::new(move |side: &mut Side| {
        let before = side.given("claim");
        let number = fastrand::i64(1..);
        side.give("claim", number);
        let ack = |name: &&str| Ack {
            ticket: ticket(side, name),
            keep: UNIT,
        };
        let claim = CompleteAndClaim {
            acks: done.iter().map(ack).collect(),
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            most,
            lease: UNIT,
            priorities: (0..4).map(|priority| (priority, (0, 0))).collect(),
            worker: "worker".to_owned(),
            claim: number,
            lost: if again { vec![before] } else { Vec::new() },
            names: Vec::new(),
            bytes: 1000,
            keep_dead: FOR_EVER,
            limited,
        };
        let answer = side.perform(&[claim]).remove(0);
        let mut words = format!("done {:?}, picked {}:", answer.acked, answer.picked);
        for job in answer.claimed {
            let name = side.name_of("job", job.ticket.id);
            let delivery = name.replacen("job", "delivery", 1);
            // All deliveries of a job get their tokens from one sequence.
            let later = side.given(&delivery) < job.ticket.token;
            side.give(&delivery, job.ticket.token);
            let _ = write!(words, " {name} {} {later}", job.attempt);
        }
        words
    })
}

pub(super) fn claim(most: i64) -> Step {
    complete_and_claim(&[], most)
}

/// Claims after the answer to the claim before was lost.
pub(super) fn claim_again(most: i64) -> Step {
    exchange(&[], most, true, false)
}

/// By the statement for queues that have a limit.
pub(super) fn claim_as_limited(most: i64) -> Step {
    exchange(&[], most, false, true)
}

pub(super) fn take(most: i64) -> Step {
    let batch = move |side: &Side| {
        vec![Take {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            most,
            priorities: vec![0, 1, 2, 3],
            worker: "worker".to_owned(),
            keep: UNIT,
        }]
    };
    step(batch, |side, taken| {
        let Some(taken) = taken else {
            return "limited".to_owned();
        };
        let names = taken.iter().map(|job| side.name_of("job", job.ticket.id));
        format!("took {:?}", names.collect::<Vec<_>>())
    })
}

pub(super) fn settle(names: &'static [&'static str], outcome: Outcome) -> Step {
    let batch = move |side: &Side| {
        let of = |name: &&str| {
            let completion = Ack {
                ticket: ticket(side, name),
                keep: UNIT,
            };
            let settle = Settle::new(completion.ticket, &outcome, UNIT);
            settle.unwrap_or_else(|| Settle::completion(completion))
        };
        names.iter().map(of).collect()
    };
    step(batch, |_, settled| format!("{settled:?}"))
}

pub(super) fn nack() -> Outcome {
    Outcome::Nack {
        error: "it failed".to_owned(),
        after: std::time::Duration::ZERO,
    }
}

pub(super) fn reject() -> Outcome {
    Outcome::Reject {
        error: "it failed".to_owned(),
    }
}

pub(super) fn extend() -> Outcome {
    Outcome::Extend(std::time::Duration::from_mins(5))
}

pub(super) fn ack(names: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |name: &&str| Ack {
            ticket: ticket(side, name),
            keep: DELETED,
        };
        names.iter().map(of).collect()
    };
    step(batch, |_, done| format!("{done}"))
}

pub(super) fn cancel(names: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |name: &&str| side.given(&format!("job {name}"));
        vec![Cancel {
            name: name(side),
            ids: names.iter().map(of).collect(),
            keep: UNIT,
        }]
    };
    step(batch, |side, answer| {
        let names = |ids: Vec<i64>| {
            let names = ids.into_iter().map(|id| side.name_of("job", id));
            names.collect::<Vec<_>>()
        };
        let (cancelled, locked) = (names(answer.cancelled), names(answer.locked));
        format!("cancelled {cancelled:?} locked {locked:?}")
    })
}

pub(super) fn cancel_as_operator() -> Step {
    let batch = |side: &Side| {
        vec![CancelJobs {
            name: name(side),
            ids: vec![side.given("job a")],
            only: None,
            running: true,
            reason: "a mistake".to_owned(),
        }]
    };
    step(batch, |_, cancelled| {
        format!("cancelled {} locked {}", cancelled.jobs, cancelled.locked)
    })
}

/// By the number of a job that is in another queue, or in the queue of another namespace.
pub(super) fn cancel_elsewhere(namespace: bool) -> Step {
    let batch = move |side: &Side| {
        let mut name = name(side);
        let other = if namespace {
            &mut name.namespace
        } else {
            &mut name.queue
        };
        other.push_str(" too");
        vec![CancelJobs {
            name,
            ids: vec![side.given("job a")],
            only: None,
            running: true,
            reason: "a mistake".to_owned(),
        }]
    };
    step(batch, |_, cancelled| {
        format!("cancelled {} locked {}", cancelled.jobs, cancelled.locked)
    })
}

/// Makes the job `a` due now, with another priority and another payload.
pub(super) fn edit() -> Step {
    edit_by(JobEdit::new().now().priority(Priority::High).payload("2"))
}

pub(super) fn edit_by(edit: JobEdit) -> Step {
    let batch = move |side: &Side| {
        vec![EditJobs {
            name: name(side),
            ids: vec![side.given("job a")],
            only: None,
            edit: edit.clone(),
            again: false,
            topic: 1,
            reason: "a mistake".to_owned(),
        }]
    };
    step(batch, |_, edited| {
        let (jobs, locked) = (edited.jobs, edited.locked);
        format!(
            "edited {jobs} locked {locked} used up {:?}",
            edited.attempts
        )
    })
}

/// By the number of a job that is in another queue, or in the queue of another namespace.
pub(super) fn edit_elsewhere(namespace: bool) -> Step {
    let batch = move |side: &Side| {
        let mut name = name(side);
        let other = if namespace {
            &mut name.namespace
        } else {
            &mut name.queue
        };
        other.push_str(" too");
        vec![EditJobs {
            name,
            ids: vec![side.given("job a")],
            only: None,
            edit: JobEdit::new().payload("2"),
            again: false,
            topic: 1,
            reason: "a mistake".to_owned(),
        }]
    };
    step(batch, |_, edited| {
        let (jobs, locked) = (edited.jobs, edited.locked);
        format!(
            "edited {jobs} locked {locked} used up {:?}",
            edited.attempts
        )
    })
}

pub(super) fn purge() -> Step {
    let batch = |side: &Side| {
        vec![Purge {
            name: name(side),
            after: Purge::FIRST,
            most: 10,
        }]
    };
    step(batch, |_, part| format!("purged {}", part.deleted))
}

/// Puts dead letters back: those with these names, or all.
pub(super) fn redrive(names: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |name: &&str| side.given(&format!("job {name}"));
        vec![Redrive {
            name: name(side),
            ids: names.iter().map(of).collect(),
            after: 0,
            most: 10,
            topic: 0,
        }]
    };
    step(batch, |_, answer| {
        format!("{} put back, {} busy", answer.count, answer.busy.len())
    })
}

pub(super) fn discard(names: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |name: &&str| side.given(&format!("job {name}"));
        vec![Discard {
            name: name(side),
            ids: names.iter().map(of).collect(),
            after: 0,
            most: 10,
        }]
    };
    step(batch, |_, part| format!("discarded {}", part.deleted))
}

fn running_part(side: &Side) -> Vec<CountRunning> {
    vec![CountRunning {
        name: name(side),
        priorities: (0..4).map(|it| (it, (0, 0))).collect(),
        most: 100,
    }]
}

/// How many jobs run.
pub(super) fn count_running() -> Step {
    step(running_part, |_, part| {
        let running: i64 = part.levels.iter().map(|level| level.running).sum();
        format!("{running} run")
    })
}

pub(super) fn set_paused(paused: bool) -> Step {
    pause(paused, 0)
}

/// For so many minutes, or with 0 until it is resumed.
pub(super) fn pause(paused: bool, minutes: i64) -> Step {
    let batch = move |side: &Side| {
        vec![SetPaused {
            name: name(side),
            paused,
            time: minutes * UNIT,
            topic: 0,
        }]
    };
    step(batch, |_, paused| format!("paused {paused}"))
}

pub(super) fn set_name_paused(paused: bool) -> Step {
    pause_name(paused, 0)
}

pub(super) fn pause_name(paused: bool, minutes: i64) -> Step {
    let batch = move |side: &Side| {
        vec![SetNamePaused {
            name: name(side),
            job: new_job().name,
            paused,
            time: minutes * UNIT,
            topic: 0,
        }]
    };
    step(batch, |_, paused| format!("name paused {paused}"))
}

/// How many jobs are in which state, and where the delivery of the first stands.
pub(super) fn count() -> Step {
    let counts = step(
        |side| {
            vec![CountJobs {
                name: name(side),
                most: 10,
            }]
        },
        |_, counted| {
            let of = [
                counted.ready,
                counted.running,
                counted.delayed,
                counted.dead,
            ];
            format!("{of:?} {}", counted.paused)
        },
    );
    let stands = step(
        |side| {
            vec![ReadDeliveryState {
                ticket: ticket(side, "a"),
            }]
        },
        |_, delivery_state| format!("{delivery_state:?}"),
    );
    Arc::new(move |side| format!("{}, {}", counts(side), stands(side)))
}

/// As a claim has it.
pub(super) const LOCK: &str = "SELECT FROM lockapi.job WHERE namespace = $n FOR UPDATE";
/// As somebody has it who counts what runs.
pub(super) const SHARE: &str = "SELECT FROM lockapi.job WHERE namespace = $n FOR SHARE";
pub(super) const LOCK_DEAD: &str =
    "SELECT FROM lockapi.job_archive WHERE namespace = $n FOR UPDATE";
pub(super) const SHARE_DEAD: &str =
    "SELECT FROM lockapi.job_archive WHERE namespace = $n FOR SHARE";

#[test]
fn a_waiting_job_that_another_has_is_skipped() {
    let seconds = [
        (claim(2), "done [], picked 0:"),
        (exchange(&[], 2, false, true), "done [], picked 0:"),
        (take(2), "took []"),
        (cancel(&["a"]), "cancelled [] locked [\"job a\"]"),
        (cancel_as_operator(), "cancelled 0 locked 1"),
        (edit(), "edited 0 locked 1 used up None"),
        (purge(), "purged 0"),
        (push_key("b", Key::Replace), "None"),
    ];
    for first in [
        claim(1),
        take(1),
        cancel(&["a"]),
        cancel_as_operator(),
        edit(),
        purge(),
        push_key("b", Key::Replace),
        sql(LOCK),
        sql(SHARE),
    ] {
        for (second, answer) in &seconds {
            let before = [&push_key("a", Key::Skip)];
            let meets = Meets::Skips(answer);
            let schedule = Schedule::new(&before, &first, second, meets);
            schedule.then(&count()).then(&claim(2)).run();
        }
    }
}

#[test]
fn a_claim_takes_the_next_job_beside_one_that_another_has() {
    for first in [claim(1), take(1), cancel(&["a"])] {
        for second in [claim(2), take(2)] {
            let schedule = Schedule::new(&[&push(&["a", "b"])], &first, &second, Meets::Passes);
            schedule.only_if_committed().then(&count()).run();
        }
    }
}

#[test]
fn what_is_cancelled_and_purged_beside_a_locked_job_is_told() {
    let before = [&push(&["a", "b"])];
    let first = take(1);
    let schedule = Schedule::new(&before, &first, &cancel(&["b", "a"]), {
        Meets::Skips("cancelled [\"job b\"] locked [\"job a\"]")
    });
    schedule.partly(&cancel(&["b"])).then(&count()).run();
    let schedule = Schedule::new(&before, &first, &purge(), Meets::Skips("purged 1"));
    schedule.partly(&cancel(&["b"])).run();
}

/// Makes a dead letter of the first job.
pub(super) fn claim_and_reject() -> Step {
    let (claim, reject) = (claim(1), settle(&["a"], reject()));
    Arc::new(move |side| format!("{} {}", claim(side), reject(side)))
}

/// What somebody does to a delivery.
fn at_a_delivery() -> Vec<Step> {
    vec![
        ack(&["a"]),
        ack_with_result(&["a"], 7, 5),
        complete_and_claim(&["a"], 1),
        settle(&["a"], nack()),
        settle(&["a"], reject()),
        settle(&["a"], extend()),
        settle(&["a"], Outcome::Ack),
        cancel(&["a"]),
        cancel_as_operator(),
        edit(),
        sql(LOCK),
        sql(SHARE),
    ]
}

#[test]
fn a_delivery_whose_row_is_locked_is_left_alone() {
    let seconds = [
        (settle(&["a"], nack()), "Locked"),
        (settle(&["a"], reject()), "Locked"),
        (settle(&["a"], extend()), "Locked"),
        (settle(&["a"], Outcome::Ack), "Locked"),
        (cancel(&["a"]), "cancelled [] locked [\"job a\"]"),
        (cancel_as_operator(), "cancelled 0 locked 1"),
        (edit(), "edited 0 locked 1 used up None"),
        (claim(1), "done [], picked 0:"),
        (exchange(&[], 1, false, true), "done [], picked 0:"),
    ];
    for first in at_a_delivery() {
        for (second, answer) in &seconds {
            let before = [&push(&["a"]), &claim(1)];
            let schedule = Schedule::new(&before, &first, second, Meets::Skips(answer));
            schedule.then(&count()).run();
        }
    }
}

#[test]
fn a_completion_waits_for_what_changes_the_delivery() {
    for first in at_a_delivery() {
        for second in [
            ack(&["a"]),
            ack_with_result(&["a"], 7, 5),
            complete_and_claim(&["a"], 0),
        ] {
            let before = [&push(&["a"]), &claim(1)];
            let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
            schedule.then(&count()).run();
        }
    }
}

#[test]
fn a_late_completion_waits_for_the_claim_that_takes_the_job_over() {
    let before = [&push(&["a"]), &claim(1), &elapse(2)];
    for second in [
        ack(&["a"]),
        ack_with_result(&["a"], 7, 5),
        complete_and_claim(&["a"], 0),
    ] {
        let schedule = Schedule::new(&before, &claim_by_another(), &second, Meets::Waits);
        schedule.then(&count()).run();
    }
    let schedule = Schedule::new(&before, &claim_by_another(), &settle(&["a"], extend()), {
        Meets::Skips("Locked")
    });
    schedule.then(&count()).run();
}

/// A claim that does not replace the delivery that is known.
fn claim_by_another() -> Step {
    let claim = claim(1);
    Arc::new(move |side: &mut Side| {
        let mine = side.given("delivery a");
        let answer = claim(side);
        side.give("delivery a", mine);
        answer
    })
}

#[test]
fn a_job_whose_lease_has_ended_goes_to_one_of_two() {
    let before = [&push(&["a"]), &claim(1), &elapse(2)];
    for first in [
        claim(1),
        take(1),
        settle(&["a"], extend()),
        ack(&["a"]),
        sql(LOCK),
        sql(SHARE),
    ] {
        let schedule = Schedule::new(&before, &first, &claim(1), {
            Meets::Skips("done [], picked 0:")
        });
        schedule.then(&count()).run();
        let limited = exchange(&[], 1, false, true);
        let schedule = Schedule::new(&before, &first, &limited, {
            Meets::Skips("done [], picked 0:")
        });
        schedule.then(&count()).run();
        let schedule = Schedule::new(&before, &first, &take(1), Meets::Skips("took []"));
        schedule.then(&count()).run();
    }
}

#[test]
fn dead_letters_that_another_has_are_skipped() {
    const NONE: &str = "0 put back, 0 busy";
    let before = [&push(&["a"]), &claim(1), &settle(&["a"], reject())];
    for first in [
        redrive(&["a"]),
        discard(&["a"]),
        sql(LOCK_DEAD),
        sql(SHARE_DEAD),
    ] {
        for names in [&[] as &[&str], &["a"]] {
            let schedule = Schedule::new(&before, &first, &redrive(names), Meets::Skips(NONE));
            schedule.then(&count()).then(&claim(1)).run();
            let meets = Meets::Skips("discarded 0");
            let schedule = Schedule::new(&before, &first, &discard(names), meets);
            schedule.then(&count()).then(&claim(1)).run();
        }
    }
}

#[test]
fn of_two_who_pause_and_resume_a_name_the_later_takes_effect() {
    let before = [&set_name_paused(true)] as [&Step; 1];
    for first in [true, false] {
        let (first, second) = (set_name_paused(first), set_name_paused(!first));
        let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
        schedule
            .then(&push(&["a"]))
            .then(&count())
            .then(&claim(1))
            .run();
    }
}

#[test]
fn of_two_who_pause_and_resume_the_later_takes_effect() {
    for first in [true, false] {
        for before in [&[] as &[&Step], &[&set_paused(true)]] {
            let (first, second) = (set_paused(first), set_paused(!first));
            let schedule = Schedule::new(before, &first, &second, Meets::Waits);
            schedule
                .then(&push(&["a"]))
                .then(&count())
                .then(&claim(1))
                .run();
        }
    }
}

/// Dozens of drains of one queue may look at the same time.
#[test]
fn who_counts_what_runs_is_not_counted_by_others() {
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let mut sides = [0, 1, 2].map(|session| {
        let mut side = Side::server(url(), Plans::Engine);
        (side.session, side.namespace) = (session, namespace.clone());
        side
    });
    let mut given = std::collections::BTreeMap::new();
    sides[0].run(&push(&["a"]), &mut given);
    // Leaves a number in the row, which is why each of them has to lock it.
    sides[0].script(&format!(
        "BEGIN; SELECT FROM lockapi.job WHERE namespace = '{namespace}' FOR UPDATE; COMMIT"
    ));
    for side in &mut sides {
        side.script("BEGIN");
        assert_eq!(side.run(&count_running(), &mut given), "0 run");
    }
    for side in &mut sides {
        side.script("COMMIT");
    }
}

/// The number in the row is that of a savepoint, or of several transactions, and nobody holds a lock on it.
#[test]
fn what_an_open_transaction_has_in_any_way_runs() {
    const WAYS: [&str; 5] = [
        "UPDATE lockapi.job SET attempt = attempt WHERE namespace = $n",
        "SELECT FROM lockapi.job WHERE namespace = $n FOR UPDATE",
        "SAVEPOINT a; UPDATE lockapi.job SET attempt = attempt WHERE namespace = $n; RELEASE a",
        "SAVEPOINT a; DELETE FROM lockapi.job WHERE namespace = $n; RELEASE a; SAVEPOINT b",
        "SELECT FROM lockapi.job WHERE namespace = $n FOR SHARE; SAVEPOINT a;
         UPDATE lockapi.job SET attempt = attempt WHERE namespace = $n; RELEASE a",
    ];
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let [mut observer, mut other] = [0, 1].map(|session| {
        let mut side = Side::server(url(), Plans::Engine);
        (side.session, side.namespace) = (session, namespace.clone());
        side
    });
    let mut given = std::collections::BTreeMap::new();
    observer.run(&push(&["a"]), &mut given);
    for way in WAYS {
        assert_eq!(
            observer.run(&count_running(), &mut given),
            "0 run",
            "before: {way}"
        );
        other.script("BEGIN");
        other.script(&way.replace("$n", &format!("'{namespace}'")));
        assert_eq!(observer.run(&count_running(), &mut given), "1 run", "{way}");
        other.script("ROLLBACK");
    }
    assert_eq!(observer.run(&count_running(), &mut given), "0 run");
}

/// Others may be told of as well: the sessions of other tests.
#[test]
fn transactions_that_change_jobs_are_told_and_no_others() {
    let [mut observer, mut other] = [0, 1].map(|session| {
        let mut side = Side::server(url(), Plans::Engine);
        side.session = session;
        side
    });
    let told = step(running_part, |_, part| format!("{:?}", part.transactions));
    for (way, changes) in [
        (
            "UPDATE lockapi.job SET attempt = attempt WHERE id = 0",
            true,
        ),
        ("DELETE FROM lockapi.lease WHERE key = 'no such key'", false),
        ("SELECT FROM lockapi.job WHERE id = 0 FOR UPDATE", false),
    ] {
        other.script("BEGIN");
        other.script(way);
        let transaction = other.transaction().to_string();
        let told = observer.run(&told, &mut std::collections::BTreeMap::new());
        assert_eq!(told.contains(&transaction), changes, "{way}");
        other.script("ROLLBACK");
    }
}
