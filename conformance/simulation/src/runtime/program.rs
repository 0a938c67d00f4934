//! Processes, each with a clock of its own.

use std::time::Duration;

use lockapi::suite::simulation::DrivenClock;

use super::Time;

/// The number of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProgramId(pub(crate) usize);

/// A program: a process with a clock of its own.
#[expect(clippy::struct_excessive_bools, reason = "each is of its own")]
pub(super) struct Program {
    pub(super) clock: DrivenClock,
    /// How much faster its clock runs, in parts of a million.
    pub(super) drift: i64,
    pub(super) began: Time,
    pub(super) stopped: bool,
    pub(super) blocked: bool,
    /// Where its pseudo-random numbers go on.
    pub(super) numbers: u64,
    pub(super) alive: bool,
    /// Its tasks that became ready while it was stopped or blocked.
    pub(super) parked: Vec<u64>,
    /// Whether it was stopped, blocked or killed at any time.
    pub(super) disturbed: bool,
    /// When a session of it has ended last.
    pub(super) session_ended: Option<Time>,
}

impl Program {
    /// What its clock shows at a time of the runtime.
    pub(super) fn local(&self, now: Time) -> Time {
        scale(
            now.saturating_sub(self.began),
            1_000_000 + self.drift,
            1_000_000,
        )
    }

    /// When its clock shows a time; never too early.
    pub(super) fn runtime(&self, local: Time) -> Time {
        let nanos = scale(local, 1_000_000, 1_000_000 + self.drift);
        self.began + nanos + Duration::from_nanos(1)
    }
}

fn scale(time: Time, by: i64, of: i64) -> Time {
    let nanos = time.as_nanos() * u128::try_from(by).unwrap_or(1) / u128::try_from(of).unwrap_or(1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
