//! Where claims of a queue start: below these places there is nothing to claim but what came back.
//!
//! A claim reads the index of due jobs from a place on. In front of the first job that waits are the
//! entries of jobs that were deleted: as long as vacuum may remove them they are few, and claims read
//! them from time to time, to find what came back. While somebody holds an old snapshot they pile up.
//! Then claims never start before their places, and what came back is looked for beside them, in parts
//! of the index and for a small part of the time.

use std::time::Duration;

use crate::engine::clock::Time;
use crate::queue::{Floor, Priority, SearchRange, SearchResult};

const LEVELS: usize = Priority::ALL.len();
/// How long claims start where the last one ended, while reading from the beginning costs little.
const LASTS: Duration = Duration::from_millis(250);
/// So many entries cost little.
const CHEAP: i64 = 4096;
/// As many as that where names are paused, whose jobs stay in front of the others.
const CHEAP_IF_PAUSED: i64 = 256;
/// After a search that read an entry none is started for so long: an entry takes one or two microseconds.
const PAUSE: Duration = Duration::from_micros(100);
/// The pause after a search that failed, and the shortest after any.
const FAILED: Duration = Duration::from_secs(5);
/// After so many claims that took too long in a row, a busy machine is not the cause.
const TIMEOUTS: u32 = 2;
const SHORTEST: Duration = Duration::from_millis(20);
/// What comes back has mostly been claimed, or pushed by a transaction that ended late, just before:
/// the last seconds, in microseconds, are looked at the most often.
const NEAR: i64 = 5_000_000;
/// A push that is under way for so long, in microseconds, is found by the next claim.
const LAG: i64 = 100_000;
/// A server's clock that is so far behind, in microseconds, was set back.
const SET_BACK: i64 = 1_000_000;
/// How much of the time before is looked at first, and when its entries are few or many.
const FIRST_WIDTH: i64 = 1_000_000;
const FEW: i64 = 10_000;
const MANY: i64 = 100_000;

/// The places of one queue.
#[derive(Default)]
pub(super) struct Floors {
    places: PriorityFloors,
    until: Time,
    /// The server's time at a point of this process's.
    server: (i64, Time),
    /// Whether there are too many entries before them for claims to read.
    costly: bool,
    /// A hash of the names that are paused.
    paused: Option<i64>,
    recent: RecentSearch,
    full_search: FullSearch,
    /// How many claims in a row took too long.
    timeouts: u32,
    /// Whether claims took too long, since when they begin near the end.
    slow: bool,
    /// Whether nobody has looked at all that was before the places since then.
    unseen: bool,
    /// What searches have found where claims took too long, by priority.
    back: Vec<(i64, Floor)>,
}

/// Searches the last seconds before the places.
#[derive(Default)]
struct RecentSearch {
    at: Time,
    running: bool,
}

/// Searches all that was before, backwards.
#[derive(Default)]
struct FullSearch {
    at: Time,
    running: bool,
    /// The point in time that is reached; `None` begins.
    reached: Option<i64>,
    width: i64,
    /// How many entries were read on the way.
    read: i64,
}

/// A place for each priority.
pub(super) type PriorityFloors = [Floor; LEVELS];

/// Where a claim starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) places: PriorityFloors,
    /// How many jobs are there, where it is to take those that were found and not to read on from there.
    pub(super) most: Option<i64>,
}

const START: PriorityFloors = [(0, 0); LEVELS];
/// Behind everything, in microseconds: the end of the year 9999.
const END: i64 = 253_402_300_799_000_000;

/// What a claim found.
pub(super) struct Found {
    /// Where it started.
    pub(super) started: PriorityFloors,
    /// Whether it got as many jobs as it wanted.
    pub(super) full: bool,
    /// The priorities of which it got all that was due, although it is full.
    pub(super) exhausted: Vec<i64>,
    /// How many entries of the index it read; `None` where the queue is paused.
    pub(super) read: Option<i64>,
    /// A hash of the names that are paused.
    pub(super) paused: Option<i64>,
    /// When it was requested.
    pub(super) sent: Time,
    /// The server's time.
    pub(super) at: i64,
}

