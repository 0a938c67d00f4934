//! What a person with psql sees, and what is swept from it.

use std::time::SystemTime;

use lockapi::Key;
use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "views":
    H06 a_person_reads_the_views [Sql, Sessions];
    H06 everything_has_a_comment [Sql];
    H08 names_and_sessions_are_swept [Sql, Sessions];
    H06 view_of_leases_tells_what_a_minimum_hold_keeps [Sql];
    A04 keys_that_are_numbers_are_the_servers_own [Sql, Transactions];
}

async fn a_person_reads_the_views(cx: Context) {
    let (here, there) = (
        cx.mutex("reports/daily").await,
        cx.mutex("reports/daily").await,
    );
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let began = began.unwrap().as_secs_f64();
    let guard = here.lock().await.unwrap();
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let pushed = queue.push(Job::new("send", "ada").unwrap()).await.unwrap();
    queue.push(Job::new("send", "bob").unwrap()).await.unwrap();
    let claim = Claim::new(1).worker("node-7").lease(MINUTE);
    let delivery = queue.claim(&claim).await.unwrap().remove(0);
    let options = LeaseOptions::new(MINUTE).owner("node-7").data("here");
    let lease = backend
        .lease("job", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { there.lock().await });
    let (namespace, owner) = (cx.namespace(), format!("pid {}", std::process::id()));
    let holder = format!(
        "SELECT concat_ws(' ', owner, fence, since > to_timestamp({began}), since < now() - interval '0.4 s',
                          pid IS NULL, application IS NULL, username IS NULL, mode)
           FROM lockapi.lock_view
          WHERE namespace = '{namespace}' AND name = 'reports/daily' AND held_for > '0.4 s'"
    );
    let seen = format!("{owner} {} t t f f f exclusive", guard.fence().token());
    eventually("the view has the holder", async || {
        cx.sql(&holder).await == [seen.as_str()]
    })
    .await;
    let waiter = format!(
        "SELECT concat_ws(' ', owner, blocker_state IS NULL, statement) FROM lockapi.wait_view
          WHERE namespace = '{namespace}' AND name = 'reports/daily' AND waits_for > '0.4 s'
            AND blocker_pid IN (SELECT pid FROM lockapi.lock_view
                                 WHERE namespace = '{namespace}' AND name = 'reports/daily')"
    );
    let seen = format!("{owner} f ");
    eventually("the view has the waiter", async || {
        let waiters = cx.sql(&waiter).await;
        waiters.len() == 1 && waiters[0].starts_with(&seen) && waiters[0].contains("await_lock")
    })
    .await;
    let running = format!(
        "SELECT concat_ws(' ', id, queue, name, worker, attempt, lease_left > '30 s', runs_for >= '0 s')
           FROM lockapi.running_view WHERE namespace = '{namespace}'"
    );
    let seen = format!("{} work send node-7 1 t t", pushed.id);
    assert_eq!(cx.sql(&running).await, [seen]);
    let leases = format!(
        "SELECT concat_ws(' ', key, slot, owner, data, fence, age < '1 min', expires_in > '30 s')
           FROM lockapi.lease_view WHERE namespace = '{namespace}' AND held"
    );
    let seen = format!("job 0 node-7 here {} t t", lease.fence().token());
    assert_eq!(cx.sql(&leases).await, [seen]);
    delivery.ack().await.unwrap();
    lease.release().await.unwrap();
    assert!(cx.sql(&running).await.is_empty() && cx.sql(&leases).await.is_empty());
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    let gone = async || cx.sql(&holder).await.is_empty() && cx.sql(&waiter).await.is_empty();
    eventually("nobody holds it", gone).await;
}

async fn everything_has_a_comment(cx: Context) {
    let uncommented = cx
        .sql(
            "SELECT c.relname FROM pg_class c
              WHERE c.relnamespace = 'lockapi'::regnamespace AND c.relkind IN ('r', 'v')
                AND obj_description(c.oid, 'pg_class') IS NULL",
        )
        .await;
    assert!(uncommented.is_empty(), "{uncommented:?}");
}

