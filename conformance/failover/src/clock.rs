//! One clock for all processes of the machine.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds of CLOCK_MONOTONIC.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1_000).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
