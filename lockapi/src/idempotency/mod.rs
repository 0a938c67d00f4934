//! Idempotency keys: a request that is sent again has one effect, and the same answer.
//!
//! ```
//! use lockapi::idempotency::{Begun, IdempotencyOptions};
//!
//! # async fn example() -> lockapi::Result<()> {
//! let backend = lockapi::memory::Database::new().connect().await?;
//! let payments = backend.idempotency(IdempotencyOptions::default())?;
//! let answer = match payments.begin("user 7: 8e03978e", b"pay 100").await? {
//!     // In the transaction of the payment: `execution.complete_in(&mut *tx, answer)`.
//!     Begun::Execute(execution) => {
//!         let answer = b"paid".to_vec();
//!         execution.complete(answer.clone()).await?;
//!         answer
//!     }
//!     Begun::Replay(answer) => answer,
//!     Begun::InProgress => b"409: being worked on".to_vec(),
//!     Begun::Mismatch => b"422: this key belongs to another request".to_vec(),
//!     _ => unreachable!("there are no others"),
//! };
//! assert_eq!(answer, b"paid");
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};

use crate::driver::{Connection, Library, Transaction};
use crate::engine::CallerConnection;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::key::{Key, MAX_NAME_BYTES};
use crate::lease::{Lease, LeaseGuard, LeaseOptions, micros};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::wait::unless;

pub(crate) mod model;
pub(crate) mod operations;

pub use operations::Recalled;
pub(crate) use operations::{CompleteAnswer, RecallAnswer, RecordAnswer, SweepAnswers};

/// The longest answer, in bytes.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;
/// The shortest time for which an answer is kept.
pub const MIN_RETENTION: Duration = Duration::from_secs(60);
/// The longest time for which an answer is kept.
pub const MAX_RETENTION: Duration = Duration::from_secs(366 * 24 * 3600);

/// What the lease of a key begins with.
const LEASE: &str = "idempotency:";
/// The same of a key that is too long for a lease: no other key begins with it.
const HASHED_LEASE: &str = "idempotency-sha256:";
const COMPLETE: &str = "complete";
/// How often a waiting request polls for the answer.
const RECALL_EVERY: Duration = Duration::from_millis(500);
/// After so long an answer is recorded again that was not recorded, each time after twice as long.
const RECORD_AGAIN: Duration = Duration::from_millis(50);
/// The longest of these pauses.
const MAX_RECORD_AGAIN: Duration = Duration::from_secs(1);

/// How long an execution is leased, and how long answers are kept.
#[derive(Clone, Debug)]
pub struct IdempotencyOptions {
    ttl: Duration,
    retention: Duration,
}

impl Default for IdempotencyOptions {
    /// A lease of half a minute, and answers that are kept for a day.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 3600),
        }
    }
}

impl IdempotencyOptions {
    /// After this time another process may execute the request of a process that has died; 30 s unless set.
    /// While a request is being executed, its lease is renewed.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// For how long answers are kept, [`MIN_RETENTION`] to [`MAX_RETENTION`]; 24 hours unless set. A request that comes
    /// later is a new one.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.retention < MIN_RETENTION || self.retention > MAX_RETENTION {
            let message = format!(
                "a retention of {:?}; allowed are {MIN_RETENTION:?} to 366 days",
                self.retention
            );
            return Err(Error::new(ErrorKind::Invalid, "idempotency", message));
        }
        let lease = LeaseOptions::new(self.ttl).check();
        lease.map_err(|error| error.during("idempotency"))
    }
}

