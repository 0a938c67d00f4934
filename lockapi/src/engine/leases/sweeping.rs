//! Deleting what ended long ago.

use std::time::Duration;

use super::Leases;
use crate::lease::Sweep;
use crate::seam::Connector;

/// Rows of leases that ended long ago are deleted this often.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
const SWEEP_ROWS: i64 = 1000;
/// The pause after a sweep that left rows behind.
const SWEEP_AGAIN: Duration = Duration::from_secs(1);

impl<C: Connector> Leases<C> {
    /// Deletes old rows from time to time, as long as leases are asked for.
    pub(super) fn sweep_later(&self) {
        if std::mem::replace(&mut self.lock().sweeping, true) {
            return;
        }
        let this = self.this.clone();
        let jitter = Duration::from_secs(fastrand::u64(0..60));
        self.keeper
            .run_at(self.keeper.now() + SWEEP_EVERY + jitter, move || {
                if let Some(leases) = this.upgrade() {
                    leases.lock().sweeping = false;
                    leases.sweep();
                }
            });
    }

    /// Sweeps until nothing old is left, in parts that leave others their turn.
    fn sweep(&self) {
        let this = self.this.clone();
        self.lane
            .submit(Sweep { limit: SWEEP_ROWS }, move |deleted| {
                // A sweep that fails is made up for by the next.
                let more = deleted.is_ok_and(|deleted| deleted >= SWEEP_ROWS);
                if more && let Some(leases) = this.upgrade() {
                    let again = leases.keeper.now() + SWEEP_AGAIN;
                    leases.keeper.run_at(again, move || {
                        if let Some(leases) = this.upgrade() {
                            leases.sweep();
                        }
                    });
                }
            });
    }
}
