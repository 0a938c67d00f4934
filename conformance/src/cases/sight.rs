//! Who holds and who waits for what, and what operators do about it.

use std::time::Duration;

use lockapi::lease::Terms;
use lockapi::queue::{Claim, Job, QueueExt};
use lockapi::sight::{Filter, LockMode, MAX_ENTRIES};
use lockapi::{BackendExt, ErrorKind, Key};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "sight":
    I01 held_mutex_is_seen_with_its_name;
    I01 held_for_a_moment_writes_nothing;
    I01 numbers_of_persons_are_seen_as_numbers;
    I01 held_lease_is_seen;
    I01 session_of_a_mutex_is_known [Sessions];
    I02 waiter_is_seen_with_who_is_in_its_way;
    I02 waits_within_a_process_are_seen;
    I02 waiting_statement_and_blocker_are_known [Sessions];
    I03 running_job_is_seen_with_its_worker;
    I04 filter_and_limit_choose;
    I05 forced_release_is_told_by_the_next_renewal;
    I05 forced_release_is_fenced [Transactions];
    I05 cancelled_job_is_lost_to_its_worker;
    I05 reason_and_key_are_checked;
    I05 ended_session_loses_the_mutex [Sessions];
    I05 role_without_the_right_is_told_so @ PoorRole [Sessions];
    I06 a_person_reads_the_views [Sql, Sessions];
    I07 capability_tells_of_sessions;
    A04 keys_that_are_numbers_are_the_servers_own [Sql, Transactions];
}

async fn held_mutex_is_seen_with_its_name(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let inspector = there.inspector();
    let guard = here.mutex("reports/daily").unwrap().lock().await.unwrap();
    // By its key at once, by name and with its age once that is noted.
    let held = inspector
        .locks(&Filter::key("reports/daily"))
        .await
        .unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0].name, "reports/daily");
    let filter = Filter::new();
    eventually("it is noted", async || {
        let held = inspector.locks(&filter).await.unwrap();
        held.len() == 1 && held[0].held_for.is_some()
    })
    .await;
    let held = inspector.locks(&filter).await.unwrap().remove(0);
    assert_eq!(held.name, "reports/daily");
    assert_eq!(held.namespace.as_deref(), Some(cx.namespace()));
    assert_eq!(held.mode, LockMode::Exclusive);
    assert_eq!(held.fence, Some(guard.fence().token()));
    let process = format!("pid {}", std::process::id());
    assert_eq!(held.owner, Some(process));
    let age = held.held_for.unwrap();
    assert!(age >= Duration::from_millis(400) && age < MINUTE, "{age:?}");
    guard.unlock().await.unwrap();
    assert!(inspector.locks(&filter).await.unwrap().is_empty());
}

async fn held_for_a_moment_writes_nothing(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    for n in 0..20 {
        let mutex = backend.mutex(format!("brief {n}")).unwrap();
        mutex.lock().await.unwrap().unlock().await.unwrap();
    }
    let long = backend.mutex("long").unwrap().lock().await.unwrap();
    eventually("what is held long is noted", async || {
        let held = inspector.locks(&Filter::new()).await.unwrap();
        held.iter().any(|one| one.name == "long")
    })
    .await;
    // A lock that was noted would have a name in everybody's eyes.
    let other = cx.backend().await;
    let brief = other.mutex("brief 7").unwrap().lock().await.unwrap();
    let held = inspector.locks(&Filter::new()).await.unwrap();
    assert!(held.iter().all(|one| one.name == "long"), "{held:?}");
    brief.unlock().await.unwrap();
    long.unlock().await.unwrap();
}

async fn numbers_of_persons_are_seen_as_numbers(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let number = fastrand::i64(..);
    let (class, object) = (fastrand::i32(..), fastrand::i32(..));
    for key in [Key::from(number), Key::from((class, object))] {
        let guard = backend.mutex(&key).unwrap().lock().await.unwrap();
        let held = inspector.locks(&Filter::key(&key)).await.unwrap();
        assert_eq!(held.len(), 1, "{held:?}");
        assert_eq!(held[0].name, key.to_string());
        assert_eq!(held[0].namespace, None);
        let all = Filter::new().everywhere().limit(MAX_ENTRIES);
        let all = inspector.locks(&all).await.unwrap();
        assert!(all.iter().any(|one| one.name == key.to_string()));
        guard.unlock().await.unwrap();
    }
}

