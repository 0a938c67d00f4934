//! Transactions on connections of the pools that programs on tokio-postgres have.

use std::future::Future;
use std::sync::Arc;

use bb8_postgres::PostgresConnectionManager;
use lockapi::queue::{Claim, Delivery, Job};
use lockapi::{Backend, BackendOptions, Queue};
use lockapi_conformance::cluster::Cluster;
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
