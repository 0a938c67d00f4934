//! Code of the program on the engine's own tasks and threads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::telemetry::{self, Fault};

/// Runs what may be the program's code, such as a waker or a callback: a panic in it must not end
/// what everybody else depends on.
pub(crate) fn catch_panic(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        telemetry::fault(Fault::Panicked);
    }
}
