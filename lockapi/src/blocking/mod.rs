//! The same primitives for programs without an async runtime.
//!
//! Names and semantics are those of the async traits. Each call parks the calling thread until
//! the engine answers; no runtime is needed or started.
//!
//! ```
//! use lockapi::{blocking, memory::Database};
//!
//! let backend = blocking::Backend::connect(Database::new().connect())?;
//! let reports = backend.mutex("reports/daily")?;
//! let guard = reports.lock()?;
//! assert!(reports.try_lock()?.is_none());
//! guard.unlock()?;
//! # Ok::<(), lockapi::Error>(())
//! ```

mod admin;
mod election;
mod id;
mod idempotency;
mod layers;
mod lease;
mod limit;
mod mutex;
mod mutex_set;
mod park;
mod queue;
mod rw_lock;
mod schedule;
mod semaphore;
mod worker;

use std::future::Future;
use std::sync::Arc;

pub use admin::{Inspector, Operator};
pub use election::{Election, Observer};
pub use id::IdGen;
pub use idempotency::{Begun, Execution, Idempotency};
pub use layers::Next;
pub use lease::{Lease, LeaseGuard};
pub use limit::{Permits, RateLimiter, Reservation};
pub use mutex::{Mutex, MutexGuard};
pub use mutex_set::{MutexSet, MutexSetGuard, Striped};
pub(crate) use park::spin;
pub use queue::{Delivery, Queue};
pub use rw_lock::{ReadGuard, RwLock};
pub use schedule::Scheduler;
pub use semaphore::Semaphore;
pub use worker::{BatchJob, Context, Worker, any_error};

use crate::backend::Capabilities;
use crate::error::Result;
use crate::key::Key;
use crate::lease::LeaseOptions;
use crate::limit::Policy;

/// Runs a future of this library to its end on the calling thread.
///
/// Do not call it on a thread of an async runtime: it would block that thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    park::block_on(future)
}

/// A [backend](crate::Backend) for blocking callers.
#[derive(Clone, Debug)]
pub struct Backend(Arc<dyn crate::Backend>);

impl From<Arc<dyn crate::Backend>> for Backend {
    fn from(backend: Arc<dyn crate::Backend>) -> Self {
        Self(backend)
    }
}

impl Backend {
    /// Waits for a backend to connect.
    ///
    /// # Errors
    /// Those of `connecting`.
    pub fn connect(
        connecting: impl Future<Output = Result<Arc<dyn crate::Backend>>>,
    ) -> Result<Self> {
        block_on(connecting).map(Self)
    }

    /// The name of the backend, such as `sqlx`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The namespace of all its names.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    /// Opens a mutex; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::mutex`](crate::Backend#method.mutex).
    pub fn mutex(&self, key: impl Into<Key>) -> Result<Mutex> {
        self.0.mutex(key).map(Mutex::from)
    }

    /// Opens a lock that readers share; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::rw_lock`](crate::Backend#method.rw_lock).
    pub fn rw_lock(&self, key: impl Into<Key>) -> Result<RwLock> {
        self.0.rw_lock(key).map(RwLock::from)
    }

    /// Opens mutexes that are locked together; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::mutex_set`](crate::Backend#method.mutex_set).
    pub fn mutex_set<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> Result<MutexSet> {
        self.0.mutex_set(keys).map(MutexSet::from)
    }

    /// Opens a mutex that is divided into stripes; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::striped`](crate::Backend#method.striped).
    pub fn striped(&self, name: &str, stripes: usize) -> Result<Striped> {
        self.0.striped(name, stripes).map(Striped::from)
    }

    /// Opens a lease; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::lease`](crate::Backend#method.lease).
    pub fn lease(&self, key: impl Into<Key>, options: LeaseOptions) -> Result<Lease> {
        self.0.lease(key, options).map(Lease::from)
    }

    /// Opens a semaphore with this number of permits; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::semaphore`](crate::Backend#method.semaphore).
    pub fn semaphore(
        &self,
        key: impl Into<Key>,
        permits: u32,
        options: LeaseOptions,
    ) -> Result<Semaphore> {
        self.0.semaphore(key, permits, options).map(Semaphore::from)
    }

