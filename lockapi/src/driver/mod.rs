//! What a database driver implements, and what it exchanges with this crate.
//!
//! Everything that a primitive does to the database is an [`Operation`]: one constant SQL
//! statement over arrays, the values it sends, how its rows are read, and what it means on the
//! in-memory [`ModelState`](crate::memory::ModelState). A driver only has to run a [`Call`]: send
//! [`Value`]s, read [`Value`]s back, and say how a failure looks. See [`Connector`] for what a
//! backend crate implements.

mod call;
pub(crate) mod columns;
mod connector;
mod pooled;
mod threaded;
mod transaction;
mod value;

pub use call::{Batch, Call, Operation, Statement};
pub use connector::{BackgroundTask, Connection, Connector, Listener, Mode};
pub use pooled::{BorrowedConnection, Remember, Restore, Settings};
pub use threaded::{
    BlockingConnection, BlockingConnector, BlockingListener, Inline, Threaded, ThreadedConnection,
};
pub use transaction::{BoxFuture, Library, Transaction};
pub use value::{Row, Rows, Type, Value};

pub use crate::swept::Swept;