async fn held_lease_is_seen(cx: Context) {
    let terms = Terms::new(MINUTE)
        .owner("node-7")
        .data("here")
        .renewed_by_hand();
    let backend = cx.backend().await;
    let guard = backend
        .lease("job", terms)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let inspector = cx.backend().await.inspector();
    cx.elapse(MINUTE / 4).await;
    let held = inspector.leases(&Filter::new()).await.unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!((&*held[0].owner, &*held[0].data), ("node-7", "here"));
    assert_eq!(
        (&*held[0].key, &*held[0].namespace),
        ("job", cx.namespace())
    );
    assert_eq!(held[0].fence, guard.fence().token());
    assert!(held[0].held_for >= MINUTE / 4 && held[0].remaining < MINUTE.mul_f64(0.76));
    assert!(
        inspector
            .leases(&Filter::key("other"))
            .await
            .unwrap()
            .is_empty()
    );
    guard.release().await.unwrap();
    assert!(inspector.leases(&Filter::new()).await.unwrap().is_empty());
}

async fn session_of_a_mutex_is_known(cx: Context) {
    let backend = cx.backend().await;
    let guard = backend.mutex("door").unwrap().lock().await.unwrap();
    let held = backend
        .inspector()
        .locks(&Filter::key("door"))
        .await
        .unwrap();
    assert!(held[0].pid.is_some());
    assert!(held[0].application.is_some() && held[0].username.is_some());
    guard.unlock().await.unwrap();
}

async fn waiter_is_seen_with_who_is_in_its_way(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let guard = here.lock().await.unwrap();
    let waiting = tokio::spawn(async move { there.lock().await });
    eventually("the wait is noted", async || {
        let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
        waiters.iter().any(|one| one.owner.is_some())
    })
    .await;
    let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
    assert_eq!(waiters.len(), 1, "{waiters:?}");
    assert_eq!(waiters[0].name, "door");
    if backend.capabilities().sessions {
        let held = inspector.locks(&Filter::key("door")).await.unwrap();
        let blockers: Vec<_> = waiters[0].blockers.iter().map(|one| one.pid).collect();
        assert_eq!(Some(blockers[0]), held[0].pid);
    }
    let first = waiters[0].waits_for;
    eventually("it goes on waiting", async || {
        let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
        // Beyond the time that a statement waits for.
        let longer = waiters.first().and_then(|one| one.waits_for);
        longer > first && longer > Some(Duration::from_millis(1500))
    })
    .await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    eventually("nobody waits", async || {
        inspector
            .waiters(&Filter::key("door"))
            .await
            .unwrap()
            .is_empty()
    })
    .await;
    next.unlock().await.unwrap();
}

