//! Ids that are unique across processes, without a round trip for each.

use std::fmt;
use std::iter::FusedIterator;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;

mod layout;
mod model;
pub(crate) mod operations;
mod text;

pub use layout::{Layout, Parts};
pub(crate) use model::{Allocation, Ids as Tables};
pub(crate) use operations::{
    ClaimWorker, ClaimedWorker, NextBlock, ReleaseWorker, RenewWorker, RenewedWorker,
};
pub use text::Id;

/// The most ids of one call.
pub const MAX_BATCH: u64 = 65_536;
/// The largest block.
pub const MAX_BLOCK: u64 = 1_000_000;
/// The shortest and the longest time that a generator may continue without its database.
pub const MIN_RESERVE: Duration = Duration::from_millis(100);
/// See [`MIN_RESERVE`].
pub const MAX_RESERVE: Duration = Duration::from_secs(60);
/// The default reserve.
const RESERVE: Duration = Duration::from_secs(10);
/// A worker number is kept for this multiple of its reserve after the last renewal.
const KEPT: u32 = 3;

/// How ids are generated.
///
/// ```
/// use std::time::Duration;
/// use lockapi::id::{Layout, IdOptions};
///
/// let usual = IdOptions::default();
/// let few_workers = IdOptions::snowflake(Layout::new(41, 4, 18)?).reserve(Duration::from_secs(10));
/// let dense = IdOptions::blocks(1000);
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdOptions {
    pub(crate) kind: Kind,
    reserve: Duration,
}

/// Where ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Snowflake(Layout),
    Blocks(u64),
}

impl Default for IdOptions {
    /// Snowflake ids of the default [`Layout`].
    fn default() -> Self {
        Self::snowflake(Layout::default())
    }
}

impl IdOptions {
    /// Ids of time, worker number and sequence. They sort by time, and need no round trip.
    #[must_use]
    pub fn snowflake(layout: Layout) -> Self {
        Self {
            kind: Kind::Snowflake(layout),
            reserve: RESERVE,
        }
    }

    /// Consecutive ids, 1 and up: each generator takes `size` at a time, 1 to 1,000,000, from a
    /// sequence in the database; and as many times `size`, up to 1,000,000 in all, as have what its callers wait for. Numbers that a process has taken and not used stay unused. See
    /// [`IdGen`] for what a fail-over does to the sequence.
    #[must_use]
    pub fn blocks(size: u64) -> Self {
        Self {
            kind: Kind::Blocks(size),
            reserve: RESERVE,
        }
    }

    /// How long a snowflake generator continues after it has last written to the database, 10 s by default, 100
    /// ms to 1 min: half of it at least without the database. It writes to the database twice in this time, and no more often at full speed.
    ///
    /// A longer reserve does not affect uniqueness, but costs time:
    /// - A number whose owner died can be claimed by another after three times the reserve. A
    ///   restarted process claims another number meanwhile.
    /// - A generator notices with its next renewal that the server's clock was set forward or back. A
    ///   successor of a number starts where the reserve of its predecessor ends, so after the clock was
    ///   set back its ids may be ahead by the step and the reserve. A number that was released, or that
    ///   expired by a clock that was not set back, starts at the server's time. The step does not
    ///   change when numbers become free: at once if released, otherwise after three times the reserve.
    /// - After a fail-over to a server that had not received a claim, the number may be claimed twice
    ///   until the reserve of the first owner ends.
    #[must_use]
    pub fn reserve(mut self, reserve: Duration) -> Self {
        self.reserve = reserve;
        self
    }

    /// How long a generator continues after it has last written to the database.
    pub(crate) fn reserved(&self) -> Duration {
        self.reserve
    }

    /// How long a worker number is kept after its last renewal.
    pub(crate) fn kept(&self) -> Duration {
        self.reserve * KEPT
    }

