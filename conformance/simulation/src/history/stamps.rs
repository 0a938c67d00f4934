//! The times in ids.

use std::time::{Duration, SystemTime};

use super::History;

/// Ids are so far ahead of the server's clock at most, of which a process reads a part …
const AHEAD: Duration = Duration::from_millis(8);
/// … a few seconds before, by a clock that runs faster by a hundredth.
const DRIFTED: Duration = Duration::from_millis(200);
/// Whoever claims a number again, because the answer was lost, goes on where the reserve of that ends.
const RESERVE: Duration = Duration::from_secs(10);

impl History {
    /// The last id of some has this time, and the clock of the server shows another one.
    pub(crate) fn stamped(&self, time: SystemTime, server: SystemTime) {
        // After its clock was set back, and in a new epoch, they run ahead.
        if self.stepped || self.replaced {
            return;
        }
        let promise = "ids are not ahead of the clock";
        self.runtime.looks_at(promise);
        let ahead = time.duration_since(server).unwrap_or_default();
        let reserve = if self.flawless {
            Duration::ZERO
        } else {
            RESERVE
        };
        if ahead > AHEAD + DRIFTED + reserve {
            let what = format!("{ahead:?} at {server:?}");
            self.runtime.violate(promise, what);
        }
    }
}
