//! The blocking `postgres` crate, for the suite.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use backend_sync::{AckIn, CheckIn, InTransaction, LimitIn, PushIn, TakeIn};
use conformance::{BlockingTransaction, Driver, Meter, Name, Steps, Transaction};
use lockapi::engine::Options;
use lockapi::limit::{Verdict, Want};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::{Backend, Fence, Queue, Result};
use r2d2_postgres::PostgresConnectionManager;
use r2d2_postgres::postgres::{self, Client, Config, NoTls};

pub(crate) struct Sync;

#[async_trait]
impl Driver for Sync {
    fn name(&self) -> &'static str {
        "sync"
    }

    async fn connect(&self, url: &str, options: Options) -> Result<Arc<dyn Backend>> {
        backend_sync::connect_url_with(url, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: Options,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + std::marker::Sync>)>> {
        let config: Config = url.parse().expect("a URL");
        let manager = || PostgresConnectionManager::new(config.clone(), NoTls);
        let full = used_up(manager());
        let backend = backend_sync::connect_manager(manager(), options).await?;
        Ok(Some((backend, Box::new(full))))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let url = url.to_owned();
        Steps::begin(move |steps| {
            let mut client = Client::connect(&url, NoTls).expect("a connection");
            let mut transaction = client.transaction().expect("a transaction");
            if steps.run(&mut Begun(&mut transaction)) {
                transaction.commit().expect("committed");
            } else {
                transaction.rollback().expect("rolled back");
            }
        })
    }
}

/// A pool whose only connection is in use, on a thread of its own, until the answer is dropped.
fn used_up(manager: PostgresConnectionManager<NoTls>) -> Sender<()> {
    let (full, end) = mpsc::channel();
    let (sender, ready) = mpsc::channel();
    thread::spawn(move || {
        let pool = r2d2::Pool::builder().max_size(1).build(manager);
        let only = pool.expect("a pool").get().expect("its connection");
        sender.send(()).expect("somebody waits");
        end.recv().expect_err("nothing is sent");
        drop(only);
    });
    ready.recv().expect("a full pool");
    full
}

struct Begun<'a, 'c>(&'a mut postgres::Transaction<'c>);

impl BlockingTransaction for Begun<'_, '_> {
    fn try_lock_in(&mut self, mutex: &Name) -> Result<bool> {
        mutex.try_lock_in(self.0)
    }

    fn lock_in(&mut self, mutex: &Name, timeout: Duration) -> Result<()> {
        mutex.lock_in(self.0, timeout)
    }

    fn check_in(&mut self, fence: &Fence) -> Result<()> {
        fence.check_in(self.0)
    }

    fn push_in(&mut self, queue: &dyn Queue, jobs: &[Job]) -> Result<Vec<Pushed>> {
        queue.push_in(self.0, jobs)
    }

    fn take_in(&mut self, queue: &dyn Queue, most: usize) -> Result<Vec<Taken>> {
        queue.take_in(self.0, most)
    }

    fn ack_in(&mut self, delivery: &Delivery) -> Result<()> {
        delivery.ack_in(self.0)
    }

    fn check_all_in(&mut self, limiter: &Meter, wants: &[Want]) -> Result<Verdict> {
        limiter.check_all_in(self.0, wants)
    }

    fn query(&mut self, sql: &'static str) -> String {
        self.0.query_one(sql, &[]).expect("a row").get(0)
    }
}
