//! Queues inside the caller's own transaction.

use std::future::Future;

use lockapi::Result;
use lockapi::queue::{Delivery, Job, Pushable, Pushed, Taken, ack_on, push_on, take_on};
use sqlx::PgConnection;

use crate::connector::Borrowed;

/// Pushes jobs in a transaction of the caller.
///
/// ```no_run
/// use lockapi_sqlx::PushIn;
/// use lockapi::queue::Job;
/// # async fn example(pool: sqlx::PgPool, queue: std::sync::Arc<dyn lockapi::Queue>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// sqlx::query("INSERT INTO account (name) VALUES ('ada')").execute(&mut *tx).await?;
/// queue.push_in(&mut tx, &[Job::new("send-welcome", "ada")?]).await?;
/// tx.commit().await?; // both, or neither
/// # Ok(())
/// # }
/// ```
pub trait PushIn {
    /// Pushes jobs in the transaction that is open on `connection`: commit delivers them, rollback
    /// removes them. See [`push_on`].
    ///
    /// # Cancel safety
    /// When dropped, the transaction goes on with or without the jobs.
    ///
    /// # Errors
    /// `Invalid` for what is outside of its limits; those of the connection.
    fn push_in(
        &self,
        connection: &mut PgConnection,
        jobs: &[Job],
    ) -> impl Future<Output = Result<Vec<Pushed>>> + Send;
}

impl<Q: Pushable + Sync + ?Sized> PushIn for Q {
    async fn push_in(&self, connection: &mut PgConnection, jobs: &[Job]) -> Result<Vec<Pushed>> {
        push_on(&mut Borrowed(connection), self.as_queue(), jobs).await
    }
}

/// Takes jobs in the transaction of the work itself.
///
/// ```no_run
/// use lockapi_sqlx::TakeIn;
/// # async fn example(pool: sqlx::PgPool, queue: std::sync::Arc<dyn lockapi::Queue>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// for job in queue.take_in(&mut tx, 10).await? {
///     sqlx::query("INSERT INTO sent (name) VALUES ($1)").bind(job.name()).execute(&mut *tx).await?;
/// }
/// tx.commit().await?; // the work is done and the jobs are gone, or neither
/// # Ok(())
/// # }
/// ```
pub trait TakeIn {
    /// Claims at most `most` jobs and completes them in the transaction that is open on
    /// `connection`. See [`take_on`].
    ///
    /// # Cancel safety
    /// When dropped, the transaction may have the jobs: roll it back.
    ///
    /// # Errors
    /// `Invalid` for more than 1,000 jobs; those of the connection.
    fn take_in(
        &self,
        connection: &mut PgConnection,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Taken>>> + Send;
}

impl<Q: Pushable + Sync + ?Sized> TakeIn for Q {
    async fn take_in(&self, connection: &mut PgConnection, most: usize) -> Result<Vec<Taken>> {
        take_on(&mut Borrowed(connection), self.as_queue(), most).await
    }
}

/// Completes a delivery in the transaction of its effects, which then take effect exactly once.
///
/// ```no_run
/// use lockapi_sqlx::AckIn;
/// # async fn example(pool: sqlx::PgPool, delivery: lockapi::queue::Delivery) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// sqlx::query("UPDATE account SET welcomed = true").execute(&mut *tx).await?;
/// delivery.ack_in(&mut tx).await?; // `Lost` if another has the job by now: roll back
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
pub trait AckIn {
    /// Completes the delivery in the transaction that is open on `connection`. See [`ack_on`].
    ///
    /// In a worker, call it before the handler returns. If the transaction is committed the job is done,
    /// whatever the handler returns; if it is rolled back, a handler that returns `Ok` has failed, and
    /// one that returns `Err` or panics as well. A transaction that is still open is waited for.
    ///
    /// # Cancel safety
    /// When dropped, the transaction goes on with or without the completion.
    ///
    /// # Errors
    /// `Lost` when it is not the latest delivery of its job any more; those of the connection.
    fn ack_in(&self, connection: &mut PgConnection) -> impl Future<Output = Result<()>> + Send;
}

impl AckIn for Delivery {
    async fn ack_in(&self, connection: &mut PgConnection) -> Result<()> {
        ack_on(&mut Borrowed(connection), self).await
    }
}
