//! One session, where the random sequences of the differential test seldom lead.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use lockapi::admin::JobEdit;
use lockapi::limit::Quota;
use lockapi::queue::{Outcome, Priority};
use lockapi::suite::admin::ListLeases;
use lockapi::suite::driver::{RestoreSettings, SaveSettings};
use lockapi::suite::lease::{Acquire, Acquired};
use lockapi::suite::limit::{Charge, ChargeLine};
use lockapi::suite::queue::SetGroupLimit;
use lockapi::suite::schedule::{Name as TaskScheduler, ReadTasks};
use lockapi::suite::table::IsInTransaction;

use super::agree;
use super::leases::{self, force_release, release, renew};
use super::limited::{limit, unlimit};
use super::limits::{By, charge, ensure, look, take};
use super::queue::{
    cancel, cancel_as_operator, cancel_elsewhere, claim, discard, edit, edit_by, edit_elsewhere,
    nack, name, purge, push, push_with_ttl, redrive, set_name_paused, settle as settle_job,
};
use super::reservations::{expire, settle};
use super::schedule::remove;
use super::sides::{Plans, Side, Step, UNIT, elapse, number, sql, step, url};

const A: &[&str] = &["a"];
const BATCH: &[&str] = &["a", "b"];

/// Charges the key `a`, by a quota of one permit a minute with this burst.
fn charge_with(burst: u64) -> Step {
    let batch = move |side: &Side| {
        vec![Charge {
            namespace: side.namespace.clone(),
            lines: vec![ChargeLine {
                key: side.key("a"),
                quota: Quota::new(1, Duration::from_mins(1)).burst(burst),
                cost: 1,
                id: 0,
                ttl: 0,
            }],
            times: 1,
            relaxed: false,
        }]
    };
    step(batch, |_, decided| format!("{:?}", decided[0].outcome))
}

#[test]
fn a_window_goes_back_with_the_clock_when_something_else_is_taken() {
    // Two keys, because one alone has a statement of its own.
    let (both, taken) = (ensure(BATCH), take(BATCH));
    let (window, back) = (charge(By::Window, A, None), elapse(-2));
    let steps = [&both, &window, &back, &taken, &look(), &window, &look()];
    agree(Plans::Engine, &steps);
}

/// After the clock was set back every request is tried on the locked row.
#[test]
fn a_request_that_does_not_fit_hinders_none_by_another_quota() {
    for (first, second) in [(4, 1), (1, 4)] {
        let (one, back) = (charge_with(4), elapse(-2));
        let (first, second) = (charge_with(first), charge_with(second));
        let steps = [&ensure(A), &one, &one, &back, &first, &second, &look()];
        agree(Plans::Engine, &steps);
    }
}

/// Only the server knows of so many, who make no difference to those who reserve nothing.
#[test]
fn the_most_reservations_do_not_keep_others_from_taking() {
    let full = sql("UPDATE lockapi.rate_limit SET reserved = 10000 WHERE namespace = $n");
    agree(
        Plans::Engine,
        &[&ensure(A), &full, &charge_with(4), &charge_with(4), &look()],
    );
}

/// In the window that it was taken from, which is the one before by now.
#[test]
fn what_was_reserved_in_the_window_before_is_given_back() {
    let (window, mine) = (
        charge(By::Window, A, None),
        charge(By::Window, A, Some(("mine", 6))),
    );
    for given_back in [expire(A), settle(&[("a", "mine")])] {
        let steps = [
            &ensure(A),
            &window,
            &elapse(2),
            &mine,
            &elapse(3),
            &window,
            &elapse(2),
            &look(),
            &elapse(2),
            &given_back,
            &look(),
        ];
        agree(Plans::Engine, &steps);
    }
}

#[test]
fn what_an_operator_cancels_is_kept_for_a_week() {
    let kept = "SELECT count(*) FROM lockapi.job_archive
                 WHERE namespace = $n AND status = 'cancelled'
                   AND expires_at BETWEEN now() + interval '6 days' AND now() + interval '8 days'";
    let steps = [&push(&["a"]), &cancel_as_operator(), &number(kept, 1)];
    agree(Plans::Engine, &steps);
}

#[test]
fn an_operator_cancels_in_the_queue_that_is_named_alone() {
    let left = "SELECT count(*) FROM lockapi.job WHERE namespace = $n";
    for namespace in [false, true] {
        let steps = [
            &push(&["a"]),
            &cancel_elsewhere(namespace),
            &number(left, 1),
        ];
        agree(Plans::Engine, &steps);
    }
}

#[test]
fn an_operator_edits_in_the_queue_that_is_named_alone() {
    let left = "SELECT count(*) FROM lockapi.job WHERE namespace = $n AND payload::text = '1'";
    for namespace in [false, true] {
        let steps = [&push(&["a"]), &edit_elsewhere(namespace), &number(left, 1)];
        agree(Plans::Engine, &steps);
    }
}

