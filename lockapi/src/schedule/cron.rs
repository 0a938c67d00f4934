//! Cron expressions in time zones.

use chrono::{DateTime, TimeZone, Utc};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds, Year};

use crate::error::{Error, ErrorKind, Result};

const MAX_EXPRESSION_BYTES: usize = 255;

/// An expression and a zone that were understood.
pub(crate) struct Cron {
    expression: croner::Cron,
    zone: Tz,
}

impl Cron {
    pub(crate) fn new(expression: &str, zone: &str) -> Result<Self> {
        let invalid = |message| Error::new(ErrorKind::Invalid, "schedule", message);
        if expression.len() > MAX_EXPRESSION_BYTES {
            return Err(invalid(format!(
                "a cron expression of {} bytes; allowed are at most {MAX_EXPRESSION_BYTES}",
                expression.len()
            )));
        }
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build();
        let parsed = parser.parse(expression).map_err(|error| {
            invalid(format!(
                "the cron expression {expression:?} is not understood: {error}; allowed are five fields, minute, hour, day of the month, month, day of the week, or six with seconds first"
            ))
        })?;
        let zone = zone.parse().map_err(|_| {
            invalid(format!(
                "there is no time zone {zone:?}; allowed are IANA names such as Europe/Berlin and UTC"
            ))
        })?;
        Ok(Self {
            expression: parsed,
            zone,
        })
    }

    /// The first due time after `after`, in microseconds since 1970; `None` when there is none.
    pub(crate) fn next(&self, after: i64) -> Result<Option<i64>> {
        let outside = || {
            let message =
                "the next time cannot be computed: the last one is outside of the calendar";
            Error::new(ErrorKind::Corrupt, "schedule", message)
        };
        // Due times are whole seconds.
        let after = after.div_euclid(1_000_000);
        let after: DateTime<Utc> = DateTime::from_timestamp(after, 0).ok_or_else(outside)?;
        let local = self.zone.from_utc_datetime(&after.naive_utc());
        match self.expression.find_next_occurrence(&local, false) {
            Ok(next) => Ok(Some(next.timestamp_micros())),
            Err(croner::errors::CronError::TimeSearchLimitExceeded) => Ok(None),
            Err(error) => {
                let message = format!("the next time cannot be computed: {error}");
                Err(Error::new(ErrorKind::Corrupt, "schedule", message))
            }
        }
    }
}