/// The answers that a database keeps.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Answers: Send + Sync + fmt::Debug {
    /// The namespace of the keys.
    fn namespace(&self) -> &str;

    /// Opens the lease of a key; nothing is sent.
    ///
    /// # Errors
    /// `Invalid` for options that are outside their limits.
    fn lease(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Lease>>;

    /// Reads what was answered.
    ///
    /// # Errors
    /// Those of the connection.
    async fn recall(&self, key: &str) -> Result<Option<Recalled>>;

    /// Records an answer under the token of a holder; `false` where another has answered.
    ///
    /// # Errors
    /// Those of the connection.
    async fn record(
        &self,
        key: &str,
        fence: i64,
        fingerprint: &[u8],
        answer: &[u8],
        retention: Duration,
    ) -> Result<bool>;

    /// Deletes answers whose time is over, at most 1,000; returns how many. This also happens automatically, every half an
    /// hour to an hour while answers are recorded.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn sweep(&self) -> Result<u64>;

    /// Returns after this time, by the clock of the backend.
    #[doc(hidden)]
    async fn sleep(&self, time: Duration);
}

/// Requests with keys: the first is executed, later ones get its answer.
///
/// # Guarantees
/// - A key has one answer, for all processes, until its retention is over.
/// - One process at a time executes the request of a key, under a lease; when it dies, another takes over after the
///   time to live, with a larger token.
/// - Where the answer is completed [in the transaction](Execution::complete_in) of its effect, there is one
///   effect as well: both commit, or neither. Without that, a process that dies between effect and answer
///   leaves the effect, and the process that takes over repeats it.
/// - An answer that was recorded is on disk.
///
/// The lease of a key is the [lease](crate::Lease) `idempotency:` and the key, or `idempotency-sha256:` and a hash of it
/// where that would be too long: an operator can see and release it.
#[derive(Clone, Debug)]
pub struct Idempotency {
    answers: Arc<dyn Answers>,
    options: IdempotencyOptions,
}

/// The state of a request with a key.
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

impl Idempotency {
    pub(crate) fn new(answers: Arc<dyn Answers>, options: IdempotencyOptions) -> Result<Self> {
        options.check()?;
        Ok(Self { answers, options })
    }

    /// Begins a request. `request` identifies its contents, such as its target and its body; its SHA-256 is
    /// stored. The key should contain the client as well, so that no client gets the answers of another.
    ///
    /// # Cancel safety
    /// When dropped, another may execute the request.
    ///
    /// # Errors
    /// `Invalid` for a key that is not 1 to 255 bytes, or has a NUL; those of the connection.
    pub async fn begin(&self, key: &str, request: &[u8]) -> Result<Begun> {
        self.begin_with(key, request, None).await
    }

