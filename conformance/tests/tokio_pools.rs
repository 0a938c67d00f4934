//! Transactions on connections of the pools that programs on tokio-postgres and diesel-async have.

use std::future::Future;
use std::sync::Arc;

use bb8_postgres::PostgresConnectionManager;
use diesel_async::pooled_connection::{self, AsyncDieselConnectionManager};
use diesel_async::{AsyncConnection, AsyncPgConnection};
use lockapi::queue::{Claim, Delivery, Job};
use lockapi::versioned::BoxError;
use lockapi::{Backend, BackendOptions, Queue};
use lockapi_conformance::cluster::Cluster;
use lockapi_diesel_async as _;
use tokio_postgres::{Config, NoTls};

fn config() -> Config {
    let url = Cluster::shared().expect("a server").url();
    url.parse().expect("a URL")
}

/// A queue of the test's own, and its backend.
async fn queue() -> (Arc<dyn Backend>, Arc<dyn Queue>) {
    let options = BackendOptions::default().namespace(format!("n{:016x}", fastrand::u64(..)));
    let connected = lockapi_tokio_postgres::connect_config_with(config(), NoTls, options);
    let backend = connected.await.expect("a backend");
    backend.migrate().await.expect("migrated");
    let queue = backend.queue("mails");
    (backend, queue.expect("a queue"))
}

fn job(name: &str) -> Job {
    Job::new(name, "ada").expect("a job")
}

/// The names of the jobs that are there.
async fn names(queue: &Arc<dyn Queue>) -> Vec<String> {
    let claimed = queue.claim(&Claim::new(10)).await.expect("claimed");
    let names = claimed.iter().map(Delivery::name);
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// What is pushed in a transaction is there if it commits.
async fn commit_decides<F: Future<Output = ()>>(push: impl FnOnce(Arc<dyn Queue>) -> F) {
    let (_backend, queue) = queue().await;
    push(Arc::clone(&queue)).await;
    assert_eq!(names(&queue).await, ["committed", "on the client"]);
}

#[tokio::test]
async fn connections_of_deadpool_take_part() {
    let manager = deadpool_postgres::Manager::new(config(), NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(1);
    let pool = pool.build().expect("a pool");
    commit_decides(|queue| async move {
        let mut client = pool.get().await.expect("a connection");
        let mut tx = client.transaction().await.expect("begun");
        let pushed = queue.push_in(&mut tx, &[job("committed")]).await;
        pushed.expect("pushed");
        tx.commit().await.expect("committed");
        let mut tx = client.transaction().await.expect("begun");
        let pushed = queue.push_in(&mut *tx, &[job("rolled back")]).await;
        pushed.expect("pushed");
        drop(tx);
        let pushed = queue.push_in(&mut client, &[job("on the client")]).await;
        pushed.expect("pushed");
    })
    .await;
}

#[tokio::test]
async fn connections_of_bb8_take_part() {
    let manager = PostgresConnectionManager::new(config(), NoTls);
    let pool = bb8::Pool::builder().max_size(1).build(manager);
    let pool = pool.await.expect("a pool");
    commit_decides(|queue| async move {
        let mut client = pool.get().await.expect("a connection");
        let mut tx = client.transaction().await.expect("begun");
        let pushed = queue.push_in(&mut tx, &[job("committed")]).await;
        pushed.expect("pushed");
        tx.commit().await.expect("committed");
        let mut tx = client.transaction().await.expect("begun");
        let pushed = queue.push_in(&mut tx, &[job("rolled back")]).await;
        pushed.expect("pushed");
        drop(tx);
        let pushed = queue.push_in(&mut client, &[job("on the client")]).await;
        pushed.expect("pushed");
    })
    .await;
}

/// Those of diesel-async, whose transactions are closures.
fn manager() -> AsyncDieselConnectionManager<AsyncPgConnection> {
    AsyncDieselConnectionManager::new(Cluster::shared().expect("a server").url())
}

/// Pushes in a transaction that commits, and in one that does not.
async fn push_twice(connection: &mut AsyncPgConnection, queue: &dyn Queue) {
    let committed = connection.transaction::<_, BoxError, _>(async |conn| {
        queue.push_in(conn, &[job("committed")]).await?;
        Ok(())
    });
    committed.await.expect("committed");
    let rolled_back = connection.transaction::<(), BoxError, _>(async |conn| {
        queue.push_in(conn, &[job("rolled back")]).await?;
        Err("no".into())
    });
    let error = rolled_back.await.expect_err("rolled back");
    assert_eq!(error.to_string(), "no");
}

#[tokio::test]
async fn connections_of_diesel_async_and_deadpool_take_part() {
    let pool = pooled_connection::deadpool::Pool::builder(manager()).max_size(1);
    let pool = pool.build().expect("a pool");
    commit_decides(|queue| async move {
        let mut connection = pool.get().await.expect("a connection");
        push_twice(&mut connection, &*queue).await;
        let pushed = queue
            .push_in(&mut connection, &[job("on the client")])
            .await;
        pushed.expect("pushed");
    })
    .await;
}

#[tokio::test]
async fn connections_of_diesel_async_and_bb8_take_part() {
    let pool = pooled_connection::bb8::Pool::builder().max_size(1);
    let pool = pool.build(manager()).await.expect("a pool");
    commit_decides(|queue| async move {
        let mut connection = pool.get().await.expect("a connection");
        push_twice(&mut connection, &*queue).await;
        let pushed = queue
            .push_in(&mut connection, &[job("on the client")])
            .await;
        pushed.expect("pushed");
    })
    .await;
}
