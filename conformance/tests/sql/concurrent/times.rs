//! Times that are recorded: those at which the rows were there to be changed.

use std::collections::{BTreeMap, BTreeSet};

use lockapi::queue::ResultValue;
use lockapi::suite::lease::Acquire;
use lockapi::suite::queue::{Ack, AckWithResult};
use postgres::Client;

use super::admin::{check, mark_session};
use super::answers::record;
use super::expiring::expire;
use super::ids::{NEW_NAME, claims_beside};
use super::leases::{abandon, acquire, complete, force_release, release, renew};
use super::permits;
use super::queue::{
    self, ack, cancel_as_operator, claim, claim_and_reject, complete_and_claim, edit, extend, nack,
    pause, pause_name, push, push_with_ttl, redrive, set_name_paused, set_paused, settle, ticket,
};
use super::queue_keys::{Key, push_key};
use super::scans::push_for_later;
use super::schedule::{self, Overlap, fire, run_now, set, switch_off};
use super::sides::{Place, Plans, Side, Step, UNIT, elapse, sql, step, url};
use super::{Running, agree};

/// All times in the rows of a namespace, each with the table and the column; not those that stand for none.
const TIMES: &str = r"
    SELECT x.of || '.' || e.key, e.value
      FROM (SELECT 'lease' AS of, to_jsonb(r) AS it FROM lockapi.lease AS r WHERE r.namespace = $1
             UNION ALL SELECT 'answer', to_jsonb(r) FROM lockapi.answer AS r WHERE r.namespace = $1
             UNION ALL SELECT 'job', to_jsonb(r) FROM lockapi.job AS r WHERE r.namespace = $1
             UNION ALL SELECT 'job_archive', to_jsonb(r) FROM lockapi.job_archive AS r WHERE r.namespace = $1
             UNION ALL SELECT 'job_result', to_jsonb(r) FROM lockapi.job_result AS r
                        WHERE r.id IN (SELECT j.id FROM lockapi.job_archive AS j WHERE j.namespace = $1)
             UNION ALL SELECT 'queue', to_jsonb(r) FROM lockapi.queue AS r WHERE r.namespace = $1
             UNION ALL SELECT 'paused_name', to_jsonb(r) FROM lockapi.paused_name AS r WHERE r.namespace = $1
             UNION ALL SELECT 'task', to_jsonb(r) FROM lockapi.task AS r WHERE r.namespace = $1
             UNION ALL SELECT 'task_run', to_jsonb(r) FROM lockapi.task_run AS r WHERE r.namespace = $1
             UNION ALL SELECT 'id_worker', to_jsonb(r) FROM lockapi.id_worker AS r WHERE r.namespace = $1
             UNION ALL SELECT 'fence_mark', to_jsonb(r) FROM lockapi.fence_mark AS r WHERE r.namespace = $1)
           AS x, jsonb_each_text(x.it) AS e
     WHERE e.value ~ '^\d{4}-\d\d-\d\dT' AND e.value NOT LIKE '1970-01-01T00:00:00%'";

/// How many seconds lie between two times, but for whole minutes: what is recorded is the time, or so many minutes later.
const APART: &str = "SELECT ((extract(epoch FROM $1::text::timestamptz - $2::text::timestamptz)::numeric % 60 + 60) % 60)::float8";

type Times = BTreeSet<(String, String)>;

fn client(side: &mut Side) -> &mut Client {
    match &mut side.place {
        Place::Server(client) => client,
        Place::Model(_) => unreachable!("the model has no tables"),
    }
}

