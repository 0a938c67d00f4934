//! What a database driver implements, and what it exchanges with this crate.
//!
//! Everything that a primitive does to the database is one constant SQL statement over arrays. A driver only
//! has to run a [`Call`]: send [`Value`]s, read [`Value`]s back, and describe a failure. See [`Connector`]
//! for what a backend crate implements.

pub(crate) mod call;
pub(crate) mod columns;
mod connector;
pub(crate) mod first_statement;
pub(crate) mod hosts;
mod messages;
pub(crate) mod pooled;
#[cfg(feature = "runtime")]
mod runtime;
mod script;
mod threaded;
mod transaction;
mod value;

pub(crate) use call::{AnyQuery, Operation, Query, without_comment};
pub use call::{Call, Statement};
pub(crate) use connector::run_query;
pub use connector::{BackgroundTask, Connection, Connector, Listener, Mode};
pub use hosts::{HOST_LIMIT, HostConnection, Hosts, each_host, not_understood};
pub use messages::sqlstate_of_message;
pub use pooled::BorrowedConnection;
#[cfg(feature = "runtime")]
pub use runtime::{Runtime, within};
pub use script::Script;
pub use threaded::{
    BlockingConnection, BlockingConnector, BlockingListener, Inline, Threaded, ThreadedConnection,
};
pub use transaction::{BoxFuture, Library, Transaction};
pub use value::{Row, Rows, Type, Value};

pub use crate::sweep::SweepResult;
