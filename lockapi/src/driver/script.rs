//! Scripts: statements without parameters, whose rows are ignored.

use super::call::without_comment;

/// What a driver runs as it is, in one round trip.
///
/// Most drivers send [`sql`](Self::sql) and need not know more. One whose library has calls for
/// transactions or notifications may use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Script {
    /// Begins a transaction, with this text.
    Begin(&'static str),
    /// Commits the transaction that is open.
    Commit,
    /// Fails where the transaction that is open can only be rolled back, because a statement of it has failed.
    CheckTransaction,
    /// Rolls the transaction back that is open.
    Rollback,
    /// Makes the session listen on the channel of this library.
    Listen,
    /// Makes it stop listening.
    Unlisten,
    /// Statements that do none of this.
    Run(&'static str),
}

impl Script {
    /// The text to send.
    #[must_use]
    pub const fn sql(self) -> &'static str {
        without_comment(match self {
            Self::Begin(sql) | Self::Run(sql) => sql,
            Self::Commit => include_str!("commit.sql"),
            Self::CheckTransaction => include_str!("check_transaction.sql"),
            Self::Rollback => include_str!("rollback.sql"),
            Self::Listen => include_str!("listen.sql"),
            Self::Unlisten => include_str!("unlisten.sql"),
        })
    }
}
