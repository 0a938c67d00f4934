//! Connections of the program, for operations inside its own transactions.

use std::future::Future;
use std::pin::Pin;

use super::connector::Connection;

/// A future whose type is not named.
pub type BoxFuture<'c, T> = Pin<Box<dyn Future<Output = T> + Send + 'c>>;

/// A database library of the program: whether its calls are async or block.
pub trait Library {
    /// The return type of a method that computes a `T`: a future for an async library, the value itself
    /// for a blocking one.
    type Outcome<'c, T: Send + 'c>;

    /// Returns the future, or runs it on the thread of the caller, with
    /// [`block_on`](crate::blocking::block_on).
    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> Self::Outcome<'c, T>;
}

/// A connection of the program, on which a transaction of the program is open.
///
/// Backend crates implement it for the connections and transactions of their library, so that
/// [`push_in`](../queue/trait.Queue.html#method.push_in), [`ack_in`](crate::queue::Delivery::ack_in),
/// [`lock_in`](../mutex/trait.Mutex.html#method.lock_in), [`check_in`](crate::Fence::check_in),
/// [`check_all_in`](../limit/trait.RateLimiter.html#method.check_all_in) and
/// [`lock_table_in`](crate::table::lock_table_in) take them. Nothing is imported, and `L` is inferred.
/// A crate that mentions its backend crate nowhere else needs `use lockapi_sqlx as _;`, so that the
/// compiler finds the implementations. The methods are those of `dyn Queue`, `dyn Mutex` and `dyn
/// RateLimiter`, as all conveniences are: code that is generic over them passes `&dyn`.
///
/// With an async library these methods return futures, with a blocking one they block; the examples of
/// the backend crates show both.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a connection or transaction of a library that has a backend",
    note = "pass the connection itself, such as `&mut *tx` of whatever dereferences to it",
    note = "a crate that names its backend crate nowhere needs `use lockapi_sqlx as _;`, or `lockapi_diesel`, `lockapi_diesel_async`, `lockapi_postgres`, `lockapi_tokio_postgres`"
)]
pub trait Transaction<L: Library>: Send {
    /// The connection, as this crate uses it.
    type Connection<'c>: Connection + 'c
    where
        Self: 'c;

    /// Borrows the connection.
    fn connection(&mut self) -> Self::Connection<'_>;
}