    /// As [`begin`](Self::begin), and waits for at most `timeout` while the same request is being executed. The statements with
    /// which it looks for an answer, one in half a second, take their time in addition.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub async fn begin_timeout(
        &self,
        key: &str,
        request: &[u8],
        timeout: Duration,
    ) -> Result<Begun> {
        self.begin_with(key, request, Some(timeout)).await
    }

    async fn begin_with(
        &self,
        key: &str,
        request: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Begun> {
        let named = |error: Error| error.during("begin").on(key);
        Key::from(key).check().map_err(named)?;
        let fingerprint = Sha256::digest(request).to_vec();
        if let Some(begun) = self.answered(key, &fingerprint).await.map_err(named)? {
            return Ok(begun);
        }
        let options = LeaseOptions::new(self.options.ttl).data(hex(&fingerprint));
        let lease = self.answers.lease(lease_key(key), options).map_err(named)?;
        let acquired = match lease.try_acquire().await.map_err(named)? {
            None => {
                let is_other = async || {
                    let holder = lease.peek().await.map_err(named)?;
                    Ok(holder.is_some_and(|it| !it.released && it.data != hex(&fingerprint)))
                };
                if is_other().await? {
                    return Ok(Begun::Mismatch);
                }
                let mut left = timeout.unwrap_or(Duration::ZERO);
                loop {
                    if left.is_zero() {
                        break None;
                    }
                    let slice = left.min(RECALL_EVERY);
                    match lease.acquire_timeout(slice).await {
                        Ok(guard) => break Some(guard),
                        Err(error) if error.kind() == ErrorKind::TimedOut => {}
                        Err(error) => return Err(named(error)),
                    }
                    // Thousands that wait do not have to hold the lease one after the other to read one answer.
                    if let Some(begun) = self.answered(key, &fingerprint).await.map_err(named)? {
                        return Ok(begun);
                    }
                    // Another request may have begun after the one that was waited for.
                    if is_other().await? {
                        return Ok(Begun::Mismatch);
                    }
                    left -= slice;
                }
            }
            acquired => acquired,
        };
        let Some(guard) = acquired else {
            return Ok(Begun::InProgress);
        };
        // Who had the lease before may have answered.
        if let Some(begun) = self.answered(key, &fingerprint).await.map_err(named)? {
            return Ok(begun);
        }
        Ok(Begun::Execute(Execution {
            answers: Arc::clone(&self.answers),
            key: key.to_owned(),
            fingerprint,
            retention: self.options.retention,
            ttl: self.options.ttl,
            guard,
            completed: AtomicBool::new(false),
        }))
    }

    /// What was answered to the key.
    async fn answered(&self, key: &str, fingerprint: &[u8]) -> Result<Option<Begun>> {
        let recalled = self.answers.recall(key).await?;
        Ok(recalled.map(|recalled| {
            if recalled.fingerprint == fingerprint {
                Begun::Replay(recalled.answer)
            } else {
                Begun::Mismatch
            }
        }))
    }

    /// Deletes answers whose time is over; see [`Answers::sweep`].
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn sweep(&self) -> Result<u64> {
        self.answers.sweep().await
    }
}

/// The right to execute the request of a key, until it is completed, dropped or lost.
///
/// Dropped without an answer, another may execute the request.
#[must_use = "an execution that is dropped leaves the request to others"]
pub struct Execution {
    answers: Arc<dyn Answers>,
    key: String,
    fingerprint: Vec<u8>,
    retention: Duration,
    ttl: Duration,
    guard: Box<dyn LeaseGuard>,
    completed: AtomicBool,
}

impl Execution {
    /// The token of this execution, larger than those of earlier ones of the key.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// Returns once another may execute the request.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Records the answer, and ends the execution.
    ///
    /// # Guarantees
    /// A request has one answer. While it cannot be recorded, because the server is away or has no room, it is recorded again,
    /// for about as long as the lease lasts: the request has been executed. Whether another may execute the request by now is
    /// known to this process, which may learn of it late: only [`complete_in`](Self::complete_in) is sure that nobody has taken over before the answer is recorded.
    ///
    /// # Cancel safety
    /// When dropped, the answer may be recorded or not.
    ///
    /// # Errors
    /// `Invalid` for an answer of more than [`MAX_ANSWER_BYTES`]; `Lost` when another may execute the request, or has
    /// answered it: [begin](Idempotency::begin) again to get that answer; those of the connection.
    pub async fn complete(self, answer: Vec<u8>) -> Result<()> {
        self.record(answer).await?;
        // That it has ended meanwhile changes nothing: the answer is there.
        let _released = self.guard.release().await;
        Ok(())
    }

    /// Whether it was completed in a transaction, which may have been rolled back.
    #[cfg(feature = "tower")]
    pub(crate) fn is_completed(&self) -> bool {
        self.completed.load(Ordering::Relaxed)
    }

    pub(crate) async fn record(&self, answer: Vec<u8>) -> Result<()> {
        let request = self.request(COMPLETE, answer)?;
        let (mut left, mut pause) = (self.ttl, RECORD_AGAIN);
        loop {
            if self.guard.is_lost() {
                return Err(self.lost_error(COMPLETE));
            }
            match self.try_record(&request).await {
                Err(error) if may_pass(&error) && !left.is_zero() => {
                    pause = pause.min(left);
                    // That it is lost is seen when it is over.
                    let _over = unless(self.guard.lost(), self.answers.sleep(pause)).await;
                    left -= pause;
                    pause = MAX_RECORD_AGAIN.min(pause * 2);
                }
                recorded => return recorded,
            }
        }
    }

