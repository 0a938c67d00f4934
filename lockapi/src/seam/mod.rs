//! The seam between this crate and a database driver.
//!
//! Everything that a primitive does to the database is an [`Operation`]: one constant SQL
//! statement over arrays, the values it sends, how its rows are read, and what it means on the
//! in-memory [`World`](crate::memory::World). A driver only has to run a [`Call`]: send
//! [`Value`]s, read [`Value`]s back, and say how a failure looks. See [`Connector`] for what a
//! backend crate implements.

mod call;
pub(crate) mod columns;
mod connector;
mod hosted;
mod lent;
mod value;

pub use call::{Batch, Call, Operation, Statement};
pub use connector::{Connection, Connector, Lane, Listener, Mode};
pub use hosted::{
    BlockingConnection, BlockingConnector, BlockingListener, Hosted, HostedConnection, Inline,
};
pub use lent::{Lent, Remember, Restore, Settings};
pub use value::{Row, Rows, Type, Value};

pub use crate::swept::Swept;
