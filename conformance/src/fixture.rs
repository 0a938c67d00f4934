//! What a backend lends to the suite: databases to test against, and ways to look into them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::admin::{Priority, Report};
use lockapi::idempotency::Execution;
use lockapi::limit::{PermitRequest, Verdict};
use lockapi::queue::{Delivery, Job, Pushed, Taken};
use lockapi::suite::lease::Peeked;
use lockapi::suite::limit::Level;
use lockapi::suite::queue::ExpireJobs;
use lockapi::table::{Table, TableMode};
use lockapi::{Backend, Fence, LockId, Mutex, Queue, RateLimiter, Result};

use crate::accounts::Accounts;

/// Why a fixture could not be made, in words for the person who runs the suite.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Something that a case cannot do without.
///
/// A case whose needs are not met is listed as ignored, with the need as its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Futures whose work stops when they are dropped; blocking calls have none.
    Futures,
    /// Transactions of the user, in which locks are taken and holders are checked.
    Transactions,
    /// Other processes that reach the same database.
    Processes,
    /// Tables that are created by migrations, in databases and by roles of their own.
    Schema,
    /// A person's SQL, and a server that describes statements.
    Sql,
    /// Passwords.
    Passwords,
    /// Standby servers.
    Standby,
    /// Standby servers that take over.
    FailOver,
    /// A transaction-pooling proxy.
    Proxy,
    /// A relay before the server, which breaks round trips.
    Relay,
    /// A pool of the program, which can be exhausted.
    Pool,
    /// Sessions of a server, which can be seen and ended.
    Sessions,
    /// Connections that the backend opens and closes itself, so that they can be counted.
    OwnConnections,
    /// Rows of the program, written with optimistic locking.
    Accounts,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Futures => "futures",
            Self::Transactions => "transactions",
            Self::Processes => "processes",
            Self::Schema => "a schema",
            Self::Sql => "SQL",
            Self::Passwords => "passwords",
            Self::Standby => "a standby",
            Self::FailOver => "a standby that takes over",
            Self::Proxy => "a proxy",
            Self::Relay => "a relay",
            Self::Pool => "a pool",
            Self::Sessions => "sessions of a server",
            Self::OwnConnections => "connections of its own",
            Self::Accounts => "accounts",
        })
    }
}

/// Which database a case runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The one that all cases share, migrated.
    Shared,
    /// A server of the case's own, migrated, which may be made unreachable and be crashed. It has
    /// room for more than 20,000 locks.
    Own,
    /// A server of the case's own, migrated, with a clock of the time of day that is really set.
    SetClock,
    /// A server of the case's own, migrated, with room for few locks.
    Cramped,
    /// A new, empty database.
    Empty,
    /// The shared database, as a role whose settings are as unhelpful as settings can be.
    HostileRole,
    /// Such a role with all rights, for cases that need some of them, and with timeouts of seconds.
    HostileSuperuser,
    /// The shared database, as a role to whom the server speaks German.
    GermanRole,
    /// The shared database, as a role before whose `search_path` others have put types, functions and
    /// operators of their own.
    DecoyRole,
    /// The shared database, as a role that has only the rights of a worker.
    PoorRole,
    /// As a role with the password [`SECRET`].
    Password,
    /// As a role that has another password than [`SECRET`].
    WrongPassword,
    /// A hot standby.
    Standby,
    /// The shared database, by a URL of several hosts: one that refuses, a hot standby, and the server.
    Hosts,
    /// A URL of a host that refuses and of a hot standby.
    NoPrimary,
    /// Behind a transaction-pooling proxy.
    Proxy,
    /// Behind a proxy in session mode, where each client has a session of its own.
    SessionProxy,
    /// Behind a proxy in statement mode, which has no transactions.
    StatementProxy,
    /// Behind a transaction-pooling proxy, as a role as in [`HostileRole`](Self::HostileRole).
    HostileProxy,
    /// The shared database, behind a relay that can be told to break round trips.
    Relay,
    /// Such a relay before a transaction-pooling proxy.
    RelayedProxy,
}

/// Where a relay breaks a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Where a session begins.
    Connecting,
    /// Before the statement reaches the server.
    Before,
    /// After the server has carried it out, in place of its answer.
    After,
}

/// What the client is told by a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An error report of this severity and code. All but `ERROR` after the statement end the
    /// connection.
    Report(&'static str, &'static str),
    /// Nothing: the connection ends.
    Nothing,
}

/// How a relay breaks a round trip.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Part of the text of the statement.
    pub statement: &'static str,
    /// Where.
    pub point: Point,
    /// What the client is told.
    pub answer: Answer,
}

/// The password of [`Place::Password`].
pub const SECRET: &str = "correct-horse-93";