async fn view_of_leases_tells_what_a_minimum_hold_keeps(cx: Context) {
    let options = LeaseOptions::new(MINUTE).renewed_by_hand();
    let options = options.minimum_hold(MINUTE / 2);
    let lease = cx.backend().await.lease("job", options).unwrap();
    let view = format!(
        "SELECT concat_ws(' ', state, held) FROM lockapi.lease_view WHERE namespace = '{}'",
        cx.namespace()
    );
    let guard = lease.acquire().await.unwrap();
    assert_eq!(cx.sql(&view).await, ["held t"]);
    guard.release().await.unwrap();
    assert_eq!(cx.sql(&view).await, ["kept f"]);
    cx.elapse(MINUTE).await;
    assert_eq!(cx.sql(&view).await, ["free f"]);
}

async fn names_and_sessions_are_swept(cx: Context) {
    let namespace = cx.namespace();
    let guard = cx.mutex("here").await.lock().await.unwrap();
    let living = format!(
        "SELECT owner || ' ' || name FROM lockapi.lock_view
          WHERE namespace = '{namespace}' AND name = 'here' AND held_for IS NOT NULL"
    );
    let known = [format!("pid {} here", std::process::id())];
    let noted = async || cx.sql(&living).await == known;
    eventually("it is noted", noted).await;
    // A program that has crashed, a session that another has lost, and names.
    let (dead, month) = (fastrand::i64(..), fastrand::i64(..));
    let left = format!(
        "INSERT INTO lockapi.lock_session (mark, backend, namespace, owner)
         SELECT {dead} # 1, backend, namespace, 'lost' FROM lockapi.lock_session WHERE namespace = '{namespace}';
         INSERT INTO lockapi.lock_session (mark, backend, namespace, owner)
         VALUES ({dead}, {dead}, '{namespace}', 'crashed');
         INSERT INTO lockapi.lock_note (backend, lock_key, pair, waits, since)
         VALUES ({dead}, 1, false, false, now()), ({dead}, 2, false, true, now());
         INSERT INTO lockapi.lock_name (lock_key, namespace, name, seen_at)
         VALUES ({month}, '{namespace}', 'old', now() - interval '31 days'),
                ({month} # 1, '{namespace}', 'young', now() - interval '29 days');
         SELECT 'left'"
    );
    cx.sql(&left).await;
    // Who begins to note sweeps.
    let other = cx.mutex("there").await.lock().await.unwrap();
    let rows = format!(
        "SELECT concat_ws(' ', (SELECT count(*) FROM lockapi.lock_session WHERE mark IN ({dead}, {dead} # 1)),
                               (SELECT count(*) FROM lockapi.lock_note WHERE backend = {dead}),
                               (SELECT string_agg(name, ' ' ORDER BY name) FROM lockapi.lock_name
                                 WHERE namespace = '{namespace}'))"
    );
    eventually("what has ended is swept", async || {
        cx.sql(&rows).await == ["0 0 here there young"]
    })
    .await;
    assert!(noted().await, "who lives is still known");
    other.unlock().await.unwrap();
    guard.unlock().await.unwrap();
}

async fn keys_that_are_numbers_are_the_servers_own(cx: Context) {
    let backend = cx.backend().await;
    let number = fastrand::i64(1..);
    let (class, object) = (fastrand::i32(1..), fastrand::i32(1..));
    let tries = [
        (Key::from(number), format!("{number}::int8")),
        (Key::from((class, object)), format!("{class}, {object}")),
    ];
    for (key, arguments) in tries {
        let mutex = backend.mutex(&key).unwrap();
        let person = format!("SELECT pg_try_advisory_xact_lock({arguments})");
        let guard = mutex.lock().await.unwrap();
        assert_eq!(cx.sql(&person).await, ["f"], "held by the session");
        guard.unlock().await.unwrap();
        assert_eq!(cx.sql(&person).await, ["t"]);
        let mut tx = cx.begin().await.unwrap();
        assert!(tx.try_lock_in(&mutex).await.unwrap());
        assert_eq!(cx.sql(&person).await, ["f"], "held by the transaction");
        tx.commit().await;
        assert_eq!(cx.sql(&person).await, ["t"]);
    }
}
