//! A connection with everything that makes it safe to use: settings, mode and a time limit.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::batcher::Repeated;
use super::cancel::{Cancels, Process};
use super::clock::Time;
use super::driver::{Driver, DriverConnection};
use super::epoch::{Entered, Epochs};
use super::reconnect::Reconnect;
use super::session_settings::{ServerKind, ServerState, SessionSettings};
use super::tasks::Tasks;
use super::timer::Timer;
pub(crate) use super::watch::Watch;
use crate::driver::first_statement::perform_first;
use crate::driver::{AnyQuery, Connection, Mode, Operation, Query, Script, run_query};
use crate::error::{Error, ErrorKind, Failure};
use crate::migrate::version;
use crate::telemetry;

const BEGIN_WRITE: &str = include_str!("begin_write.sql");

/// A session that was idle for so long may have been ended without its client noticing. What cannot be
/// repeated is not sent before it has answered.
const IDLE: Duration = Duration::from_secs(1);

/// Opens connections to one database.
pub(crate) struct Connections {
    pub(crate) driver: Driver,
    pub(crate) timer: Timer,
    pub(crate) mode: Mode,
    pub(crate) timeout: Duration,
    pub(super) tasks: Arc<Tasks>,
    cancels: Arc<Cancels>,
    pub(super) epochs: Arc<Epochs>,
    reconnect: Arc<Reconnect>,
}

impl Connections {
    pub(crate) fn new(driver: Driver, timer: Timer, mode: Mode, timeout: Duration) -> Self {
        Self {
            cancels: Cancels::new(driver.clone(), timer.clone(), timeout),
            driver,
            timer,
            mode,
            timeout,
            tasks: Arc::default(),
            epochs: Arc::default(),
            reconnect: Arc::default(),
        }
    }

    /// Runs a task that has a connection, until it ends.
    pub(super) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.tasks.spawn(&self.driver, name, task);
    }

    /// Opens a connection, sets its session parameters and enters the epoch of the server; refuses a
    /// standby, and a server that another one has replaced. Its statements wait for a lock for
    /// `lock_timeout` at most, or without a limit if that is zero. After a failure the next call waits a
    /// little.
    pub(crate) async fn open(
        &self,
        watch: &Arc<Watch>,
        lock_timeout: Duration,
    ) -> Result<OpenConnection, Failure> {
        if self.tasks.is_closed() {
            return Err(is_closed());
        }
        let opening = async {
            self.reconnect.pause(&self.timer).await;
            let mut connection = self.driver.connect(self.mode).await?;
            let mut process = None;
            let mut epoch = None;
            if self.mode == Mode::Direct {
                let settings = SessionSettings::session(lock_timeout, watch.limit());
                let state = apply_session_settings(&mut connection, settings).await?;
                process = state.process;
                epoch = self.epochs.enter(&mut connection, state).await?;
            }
            let at = self.timer.now();
            let epoch = epoch.map(|number| Entered { number, at });
            Ok((connection, process, epoch))
        };
        let opened = watch.bound(opening).await.map_err(|mut failure| {
            self.reconnect.failed(self.timer.now());
            // Whatever was sent so far had no effect beyond the connection.
            failure.broken = true;
            failure.undone()
        });
        let (connection, process, epoch) = opened?;
        Ok(OpenConnection {
            connection,
            mode: self.mode,
            watch: Arc::clone(watch),
            lock_timeout,
            limit: watch.limit(),
            used: self.timer.now(),
            process,
            cancels: Arc::clone(&self.cancels),
            epochs: Arc::clone(&self.epochs),
            epoch,
            repeated: Repeated(false),
        })
    }

    pub(crate) fn watch(&self) -> Arc<Watch> {
        self.watch_within(self.timeout)
    }

    /// A watch with this time limit, whatever that of others is.
    pub(crate) fn watch_of(&self, limit: Duration) -> Arc<Watch> {
        Watch::new(self.timer.clone(), limit)
    }

    /// A watch with a time limit of at least `limit`.
    pub(crate) fn watch_within(&self, limit: Duration) -> Arc<Watch> {
        Watch::new(self.timer.clone(), limit.max(self.timeout))
    }
}

/// Settles the settings of a connection; refuses a server that is not to be written to, and a role that would not hear
/// of a fail-over.
pub(crate) async fn apply_settings<N: Connection>(
    connection: &mut N,
    settings: SessionSettings,
) -> Result<ServerState, Failure> {
    refuse_unusable(&connection.perform(&[settings]).await?)
}