/// A backend under test.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The first part of the names of its tests.
    fn name(&self) -> &str;

    /// Whether a need is met; it is asked before anything is connected.
    fn offers(&self, need: Need) -> bool;

    /// Makes a fixture with a namespace of its own.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    async fn fixture(&self, place: Place) -> Result<Arc<dyn Fixture>, Problem>;

    /// Joins the fixture of another process; see [`Fixture::ticket`].
    ///
    /// # Errors
    /// What is missing.
    async fn join(&self, ticket: &str) -> Result<Arc<dyn Fixture>, Problem>;
}

/// How often a lock is granted and waited for, as the server knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locks {
    /// Sessions that hold it.
    pub granted: usize,
    /// Sessions that wait for it.
    pub waiting: usize,
}

impl Locks {
    /// Neither held nor waited for.
    pub const NONE: Self = Self {
        granted: 0,
        waiting: 0,
    };
}

/// How many jobs there are, as the tables have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// Not delivered, due or not.
    pub waiting: usize,
    /// Delivered, whether or not the lease has ended.
    pub delivered: usize,
    /// In the archive: completed, failed or cancelled.
    pub ended: usize,
}

/// One database and a namespace in it.
///
/// Observations look into the database and not through the API under test. They panic when they
/// cannot be made.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The namespace of its backends.
    fn namespace(&self) -> &str;

    /// A fixture on the same database with a namespace of its own.
    ///
    /// # Errors
    /// What is missing.
    async fn sibling(&self) -> Result<Arc<dyn Fixture>, Problem>;

    /// Connects another backend to it, as another process would.
    ///
    /// # Errors
    /// Those of the backend.
    async fn backend(&self, options: BackendOptions) -> Result<Arc<dyn Backend>>;

    /// Connects a backend beside a pool of the program that is exhausted as long as the second
    /// value lives; `None` where programs have no pool.
    ///
    /// # Errors
    /// Those of the backend.
    async fn backend_beside_full_pool(
        &self,
        options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>>;

    /// Begins a transaction of the user; `None` where there are none.
    async fn begin(&self) -> Option<Box<dyn Transaction>>;

    /// Opens accounts of the user; `None` where there are none.
    async fn accounts(&self) -> Option<Box<dyn Accounts>>;

    /// Makes everything in the namespace older by `time`, without sleeping.
    async fn elapse(&self, time: Duration);

    /// Sets the server's clock ahead, as far as what is in the namespace can tell; the programs' own
    /// clocks go on as before.
    async fn set_clock_ahead(&self, by: Duration);

    /// Sets the server's clock back, as far as what is in the namespace can tell.
    async fn set_clock_back(&self, by: Duration);

    /// How many worker numbers of these ids are held.
    async fn id_workers(&self, name: &str) -> usize;

    /// Lets the clocks of server and clients go on by `time`.
    async fn pass(&self, time: Duration);

    /// Ends the server's sessions of all its backends.
    async fn sever(&self);

    /// Refuses to serve, or serves again; of [`Place::Own`] only.
    async fn set_reachable(&self, reachable: bool);

    /// Breaks the next so many round trips that the fault is about; of [`Place::Relay`] and
    /// [`Place::RelayedProxy`] only.
    async fn break_next(&self, fault: Fault, times: u32);

    /// Breaks nothing more; answers how many round trips were left unbroken.
    async fn mend(&self) -> u32;

    /// Leaves its sessions unanswered, or answers again; of [`Place::Own`] only.
    async fn set_silent(&self, silent: bool);

    /// Crashes the server and starts it again; of [`Place::Own`] only.
    async fn crash(&self);

    /// Makes two standbys that receive nothing from now on; of [`Place::Own`] only. The server may be
    /// restarted for it.
    async fn cut_replication(&self);

    /// Loses the server, and has a standby take over under its address; the second time the other, which
    /// has not heard of the first. Of [`Place::Own`] only, with [`Need::FailOver`].
    async fn fail_over(&self);

    /// Has the proxy give each transaction any of its sessions from now on; of [`Place::SessionProxy`] only.
    async fn share_sessions(&self);

    /// Who holds and who waits for an advisory lock.
    async fn locks(&self, lock: LockId) -> Locks;

    /// Who holds a lease of the namespace.
    async fn lease(&self, key: &str) -> Option<Peeked>;

    /// The slots of a key of the namespace that are held: 0 is the lease, 1 and more are permits, -1
    /// is the leader, -2 a leased mutex.
    async fn slots(&self, key: &str) -> Vec<(i64, Peeked)>;

    /// How many jobs of the namespace wait, run, or are in the archive.
    async fn jobs(&self) -> Jobs;

    /// How long it is until the first lease of a delivery in the namespace ends.
    async fn lease_of_jobs(&self) -> Option<Duration>;

    /// Sweeps expired jobs of the namespace now, as each process that uses a queue does every few minutes.
    async fn expire_jobs(&self);

    /// Moves the parts of histories into their minutes and hours and deletes what is too old, as a sweep would.
    async fn sweep_history(&self);

    /// How many parts of histories there are, and how many minutes and hours.
    async fn history_rows(&self) -> (usize, usize);

    /// The state of a limit of the namespace; `None` when it has no row.
    async fn limit(&self, key: &str) -> Option<Level>;

    /// How many sessions of its backends the server has.
    async fn sessions(&self) -> usize;

    /// Runs a person's SQL and answers the first column of its rows; only with [`Need::Sql`].
    async fn sql(&self, sql: &str) -> Vec<String>;

    /// What another process needs to know to join it; only with [`Need::Processes`].
    fn ticket(&self) -> String;
}

