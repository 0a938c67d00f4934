//! Operations in transactions of the user, where others have made types, functions and operators of the
//! same names.

use std::time::Duration;

use lockapi::admin::Priority;
use lockapi::lease::LeaseOptions;
use lockapi::limit::{PermitRequest, Quota};
use lockapi::queue::{Claim, Job, Unique};
use lockapi::table::TableMode;

use crate::context::{Context, MINUTE};
use crate::harness::register;

register! { "names":
    W10 transactions_use_nothing_that_others_made @ DecoyRole [Transactions, Schema];
    V06 transactions_that_are_serializable_by_default @ Empty [Transactions, Schema];
}

const LONG: Duration = Duration::from_secs(20);

async fn transactions_use_nothing_that_others_made(cx: Context) {
    let mut tx = cx.begin().await.unwrap();
    let careless = "SELECT 'here'::pg_catalog.text WHERE 1 = 1";
    let trapped = tx.with_lock_timeout_in(LONG, careless).await;
    assert!(trapped.is_err(), "the decoys are not in the way");
    tx.rollback().await;
    every_operation(&cx).await;
}

async fn transactions_that_are_serializable_by_default(cx: Context) {
    cx.backend().await.migrate().await.unwrap();
    cx.sql(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable',
                                    current_database()); END $$; SELECT 'set'",
    )
    .await;
    every_operation(&cx).await;
}

/// Each operation that has a form for a transaction of the user, through each of its statements.
async fn every_operation(cx: &Context) {
    let backend = cx.backend().await;
    let (queue, mutex) = (cx.queue().await, cx.mutex("door").await);
    let guard = mutex.lock().await.unwrap();
    let options = LeaseOptions::new(MINUTE);
    let lease = backend.lease("job", options).unwrap();
    let lease = lease.acquire().await.unwrap();
    let limiter = backend.rate_limiter(Quota::per_hour(1000)).unwrap();
    let job = |name| Job::new(name, "payload").unwrap();

    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&guard.fence()).await.unwrap();
    tx.check_in(&lease.fence()).await.unwrap();
    let window = cx.mutex("window").await;
    assert!(tx.try_lock_in(&window).await.unwrap());
    let wall = cx.mutex("wall").await;
    tx.lock_in(&wall, LONG).await.unwrap();
    let pushed = tx.push_in(&queue, vec![job("plain"), job("plain")]).await;
    assert_eq!(pushed.unwrap().len(), 2);
    for keyed in [
        job("keyed").unique("u", Unique::Skip),
        job("keyed").unique("u", Unique::Replace),
        job("keyed").idempotency_key("i"),
        job("keyed").idempotency_key("i"),
    ] {
        tx.push_in(&queue, vec![keyed]).await.unwrap();
    }
    for key in ["door", "window", "door"] {
        let verdict = tx.check_all_in(&limiter, &[PermitRequest::new(key)]).await;
        assert!(verdict.unwrap().is_allowed());
    }
    let migration = || ("lockapi", "migration").into();
    let mode = TableMode::AccessShare;
    assert!(tx.lock_table_in(migration(), mode, None).await.unwrap());
    let locked = tx.lock_table_in(migration(), mode, Some(LONG)).await;
    assert!(locked.unwrap());
    let limited = tx
        .with_lock_timeout_in(LONG, "SELECT 'here'::pg_catalog.text")
        .await;
    assert_eq!(limited.unwrap(), "here");
    let prior = tx
        .with_priority_in(
            &backend,
            Priority::new("why"),
            "SELECT 'here'::pg_catalog.text",
        )
        .await;
    assert!(prior.unwrap().signalled.is_empty());
    tx.commit().await;

    let claimed = queue.claim(&Claim::new(1)).await.unwrap();
    let delivery = std::sync::Arc::new(claimed.into_iter().next().expect("a job"));
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&delivery).await.unwrap();
    assert_eq!(tx.take_in(&queue, 2).await.unwrap().len(), 2);
    tx.commit().await;
    assert_eq!(cx.jobs().await.waiting, 1);

    // A reservation that has expired is ended in the transaction.
    let request = PermitRequest::new("reserved");
    let reserved = limiter.reserve(&request, MINUTE).await.unwrap().unwrap();
    cx.elapse(MINUTE * 2).await;
    let mut tx = cx.begin().await.unwrap();
    let verdict = tx.check_all_in(&limiter, &[request]).await.unwrap();
    assert!(verdict.is_allowed());
    tx.commit().await;
    drop(reserved);
    guard.unlock().await.unwrap();
}
