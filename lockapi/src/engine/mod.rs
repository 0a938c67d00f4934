//! The engine that turns a [`Connector`] into a [`Backend`].
//!
//! Requests of the whole process travel on tasks, each with one connection: what is asked while a
//! statement runs goes along with the next. Callers wait on channels, so they need no particular
//! runtime, and may leave at any time.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::admin::{Inspector, Operator};
use crate::backend::{Backend, Capabilities};
use crate::driver::{Connector, Mode};
use crate::election::Election;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::id::{self, IdGen};
use crate::idempotency::Answers;
use crate::key::Key;
use crate::lease::{Lease, LeaseOptions};
use crate::limit::{Policy, RateLimiter};
use crate::migrate;
use crate::mutex::{Mutex, RwLock};
use crate::queue::{self, Queue};
use crate::schedule::{self, Scheduler};
use crate::semaphore::{MAX_PERMITS, Semaphore, check_permits};
use crate::telemetry;

mod admin;
mod answers;
mod batcher;
pub(crate) mod cancel;
mod catch_panic;
mod clock;
mod connection;
mod contention;
mod core;
mod driver;
mod election_handle;
pub(crate) mod epoch;
mod ids;
mod keyed_fifo;
mod lease_handle;
mod leased_mutex;
mod leases;
mod limits;
mod locks;
mod mutex_handle;
mod notifier;
pub(crate) mod notify;
mod options;
pub(crate) mod probe;
mod queues;
mod reconnect;
mod renewal;
mod schedules;
mod semaphore_handle;
pub(crate) mod session_settings;
mod slots;
mod sweeps;
mod tasks;
mod timer;
mod watch;

use self::core::Core;
#[cfg(test)]
pub(crate) use catch_panic::tests::{is_woken_beside_a_panic, panicking_waker};
pub(crate) use catch_panic::{catch_panic, contained};
#[cfg(feature = "suite")]
pub use clock::DrivenClock;
pub use clock::ManualClock;
pub(crate) use clock::{Activity, Clock};
use connection::Connections;
use connection::is_closed;
pub(crate) use connection::{begin, is_standby};
pub(crate) use driver::{CallerConnection, Driver, DriverConnection};
pub(crate) use notify::Heard;
pub(crate) use notify::Notify;
pub use options::BackendOptions;
use slots::Slots;
#[cfg(feature = "tracing")]
pub(crate) use timer::Alarm;
pub(crate) use timer::Timer;
pub(crate) use watch::Watch;

/// How long a script of a migration may take, and its commit: what creates an index reads a table.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Connects: checks the options, probes the server, and gives the backend.
///
/// Backend crates wrap it. It opens two connections for the probe and closes them again; further
/// connections are opened when the first primitive of their kind is used: one for statements on
/// tables, one for renewals of leases and heartbeats of deliveries, one for jobs, two for rate limits,
/// one that holds mutexes, up to [`BackendOptions::waiters`] that wait for mutexes, and one that hears
/// notifications. One more is opened from time to time, to delete old rows.
///
/// # Errors
/// `Invalid` for bad options, `Unavailable` when the server cannot be reached or is a standby, `Unsupported`
/// when it is older than version 13 or its locks do not exclude.
pub async fn start<C: Connector>(
    name: &'static str,
    connector: C,
    options: BackendOptions,
) -> Result<Arc<dyn Backend>> {
    start_with(name, Driver::new(connector), options, Clock::real()).await
}

pub(crate) async fn start_with(
    name: &'static str,
    driver: Driver,
    options: BackendOptions,
    clock: Clock,
) -> Result<Arc<dyn Backend>> {
    options.check()?;
    telemetry::describe();
    let timer = Timer::start(&clock).map_err(|error| {
        Failure::connect(
            None,
            format!("the thread of the timer could not be started: {error}"),
        )
        .error("connect")
    })?;
    let connections = |mode| {
        let (driver, timer) = (driver.clone(), timer.clone());
        Arc::new(Connections::new(driver, timer, mode, options.timeout))
    };
    let probing = connections(Mode::Proxied);
    let mode = run_task(&driver, "lockapi-probe", "connect", async move {
        let watch = probing.watch();
        let probed = watch
            .bound(probe::probe(&probing.driver, &probing.timer))
            .await;
        probed.map_err(|mut failure| {
            // The probe leaves nothing behind.
            failure.sent = false;
            failure
        })
    })
    .await?;
    let core = Core::new(name, options.clone(), connections(mode));
    Ok(Arc::new(Engine(
        core.map_err(|error| error.during("connect"))?,
    )))
}

/// Runs `work` where the driver runs tasks.
async fn run_task<T: Send + 'static>(
    driver: &Driver,
    name: &'static str,
    operation: &'static str,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T> {
    let (sender, outcome) = oneshot::channel();
    driver.spawn(
        name,
        Box::pin(async move {
            // A caller that left does not want the outcome.
            drop(sender.send(work.await));
        }),
    );
    match outcome.await {
        Ok(outcome) => outcome.map_err(|failure| failure.error(operation)),
        Err(_) => Err(batcher::ended(operation)),
    }
}

