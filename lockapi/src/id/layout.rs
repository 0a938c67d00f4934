//! How the bits of an id are used.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use super::Id;
use crate::error::{Error, ErrorKind, Result};

/// The bits of an id: those of a positive `int8`.
const BITS: u32 = 63;
/// The fewest bits of time: 49 days.
const LEAST_TIME_BITS: u32 = 32;
/// The most bits of worker and of sequence.
const MOST_WORKER_BITS: u32 = 16;
const MOST_SEQUENCE_BITS: u32 = 22;
/// 2021-01-01T00:00:00Z, in milliseconds since 1970.
const EPOCH_2021: i64 = 1_609_459_200_000;

/// How many bits of an id are time, worker number and sequence, from high to low, and where time
/// starts.
///
/// The default is 41 bits of milliseconds since 2021-01-01T00:00:00Z, 10 bits of worker and 12 bits
/// of sequence: 1,024 generators with 4.096 million ids a second each, until 2090.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use lockapi::id::{Id, Layout};
///
/// let layout = Layout::default();
/// let id = Id::try_from(723_688_567_603_204_099)?;
/// let parts = layout.decode(id);
/// assert_eq!((parts.worker, parts.sequence), (1, 3));
/// let day = SystemTime::UNIX_EPOCH + Duration::from_secs(495_000 * 3600);
/// assert_eq!(parts.time, day);
///
/// // Ids of a day, for `WHERE id >= $1 AND id < $2`.
/// let range = layout.bounds(day..day + Duration::from_secs(24 * 3600));
/// assert!(range.contains(&i64::from(id)));
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    worker_bits: u32,
    sequence_bits: u32,
    epoch: i64,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            worker_bits: 10,
            sequence_bits: 12,
            epoch: EPOCH_2021,
        }
    }
}

impl Layout {
    /// A layout with these numbers of bits, 63 together, that counts from 2021-01-01T00:00:00Z.
    ///
    /// Time needs at least 32 bits, workers have 1 to 16, sequences 1 to 22.
    ///
    /// # Errors
    /// `Invalid` when the bits do not add up or are outside of these limits.
    pub fn new(time_bits: u32, worker_bits: u32, sequence_bits: u32) -> Result<Self> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "layout", message));
        let sum = [time_bits, worker_bits, sequence_bits]
            .iter()
            .fold(0u32, |sum, bits| sum.saturating_add(*bits));
        if sum != BITS {
            return invalid(format!(
                "{time_bits} bits of time, {worker_bits} of worker and {sequence_bits} of sequence are {sum} together; allowed are exactly {BITS}"
            ));
        }
        if worker_bits == 0 || worker_bits > MOST_WORKER_BITS {
            return invalid(format!(
                "{worker_bits} bits of worker; allowed are 1 to {MOST_WORKER_BITS}"
            ));
        }
        if sequence_bits == 0 || sequence_bits > MOST_SEQUENCE_BITS {
            return invalid(format!(
                "{sequence_bits} bits of sequence; allowed are 1 to {MOST_SEQUENCE_BITS}"
            ));
        }
        if time_bits < LEAST_TIME_BITS {
            return invalid(format!(
                "{time_bits} bits of time; allowed are {LEAST_TIME_BITS} or more"
            ));
        }
        Ok(Self {
            worker_bits,
            sequence_bits,
            epoch: EPOCH_2021,
        })
    }

    /// Counts from another time, a whole number of milliseconds since 1970. A time that is in the
    /// future by the server's clock is refused when the first id is generated.
    ///
    /// # Errors
    /// `Invalid` for a time before 1970 or after the year 9999.
    pub fn since(mut self, epoch: SystemTime) -> Result<Self> {
        let millis = epoch
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_millis()).ok())
            .filter(|millis| *millis <= 253_402_300_799_999);
        let Some(millis) = millis else {
            let message =
                "the epoch is before 1970 or after the year 9999; allowed are times in between";
            return Err(Error::new(ErrorKind::Invalid, "layout", message));
        };
        self.epoch = millis;
        Ok(self)
    }

    /// The time that ids count from.
    #[must_use]
    pub fn epoch(&self) -> SystemTime {
        since_1970(self.epoch)
    }

    /// How many bits are time.
    #[must_use]
    pub fn time_bits(&self) -> u32 {
        BITS - self.worker_bits - self.sequence_bits
    }

    /// How many bits are the worker number.
    #[must_use]
    pub fn worker_bits(&self) -> u32 {
        self.worker_bits
    }

    /// How many bits count within a millisecond.
    #[must_use]
    pub fn sequence_bits(&self) -> u32 {
        self.sequence_bits
    }

    /// The first time of which there are no ids.
    #[must_use]
    pub fn end(&self) -> SystemTime {
        since_1970(self.epoch.saturating_add(self.end_millis()))
    }

    /// The parts of an id of this layout.
    #[must_use]
    pub fn decode(&self, id: Id) -> Parts {
        let bits = i64::from(id).unsigned_abs();
        let low =
            |bits: u64, count: u32| (bits & ((1 << count) - 1)).try_into().unwrap_or(u32::MAX);
        let millis = bits >> (self.worker_bits + self.sequence_bits);
        Parts {
            time: since_1970(self.epoch) + Duration::from_millis(millis),
            worker: low(bits >> self.sequence_bits, self.worker_bits),
            sequence: low(bits, self.sequence_bits),
        }
    }

    /// The ids that were generated in a range of times, as a range for index scans: from the first
    /// id of the start up to, but not including, the first id of the end. Times that ids cannot
    /// represent count as the nearest ones that they can.
    ///
    /// A generator's time may run ahead of the server's clock, or behind it, by some milliseconds.
    #[must_use]
    pub fn bounds(&self, times: Range<SystemTime>) -> Range<i64> {
        self.first_of(times.start)..self.first_of(times.end)
    }

    fn first_of(&self, time: SystemTime) -> i64 {
        // Of a time within a millisecond the ids are those from the next millisecond on.
        let millis = time.duration_since(self.epoch()).map_or(0, |since| {
            let millis = since.as_nanos().div_ceil(1_000_000);
            i64::try_from(millis).unwrap_or(i64::MAX)
        });
        if millis > self.end_millis() {
            return i64::MAX;
        }
        millis << (self.worker_bits + self.sequence_bits)
    }

    /// Milliseconds since 1970.
    pub(crate) fn epoch_millis(&self) -> i64 {
        self.epoch
    }

    /// The last millisecond is not used, so that every time below the end is a number of the bits.
    pub(crate) fn end_millis(&self) -> i64 {
        (1 << self.time_bits()) - 1
    }

    /// Of a row, which may be of another version's making.
    pub(crate) fn describe(worker_bits: i64, sequence_bits: i64, epoch: i64) -> String {
        let time_bits = i64::from(BITS) - worker_bits - sequence_bits;
        format!(
            "{time_bits} bits of time, {worker_bits} of worker and {sequence_bits} of sequence, counted from {epoch} ms since 1970"
        )
    }
}

