//! Operations in transactions of SeaORM.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Delivery, Job};
use lockapi::table::with_lock_timeout_in;
use lockapi::versioned::{BoxError, Conflict, Retry, check_before_commit};
use lockapi::{Backend, BackendOptions, ErrorKind};
use lockapi_conformance::cluster::Cluster;
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, TransactionError,
    TransactionTrait,
};

/// A pool of SeaORM, and a backend of the test's own on it.
async fn connect() -> (DatabaseConnection, Arc<dyn Backend>) {
    let url = Cluster::shared().expect("a server").url();
    let mut options = ConnectOptions::new(url);
    options.max_connections(2).sqlx_logging(false);
    let db = Database::connect(options).await.expect("connected");
    let options = BackendOptions::default().namespace(format!("n{:016x}", fastrand::u64(..)));
    let pool = db.get_postgres_connection_pool();
    let backend = lockapi_sqlx::connect_with(pool, options).await;
    let backend = backend.expect("a backend");
    backend.migrate().await.expect("migrated");
    (db, backend)
}

fn job(name: &str) -> Job {
    Job::new(name, "ada").expect("a job")
}

#[tokio::test]
async fn a_push_is_there_if_its_transaction_commits() {
    let (db, backend) = connect().await;
    let queue = backend.queue("mails").expect("a queue");
    for (name, commits) in [("rolled back", false), ("committed", true)] {
        let mut tx = db.begin().await.expect("begun");
        queue.push_in(&mut tx, &[job(name)]).await.expect("pushed");
        if commits {
            tx.commit().await.expect("committed");
        } else {
            tx.rollback().await.expect("rolled back");
        }
    }
    for (name, fails) in [("of a closure that fails", true), ("of a closure", false)] {
        let queue = Arc::clone(&queue);
        let done = db.transaction::<_, (), BoxError>(|mut tx| {
            Box::pin(async move {
                queue.push_in(&mut tx, &[job(name)]).await?;
                if fails { Err("no".into()) } else { Ok(()) }
            })
        });
        match done.await {
            Ok(()) => assert!(!fails),
            Err(TransactionError::Transaction(error)) => assert_eq!(error.to_string(), "no"),
            Err(TransactionError::Connection(error)) => panic!("{error}"),
        }
    }
    let claimed = queue.claim(&Claim::new(10)).await.expect("claimed");
    let names: Vec<_> = claimed.iter().map(Delivery::name).collect();
    assert_eq!(names, ["committed", "of a closure"]);
}

