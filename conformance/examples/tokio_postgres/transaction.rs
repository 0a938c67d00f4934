//! Operations inside the caller's own transaction.

use std::future::Future;
use std::time::Duration;

use lockapi::limit::{Metered, Verdict, Want, check_all_on};
use lockapi::queue::{Delivery, Job, Pushable, Pushed, Taken, ack_on, push_on, take_on};
use lockapi::{Fence, Mutex, Result};
use tokio_postgres::GenericClient;

use crate::backend::Borrowed;

/// Locks of a [`Mutex`] that belong to a transaction of the caller, on a
/// [`Transaction`](tokio_postgres::Transaction) or a client that has one open.
///
/// There is no guard: commit or rollback releases the lock.
pub trait InTransaction {
    /// Tries the lock for the transaction, without waiting.
    ///
    /// # Cancel safety
    /// When dropped, the lock may be held until the transaction ends.
    ///
    /// # Errors
    /// Those of the connection.
    fn try_lock_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Waits for the lock for the transaction, which goes on as before after `TimedOut`.
    ///
    /// # Cancel safety
    /// When dropped, the transaction has an open savepoint: roll it back.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`, `Invalid` for a timeout of zero or more than 24 days, and those
    /// of the connection.
    fn lock_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        timeout: Duration,
    ) -> impl Future<Output = Result<()>> + Send;
}

impl<M: Mutex + ?Sized> InTransaction for M {
    async fn try_lock_in(&self, tx: &mut (impl GenericClient + Send + Sync)) -> Result<bool> {
        lockapi::mutex::try_lock_on(&mut Borrowed(tx), self).await
    }

    async fn lock_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        timeout: Duration,
    ) -> Result<()> {
        lockapi::mutex::lock_on(&mut Borrowed(tx), self, timeout).await
    }
}

/// Rejects a stale holder inside the transaction of its write.
pub trait CheckIn {
    /// Fails unless the holder still holds; see [`Fence::check_in_on`] for what is guaranteed
    /// until the transaction ends.
    ///
    /// # Cancel safety
    /// When dropped, the transaction goes on with or without the check.
    ///
    /// # Errors
    /// `Lost` when the holder no longer holds, and those of the connection.
    fn check_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
    ) -> impl Future<Output = Result<()>> + Send;
}

impl CheckIn for Fence {
    async fn check_in(&self, tx: &mut (impl GenericClient + Send + Sync)) -> Result<()> {
        self.check_in_on(&mut Borrowed(tx)).await
    }
}

/// Pushes jobs in a transaction of the caller: commit delivers them, rollback removes them.
pub trait PushIn {
    /// Pushes jobs; see [`push_on`].
    ///
    /// # Errors
    /// `Invalid` for what is outside of its limits, and those of the connection.
    fn push_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        jobs: &[Job],
    ) -> impl Future<Output = Result<Vec<Pushed>>> + Send;
}

impl<Q: Pushable + Sync + ?Sized> PushIn for Q {
    async fn push_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        jobs: &[Job],
    ) -> Result<Vec<Pushed>> {
        push_on(&mut Borrowed(tx), self.as_queue(), jobs).await
    }
}

/// Completes a delivery in the transaction of its effects.
pub trait AckIn {
    /// Completes it; see [`ack_on`].
    ///
    /// # Errors
    /// `Lost` when it is not the latest delivery of its job any more, and those of the connection.
    fn ack_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
    ) -> impl Future<Output = Result<()>> + Send;
}

impl AckIn for Delivery {
    async fn ack_in(&self, tx: &mut (impl GenericClient + Send + Sync)) -> Result<()> {
        ack_on(&mut Borrowed(tx), self).await
    }
}

/// Takes jobs in the transaction of the work itself.
pub trait TakeIn {
    /// Claims and completes jobs; see [`take_on`].
    ///
    /// # Errors
    /// `Invalid` for more than 1,000 jobs, and those of the connection.
    fn take_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        most: usize,
    ) -> impl Future<Output = Result<Vec<Taken>>> + Send;
}

impl<Q: Pushable + Sync + ?Sized> TakeIn for Q {
    async fn take_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        most: usize,
    ) -> Result<Vec<Taken>> {
        take_on(&mut Borrowed(tx), self.as_queue(), most).await
    }
}

/// Limits inside a transaction of the caller.
pub trait LimitIn {
    /// Takes of limits for the transaction, of all or of none; it is rolled back with it.
    ///
    /// # Cancel safety
    /// When dropped, permits may be taken unless the transaction is rolled back.
    ///
    /// # Errors
    /// `Invalid` for bad wants, and those of the connection.
    fn check_all_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        wants: &[Want],
    ) -> impl Future<Output = Result<Verdict>> + Send;
}

impl<L: Metered + Sync + ?Sized> LimitIn for L {
    async fn check_all_in(
        &self,
        tx: &mut (impl GenericClient + Send + Sync),
        wants: &[Want],
    ) -> Result<Verdict> {
        check_all_on(&mut Borrowed(tx), self, wants).await
    }
}
