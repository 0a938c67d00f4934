//! Fencing tokens.

use std::fmt;
use std::sync::Arc;

use crate::driver::{Connection, Library, Transaction};
use crate::engine::CallerConnection;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::key::Key;
use crate::{lease, mutex};

/// How far a value of the sequence is shifted to make room for hand-overs.
pub(crate) const HAND_OVER_BITS: u32 = 10;

/// Whether a mutex was handed over within a process under this token.
pub(crate) fn is_hand_over(token: i64) -> bool {
    token & ((1 << HAND_OVER_BITS) - 1) != 0
}

/// A fencing token: a number that is larger for each later holder of a key.
///
/// Pass [`token`](Self::token) to a resource outside the database, which must refuse tokens smaller
/// than the largest one it has received. For writes to the same PostgreSQL database,
/// [`check_in`](Self::check_in) compares it inside the transaction of the write.
///
/// # Guarantees
/// Of two holders of one key, the later has the larger token: across hand-overs in a process,
/// across processes, backends, restarts and crashes of the server, and fail-overs to standbys that
/// had not received every commit. Tokens of different keys do not say anything about each other. They have
/// up to 63 bits: formats whose numbers are floating-point, such as JSON in many languages, do not keep them,
/// so write them as text there.
#[derive(Clone)]
pub struct Fence {
    pub(crate) token: i64,
    pub(crate) namespace: Arc<str>,
    pub(crate) key: Key,
    pub(crate) hold: Arc<Hold>,
    pub(crate) proof: Proof,
}

/// How a transaction can verify that the holder still holds.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// The rows of these slots of the key.
    Lease(Arc<[i64]>),
    /// The advisory lock that the session of the mutex keeps for as long as it lives.
    Session(i64),
}

impl Fence {
    /// The number.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.token
    }

    /// The key of the lock.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Rejects this holder inside the transaction that is open on `connection`, unless it still holds.
    /// The examples of the backend crates show it on each library. Without an open transaction the
    /// check protects nothing that follows.
    ///
    /// # Guarantees
    /// Lease: until the transaction ends, the lease is granted to no other holder. Mutex: the session
    /// that holds the lock was alive, and no later holder has checked in; a later holder's own check-in
    /// waits for this transaction to end.
    ///
    /// Check in first and read afterwards: the check may have waited for an earlier holder that was
    /// about to commit, and only a statement after it sees what that holder wrote.
    ///
    /// Successors wait for this transaction to end, beyond any time to live. The connection is yours,
    /// and its timeouts are not changed: if its host may vanish, let the server detect that, with
    /// `tcp_keepalives_idle`, `tcp_user_timeout` and `idle_in_transaction_session_timeout` of its role,
    /// or the successor waits for as long as the server considers this transaction alive.
    ///
    /// # Cancel safety
    /// When dropped, the transaction goes on with or without the check.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock is no longer held, and those of the connection.
    pub fn check_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
    ) -> L::Outcome<'c, Result<()>> {
        let mut connection = CallerConnection::new(connection);
        L::outcome(Box::pin(async move { self.check(&mut connection).await }))
    }

    /// The slot of a lease that has one.
    pub(crate) fn slot(&self) -> Option<i64> {
        match &self.proof {
            Proof::Lease(slots) => slots.first().copied(),
            Proof::Session(_) => None,
        }
    }

    /// See [`check_in`](Self::check_in).
    pub(crate) async fn check(&self, connection: &mut CallerConnection<'_>) -> Result<()> {
        const OPERATION: &str = "check_in";
        let lost = || {
            Error::new(
                ErrorKind::Lost,
                OPERATION,
                format!(
                    "token {} is not, or is no longer, the token of the holder",
                    self.token
                ),
            )
            .on(&self.key)
        };
        if !self.hold.is_held() {
            return Err(lost());
        }
        let answers = match &self.proof {
            Proof::Lease(slots) => {
                let check = lease::Check {
                    namespace: self.namespace.to_string(),
                    key: self.key.to_string(),
                    slots: Arc::clone(slots),
                    fence: self.token,
                };
                connection.perform(&[check]).await
            }
            Proof::Session(session) => {
                // The lock has one mark, whatever its holders call it: a number is the same in all namespaces.
                let check = mutex::Check {
                    session: *session,
                    namespace: String::new(),
                    key: self.key.lock_id(&self.namespace).to_string(),
                    fence: self.token,
                };
                connection.perform(&[check]).await
            }
        };
        match answers {
            Ok(answers) if answers == [true] => Ok(()),
            Ok(_) => Err(lost()),
            Err(failure) => Err(failure.error(OPERATION).on(&self.key)),
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({} of {:?})", self.token, self.key)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.token.fmt(f)
    }
}
