//! What the program answers to whoever started it.

use std::process::ExitCode;

use lockapi::ErrorKind;

/// The exit statuses, which scripts rely on.
///
/// | Status | | Meaning |
/// |---|---|---|
/// | 0 | [`Success`](Self::Success) | done; a check that found nothing |
/// | 1 | [`Failed`](Self::Failed) | not done, for a reason that is told |
/// | 2 | [`Usage`](Self::Usage) | wrong arguments; nothing was sent |
/// | 3 | [`Warning`](Self::Warning) | `doctor` found something that should be seen to |
/// | 4 | [`Critical`](Self::Critical) | `doctor` found something that breaks what is promised |
/// | 5 | [`Absent`](Self::Absent) | what was named is not there: no such job, nobody holds the lock |
/// | 120 | [`Busy`](Self::Busy) | others hold it: at once with `--skip`, or for as long as `--timeout` says; jobs still run after the timeout of `queue drain` |
/// | 121 | [`Lost`](Self::Lost) | `exec` held it no longer, or could not be sure to, before the command had ended |
/// | 122 | [`Unreachable`](Self::Unreachable) | the database could not be reached or refused to serve; nothing was done, or of many jobs as many as the message says |
/// | 123 | [`Unknown`](Self::Unknown) | the answer of the database never came: it may have been done |
/// | 125 | [`Supervisor`](Self::Supervisor) | `exec` could not watch over the command, which has been ended |
/// | 126 | [`NotExecutable`](Self::NotExecutable) | the command of `exec` cannot be run |
/// | 127 | [`NotFound`](Self::NotFound) | the command of `exec` is not found |
///
/// Otherwise `exec` answers the status of its command, or 128 and the number of the signal that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// 0.
    Success,
    /// 1.
    Failed,
    /// 2.
    Usage,
    /// 3.
    Warning,
    /// 4.
    Critical,
    /// 5.
    Absent,
    /// 120, unless `--busy-status` says another.
    Busy,
    /// 121.
    Lost,
    /// 122.
    Unreachable,
    /// 123.
    Unknown,
    /// 125.
    Supervisor,
    /// 126.
    NotExecutable,
    /// 127.
    NotFound,
    /// That of a command, or one that the caller chose.
    Other(u8),
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Warning => 3,
            Self::Critical => 4,
            Self::Absent => 5,
            Self::Busy => 120,
            Self::Lost => 121,
            Self::Unreachable => 122,
            Self::Unknown => 123,
            Self::Supervisor => 125,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Other(status) => status,
        }
    }

    /// Of a command that a signal ended, as shells put it.
    #[must_use]
    pub fn signalled(signal: i32) -> Self {
        Self::Other(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.status().into()
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::Usage,
            ErrorKind::TimedOut => Self::Busy,
            ErrorKind::Unavailable => Self::Unreachable,
            ErrorKind::Indeterminate => Self::Unknown,
            ErrorKind::Lost => Self::Lost,
            _ => Self::Failed,
        }
    }
}
