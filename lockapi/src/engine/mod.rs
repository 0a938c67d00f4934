//! The engine that turns a [`Connector`] into a [`Backend`].
//!
//! Requests of the whole process travel on lanes, each with one connection: what is asked while a
//! statement runs goes along with the next. Callers wait on channels, so they need no particular
//! runtime, and may leave at any time.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::backend::{Backend, Capabilities};
use crate::election::Election;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::id::{self, IdGen};
use crate::key::Key;
use crate::lease::{Lease, Terms};
use crate::limit::{Policy, RateLimiter};
use crate::migrate;
use crate::mutex::{Mutex, RwLock};
use crate::queue::{self, Queue};
use crate::schedule::{self, Scheduler};
use crate::seam::{Connector, Mode};
use crate::semaphore::{MAX_PERMITS, Semaphore, check_permits};
use crate::sight::{Inspector, Operator};
use crate::telemetry::{self, Kind, Subject, Warn};
use crate::wait::unless;

mod batcher;
mod cancel;
mod clock;
mod contain;
mod contention;
mod driver;
mod election_handle;
mod ids;
mod keeper;
mod lanes;
mod lease_handle;
mod leased_mutex;
mod leases;
mod limits;
mod link;
mod locks;
mod mutex_handle;
mod notices;
mod notify;
mod options;
mod probe;
mod queues;
mod schedules;
mod semaphore_handle;
mod settle;
mod sight;
mod slots;
mod sweeps;
mod watch;

use batcher::Batcher;
pub use cancel::{Cancelled, Process};
pub use clock::ManualClock;
pub(crate) use clock::{Activity, Clock};
pub(crate) use contain::contain;
use contention::Contended;
pub(crate) use driver::Driver;
#[cfg(feature = "tracing")]
pub(crate) use keeper::Alarm;
pub(crate) use keeper::Keeper;
use leases::Leases;
use limits::Limits;
use link::Links;
use link::is_closed;
pub(crate) use link::{COMMIT, ROLLBACK, begin, is_standby};
use locks::{Limits as LockLimits, Locks, worker};
use notices::Notices;
pub(crate) use notify::{Heard, LISTEN, UNLISTEN};
pub use notify::{Notify, listen};
pub use options::Options;
pub use probe::Marker;
use queues::Queues;
pub use settle::{Settle, Settled};
use sight::{Names, Noting};
use slots::Slots;
use sweeps::Sweeps;

/// How long migrations may take: another process may be applying them.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(1);

/// Connects: checks the options, probes the server, and gives the backend.
///
/// Backend crates wrap it. It opens two connections for the probe and closes them again; further
/// connections are opened when the first primitive of their kind is used: one for statements on
/// tables, one for renewals of leases and heartbeats of deliveries, one for jobs, two for rate limits,
/// one that holds mutexes, up to [`Options::waiters`] that wait for mutexes, and one that hears
/// notifications. One more is opened from time to time, to delete old rows.
///
/// # Errors
/// `Invalid` for bad options, `Unavailable` when the server cannot be reached or is a standby.
pub async fn start<C: Connector>(
    name: &'static str,
    connector: C,
    options: Options,
) -> Result<Arc<dyn Backend>> {
    start_with(name, Driver::new(connector), options, Clock::real()).await
}

pub(crate) async fn start_with(
    name: &'static str,
    driver: Driver,
    options: Options,
    clock: Clock,
) -> Result<Arc<dyn Backend>> {
    options.check()?;
    telemetry::describe();
    let keeper = Keeper::start(&clock).map_err(|error| {
        Failure::connect(None, format!("no thread for the keeper: {error}")).error("connect")
    })?;
    let links = |mode| {
        let (driver, keeper) = (driver.clone(), keeper.clone());
        Arc::new(Links::new(driver, keeper, mode, options.timeout))
    };
    let probing = links(Mode::Proxied);
    let mode = on_lane(&driver, "lockapi-probe", "connect", async move {
        let watch = probing.watch();
        let probed = watch.bound(probe::probe(&probing.driver)).await;
        probed.map_err(|mut failure| {
            // The probe leaves nothing behind.
            failure.sent = false;
            failure
        })
    })
    .await?;
    let core = Core::new(name, options.clone(), links(mode));
    Ok(Arc::new(Engine(
        core.map_err(|error| error.during("connect"))?,
    )))
}

/// Runs `work` where the driver runs lanes.
async fn on_lane<T: Send + 'static>(
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

