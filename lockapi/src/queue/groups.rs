//! How the groups of a queue are limited.

use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;

/// The largest limit of a group.
pub const MAX_GROUP_LIMIT: u32 = 1000;

/// How the [groups](super::Job::group) of a queue are limited; it is stored in the database, so that all
/// programs agree.
///
/// ```
/// use lockapi::queue::Groups;
///
/// let at_most_four = Groups::default().limit(4);
/// let one_after_the_other = Groups::default().ordered();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    limit: u32,
    ordered: bool,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            limit: 1,
            ordered: false,
        }
    }
}

impl Groups {
    /// At most so many jobs of a group run at once, 1 to [`MAX_GROUP_LIMIT`]; one unless set. A job that
    /// waits for its next attempt does not count, and lets another go first.
    #[must_use]
    pub fn limit(mut self, jobs: u32) -> Self {
        self.limit = jobs;
        self
    }

    /// The jobs of a group run one after the other, in the order of their numbers: that in which they
    /// were pushed, where one push began after the other was answered or committed. A job that a push with a
    /// unique key has changed keeps its number, and so does one that takes the place of an expired one. The priorities of
    /// jobs count between groups only. Until a job has been completed, cancelled, or has become a dead
    /// letter, none that was pushed later runs: also while it is delayed, or waits for its next attempt.
    /// Without it, a limit of one lets the group go on with another job meanwhile.
    #[must_use]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    pub(crate) fn most(self) -> i64 {
        i64::from(self.limit)
    }

    pub(crate) fn is_ordered(self) -> bool {
        self.ordered
    }

    pub(crate) fn check(self) -> Result<()> {
        check_limit(self.limit)?;
        if self.ordered && self.limit > 1 {
            let message = format!(
                "ordered groups with a limit of {}; allowed is a limit of 1 with it",
                self.limit
            );
            return Err(Error::new(ErrorKind::Invalid, "set_groups", message));
        }
        Ok(())
    }
}

fn check_limit(limit: u32) -> Result<()> {
    if (1..=MAX_GROUP_LIMIT).contains(&limit) {
        return Ok(());
    }
    let message = format!("a limit of {limit} jobs of a group; allowed are 1 to {MAX_GROUP_LIMIT}");
    Err(Error::new(ErrorKind::Invalid, "set_groups", message))
}

/// Checks a group and its limit, of which 0 pauses the group; none is -1.
pub(crate) fn checked_limit(group: &str, limit: Option<u32>) -> Result<i64> {
    check_name("group", group, 1)?;
    match limit {
        None => Ok(-1),
        Some(0) => Ok(0),
        Some(limit) => check_limit(limit).map(|()| i64::from(limit)),
    }
}
