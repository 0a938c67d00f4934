//! The ids of one worker number, as one step of one word.
//!
//! The word holds the next stamp, which is time and sequence, and the worker number below it. A
//! claim that ended takes both away in the same step, so nobody can join the number of one claim
//! with the stamp of another; and stamps only grow, so the word has a value again only where no id was made in between.

use std::time::Duration;

use crate::engine::clock::Time;
use crate::id::{Ids, Layout};
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// So many milliseconds ids may be ahead of the time before callers wait.
const AHEAD: u64 = 8;
/// No claim.
const NONE: u64 = 1 << 63;
/// Time that ran ahead of the server's clock gives up this part of what passes.
const SLOWER_PART: i64 = 16;

/// Why no ids can be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// There is no claim.
    Unclaimed,
    /// The floor is too low.
    Floor,
    /// More were taken than fit into the time that has passed; look again after this time.
    Ahead(Duration),
    /// The layout's time has ended.
    End,
}

#[derive(Debug)]
pub(super) struct Counter {
    layout: Layout,
    word: AtomicU64,
    /// The first stamp that must not be taken.
    limit: AtomicU64,
    /// What has to be added to the monotonic clock to get microseconds since 1970.
    offset: AtomicI64,
}

impl Counter {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            word: AtomicU64::new(NONE),
            limit: AtomicU64::new(0),
            offset: AtomicI64::new(0),
        }
    }

    /// Takes `count` stamps at `time`.
    pub(super) fn take(&self, time: impl Fn() -> Time, count: u64) -> Result<Ids, Obstacle> {
        let mut word = self.word.load(Ordering::Acquire);
        let now = self.millis(time());
        loop {
            let (from, end) = self.plan(word, now, count)?;
            let worker = word & self.worker_mask();
            let next = (end << self.layout.worker_bits()) | worker;
            let step =
                self.word
                    .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire);
            match step {
                Ok(_) => return Ok(Ids::stamped(&self.layout, worker, from, end)),
                Err(other) => word = other,
            }
        }
    }

    /// Tells whether `count` stamps could be taken at `time`.
    pub(super) fn can_take(&self, time: Time, count: u64) -> Result<(), Obstacle> {
        let word = self.word.load(Ordering::Acquire);
        self.plan(word, self.millis(time), count).map(drop)
    }

    /// A claim: ids of this worker from `start` up to `floor`, in milliseconds since 1970, by a
    /// server whose clock showed `server` microseconds at `time`. Only where there is none.
    pub(super) fn begin(&self, worker: u64, start: i64, floor: i64, time: Time, server: i64) {
        // The time goes on from where the number starts, which is later than the server's when that
        // was set back.
        let from = server.max(start.saturating_mul(1000));
        self.offset.store(from - micros(time), Ordering::Release);
        self.limit.store(self.limit_of(floor), Ordering::Release);
        let stamp = self.relative(start).min(self.end()) << self.layout.sequence_bits();
        let word = (stamp << self.layout.worker_bits()) | worker;
        self.word.store(word, Ordering::Release);
    }

    /// Ends the claim. Answers the first millisecond since 1970 of which it made no id.
    pub(super) fn end_claim(&self) -> Option<i64> {
        let word = self.word.swap(NONE, Ordering::AcqRel);
        (word & NONE == 0).then(|| self.unused(word))
    }

    /// The time that it has come to, in milliseconds since 1970: ids of it are still to be made.
    pub(super) fn position(&self, time: Time) -> i64 {
        let word = self.word.load(Ordering::Acquire);
        let unused = if word & NONE == 0 {
            self.unused(word)
        } else {
            0
        };
        let now = (micros(time) + self.offset.load(Ordering::Acquire)) / 1000;
        now.max(unused)
    }

    /// A floor, in milliseconds since 1970, was stored for the claim.
    pub(super) fn raise(&self, floor: i64) {
        self.limit.fetch_max(self.limit_of(floor), Ordering::AcqRel);
    }

    /// The server's clock showed `server` microseconds at some time between `sent` and `answered`,
    /// `since` after it was looked at before.
    ///
    /// Time that is behind is put forward. Time that is ahead waits a little, for time that was put
    /// back at once would stop callers as long as that.
    pub(super) fn adjust(&self, server: i64, sent: Time, answered: Time, since: Duration) {
        let offset = self.offset.load(Ordering::Acquire);
        let behind = server - micros(answered) - offset;
        let ahead = micros(sent) + offset - server;
        let by = if behind > 0 {
            behind
        } else {
            -ahead.clamp(0, micros(since) / SLOWER_PART)
        };
        self.offset.store(offset + by, Ordering::Release);
    }

    /// First and end of the stamps to take.
    fn plan(&self, word: u64, now: u64, count: u64) -> Result<(u64, u64), Obstacle> {
        if word & NONE != 0 {
            return Err(Obstacle::Unclaimed);
        }
        let bits = self.layout.sequence_bits();
        let from = (word >> self.layout.worker_bits()).max(now << bits);
        let end = from + count;
        if end > self.end() << bits {
            return Err(Obstacle::End);
        }
        let ahead = (from >> bits) - now;
        if ahead > AHEAD {
            return Err(Obstacle::Ahead(Duration::from_millis(ahead - AHEAD / 2)));
        }
        // The word was read before the limit: if that is of a later claim, the word has changed.
        if end > self.limit.load(Ordering::Acquire) {
            return Err(Obstacle::Floor);
        }
        Ok((from, end))
    }

    fn limit_of(&self, floor: i64) -> u64 {
        self.relative(floor).min(self.end()) << self.layout.sequence_bits()
    }

    /// The first millisecond without any id, since 1970.
    fn unused(&self, word: u64) -> i64 {
        let stamp = word >> self.layout.worker_bits();
        let millis = stamp.div_ceil(1 << self.layout.sequence_bits());
        self.layout.epoch_millis() + millis.cast_signed()
    }

    /// The time of the layout, in milliseconds.
    fn millis(&self, time: Time) -> u64 {
        let unix = micros(time) + self.offset.load(Ordering::Relaxed);
        // Beyond the end there is nothing to tell apart, and the bits must not run over.
        self.relative(unix / 1000).min(self.end() + 1)
    }

    fn relative(&self, unix: i64) -> u64 {
        unix.saturating_sub(self.layout.epoch_millis())
            .max(0)
            .unsigned_abs()
    }

    fn end(&self) -> u64 {
        self.layout.end_millis().unsigned_abs()
    }

    fn worker_mask(&self) -> u64 {
        (1 << self.layout.worker_bits()) - 1
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::id::Id;

    const START: i64 = 1_767_225_600_000;

    fn at(millis: u64) -> Time {
        Duration::from_millis(millis)
    }

    fn counter(floor: i64) -> Counter {
        let counter = Counter::new(Layout::default());
        counter.begin(7, START, START + floor, at(0), START * 1000);
        counter
    }

    #[test]
    fn a_full_millisecond_is_carried_and_then_waited_for() {
        let counter = counter(1000);
        let mut last = None;
        let mut taken = 0;
        let obstacle = loop {
            match counter.take(|| at(0), 1) {
                Ok(ids) => last = last.max(ids.last()),
                Err(obstacle) => break obstacle,
            }
            taken += 1;
        };
        assert_eq!(taken, 9 * 4096, "the millisecond, and eight ahead");
        let Obstacle::Ahead(wait) = obstacle else {
            panic!("{obstacle:?}");
        };
        let later = counter.take(|| at(0) + wait, 1).unwrap().last();
        assert!(later > last);
    }

    #[test]
    fn nothing_is_taken_at_or_above_the_floor() {
        let counter = counter(5);
        assert_eq!(counter.take(|| at(5), 1).unwrap_err(), Obstacle::Floor);
        assert_eq!(counter.take(|| at(4), 4097).unwrap_err(), Obstacle::Floor);
        assert_eq!(counter.take(|| at(4), 4096).unwrap().len(), 4096);
        assert_eq!(counter.take(|| at(4), 1).unwrap_err(), Obstacle::Floor);
        counter.raise(START + 4);
        assert_eq!(counter.take(|| at(4), 1).unwrap_err(), Obstacle::Floor);
        counter.raise(START + 6);
        assert!(counter.take(|| at(4), 1).is_ok());
    }

    #[test]
    fn ids_increase_while_the_time_goes_back() {
        let counter = counter(3_600_000);
        let mut last: Option<Id> = None;
        for millis in [10, 9, 11, 2, 3, 500] {
            let id = counter.take(|| at(millis), 1).map(Iterator::last);
            if millis > 3 || matches!(id, Ok(Some(_))) {
                let id = id.unwrap();
                assert!(id > last, "{id:?} after {last:?}");
                last = id;
            }
        }
    }

    #[test]
    fn time_that_is_ahead_waits_a_little_and_time_behind_is_put_forward() {
        let counter = counter(3_600_000);
        let hour = 3_600_000_000;
        let server = |millis: u64| START * 1000 + i64::try_from(millis).unwrap() * 1000;
        counter.adjust(server(64_000) - hour, at(64_000), at(64_000), at(64_000));
        assert_eq!(counter.position(at(64_000)), START + 60_000, "by a 16th");
        counter.adjust(server(65_000), at(64_900), at(65_000), at(900));
        assert_eq!(counter.position(at(65_000)), START + 65_000);
        // Somewhere between question and answer it is the same.
        counter.adjust(server(66_000), at(65_900), at(66_100), at(900));
        assert_eq!(counter.position(at(66_100)), START + 66_100);
    }

    #[test]
    fn the_end_of_time_is_told() {
        let layout = Layout::new(32, 15, 16).unwrap();
        let counter = Counter::new(layout);
        let end = layout.epoch_millis() + (1 << 32) - 1;
        counter.begin(3, end - 2, end + 1000, at(0), (end - 2) * 1000);
        assert!(counter.take(|| at(1), 1).is_ok());
        assert_eq!(counter.take(|| at(1), 65_536).unwrap_err(), Obstacle::End);
        assert!(counter.take(|| at(1), 65_535).is_ok());
        for millis in [1, 2, 3, 1 << 40] {
            assert_eq!(counter.take(|| at(millis), 1).unwrap_err(), Obstacle::End);
        }
    }

    #[test]
    fn a_claim_that_ended_tells_where_the_next_may_start() {
        let counter = counter(1000);
        assert_eq!(counter.position(at(2)), START + 2);
        counter.take(|| at(3), 4097).unwrap();
        assert_eq!(counter.end_claim(), Some(START + 5));
        assert_eq!(counter.end_claim(), None);
        assert_eq!(counter.take(|| at(9), 1).unwrap_err(), Obstacle::Unclaimed);
    }

    #[test]
    fn threads_and_claims_that_change_make_no_id_twice() {
        let counter = Arc::new(Counter::new(Layout::default()));
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let counter = Arc::clone(&counter);
                std::thread::spawn(move || {
                    let mut taken = Vec::new();
                    for round in 0..20_000u64 {
                        let ids = counter.take(|| at(round / 100), 1 + round % 3);
                        taken.extend(ids.into_iter().flatten());
                    }
                    taken
                })
            })
            .collect();
        let mut start = START;
        for claim in 0..200 {
            // The same number again and again, each time from where the last one stopped.
            counter.begin(5, start, start + 2, at(claim), START * 1000);
            std::thread::yield_now();
            start = counter.end_claim().unwrap().max(start);
        }
        let mut all = HashSet::new();
        for taker in takers {
            let taken = taker.join().unwrap();
            assert!(taken.is_sorted());
            for id in taken {
                assert!(all.insert(id), "{id:?} twice");
            }
        }
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::sync::{explore, thread};

    const START: i64 = 1_767_225_600_000;
    /// So many ids make a millisecond: few, so that floors are met.
    const LAYOUT: (u32, u32, u32) = (45, 16, 2);

    #[test]
    fn claims_that_change_make_no_id_twice() {
        explore(|| {
            let (time, worker, sequence) = LAYOUT;
            let counter = Arc::new(Counter::new(Layout::new(time, worker, sequence).unwrap()));
            let takers = [1, 3].map(|count| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    let mut taken = Vec::new();
                    for _ in 0..3 {
                        let ids = counter.take(|| Duration::ZERO, count);
                        taken.extend(ids.into_iter().flatten());
                    }
                    taken
                })
            });
            let mut start = START;
            for _ in 0..2 {
                // Each goes on from where the last one stopped, with a floor that is raised while ids are taken.
                counter.begin(5, start, start + 1, Duration::ZERO, START * 1000);
                counter.raise(start + 2);
                start = counter.end_claim().unwrap();
            }
            let mut all = HashSet::new();
            for taker in takers {
                let taken = taker.join().unwrap();
                assert!(taken.is_sorted());
                for id in taken {
                    assert!(all.insert(id), "{id:?} twice");
                }
            }
        });
    }

    #[test]
    fn a_floor_that_is_raised_beside_another_is_the_higher_one() {
        explore(|| {
            let counter = Arc::new(Counter::new(Layout::default()));
            counter.begin(5, START, START, Duration::ZERO, START * 1000);
            let raises = [1, 2].map(|more| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || counter.raise(START + more))
            });
            for raise in raises {
                raise.join().unwrap();
            }
            let two = 2 << Layout::default().sequence_bits();
            assert!(counter.take(|| Duration::ZERO, two).is_ok());
        });
    }
}