async fn waits_within_a_process_are_seen(cx: Context) {
    let mutex = cx.mutex("door").await;
    let inspector = cx.backend().await.inspector();
    let guard = mutex.lock().await.unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually("the wait is noted", async || {
        let waiters = inspector.waiters(&Filter::new()).await.unwrap();
        waiters.len() == 1 && waiters[0].name == "door" && waiters[0].owner.is_some()
    })
    .await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

async fn waiting_statement_and_blocker_are_known(cx: Context) {
    let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
    let inspector = cx.backend().await.inspector();
    let guard = here.lock().await.unwrap();
    let waiting = tokio::spawn(async move { there.lock().await });
    eventually("it waits at the server", async || {
        let waiters = inspector.waiters(&Filter::key("door")).await.unwrap();
        let known = |one: &lockapi::sight::Waiter| {
            let statement = one.statement.as_deref().unwrap_or_default();
            one.pid.is_some()
                && statement.contains("await_lock")
                && one.blockers.len() == 1
                && one.blockers[0].application.is_some()
        };
        waiters.iter().any(known)
    })
    .await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

async fn running_job_is_seen_with_its_worker(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let inspector = backend.inspector();
    let pushed = queue.push(Job::new("send", "ada").unwrap()).await.unwrap();
    queue.push(Job::new("send", "bob").unwrap()).await.unwrap();
    assert!(inspector.running(&Filter::new()).await.unwrap().is_empty());
    let claim = Claim::new(1).worker("node-7").lease(MINUTE);
    let mut claimed = queue.claim(&claim).await.unwrap();
    let delivery = claimed.remove(0);
    let running = inspector.running(&Filter::queue("work")).await.unwrap();
    assert_eq!(running.len(), 1, "{running:?}");
    let job = &running[0];
    assert_eq!(
        (job.id, &*job.worker, &*job.name),
        (pushed.id, "node-7", "send")
    );
    assert_eq!(
        (&*job.queue, &*job.namespace, job.attempt),
        ("work", cx.namespace(), 1)
    );
    assert!(job.lease_left > MINUTE / 2 && job.lease_left <= MINUTE);
    assert!(
        inspector
            .running(&Filter::queue("other"))
            .await
            .unwrap()
            .is_empty()
    );
    delivery.ack().await.unwrap();
    assert!(inspector.running(&Filter::new()).await.unwrap().is_empty());
}

async fn filter_and_limit_choose(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let mut guards = Vec::new();
    for n in 0..5 {
        let lease = backend
            .lease(format!("job {n}"), Terms::new(MINUTE))
            .unwrap();
        guards.push(lease.acquire().await.unwrap());
    }
    let keys = |held: Vec<lockapi::sight::HeldLease>| -> Vec<String> {
        held.into_iter().map(|one| one.key).collect()
    };
    let two = inspector.leases(&Filter::new().limit(2)).await.unwrap();
    assert_eq!(keys(two), ["job 0", "job 1"]);
    let one = inspector.leases(&Filter::key("job 3")).await.unwrap();
    assert_eq!(keys(one), ["job 3"]);
    let elsewhere = cx.elsewhere().await.backend().await.inspector();
    assert!(elsewhere.leases(&Filter::new()).await.unwrap().is_empty());
    let all = Filter::new().everywhere().limit(MAX_ENTRIES);
    let all = elsewhere.leases(&all).await.unwrap();
    assert!(
        all.iter()
            .filter(|one| one.namespace == cx.namespace())
            .count()
            == 5
    );
    for limit in [0, MAX_ENTRIES + 1] {
        let error = inspector
            .locks(&Filter::new().limit(limit))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = inspector.locks(&Filter::key("")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for guard in guards {
        guard.release().await.unwrap();
    }
}

async fn forced_release_is_told_by_the_next_renewal(cx: Context) {
    let terms = Terms::new(MINUTE).owner("node-7").minimum_hold(MINUTE);
    let backend = cx.backend().await;
    let lease = backend.lease("job", terms).unwrap();
    let stale = lease.acquire().await.unwrap();
    let there = cx.backend().await;
    let owner = there
        .operator()
        .release_lease("job".into(), "node-7 is stuck")
        .await;
    assert_eq!(owner.unwrap(), ["node-7"]);
    let nobody = there.operator().release_lease("job".into(), "again").await;
    assert!(nobody.unwrap().is_empty());
    let next = there.lease("job", Terms::new(MINUTE)).unwrap();
    let next = next.try_acquire().await.unwrap().expect("free at once");
    assert!(next.fence().token() > stale.fence().token());
    assert_eq!(stale.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    soon("told of the loss", stale.lost()).await;
    assert_eq!(cx.holder("job").await.fence, next.fence().token());
    next.release().await.unwrap();
    let audit = there.inspector().audit(&Filter::new()).await.unwrap();
    assert_eq!(audit.len(), 1, "{audit:?}");
    assert_eq!(
        (&*audit[0].action, &*audit[0].reason),
        ("release lease", "node-7 is stuck")
    );
    assert!(audit[0].target.contains("job") && audit[0].target.contains("node-7"));
    assert!(!audit[0].by_user.is_empty());
}

async fn forced_release_is_fenced(cx: Context) {
    let backend = cx.backend().await;
    let lease = backend.lease("job", Terms::new(MINUTE)).unwrap();
    let stale = lease.acquire().await.unwrap();
    let operator = backend.operator();
    operator
        .release_lease("job".into(), "it is stuck")
        .await
        .unwrap();
    let mut tx = cx.begin().await.unwrap();
    let error = tx.check_in(&stale.fence()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    tx.rollback().await;
    assert_eq!(stale.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

async fn cancelled_job_is_lost_to_its_worker(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let pushed = queue.push(Job::new("send", "ada").unwrap()).await.unwrap();
    let delivery = queue.claim(&Claim::new(1)).await.unwrap().remove(0);
    let operator = cx.backend().await.operator();
    assert!(
        !operator
            .cancel_job("other", pushed.id, "a mistake")
            .await
            .unwrap()
    );
    assert!(
        operator
            .cancel_job("work", pushed.id, "a mistake")
            .await
            .unwrap()
    );
    assert!(
        !operator
            .cancel_job("work", pushed.id, "a mistake")
            .await
            .unwrap()
    );
    assert_eq!(delivery.ack().await.unwrap_err().kind(), ErrorKind::Lost);
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert_eq!(audit.len(), 1, "{audit:?}");
    assert_eq!(
        (&*audit[0].action, &*audit[0].reason),
        ("cancel job", "a mistake")
    );
}

async fn reason_and_key_are_checked(cx: Context) {
    let operator = cx.backend().await.operator();
    let long = "r".repeat(1001);
    for reason in ["", "r\0", &long] {
        let error = operator
            .release_lease("job".into(), reason)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let error = operator.cancel_job("work", 1, reason).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = operator.release_lease("".into(), "why").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

async fn ended_session_loses_the_mutex(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let guard = here.mutex("door").unwrap().lock().await.unwrap();
    let operator = there.operator();
    let ended = operator
        .terminate_holder("door".into(), "it is stuck")
        .await
        .unwrap();
    assert_eq!(ended.len(), 1, "{ended:?}");
    soon("told of the loss", guard.lost()).await;
    let next = soon("the next holder", there.mutex("door").unwrap().lock()).await;
    assert!(next.as_ref().unwrap().fence().token() > guard.fence().token());
    next.unwrap().unlock().await.unwrap();
    let none = operator
        .terminate_holder("door".into(), "again")
        .await
        .unwrap();
    assert!(none.is_empty(), "nobody holds it: {none:?}");
    let audit = there.inspector().audit(&Filter::new()).await.unwrap();
    assert_eq!(audit.len(), 1, "{audit:?}");
    assert_eq!(
        (&*audit[0].action, &*audit[0].reason),
        ("terminate session", "it is stuck")
    );
    assert!(audit[0].target.contains("door"));
}

async fn role_without_the_right_is_told_so(cx: Context) {
    let other = cx.at(crate::fixture::Place::Shared).await;
    let key = Key::from(fastrand::i64(..));
    let guard = other.mutex(&key).await.lock().await.unwrap();
    let operator = cx.backend().await.operator();
    let ending = operator.terminate_holder(key.clone(), "it is stuck");
    let error = ending.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("pg_signal_backend"), "{error}");
    guard.unlock().await.expect("it was left alone");
    let audit = cx.backend().await.inspector().audit(&Filter::new()).await;
    assert!(audit.unwrap().is_empty(), "nothing was done");
}

async fn a_person_reads_the_views(cx: Context) {
    let (here, there) = (
        cx.mutex("reports/daily").await,
        cx.mutex("reports/daily").await,
    );
    let guard = here.lock().await.unwrap();
    let waiting = tokio::spawn(async move { there.lock().await });
    let namespace = cx.namespace();
    let holder = format!(
        "SELECT owner || ' since ' || held_for FROM lockapi.lock_view
          WHERE namespace = '{namespace}' AND name = 'reports/daily' AND held_for > '0.4 s'
            AND pid IS NOT NULL AND application IS NOT NULL AND username IS NOT NULL"
    );
    eventually("the view has the holder", async || {
        cx.sql(&holder).await.len() == 1
    })
    .await;
    let waiter = format!(
        "SELECT statement FROM lockapi.wait_view
          WHERE namespace = '{namespace}' AND name = 'reports/daily' AND waits_for > '0.4 s'
            AND blocker_pid IN (SELECT pid FROM lockapi.lock_view WHERE name = 'reports/daily')"
    );
    eventually("the view has the waiter", async || {
        let waiters = cx.sql(&waiter).await;
        waiters
            .iter()
            .any(|statement| statement.contains("await_lock"))
    })
    .await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    let uncommented = cx
        .sql(
            "SELECT c.relname FROM pg_class c
              WHERE c.relnamespace = 'lockapi'::regnamespace AND c.relkind IN ('r', 'v')
                AND obj_description(c.oid, 'pg_class') IS NULL",
        )
        .await;
    assert!(uncommented.is_empty(), "{uncommented:?}");
}

async fn capability_tells_of_sessions(cx: Context) {
    let backend = cx.backend().await;
    let ending = backend
        .operator()
        .terminate_holder("door".into(), "why")
        .await;
    let priority = lockapi::sight::Priority::new("why");
    let scope = backend.operator().prioritize(0, priority);
    if backend.capabilities().sessions {
        assert!(ending.unwrap().is_empty());
        assert!(scope.unwrap().finish().await.hits.is_empty());
    } else {
        assert_eq!(ending.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(scope.unwrap_err().kind(), ErrorKind::Unsupported);
    }
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
        assert!(tx.try_lock_in(&*mutex).await.unwrap());
        assert_eq!(cx.sql(&person).await, ["f"], "held by the transaction");
        tx.commit().await;
        assert_eq!(cx.sql(&person).await, ["t"]);
    }
}