#[tokio::test]
async fn a_delivery_is_acknowledged_if_its_transaction_commits() {
    let (db, backend) = connect().await;
    let queue = backend.queue("mails").expect("a queue");
    queue.push(job("welcome")).await.expect("pushed");
    let delivery = queue
        .claim(&Claim::new(1))
        .await
        .expect("claimed")
        .remove(0);
    let mut tx = db.begin().await.expect("begun");
    delivery.ack_in(&mut tx).await.expect("acknowledged");
    tx.rollback().await.expect("rolled back");
    let mut tx = db.begin().await.expect("begun");
    delivery
        .ack_in(&mut tx)
        .await
        .expect("acknowledged once more");
    tx.commit().await.expect("committed");
    let mut tx = db.begin().await.expect("begun");
    let error = delivery.ack_in(&mut tx).await.expect_err("it is done");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn a_stale_holder_does_not_pass() {
    let (db, backend) = connect().await;
    let options = LeaseOptions::new(Duration::from_secs(30));
    let lease = backend.lease("report", options).expect("a lease");
    let guard = lease.acquire().await.expect("granted");
    for commits in [false, true] {
        let mut tx = db.begin().await.expect("begun");
        let checked = guard.fence().check_in(&mut tx).await;
        checked.expect("it holds the lease");
        if commits {
            tx.commit().await.expect("committed");
        } else {
            tx.rollback().await.expect("rolled back");
        }
    }
    let stale = guard.fence();
    guard.release().await.expect("released");
    let _next = lease.acquire().await.expect("granted");
    let mut tx = db.begin().await.expect("begun");
    let error = stale.check_in(&mut tx).await.expect_err("another holds it");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn a_lock_lasts_as_long_as_its_transaction() {
    const SHORT: Duration = Duration::from_millis(50);
    let (db, backend) = connect().await;
    let mutex = backend.mutex("stock").expect("a mutex");
    for commits in [false, true] {
        let mut holder = db.begin().await.expect("begun");
        mutex.lock_in(&mut holder, SHORT).await.expect("locked");
        let mut other = db.begin().await.expect("begun");
        let taken = mutex.try_lock_in(&mut other).await;
        assert!(!taken.expect("an answer"));
        let error = mutex.lock_in(&mut other, SHORT).await;
        // The code of the server goes through the errors of SeaORM.
        let error = error.expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        other.rollback().await.expect("rolled back");
        if commits {
            holder.commit().await.expect("committed");
        } else {
            holder.rollback().await.expect("rolled back");
        }
        let guard = mutex.try_lock().await.expect("an answer");
        guard.expect("free").unlock().await.expect("unlocked");
    }
}

/// SeaORM reports a commit as done although a statement has failed.
#[tokio::test]
async fn a_transaction_is_checked_before_its_commit() {
    let (db, _backend) = connect().await;
    for (statements, passes) in [
        (&["SELECT 1"][..], true),
        (&["SELECT 1 / 0"], false),
        (
            &["SAVEPOINT before", "SELECT 1 / 0", "ROLLBACK TO before"],
            true,
        ),
        (&["ROLLBACK"], false),
    ] {
        let mut tx = db.begin().await.expect("begun");
        for statement in statements {
            let failed = tx.execute_unprepared(statement).await.is_err();
            assert_eq!(failed, statement.contains('/'), "{statement}");
        }
        match check_before_commit(&mut tx).await {
            Ok(()) => assert!(passes, "{statements:?}"),
            Err(error) => {
                assert!(!passes, "{statements:?}: {error}");
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            }
        }
        tx.commit().await.expect("it says so");
    }
}

/// The counterpart of `transact`.
#[tokio::test]
async fn closures_are_repeated_after_a_conflict() {
    let (db, backend) = connect().await;
    let queue = backend.queue("mails").expect("a queue");
    let tries = AtomicUsize::new(0);
    let retry = Retry::default();
    let work = retry.run(&["row"], lockapi_sqlx::is_conflict, async |_| {
        let mut tx = db.begin().await?;
        with_lock_timeout_in(&mut tx, Duration::from_secs(1), async |tx| {
            queue.push_in(tx, &[job("mail")]).await?;
            let raise = match tries.fetch_add(1, Ordering::SeqCst) {
                0 => return Err(Conflict { current: Some(1) }.into()),
                1 => "DO 'BEGIN RAISE SQLSTATE ''40001''; END'",
                _ => "SELECT 1",
            };
            tx.execute_unprepared(raise).await?;
            Ok::<_, BoxError>(())
        })
        .await?;
        check_before_commit(&mut tx).await?;
        Ok(tx.commit().await?)
    });
    work.await.expect("done in the end");
    assert_eq!(tries.into_inner(), 3);
    let claimed = queue.claim(&Claim::new(10)).await.expect("claimed");
    assert_eq!(claimed.len(), 1, "what was not committed is not there");
}

#[tokio::test]
async fn conflicts_are_known_in_errors_of_sea_orm() {
    let (db, _backend) = connect().await;
    for (code, repeated) in [("40001", true), ("40P01", true), ("23505", false)] {
        let raise = format!("DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$");
        let error = db.execute_unprepared(&raise).await.expect_err("raised");
        assert_eq!(lockapi_sqlx::is_conflict(&error), repeated, "{error}");
        let of_closure = db.transaction::<_, (), sea_orm::DbErr>(|tx| {
            Box::pin(async move { tx.execute_unprepared(&raise).await.map(drop) })
        });
        let error = of_closure.await.expect_err("raised");
        assert_eq!(lockapi_sqlx::is_conflict(&error), repeated, "{error}");
        let raise = format!("DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$");
        let of_closure = db.transaction::<_, (), BoxError>(|tx| {
            Box::pin(async move { Ok(tx.execute_unprepared(&raise).await.map(drop)?) })
        });
        let error = of_closure.await.expect_err("raised");
        assert_eq!(lockapi_sqlx::is_conflict(&error), repeated, "{error}");
    }
}