/// The parts of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parts {
    /// When it was generated, to the millisecond.
    pub time: SystemTime,
    /// The worker number of the generator at that time.
    pub worker: u32,
    /// Its position within its millisecond, from 0 on.
    pub sequence: u32,
}

fn since_1970(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_that_do_not_add_up_are_refused() {
        for (time, worker, sequence) in [
            (41, 10, 11),
            (41, 10, 13),
            (0, 0, 0),
            (u32::MAX, 10, 12),
            (51, 0, 12),
            (31, 16, 16),
            (45, 17, 1),
            (53, 10, 0),
            (32, 8, 23),
        ] {
            let error = Layout::new(time, worker, sequence).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::Invalid,
                "{time} {worker} {sequence}"
            );
        }
        assert_eq!(Layout::new(41, 10, 12).unwrap(), Layout::default());
        for (time, worker, sequence) in [(32, 16, 15), (46, 16, 1), (61, 1, 1), (40, 1, 22)] {
            let layout = Layout::new(time, worker, sequence).unwrap();
            assert_eq!(layout.time_bits(), time);
        }
    }

    #[test]
    fn epochs_outside_of_the_limits_are_refused() {
        let layout = Layout::default();
        let before = SystemTime::UNIX_EPOCH - Duration::from_millis(1);
        let after = SystemTime::UNIX_EPOCH + Duration::from_secs(70_389_528 * 3600);
        for epoch in [before, after] {
            let error = layout.since(epoch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        let epoch = SystemTime::UNIX_EPOCH + Duration::from_millis(1234);
        assert_eq!(layout.since(epoch).unwrap().epoch(), epoch);
    }

    #[test]
    fn bounds_are_those_of_the_milliseconds() {
        let layout = Layout::default();
        let at = |nanos| layout.epoch() + Duration::from_nanos(nanos);
        let first = |millis: i64| millis << 22;
        assert_eq!(layout.bounds(at(0)..at(1_000_000)), first(0)..first(1));
        assert_eq!(layout.bounds(at(1)..at(1_000_001)), first(1)..first(2));
        let never = SystemTime::UNIX_EPOCH;
        let far = never + Duration::from_secs(200_000_000_000);
        assert_eq!(layout.bounds(never..far), 0..i64::MAX);
        assert_eq!(
            layout.bounds(at(0)..layout.end()).end,
            ((1 << 41) - 1) << 22
        );
    }
}