#[test]
fn an_edit_leaves_a_job_an_attempt() {
    let with = |attempts| edit_by(JobEdit::new().max_attempts(attempts));
    let steps = [
        &push(&["a"]),
        &claim(1),
        &settle_job(&["a"], nack()),
        &with(1),
        &with(2),
        &claim(1),
    ];
    agree(Plans::Engine, &steps);
}

/// Claims have gone on to other jobs, and do not look where they have been.
#[test]
fn an_edited_job_is_due_where_claims_look() {
    let new = "SELECT count(*) FROM lockapi.job WHERE namespace = $n AND run_at > now() - interval '30 s'";
    let high = || JobEdit::new().priority(Priority::High);
    let far = SystemTime::UNIX_EPOCH + Duration::from_hours(50_000_000);
    for (edits, are_new) in [
        // What is due keeps its place.
        (&[JobEdit::new().now().payload("2")][..], 0),
        (&[JobEdit::new().priority(Priority::Normal)], 0),
        (&[high()], 1),
        (&[JobEdit::new().priority(Priority::Urgent)], 1),
        (&[JobEdit::new().priority(Priority::Low)], 1),
        (&[high().now()], 1),
        (&[JobEdit::new().at(far), JobEdit::new().now()], 1),
    ] {
        let edits: Vec<Step> = edits.iter().cloned().map(edit_by).collect();
        let (push, later, is_new) = (push(&["a"]), elapse(2), number(new, are_new));
        let mut steps = vec![&push, &later];
        steps.extend(&edits);
        steps.push(&is_new);
        agree(Plans::Engine, &steps);
    }
}

/// The time to live begins anew with another time alone, and as long as it was; after a delivery there is none to begin.
#[test]
fn an_edit_moves_the_end_of_the_time_to_live_with_the_time() {
    let far = || SystemTime::UNIX_EPOCH + Duration::from_hours(50_000_000);
    let ends = "SELECT (extract(epoch FROM expires_at - coalesce(due_at, run_at)) / 60)::int8 FROM lockapi.job
                 WHERE namespace = $n";
    let ends_soon = "SELECT count(*) FROM lockapi.job WHERE namespace = $n
                        AND expires_at BETWEEN now() + interval '6 min' AND now() + interval '9 min'";
    let urgent = || JobEdit::new().priority(Priority::Urgent);
    for (edit, seen) in [
        (urgent(), number(ends_soon, 1)),
        (JobEdit::new().payload("2"), number(ends_soon, 1)),
        (JobEdit::new().now(), number(ends_soon, 1)),
        (JobEdit::new().at(far()), number(ends, 10)),
        (urgent().at(far()), number(ends, 10)),
    ] {
        let steps = [&push_with_ttl(10), &elapse(2), &edit_by(edit), &seen];
        agree(Plans::Engine, &steps);
    }
    let later = Outcome::Nack {
        error: "it failed".to_owned(),
        after: Duration::from_mins(30),
    };
    // It was delivered, and waits for an attempt behind that time.
    let steps = [
        &push_with_ttl(10),
        &claim(1),
        &settle_job(&["a"], later),
        &elapse(2),
        &edit_by(JobEdit::new().now()),
        &number(ends_soon, 1),
        &claim(1),
    ];
    agree(Plans::Engine, &steps);
}

fn acquire(key: &'static str, slot: i64) -> Step {
    let batch = move |side: &Side| {
        vec![Acquire {
            namespace: side.namespace.clone(),
            key: side.key(key),
            slot,
            acquisition: slot + 1,
            ttl: UNIT,
            hold: 0,
            owner: format!("{key} {slot}"),
            data: String::new(),
        }]
    };
    let granted = |acquired| matches!(acquired, Acquired::Granted(_)).to_string();
    step(batch, move |_, acquired| granted(acquired))
}

#[test]
fn leases_are_listed_in_order() {
    let list = step(
        |side| {
            vec![ListLeases {
                namespace: Some(side.namespace.clone()),
                key: None,
                after: (String::new(), String::new(), -1),
                examined: 1_000_000,
                most: 10,
            }]
        },
        |_, page| {
            let owners = page.leases.into_iter().map(|lease| lease.owner);
            owners.collect::<Vec<_>>().join(", ")
        },
    );
    for plans in [Plans::Engine, Plans::Scans] {
        let (last, middle) = (acquire("c", 0), [acquire("b", 2), acquire("b", 1)]);
        let first = acquire("a", 0);
        agree(plans, &[&last, &middle[0], &middle[1], &first, &list]);
    }
}

#[test]
fn a_session_knows_its_marker() {
    let mut side = Side::server(super::sides::url(), Plans::Engine);
    for (set, wanted) in [("it", true), ("another", false), ("", false)] {
        side.script(&format!("SET lockapi.marker = '{set}'"));
        let mark = "it".to_owned();
        assert_eq!(
            side.perform(&[IsInTransaction { mark }]),
            [wanted],
            "{set:?}"
        );
    }
    side.script("RESET lockapi.marker");
}