/// Everything that the handles of a backend share; when the last is dropped its tasks end.
struct Core {
    name: &'static str,
    namespace: Arc<str>,
    warn: Warn,
    links: Arc<Links>,
    batcher: Arc<Batcher>,
    leases: Arc<Leases>,
    /// Renewals of leases and heartbeats of deliveries, and nothing else.
    renewals: Arc<Batcher>,
    /// Whether there is a connection for them.
    renewals_ready: AtomicBool,
    jobs: Arc<Batcher>,
    sweeps: Arc<Sweeps>,
    queues: Arc<Queues>,
    limits: Arc<Limits>,
    locks: Arc<Locks>,
    names: Arc<Names>,
    contended: Arc<Contended>,
    notices: Notices,
}

impl Core {
    fn new(name: &'static str, options: Options, links: Arc<Links>) -> Result<Arc<Self>> {
        let keeper = links.keeper.clone();
        let batcher = Batcher::new(Arc::clone(&links));
        let renewals = Batcher::hurried(Arc::clone(&links));
        let sweeps = Sweeps::new(&links);
        let leases = Leases::new(
            Arc::clone(&batcher),
            Arc::clone(&renewals),
            Arc::clone(&sweeps),
            keeper.clone(),
        );
        let jobs = Batcher::new(Arc::clone(&links));
        let queues = Queues::new(Arc::clone(&jobs), Arc::clone(&renewals), keeper);
        let names = Arc::<Names>::default();
        let namespace: Arc<str> = options.namespace.into();
        let observe = options.notes.then(|| {
            let noting = Noting::new(
                Arc::clone(&jobs),
                Arc::clone(&sweeps),
                Arc::clone(&names),
                Arc::clone(&namespace),
            )?;
            Ok(Box::new(move |observed| noting.look(observed)) as Box<_>)
        });
        let limits = LockLimits {
            waiters: options.waiters,
            max_locks: options.max_locks,
            heartbeat: options.heartbeat,
            observed: options.notes,
            seed: crate::random::number()?.cast_unsigned(),
        };
        let locks = Locks::new(links.keeper.clone(), limits, observe.transpose()?);
        let (weak, spawning) = (Arc::downgrade(&locks), Arc::clone(&links));
        locks.start_with(move |session| {
            let Some(locks) = weak.upgrade() else {
                return;
            };
            let name = if session == 0 {
                "lockapi-locks"
            } else {
                "lockapi-waiter"
            };
            let worker = worker::run(locks, Arc::clone(&spawning), session);
            spawning.spawn(name, worker);
        });
        let notices = Notices::new(Arc::clone(&links));
        let limits = Limits::new(Arc::clone(&namespace), &links, Arc::clone(&sweeps));
        Ok(Arc::new(Self {
            name,
            namespace,
            warn: options.warn,
            links,
            batcher,
            leases,
            renewals,
            renewals_ready: AtomicBool::new(false),
            jobs,
            sweeps,
            queues,
            limits,
            locks,
            names,
            contended: Arc::default(),
            notices,
        }))
    }

    /// What is told of something that belongs to a key.
    fn subject<'a>(&'a self, kind: Kind, key: &'a Key) -> Subject<'a> {
        Subject {
            kind,
            namespace: &self.namespace,
            key,
            warn: self.warn,
            keeper: &self.links.keeper,
        }
    }

    fn check_lock(&self, key: &Key, operation: &'static str) -> Result<()> {
        key.check()
            .map_err(|error| error.during(operation).on(key))?;
        if self.links.mode != Mode::Direct {
            let message = "the server is reached through a transaction-pooling proxy, where a session lock would belong to a session that others use too; use a lease, or connect to the server directly";
            return Err(Error::new(ErrorKind::Unsupported, operation, message).on(key));
        }
        Ok(())
    }
}

impl Core {
    /// Lets all tasks end once they have done what is queued.
    fn close(&self) {
        self.locks.close();
        self.notices.close();
        self.batcher.close();
        self.renewals.close();
        self.jobs.close();
        self.sweeps.close();
        self.limits.close();
    }