/// The same for a session, before anything is known of the role.
pub(crate) async fn apply_session_settings<N: Connection>(
    connection: &mut N,
    settings: SessionSettings,
) -> Result<ServerState, Failure> {
    refuse_unusable(&perform_first(connection, settings).await?)
}

fn refuse_unusable(state: &[ServerState]) -> Result<ServerState, Failure> {
    match *state {
        [state] if state.unprivileged => Err(is_unprivileged()),
        [state] => match state.server {
            ServerKind::Primary => Ok(state),
            ServerKind::Standby => Err(is_standby()),
            ServerKind::ReadOnly => Err(is_read_only()),
        },
        _ => Err(Failure::corrupt("the server did not return its state")),
    }
}

pub(crate) fn is_closed() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "connect", "the backend is closed");
    Failure::connect(None, error)
}

fn is_unprivileged() -> Failure {
    let message = "the role may draw tokens but not execute lockapi.enter_epoch(), so that it could get a token twice \
         after a fail-over; apply the statements of `lockapi::rights::grants` of this version";
    Failure::connect(None, Error::new(ErrorKind::Unsupported, "connect", message))
}

fn is_read_only() -> Failure {
    let message = "the server is configured as read-only (default_transaction_read_only), as a primary that was replaced; connect to the new primary";
    Failure::connect(None, Error::new(ErrorKind::Unavailable, "connect", message))
}

pub(crate) fn is_standby() -> Failure {
    let message = "the server is a hot standby, where locks do not exclude clients of the primary; connect to the primary";
    Failure::connect(None, Error::new(ErrorKind::Unavailable, "connect", message))
}

/// Opens a transaction that writes. Settings cannot make a transaction that is open a writing one.
pub(crate) async fn begin<N: Connection>(connection: &mut N) -> Result<(), Failure> {
    let begun = connection.script(Script::Begin(BEGIN_WRITE)).await;
    begun.map_err(|failure| match failure.sqlstate.as_deref() {
        Some("0A000") => is_standby(),
        _ => failure,
    })
}

/// An open connection.
pub(crate) struct OpenConnection {
    connection: DriverConnection,
    mode: Mode,
    watch: Arc<Watch>,
    /// How long statements wait for a lock.
    lock_timeout: Duration,
    /// The time limit that the server knows of.
    limit: Duration,
    /// When the server last answered.
    used: Time,
    process: Option<Process>,
    cancels: Arc<Cancels>,
    epochs: Arc<Epochs>,
    /// The epoch that it is in; behind a proxy each transaction enters its own.
    epoch: Option<Entered>,
    /// Whether the requests that are sent next were sent before, without an answer.
    pub(super) repeated: Repeated,
}

impl OpenConnection {
    /// From now on statements wait for a lock for `lock_timeout` at most. With `careful`
    /// the next request cannot be repeated.
    ///
    /// # Errors
    /// Those of the connection; what was to be sent was not.
    pub(crate) async fn prepare(
        &mut self,
        lock_timeout: Duration,
        careful: bool,
    ) -> Result<(), Failure> {
        let idle = careful && self.watch.now().saturating_sub(self.used) > IDLE;
        if self.lock_timeout != lock_timeout || idle {
            let set = self.set_limits(lock_timeout, self.limit).await;
            set.map_err(Failure::undone)?;
        }
        Ok(())
    }

    /// From now on its statements end within the limit of `watch`, at the server as well.
    pub(crate) async fn keep_within(&mut self, watch: &Arc<Watch>) -> Result<(), Failure> {
        self.watch = Arc::clone(watch);
        if watch.limit() == self.limit {
            return Ok(());
        }
        self.set_limits(self.lock_timeout, watch.limit()).await
    }

    /// Sets the time limits of the server to those of the client; those that it has where that fails are known.
    async fn set_limits(&mut self, lock_timeout: Duration, limit: Duration) -> Result<(), Failure> {
        if self.mode == Mode::Direct {
            let settings = SessionSettings::session(lock_timeout, limit);
            let applying = apply_session_settings(&mut self.connection, settings);
            let state = self.watch.within(applying).await;
            self.answered(&Arc::clone(&self.watch), state)?;
        }
        (self.lock_timeout, self.limit) = (lock_timeout, limit);
        Ok(())
    }

