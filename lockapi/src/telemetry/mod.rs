//! What the engine tells of itself, by the features `tracing` and `metrics`; nothing without them.
//!
//! Events have the target `lockapi` and name keys. Metrics name no keys, which would be too many:
//!
//! | Metric | Kind | Labels | What |
//! |---|---|---|---|
//! | `lockapi_wait_seconds` | histogram | `kind` | from the call until a mutex or lease was granted |
//! | `lockapi_hold_seconds` | histogram | `kind` | from there until its guard was gone |
//! | `lockapi_contended_total` | counter | `kind` | attempts that found it held |
//! | `lockapi_lost_total` | counter | `kind` | holds that ended without their holder's will |
//! | `lockapi_renewals_total` | counter | `outcome` | renewals of leases: `done`, `lost`, `failed` |
//! | `lockapi_claimed_total` | counter | `queue` | jobs that were claimed |
//! | `lockapi_queue_jobs` | gauge | `queue`, `state` | as the latest call of `statistics` counted them |
//! | `lockapi_batch_size` | histogram | `statement` | requests that travelled in one statement |

use std::time::Duration;

#[cfg(not(any(feature = "tracing", feature = "metrics")))]
mod off;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod on;

#[cfg(not(any(feature = "tracing", feature = "metrics")))]
pub(crate) use off::*;
#[cfg(any(feature = "tracing", feature = "metrics"))]
pub(crate) use on::*;

/// What kind of lock something is told of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Mutex,
    Lease,
}

/// From when on waiting and holding are warned of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Warn {
    pub(crate) waited: Option<Duration>,
    pub(crate) held: Option<Duration>,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renewal {
    Done,
    Lost,
    Failed,
}
