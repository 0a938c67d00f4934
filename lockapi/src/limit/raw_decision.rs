//! The answer of the database to a request.

use super::level::Level;
use crate::error::Failure;

/// The outcome of a request, or of a line of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Taken this number of times.
    Taken(i64),
    /// Refused; nothing was taken.
    Refused,
    /// Others were faster; the request has to be repeated.
    Again,
    /// The row has to be created first.
    Absent,
    /// The row has to be put in order first: reservations have expired, or the clock was set back.
    Overdue,
    /// The limit on open reservations is reached.
    Full,
    /// Refused to a second try: the first, whose answer was lost, may have taken it. The server never answers so.
    Unknown,
}

impl Outcome {
    pub(crate) fn decode(code: i64) -> Result<Self, Failure> {
        match code {
            0 => Ok(Self::Refused),
            -1 => Ok(Self::Again),
            -2 => Ok(Self::Absent),
            -3 => Ok(Self::Overdue),
            -4 => Ok(Self::Full),
            times if times > 0 => Ok(Self::Taken(times)),
            _ => Err(Failure::corrupt(format!("unknown outcome {code}"))),
        }
    }

    pub(crate) fn code(self) -> i64 {
        match self {
            Self::Taken(times) => times,
            Self::Refused => 0,
            Self::Again => -1,
            Self::Absent => -2,
            Self::Overdue => -3,
            Self::Full => -4,
            Self::Unknown => -5,
        }
    }
}

/// The answer to a request, with the state after it and the server's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawDecision {
    /// Its outcome.
    pub outcome: Outcome,
    /// The state after it.
    pub level: Level,
    /// The server's time, in nanoseconds.
    pub now: i64,
}

impl RawDecision {
    pub(crate) fn again() -> Self {
        Self {
            outcome: Outcome::Again,
            level: Level::default(),
            now: 0,
        }
    }
}