fn times(side: &mut Side) -> Times {
    let namespace = side.namespace.clone();
    let rows = client(side).query(TIMES, &[&namespace]).expect("times");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// What is done in a transaction that has begun before, and has waited for this change of its rows if there is one: the times that it
/// records, but for those in these columns, are later than that.
fn are_later(before: &[&Step], change: Option<&'static str>, step: &Step, but: &[&str]) {
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let [mut observer, mut first, mut second] = [0, 1, 2].map(|session| {
        let mut side = Side::server(url(), Plans::Engine);
        (side.session, side.namespace) = (session, namespace.clone());
        side
    });
    let mut given = BTreeMap::new();
    for step in before {
        observer.run(step, &mut given);
    }
    let known = times(&mut observer);
    second.script("BEGIN");
    let (mut second, began, answer) = if let Some(change) = change {
        first.script("BEGIN");
        first.run(&sql(change), &mut given);
        let running = Running::start(second, step, given.clone());
        running.waits_for(first.pid(), &mut observer);
        let began = now(&mut observer);
        first.script("COMMIT");
        let (second, answer) = running.answer(&mut given);
        (second, began, answer)
    } else {
        let began = now(&mut observer);
        let answer = second.run(step, &mut given);
        (second, began, answer)
    };
    second.script("COMMIT");
    let mut found = times(&mut observer);
    let is_known = |at: &str| known.iter().any(|(_, known)| known == at);
    found.retain(|(column, at)| !is_known(at) && !but.contains(&&**column));
    assert!(!found.is_empty(), "{answer}: nothing is recorded");
    for (column, at) in found {
        let row = client(&mut observer).query_one(APART, &[&at, &began]);
        let apart: f64 = row.expect("two times").get(0);
        assert!(
            apart < 30.0,
            "{answer}: {column} {at}, and it had begun or waited until {began}"
        );
    }
}

fn now(side: &mut Side) -> String {
    let row = client(side).query_one("SELECT pg_catalog.clock_timestamp()::text", &[]);
    row.expect("a time").get(0)
}

const LEASES: &str = "UPDATE lockapi.lease SET data = data WHERE namespace = $n";
const JOBS: &str = "UPDATE lockapi.job SET attempt = attempt WHERE namespace = $n";
const QUEUES: &str = "UPDATE lockapi.queue SET paused = paused WHERE namespace = $n";
const NAMES: &str = "UPDATE lockapi.paused_name SET name = name WHERE namespace = $n";
const TASKS: &str = "UPDATE lockapi.task SET job = job WHERE namespace = $n";
const MARKS: &str = "UPDATE lockapi.fence_mark SET fence = fence WHERE namespace = $n";

#[test]
fn a_lease_is_as_long_as_it_is_wanted_after_a_wait() {
    let before = [&acquire(&[("first", "a", 1)])];
    for step in [
        renew(&[("a", "first")]),
        renew(&[("a", "first"), ("b", "none")]),
        release(&[("a", "first")]),
        release(&[("a", "first"), ("b", "none")]),
        abandon(&[("a", 1)]),
        force_release("a"),
    ] {
        are_later(&before, Some(LEASES), &step, &[]);
    }
    // It waits for nobody who only changes the lease.
    let lock = "SELECT FROM lockapi.lease WHERE namespace = $n FOR UPDATE";
    are_later(&before, Some(lock), &complete("a", "first"), &[]);
}

/// Acquires both leases, with a minimum hold.
fn acquire_both() -> Step {
    let batch = |side: &Side| {
        let of = |key: &str| Acquire {
            namespace: side.namespace.clone(),
            key: side.key(key),
            slot: 0,
            acquisition: fastrand::i64(1..),
            ttl: 2 * UNIT,
            hold: UNIT,
            owner: key.to_owned(),
            data: String::new(),
        };
        vec![of("a"), of("b")]
    };
    step(batch, |_, acquired| format!("{acquired:?}"))
}

#[test]
fn a_lease_is_as_long_as_it_is_wanted_beside_one_that_another_creates() {
    const NEW: &str = "
        INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at,
                                   expires_at, released_at)
        VALUES ($n, $n || ' a', 0, 0, 0, '', '', 'epoch', 'epoch', 'epoch', 'epoch')";
    are_later(&[], Some(NEW), &acquire_both(), &[]);
}

/// Completes the delivery `a`, of which the archive keeps a record.
fn ack_kept() -> Step {
    let batch = |side: &Side| {
        vec![Ack {
            ticket: ticket(side, "a"),
            keep: UNIT,
        }]
    };
    step(batch, |_, done| done.to_string())
}

/// With a result as well.
fn ack_kept_with_result() -> Step {
    let batch = |side: &Side| {
        vec![AckWithResult {
            ack: Ack {
                ticket: ticket(side, "a"),
                keep: UNIT,
            },
            result: ResultValue::new(&7).expect("a result"),
            retention: 2 * UNIT,
        }]
    };
    step(batch, |_, done| done.to_string())
}

#[test]
fn a_completion_and_a_claim_have_the_time_after_a_wait() {
    let before = [&push(&["a"]), &claim(1), &push(&["b"])];
    for step in [
        ack_kept(),
        ack_kept_with_result(),
        complete_and_claim(&["a"], 1),
        queue::exchange(&["a"], 1, false, true),
    ] {
        are_later(&before, Some(JOBS), &step, &[]);
    }
}

#[test]
fn a_number_is_claimed_from_the_time_after_a_wait() {
    for (before, step) in claims_beside() {
        let before: Vec<_> = before.iter().collect();
        are_later(&before, Some(NEW_NAME), &step, &[]);
    }
}

