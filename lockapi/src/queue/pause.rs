//! For how long a queue is paused, and what still runs in it.

use std::time::Duration;

use super::{MAX_DELAY, Tally};
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

/// What [`Queue::drain`](crate::Queue::drain) found when it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// The jobs that still run.
    pub running: Tally,
    /// Whether the queue is still paused; if it is not, somebody has resumed it, or the time of the pause has passed.
    pub paused: bool,
}

impl Drained {
    /// Whether the queue is paused and no job of it runs.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.paused && self.running.count == 0 && !self.running.more
    }
}