/// A pooler that began to share sessions has sent the statement to another's.
#[test]
fn settings_of_another_session_stay() {
    const CHANGED: &str = "SET geqo_threshold = 19; SELECT pg_catalog.pg_advisory_lock(19)";
    const LOOK: &str = "SELECT pg_catalog.current_setting('geqo_threshold')::int8 * 10
          + (SELECT count(*) FROM pg_catalog.pg_locks
              WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid())";
    let [mut own, mut other] = [0, 1].map(|_| Side::server(url(), Plans::Engine));
    let mut given = BTreeMap::new();
    let saved = [own.perform(&[SaveSettings]), other.perform(&[SaveSettings])];
    let [own, others] = saved.map(|mut saved| RestoreSettings(saved.remove(0)));
    other.script(CHANGED);
    let outcome = other.attempt(&[own]);
    assert!(
        !matches!(&outcome, Ok(restored) if !restored.is_empty()),
        "{outcome:?}"
    );
    assert_eq!(
        other.run(&number(LOOK, 191), &mut given),
        format!("{LOOK}: 191")
    );
    assert_eq!(other.perform(&[others]), [1]);
    assert_eq!(
        other.run(&number(LOOK, 120), &mut given),
        format!("{LOOK}: 120")
    );
}

/// The statement for all batches would do what the simple one did not.
#[test]
fn simple_statements_do_what_they_are_for() {
    let mut side = Side::server(url(), Plans::Engine);
    side.namespace = format!("n{:016x}", fastrand::u64(..));
    let mut given = BTreeMap::new();
    let (free, one) = (
        release(&[("a", "one")]),
        leases::acquire(&[("one", "a", 1)]),
    );
    let [two, three] = [&[("two", "a", 2)], &[("three", "a", 3)]].map(|want| leases::acquire(want));
    let renewal = renew(&[("a", "two")]);
    // A queue whose limit was taken away is like one that never had any.
    for step in [&one, &free, &ensure(A), &limit(2), &unlimit()] {
        side.run(step, &mut given);
    }
    for (step, name) in [
        (&two, "lease.acquire_one"),
        // It is told how long that is.
        (&three, "lease.acquire_one"),
        (&renewal, "lease.renew_one"),
        (&release(&[("a", "two")]), "lease.release_one"),
        (&take(A), "limit.take_one"),
        (&push(A), "queue.push_one"),
        (&claim(1), "queue.complete_and_claim_unlimited"),
    ] {
        let seen = side.run(step, &mut given);
        assert_eq!(side.ran, [name], "{seen}");
    }
}

/// What was done by a session that ended while its commit waited for a standby is there, and not replicated: who finds it
/// done waits for the standby too.
#[test]
fn who_finds_nothing_to_do_writes_to_the_log() {
    const WRITES: &str =
        "SELECT (pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL)::int4::int8";
    let resume_group = step(
        |side| {
            vec![SetGroupLimit {
                name: name(side),
                group: "a".to_owned(),
                limit: None,
                topic: 0,
            }]
        },
        |_, ()| String::new(),
    );
    for step in [
        cancel(A),
        purge(),
        redrive(A),
        redrive(&[]),
        discard(A),
        cancel_as_operator(),
        edit(),
        set_name_paused(false),
        unlimit(),
        resume_group,
        remove(),
        force_release("a"),
    ] {
        let mut side = Side::server(url(), Plans::Engine);
        side.namespace = format!("n{:016x}", fastrand::u64(..));
        let mut given = BTreeMap::new();
        side.script("BEGIN");
        let nothing = side.run(&number(WRITES, 0), &mut given);
        assert!(nothing.ends_with(": 0"), "{nothing}");
        let seen = side.run(&step, &mut given);
        let ran = side.ran.clone();
        let writes = side.run(&number(WRITES, 1), &mut given);
        assert!(writes.ends_with(": 1"), "{ran:?} {seen}");
        side.script("ROLLBACK");
    }
}

/// However the rows are read.
#[test]
fn tasks_are_told_in_the_order_of_their_names() {
    let set = sql(
        "INSERT INTO lockapi.task (namespace, scheduler, name, version, next_at, enabled, every, timeout, misfire, misfire_most,
                                   overlap, job, payload, max_attempts, priority)
         SELECT $n, 'work', name, 1, NULL, true, 1000, 0, 0, 0, 1, 'job', '1', 1, 1
           FROM unnest(ARRAY['c', 'a', 'b']) AS name",
    );
    let read = |after: &'static str| {
        let batch = move |side: &Side| {
            vec![ReadTasks {
                name: TaskScheduler {
                    namespace: side.namespace.clone(),
                    scheduler: "work".to_owned(),
                },
                task: String::new(),
                after: after.to_owned(),
                most: 1,
            }]
        };
        step(batch, |_, read| {
            let names = read.tasks.iter().map(|task| task.name.clone());
            names.collect::<Vec<_>>().join(", ")
        })
    };
    let mut given = BTreeMap::new();
    for plans in [Plans::Engine, Plans::Scans] {
        let mut side = Side::server(url(), plans);
        side.namespace = format!("n{:016x}", fastrand::u64(..));
        side.run(&set, &mut given);
        for (after, next) in [("", "a"), ("a", "b"), ("b", "c"), ("c", "")] {
            assert_eq!(side.run(&read(after), &mut given), next);
        }
    }
}
