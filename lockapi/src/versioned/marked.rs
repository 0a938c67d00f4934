//! How `transact` of the backend crates begins the transaction of an attempt, and recognises it before the
//! commit.

use std::cmp::Ordering;

use crate::driver::{Connection, Library, Script, Transaction, without_comment};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::ENDED;

/// Begins a transaction and marks it.
pub const BEGIN: &str = without_comment(include_str!("begin_work.sql"));

/// Marks a transaction that the library has begun.
pub const MARK: &str = without_comment(include_str!("mark_work.sql"));

/// Asks whether no transaction is open; to be sent as a simple query.
pub const OUTSIDE: &str = without_comment(include_str!("outside.sql"));

const CHECK: Script = Script::Run(include_str!("check_work.sql"));

/// Checks that the transaction on `connection` is the one that was marked, and can be committed.
///
/// # Cancel safety
/// When dropped, the transaction goes on.
///
/// # Errors
/// `Invalid` when it is not; those of the connection.
pub fn check<L: Library, C: Transaction<L> + ?Sized>(
    connection: &mut C,
) -> L::Outcome<'_, Result<()>> {
    L::outcome(Box::pin(async move {
        let mut connection = connection.connection();
        let checked = connection.script(CHECK).await;
        checked.map_err(|failure| failure.error_before_commit("commit"))
    }))
}

/// Checks that so many transactions are open within each other, for the library, as there were when the work began. It
/// would end an inner one in place of the one that is to be committed.
///
/// # Errors
/// `Invalid` when there are more or fewer.
pub fn check_depth(begun: usize, found: usize) -> Result<()> {
    let message = match found.cmp(&begun) {
        Ordering::Equal => return Ok(()),
        Ordering::Less => ENDED,
        Ordering::Greater => {
            "nothing is written: the work has left a transaction open inside of its own, perhaps one whose future was \
             dropped, or whose panic was caught; end it, or return an error"
        }
    };
    Err(Error::new(ErrorKind::Invalid, "commit", message))
}
