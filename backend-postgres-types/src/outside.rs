//! Whether a transaction is open on a client, of which the libraries know only those that they have begun.

use lockapi::{Error as Refusal, ErrorKind};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, SimpleQueryMessage};

/// Reads the answer to [`OUTSIDE`](lockapi::versioned::marked::OUTSIDE).
///
/// # Errors
/// `Invalid` where a transaction is open; those of the connection.
pub fn check_outside(answer: Result<Vec<SimpleQueryMessage>, Error>) -> Result<(), Refusal> {
    let outside = match answer {
        Ok(messages) => messages.iter().any(
            |message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")),
        ),
        Err(error) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => false,
        // Nothing but this was sent.
        Err(error) => return Err(crate::not_connected(error).error("transact")),
    };
    if outside {
        return Ok(());
    }
    let message = "a transaction is open on the client, perhaps one that was given up; end it first, or take another client";
    Err(Refusal::new(ErrorKind::Invalid, "transact", message))
}