struct Engine(Arc<Core>);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("name", &self.0.name)
            .field("namespace", &self.0.namespace)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Engine {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn namespace(&self) -> &str {
        &self.0.namespace
    }

    fn capabilities(&self) -> Capabilities {
        let direct = self.0.connections.mode == Mode::Direct;
        Capabilities {
            session_locks: direct,
            notifications: direct,
            sessions: self.0.connections.driver.has_server(),
        }
    }

    fn open_mutex(&self, key: Key) -> Result<Arc<dyn Mutex>> {
        key.check()
            .map_err(|error| error.during("mutex").on(&key))?;
        if !self.capabilities().session_locks {
            let message = "the server is reached through a transaction-pooling proxy, where a session lock would belong to a session that other clients share; use a leased_mutex or a lease, or connect to the server directly";
            return Err(Error::new(ErrorKind::Unsupported, "mutex", message).on(&key));
        }
        self.0.check_lock(&key, "mutex")?;
        self.0.leases.sweep_marks_later();
        Ok(mutex_handle::open(&self.0, key))
    }

    fn open_rw_lock(&self, key: Key) -> Result<Arc<dyn RwLock>> {
        self.0.check_lock(&key, "rw_lock")?;
        self.0.leases.sweep_marks_later();
        Ok(mutex_handle::open_rw(&self.0, key))
    }

    fn open_lease(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Lease>> {
        let slots = Slots::open(&self.0, "lease", key, options)?;
        Ok(Arc::new(lease_handle::LeaseHandle(slots)))
    }

    fn open_semaphore(
        &self,
        key: Key,
        permits: u32,
        options: LeaseOptions,
    ) -> Result<Arc<dyn Semaphore>> {
        check_permits(permits, MAX_PERMITS).map_err(|error| error.during("semaphore").on(&key))?;
        let slots = Slots::open(&self.0, "semaphore", key, options)?;
        Ok(Arc::new(semaphore_handle::SemaphoreHandle {
            slots,
            permits,
        }))
    }

    fn open_election(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Election>> {
        let slots = Slots::open(&self.0, "election", key, options)?;
        Ok(Arc::new(election_handle::ElectionHandle(slots)))
    }

    fn open_leased_mutex(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Mutex>> {
        let slots = Slots::open(&self.0, "leased_mutex", key, options)?;
        Ok(Arc::new(leased_mutex::LeasedMutexHandle(slots)))
    }

    fn open_queue(&self, name: String, options: queue::QueueOptions) -> Result<Arc<dyn Queue>> {
        let checked = options.check(&name);
        checked.map_err(|error| error.during("queue").on(&name))?;
        Ok(queues::open(&self.0, name, options))
    }

    fn open_rate_limiter(&self, policy: Policy) -> Result<Arc<dyn RateLimiter>> {
        policy
            .check()
            .map_err(|error| error.during("rate_limiter"))?;
        Ok(limits::open(&self.0, policy))
    }

    fn open_id_gen(&self, name: String, options: id::IdOptions) -> Result<Arc<dyn IdGen>> {
        let checked = options.check(&name);
        checked.map_err(|error| error.during("id_gen").on(&name))?;
        Ok(ids::open(&self.0, &name, options))
    }

    fn open_scheduler(
        &self,
        name: String,
        options: schedule::SchedulerOptions,
    ) -> Result<Arc<dyn Scheduler>> {
        let checked = options.check(&name);
        checked.map_err(|error| error.during("scheduler").on(&name))?;
        Ok(schedules::open(&self.0, name, options))
    }

    fn open_answers(&self) -> Arc<dyn Answers> {
        answers::open(&self.0)
    }

    fn inspector(&self) -> Arc<dyn Inspector> {
        admin::inspector(&self.0)
    }

    fn operator(&self) -> Arc<dyn Operator> {
        admin::operator(&self.0)
    }

    async fn close(&self) -> Result<()> {
        self.0.give_back_and_close().await
    }

    async fn migrate(&self) -> Result<()> {
        let connections = Arc::clone(&self.0.connections);
        let migrating = Arc::clone(&connections);
        run_task(
            &connections.driver,
            "lockapi-migrate",
            "migrate",
            async move {
                let mut connection = migrating.open(&migrating.watch(), Duration::ZERO).await?;
                let timer = migrating.timer.clone();
                let limits = migrate::Limits {
                    usual: migrating.watch(),
                    script: migrating.watch_within(MIGRATION_TIMEOUT),
                };
                connection
                    .run(|connection| {
                        Box::pin(async move { migrate::run(connection, &timer, &limits).await })
                    })
                    .await
            },
        )
        .await
    }
}

#[cfg(test)]
mod supervision_tests;
#[cfg(test)]
mod tests;