#[test]
fn what_operators_set_has_the_time_after_a_wait() {
    for (change, before, step) in [
        (QUEUES, set_paused(true), set_paused(false)),
        (QUEUES, set_paused(false), set_paused(true)),
        (NAMES, set_name_paused(true), set_name_paused(true)),
    ] {
        are_later(&[&before], Some(change), &step, &[]);
    }
    let before = [&set(Overlap::Held, 0)];
    // A job is due at once, and a time that was set stays.
    let but = ["job.run_at", "task.next_at"];
    for step in [run_now(1), switch_off(1), set(Overlap::Skipped, 7)] {
        are_later(&before, Some(TASKS), &step, &but);
    }
    let before = [&mark_session(), &check(2)];
    are_later(&before, Some(MARKS), &check(3), &[]);
}

#[test]
fn a_transaction_that_has_begun_before_records_later_times() {
    let (none, dead): (&[&Step], _) = (&[], [&push(&["a"]), &claim_and_reject()]);
    let (jobs, run): (&[&Step], &[&Step]) = (&[&push(&["a"])], &[&push(&["a"]), &claim(1)]);
    let ended = [&acquire(&[("one", "a", 1)]), &release(&[("a", "one")])];
    let slots = [&permits::take(2, 2, 1)];
    for (before, step) in [
        (none, push(&["a"])),
        (none, push(&["a", "b"])),
        (none, push_key("a", Key::Skip)),
        (none, push_key("a", Key::Idempotency)),
        (&[&push_key("a", Key::Skip)], push_key("b", Key::Replace)),
        (jobs, claim(1)),
        (jobs, queue::exchange(&[], 1, false, true)),
        (jobs, queue::take(1)),
        (jobs, edit()),
        (jobs, cancel_as_operator()),
        (run, settle(&["a"], nack())),
        (run, settle(&["a"], extend())),
        (run, ack_kept()),
        (run, ack_kept_with_result()),
        (&dead, redrive(&[])),
        (none, acquire(&[("one", "a", 1)])),
        (&ended, acquire(&[("two", "a", 2)])),
        (&ended, acquire(&[("two", "a", 2), ("b", "b", 3)])),
        (&slots, permits::take(2, 2, 1)),
        (none, record(&[("a", 1)])),
        (none, set_paused(true)),
    ] {
        are_later(before, None, &step, &[]);
    }
    // A run has the time at which it was due.
    let but = ["task.next_at", "task_run.fire_at", "job.created_at"];
    let before = [&set(Overlap::Held, 0)];
    are_later(&before, None, &fire(1), &but);
    let before = [&set(Overlap::Held, 0), &fire(2), &claim(1), &ack(&["a"])];
    are_later(&before, None, &schedule::release(), &but);
}

/// What ends while a transaction is open has ended for its next statement.
fn has_ended(before: &[&Step], end: &str, step: &Step) {
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let [mut observer, mut second] = [0, 2].map(|session| {
        let mut side = Side::server(url(), Plans::Engine);
        (side.session, side.namespace) = (session, namespace.clone());
        side
    });
    let (mut given, mut of_model, mut model) = (BTreeMap::new(), BTreeMap::new(), Side::model());
    for step in before {
        observer.run(step, &mut given);
        model.run(step, &mut of_model);
    }
    second.script("BEGIN");
    observer.script(&end.replace("$n", &format!("'{namespace}'")));
    let server = second.run(step, &mut given);
    second.script("COMMIT");
    model.run(&elapse(6), &mut of_model);
    let model = model.run(step, &mut of_model);
    assert_eq!(server, model, "the server and the model: {end}");
}

#[test]
fn what_ends_in_an_open_transaction_has_ended() {
    const DUE: &str =
        "UPDATE lockapi.job SET run_at = pg_catalog.clock_timestamp() WHERE namespace = $n";
    const EXPIRED: &str =
        "UPDATE lockapi.job SET expires_at = pg_catalog.clock_timestamp() WHERE namespace = $n";
    const RESUMED: &str =
        "UPDATE lockapi.queue SET paused_until = pg_catalog.clock_timestamp() WHERE namespace = $n";
    const NAME_RESUMED: &str = "UPDATE lockapi.paused_name SET paused_until = pg_catalog.clock_timestamp() WHERE namespace = $n";
    let (job, later) = (push(&["a"]), push_for_later("a", 5));
    let (mortal, queue, name) = (push_with_ttl(5), pause(true, 5), pause_name(true, 5));
    for (before, end) in [
        (&[&later] as &[&Step], DUE),
        (&[&mortal], EXPIRED),
        (&[&job, &queue], RESUMED),
        (&[&job, &name], NAME_RESUMED),
    ] {
        for step in [
            claim(1),
            queue::exchange(&[], 1, false, true),
            queue::take(1),
            queue::count(),
            queue::count_running(),
            expire(10),
        ] {
            // Until then it has not.
            agree(Plans::Engine, &[before, &[&step]].concat());
            has_ended(before, end, &step);
        }
    }
}
