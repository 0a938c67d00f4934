//! The in-memory backend: the same engine over a model instead of a server.
//!
//! It behaves as the database backends do, because it runs the same operations by their meaning
//! instead of by their SQL. Use it in tests of your own code.
//!
//! ```
//! # async fn example() -> lockapi::Result<()> {
//! use lockapi::memory::Database;
//!
//! let database = Database::new();
//! let here = database.connect().await?;
//! let there = database.connect().await?; // as a second process would
//! let guard = here.mutex("reports/daily")?.lock().await?;
//! assert!(there.mutex("reports/daily")?.try_lock().await?.is_none());
//! guard.unlock().await?;
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::BackendOptions;
use crate::backend::Backend;
use crate::blocking::block_on;
use crate::driver::{BackgroundTask, Connector, Mode};
use crate::engine::{Clock, Driver, ManualClock, start_with};
use crate::error::{Failure, Result};
use crate::lease::micros;
use crate::sync::{Condvar, Mutex, MutexGuard, Notify, thread};

mod faults;
pub(crate) mod model;
mod session;
#[cfg(feature = "suite")]
pub(crate) mod simulation;
mod task;

pub(crate) use model::{Epoch, ModelState};
pub use session::Session;

/// A database in memory, which any number of backends connect to.
#[derive(Clone)]
pub struct Database {
    shared: Arc<Shared>,
    clock: Clock,
    /// The way that it is reached by; [`ALL`] stands for all of them.
    link: u64,
    /// When its clock was at zero, since 1970.
    started: Duration,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Told when statements are answered again, something is sent to listeners, or sessions end.
    spoken: Notify,
}

#[derive(Default)]
struct State {
    model: ModelState,
    /// How far the server's clock was set ahead, in microseconds.
    set_ahead: i64,
    /// And the links that they came by.
    sessions: HashMap<u64, u64>,
    opened: u64,
    links: u64,
    unreachable: HashSet<u64>,
    silent: HashSet<u64>,
    /// Sessions that are left unanswered.
    silent_sessions: HashSet<u64>,
    /// What the standbys have, which receive nothing any more.
    standbys: Vec<ModelState>,
}

impl State {
    fn is_silent(&self, session: u64) -> bool {
        let link = self.sessions.get(&session).unwrap_or(&ALL);
        is_in(&self.silent, *link) || self.silent_sessions.contains(&session)
    }
}

/// The link that stands for all.
const ALL: u64 = 0;

fn is_in(links: &HashSet<u64>, link: u64) -> bool {
    links.contains(&ALL) || links.contains(&link)
}

impl Default for Database {
    fn default() -> Self {
        Self::with(Clock::real())
    }
}

impl Database {
    /// An empty database with the real time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty database whose time, like that of the backends connected to it, is moved by hand.
    #[must_use]
    pub fn with_clock(clock: &ManualClock) -> Self {
        Self::with(Clock::Manual(clock.clone()))
    }

    fn with(clock: Clock) -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the server's clock")]
        let started = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changed: Condvar::new(),
                spoken: Notify::new(),
            }),
            started: started.saturating_sub(clock.now()),
            clock,
            link: ALL,
        }
    }

    /// Connects a backend, as a separate process would.
    ///
    /// # Errors
    /// `Unavailable` while the database is [unreachable](Self::set_reachable).
    pub async fn connect(&self) -> Result<Arc<dyn Backend>> {
        self.connect_with(BackendOptions::default()).await
    }

    /// Connects a backend with options.
    ///
    /// # Errors
    /// `Invalid` for bad options; otherwise as for [`connect`](Self::connect).
    pub async fn connect_with(&self, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        start_with(
            "memory",
            Driver::new(self.clone()),
            options,
            self.clock.clone(),
        )
        .await
    }

    /// The same database, reached by a network link of its own, as from another host. Faults of the
    /// link, [`sever`](Self::sever), [`set_reachable`](Self::set_reachable),
    /// [`set_silent`](Self::set_silent) and [`silence_sessions`](Self::silence_sessions), affect only
    /// the backends that are connected through it.
    ///
    /// ```
    /// # async fn example() -> lockapi::Result<()> {
    /// use lockapi::memory::Database;
    ///
    /// let database = Database::new();
    /// let (one, other) = (database.link(), database.link());
    /// let (here, there) = (one.connect().await?, other.connect().await?);
    /// one.set_reachable(false); // for `here` alone
    /// assert!(there.mutex("k")?.try_lock().await?.is_some());
    /// # drop(here);
    /// # Ok(())
    /// # }
    /// # lockapi::blocking::block_on(example()).unwrap();
    /// ```
    #[must_use]
    pub fn link(&self) -> Self {
        let mut state = self.shared.lock();
        state.links += 1;
        Self {
            link: state.links,
            ..self.clone()
        }
    }

    /// Whether it is this link that a session came by.
    fn has(&self, link: u64) -> bool {
        self.link == ALL || self.link == link
    }

    /// Looks at the state.
    #[cfg(any(test, feature = "suite"))]
    pub fn inspect<T>(&self, look: impl FnOnce(&ModelState) -> T) -> T {
        let mut state = self.shared.lock();
        state.model.now = self.now(state.set_ahead);
        look(&state.model)
    }

    /// How many sessions are open.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.shared.lock().sessions.len()
    }

    /// The server's clock: microseconds since 1970.
    fn now(&self, set_ahead: i64) -> i64 {
        micros(self.started + self.clock.now()).saturating_add(set_ahead)
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connector for Database {
    type Connection = Session;
    type Listener = Session;

    const SERVER: bool = false;
    const THREADS: bool = true;

    async fn connect(&self, _: Mode) -> Result<Session, Failure> {
        let mut state = self.shared.lock();
        if is_in(&state.unreachable, self.link) {
            return Err(Failure::connect(
                None,
                "the memory database is set unreachable",
            ));
        }
        state.opened += 1;
        let id = state.opened;
        state.sessions.insert(id, self.link);
        let now = self.now(state.set_ahead);
        state.model.begin_session(id, now);
        drop(state);
        Ok(Session {
            database: self.clone(),
            id,
        })
    }

    async fn listener(&self) -> Result<Session, Failure> {
        Connector::connect(self, Mode::Direct).await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        let activity = self.clock.activity();
        let spawned = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || match activity {
                Some(activity) => task::run(task, &activity),
                None => block_on(task),
            });
        // Without a thread the task is dropped here, which fails its callers.
        drop(spawned);
    }
}
