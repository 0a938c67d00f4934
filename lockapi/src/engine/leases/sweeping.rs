//! Which rows of leases and of checked tokens are deleted, and when.

use std::time::Duration;

use super::Leases;
use crate::driver::SweepResult;
use crate::engine::batcher::{ALONE, Queued};
use crate::engine::sweeps::{PART, Sweeping};
use crate::lease::Sweep;
use crate::mutex::SweepMarks;

/// Rows are kept for a day after their end, so it matters little when in an hour they go.
const EVERY: Duration = Duration::from_secs(1800);

impl Queued for Sweep {
    const NAME: &'static str = "sweep";

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Sweeping for Sweep {
    const EVERY: Duration = EVERY;

    fn next(self, swept: SweepResult<(String, String, i64)>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

impl Queued for SweepMarks {
    const NAME: &'static str = "sweep";

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Sweeping for SweepMarks {
    const EVERY: Duration = EVERY;

    fn next(self, swept: SweepResult<(String, String)>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

impl Leases {
    /// Deletes old rows from time to time, as long as leases are requested.
    pub(super) fn sweep_later(&self) {
        self.sweeps.later(0, || Sweep {
            after: (String::new(), String::new(), i64::MIN),
            most: PART,
        });
    }

    /// Deletes tokens of mutexes from time to time, as long as mutexes are opened.
    pub(in crate::engine) fn sweep_marks_later(&self) {
        self.sweeps.later(0, || SweepMarks {
            after: Default::default(),
            most: PART,
        });
    }
}