impl Floors {
    /// Where a claim starts.
    pub(super) fn start(&mut self, now: Time) -> Start {
        if now >= self.until && !self.costly {
            self.places = START;
        }
        let mut places = self.places;
        if self.costly && !self.is_timeless() {
            let latest = self.server_time(now).saturating_sub(LAG);
            places = places.map(|place| place.min((latest, 0)));
        }
        let back = std::mem::take(&mut self.back);
        for (priority, (at, id)) in &back {
            let place = usize::try_from(*priority).ok();
            if let Some(place) = place.and_then(|priority| places.get_mut(priority)) {
                *place = (*place).min((*at, id - 1));
            }
        }
        let most = i64::try_from(back.len()).ok().filter(|most| *most > 0);
        Start { places, most }
    }

    /// Whether no answer has told the server's time.
    fn is_timeless(&self) -> bool {
        self.server.0 == 0
    }

    pub(super) fn is_costly(&self) -> bool {
        self.costly
    }

    /// A claim that began at these places took longer than a statement may. If the one before did so as well, it is what they read:
    /// claims begin near the end, and what is before is searched in parts. Where the server's time is not known, the next claim looks
    /// behind everything, and is told.
    pub(super) fn timed_out(&mut self, now: Time, started: &PriorityFloors) {
        self.timeouts += 1;
        if self.timeouts < TIMEOUTS {
            return;
        }
        (self.costly, self.slow, self.unseen) = (true, true, true);
        let near = if self.is_timeless() {
            END
        } else {
            self.server_time(now) - NEAR
        };
        for (place, started) in self.places.iter_mut().zip(started) {
            // It has moved on meanwhile.
            if *place <= *started {
                *place = (*place).max((near, 0));
            }
        }
        self.full_search.reached = None;
        self.full_search.read = 0;
    }

    /// The server's clock, unless it was set.
    fn server_time(&self, now: Time) -> i64 {
        let (then, at) = self.server;
        let since = i64::try_from(now.saturating_sub(at).as_micros()).unwrap_or(i64::MAX);
        then.saturating_add(since)
    }

    pub(super) fn is_start(places: &PriorityFloors) -> bool {
        *places == START
    }

    /// A claim was answered, and got what was at `places`, by their priorities. Answers whether there may
    /// be more, because it did not start at the beginning and the next one will.
    pub(super) fn claimed(
        &mut self,
        now: Time,
        found: &Found,
        places: impl Iterator<Item = (i64, Floor)>,
    ) -> bool {
        let Some(read) = found.read else {
            // It read nothing.
            return false;
        };
        self.timeouts = 0;
        if found.started.iter().any(|place| place.0 == END) {
            // It was to be told the time.
            if self.is_timeless() {
                self.places = [(found.at - NEAR, 0); LEVELS];
                self.server = (found.at, now);
                self.paused = found.paused;
            }
            return true;
        }
        if self.costly && self.is_timeless() {
            // Another has read it all in time.
            *self = Self {
                paused: found.paused,
                ..Self::default()
            };
        }
        if found.at.saturating_add(SET_BACK) < self.server_time(found.sent) {
            // What is pushed from now on is due before all that was claimed.
            *self = Self::default();
            return true;
        }
        if found.paused != self.paused {
            // What is resumed is due before all that was claimed meanwhile.
            *self = Self {
                paused: found.paused,
                ..Self::default()
            };
            if found.started != START {
                return true;
            }
        }
        if found.started == START {
            self.costly = read > self.cheap();
            (self.slow, self.unseen) = (false, false);
        }
        self.server = (found.at, now);
        if !found.full && !self.costly {
            self.places = START;
            return found.started != START;
        }
        if self.places == START {
            self.until = now + LASTS;
        }
        let reached = (found.at, i64::MAX);
        if !found.full {
            // All due jobs were read, in each priority.
            self.places = self.places.map(|place| place.max(reached));
        } else if self.costly {
            // Otherwise each claim of a backlog would read again what ended jobs of these have left.
            for priority in &found.exhausted {
                if let Some(floor) = self.priority(*priority) {
                    *floor = (*floor).max(reached);
                }
            }
        }
        for (priority, place) in places {
            if let Some(floor) = self.priority(priority) {
                *floor = (*floor).max(place);
            }
        }
        false
    }

