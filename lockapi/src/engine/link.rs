//! A connection with everything that makes it safe to use: settings, mode and a time limit.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::clock::Time;
use super::keeper::Keeper;
use crate::error::{Error, ErrorKind, Failure};
use crate::memory::World;
use crate::seam::{Connection, Connector, Mode, Operation, Row, Rows, Statement, Type, Value};
use crate::telemetry;

const BEGIN: &str = include_str!("begin.sql");
const BEGIN_WRITE: &str = include_str!("begin_write.sql");
pub(crate) const COMMIT: &str = include_str!("commit.sql");
pub(crate) const ROLLBACK: &str = include_str!("rollback.sql");

/// Opens links to one database.
pub(crate) struct Links<C> {
    pub(crate) connector: Arc<C>,
    pub(crate) keeper: Keeper,
    pub(crate) mode: Mode,
    pub(crate) timeout: Duration,
}

impl<C: Connector> Links<C> {
    /// Opens a connection and settles its settings; refuses a standby. Its statements wait for a
    /// lock for `patience` at most, or without an end if that is zero.
    pub(crate) async fn open(
        &self,
        watch: &Arc<Watch>,
        patience: Duration,
    ) -> Result<Link<C::Connection>, Failure> {
        let opening = async {
            let mut connection = self.connector.connect(self.mode).await?;
            if self.mode == Mode::Direct {
                settle(&mut connection, Settle::session(patience)).await?;
            }
            Ok(connection)
        };
        let connection = watch.bound(opening).await.map_err(|mut failure| {
            // Whatever was sent so far had no effect beyond the connection.
            failure.sent = false;
            failure.broken = true;
            failure
        })?;
        Ok(Link {
            connection,
            mode: self.mode,
            watch: Arc::clone(watch),
            patience,
        })
    }

    pub(crate) fn watch(&self) -> Arc<Watch> {
        self.patient_watch(self.timeout)
    }

    /// A watch that gives the server at least `limit`.
    pub(crate) fn patient_watch(&self, limit: Duration) -> Arc<Watch> {
        Arc::new(Watch {
            keeper: self.keeper.clone(),
            limit: limit.max(self.timeout),
            state: Mutex::default(),
            abort: Notify::new(),
        })
    }
}

/// Settles the settings of a connection; refuses a standby.
pub(crate) async fn settle<N: Connection>(
    connection: &mut N,
    settle: Settle,
) -> Result<(), Failure> {
    let standby = connection.perform(&[settle]).await?;
    if standby == [true] {
        return Err(is_standby());
    }
    Ok(())
}

fn is_standby() -> Failure {
    let message =
        "the server is a hot standby; what is locked there excludes nobody who uses the primary";
    Failure::connect(None, Error::new(ErrorKind::Unavailable, "connect", message))
}

/// Opens a transaction that writes. Settings cannot make a transaction that is open a writing one.
pub(crate) async fn begin<N: Connection>(connection: &mut N) -> Result<(), Failure> {
    let begun = connection.script(BEGIN_WRITE).await;
    begun.map_err(|failure| match failure.sqlstate.as_deref() {
        Some("0A000") => is_standby(),
        _ => failure,
    })
}

/// An open connection.
pub(crate) struct Link<N> {
    connection: N,
    mode: Mode,
    watch: Arc<Watch>,
    patience: Duration,
}

impl<N: Connection> Link<N> {
    /// From now on statements wait for a lock for `patience` at most.
    pub(crate) async fn wait_for_locks(&mut self, patience: Duration) -> Result<(), Failure> {
        if self.patience != patience && self.mode == Mode::Direct {
            let settling = settle(&mut self.connection, Settle::session(patience));
            self.watch.bound(settling).await?;
        }
        self.patience = patience;
        Ok(())
    }

    /// The connection itself, for work that makes its own transactions.
    pub(crate) fn connection(&mut self) -> &mut N {
        &mut self.connection
    }

    /// Runs a batch in a transaction of its own, within the time limit.
    pub(crate) async fn perform<O: Operation>(
        &mut self,
        batch: &[O],
    ) -> Result<Vec<O::Output>, Failure> {
        let watch = Arc::clone(&self.watch);
        self.perform_within(&watch, batch).await
    }

    /// Runs a batch in a transaction of its own, within the limit of `watch`.
    pub(crate) async fn perform_within<O: Operation>(
        &mut self,
        watch: &Arc<Watch>,
        batch: &[O],
    ) -> Result<Vec<O::Output>, Failure> {
        let performed = watch.bound(async {
            match self.mode {
                Mode::Direct => self.connection.perform(batch).await,
                Mode::Proxied => self.perform_proxied(batch).await,
            }
        });
        telemetry::statement(O::STATEMENT.name, batch.len(), performed).await
    }

    /// Behind a proxy a transaction is what keeps the statement and its settings together.
    async fn perform_proxied<O: Operation>(
        &mut self,
        batch: &[O],
    ) -> Result<Vec<O::Output>, Failure> {
        begin(&mut self.connection).await?;
        let settled = Settle::transaction(self.patience);
        let done = async {
            settle(&mut self.connection, settled).await?;
            self.connection.perform(batch).await
        }
        .await;
        match done {
            Ok(answers) => {
                self.connection.script(COMMIT).await?;
                Ok(answers)
            }
            Err(failure) if failure.broken => Err(failure),
            Err(failure) => {
                self.connection.script(ROLLBACK).await?;
                Err(failure)
            }
        }
    }
}

