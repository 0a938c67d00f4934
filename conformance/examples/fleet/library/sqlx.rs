//! A worker on sqlx: async, on tokio.

use std::sync::Arc;

use async_trait::async_trait;
use backend_sqlx::CheckIn;
use lockapi::Fence;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Row};

use super::{BEGIN, COMPLETE, CONNECTIONS, Library, PATIENCE, PICK, REPORT, URL};
use crate::Result;
use crate::store::{Counts, Pick, Run, Store, Stored};
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
        let backend = backend_sqlx::connect(&pool).await?;
        let tables = Arc::new(Tables(pool));
        tasks::Worker::new(node, backend, tables).work().await;
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
            .bind(counts.contended)
            .bind(counts.abandoned)
            .bind(counts.refused)
            .execute(&self.0)
            .await?;
        Ok(())
    }

    async fn pick(&self, order: &str, limit: i64) -> Stored<Pick> {
        let row = sqlx::query(PICK)
            .bind(order)
            .bind(limit)
            .fetch_optional(&self.0)
            .await?;
        // Before the start there is no row.
        let Some(row) = row else {
            return Ok(Pick::default());
        };
        Ok(Pick {
            due: row.try_get("due")?,
            over: row.try_get("over")?,
        })
    }

    async fn begin(&self, task: &str, node: &str, fence: Option<&Fence>) -> Stored<Option<Run>> {
        let mut transaction = self.0.begin().await?;
        if let Some(fence) = fence {
            fence.check_in(&mut transaction).await?;
        }
        let row = sqlx::query(BEGIN)
            .bind(task)
            .bind(node)
            .bind(fence.map(Fence::token))
            .fetch_optional(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let Some(row) = row else {
            return Ok(None);
        };
        Ok(Some(Run::new(row.try_get("id")?, row.try_get("work")?)))
    }

    async fn complete(&self, run: &Run, fence: Option<&Fence>) -> Stored<()> {
        let mut transaction = self.0.begin().await?;
        if let Some(fence) = fence {
            fence.check_in(&mut transaction).await?;
        }
        sqlx::query(COMPLETE)
            .bind(run.id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}
