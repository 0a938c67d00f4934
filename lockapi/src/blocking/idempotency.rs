//! [`Idempotency`](crate::idempotency::Idempotency) for blocking callers.

use std::time::Duration;

use super::block_on;
use crate::driver::{Library, Transaction};
use crate::error::Result;
use crate::fence::Fence;
use crate::idempotency;

/// [Requests with keys](idempotency::Idempotency) for blocking callers.
///
/// ```
/// use lockapi::blocking::{self, Begun};
/// use lockapi::{idempotency::IdempotencyOptions, memory::Database};
///
/// let backend = blocking::Backend::connect(Database::new().connect())?;
/// let payments = backend.idempotency(IdempotencyOptions::default())?;
/// let Begun::Execute(execution) = payments.begin("user 7: 8e03978e", b"pay 100")? else {
///     unreachable!("it is the first");
/// };
/// execution.complete(b"paid".to_vec())?;
/// let again = payments.begin("user 7: 8e03978e", b"pay 100")?;
/// assert!(matches!(again, Begun::Replay(answer) if answer == b"paid"));
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Idempotency(idempotency::Idempotency);

impl From<idempotency::Idempotency> for Idempotency {
    fn from(requests: idempotency::Idempotency) -> Self {
        Self(requests)
    }
}

/// The state of a request with a key; see [`idempotency::Begun`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Begun {
    /// The first, or one whose predecessor ended without an answer: execute it.
    Execute(Execution),
    /// It was answered already, with this.
    Replay(Vec<u8>),
    /// The same request is being executed.
    InProgress,
    /// The key belongs to another request.
    Mismatch,
}

impl From<idempotency::Begun> for Begun {
    fn from(begun: idempotency::Begun) -> Self {
        match begun {
            idempotency::Begun::Execute(execution) => Self::Execute(Execution(execution)),
            idempotency::Begun::Replay(answer) => Self::Replay(answer),
            idempotency::Begun::InProgress => Self::InProgress,
            idempotency::Begun::Mismatch => Self::Mismatch,
        }
    }
}

impl Idempotency {
    /// Begins a request.
    ///
    /// # Errors
    /// As for [`Idempotency::begin`](idempotency::Idempotency::begin).
    pub fn begin(&self, key: &str, request: &[u8]) -> Result<Begun> {
        block_on(self.0.begin(key, request)).map(Begun::from)
    }

    /// As [`begin`](Self::begin), and waits for at most `timeout` while the same request is being executed.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub fn begin_timeout(&self, key: &str, request: &[u8], timeout: Duration) -> Result<Begun> {
        block_on(self.0.begin_timeout(key, request, timeout)).map(Begun::from)
    }

    /// Deletes answers whose time is over.
    ///
    /// # Errors
    /// As for [`Idempotency::sweep`](idempotency::Idempotency::sweep).
    pub fn sweep(&self) -> Result<u64> {
        block_on(self.0.sweep())
    }
}

/// The right to execute the request of a key; see [`idempotency::Execution`].
#[derive(Debug)]
#[must_use = "an execution that is dropped leaves the request to others"]
pub struct Execution(idempotency::Execution);

impl Execution {
    /// The token of this execution, larger than those of earlier ones of the key.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// Waits until another may execute the request.
    pub fn lost(&self) {
        block_on(self.0.lost());
    }

    /// Records the answer, and ends the execution.
    ///
    /// # Errors
    /// As for [`Execution::complete`](idempotency::Execution::complete).
    pub fn complete(self, answer: Vec<u8>) -> Result<()> {
        block_on(self.0.complete(answer))
    }

    /// Records the answer in the open transaction of `connection`; see
    /// [`Execution::complete_in`](idempotency::Execution::complete_in).
    ///
    /// # Errors
    /// As for the async method.
    pub fn complete_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        answer: Vec<u8>,
    ) -> L::Outcome<'c, Result<()>> {
        self.0.complete_in(connection, answer)
    }
}
