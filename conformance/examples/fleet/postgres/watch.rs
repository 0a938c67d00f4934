//! The tables, for the program that watches the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockapi::Scheduler;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};

use crate::Result;
use crate::audit::Audit;
use crate::plan::{self, Task};
use crate::store::{Counts, Stored};
use crate::watch::{Busy, Snapshot, Watch};

/// Makes the tables anew and answers the version of the server.
pub(super) async fn prepare(pool: &PgPool) -> Result<String> {
    // Never drops what is somebody else's.
    let comment =
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'fleet'";
    if let Some(row) = sqlx::query(comment).fetch_optional(pool).await? {
        let comment: Option<String> = row.try_get(0)?;
        if !comment.is_some_and(|text| text.contains("lockapi demo")) {
            return Err("the database has a schema \"fleet\" that is not the demo's".into());
        }
        sqlx::raw_sql("SET client_min_messages = warning; DROP SCHEMA fleet CASCADE")
            .execute(pool)
            .await?;
    }
    sqlx::raw_sql(include_str!("schema.sql"))
        .execute(pool)
        .await?;
    let version: String = sqlx::query("SHOW server_version")
        .fetch_one(pool)
        .await?
        .try_get(0)?;
    let number = version.split_whitespace().next().unwrap_or_default();
    Ok(number.to_owned())
}

pub(super) struct Tables(PgPool, Arc<dyn Scheduler>);

impl Tables {
    pub(super) fn new(pool: PgPool, scheduler: Arc<dyn Scheduler>) -> Self {
        Self(pool, scheduler)
    }
}

#[async_trait]
impl Watch for Tables {
    async fn nodes(&self) -> Stored<usize> {
        let row = sqlx::query("SELECT count(*) FROM fleet.node")
            .fetch_one(&self.0)
            .await?;
        let count: i64 = row.try_get(0)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    async fn open(&self, tasks: &[Task], time: Duration) -> Stored<()> {
        sqlx::query("INSERT INTO fleet.span VALUES (clock_timestamp(), 'infinity')")
            .execute(&self.0)
            .await?;
        plan::set(&*self.1, tasks).await?;
        let mut transaction = self.0.begin().await?;
        for task in tasks {
            sqlx::query(include_str!("add_task.sql"))
                .bind(&task.name)
                .bind(millis(task.every))
                .bind(millis(task.work))
                .bind(task.enabled)
                .execute(&mut *transaction)
                .await?;
        }
        sqlx::query("UPDATE fleet.span SET starts_at = now, ends_at = now + $1 * interval '1 ms' FROM clock_timestamp() AS now")
            .bind(millis(time))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn disturbed(&self, node: &str, how: &str, at: Instant) -> Stored<()> {
        sqlx::query(
            "INSERT INTO fleet.disturbance SELECT clock_timestamp() - $3 * interval '1 us', $1, $2",
        )
        .bind(node)
        .bind(how)
        .bind(i64::try_from(at.elapsed().as_micros()).unwrap_or(i64::MAX))
        .execute(&self.0)
        .await?;
        Ok(())
    }

    async fn busy(&self) -> Stored<Vec<Busy>> {
        let rows = sqlx::query(include_str!("busy.sql"))
            .fetch_all(&self.0)
            .await?;
        let busy = |row: PgRow| {
            Ok(Busy {
                node: row.try_get("node")?,
                tasks: row.try_get("tasks")?,
            })
        };
        rows.into_iter().map(busy).collect()
    }

    async fn snapshot(&self) -> Stored<Snapshot> {
        let row = sqlx::query(include_str!("snapshot.sql"))
            .fetch_optional(&self.0)
            .await?;
        let Some(row) = row else {
            return Ok(Snapshot::default());
        };
        let elapsed: f64 = row.try_get("elapsed")?;
        Ok(Snapshot {
            elapsed: Duration::from_secs_f64(elapsed.max(0.0)),
            due: row.try_get("due")?,
            completed: row.try_get("completed")?,
            failed: row.try_get("failed")?,
            counts: counts(&row)?,
            busy: self.busy().await?,
        })
    }

    async fn audit(&self) -> Stored<Audit> {
        let rows = sqlx::query(include_str!("completed_by.sql"))
            .fetch_all(&self.0)
            .await?;
        let completed_by = rows
            .into_iter()
            .map(|row| Ok((row.try_get("library")?, row.try_get("completed")?)))
            .collect::<Stored<_>>()?;
        let row = sqlx::query(include_str!("audit.sql"))
            .fetch_one(&self.0)
            .await?;
        Ok(Audit {
            tasks: row.try_get("tasks")?,
            disabled: row.try_get("disabled")?,
            due: row.try_get("due")?,
            once: row.try_get("once")?,
            twice: row.try_get("twice")?,
            missed: row.try_get("missed")?,
            uncalled: row.try_get("uncalled")?,
            recovered: row.try_get("recovered")?,
            recovery_median: row.try_get("median")?,
            recovery_longest: row.try_get("longest")?,
            completed_by,
            passed_on: row.try_get("passed_on")?,
            counts: counts(&row)?,
        })
    }
}

fn counts(row: &PgRow) -> Stored<Counts> {
    Ok(Counts {
        abandoned: row.try_get("abandoned")?,
        refused: row.try_get("refused")?,
    })
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