    /// What is at this place is to be claimed.
    fn returned(&mut self, priority: i64, (at, id): Floor) {
        if let Some(floor) = self.priority(priority) {
            *floor = (*floor).min((at, id - 1));
        }
    }

    /// A job became due again, at an unknown position.
    pub(super) fn reset(&mut self) {
        if self.costly {
            self.recent.at = Time::ZERO;
        } else {
            self.places = START;
        }
    }

    fn cheap(&self) -> i64 {
        self.paused.map_or(CHEAP, |_| CHEAP_IF_PAUSED)
    }

    fn priority(&mut self, priority: i64) -> Option<&mut Floor> {
        let at = usize::try_from(priority).ok()?;
        self.places.get_mut(at)
    }

    /// What to search now, for jobs that became due again.
    pub(super) fn next_search(&mut self, now: Time) -> Option<(Search, Vec<SearchRange>)> {
        if !self.costly || self.places == START || self.is_timeless() {
            return None;
        }
        let search = if now >= self.recent.at && !self.recent.running {
            self.recent.running = true;
            Search::Recent
        } else if now >= self.full_search.at && !self.full_search.running {
            self.full_search.running = true;
            Search::Full
        } else {
            return None;
        };
        let priorities = Priority::ALL.into_iter().zip(self.places);
        let priorities = priorities.map(|(priority, place)| {
            let (from, to) = match search {
                Search::Recent => (place.0 - NEAR, place.0),
                Search::Full => self.full_search.part(&self.places),
            };
            (priority.number(), from, place.min((to, i64::MAX)))
        });
        Some((search, priorities.collect()))
    }

    /// A search was answered; whether there is something to claim.
    pub(super) fn search_ended(
        &mut self,
        now: Time,
        search: Search,
        result: Option<&SearchResult>,
    ) -> bool {
        let pause = match result {
            Some(result) => {
                SHORTEST.max(PAUSE * u32::try_from(result.read.max(0)).unwrap_or(u32::MAX))
            }
            None => FAILED,
        };
        match search {
            Search::Recent => {
                self.recent = RecentSearch {
                    at: now + pause,
                    running: false,
                }
            }
            Search::Full => {
                let over = self
                    .full_search
                    .search_ended(&self.places, result.map(|result| result.read));
                self.full_search.at = now + pause;
                self.full_search.running = false;
                if over.is_some_and(|read| read <= self.cheap()) {
                    (self.costly, self.slow) = (false, false);
                }
                self.unseen &= over.is_none();
            }
        }
        let found = result.map_or(&[][..], |result| &result.found);
        for (priority, place) in found {
            if self.slow {
                // A claim that goes on from there would take too long again.
                self.back.retain(|(other, _)| other != priority);
                self.back.push((*priority, *place));
            } else {
                self.returned(*priority, *place);
            }
        }
        !found.is_empty()
    }

    /// When the next search is due, where nobody has looked at what was before the places: it does not wait for a claim.
    pub(super) fn search_again(&self, now: Time) -> Option<Time> {
        let is_wanted = self.unseen && !self.full_search.running;
        is_wanted.then(|| self.full_search.at.max(now))
    }
}

/// Which part is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Recent,
    Full,
}

impl FullSearch {
    fn part(&self, places: &PriorityFloors) -> (i64, i64) {
        let last = places.iter().map(|place| place.0).max().unwrap_or(0);
        let to = self.reached.unwrap_or(last);
        (to - self.width.max(FIRST_WIDTH), to)
    }

