//! The policy of a limiter, and requests to it.

use std::time::Duration;

use super::MAX_TIME;
use super::quota::Quota;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// What is decided when the database cannot be reached.
///
/// It applies to the errors of that case: `Unavailable`, `Indeterminate` and `Capacity` of the server. After such
/// an error, no call is sent to the database for half a second, and then one in half a second until it answers, so that an
/// outage costs each process one wait in that time. A key that an open transaction has locked is no outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outage {
    /// The error is returned.
    #[default]
    Fail,
    /// Everything is admitted.
    Open,
    /// Everything is refused, for a second.
    Closed,
    /// The process admits its share of the quota, one part of this number, by its own monotonic clock;
    /// the number is usually that of the processes. It does not know what was taken before, and what it
    /// admits is not charged later. At most 10,000 keys are counted; further keys are refused. If a
    /// quota has fewer permits than parts, one permit is admitted at a time, and less often.
    Share(u32),
}

/// How a limiter decides.
///
/// ```
/// use lockapi::limit::{Outage, Policy, Quota};
///
/// let policy = Policy::new(Quota::per_minute(100)).outage(Outage::Share(4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    pub(crate) quota: Quota,
    pub(crate) outage: Outage,
    pub(crate) shadow: bool,
    pub(crate) relaxed: bool,
}

impl Policy {
    /// A policy with this quota: errors are returned, refusals refuse, and what is admitted is on
    /// disk.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self {
            quota,
            outage: Outage::Fail,
            shadow: false,
            relaxed: false,
        }
    }

    /// What is decided when the database cannot be reached.
    #[must_use]
    pub const fn outage(mut self, outage: Outage) -> Self {
        self.outage = outage;
        self
    }

    /// Decides and takes permits as usual, but never refuses: for trials of a quota. See
    /// [`Decision::is_admitted`](super::Decision::is_admitted). A reservation that would be refused is
    /// empty, and ending it has no effect; [`Permits::take`](super::Permits::take) is always `true`.
    /// Errors are still returned.
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Does not wait for the disk: several times faster on a few keys. A crash of the server can lose
    /// what was taken during the last three `wal_writer_delay` (0.6 s by default), so that as much can
    /// be admitted again. A crash of the client loses nothing.
    #[must_use]
    pub const fn relaxed(mut self) -> Self {
        self.relaxed = true;
        self
    }

    /// The quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.quota.check()?;
        if self.outage == Outage::Share(0) {
            let message = "a share of one part in 0; allowed are one in 1 or more";
            return Err(Error::new(ErrorKind::Invalid, "check", message));
        }
        Ok(())
    }
}

impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::new(quota)
    }
}

/// A request to one limit: a key, a number of permits, by default 1, and a quota, by default that of
/// the limiter.
///
/// ```
/// use lockapi::limit::{Quota, PermitRequest};
///
/// let requests = [
///     PermitRequest::new("user:123").cost(5),
///     PermitRequest::new("everybody").cost(5).quota(Quota::per_second(10_000)),
/// ];
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitRequest {
    pub(crate) key: Key,
    pub(crate) cost: u64,
    pub(crate) quota: Option<Quota>,
}

impl PermitRequest {
    /// One permit of a key.
    #[must_use]
    pub fn new(key: impl Into<Key>) -> Self {
        Self {
            key: key.into(),
            cost: 1,
            quota: None,
        }
    }

    /// The number of permits.
    #[must_use]
    pub fn cost(mut self, permits: u64) -> Self {
        self.cost = permits;
        self
    }

    /// A quota other than that of the limiter.
    #[must_use]
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// The quota that applies, when everything is within its limits.
    pub(crate) fn check(&self, quota: Quota) -> Result<Quota> {
        let quota = self.quota.unwrap_or(quota);
        let checked = self.key.check().and_then(|()| quota.check());
        let checked = checked.and_then(|()| quota.check_cost(self.cost));
        checked.map(|()| quota).map_err(|error| error.on(&self.key))
    }
}

/// Nanoseconds of a time that a caller chose.
pub(crate) fn nanos(what: &str, time: Duration) -> Result<i64> {
    if time > MAX_TIME {
        let message = format!("a {what} of {time:?}; allowed are at most 366 days");
        return Err(Error::new(ErrorKind::Invalid, "check", message));
    }
    Ok(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}
