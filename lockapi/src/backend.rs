//! The entry point: opens primitives on one database.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::admin::{Inspector, Operator};
use crate::election::Election;
use crate::error::Result;
use crate::id::{self, IdGen};
use crate::idempotency::{Answers, Idempotency, IdempotencyOptions};
use crate::key::Key;
use crate::lease::{Lease, LeaseOptions};
use crate::limit::{Policy, RateLimiter};
use crate::mutex::{Mutex, MutexSet, RwLock, Striped};
use crate::queue::{self, Queue};
use crate::schedule::{self, Scheduler};
use crate::semaphore::Semaphore;

/// The optional features of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Session locks: mutexes and reader-writer locks. The server's sessions are not shared with other
    /// clients.
    pub session_locks: bool,
    /// Notifications from other processes, which end a wait at once; without them it ends at the next
    /// poll.
    pub notifications: bool,
    /// Sessions of a server, which can be listed with their applications and statements, and
    /// terminated.
    pub sessions: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self = Self {
        session_locks: true,
        notifications: true,
        sessions: true,
    };
}

/// A database, or its in-memory replacement, on which programs coordinate.
///
/// Keep it in an `Arc<dyn Backend>`; [`Backend`](crate::Backend) has the methods that programs call. Its
/// connections are closed when the backend and everything opened from it are dropped.
///
/// # Implementing it
/// This crate alone implements it, and the traits of what it opens: for another driver implement
/// [`Connector`](crate::driver::Connector) and call [`start`](crate::engine::start). A wrapper that
/// forwards calls can implement them, but guards, fences, decisions and deliveries can be made nowhere
/// else, and any version may add methods.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// The name of the backend, such as `sqlx`.
    fn name(&self) -> &'static str;

    /// The namespace of all its names.
    fn namespace(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Opens a mutex; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key, `Unsupported` where session locks are not available.
    fn open_mutex(&self, key: Key) -> Result<Arc<dyn Mutex>>;

    /// Opens a lock that readers share; nothing is sent.
    ///
    /// # Errors
    /// As for [`open_mutex`](Self::open_mutex).
    fn open_rw_lock(&self, key: Key) -> Result<Arc<dyn RwLock>>;

    /// Opens a lease; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key or options that are outside their limits.
    fn open_lease(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Lease>>;

    /// Opens a semaphore; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key, a number of permits that is not 1 to
    /// [`MAX_PERMITS`](crate::semaphore::MAX_PERMITS), or options that are outside their limits.
    fn open_semaphore(
        &self,
        key: Key,
        permits: u32,
        options: LeaseOptions,
    ) -> Result<Arc<dyn Semaphore>>;

    /// Opens an election; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key or options that are outside their limits.
    fn open_election(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Election>>;

    /// Opens a mutex that is a lease; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key or options that are outside their limits.
    fn open_leased_mutex(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Mutex>>;

    /// Opens a queue; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes, or options that are outside their limits.
    fn open_queue(&self, name: String, options: queue::QueueOptions) -> Result<Arc<dyn Queue>>;
    /// Opens a rate limiter; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a quota that is outside its limits.
    fn open_rate_limiter(&self, policy: Policy) -> Result<Arc<dyn RateLimiter>>;

    /// Opens an id generator; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes, or options that are outside their limits.
    fn open_id_gen(&self, name: String, options: id::IdOptions) -> Result<Arc<dyn IdGen>>;

    /// Opens a scheduler; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes, or options that are outside their limits.
    fn open_scheduler(
        &self,
        name: String,
        options: schedule::SchedulerOptions,
    ) -> Result<Arc<dyn Scheduler>>;

    /// Opens the stored answers to requests with idempotency keys; nothing is sent.
    fn open_answers(&self) -> Arc<dyn Answers>;

    /// Shows holders and waiters; nothing is sent.
    fn inspector(&self) -> Arc<dyn Inspector>;

    /// Takes locks, leases and jobs from other holders; nothing is sent.
    fn operator(&self) -> Arc<dyn Operator>;

    /// Releases everything that is held through the backend, sends pending requests, and closes its
    /// connections: the last call of a program before it exits.
    ///
    /// Without it dropped guards are released in the background, if the program runs for long enough;
    /// otherwise other processes wait until its sessions have ended, and until the times to live of
    /// leases, elections and deliveries have passed.
    ///
    /// # Guarantees
    /// When it returns `Ok`, mutexes, leases, permits and terms of leadership are free for others,
    /// claimed jobs are back in their queues without counting an attempt, completions are on
    /// disk, and worker numbers of generators of ids are given back. Guards and deliveries that still exist are lost. Later calls
    /// return `Unavailable`, but for ids that are left of a [block](crate::id::IdOptions::blocks).
    ///
    /// # Cancel safety
    /// When dropped, closing continues in the background; it can be called again.
    ///
    /// # Errors
    /// `Unavailable` and `Indeterminate` if something could not be released, which becomes free by
    /// itself later; the backend is closed nevertheless.
    async fn close(&self) -> Result<()>;

    /// Creates or upgrades the tables. If there is nothing to do, it needs no privilege to change them.
    ///
    /// # Guarantees
    /// Callers may run at the same time. Either all migrations that were missing are applied, or none.
    /// Migrations of a later version of the library are not touched. It waits while another caller applies them, and tries for
    /// 40 s to get the locks of tables that others have. A script takes as long as it needs, up to a day.
    ///
    /// # Cancel safety
    /// When dropped, it finishes in the background.
    ///
    /// # Errors
    /// `Corrupt` when an applied migration differs from the one in this library, `Unsupported`
    /// when the role may not create tables, `Unavailable`.
    async fn migrate(&self) -> Result<()>;
}

impl dyn Backend + '_ {
    /// Opens a mutex; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key, `Unsupported` where session locks are not available.
    pub fn mutex(&self, key: impl Into<Key>) -> Result<Arc<dyn Mutex>> {
        self.open_mutex(key.into())
    }

    /// Opens a set of mutexes that are locked together; nothing is sent.
    ///
    /// # Errors
    /// As for [`mutex`](#method.mutex), and `Invalid` for none or more than
    /// [`MutexSet::MAX_KEYS`].
    pub fn mutex_set<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> Result<MutexSet> {
        let keys = keys.into_iter();
        let mutexes: Result<Vec<_>> = keys.map(|key| self.open_mutex(key.into())).collect();
        MutexSet::new(mutexes?)
    }

    /// Opens a mutex that is divided into stripes; nothing is sent.
    ///
    /// # Errors
    /// As for [`mutex`](#method.mutex), and `Invalid` for none or more than
    /// [`Striped::MAX_STRIPES`].
    pub fn striped(&self, name: &str, stripes: usize) -> Result<Striped> {
        Striped::new(name, stripes, |key| self.open_mutex(key.into()))
    }

    /// Opens a lock that readers share; nothing is sent.
    ///
    /// # Errors
    /// As for [`mutex`](#method.mutex).
    pub fn rw_lock(&self, key: impl Into<Key>) -> Result<Arc<dyn RwLock>> {
        self.open_rw_lock(key.into())
    }

    /// Opens a lease; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key or options that are outside their limits.
    pub fn lease(&self, key: impl Into<Key>, options: LeaseOptions) -> Result<Arc<dyn Lease>> {
        self.open_lease(key.into(), options)
    }

    /// Opens a semaphore with this number of permits; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key, a number of permits that is not 1 to
    /// [`MAX_PERMITS`](crate::semaphore::MAX_PERMITS), or options that are outside their limits.
    pub fn semaphore(
        &self,
        key: impl Into<Key>,
        permits: u32,
        options: LeaseOptions,
    ) -> Result<Arc<dyn Semaphore>> {
        self.open_semaphore(key.into(), permits, options)
    }

    /// Opens an election; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a bad key or options that are outside their limits.
    pub fn election(
        &self,
        key: impl Into<Key>,
        options: LeaseOptions,
    ) -> Result<Arc<dyn Election>> {
        self.open_election(key.into(), options)
    }

    /// Opens a [`Mutex`] that is a [lease](#method.lease) instead of a session lock; nothing is sent.
    ///
    /// It works where [session locks](Capabilities::session_locks) are not available. In exchange
    /// each lock and unlock is a committed write, waiters of other processes poll, and the lock of
    /// a holder that died is free after the time to live.
    ///
    /// It does not conflict with the [`mutex`](#method.mutex) or the lease of the same key, and it
    /// cannot be locked in a transaction; its holder's token can be checked in one.
    ///
    /// # Errors
    /// `Invalid` for a bad key or options that are outside their limits.
    pub fn leased_mutex(
        &self,
        key: impl Into<Key>,
        options: LeaseOptions,
    ) -> Result<Arc<dyn Mutex>> {
        self.open_leased_mutex(key.into(), options)
    }

    /// Opens a queue with the default [options](queue::QueueOptions); nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes.
    pub fn queue(&self, name: impl Into<String>) -> Result<Arc<dyn Queue>> {
        self.queue_with(name, queue::QueueOptions::default())
    }

    /// Opens a queue with [options](queue::QueueOptions); nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes, or options that are outside their limits.
    pub fn queue_with(
        &self,
        name: impl Into<String>,
        options: queue::QueueOptions,
    ) -> Result<Arc<dyn Queue>> {
        self.open_queue(name.into(), options)
    }

    /// Opens a rate limiter with a [`Quota`](crate::limit::Quota) or a [`Policy`]; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a quota that is outside its limits.
    pub fn rate_limiter(&self, policy: impl Into<Policy>) -> Result<Arc<dyn RateLimiter>> {
        self.open_rate_limiter(policy.into())
    }

    /// Opens an id generator, whose ids are unique under `name`; nothing is sent.
    ///
    /// Share one in the process: each has a worker number of its own.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes, or options that are outside their limits.
    pub fn id_gen(
        &self,
        name: impl Into<String>,
        options: id::IdOptions,
    ) -> Result<Arc<dyn IdGen>> {
        self.open_id_gen(name.into(), options)
    }

    /// Opens idempotency keys, with which requests are executed once; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for options that are outside their limits.
    pub fn idempotency(&self, options: IdempotencyOptions) -> Result<Idempotency> {
        Idempotency::new(self.open_answers(), options)
    }

    /// Opens a scheduler with the default [options](schedule::SchedulerOptions); nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes.
    pub fn scheduler(&self, name: impl Into<String>) -> Result<Arc<dyn Scheduler>> {
        self.scheduler_with(name, schedule::SchedulerOptions::default())
    }

    /// Opens a scheduler with [options](schedule::SchedulerOptions); nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 255 bytes, or options that are outside their limits.
    pub fn scheduler_with(
        &self,
        name: impl Into<String>,
        options: schedule::SchedulerOptions,
    ) -> Result<Arc<dyn Scheduler>> {
        self.open_scheduler(name.into(), options)
    }
}
