//! A lease that was granted to a caller.

use std::sync::Arc;

use super::Leases;
use crate::error::Result;
use crate::hold::Hold;

/// A lease that was granted. Dropping it releases it.
pub(crate) struct Claim {
    pub(super) leases: Option<Arc<Leases>>,
    pub(crate) id: u64,
    pub(crate) slots: Arc<[i64]>,
    pub(crate) fence: i64,
    pub(crate) hold: Arc<Hold>,
}

impl Claim {
    /// Releases it and reports whether it was still held.
    pub(crate) fn release(mut self, answered: impl FnOnce(Result<()>) + Send + 'static) {
        if let Some(leases) = self.leases.take() {
            leases.release(self.id, &self.hold, answered);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(leases) = self.leases.take() {
            leases.release(self.id, &self.hold, drop);
        }
    }
}
