//! sqlx, for the suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backend_sqlx::{AckIn, CheckIn, InTransaction, LimitIn, PushIn, TakeIn};
use conformance::{Driver, Transaction};
use lockapi::engine::Options;
use lockapi::limit::{Verdict, Want};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::{Backend, Fence, Mutex, Queue, RateLimiter, Result};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres as Database};

pub(crate) struct Sqlx;

#[async_trait]
impl Driver for Sqlx {
    fn name(&self) -> &'static str {
        "sqlx"
    }

    async fn connect(&self, url: &str, options: Options) -> Result<Arc<dyn Backend>> {
        backend_sqlx::connect_url_with(url, options).await
    }

    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: Options,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(1))
            .connect(url)
            .await
            .expect("a pool");
        let only = pool.acquire().await.expect("its connection");
        let backend = backend_sqlx::connect_with(&pool, options).await?;
        Ok(Some((backend, Box::new((pool, only)))))
    }

    async fn begin(&self, url: &str) -> Box<dyn Transaction> {
        let pool = PgPool::connect(url).await.expect("a pool");
        let transaction = pool.begin().await.expect("a transaction");
        Box::new(Begun(transaction))
    }
}

struct Begun(sqlx::Transaction<'static, Database>);

#[async_trait]
impl Transaction for Begun {
    async fn try_lock_in(&mut self, mutex: &dyn Mutex) -> Result<bool> {
        mutex.try_lock_in(&mut self.0).await
    }

    async fn lock_in(&mut self, mutex: &dyn Mutex, timeout: Duration) -> Result<()> {
        mutex.lock_in(&mut self.0, timeout).await
    }

    async fn check_in(&mut self, fence: &Fence) -> Result<()> {
        fence.check_in(&mut self.0).await
    }

    async fn push_in(&mut self, queue: &Arc<dyn Queue>, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        queue.push_in(&mut self.0, &jobs).await
    }

    async fn take_in(&mut self, queue: &Arc<dyn Queue>, most: usize) -> Result<Vec<Taken>> {
        queue.take_in(&mut self.0, most).await
    }

    async fn ack_in(&mut self, delivery: &Arc<Delivery>) -> Result<()> {
        delivery.ack_in(&mut self.0).await
    }

    async fn check_all_in(&mut self, limiter: &dyn RateLimiter, wants: &[Want]) -> Result<Verdict> {
        limiter.check_all_in(&mut self.0, wants).await
    }

    async fn query(&mut self, sql: &'static str) -> String {
        sqlx::query_scalar(sql)
            .fetch_one(&mut *self.0)
            .await
            .expect("a row")
    }

    async fn commit(self: Box<Self>) {
        self.0.commit().await.expect("committed");
    }

    async fn rollback(self: Box<Self>) {
        self.0.rollback().await.expect("rolled back");
    }
}