    pub(crate) fn check(&self, name: &str) -> Result<()> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "check", message));
        check_name("name", name, 1)?;
        if self.reserve < MIN_RESERVE || self.reserve > MAX_RESERVE {
            return invalid(format!(
                "a reserve of {:?}; allowed are {MIN_RESERVE:?} to {MAX_RESERVE:?}",
                self.reserve
            ));
        }
        match self.kind {
            Kind::Blocks(size) if !(1..=MAX_BLOCK).contains(&size) => invalid(format!(
                "blocks of {size} ids; allowed are 1 to {MAX_BLOCK}"
            )),
            _ => Ok(()),
        }
    }

    /// The most ids of one call.
    pub(crate) fn max_batch(&self) -> u64 {
        match self.kind {
            Kind::Snowflake(layout) => MAX_BATCH.min(16 << layout.sequence_bits()),
            Kind::Blocks(size) => size.min(MAX_BATCH),
        }
    }

    pub(crate) fn check_count(&self, count: u64) -> Result<()> {
        let most = self.max_batch();
        if (1..=most).contains(&count) {
            return Ok(());
        }
        let message = format!("{count} ids in one call; allowed are 1 to {most}");
        Err(Error::new(ErrorKind::Invalid, "check", message))
    }
}

/// Generates ids.
///
/// Generators of one name, in any number of processes and on any backend, never generate the same
/// id.
///
/// A snowflake generator leases a worker number from the database with its first id, and renews it in
/// the background; in between it generates ids in memory. When the generator is dropped the number is
/// released in the background.
///
/// # Guarantees
/// - Ids are unique and, within a generator, strictly increasing. Neither a clock that is set back,
///   nor a process that is killed, stopped or restarted, nor a lost lease changes that: a generator
///   uses only times below a floor that it has stored before, and the next owner of its number
///   starts at that floor.
/// - The time in an id is the server's, continued by the monotonic clock between two renewals. If ids
///   are requested faster than the layout allows, it runs at most 8 ms ahead, plus the duration of a
///   batch; then callers wait. After the server's clock was set back it runs ahead until the clock has
///   caught up. If the answer to a claim was lost, the repeated claim starts up to a second before the
///   [reserve](IdOptions::reserve) ends, and its ids run ahead as long.
/// - While the database is unavailable it continues for at least half of its [reserve](IdOptions::reserve); then
///   every call fails until the database is back.
/// - Blocks have no gaps except for numbers that processes took and did not use, and those that are left
///   out after a fail-over.
///
/// # When an older state of the database comes back
/// After the promotion of a standby that had not received everything, or a restore from a backup, a new
/// epoch begins before the server generates ids:
/// - A generator that claims a number starts 90 s after the beginning of the epoch or later, so it
///   repeats no id; a server that takes over within a minute of another must have replicated the epoch
///   of that one. Until the clock has caught up, its ids run ahead, and without the database it stops
///   after a second.
/// - Blocks leave out 2^24 numbers for each second between the epoch in which the last one was taken and
///   the new one.
///
/// A restore of files without a new timeline, such as a snapshot of a volume, cannot be detected:
/// before programs start, run `UPDATE lockapi.epoch SET timeline = 0`.
///
/// # A layout that was a mistake
/// The first generator of a name decides its layout, and others are `Invalid`. If no id of it is in
/// use, stop the programs that use the name, then `DELETE FROM lockapi.id_worker` and `DELETE FROM
/// lockapi.id_space`, each `WHERE namespace = '' AND name = 'orders'`. If ids of it are in use,
/// choose another name, and keep the ids of both apart.
///
/// # Cancel safety
/// Every future may be dropped at any point.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait IdGen: Send + Sync + fmt::Debug {
    /// The name that its ids are unique under.
    fn name(&self) -> &str;

    /// Takes `count` consecutive ids, if that is possible without waiting: 1 to [`MAX_BATCH`], and
    /// no more than 16 ms of the layout or a block contain.
    ///
    /// # Errors
    /// `Invalid` for a count outside of its limits, `Capacity` when the layout's time has ended.
    fn try_take(&self, count: u64) -> Result<Option<Ids>>;

    /// Waits until `count` ids can be taken, unless other callers take them.
    ///
    /// # Errors
    /// `Invalid` for a count outside of its limits, for a layout that starts in the future by the
    /// server's clock, and where the name has another layout. `Corrupt` when a sequence was set
    /// back. `Capacity` when all worker numbers are taken, or the layout's time or the sequence has
    /// ended. `Unavailable` and `Indeterminate` while the database cannot be reached and the
    /// reserve is used up.
    async fn ready(&self, count: u64) -> Result<()>;
}

