//! A sweep meets a session that uses what it would delete.

use std::collections::BTreeMap;

use lockapi::suite::admin::{ListLeases, SweepNotes};
use lockapi::suite::driver::Operation;
use lockapi::suite::idempotency::SweepAnswers;
use lockapi::suite::lease;
use lockapi::suite::limit;
use lockapi::suite::mutex::SweepMarks;
use lockapi::suite::queue::SweepQueues;

use postgres::{Client, NoTls};

use super::admin::{check_in, lock_key, note};
use super::answers::{recall, record};
use super::leases::{acquire, peek, release};
use super::limits::{look, take};
use super::queue::claim_and_reject;
use super::queue_keys::{Key, push_key};
use super::sides::{Plans, Side, Step, UNIT, elapse, number, own_url, sql, step, until};
use super::{Meets, Schedule, on_server};

/// A bit more than two days, and than a month, in minutes.
const TWO_DAYS: i64 = 2 * 1440 + 1;
const MONTH: i64 = 31 * 1440;

fn sweep_leases() -> Step {
    let batch = |side: &Side| {
        vec![lease::Sweep {
            after: (side.namespace.clone(), side.key(""), 0),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_limits() -> Step {
    let batch = |side: &Side| {
        vec![limit::Sweep {
            after: (side.namespace.clone(), side.key("")),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_answers() -> Step {
    let batch = |side: &Side| {
        vec![SweepAnswers {
            after: (side.namespace.clone(), side.key("")),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_queues() -> Step {
    let batch = |side: &Side| {
        vec![SweepQueues {
            namespace: side.namespace.clone(),
            from: (0, 0),
            most: 10,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_marks() -> Step {
    let batch = |side: &Side| {
        vec![SweepMarks {
            after: (side.namespace.clone(), String::new()),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_names() -> Step {
    let batch = |side: &Side| {
        vec![SweepNotes {
            after: lock_key(side, "0"),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

/// Several rows, made in another order than that of their keys, are swept in two parts, while they are new and later.
///
/// The statements are planned as if no index were of use: a part of a table is what follows in the order of
/// its keys, whatever the plan is.
fn in_order(before: &[&Step], later: i64, sweep: &dyn Fn((i64, i64)) -> Step) {
    let on = |mut side: Side, namespace: String| {
        side.namespace = namespace;
        let mut given = BTreeMap::new();
        for step in before {
            side.run(step, &mut given);
        }
        let mut swept = Vec::new();
        for minutes in [0, later] {
            side.run(&elapse(minutes), &mut given);
            let parts = [(0, 2), (2, 1)];
            swept.push(parts.map(|part| side.run(&sweep(part), &mut given)));
        }
        swept
    };
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let server = on(Side::server(own_url(), Plans::Scans), namespace.clone());
    assert_eq!(
        server,
        on(Side::model(), namespace),
        "the server and the model"
    );
}

#[test]
fn parts_of_tables_follow_their_keys() {
    let before = [
        &acquire(&[("3", "3", 3)]),
        &acquire(&[("1", "1", 1)]),
        &acquire(&[("2", "2", 2)]),
    ];
    in_order(&before, TWO_DAYS, &|(after, most)| {
        let batch = move |side: &Side| {
            vec![lease::Sweep {
                after: (side.namespace.clone(), side.key(&after.to_string()), 0),
                most,
            }]
        };
        step(batch, |_, swept| format!("{swept:?}"))
    });
    in_order(&before, 2, &|(after, examined)| {
        let batch = move |side: &Side| {
            vec![ListLeases {
                namespace: Some(side.namespace.clone()),
                key: None,
                after: (side.key(&after.to_string()), side.namespace.clone(), 0),
                examined,
                most: 10,
            }]
        };
        step(batch, |_, page| {
            let keys = page.leases.into_iter().map(|lease| lease.key);
            format!("{:?}, to {:?}", keys.collect::<Vec<_>>(), page.next)
        })
    });
    let before = [&take(&["3"]), &take(&["1"]), &take(&["2"])];
    in_order(&before, 60, &|(after, most)| {
        let batch = move |side: &Side| {
            vec![limit::Sweep {
                after: (side.namespace.clone(), side.key(&after.to_string())),
                most,
            }]
        };
        step(batch, |_, swept| format!("{swept:?}"))
    });
    let before = [
        &record(&[("3", 3)]),
        &record(&[("1", 1)]),
        &record(&[("2", 2)]),
    ];
    in_order(&before, 61, &|(after, most)| {
        let batch = move |side: &Side| {
            vec![SweepAnswers {
                after: (side.namespace.clone(), side.key(&after.to_string())),
                most,
            }]
        };
        step(batch, |_, swept| format!("{swept:?}"))
    });
    let before = [&note(&["3"]), &note(&["1"]), &note(&["2"])];
    in_order(&before, MONTH, &|(after, most)| {
        let batch = move |side: &Side| {
            vec![SweepNotes {
                after: lock_key(side, &after.to_string()),
                most,
            }]
        };
        step(batch, |_, swept| format!("{swept:?}"))
    });
    let before = [&check_in("3"), &check_in("1"), &check_in("2")];
    in_order(&before, TWO_DAYS, &|(after, most)| {
        let batch = move |side: &Side| {
            vec![SweepMarks {
                after: (side.namespace.clone(), after.to_string()),
                most,
            }]
        };
        step(batch, |_, swept| format!("{swept:?}"))
    });
}

/// The slots of a key, of which others have no more than the first.
#[test]
fn parts_of_leases_follow_their_slots() {
    let acquire = |slot| {
        let batch = move |side: &Side| {
            vec![lease::Acquire {
                namespace: side.namespace.clone(),
                key: side.key("it"),
                slot,
                acquisition: slot,
                ttl: UNIT,
                hold: 0,
                owner: String::new(),
                data: String::new(),
            }]
        };
        step(batch, |_, acquired| format!("{acquired:?}"))
    };
    let before = [&acquire(3), &acquire(1), &acquire(2)];
    in_order(&before, TWO_DAYS, &|(after, most)| {
        let batch = move |side: &Side| {
            vec![lease::Sweep {
                after: (side.namespace.clone(), side.key("it"), after),
                most,
            }]
        };
        step(batch, |_, swept| format!("{swept:?}"))
    });
}

/// The model does not know the lease of the other namespace.
#[test]
fn a_lease_of_another_namespace_is_not_swept_with_one_of_the_same_key() {
    let other = sql("
        INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at,
                                   expires_at, released_at)
        VALUES ($n || ' too', $n || ' a', 0, 0, 0, '', '', 'epoch', 'epoch', 'epoch', 'epoch')");
    let steps = [
        acquire(&[("first", "a", 1)]),
        elapse(TWO_DAYS),
        other,
        sweep_leases(),
    ];
    let on = |mut side: Side| {
        side.namespace = format!("n{:016x}", fastrand::u64(..));
        let mut given = BTreeMap::new();
        let seen = steps.iter().map(|step| side.run(step, &mut given));
        seen.collect::<Vec<_>>()
    };
    let server = on(Side::server(own_url(), Plans::Engine));
    assert_eq!(server, on(Side::model()), "the server and the model");
}

fn skipped(before: &[&Step], first: &Step, sweep: &Step) -> Schedule {
    Schedule::new(before, first, sweep, Meets::Skips("0 swept")).at(own_url())
}

#[test]
fn a_lease_that_somebody_has_locked_is_not_swept() {
    let before = [
        &acquire(&[("first", "a", 1)]),
        &release(&[("a", "first")]),
        &elapse(TWO_DAYS),
    ];
    let lock = sql("SELECT FROM lockapi.lease WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.lease WHERE namespace = $n FOR KEY SHARE");
    for first in [acquire(&[("second", "a", 2)]), sweep_leases(), lock, share] {
        let schedule = skipped(&before, &first, &sweep_leases());
        schedule.then(&peek(&["a"])).run();
    }
}

#[test]
fn an_answer_that_somebody_records_is_not_swept() {
    let before = [&record(&[("a", 1)]), &elapse(61)];
    let lock = sql("SELECT FROM lockapi.answer WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.answer WHERE namespace = $n FOR KEY SHARE");
    for first in [record(&[("a", 2)]), sweep_answers(), lock, share] {
        skipped(&before, &first, &sweep_answers())
            .then(&recall())
            .run();
    }
}

#[test]
fn a_limit_that_somebody_uses_is_not_swept() {
    let before = [&take(&["a"]), &elapse(60)];
    let lock = sql("SELECT FROM lockapi.rate_limit WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.rate_limit WHERE namespace = $n FOR KEY SHARE");
    for first in [take(&["a"]), sweep_limits(), lock, share] {
        skipped(&before, &first, &sweep_limits())
            .then(&look())
            .run();
    }
}

/// One after the other: a sweep deletes the keys of all namespaces.
#[test]
fn an_archived_job_or_a_key_that_somebody_has_locked_is_not_swept() {
    let before = [&push_key("a", Key::Skip), &claim_and_reject(), &elapse(60)];
    let lock = sql("SELECT FROM lockapi.job_archive WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.job_archive WHERE namespace = $n FOR KEY SHARE");
    for first in [sweep_queues(), lock, share] {
        skipped(&before, &first, &sweep_queues()).run();
    }
    let before = [&push_key("a", Key::Idempotency), &elapse(TWO_DAYS)];
    let lock = sql("SELECT FROM lockapi.push_key WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.push_key WHERE namespace = $n FOR KEY SHARE");
    for first in [sweep_queues(), lock, share] {
        skipped(&before, &first, &sweep_queues()).run();
    }
}

#[test]
fn a_token_that_somebody_checks_in_is_not_swept() {
    let before = [&check_in("door"), &elapse(TWO_DAYS)];
    let lock = sql("SELECT FROM lockapi.fence_mark WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.fence_mark WHERE namespace = $n FOR KEY SHARE");
    for first in [sweep_marks(), lock, share] {
        skipped(&before, &first, &sweep_marks()).run();
    }
}

/// The one session of a backend has ended, and it has a new one, whose mark is held.
#[test]
fn a_note_that_a_backend_writes_anew_is_not_swept() {
    const MADE: &str = "
        INSERT INTO lockapi.lock_session (mark, backend, namespace, owner) VALUES (71, 7, 'n', 'o');
        INSERT INTO lockapi.lock_note (backend, lock_key, pair, waits, since) VALUES (7, 1, false, false, now() - interval '1 h')";
    const ANEW: &str = "
        SELECT pg_advisory_lock(72);
        BEGIN;
        INSERT INTO lockapi.lock_session (mark, backend, namespace, owner) VALUES (72, 7, 'n', 'o');
        UPDATE lockapi.lock_note SET since = now() WHERE backend = 7";
    let connect = || Client::connect(own_url(), NoTls).expect("a connection");
    let mut backend = connect();
    backend.batch_execute(MADE).expect("a note");
    backend.batch_execute(ANEW).expect("written anew");
    let mut sweeper = connect();
    let pid: i32 = sweeper
        .query_one("SELECT pg_backend_pid()", &[])
        .expect("its number")
        .get(0);
    let sweep = std::thread::spawn(move || {
        let swept = sweeper.query_one(SweepNotes::STATEMENT.sql, &[&i64::MAX, &10_i64]);
        swept.expect("swept").get::<_, i64>(0)
    });
    until("it waits for the note", || {
        let waits = "SELECT cardinality(pg_blocking_pids($1)) > 0";
        let waits = backend.query_one(waits, &[&pid]).expect("who waits");
        waits.get::<_, bool>(0).then_some(())
    });
    backend.batch_execute("COMMIT").expect("committed");
    assert_eq!(sweep.join().expect("no panic"), 1, "the old session");
    let left = "SELECT count(*) FROM lockapi.lock_note WHERE backend = 7";
    let left: i64 = backend.query_one(left, &[]).expect("notes").get(0);
    assert_eq!(left, 1);
}

#[test]
fn a_name_that_somebody_notes_is_not_swept() {
    let before = [&note(&["1"]), &elapse(MONTH)];
    let lock = sql("SELECT FROM lockapi.lock_name WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.lock_name WHERE namespace = $n FOR KEY SHARE");
    for first in [note(&["1"]), sweep_names(), lock, share] {
        skipped(&before, &first, &sweep_names()).run();
    }
}

/// A sweep deletes the keys of all namespaces, and the jobs of its own.
#[test]
fn archived_jobs_and_keys_are_swept_when_they_are_old() {
    const LEFT: &str =
        "SELECT count(*) * 10 + (SELECT count(*) FROM lockapi.push_key WHERE namespace = $n)
                          FROM lockapi.job_archive WHERE namespace IN ($n, $n || ' too')";
    let jobs = sql(
        "INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority, namespace, queue, name,
                                          payload, expires_at)
         SELECT pg_catalog.nextval('lockapi.job_seq'), 'completed', now(), now(), 1, 1, 2, r.namespace, 'work', 'job', '1',
                now() + r.minutes * interval '1 min'
           FROM (VALUES ($n, -3), ($n, -1), ($n, -2), ($n, 5), ($n, NULL), ($n || ' too', -3)) AS r (namespace, minutes)",
    );
    let keys = sql(
        "INSERT INTO lockapi.push_key (namespace, queue, key, job, created_at)
         SELECT $n, 'work', r.hours::text, 1, now() - r.hours * interval '1 h'
           FROM (VALUES (25), (23), (50), (49)) AS r (hours)",
    );
    let sweep = step(
        |side| {
            vec![SweepQueues {
                namespace: side.namespace.clone(),
                from: (0, 0),
                most: 2,
            }]
        },
        |_, swept| format!("{} {}", swept.deleted, swept.last.is_some()),
    );
    let steps = [&jobs, &keys, &sweep, &sweep, &sweep, &number(LEFT, 31)];
    let left = format!("{LEFT}: 31");
    assert_eq!(
        on_server(own_url(), &steps)[2..],
        ["4 true", "2 false", "0 false", &left]
    );
}
