//! What is changed of a job that waits.

use std::fmt;
use std::time::SystemTime;

use crate::admin::{JobDetails, ListedJob};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{
    MAX_PAYLOAD_BYTES, Priority, check_at, check_attempts, check_json, check_payload, micros_of,
};

/// What an operator changes of a job that waits; the rest stays as it was pushed.
///
/// ```
/// use lockapi::admin::JobEdit;
/// use lockapi::queue::Priority;
///
/// let edit = JobEdit::new().now().priority(Priority::Urgent).max_attempts(30);
/// # let _ = edit;
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct JobEdit {
    /// In microseconds since 1970; what has passed means at once.
    pub(crate) at: Option<i64>,
    pub(crate) priority: Option<Priority>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) payload: Option<String>,
    pub(crate) seen: Option<Seen>,
}

/// What a job was when somebody looked at it.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) due: i64,
    pub(crate) priority: i64,
    pub(crate) max_attempts: i64,
    pub(crate) attempt: i64,
    /// How it begins, as far as it was read.
    pub(crate) payload: String,
}

impl JobEdit {
    /// Changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes it due at this point in time, by the server's clock; a time in the past means at once. Its
    /// [ttl](crate::queue::Job::ttl) begins anew then.
    pub fn at(mut self, time: SystemTime) -> Self {
        self.at = Some(micros_of(time));
        self
    }

    /// Makes it due at once; one that is due keeps its place.
    pub fn now(mut self) -> Self {
        self.at = Some(0);
        self
    }

    /// Gives it another priority. A job that is due comes after those that were due with that priority before.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets the maximum number of deliveries, with those that it has had: 1 to 1,000,000, and more than these.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Replaces its payload by this JSON, of at most [`MAX_PAYLOAD_BYTES`].
    pub fn payload(mut self, json: impl Into<String>) -> Self {
        self.payload = Some(json.into());
        self
    }

    /// Changes the job only if it is still as it was read: due at that time, with that priority, those attempts and that payload,
    /// as far as it was read. So nobody replaces a change that he has not seen.
    pub fn if_unchanged(mut self, job: &JobDetails) -> Self {
        let listed = &job.job;
        self.seen = Some(Seen {
            due: micros_of(listed.run_at),
            priority: listed.priority.number(),
            max_attempts: listed.max_attempts,
            attempt: listed.attempt,
            payload: job.payload.clone().unwrap_or_default(),
        });
        self
    }

    /// Whether it moves jobs in lists.
    pub(crate) fn moves(&self) -> bool {
        self.at.is_some() || self.priority.is_some()
    }

    /// Whether a job is known to have all that it sets already.
    pub(crate) fn is_had_by(&self, job: &ListedJob) -> bool {
        self.payload.is_none()
            && self.at.is_none_or(|at| at == micros_of(job.run_at))
            && self
                .priority
                .is_none_or(|priority| priority == job.priority)
            && self
                .max_attempts
                .is_none_or(|most| i64::from(most) == job.max_attempts)
    }

    /// Of many jobs, not all are as one was.
    pub(crate) fn check_many(&self) -> Result<()> {
        if self.seen.is_some() {
            let message = "an edit of many jobs if they are as one was; allowed is that of one job";
            return Err(Error::new(ErrorKind::Invalid, "check", message));
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if let Some(at) = self.at {
            check_at(at)?;
        }
        if let Some(attempts) = self.max_attempts {
            check_attempts(attempts)?;
        }
        if let Some(payload) = &self.payload {
            check_payload(payload, MAX_PAYLOAD_BYTES)?;
            check_json(payload)?;
        }
        if self.changes().is_empty() {
            let message = "an edit that changes nothing; allowed are a time, a priority, max_attempts and a payload, \
                           at least one of them";
            return Err(Error::new(ErrorKind::Invalid, "check", message));
        }
        Ok(())
    }

    /// What it changes, in words for the audit log.
    pub(crate) fn changes(&self) -> String {
        let at = self.at.map(|at| match at {
            0 => "due now".to_owned(),
            at => format!("due at {}", utc(at)),
        });
        let priority = self.priority.map(|priority| {
            let name = format!("{priority:?}").to_lowercase();
            format!("priority {name}")
        });
        let attempts = self.max_attempts.map(|most| format!("{most} attempts"));
        let payload = self.payload.as_ref();
        let payload = payload.map(|payload| format!("a payload of {} bytes", payload.len()));
        let all: Vec<_> = [at, priority, attempts, payload]
            .into_iter()
            .flatten()
            .collect();
        all.join(", ")
    }
}

/// Without the payload.
impl fmt::Debug for JobEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobEdit")
            .field("at", &self.at)
            .field("priority", &self.priority)
            .field("max_attempts", &self.max_attempts)
            .finish_non_exhaustive()
    }
}

/// A point in time in the form of RFC 3339, to the second.
fn utc(micros: i64) -> String {
    let seconds = micros.div_euclid(1_000_000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March end with the leap day; 400 of them have as many days each time.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month < 3);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_calendars_have_them() {
        for (seconds, told) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000), told);
        }
    }

    #[test]
    fn changes_are_told_without_the_payload() {
        let edit = JobEdit::new()
            .now()
            .priority(Priority::High)
            .max_attempts(3)
            .payload("\"secret\"");
        let told = "due now, priority high, 3 attempts, a payload of 8 bytes";
        assert_eq!(edit.changes(), told);
        assert!(!format!("{edit:?}").contains("secret"));
    }
}
