//! What a handler tells of its job.

use std::time::SystemTime;

use super::operations::Report;
use super::{Ticket, point};
use crate::error::{Error, ErrorKind, Result};

/// The most bytes of the note of a [report](super::Delivery::progress).
pub const MAX_PROGRESS_NOTE: usize = 1000;

/// A fraction is stored in so many parts.
const PARTS: f64 = 1e6;

/// What the handler of a job [told](super::Delivery::progress) last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    millionths: i64,
    note: String,
    reported_at: SystemTime,
}

impl Progress {
    pub(crate) fn new(millionths: i64, note: String, reported_at: i64) -> Self {
        Self {
            millionths,
            note,
            reported_at: point(reported_at),
        }
    }

    /// How much is done, from 0 to 1, in millionths.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a million fits")]
    pub fn fraction(&self) -> f64 {
        self.millionths as f64 / PARTS
    }

    /// The same in percent, rounded down: 100 means all.
    #[must_use]
    pub fn percent(&self) -> i64 {
        self.millionths / 10_000
    }

    /// The words of the handler; may be empty.
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }

    /// When it was written, by the server's clock: up to about a second after it was told.
    #[must_use]
    pub fn reported_at(&self) -> SystemTime {
        self.reported_at
    }

    /// The same without the time, for comparisons of the suite.
    #[cfg(feature = "suite")]
    #[must_use]
    pub fn without_time(mut self) -> Self {
        self.reported_at = SystemTime::UNIX_EPOCH;
        self
    }
}

/// Checks what is told of a delivery.
pub(crate) fn checked_report(ticket: Ticket, fraction: f64, note: &str) -> Result<Report> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, "progress", message));
    if !(0.0..=1.0).contains(&fraction) {
        return invalid(format!("a fraction of {fraction}; allowed are 0 to 1"));
    }
    if note.len() > MAX_PROGRESS_NOTE {
        return invalid(format!(
            "a note of {} bytes; allowed are at most {MAX_PROGRESS_NOTE}",
            note.len()
        ));
    }
    if let Some(position) = note.find('\0') {
        return invalid(format!(
            "the note has a NUL at byte {position}, which PostgreSQL cannot store; allowed is any other text"
        ));
    }
    #[allow(clippy::cast_possible_truncation, reason = "0 to a million")]
    let millionths = (fraction * PARTS).round() as i64;
    Ok(Report {
        ticket,
        millionths,
        note: note.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_whole_millionths() {
        let ticket = Ticket { id: 1, token: 1 };
        for (fraction, millionths) in [
            (0.0, 0),
            (-0.0, 0),
            (f64::MIN_POSITIVE, 0),
            (0.4, 400_000),
            (2.0 / 3.0, 666_667),
            (1.0, 1_000_000),
        ] {
            let report = checked_report(ticket, fraction, "").unwrap();
            assert_eq!(report.millionths, millionths, "{fraction}");
        }
        let progress = Progress::new(400_000, String::new(), 0);
        assert!((progress.fraction() - 0.4).abs() < 1e-9);
        for (millionths, percent) in [
            (0, 0),
            (9_999, 0),
            (290_000, 29),
            (999_999, 99),
            (1_000_000, 100),
        ] {
            assert_eq!(
                Progress::new(millionths, String::new(), 0).percent(),
                percent
            );
        }
    }
}
