//! Connecting, running statements and classifying failures.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use lockapi::Failure;
use lockapi::driver::{
    BackgroundTask, Call, Connection, Connector, Listener, Mode, Rows, Runtime, Script, within,
};
use lockapi_postgres_types::{Param, decode, failed, native, not_connected, param};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, GenericClient, Socket};

/// What a backend needs of a TLS connector: [`NoTls`](tokio_postgres::NoTls) and those of
/// `tokio-postgres-rustls`, `postgres-native-tls` and `postgres-openssl` have it.
pub trait Tls:
    MakeTlsConnect<
        Socket,
        Stream: Send + 'static,
        TlsConnect: TlsConnect<Socket, Future: Send> + Send,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<T> Tls for T where
    T: MakeTlsConnect<
            Socket,
            Stream: Send + 'static,
            TlsConnect: TlsConnect<Socket, Future: Send> + Send,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Opens connections of its own to one host.
#[derive(Clone)]
pub(crate) struct Opening<T> {
    pub(crate) config: Config,
    pub(crate) tls: T,
    pub(crate) runtime: Runtime,
    /// How long the server has to answer, where the engine's limit is that of several.
    pub(crate) limit: Option<Duration>,
}

impl<T: Tls> Connector for Opening<T> {
    type Connection = Owned;
    type Listener = Owned;

    async fn connect(&self, mode: Mode) -> Result<Owned, Failure> {
        let connecting = self.config.connect(self.tls.clone());
        let opened = async { connecting.await.map_err(not_connected) };
        let (client, socket) = within(self.limit, opened).await?;
        let (sender, heard) = mpsc::unbounded_channel();
        Ok(Owned {
            client,
            socket: self.runtime.spawn(serve(socket, sender)),
            heard,
            prepared: (mode == Mode::Direct).then(HashMap::new),
        })
    }

    async fn listener(&self) -> Result<Owned, Failure> {
        self.connect(Mode::Direct).await
    }

    fn spawn(&self, _: &'static str, task: BackgroundTask) {
        // The task ends by itself; its handle is of no use.
        drop(self.runtime.spawn(task));
    }
}

/// Sends and receives for a client until either end closes, and passes on what it is notified of.
async fn serve<S>(mut socket: tokio_postgres::Connection<Socket, S>, heard: UnboundedSender<String>)
where
    S: tokio_postgres::tls::TlsStream + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| socket.poll_message(context)).await {
        if let AsyncMessage::Notification(notification) = message {
            // The connection may be gone already.
            let _gone = heard.send(notification.payload().to_owned());
        }
    }
}

/// A connection that a task owns.
pub(crate) struct Owned {
    client: Client,
    socket: JoinHandle<()>,
    heard: UnboundedReceiver<String>,
    /// By the names of the statements; `None` where a proxy keeps no prepared statements.
    prepared: Option<HashMap<&'static str, tokio_postgres::Statement>>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Without its client the task would still wait for the answer to what was sent.
        self.socket.abort();
    }
}

impl Connection for Owned {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        check_open(&self.client)?;
        let Some(prepared) = &mut self.prepared else {
            return run_unnamed(&self.client, call).await;
        };
        let (statement, params) = call.query();
        let query = match prepared.entry(statement.name) {
            Entry::Occupied(query) => query.into_mut(),
            Entry::Vacant(place) => {
                let types = statement.params.iter().map(|of| native(*of));
                let types: Vec<_> = types.collect();
                let query = self.client.prepare_typed(statement.sql, &types).await;
                place.insert(query.map_err(failed)?)
            }
        };
        let params: Vec<Param> = params.into_iter().map(param).collect();
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| &**param as _).collect();
        decode(statement, self.client.query(query, &params).await)
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        run_script(&self.client, script).await
    }
}

impl Listener for Owned {
    async fn next(&mut self) -> Result<String, Failure> {
        let ended = || Failure::connect(None, "the server closed the connection");
        self.heard.recv().await.ok_or_else(ended)
    }
}

/// A client or a transaction of the caller as the engine sees one.
///
/// No prepared statement is left on it.
pub struct Borrowed<'a, C>(pub &'a mut C);

impl<C> fmt::Debug for Borrowed<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}

impl<C: GenericClient + Send + Sync> Connection for Borrowed<'_, C> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        check_open(self.0.client())?;
        run_unnamed(self.0, call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        run_script(self.0.client(), script).await
    }
}

/// The driver's own error would not tell that nothing was sent.
pub(crate) fn check_open(client: &Client) -> Result<(), Failure> {
    if client.is_closed() {
        return Err(Failure::connect(None, "the server closed the connection"));
    }
    Ok(())
}

/// Sends statement and parameters in one round trip, and leaves no prepared statement behind: nobody knows what is
/// between the program and the server.
async fn run_unnamed<C: GenericClient + Sync>(client: &C, call: Call<'_>) -> Result<Rows, Failure> {
    let (statement, params) = call.query();
    let types = statement.params.iter().map(|of| native(*of));
    let params: Vec<Param> = params.into_iter().map(param).collect();
    let params = params.iter().map(|param| &**param as &(dyn ToSql + Sync));
    let params: Vec<_> = params.zip(types).collect();
    decode(statement, client.query_typed(statement.sql, &params).await)
}

async fn run_script(client: &Client, script: Script) -> Result<(), Failure> {
    check_open(client)?;
    client.batch_execute(script.sql()).await.map_err(failed)
}