/// Refuses a standby, and tells whether sessions are shared behind a transaction-pooling proxy.
///
/// One client leaves markers in its session; another, inside a transaction, looks for them. A
/// proxy gives the second client the server session that the first one has just left, or the
/// first one does not find its marker again.
pub(crate) async fn probe<C: Connector>(connector: &C) -> Result<Mode, Failure> {
    const ROUNDS: usize = 4;
    let mut one = connector.connect(Mode::Proxied).await?;
    one.script(BEGIN).await?;
    settle(&mut one, Settle::transaction(Duration::ZERO)).await?;
    one.script(COMMIT).await?;
    let mut other = connector.connect(Mode::Proxied).await?;
    let read = || [Marker(String::new())];
    for _ in 0..ROUNDS {
        let marker = format!("m{:016x}", fastrand::u64(..));
        mark(&mut one, Marker(marker.clone())).await?;
        // Where sessions take turns the next one has not got it, where the last one is used again
        // the other client finds it.
        if mark(&mut one, Marker(String::new())).await? != marker {
            return Ok(Mode::Proxied);
        }
        other.script(BEGIN).await?;
        if other.perform(&read()).await? == [marker.clone()] {
            // Where the proxy has one session only, the first client would wait for it for ever.
            other.script(COMMIT).await?;
            return Ok(Mode::Proxied);
        }
        let seen_here = mark(&mut one, Marker(String::new())).await?;
        other.script(COMMIT).await?;
        if seen_here != marker {
            return Ok(Mode::Proxied);
        }
    }
    mark(&mut one, Marker("-".to_owned())).await?;
    Ok(Mode::Direct)
}

async fn mark<N: Connection>(connection: &mut N, marker: Marker) -> Result<String, Failure> {
    connection.script(BEGIN).await?;
    let mut answers = connection.perform(&[marker]).await?;
    connection.script(COMMIT).await?;
    answers
        .pop()
        .ok_or_else(|| Failure::corrupt("the marker was not answered"))
}

/// Settles a connection's settings; a batch of one. Answers whether the server is a standby.
#[derive(Clone, Debug)]
pub struct Settle {
    /// For the open transaction only.
    pub local: bool,
    /// `lock_timeout`, with its unit.
    pub lock_timeout: String,
}

impl Settle {
    pub(crate) fn session(patience: Duration) -> Self {
        Self {
            local: false,
            lock_timeout: format!("{}ms", patience.as_millis()),
        }
    }

    fn transaction(patience: Duration) -> Self {
        Self {
            local: true,
            ..Self::session(patience)
        }
    }
}

impl Operation for Settle {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "engine.open",
        sql: include_str!("open.sql"),
        params: &[Type::Bool, Type::Text],
        columns: &[Type::Bool, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            [
                Value::Bool(one.local),
                Value::Text(one.lock_timeout.clone()),
            ]
        };
        batch.iter().take(1).flat_map(of).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(_: &[Self], _: &mut World, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Bool(false), Value::Int(0)])])
    }
}

/// Leaves, reads or takes away a marker in a session; a batch of one.
#[derive(Clone, Debug)]
pub struct Marker(pub String);

impl Operation for Marker {
    type Output = String;

    const STATEMENT: Statement = Statement {
        name: "engine.marker",
        sql: include_str!("marker.sql"),
        params: &[Type::Text],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|one| Value::Text(one.0.clone())).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<String>, Failure> {
        rows.into_iter().map(|mut row| row.text(0)).collect()
    }

    fn model(batch: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        let marker = world.marker(session, &batch.first()?.0);
        Some(vec![Row(vec![Value::Text(marker)])])
    }
}

/// Ends a statement that the server does not answer.
///
/// A timer for each statement would wake the keeper for each; this one looks at most once in
/// every limit.
pub(crate) struct Watch {
    keeper: Keeper,
    limit: Duration,
    state: Mutex<Watched>,
    abort: Notify,
}

#[derive(Default)]
struct Watched {
    since: Option<Time>,
    armed: bool,
}

impl Watch {
    /// Runs `work` within the limit.
    pub(crate) async fn bound<T>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.begin();
        let _busy = Busy(self);
        let silent = || {
            let message = format!("the server did not answer within {:?}", self.limit);
            Err(Failure::statement(None, true, message))
        };
        crate::wait::unless(self.abort.notified(), work)
            .await
            .unwrap_or_else(silent)
    }

    fn begin(self: &Arc<Self>) {
        let now = self.keeper.now();
        let mut state = self.lock();
        state.since = Some(now);
        if !std::mem::replace(&mut state.armed, true) {
            drop(state);
            self.arm(now);
        }
    }

    fn arm(self: &Arc<Self>, since: Time) {
        let watch = Arc::downgrade(self);
        self.keeper.run_at(since + self.limit, move || {
            if let Some(watch) = watch.upgrade() {
                watch.look();
            }
        });
    }

    fn look(self: &Arc<Self>) {
        let now = self.keeper.now();
        let mut state = self.lock();
        match state.since {
            None => state.armed = false,
            Some(since) if since + self.limit > now => {
                drop(state);
                self.arm(since);
            }
            Some(_) => {
                state.armed = false;
                // Under the lock: the statement that is aborted is the one that was looked at.
                self.abort.notify_waiters();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Busy<'a>(&'a Watch);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.lock().since = None;
    }
}