    /// Runs work that makes its own transactions on the connection itself, and keeps to its own time limits.
    pub(crate) async fn run<T>(
        &mut self,
        work: impl for<'a> FnOnce(
            &'a mut DriverConnection,
        )
            -> Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>,
    ) -> Result<T, Failure> {
        let watch = Arc::clone(&self.watch);
        self.check_epoch(&watch).await?;
        let outcome = work(&mut self.connection).await;
        if outcome.as_ref().is_err_and(|failure| failure.broken) {
            self.cancel_running();
        }
        outcome
    }

    /// Runs a batch in a transaction of its own, within the time limit.
    pub(crate) async fn perform<O: Operation>(
        &mut self,
        batch: &[O],
    ) -> Result<Vec<O::Output>, Failure> {
        let mut query = Query::new(batch);
        self.run_query(&mut query).await?;
        Ok(query.into_answers())
    }

    /// The same without the type of the operation.
    pub(crate) async fn run_query(&mut self, query: &mut dyn AnyQuery) -> Result<(), Failure> {
        let watch = Arc::clone(&self.watch);
        self.run_watched(&watch, query).await
    }

    /// Runs a batch in a transaction of its own, within the limit of `watch`.
    pub(crate) async fn perform_within<O: Operation>(
        &mut self,
        watch: &Arc<Watch>,
        batch: &[O],
    ) -> Result<Vec<O::Output>, Failure> {
        let usual = self.limit;
        self.set_limits(self.lock_timeout, watch.limit())
            .await
            .map_err(Failure::undone)?;
        let mut query = Query::new(batch);
        let performed = self.run_watched(watch, &mut query).await;
        // What was refused or cancelled leaves a connection that is used on.
        if performed
            .as_ref()
            .err()
            .is_none_or(|failure| !failure.broken)
        {
            self.set_limits(self.lock_timeout, usual).await?;
        }
        performed?;
        Ok(query.into_answers())
    }

    async fn run_watched(
        &mut self,
        watch: &Arc<Watch>,
        query: &mut dyn AnyQuery,
    ) -> Result<(), Failure> {
        let (name, requests) = (query.name(), query.len());
        let performed = async {
            self.check_epoch(watch).await?;
            let performed = async {
                match self.mode {
                    Mode::Direct => run_query(&mut self.connection, query).await,
                    Mode::Proxied => self.run_proxied(query).await,
                }
            };
            let performed = watch.within(performed).await;
            match self.answered(watch, performed) {
                Ok(()) => Ok(()),
                Err(failure) => Err(self.explained(watch, failure).await),
            }
        };
        telemetry::statement(name, requests, performed).await
    }

    /// Tells which version of the schema there is, where something of it is missing.
    async fn explained(&mut self, watch: &Arc<Watch>, failure: Failure) -> Failure {
        if failure.broken || !version::is_missing(&failure) {
            return failure;
        }
        let explaining = version::explain(&mut self.connection, failure);
        match watch.within(explaining).await {
            Some(failure) => failure,
            None => self.unanswered(watch),
        }
    }

    /// Runs work in a transaction, which is committed unless the work fails.
    pub(crate) async fn run_in_transaction<T>(
        &mut self,
        work: impl for<'a> FnOnce(
            &'a mut DriverConnection,
        )
            -> Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>,
    ) -> Result<T, Failure> {
        let settings = SessionSettings::transaction(self.lock_timeout, self.limit);
        let watch = Arc::clone(&self.watch);
        self.check_epoch(&watch).await?;
        let now = watch.now();
        let epochs = (self.mode == Mode::Proxied).then_some((&*self.epochs, now));
        let connection = &mut self.connection;
        let transaction = async {
            let done = async {
                begin_with_settings(connection, settings, epochs).await?;
                work(connection).await
            };
            match done.await {
                Ok(done) => commit(connection).await.map(|()| done),
                Err(failure) => Err(roll_back(connection, failure).await),
            }
        };
        let outcome = watch.within(transaction).await;
        match self.answered(&watch, outcome) {
            Ok(done) => Ok(done),
            Err(failure) => Err(self.explained(&watch, failure).await),
        }
    }

    /// Sends nothing more to a server that another has taken over from, or that has begun another epoch.
    async fn check_epoch(&mut self, watch: &Arc<Watch>) -> Result<(), Failure> {
        match self.enter_epoch(watch).await {
            Ok(()) => Ok(()),
            Err(failure) => Err(self.explained(watch, failure).await),
        }
    }

    async fn enter_epoch(&mut self, watch: &Arc<Watch>) -> Result<(), Failure> {
        if self.mode == Mode::Proxied {
            return Ok(());
        }
        let now = watch.now();
        let number = match self.epoch {
            Some(entered) if !entered.is_old(now) => return self.epochs.check(entered.number),
            // What it has locked is of the epoch that it entered first.
            Some(Entered { number, .. }) => {
                let entering = self.epochs.enter_again(&mut self.connection);
                let entered = watch.within(entering).await;
                self.answered(watch, entered).map_err(Failure::undone)?;
                number
            }
            None => {
                let settings = SessionSettings::session(self.lock_timeout, self.limit);
                let (epochs, connection) = (&self.epochs, &mut self.connection);
                // It is rare, and every statement would have the room for it.
                let entering = Box::pin(async {
                    let state = apply_session_settings(connection, settings).await?;
                    epochs.enter(connection, state).await
                });
                let entered = watch.within(entering).await;
                match self.answered(watch, entered).map_err(Failure::undone)? {
                    Some(number) => number,
                    None => return Ok(()),
                }
            }
        };
        self.epoch = Some(Entered { number, at: now });
        self.epochs.check(number)
    }

    /// Tells the server when an answer is no longer waited for.
    fn answered<T>(
        &mut self,
        watch: &Watch,
        outcome: Option<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.used = watch.now();
        outcome.unwrap_or_else(|| Err(self.unanswered(watch)))
    }

    fn unanswered(&mut self, watch: &Watch) -> Failure {
        self.cancel_running();
        watch.silence()
    }

    /// Gives the connection up, and has the server cancel what it still runs.
    pub(super) fn cancel(mut self) {
        self.cancel_running();
    }

    /// Once: afterwards the connection is not used any more.
    fn cancel_running(&mut self) {
        if let Some(process) = self.process.take() {
            Arc::clone(&self.cancels).cancel(process);
        }
    }

    /// Behind a proxy a transaction is what keeps the statement and its settings together.
    async fn run_proxied(&mut self, query: &mut dyn AnyQuery) -> Result<(), Failure> {
        let settings = SessionSettings::transaction(self.lock_timeout, self.limit);
        let now = self.watch.now();
        let connection = &mut self.connection;
        let done = async {
            begin_with_settings(connection, settings, Some((&self.epochs, now))).await?;
            run_query(connection, query).await
        };
        match done.await {
            Ok(()) => commit(connection).await,
            Err(failure) => Err(roll_back(connection, failure).await),
        }
    }
}

