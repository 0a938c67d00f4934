//! Transactions on sqlx.

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool, Row};

use super::{Inside, LOCK, PATIENCE, SETTLE, Store, StoreError, bounded, not_done, unknown};

pub(super) struct Pool(PgPool);

impl Pool {
    pub(super) fn new(url: &str) -> crate::Result<Self> {
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new()
            .max_connections(3)
            .acquire_timeout(PATIENCE / 2)
            // Behind a pooler the next transaction is in another session.
            .connect_lazy_with(options.statement_cache_capacity(0));
        Ok(Self(pool))
    }
}

#[async_trait]
impl Store for Pool {
    async fn transact(&self, inside: Inside, sql: String) -> Result<i64, StoreError> {
        bounded(async {
            let mut tx = self.0.begin().await.map_err(not_done)?;
            sqlx::raw_sql(SETTLE)
                .execute(&mut *tx)
                .await
                .map_err(not_done)?;
            match inside {
                Inside::Nothing => {}
                Inside::CheckIn(fence) => fence.check_in(&mut *tx).await?,
                Inside::Lock(mutex) => mutex.lock_in(&mut *tx, LOCK).await?,
                Inside::Push(queue, job) => drop(queue.push_in(&mut *tx, &[job]).await?),
                Inside::Ack(delivery) => delivery.ack_in(&mut *tx).await?,
            }
            let row = sqlx::raw_sql(AssertSqlSafe(sql))
                .fetch_one(&mut *tx)
                .await
                .map_err(not_done)?;
            let number = row.try_get(0).map_err(not_done)?;
            tx.commit().await.map_err(unknown)?;
            Ok(number)
        })
        .await
    }
}
