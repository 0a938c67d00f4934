//! For how long a queue is paused.

use std::time::Duration;

use super::MAX_DELAY;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::micros;

/// For how long a queue delivers nothing; see [`Queue::set_paused`](crate::Queue::set_paused).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Until somebody resumes it.
    UntilResumed,
    /// For this time from now, by the server's clock: at most [`MAX_DELAY`], and a microsecond at least.
    For(Duration),
}

impl Pause {
    /// The time in microseconds; 0 where it has no end.
    pub(crate) fn micros(self) -> Result<i64> {
        match self {
            Self::UntilResumed => Ok(0),
            Self::For(time) if time <= MAX_DELAY && micros(time) > 0 => Ok(micros(time)),
            Self::For(time) => {
                let message = format!("a pause of {time:?}; allowed are a microsecond to 10 years");
                Err(Error::new(ErrorKind::Invalid, "set_paused", message))
            }
        }
    }
}