    /// Opens an election; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::election`](crate::Backend#method.election).
    pub fn election(&self, key: impl Into<Key>, options: LeaseOptions) -> Result<Election> {
        self.0.election(key, options).map(Election::from)
    }

    /// Opens a mutex that is a lease instead of a session lock; nothing is sent. See
    /// [`Backend::leased_mutex`](crate::Backend#method.leased_mutex).
    ///
    /// # Errors
    /// As for [`Backend::leased_mutex`](crate::Backend#method.leased_mutex).
    pub fn leased_mutex(&self, key: impl Into<Key>, options: LeaseOptions) -> Result<Mutex> {
        self.0.leased_mutex(key, options).map(Mutex::from)
    }

    /// Opens a queue with the default [options](crate::queue::QueueOptions); nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::queue`](crate::Backend#method.queue).
    pub fn queue(&self, name: impl Into<String>) -> Result<Queue> {
        self.queue_with(name, crate::queue::QueueOptions::default())
    }

    /// Opens a queue; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::open_queue`](crate::Backend::open_queue).
    pub fn queue_with(
        &self,
        name: impl Into<String>,
        options: crate::queue::QueueOptions,
    ) -> Result<Queue> {
        self.0.open_queue(name.into(), options).map(Queue::from)
    }

    /// Opens a rate limiter; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::rate_limiter`](crate::Backend#method.rate_limiter).
    pub fn rate_limiter(&self, policy: impl Into<Policy>) -> Result<RateLimiter> {
        self.0.rate_limiter(policy).map(RateLimiter::from)
    }

    /// Opens a generator of ids that are unique under `name`; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::id_gen`](crate::Backend#method.id_gen).
    pub fn id_gen(&self, name: impl Into<String>, options: crate::id::IdOptions) -> Result<IdGen> {
        self.0.id_gen(name, options).map(IdGen::from)
    }

    /// Opens requests with idempotency keys; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::idempotency`](crate::Backend#method.idempotency).
    pub fn idempotency(
        &self,
        options: crate::idempotency::IdempotencyOptions,
    ) -> Result<Idempotency> {
        self.0.idempotency(options).map(Idempotency::from)
    }

    /// Opens a scheduler with the default [options](crate::schedule::SchedulerOptions); nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::scheduler`](crate::Backend#method.scheduler).
    pub fn scheduler(&self, name: impl Into<String>) -> Result<Scheduler> {
        self.scheduler_with(name, crate::schedule::SchedulerOptions::default())
    }

    /// Opens a scheduler; nothing is sent.
    ///
    /// # Errors
    /// As for [`Backend::open_scheduler`](crate::Backend::open_scheduler).
    pub fn scheduler_with(
        &self,
        name: impl Into<String>,
        options: crate::schedule::SchedulerOptions,
    ) -> Result<Scheduler> {
        let scheduler = self.0.open_scheduler(name.into(), options);
        scheduler.map(Scheduler::from)
    }

    /// The async backend that it wraps.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn crate::Backend> {
        &self.0
    }

    /// Shows holders and waiters; nothing is sent.
    #[must_use]
    pub fn inspector(&self) -> Inspector {
        self.0.inspector().into()
    }

    /// Takes locks, leases and jobs from other holders; nothing is sent.
    #[must_use]
    pub fn operator(&self) -> Operator {
        self.0.operator().into()
    }

    /// Creates or upgrades the tables; see [`Backend::migrate`](crate::Backend::migrate).
    ///
    /// # Errors
    /// As for the async method.
    pub fn migrate(&self) -> Result<()> {
        block_on(self.0.migrate())
    }

    /// Releases everything that is held, and closes the connections; see
    /// [`Backend::close`](crate::Backend::close).
    ///
    /// # Errors
    /// As for the async method.
    pub fn close(&self) -> Result<()> {
        block_on(self.0.close())
    }
}
