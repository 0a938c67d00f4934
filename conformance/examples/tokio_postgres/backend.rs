//! A backend on tokio-postgres: connecting, running statements, telling what a failure looks like.

use std::collections::HashMap;
use std::future::poll_fn;
use std::str::FromStr;
use std::sync::Arc;

use lockapi::BackendOptions;
use lockapi::driver::{
    BackgroundTask, Call, Connection, Connector, Hosts, Listener, Mode, Row, Rows, Script,
    Statement, Type, Value, each_host, not_understood,
};
use lockapi::{Backend, Error, ErrorKind, Failure, Report, Result, Severity};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::types::{FromSql, ToSql, Type as PgType};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error as PgError, GenericClient, NoTls, Row as PgRow, Socket,
};

/// Connects a backend to a URL, such as `postgres://user@host/database`, or to the primary among several
/// hosts.
///
/// The work is done by tasks on the current tokio runtime, or on a runtime with one thread of the
/// backend's own when there is none.
///
/// # Errors
/// `Invalid` for bad options and for a URL that is not understood; `Unavailable` when no server can be
/// reached that is a primary.
pub async fn connect_url(url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    let (handle, mut own) = if let Ok(handle) = Handle::try_current() {
        (handle, None)
    } else {
        let runtime = own_runtime()?;
        (runtime.handle().clone(), Some(runtime))
    };
    let mut hosts = Vec::new();
    for url in each_host(url)? {
        // The parser's error may quote the URL, which may hold a password.
        let config = Config::from_str(&url).map_err(|_| not_understood())?;
        hosts.push(TokioPostgres {
            config,
            handle: handle.clone(),
            own: own.take(),
        });
    }
    lockapi::engine::start("tokio-postgres", Hosts::new(hosts)?, options).await
}

fn own_runtime() -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(1)
        .thread_name("lockapi")
        .enable_all();
    builder.build().map_err(|error| {
        let message = format!("the runtime of the backend could not be started: {error}");
        Error::new(ErrorKind::Unavailable, "connect", message)
    })
}

struct TokioPostgres {
    config: Config,
    handle: Handle,
    own: Option<Runtime>,
}

impl Drop for TokioPostgres {
    fn drop(&mut self) {
        if let Some(runtime) = self.own.take() {
            runtime.shutdown_background();
        }
    }
}

impl Connector for TokioPostgres {
    type Connection = Owned;
    type Listener = Owned;

    async fn connect(&self, mode: Mode) -> Result<Owned, Failure> {
        let connected = self.config.connect(NoTls).await.map_err(not_connected);
        let (client, socket) = connected?;
        let (sender, heard) = mpsc::unbounded_channel();
        Ok(Owned {
            client,
            socket: self.handle.spawn(serve(socket, sender)),
            heard,
            prepared: (mode == Mode::Direct).then(HashMap::new),
        })
    }

    async fn listener(&self) -> Result<Owned, Failure> {
        self.connect(Mode::Direct).await
    }

    fn spawn(&self, _: &'static str, task: BackgroundTask) {
        // The task ends by itself; its handle is of no use.
        drop(self.handle.spawn(task));
    }
}

/// Sends and receives for a client until either end closes, and passes on what it is notified of.
async fn serve(
    mut socket: tokio_postgres::Connection<Socket, NoTlsStream>,
    heard: UnboundedSender<String>,
) {
    while let Some(Ok(message)) = poll_fn(|context| socket.poll_message(context)).await {
        if let AsyncMessage::Notification(notification) = message {
            // The connection may be gone already.
            let _gone = heard.send(notification.payload().to_owned());
        }
    }
}

/// A connection that a task owns.
struct Owned {
    client: Client,
    socket: JoinHandle<()>,
    heard: UnboundedReceiver<String>,
    /// The prepared statements by their text; `None` where there must not be any.
    prepared: Option<HashMap<&'static str, tokio_postgres::Statement>>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Without its client the task would still wait for the answer to what was sent.
        self.socket.abort();
    }
}

impl Owned {
    /// The driver's own error would not tell that nothing was sent.
    fn check_open(&self) -> Result<(), Failure> {
        if self.client.is_closed() {
            return Err(Failure::connect(None, "the server closed the connection"));
        }
        Ok(())
    }
}

impl Connection for Owned {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        self.check_open()?;
        let Some(prepared) = &mut self.prepared else {
            return run_unnamed(&self.client, call).await;
        };
        let (statement, params) = call.query();
        if !prepared.contains_key(statement.sql) {
            let new = self.client.prepare(statement.sql).await.map_err(failed)?;
            prepared.insert(statement.sql, new);
        }
        let params: Vec<_> = params.into_iter().map(param).collect();
        let params: Vec<_> = params.iter().map(|param| &**param as _).collect();
        let answered = self.client.query(&prepared[statement.sql], &params).await;
        rows(statement, &answered.map_err(failed)?)
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.check_open()?;
        self.client
            .batch_execute(script.sql())
            .await
            .map_err(failed)
    }
}

