//! What operators do to the locks, leases and jobs of others.

use lockapi::admin::Filter;
use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};
use lockapi::{ErrorKind, Key, rights};

use crate::context::{Context, MINUTE};
use crate::fixture::{Locks, Place};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "operator":
    H05 forced_release_is_told_by_the_next_renewal;
    H05 forced_release_is_fenced [Transactions];
    H05 cancelled_job_is_lost_to_its_worker;
    H05 reason_and_key_are_checked;
    H05 other_acts_are_recorded;
    H05 ended_session_loses_the_mutex [Sessions];
    H05 role_without_the_right_is_told_so @ PoorRole [Sessions, Transactions, Sql];
    H07 capability_tells_of_sessions;
}

async fn forced_release_is_told_by_the_next_renewal(cx: Context) {
    let options = LeaseOptions::new(MINUTE)
        .owner("node-7")
        .minimum_hold(MINUTE);
    let backend = cx.backend().await;
    let lease = backend.lease("job", options).unwrap();
    let stale = lease.acquire().await.unwrap();
    let there = cx.backend().await;
    let owner = there
        .operator()
        .release_lease("job".into(), "node-7 is stuck")
        .await;
    assert_eq!(owner.unwrap(), ["node-7"]);
    let nobody = there.operator().release_lease("job".into(), "again").await;
    assert!(nobody.unwrap().is_empty());
    let next = there.lease("job", LeaseOptions::new(MINUTE)).unwrap();
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
    assert_eq!(audit[0].target, "job of node-7");
    assert_eq!(audit[0].namespace, cx.namespace());
    assert!(!audit[0].by_user.is_empty());
}

async fn forced_release_is_fenced(cx: Context) {
    let backend = cx.backend().await;
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
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
    assert_eq!(audit[0].target, format!("{} (send) of work", pushed.id));
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

async fn other_acts_are_recorded(cx: Context) {
    let backend = cx.backend().await;
    let operator = backend.operator();
    operator
        .record("pause queue", "work", "an outage")
        .await
        .unwrap();
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert_eq!(audit.len(), 1, "{audit:?}");
    let act = (&*audit[0].action, &*audit[0].target, &*audit[0].reason);
    assert_eq!(act, ("pause queue", "work", "an outage"));
    let (long, longer) = ("a".repeat(64), "t".repeat(4001));
    for (action, target, reason) in [
        ("", "work", "why"),
        (&*long, "work", "why"),
        ("pause queue", "", "why"),
        ("pause queue", &*longer, "why"),
        ("pause queue", "work", ""),
    ] {
        let error = operator.record(action, target, reason).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

async fn ended_session_loses_the_mutex(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let guard = here.mutex("door").unwrap().lock().await.unwrap();
    let bystander = there.mutex("window").unwrap().lock().await.unwrap();
    let (door, lock) = (there.mutex("door").unwrap(), cx.lock_id("door"));
    let waiting = tokio::spawn(async move { door.lock().await });
    let both = Locks {
        granted: 1,
        waiting: 1,
    };
    let waits = async || cx.locks(lock).await == both;
    eventually("another waits at the server", waits).await;
    let operator = there.operator();
    let ended = operator
        .terminate_holder("door".into(), "it is stuck")
        .await
        .unwrap();
    assert_eq!(ended.len(), 1, "{ended:?}");
    soon("told of the loss", guard.lost()).await;
    let next = soon("the next holder", waiting).await.unwrap().unwrap();
    assert!(next.fence().token() > guard.fence().token());
    next.unlock().await.expect("who waits is left alone");
    bystander.unlock().await.expect("who holds another is, too");
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
    let other = cx.at(Place::Shared).await;
    let key = Key::from(fastrand::i64(..));
    let guard = other.mutex(&key).await.lock().await.unwrap();
    let worker = cx.backend().await.operator();
    let error = worker.release_lease(key.clone(), "why").await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Unsupported,
        "a worker is no operator"
    );
    let mut tx = cx.begin().await.unwrap();
    let name = tx.query("SELECT current_user::text").await;
    tx.commit().await;
    let grants = rights::grants(rights::Role::Operator, &name).unwrap();
    cx.sql(&format!(
        "SELECT pg_advisory_xact_lock(-728, 1); {grants} SELECT 'granted'"
    ))
    .await;
    let operator = cx.backend().await.operator();
    let ending = operator.terminate_holder(key.clone(), "it is stuck");
    let error = ending.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("pg_signal_backend"), "{error}");
    guard.unlock().await.expect("it was left alone");
    let audit = cx.backend().await.inspector().audit(&Filter::new()).await;
    assert!(audit.unwrap().is_empty(), "nothing was done");
}

async fn capability_tells_of_sessions(cx: Context) {
    let backend = cx.backend().await;
    let ending = backend
        .operator()
        .terminate_holder("door".into(), "why")
        .await;
    let priority = lockapi::admin::Priority::new("why");
    let scope = backend.operator().prioritize(0, priority);
    if backend.capabilities().sessions {
        assert!(ending.unwrap().is_empty());
        assert!(scope.unwrap().finish().await.signalled.is_empty());
    } else {
        assert_eq!(ending.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(scope.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
