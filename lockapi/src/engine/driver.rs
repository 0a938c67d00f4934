//! A driver without its type: the engine is compiled once, and not for each backend crate.
//!
//! A statement costs one allocation for its future.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::driver::{
    BackgroundTask, Call, Connection, Connector, Library, Listener, Mode, Rows, Script, Transaction,
};
use crate::error::Failure;

/// Opens connections of some driver; clones are one and the same.
#[derive(Clone)]
pub(crate) struct Driver(Arc<dyn AnyConnector>);

impl Driver {
    pub(crate) fn new(connector: impl Connector) -> Self {
        Self(Arc::new(connector))
    }

    /// See [`Connector::SERVER`].
    pub(crate) fn has_server(&self) -> bool {
        self.0.has_server()
    }

    /// See [`Connector::THREADS`].
    pub(crate) fn has_threads(&self) -> bool {
        self.0.has_threads()
    }

    /// See [`Connector::connect`].
    pub(crate) async fn connect(&self, mode: Mode) -> Result<DriverConnection, Failure> {
        self.0.connect(mode).await.map(DriverConnection)
    }

    /// See [`Connector::listener`].
    pub(crate) async fn listener(&self) -> Result<DriverListener, Failure> {
        self.0.listener().await.map(DriverListener)
    }

    /// See [`Connector::spawn`].
    pub(crate) fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.0.spawn(name, task);
    }
}

/// A connection of some driver.
pub(crate) struct DriverConnection(Box<dyn AnyConnection>);

impl Connection for DriverConnection {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        self.0.run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.script(script).await
    }

    fn superseded(&self) {
        self.0.superseded();
    }
}

/// A connection of the program, borrowed for an operation in its transaction.
pub(crate) struct CallerConnection<'c>(Box<dyn AnyConnection + 'c>);

impl<'c> CallerConnection<'c> {
    pub(crate) fn new<L: Library>(transaction: &'c mut (impl Transaction<L> + ?Sized)) -> Self {
        Self(Box::new(transaction.connection()))
    }
}

impl Connection for CallerConnection<'_> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        self.0.run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.script(script).await
    }
}

/// A connection of some driver that hears notifications.
pub(crate) struct DriverListener(Box<dyn AnyListener>);

impl Connection for DriverListener {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        self.0.run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.script(script).await
    }

    fn superseded(&self) {
        self.0.superseded();
    }
}

impl Listener for DriverListener {
    async fn next(&mut self) -> Result<String, Failure> {
        self.0.next().await
    }
}

type Opening<'a, T> = BoxFuture<'a, Result<Box<T>, Failure>>;

trait AnyConnector: Send + Sync {
    fn has_server(&self) -> bool;
    fn has_threads(&self) -> bool;
    fn connect(&self, mode: Mode) -> Opening<'_, dyn AnyConnection>;
    fn listener(&self) -> Opening<'_, dyn AnyListener>;
    fn spawn(&self, name: &'static str, task: BackgroundTask);
}

impl<C: Connector> AnyConnector for C {
    fn has_server(&self) -> bool {
        C::SERVER
    }

    fn has_threads(&self) -> bool {
        C::THREADS
    }

    fn connect(&self, mode: Mode) -> Opening<'_, dyn AnyConnection> {
        Box::pin(async move {
            let connection = Connector::connect(self, mode).await?;
            Ok(Box::new(connection) as Box<_>)
        })
    }

    fn listener(&self) -> Opening<'_, dyn AnyListener> {
        Box::pin(async move {
            let listener = Connector::listener(self).await?;
            Ok(Box::new(listener) as Box<_>)
        })
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        Connector::spawn(self, name, task);
    }
}

trait AnyConnection: Send {
    fn run<'a>(&'a mut self, call: Call<'a>) -> BoxFuture<'a, Result<Rows, Failure>>;
    fn script(&mut self, script: Script) -> BoxFuture<'_, Result<(), Failure>>;
    fn superseded(&self);
}

impl<N: Connection> AnyConnection for N {
    fn run<'a>(&'a mut self, call: Call<'a>) -> BoxFuture<'a, Result<Rows, Failure>> {
        Box::pin(Connection::run(self, call))
    }

    fn script(&mut self, script: Script) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(Connection::script(self, script))
    }

    fn superseded(&self) {
        Connection::superseded(self);
    }
}

trait AnyListener: AnyConnection {
    fn next(&mut self) -> BoxFuture<'_, Result<String, Failure>>;
}

impl<L: Listener> AnyListener for L {
    fn next(&mut self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(Listener::next(self))
    }
}
