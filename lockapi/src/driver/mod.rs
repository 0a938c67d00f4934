//! What a database driver implements, and what it exchanges with this crate.
//!
//! Everything that a primitive does to the database is an [`Operation`]: one constant SQL
//! statement over arrays, the values it sends, how its rows are read, and what it means on the
//! in-memory [`ModelState`](crate::memory::ModelState). A driver only has to run a [`Call`]: send
//! [`Value`]s, read [`Value`]s back, and say how a failure looks. See [`Connector`] for what a
//! backend crate implements.

pub(crate) mod call;
pub(crate) mod columns;
mod connector;
pub(crate) mod pooled;
mod script;
mod threaded;
mod transaction;
mod value;

pub(crate) use call::Operation;
pub use call::{Call, Statement};
pub use connector::{BackgroundTask, Connection, Connector, Listener, Mode};
pub use pooled::BorrowedConnection;
pub use script::Script;
pub use threaded::{
    BlockingConnection, BlockingConnector, BlockingListener, Inline, Threaded, ThreadedConnection,
};
pub use transaction::{BoxFuture, Library, Transaction};
pub use value::{Row, Rows, Type, Value};

pub use crate::swept::Swept;
