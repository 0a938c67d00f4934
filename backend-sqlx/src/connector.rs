//! Connecting, running statements and classifying failures.

use std::fmt;
use std::time::Duration;

use lockapi::driver::{
    BackgroundTask, Call, Connection, Connector, Listener, Mode, Rows, Runtime, Script, within,
};
use lockapi::{Failure, Report, Severity};
use sqlx::postgres::{
    PgConnectOptions, PgConnection, PgDatabaseError, PgListener, PgPoolOptions, PgSeverity,
};
use sqlx::{Acquire, Connection as _, Executor};

use super::{sqlx, value};

/// How many prepared statements a session keeps, which is more than it has. With none, which a program may have chosen for its own
/// connections, sqlx would prepare each once more with every use, and never close it.
const STATEMENTS: usize = 256;

/// Opens connections with the options of a pool.
pub(crate) struct SqlxConnector {
    connect: PgConnectOptions,
    /// What a pool is made of that opens one connection, as a program's pool does, which may have an `after_connect`.
    pool: Option<PgPoolOptions>,
    runtime: Runtime,
    /// How long the server has to answer, where the engine's limit is that of several.
    limit: Option<Duration>,
}

impl SqlxConnector {
    /// On this runtime; `limit` is for the server to answer in.
    pub(crate) fn new(
        runtime: Runtime,
        pool: Option<PgPoolOptions>,
        connect: PgConnectOptions,
        limit: Option<Duration>,
    ) -> Self {
        let pool = pool.map(opening);
        Self {
            connect: connect.statement_cache_capacity(STATEMENTS),
            pool,
            runtime,
            limit,
        }
    }

    /// Opens a connection without a pool.
    async fn open(&self, options: &PgConnectOptions) -> Result<PgConnection, Failure> {
        let opened = async {
            PgConnection::connect_with(options)
                .await
                .map_err(not_connected)
        };
        within(self.limit, opened).await
    }
}

/// A pool for one connection. It may be the child of another, of which it takes a permit until it is dropped.
fn opening(pool: PgPoolOptions) -> PgPoolOptions {
    pool.min_connections(0)
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .test_before_acquire(false)
}

/// The same, for connections whose statements are not kept by the server.
fn unprepared(connect: &PgConnectOptions) -> PgConnectOptions {
    connect.clone().statement_cache_capacity(0)
}

impl Connector for SqlxConnector {
    type Connection = Owned;
    type Listener = Listening;

    async fn connect(&self, mode: Mode) -> Result<Owned, Failure> {
        let named = mode == Mode::Direct;
        let options = if named {
            self.connect.clone()
        } else {
            unprepared(&self.connect)
        };
        let opened = self.open(&options).await?;
        let Some(pool) = &self.pool else {
            let connection = opened;
            return Ok(Owned { connection, named });
        };
        // A pool tries again and again where nobody listens, and then does not tell why. So the server was
        // asked without it first.
        let pool = pool.clone().connect_lazy_with(options);
        let (connection, _) = futures_util::join!(pool.acquire(), opened.close());
        let connection = connection.map_err(not_connected)?.detach();
        Ok(Owned { connection, named })
    }

    /// A listener cannot be taken out of its pool, and goes back to it when it is dropped; so it
    /// has one of its own, and that ends with it.
    async fn listener(&self) -> Result<Listening, Failure> {
        let closed = self.open(&self.connect).await?.close();
        let pool = self
            .pool
            .clone()
            .unwrap_or_else(|| opening(PgPoolOptions::new()));
        let pool = pool.connect_lazy_with(self.connect.clone());
        let (listener, _) = futures_util::join!(PgListener::connect_with(&pool), closed);
        let mut listener = listener.map_err(not_connected)?;
        // The engine connects again when it is told of the end.
        listener.eager_reconnect(false);
        Ok(Listening(listener))
    }

    fn spawn(&self, _: &'static str, task: BackgroundTask) {
        // The task ends by itself; its handle is of no use.
        drop(self.runtime.spawn(task));
    }
}

/// A connection that a task owns. Dropping it closes the socket, which ends the session.
pub(crate) struct Owned {
    connection: PgConnection,
    named: bool,
}

impl Connection for Owned {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        run(&mut self.connection, call, self.named).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        run_script(&mut self.connection, script).await
    }
}

/// A connection that hears notifications.
pub(crate) struct Listening(PgListener);

impl Connection for Listening {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let connection = self.0.acquire().await.map_err(not_connected)?;
        run(connection, call, true).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        let connection = self.0.acquire().await.map_err(not_connected)?;
        run_script(connection, script).await
    }
}

impl Listener for Listening {
    async fn next(&mut self) -> Result<String, Failure> {
        let heard = self.0.try_recv().await.map_err(failed)?;
        let ended = || Failure::connect(None, "the server closed the connection");
        let heard = heard.ok_or_else(ended)?;
        Ok(heard.payload().to_owned())
    }
}

/// A connection of the caller as the engine sees one.
pub struct Borrowed<'a>(pub &'a mut PgConnection);

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}

impl Connection for Borrowed<'_> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        // Nobody knows what is between the program and the server: behind a pooler a named statement may be
        // in another session, or there already.
        run(self.0, call, false).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        run_script(self.0, script).await
    }
}

async fn run(connection: &mut PgConnection, call: Call<'_>, named: bool) -> Result<Rows, Failure> {
    let (statement, params) = call.query();
    let arguments = value::arguments(&params)?;
    let query = sqlx::query_with(statement.sql, arguments).persistent(named);
    let rows = connection.fetch_all(query).await.map_err(failed)?;
    rows.iter().map(|row| value::row(statement, row)).collect()
}

async fn run_script(connection: &mut PgConnection, script: Script) -> Result<(), Failure> {
    // In this order for sqlx 0.8 as well, whose other way does not make a future that is `Send`.
    connection
        .execute(sqlx::raw_sql(script.sql()))
        .await
        .map(drop)
        .map_err(failed)
}

pub(crate) fn failed(error: sqlx::Error) -> Failure {
    match report(&error) {
        Some(report) => Failure::reported(report),
        None => Failure::statement(None, is_broken(&error), error),
    }
}

pub(crate) fn is_broken(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::PoolClosed
    )
}

fn not_connected(error: sqlx::Error) -> Failure {
    match report(&error) {
        Some(report) => Failure::connect(report.sqlstate().map(str::to_owned), report),
        None => Failure::connect(None, error),
    }
}

/// What the server reports, without what may quote data.
pub(crate) fn report(error: &sqlx::Error) -> Option<Report> {
    let of_driver = error.as_database_error()?;
    let of_driver: &PgDatabaseError = of_driver.try_downcast_ref()?;
    let severity = match of_driver.severity() {
        PgSeverity::Panic => Severity::Panic,
        PgSeverity::Fatal => Severity::Fatal,
        _ => Severity::Error,
    };
    let report = Report::new(Some(of_driver.code().to_owned()), of_driver.message())
        .severe(severity)
        .about(
            of_driver.constraint(),
            of_driver.table(),
            of_driver.column(),
        );
    Some(report)
}

pub(crate) fn sqlstate(error: &sqlx::Error) -> Option<String> {
    error
        .as_database_error()?
        .code()
        .map(std::borrow::Cow::into_owned)
}
