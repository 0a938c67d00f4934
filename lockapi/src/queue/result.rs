//! What the handler of a job returned, and what became of a job.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Queue;
use crate::error::{Error, ErrorKind, Result};

/// The most bytes of a [result](super::Delivery::set_result), as JSON.
pub const MAX_RESULT_BYTES: usize = 64 << 10;
/// The shortest time that results are [kept](super::QueueOptions::results).
pub const MIN_RESULT_RETENTION: Duration = Duration::from_secs(1);
/// The longest time that results are [kept](super::QueueOptions::results).
pub const MAX_RESULT_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// A result of a job, as JSON within the limits.
#[derive(Clone, PartialEq, Eq)]
pub struct ResultValue(Arc<str>);

impl ResultValue {
    /// A value as JSON.
    ///
    /// # Errors
    /// `Invalid` for a value that cannot be represented in JSON, is nested deeper than 128 levels, or has more than
    /// [`MAX_RESULT_BYTES`].
    pub fn new(value: &(impl Serialize + ?Sized)) -> Result<Self> {
        let refused = |message: String| Error::new(ErrorKind::Invalid, "set_result", message);
        // The error may quote the value.
        let text = serde_json::to_string(value).map_err(|error| {
            refused(format!(
                "the result cannot be written as JSON ({:?} error); allowed is what JSON can represent",
                error.classify()
            ))
        })?;
        if text.len() > MAX_RESULT_BYTES {
            return Err(refused(format!(
                "a result of {} bytes; allowed are at most {MAX_RESULT_BYTES} bytes",
                text.len()
            )));
        }
        if serde_json::from_str::<serde_json::Value>(&text).is_err() {
            return Err(refused(
                "a result that cannot be read again; allowed is one value, nested at most 128 levels deep"
                    .to_owned(),
            ));
        }
        Ok(Self(text.into()))
    }

    /// What the database has.
    pub(crate) fn stored(text: String) -> Self {
        Self(text.into())
    }

    /// The result, as JSON.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the result.
    ///
    /// # Errors
    /// `Corrupt` when it is not what `T` expects.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.0).map_err(|error| {
            // The error may quote the result.
            let message = format!(
                "the result cannot be read as the expected type: {:?} error at line {}, column {}",
                error.classify(),
                error.line(),
                error.column()
            );
            Error::new(ErrorKind::Corrupt, "result", message)
        })
    }
}

/// Without the result.
impl fmt::Debug for ResultValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultValue")
            .field("bytes", &self.0.len())
            .finish_non_exhaustive()
    }
}

/// What became of a job, and its result if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobResult<T> {
    /// It waits, runs, or will be tried again.
    Pending,
    /// It is done, and this is its result.
    Value(T),
    /// It is done and [archived](super::QueueOptions::archive), and has no result: its handler has set none, or the time of the
    /// result is over.
    NoValue,
    /// It is a dead letter; it may be [put back](super::Queue::redrive) later.
    Failed {
        /// Why its last attempt failed.
        error: String,
    },
    /// It was cancelled.
    Cancelled,
    /// Nothing is known of it in this queue: it was completed without a result, the time of its result or of its record is over,
    /// its record was deleted, or it never existed, or not yet, because the transaction that pushes it has not committed.
    Unknown,
}

impl<T> JobResult<T> {
    /// Whether it has not ended.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Pending)
    }

    /// The result, if there is one.
    #[must_use]
    pub fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }
}

impl JobResult<ResultValue> {
    /// Reads the result, if there is one.
    ///
    /// # Errors
    /// `Corrupt` when it is not what `T` expects.
    pub fn decode<T: DeserializeOwned>(self) -> Result<JobResult<T>> {
        Ok(match self {
            Self::Value(value) => JobResult::Value(value.decode()?),
            Self::Pending => JobResult::Pending,
            Self::NoValue => JobResult::NoValue,
            Self::Failed { error } => JobResult::Failed { error },
            Self::Cancelled => JobResult::Cancelled,
            Self::Unknown => JobResult::Unknown,
        })
    }
}

impl dyn Queue + '_ {
    /// Looks up what became of a job, and its [result](super::Delivery::set_result). Lookups that are made at the same time share
    /// a statement.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again: it only reads.
    ///
    /// # Errors
    /// `Corrupt` for a result that is not what `T` expects, `Unavailable`.
    pub async fn result<T: DeserializeOwned>(&self, id: i64) -> Result<JobResult<T>> {
        self.read_result(id).await?.decode()
    }

    /// Waits until a job has ended, for this time at most, and returns what became of it: `Pending` if it has not ended when it is
    /// looked up once more at the end of that time.
    ///
    /// It returns as soon as the job is seen to be done, a dead letter, cancelled or gone: it does not wait for a result that
    /// cannot come. A job that is completed by this process is seen at once, others when they are looked for, after pauses that
    /// grow from 25 ms to a second, or to 50 µs for each job that the process waits for. All waiters of a
    /// process share these lookups, so ten thousand of them send some forty statements a second or less.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again: it only reads, and a job that nobody waits for any more is not looked for.
    ///
    /// # Errors
    /// As for [`result`](crate::Queue#method.result). While the server is away it goes on waiting, and only the last lookup fails. Where the
    /// server is silent, it returns after the [time limit of statements](crate::BackendOptions::timeout) if that is longer.
    pub async fn wait_result<T: DeserializeOwned>(
        &self,
        id: i64,
        at_most: Duration,
    ) -> Result<JobResult<T>> {
        self.await_result(id, at_most).await?.decode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_limits() {
        let fits = "a".repeat(MAX_RESULT_BYTES - 2);
        assert_eq!(
            ResultValue::new(&fits).unwrap().as_str().len(),
            MAX_RESULT_BYTES
        );
        let mut deep = serde_json::Value::Null;
        for _ in 0..200 {
            deep = serde_json::Value::Array(vec![deep]);
        }
        let keys = std::collections::BTreeMap::from([((1, 2), 3)]);
        for refused in [
            ResultValue::new(&format!("{fits}a")),
            ResultValue::new(&deep),
            ResultValue::new(&keys),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("; allowed"), "{error}");
        }
        let value = ResultValue::new(&"4711 secret").unwrap();
        assert!(!format!("{value:?}").contains("4711"));
        let error = value.decode::<u8>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(!error.to_string().contains("4711"), "{error}");
    }
}
