//! Diesel, for the suite.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use backend_diesel::{AckIn, CheckIn, InTransaction, LimitIn, PushIn, TakeIn};
use conformance::{BlockingTransaction, Driver, Meter, Name, Steps, Transaction};
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::sql_types::Text;
use diesel::{Connection, PgConnection, QueryableByName, RunQueryDsl};
use lockapi::engine::Options;
use lockapi::limit::{Verdict, Want};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::{Backend, Fence, Queue, Result};

pub(crate) struct Diesel;

#[async_trait]
impl Driver for Diesel {
    fn name(&self) -> &'static str {
        "diesel"
    }

    async fn connect(&self, url: &str, options: Options) -> Result<Arc<dyn Backend>> {
        backend_diesel::connect_url_with(url, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: Options,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        let manager = || ConnectionManager::<PgConnection>::new(url);
        let full = used_up(manager());
        let backend = backend_diesel::connect_manager(manager(), options).await?;
        Ok(Some((backend, Box::new(full))))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let url = url.to_owned();
        Steps::begin(move |steps| {
            let mut connection = PgConnection::establish(&url).expect("a connection");
            let ended = connection.transaction(|connection| {
                if steps.run(&mut Begun(connection)) {
                    Ok(())
                } else {
                    Err(diesel::result::Error::RollbackTransaction)
                }
            });
            let rolled_back = Err(diesel::result::Error::RollbackTransaction);
            assert!(ended == Ok(()) || ended == rolled_back, "{ended:?}");
        })
    }
}

/// A pool whose only connection is in use until the answer is dropped.
fn used_up(manager: ConnectionManager<PgConnection>) -> Sender<()> {
    let (full, end) = mpsc::channel();
    let (sender, ready) = mpsc::channel();
    thread::spawn(move || {
        let pool = Pool::builder().max_size(1).build(manager);
        let only = pool.expect("a pool").get().expect("its connection");
        sender.send(()).expect("somebody waits");
        end.recv().expect_err("nothing is sent");
        drop(only);
    });
    ready.recv().expect("a full pool");
    full
}

struct Begun<'a>(&'a mut PgConnection);

#[derive(QueryableByName)]
struct Answer {
    #[diesel(sql_type = Text)]
    answer: String,
}

impl BlockingTransaction for Begun<'_> {
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
        let named = format!("SELECT q.answer::text FROM ({sql}) AS q (answer)");
        let rows = diesel::sql_query(named).load::<Answer>(self.0);
        rows.expect("a row").swap_remove(0).answer
    }
}