/// The sweep of all expired jobs of a namespace, in a process that has no queue open.
pub(crate) fn sweep(namespace: &str) -> ExpireJobs {
    ExpireJobs {
        namespace: namespace.to_owned(),
        after: (0, 0),
        most: 1000,
        bytes: 1 << 20,
        retentions: Vec::new(),
        keep_dead: 30 * 24 * 3600 * 1_000_000,
    }
}

/// The lease among the slots of a key.
pub(crate) fn lease_of(slots: Vec<(i64, Peeked)>) -> Option<Peeked> {
    let mut slots = slots.into_iter();
    slots.find_map(|(slot, held)| (slot == 0).then_some(held))
}

/// A transaction of the user, on the user's own connection.
#[async_trait]
pub trait Transaction: Send {
    /// Tries the lock of a mutex for the transaction.
    ///
    /// # Errors
    /// Those of the backend.
    async fn try_lock_in(&mut self, mutex: &Arc<dyn Mutex>) -> Result<bool>;

    /// Waits for the lock of a mutex for the transaction.
    ///
    /// # Errors
    /// Those of the backend.
    async fn lock_in(&mut self, mutex: &Arc<dyn Mutex>, timeout: Duration) -> Result<()>;

    /// Rejects a stale holder.
    ///
    /// # Errors
    /// Those of the backend.
    async fn check_in(&mut self, fence: &Fence) -> Result<()>;

    /// Pushes jobs.
    ///
    /// # Errors
    /// Those of the backend.
    async fn push_in(&mut self, queue: &Arc<dyn Queue>, jobs: Vec<Job>) -> Result<Vec<Pushed>>;

    /// Takes jobs.
    ///
    /// # Errors
    /// Those of the backend.
    async fn take_in(&mut self, queue: &Arc<dyn Queue>, most: usize) -> Result<Vec<Taken>>;

    /// Completes a delivery.
    ///
    /// # Errors
    /// Those of the backend.
    async fn ack_in(&mut self, delivery: &Arc<Delivery>) -> Result<()>;
    /// Records the answer to a request in the transaction.
    ///
    /// # Errors
    /// Those of the backend.
    async fn complete_in(&mut self, execution: &Arc<Execution>, answer: Vec<u8>) -> Result<()>;
    /// Takes of limits for the transaction, of all or of none.
    ///
    /// # Errors
    /// Those of the backend.
    async fn check_all_in(
        &mut self,
        limiter: &Arc<dyn RateLimiter>,
        requests: &[PermitRequest],
    ) -> Result<Verdict>;

    /// Locks a table of the user; without a timeout it does not wait.
    ///
    /// # Errors
    /// Those of the backend.
    async fn lock_table_in(
        &mut self,
        table: Table,
        mode: TableMode,
        timeout: Option<Duration>,
    ) -> Result<bool>;

    /// Runs a query of one text column, which waits no longer than that for a lock.
    ///
    /// # Errors
    /// Those of the backend and of the driver.
    async fn with_lock_timeout_in(
        &mut self,
        timeout: Duration,
        sql: &'static str,
    ) -> Result<String, Problem>;

    /// Runs a statement with priority over whoever is in its way.
    ///
    /// # Errors
    /// Those of the backend and of the driver.
    async fn with_priority_in(
        &mut self,
        backend: &Arc<dyn Backend>,
        priority: Priority,
        sql: &'static str,
    ) -> Result<Report, Problem>;

    /// Runs a query of one text column and answers its first row.
    async fn query(&mut self, sql: &'static str) -> String;

    /// Commits it.
    async fn commit(self: Box<Self>);

    /// Rolls it back.
    async fn rollback(self: Box<Self>);
}
