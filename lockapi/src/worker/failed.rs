//! Why a handler did not complete its job.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// The error of a handler that has not completed its job; it decides what happens to the job.
///
/// Every error converts to one that is [retried](Self::retry), so `?` works as usual.
///
/// ```
/// use std::time::Duration;
/// use lockapi::worker::Failed;
///
/// fn deliver(address: &str) -> Result<(), Failed> {
///     if !address.contains('@') {
///         return Err(Failed::reject("not an address")); // a dead letter at once
///     }
///     if address.ends_with("@busy.example") {
///         return Err(Failed::snooze(Duration::from_secs(60))); // not now, and it does not count
///     }
///     let _port: u16 = "25".parse()?; // tried again after the worker's backoff
///     Ok(())
/// }
/// # assert!(deliver("ada@example.com").is_ok());
/// ```
#[derive(Clone)]
pub struct Failed(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Retry {
        error: String,
        after: Option<Duration>,
    },
    Reject(String),
    Snooze(Duration),
    /// Nobody ran the handler to its end.
    NotRun,
}

impl Failed {
    /// The job is retried after the backoff, or becomes a dead letter if this was the last attempt.
    #[must_use]
    pub fn retry(error: impl fmt::Display) -> Self {
        Self(Kind::Retry {
            error: error.to_string(),
            after: None,
        })
    }

    /// The job is retried after this time, or becomes a dead letter if this was the last attempt.
    #[must_use]
    pub fn retry_after(error: impl fmt::Display, after: Duration) -> Self {
        Self(Kind::Retry {
            error: error.to_string(),
            after: Some(after),
        })
    }

    /// The job becomes a dead letter: a retry would not help.
    #[must_use]
    pub fn reject(error: impl fmt::Display) -> Self {
        Self(Kind::Reject(error.to_string()))
    }

    /// Not now: the job is delivered again after this time, and this delivery does not count.
    #[must_use]
    pub fn snooze(time: Duration) -> Self {
        Self(Kind::Snooze(time))
    }

    /// Nobody ran the handler to its end: the job is delivered again after a while, as if it had not been begun.
    pub(crate) fn not_run() -> Self {
        Self(Kind::NotRun)
    }

    /// What is stored with the job; nothing for one that is put off.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match &self.0 {
            Kind::Retry { error, .. } | Kind::Reject(error) => Some(error),
            Kind::Snooze(_) | Kind::NotRun => None,
        }
    }

    /// Whether the job is [retried](Self::retry), if this was not its last attempt.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        matches!(self.0, Kind::Retry { .. })
    }

    /// Whether the job becomes a [dead letter](Self::reject) at once.
    #[must_use]
    pub fn is_reject(&self) -> bool {
        matches!(self.0, Kind::Reject(_))
    }
}

/// With the messages of the error and its sources.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Failed {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self::retry(text)
    }
}

/// Without the message of the error, which may quote a payload.
impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Retry { after, .. } => write!(f, "Failed(retry after {after:?})"),
            Kind::Reject(_) => f.write_str("Failed(reject)"),
            Kind::Snooze(time) => write!(f, "Failed(snooze for {time:?})"),
            Kind::NotRun => f.write_str("Failed(not run)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_is_tried_again_with_its_causes() {
        #[derive(Debug)]
        struct Outer(std::num::ParseIntError);

        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("no port")
            }
        }

        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }

        let Kind::Retry { error, after: None } =
            Failed::from(Outer("x".parse::<u16>().unwrap_err())).0
        else {
            panic!("it is tried again");
        };
        assert_eq!(error, "no port: invalid digit found in string");
        let boxed: Box<dyn StdError + Send + Sync> = "text".into();
        assert!(matches!(Failed::from(boxed).0, Kind::Retry { .. }));
    }
}