impl dyn IdGen + '_ {
    /// The next id.
    ///
    /// # Cancel safety
    /// When dropped, no id is lost.
    ///
    /// # Errors
    /// As for [`IdGen::ready`].
    pub async fn next(&self) -> Result<Id> {
        loop {
            if let Some(id) = self.try_next()? {
                return Ok(id);
            }
            self.ready(1).await?;
        }
    }

    /// The next id, if there is one without waiting.
    ///
    /// # Errors
    /// `Capacity` when the layout's time has ended.
    pub fn try_next(&self) -> Result<Option<Id>> {
        let taken = self.try_take(1)?;
        Ok(taken.and_then(|mut ids| ids.next()))
    }

    /// The next `count` ids, without an id of another caller between them. See [`IdGen::try_take`]
    /// for how many.
    ///
    /// # Cancel safety
    /// When dropped, no id is lost.
    ///
    /// # Errors
    /// As for [`IdGen::ready`].
    pub async fn batch(&self, count: u64) -> Result<Ids> {
        loop {
            if let Some(ids) = self.try_take(count)? {
                return Ok(ids);
            }
            self.ready(count).await?;
        }
    }
}

/// Consecutive ids, in order.
#[derive(Clone, Debug)]
pub struct Ids {
    /// Time and sequence of the next, as one number; without them, the number itself.
    next: u64,
    end: u64,
    worker: u64,
    worker_bits: u32,
    sequence_bits: u32,
}

impl Ids {
    /// Of one worker, from a stamp (time and sequence) on, up to another.
    pub(crate) fn stamped(layout: &Layout, worker: u64, from: u64, end: u64) -> Self {
        Self {
            next: from,
            end,
            worker,
            worker_bits: layout.worker_bits(),
            sequence_bits: layout.sequence_bits(),
        }
    }

    /// Numbers.
    pub(crate) fn numbers(from: u64, end: u64) -> Self {
        Self {
            next: from,
            end,
            worker: 0,
            worker_bits: 0,
            sequence_bits: 0,
        }
    }
}

impl Iterator for Ids {
    type Item = Id;

    fn next(&mut self) -> Option<Id> {
        if self.next == self.end {
            return None;
        }
        let stamp = self.next;
        self.next += 1;
        let time = stamp >> self.sequence_bits;
        let sequence = stamp & ((1 << self.sequence_bits) - 1);
        Some(Id::of(
            (((time << self.worker_bits) | self.worker) << self.sequence_bits) | sequence,
        ))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.end - self.next).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Ids {}

impl FusedIterator for Ids {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (1..=16u32, 1..=15u32).prop_map(|(worker, sequence)| {
            Layout::new(63 - worker - sequence, worker, sequence).expect("it adds up")
        })
    }

    proptest! {
        #[test]
        fn ids_decode_to_what_they_were_made_of(
            layout in layouts(),
            bits in any::<u64>(),
            worker in any::<u64>(),
            count in 1..100u64,
        ) {
            let stamps = 1u64 << (63 - layout.worker_bits());
            let from = (bits % stamps).min(stamps - count);
            let worker = worker % (1 << layout.worker_bits());
            let mut last = None;
            for (stamp, id) in (from..).zip(Ids::stamped(&layout, worker, from, from + count)) {
                let parts = layout.decode(id);
                prop_assert_eq!(u64::from(parts.worker), worker);
                let sequence = u64::from(parts.sequence);
                prop_assert_eq!(sequence, stamp & ((1 << layout.sequence_bits()) - 1));
                let since = parts.time.duration_since(layout.epoch()).expect("later");
                let millis = stamp >> layout.sequence_bits();
                prop_assert_eq!(since, Duration::from_millis(millis));
                let range = layout.bounds(parts.time..parts.time + Duration::from_millis(1));
                prop_assert!(range.contains(&i64::from(id)) || millis >= layout.end_millis().unsigned_abs());
                prop_assert!(last < Some(id), "they increase");
                last = Some(id);
            }
        }
    }
}