    /// Gives back all that is held, and ends.
    async fn give_back_and_close(&self) -> Result<()> {
        self.links.lanes.begin_close();
        let held = self.leases.release_all().into_iter();
        let held = held.chain(self.queues.release_all());
        let mut failed = Vec::new();
        let mut total = 0_usize;
        for answer in held {
            total += 1;
            match answer.await {
                Ok(Ok(())) => {}
                // It had ended before.
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => {}
                Ok(Err(error)) => failed.push(error),
                Err(_) => failed.push(batcher::ended("close")),
            }
        }
        self.locks.close_all();
        self.close();
        let keeper = &self.links.keeper;
        let over = unless(
            keeper.sleep(self.links.timeout * 2),
            self.links.lanes.ended(),
        )
        .await;
        self.links.lanes.close();
        if let Some(error) = failed.first() {
            let message = format!(
                "{} of {total} that were held could not be given back, and end by themselves; the first: {error}",
                failed.len()
            );
            return Err(Error::new(error.kind(), "close", message));
        }
        over.ok_or_else(|| {
            let message = "the server did not answer; what was queued may not have been done";
            Error::new(ErrorKind::Indeterminate, "close", message)
        })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.close();
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
        let direct = self.0.links.mode == Mode::Direct;
        Capabilities {
            session_locks: direct,
            notifications: direct,
            sessions: self.0.links.driver.has_server(),
        }
    }

    fn open_mutex(&self, key: Key) -> Result<Arc<dyn Mutex>> {
        key.check()
            .map_err(|error| error.during("mutex").on(&key))?;
        if !self.capabilities().session_locks {
            let message = "the server is reached through a transaction-pooling proxy, where a session lock would belong to a session that others use too; use a leased_mutex or a lease, or connect to the server directly";
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

    fn open_lease(&self, key: Key, terms: Terms) -> Result<Arc<dyn Lease>> {
        let slots = Slots::open(&self.0, "lease", key, terms)?;
        Ok(Arc::new(lease_handle::Named(slots)))
    }

    fn open_semaphore(&self, key: Key, permits: u32, terms: Terms) -> Result<Arc<dyn Semaphore>> {
        check_permits(permits, MAX_PERMITS).map_err(|error| error.during("semaphore").on(&key))?;
        let slots = Slots::open(&self.0, "semaphore", key, terms)?;
        Ok(Arc::new(semaphore_handle::Named { slots, permits }))
    }

    fn open_election(&self, key: Key, terms: Terms) -> Result<Arc<dyn Election>> {
        let slots = Slots::open(&self.0, "election", key, terms)?;
        Ok(Arc::new(election_handle::Named(slots)))
    }

    fn open_leased_mutex(&self, key: Key, terms: Terms) -> Result<Arc<dyn Mutex>> {
        let slots = Slots::open(&self.0, "leased_mutex", key, terms)?;
        Ok(Arc::new(leased_mutex::Named(slots)))
    }

    fn open_queue(&self, name: String, terms: queue::Terms) -> Result<Arc<dyn Queue>> {
        let checked = terms.check(&name);
        checked.map_err(|error| error.during("queue").on(&name))?;
        Ok(queues::open(&self.0, name, terms))
    }

    fn open_rate_limiter(&self, policy: Policy) -> Result<Arc<dyn RateLimiter>> {
        policy
            .check()
            .map_err(|error| error.during("rate_limiter"))?;
        Ok(limits::open(&self.0, policy))
    }

    fn open_id_gen(&self, name: String, terms: id::Terms) -> Result<Arc<dyn IdGen>> {
        let checked = terms.check(&name);
        checked.map_err(|error| error.during("id_gen").on(&name))?;
        Ok(ids::open(&self.0, &name, terms))
    }

    fn open_scheduler(&self, name: String, terms: schedule::Terms) -> Result<Arc<dyn Scheduler>> {
        let checked = terms.check(&name);
        checked.map_err(|error| error.during("scheduler").on(&name))?;
        Ok(schedules::open(&self.0, name, terms))
    }

    fn inspector(&self) -> Arc<dyn Inspector> {
        sight::inspector(&self.0)
    }

    fn operator(&self) -> Arc<dyn Operator> {
        sight::operator(&self.0)
    }

    async fn close(&self) -> Result<()> {
        self.0.give_back_and_close().await
    }

    async fn migrate(&self) -> Result<()> {
        let links = Arc::clone(&self.0.links);
        let patient = links.with_timeout(MIGRATION_TIMEOUT);
        on_lane(&links.driver, "lockapi-migrate", "migrate", async move {
            let watch = patient.watch();
            let mut link = patient.open(&watch, Duration::ZERO).await?;
            let keeper = patient.keeper.clone();
            link.run(|connection| Box::pin(async move { migrate::run(connection, &keeper).await }))
                .await
        })
        .await
    }
}

#[cfg(test)]
mod supervision_tests;
#[cfg(test)]
mod tests;
