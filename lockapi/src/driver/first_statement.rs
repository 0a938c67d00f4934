//! The first statement of a session, of whose role nothing is known yet.

use super::{Connection, Operation, Script};
use crate::error::Failure;

/// Begins a transaction that the settings of the role do not reach.
pub const BEGIN: &str = include_str!("begin_first.sql");

/// Performs the first statement of a session. Where a setting of the role is in its way, it is performed again in a
/// transaction that has its own: a standby serves nothing that is serializable, and a limit may be a millisecond.
pub(crate) async fn perform_first<N: Connection, O: Operation>(
    connection: &mut N,
    one: O,
) -> Result<Vec<O::Output>, Failure> {
    let one = std::slice::from_ref(&one);
    let done = connection.perform(one).await;
    let by_the_role = |failure: &Failure| {
        !failure.broken && matches!(failure.sqlstate.as_deref(), Some("0A000" | "57014"))
    };
    if !done.as_ref().is_err_and(by_the_role) {
        return done;
    }
    // It is rare, and every statement would have the room for it.
    Box::pin(perform_in_transaction(connection, one)).await
}

/// Performs a statement in a transaction of its own, that the settings of the role do not reach. A proxy may give the parts
/// of a message to several sessions otherwise: a driver that prepares first would execute what another client has prepared.
pub(crate) async fn perform_in_transaction<N: Connection, O: Operation>(
    connection: &mut N,
    one: &[O],
) -> Result<Vec<O::Output>, Failure> {
    let begun = connection.script(Script::Begin(BEGIN)).await;
    // It may have begun, and failed then.
    begun.map_err(|failure| Failure {
        broken: true,
        ..failure
    })?;
    match connection.perform(one).await {
        Ok(done) => {
            connection.script(Script::Commit).await?;
            Ok(done)
        }
        Err(mut failure) => {
            failure.broken |= connection.script(Script::Rollback).await.is_err();
            Err(failure)
        }
    }
}