impl Listener for Owned {
    async fn next(&mut self) -> Result<String, Failure> {
        let ended = || Failure::connect(None, "the server closed the connection");
        self.heard.recv().await.ok_or_else(ended)
    }
}

/// A connection of the caller, or a transaction on one.
#[derive(Debug)]
pub struct Borrowed<'a, C>(pub(crate) &'a mut C);

impl<C: GenericClient + Send + Sync> Connection for Borrowed<'_, C> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        run_unnamed(self.0, call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.batch_execute(script.sql()).await.map_err(failed)
    }
}

async fn run_unnamed<C: GenericClient + Sync>(client: &C, call: Call<'_>) -> Result<Rows, Failure> {
    let (statement, params) = call.query();
    let types = statement.params.iter().copied().map(pg_type);
    let params: Vec<_> = params.into_iter().map(param).collect();
    let params = params.iter().map(|param| &**param as &(dyn ToSql + Sync));
    let params: Vec<_> = params.zip(types).collect();
    let answered = client.query_typed(statement.sql, &params).await;
    rows(statement, &answered.map_err(failed)?)
}

fn not_connected(error: PgError) -> Failure {
    match report(&error) {
        Some(report) => Failure::connect(report.sqlstate().map(str::to_owned), report),
        None => Failure::connect(None, error),
    }
}

fn failed(error: PgError) -> Failure {
    match report(&error) {
        Some(report) => Failure::reported(report),
        // What is not an answer of the server is a lost connection, or one that is out of step.
        None => Failure::statement(None, true, error),
    }
}

/// What the server reports, without what may quote data.
fn report(error: &PgError) -> Option<Report> {
    let of_driver = error.as_db_error()?;
    let severity = match of_driver.severity() {
        "PANIC" => Severity::Panic,
        "FATAL" => Severity::Fatal,
        _ => match of_driver.parsed_severity() {
            Some(tokio_postgres::error::Severity::Panic) => Severity::Panic,
            Some(tokio_postgres::error::Severity::Fatal) => Severity::Fatal,
            _ => Severity::Error,
        },
    };
    let code = of_driver.code().code().to_owned();
    let report = Report::new(Some(code), of_driver.message())
        .severe(severity)
        .about(
            of_driver.constraint(),
            of_driver.table(),
            of_driver.column(),
        );
    Some(report)
}

fn pg_type(of: Type) -> PgType {
    PgType::from_oid(of.oid()).expect("a type that is built in")
}

fn param(value: Value) -> Box<dyn ToSql + Sync + Send> {
    match value {
        Value::Null(Type::Bool) => Box::new(None::<bool>),
        Value::Null(Type::Int) => Box::new(None::<i64>),
        Value::Null(Type::Text) => Box::new(None::<String>),
        Value::Null(Type::Bytes) => Box::new(None::<Vec<u8>>),
        Value::Null(Type::Bools) => Box::new(None::<Vec<bool>>),
        Value::Null(Type::Ints) => Box::new(None::<Vec<i64>>),
        Value::Null(Type::Texts) => Box::new(None::<Vec<String>>),
        Value::Bool(value) => Box::new(value),
        Value::Int(value) => Box::new(value),
        Value::Text(value) => Box::new(value),
        Value::Bytes(value) => Box::new(value),
        Value::Bools(values) => Box::new(values),
        Value::Ints(values) => Box::new(values),
        Value::Texts(values) => Box::new(values),
    }
}

fn rows(statement: &Statement, rows: &[PgRow]) -> Result<Rows, Failure> {
    rows.iter()
        .map(|answered| row(statement, answered))
        .collect()
}

fn row(statement: &Statement, row: &PgRow) -> Result<Row, Failure> {
    let found = row.columns().iter().map(|column| column.type_().oid());
    statement.check_columns(found.map(Some))?;
    let columns = statement.columns.iter().enumerate();
    let values: Result<_, PgError> = columns.map(|(at, of)| column(row, at, *of)).collect();
    let values =
        values.map_err(|error| Failure::corrupt(format!("{}: {error}", statement.name)))?;
    Ok(Row(values))
}

fn column(row: &PgRow, at: usize, of: Type) -> Result<Value, PgError> {
    fn get<'a, T: FromSql<'a>>(
        row: &'a PgRow,
        at: usize,
        of: Type,
        value: fn(T) -> Value,
    ) -> Result<Value, PgError> {
        let column: Option<T> = row.try_get(at)?;
        Ok(column.map_or(Value::Null(of), value))
    }
    match of {
        Type::Bool => get(row, at, of, Value::Bool),
        Type::Int => get(row, at, of, Value::Int),
        Type::Text => get(row, at, of, Value::Text),
        Type::Bytes => get(row, at, of, Value::Bytes),
        Type::Bools => get(row, at, of, Value::Bools),
        Type::Ints => get(row, at, of, Value::Ints),
        Type::Texts => get(row, at, of, Value::Texts),
    }
}
