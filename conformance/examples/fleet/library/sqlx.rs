//! A worker on sqlx: async, on tokio.

use std::sync::Arc;

use async_trait::async_trait;
use lockapi::queue::Delivery;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Row};

use super::{BEGIN, COMPLETE, CONNECTIONS, Library, OVER, PATIENCE, REPORT, URL};
use crate::Result;
use crate::store::{Counts, Run, Store, Stored};
use crate::worker::{Node, tasks};

pub(super) fn work(url: &str, node: Node) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // The parser's error may quote the URL, which may hold a password.
        let options: PgConnectOptions = url
            .parse()
            .map_err(|_| format!("sqlx does not understand {URL}"))?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .connect_lazy_with(options);
        let backend = lockapi_sqlx::connect(&pool).await?;
        let tables = Arc::new(Tables(pool));
        tasks::Worker::new(node, backend, tables).work().await?;
        Ok(())
    })
}

struct Tables(PgPool);

#[async_trait]
impl Store for Tables {
    async fn report(&self, node: &str, counts: Counts) -> Stored<()> {
        sqlx::query(REPORT)
            .bind(node)
            .bind(Library::Sqlx.name())
            .bind(counts.abandoned)
            .bind(counts.refused)
            .execute(&self.0)
            .await?;
        Ok(())
    }

    async fn over(&self) -> Stored<bool> {
        let row = sqlx::query(OVER).fetch_optional(&self.0).await?;
        // Before the start there is no row.
        Ok(row
            .map(|row| row.try_get("over"))
            .transpose()?
            .unwrap_or(false))
    }

    async fn begin(&self, delivery: &Delivery, node: &str) -> Stored<Option<Run>> {
        let row = sqlx::query(BEGIN)
            .bind(delivery.id())
            .bind(node)
            .bind(delivery.ticket().token)
            .fetch_optional(&self.0)
            .await?;
        let Some(row) = row else {
            return Ok(None);
        };
        Ok(Some(Run::new(row.try_get("id")?, row.try_get("work")?)))
    }

    async fn complete(&self, run: &Run, delivery: Option<&Delivery>) -> Stored<()> {
        let mut transaction = self.0.begin().await?;
        if let Some(delivery) = delivery {
            delivery.ack_in(&mut transaction).await?;
        }
        sqlx::query(COMPLETE)
            .bind(run.id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}
