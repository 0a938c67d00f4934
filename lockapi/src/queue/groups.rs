//! How the groups of a queue are limited.

use super::limit::JobLimit;
use super::operations::LimitRow;
use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::limit::Quota;

/// The largest limit of a group.
pub const MAX_GROUP_LIMIT: u32 = 1000;

/// How the [groups](super::Job::group) of a queue are limited; it is stored in the database, so that all
/// programs agree.
///
/// ```
/// use lockapi::limit::Quota;
/// use lockapi::queue::Groups;
///
/// let at_most_four = Groups::default().limit(4);
/// let one_after_the_other = Groups::default().ordered();
/// let ten_a_minute_each = Groups::default().limit(4).rate(Quota::per_minute(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    limit: u32,
    ordered: bool,
    rate: Option<Quota>,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            limit: 1,
            ordered: false,
            rate: None,
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

    /// The jobs of each group are admitted to being claimed at this rate, each attempt with a permit of its group; the quota has to use the
    /// [cell rate algorithm](crate::limit::Algorithm::Gcra), as it does unless told otherwise. A job that waits for a permit stays where
    /// it is, no attempt is counted, and other groups go on. A job that has its permit keeps it until it is tried again:
    /// the next delivery after one that was released, or whose lease has ended, takes no other.
    #[must_use]
    pub fn rate(mut self, quota: Quota) -> Self {
        self.rate = Some(quota);
        self
    }

    pub(crate) fn is_ordered(self) -> bool {
        self.ordered
    }

    /// The columns of the row, if it is within the limits.
    pub(crate) fn row(self) -> Result<LimitRow> {
        check_limit(self.limit)?;
        if self.ordered && self.limit > 1 {
            return Err(invalid(format!(
                "ordered groups with a limit of {}; allowed is a limit of 1 with it",
                self.limit
            )));
        }
        let mut row = LimitRow {
            running: Some(i64::from(self.limit)),
            ..LimitRow::default()
        };
        if let Some(quota) = self.rate {
            row.set_rate(quota)?;
        }
        Ok(row)
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, "set_groups", message)
}

fn check_limit(limit: u32) -> Result<()> {
    if (1..=MAX_GROUP_LIMIT).contains(&limit) {
        return Ok(());
    }
    Err(invalid(format!(
        "a limit of {limit} jobs of a group; allowed are 1 to {MAX_GROUP_LIMIT}"
    )))
}

/// Checks a group and its limit.
pub(crate) fn checked_limit(group: &str, limit: Option<JobLimit>) -> Result<Option<LimitRow>> {
    check_name("group", group, 1)?;
    limit.map(|limit| limit.row_of_group()).transpose()
}
