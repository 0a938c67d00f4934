//! What a command runs under.

use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::{Backend, ErrorKind, LeaseGuard, MutexGuard, Result};

use super::{What, Within};

/// Something that is held.
#[derive(Debug)]
pub(super) enum Hold {
    /// A lease, a permit or a leadership: it expires.
    Lease(Box<dyn LeaseGuard>),
    /// A mutex: it lasts as long as the connection.
    Mutex(Box<dyn MutexGuard>),
}

impl Hold {
    /// Acquires it; nothing where others hold it for as long as is waited.
    pub(super) async fn acquire(
        backend: &dyn Backend,
        what: &What,
        options: LeaseOptions,
        within: Within,
    ) -> Result<Option<Self>> {
        let lease = |guard: Option<Box<dyn LeaseGuard>>| guard.map(Self::Lease);
        match what {
            What::Lease(key) => {
                let it = backend.lease(key, options)?;
                let guard = match within {
                    Within::Skip => it.try_acquire().await,
                    Within::Wait => it.acquire().await.map(Some),
                    Within::Time(time) => in_time(it.acquire_timeout(time).await),
                };
                guard.map(lease)
            }
            What::Semaphore { key, permits } => {
                let it = backend.semaphore(key, *permits, options)?;
                let guard = match within {
                    Within::Skip => it.try_acquire().await,
                    Within::Wait => it.acquire().await.map(Some),
                    Within::Time(time) => in_time(it.acquire_timeout(time).await),
                };
                guard.map(lease)
            }
            What::Leader(key) => {
                let it = backend.election(key, options)?;
                let guard = match within {
                    Within::Skip => it.try_campaign().await,
                    Within::Wait => it.campaign().await.map(Some),
                    Within::Time(time) => in_time(it.campaign_timeout(time).await),
                };
                guard.map(lease)
            }
            What::Mutex(key) => {
                let it = backend.mutex(key)?;
                let guard = match within {
                    Within::Skip => it.try_lock().await,
                    Within::Wait => it.lock().await.map(Some),
                    Within::Time(time) => in_time(it.lock_timeout(time).await),
                };
                Ok(guard?.map(Self::Mutex))
            }
        }
    }

    /// The fencing token.
    pub(super) fn token(&self) -> i64 {
        match self {
            Self::Lease(guard) => guard.fence().token(),
            Self::Mutex(guard) => guard.fence().token(),
        }
    }

    /// How long it is surely held; of a mutex, how long the command may go on until it is looked at again.
    pub(super) fn remaining(&self, ttl: Duration) -> Duration {
        match self {
            Self::Lease(guard) => guard.remaining(),
            Self::Mutex(guard) if guard.is_lost() => Duration::ZERO,
            Self::Mutex(_) => ttl,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Lease(guard) => guard.is_lost(),
            Self::Mutex(guard) => guard.is_lost(),
        }
    }

    /// Returns once it is lost; may be dropped and called again.
    pub(super) async fn lost(&self) {
        match self {
            Self::Lease(guard) => guard.lost().await,
            Self::Mutex(guard) => guard.lost().await,
        }
    }

    /// Gives it back.
    pub(super) async fn release(self) -> Result<()> {
        match self {
            Self::Lease(guard) => guard.release().await,
            Self::Mutex(guard) => guard.unlock().await,
        }
    }
}

/// That others hold it is no error.
fn in_time<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(error),
    }
}