    async fn try_record(&self, request: &RecordAnswer) -> Result<()> {
        let RecordAnswer { fence, answer, .. } = request;
        let recorded = self
            .answers
            .record(&self.key, *fence, &self.fingerprint, answer, self.retention)
            .await
            .map_err(|error| error.during(COMPLETE).on(&*self.key))?;
        if recorded {
            Ok(())
        } else {
            Err(self.lost_error(COMPLETE))
        }
    }

    /// Records the answer inside the transaction that is open on `connection`, which also contains the effect
    /// of the request: both are committed, or neither. Keep the execution until then.
    ///
    /// # Guarantees
    /// Until the transaction ends nobody else executes the request, and an execution that another has taken over from
    /// cannot complete it.
    ///
    /// # Cancel safety
    /// When dropped, roll back.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete). After an error roll back.
    pub fn complete_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        answer: Vec<u8>,
    ) -> L::Outcome<'c, Result<()>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(self.record_in(connection, answer)))
    }

    async fn record_in(&self, mut connection: CallerConnection<'_>, answer: Vec<u8>) -> Result<()> {
        const OPERATION: &str = "complete_in";
        let record = self.request(OPERATION, answer)?;
        let fence = self.guard.fence();
        let slot = fence.slot().filter(|_| !self.guard.is_lost());
        let slot = slot.ok_or_else(|| self.lost_error(OPERATION))?;
        let lease = fence.key().to_string();
        let completed = CompleteAnswer {
            lease,
            slot,
            record,
        };
        match connection.perform(&[completed]).await {
            Ok(recorded) if recorded == [true] => {
                self.completed.store(true, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) => Err(self.lost_error(OPERATION)),
            Err(failure) => Err(failure.error(OPERATION).on(&*self.key)),
        }
    }

    fn request(&self, operation: &'static str, answer: Vec<u8>) -> Result<RecordAnswer> {
        if answer.len() > MAX_ANSWER_BYTES {
            let message = format!(
                "the answer has {} bytes; allowed are at most {MAX_ANSWER_BYTES} bytes",
                answer.len()
            );
            return Err(Error::new(ErrorKind::Invalid, operation, message).on(&*self.key));
        }
        Ok(RecordAnswer {
            namespace: self.answers.namespace().to_owned(),
            key: self.key.clone(),
            fence: self.guard.fence().token(),
            fingerprint: self.fingerprint.clone(),
            answer,
            retention: micros(self.retention),
        })
    }

    fn lost_error(&self, operation: &'static str) -> Error {
        let message = "another may have executed the request, or has answered it";
        Error::new(ErrorKind::Lost, operation, message).on(&*self.key)
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Whether an answer may be recorded later: what was recorded already is recorded once.
fn may_pass(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Indeterminate
}

/// The lease under which the request of a key is executed.
fn lease_key(key: &str) -> Key {
    if LEASE.len() + key.len() > MAX_NAME_BYTES {
        return format!("{HASHED_LEASE}{}", hex(&Sha256::digest(key))).into();
    }
    format!("{LEASE}{key}").into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;

    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ok = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_a_lease() {
        assert_eq!(lease_key("7").to_string(), "idempotency:7");
        let (one, other) = ("x".repeat(255), "x".repeat(254) + "y");
        assert!(lease_key(&one).check().is_ok());
        assert_ne!(lease_key(&one), lease_key(&other));
    }

    #[test]
    fn options_are_checked() {
        let options = IdempotencyOptions::default();
        assert!(options.check().is_ok());
        for wrong in [
            options.clone().retention(Duration::ZERO),
            options.clone().retention(Duration::MAX),
            options.ttl(Duration::ZERO),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.to_string().contains("allowed are"), "{error}");
        }
    }
}