/// How many sessions of a proxy enter the epoch, one after the other, until a transaction meets one that
/// has.
const SESSIONS: usize = 16;

/// Begins a transaction, in a session that has entered the epoch of the server, if there is one. An epoch that it begins is
/// committed before the work: it must not be undone with it.
async fn begin_with_settings<N: Connection>(
    connection: &mut N,
    settings: SessionSettings,
    epochs: Option<(&Epochs, Time)>,
) -> Result<(), Failure> {
    for _ in 0..SESSIONS {
        begin(connection).await?;
        let state = apply_settings(connection, settings.clone()).await?;
        let Some((epochs, now)) = epochs else {
            return Ok(());
        };
        if epochs.has_entered(state, now) {
            return Ok(());
        }
        let Some(number) = epochs.enter(connection, state).await? else {
            return Ok(());
        };
        let Some(process) = state.process.filter(|_| number > 0) else {
            return Ok(());
        };
        let entered = Entered { number, at: now };
        let is_committed = epochs.is_committed(number);
        if !is_committed {
            connection.script(Script::Commit).await?;
        }
        epochs.remember(process, entered);
        // A pooler may have many sessions, and give each transaction another.
        if is_committed {
            return Ok(());
        }
    }
    let message =
        "the pooler gave each transaction a session that had not entered the epoch; try again";
    let error = Error::new(ErrorKind::Unavailable, "connect", message);
    Err(Failure::connect(None, error))
}

async fn commit(connection: &mut DriverConnection) -> Result<(), Failure> {
    connection.script(Script::Commit).await
}

/// Undoes a transaction whose work failed. What failed before the commit was sent did not happen.
async fn roll_back(connection: &mut DriverConnection, mut failure: Failure) -> Failure {
    if !failure.broken {
        failure.broken = connection.script(Script::Rollback).await.is_err();
    }
    failure.undone()
}