    /// Goes on to the part before. At the end, how many entries were read in all.
    fn search_ended(&mut self, places: &PriorityFloors, read: Option<i64>) -> Option<i64> {
        let (from, _) = self.part(places);
        let width = self.width.max(FIRST_WIDTH);
        let Some(read) = read else {
            // A smaller part may be read in time.
            self.width = width / 4;
            return None;
        };
        self.read += read;
        self.width = match read {
            ..FEW => width.saturating_mul(4),
            FEW..MANY => width,
            MANY.. => width / 4,
        };
        if from > 0 {
            self.reached = Some(from);
            return None;
        }
        let read = self.read;
        *self = Self::default();
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const NOW: i64 = 1_700_000_000 * SECOND;

    fn server(now: Time) -> i64 {
        NOW + 5 * SECOND + i64::try_from(now.as_micros()).unwrap()
    }

    fn claim(floors: &mut Floors, now: Time, full: bool, read: i64, at: i64) {
        let started = floors.start(now).places;
        let found = Found {
            started,
            full,
            exhausted: Vec::new(),
            read: Some(read),
            paused: None,
            sent: now,
            at: server(now),
        };
        floors.claimed(now, &found, std::iter::once((2, (at, 7))));
    }

    fn result(read: i64, found: &[(i64, Floor)]) -> SearchResult {
        SearchResult {
            found: found.to_vec(),
            read,
        }
    }

    #[test]
    fn claims_start_at_the_beginning_from_time_to_time() {
        let mut floors = Floors::default();
        let mut now = Time::ZERO;
        assert_eq!(floors.start(now).places, START);
        claim(&mut floors, now, true, 10, NOW);
        assert_eq!(floors.start(now).places[2], (NOW, 7));
        now += LASTS;
        assert_eq!(floors.start(now).places, START);
        claim(&mut floors, now, true, 10, NOW);
        claim(&mut floors, now, false, 10, NOW);
        assert_eq!(floors.start(now).places, START, "there was no more");
        assert!(floors.next_search(now + FAILED).is_none());
    }

    #[test]
    fn claims_keep_their_places_while_much_is_before_them() {
        let mut floors = Floors::default();
        let mut now = Time::ZERO;
        claim(&mut floors, now, true, 1_000_000, NOW);
        now += LASTS * 100;
        claim(&mut floors, now, true, 5, NOW + SECOND);
        assert_eq!(floors.start(now).places[2], (NOW + SECOND, 7));
        floors.reset();
        assert_eq!(floors.start(now).places[2], (NOW + SECOND, 7));
        assert_eq!(
            floors.start(now).places[3],
            (0, 0),
            "nobody has looked there"
        );
        claim(&mut floors, now, false, 5, NOW + SECOND);
        // What is pushed meanwhile is due a moment before the claim looked.
        let latest = (server(now) - LAG, 0);
        assert_eq!(floors.start(now).places, [latest; LEVELS]);
        floors.returned(2, (NOW, 5));
        assert_eq!(floors.start(now).places[2], (NOW, 4));
    }

    #[test]
    fn priorities_of_which_there_is_no_more_are_not_read_again_in_a_backlog() {
        let mut floors = Floors::default();
        let found = |floors: &mut Floors, read| Found {
            started: floors.start(Time::ZERO).places,
            full: true,
            exhausted: vec![0, 1],
            read: Some(read),
            paused: None,
            sent: Time::ZERO,
            at: NOW + 5 * SECOND,
        };
        let place = || std::iter::once((2, (NOW, 7)));
        let cheap = found(&mut floors, 10);
        floors.claimed(Time::ZERO, &cheap, place());
        assert_eq!(
            floors.start(Time::ZERO).places[0],
            (0, 0),
            "that costs little"
        );
        let costly = found(&mut Floors::default(), 1_000_000);
        floors.claimed(Time::ZERO, &costly, place());
        let latest = (NOW + 5 * SECOND - LAG, 0);
        let expected = [latest, latest, (NOW, 7), (0, 0)];
        assert_eq!(floors.start(Time::ZERO).places, expected);
    }

    /// An answer to a claim that got nothing.
    fn nothing(started: PriorityFloors, at: i64) -> Found {
        Found {
            started,
            full: false,
            exhausted: Vec::new(),
            read: Some(0),
            paused: Some(1),
            sent: Time::ZERO,
            at,
        }
    }

    #[test]
    fn claims_that_take_too_long_begin_near_the_end() {
        let mut floors = Floors::default();
        let now = Time::ZERO;
        let at = NOW + 5 * SECOND;
        floors.timed_out(now, &START);
        assert_eq!(floors.start(now).places, START, "it may have been busy");
        floors.timed_out(now, &START);
        let started = floors.start(now).places;
        assert_eq!(started, [(END, 0); LEVELS], "it asks for the time");
        assert!(floors.next_search(now).is_none());
        let near = [(at - NEAR, 0); LEVELS];
        assert!(floors.claimed(now, &nothing(started, at), std::iter::empty()));
        assert_eq!(floors.start(now).places, near);
        // Another that asked for the time knows of no more.
        assert!(floors.claimed(now, &nothing(started, at), std::iter::empty()));
        assert_eq!(floors.start(now).places, near);
    }

    #[test]
    fn what_nobody_could_read_is_searched_at_once_and_found_one_by_one() {
        let mut floors = Floors::default();
        let now = Time::ZERO;
        let at = NOW + 5 * SECOND;
        for _ in 0..TIMEOUTS {
            floors.timed_out(now, &START);
        }
        let asked = floors.start(now).places;
        floors.claimed(now, &nothing(asked, at), std::iter::empty());
        let (search, ranges) = floors.next_search(now).unwrap();
        assert_eq!((search, ranges[0].1), (Search::Recent, at - 2 * NEAR));
        floors.search_ended(now, search, Some(&result(10, &[])));
        assert_eq!(floors.search_again(now), Some(now), "without a claim");
        let (search, ranges) = floors.next_search(now).unwrap();
        let before = at - NEAR - FIRST_WIDTH;
        assert_eq!((search, ranges[0].1), (Search::Full, before));
        assert_eq!(floors.search_again(now), None, "it is under way");
        let back = (before + 1, 5);
        floors.search_ended(now, search, Some(&result(10, &[(1, back)])));
        assert_eq!(floors.search_again(now), Some(now + SHORTEST));
        // One claim takes it, and the next ones do not read on from there.
        let start = floors.start(now);
        assert_eq!((start.places[1], start.most), ((before + 1, 4), Some(1)));
        let start = floors.start(now);
        assert_eq!((start.places, start.most), ([(at - NEAR, 0); LEVELS], None));
        // At the end of the search claims are as before.
        let mut now = now;
        while let Some(again) = floors.search_again(now) {
            now = again;
            let (search, _) = floors.next_search(now).unwrap();
            floors.search_ended(now, search, Some(&result(1, &[])));
        }
        assert_eq!(floors.start(now).places, START);
    }

    #[test]
    fn places_that_take_too_long_are_left_behind() {
        let mut floors = Floors::default();
        let now = Time::ZERO;
        claim(&mut floors, now, true, 1_000_000, NOW);
        let started = floors.start(now).places;
        floors.timed_out(now, &started);
        // Another has moved on since.
        floors.places[2] = (NOW + SECOND, 3);
        floors.timed_out(now, &started);
        let near = (server(now) - NEAR, 0);
        assert_eq!(floors.places, [near, near, (NOW + SECOND, 3), near]);
        let started = floors.start(now).places;
        floors.claimed(now, &nothing(started, server(now)), std::iter::empty());
        floors.timed_out(now, &started);
        assert_eq!(floors.timeouts, 1, "not in a row");
    }

    #[test]
    fn paused_queue_keeps_its_places() {
        let mut floors = Floors::default();
        claim(&mut floors, Time::ZERO, true, 1_000_000, NOW);
        let paused = Found {
            started: floors.start(Time::ZERO).places,
            full: false,
            exhausted: Vec::new(),
            read: None,
            paused: None,
            sent: Time::ZERO,
            at: NOW + 5 * SECOND,
        };
        assert!(!floors.claimed(Time::ZERO, &paused, std::iter::empty()));
        assert_eq!(floors.start(Time::ZERO).places[2], (NOW, 7));
    }

    #[test]
    fn names_that_are_paused_or_resumed_begin_anew() {
        let mut floors = Floors::default();
        let found = |floors: &mut Floors, paused, read| Found {
            started: floors.start(Time::ZERO).places,
            full: true,
            exhausted: Vec::new(),
            read: Some(read),
            paused,
            sent: Time::ZERO,
            at: NOW + 5 * SECOND,
        };
        let place = || std::iter::once((2, (NOW, 7)));
        let first = found(&mut floors, Some(1), CHEAP_IF_PAUSED + 1);
        assert!(!floors.claimed(Time::ZERO, &first, place()));
        assert_eq!(
            floors.start(LASTS * 2).places[2],
            (NOW, 7),
            "they are in front"
        );
        let same = found(&mut floors, Some(1), 10);
        assert!(!floors.claimed(Time::ZERO, &same, place()));
        assert_eq!(floors.start(LASTS * 2).places[2], (NOW, 7));
        let resumed = found(&mut floors, None, 10);
        assert!(floors.claimed(Time::ZERO, &resumed, place()));
        assert_eq!(floors.start(Time::ZERO).places, START);
        let all = found(&mut floors, None, CHEAP_IF_PAUSED + 1);
        assert!(!floors.claimed(Time::ZERO, &all, place()));
        assert_eq!(floors.start(LASTS * 2).places, START, "they are few");
    }

    #[test]
    fn clock_that_was_set_back_begins_anew() {
        let mut floors = Floors::default();
        claim(&mut floors, Time::ZERO, true, 1_000_000, NOW);
        let found = Found {
            started: floors.start(Time::ZERO).places,
            full: false,
            exhausted: Vec::new(),
            read: Some(10),
            paused: None,
            sent: Duration::from_secs(1),
            at: NOW - 3600 * SECOND,
        };
        let again = floors.claimed(Duration::from_secs(1), &found, std::iter::empty());
        assert!(again && floors.start(Duration::from_secs(1)).places == START);
    }

    #[test]
    fn what_came_back_is_found_near_and_far() {
        let mut floors = Floors::default();
        let mut now = Time::ZERO;
        claim(&mut floors, now, true, 1_000_000, NOW);
        let (recent, back) = floors.next_search(now).unwrap();
        assert_eq!(recent, Search::Recent);
        assert_eq!(back[2], (2, NOW - NEAR, (NOW, 7)));
        let (full_search, _) = floors.next_search(now).unwrap();
        assert_eq!(full_search, Search::Full);
        assert!(floors.next_search(now).is_none(), "both are under mode");
        assert!(floors.search_ended(now, recent, Some(&result(5_000, &[(2, (NOW - SECOND, 3))]))));
        assert_eq!(floors.start(now).places[2], (NOW - SECOND, 2));
        assert!(!floors.search_ended(now, full_search, None));
        assert!(floors.next_search(now).is_none(), "not at once");
        now += FAILED;
        assert!(floors.next_search(now).is_some());
    }

    /// Every moment is looked at, whatever the looks read, and they take a small part of the time.
    #[test]
    fn looks_go_back_to_the_beginning() {
        let mut floors = Floors::default();
        let mut now = Time::ZERO;
        claim(&mut floors, now, true, 1_000_000, NOW);
        floors.recent.running = true;
        let dead = |from: i64, to: i64| {
            // A thousand a second for an hour.
            let (first, last) = (NOW - 3600 * SECOND, NOW);
            (to.min(last) - from.max(first)).max(0) / 1000
        };
        let (mut reached, mut work) = (NOW, 0);
        let mut looks = 0;
        while floors.costly && reached > 0 {
            let Some((search, back)) = floors.next_search(now) else {
                now += SHORTEST;
                continue;
            };
            let (_, from, to) = back[2];
            assert_eq!(to.0, reached, "nothing is left out");
            reached = from;
            let read = dead(from, to.0);
            assert!(read < 4 * MANY, "a look is bounded: {read}");
            work += read;
            looks += 1;
            floors.search_ended(now, search, Some(&result(read, &[])));
        }
        assert!(reached <= 0 && floors.costly, "there was much");
        assert_eq!(work, 3_600_000);
        assert!(looks < 400, "{looks} looks");
        let busy = Duration::from_micros(2 * work.unsigned_abs());
        assert!(
            busy * 40 < now.saturating_sub(Time::ZERO),
            "{busy:?} of {now:?}"
        );
        // With the snapshot gone another pass finds little.
        while floors.costly {
            if let Some((search, _)) = floors.next_search(now) {
                floors.search_ended(now, search, Some(&result(10, &[])));
            }
            now += SHORTEST;
        }
        assert_eq!(floors.start(now).places, START);
    }
}
