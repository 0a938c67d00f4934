//! A lease that was granted to a caller.

use std::sync::Arc;

use super::{AcquireRequest, Leases};
use crate::error::Result;
use crate::hold::Hold;

/// A lease that was granted. Dropping it releases it.
pub(crate) struct Claim {
    pub(super) leases: Option<Arc<Leases>>,
    pub(crate) id: u64,
    pub(crate) slots: Arc<[i64]>,
    pub(crate) fence: i64,
    pub(crate) hold: Arc<Hold>,
    /// What was asked for, until its caller has it: then nobody has worked under it.
    pub(super) undelivered: Option<(AcquireRequest, i64)>,
}

impl Claim {
    /// Its caller has it.
    pub(crate) fn delivered(mut self) -> Self {
        self.undelivered = None;
        self
    }

    /// Releases it and reports whether it was still held.
    pub(crate) fn release(mut self, answered: impl FnOnce(Result<()>) + Send + 'static) {
        if let Some(leases) = self.leases.take() {
            leases.release(self.id, &self.hold, answered);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(leases) = self.leases.take() else {
            return;
        };
        match self.undelivered.take() {
            Some((request, acquisition)) => {
                leases.give_up(self.id, &self.hold, &request, acquisition);
            }
            None => leases.release(self.id, &self.hold, drop),
        }
    }
}
