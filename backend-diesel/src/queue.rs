//! Queues inside the caller's own transaction.

use diesel::PgConnection;
use lockapi::Result;
use lockapi::blocking::block_on;
use lockapi::driver::Inline;
use lockapi::queue::{Delivery, Job, Pushable, Pushed, Taken, ack_on, push_on, take_on};

use crate::connector::Borrowed;

/// Pushes jobs in a transaction of the caller. All calls block.
///
/// ```no_run
/// use lockapi_diesel::PushIn;
/// use diesel::prelude::*;
/// use lockapi::queue::Job;
/// # fn example(mut conn: PgConnection, queue: lockapi::blocking::Queue) -> Result<(), Box<dyn std::error::Error>> {
/// conn.transaction(|conn| {
///     diesel::sql_query("INSERT INTO account (name) VALUES ('ada')").execute(conn)?;
///     queue.push_in(conn, &[Job::new("send-welcome", "ada")?])?;
///     Ok::<_, Box<dyn std::error::Error>>(()) // both, or neither
/// })
/// # }
/// ```
pub trait PushIn {
    /// Pushes jobs in the transaction that is open on `connection`: commit delivers them, rollback
    /// removes them. See [`push_on`].
    ///
    /// # Errors
    /// `Invalid` for what is outside of its limits; those of the connection.
    fn push_in(&self, connection: &mut PgConnection, jobs: &[Job]) -> Result<Vec<Pushed>>;
}

impl<Q: Pushable + ?Sized> PushIn for Q {
    fn push_in(&self, connection: &mut PgConnection, jobs: &[Job]) -> Result<Vec<Pushed>> {
        let connection = &mut Inline(Borrowed(connection));
        block_on(push_on(connection, self.as_queue(), jobs))
    }
}

/// Takes jobs in the transaction of the work itself.
///
/// ```no_run
/// use lockapi_diesel::TakeIn;
/// use diesel::prelude::*;
/// # fn example(mut conn: PgConnection, queue: lockapi::blocking::Queue) -> Result<(), Box<dyn std::error::Error>> {
/// conn.transaction(|conn| {
///     for job in queue.take_in(conn, 10)? {
///         diesel::sql_query("INSERT INTO sent (name) VALUES ($1)")
///             .bind::<diesel::sql_types::Text, _>(job.name())
///             .execute(conn)?;
///     }
///     Ok::<_, Box<dyn std::error::Error>>(()) // the work is done and the jobs are gone, or neither
/// })
/// # }
/// ```
pub trait TakeIn {
    /// Claims at most `most` jobs and completes them in the transaction that is open on
    /// `connection`. See [`take_on`].
    ///
    /// # Errors
    /// `Invalid` for more than 1,000 jobs; those of the connection.
    fn take_in(&self, connection: &mut PgConnection, most: usize) -> Result<Vec<Taken>>;
}

impl<Q: Pushable + ?Sized> TakeIn for Q {
    fn take_in(&self, connection: &mut PgConnection, most: usize) -> Result<Vec<Taken>> {
        block_on(take_on(
            &mut Inline(Borrowed(connection)),
            self.as_queue(),
            most,
        ))
    }
}

/// Completes a delivery in the transaction of its effects, which then take effect exactly once.
///
/// ```no_run
/// use lockapi_diesel::AckIn;
/// use diesel::prelude::*;
/// # fn example(mut conn: PgConnection, delivery: lockapi::blocking::Delivery) -> Result<(), Box<dyn std::error::Error>> {
/// conn.transaction(|conn| {
///     diesel::sql_query("UPDATE account SET welcomed = true").execute(conn)?;
///     delivery.ack_in(conn)?; // `Lost` if another has the job by now: rolls back
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })
/// # }
/// ```
pub trait AckIn {
    /// Completes the delivery in the transaction that is open on `connection`. See [`ack_on`].
    ///
    /// In a worker, call it before the handler returns. If the transaction is committed the job is done,
    /// whatever the handler returns; if it is rolled back, a handler that returns `Ok` has failed, and
    /// one that returns `Err` or panics as well. A transaction that is still open is waited for.
    ///
    /// # Errors
    /// `Lost` when it is not the latest delivery of its job any more; those of the connection.
    fn ack_in(&self, connection: &mut PgConnection) -> Result<()>;
}

impl AckIn for Delivery {
    fn ack_in(&self, connection: &mut PgConnection) -> Result<()> {
        block_on(ack_on(&mut Inline(Borrowed(connection)), self))
    }
}
