//! The table of limits, in memory.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::MAX_RESERVATIONS;
use super::charge::{Charge, ChargeLine};
use super::level::Level;
use super::quota::Quota;
use super::raw_decision::{Outcome, RawDecision};
use super::reserved::{Expire, PART, Settle};
use super::take::Take;
use super::upkeep::{Block, Refund};

/// A row that has been idle for so long is deleted, in nanoseconds.
const IDLE: i64 = 60_000_000_000;

/// The rows of all limits.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    rows: BTreeMap<(String, String), Kept>,
}

/// A row, and the reservations of its key.
#[derive(Clone, Debug, Default)]
struct Kept {
    level: Level,
    /// No reservation expires earlier; `None` without reservations.
    due: Option<i64>,
    /// By the time when they expire, and their numbers.
    reserved: BTreeMap<(i64, i64), Reserved>,
}

#[derive(Clone, Copy, Debug)]
struct Reserved {
    /// When it was taken.
    at: i64,
    /// What it took: nanoseconds, or permits of a window.
    price: i64,
    /// The length of the window, or 0.
    window: i64,
}

impl Kept {
    fn is_overdue(&self, now: i64) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Whether another reservation would be one too many, when so many come before it.
    fn is_full(&self, line: &ChargeLine, ahead: usize) -> bool {
        line.id != 0 && self.reserved.len() + ahead >= MAX_RESERVATIONS
    }

    fn reserve(&mut self, line: &ChargeLine, now: i64) {
        let expires = now.saturating_add(line.ttl);
        let reserved = Reserved {
            at: now,
            price: line.price(),
            window: line.quota.window(),
        };
        self.reserved.insert((expires, line.id), reserved);
        self.due = Some(self.due.map_or(expires, |due| due.min(expires)));
        self.count();
    }

    /// Ends a reservation, of which at most `price` is given back.
    fn end(&mut self, place: (i64, i64), price: i64, now: i64) {
        if let Some(one) = self.reserved.remove(&place) {
            let price = price.min(one.price);
            self.level.give_back(price, one.window, one.at, now);
        }
        self.count();
    }

    fn count(&mut self) {
        self.level.reserved = i64::try_from(self.reserved.len()).unwrap_or(i64::MAX);
        if self.reserved.is_empty() {
            self.due = None;
        }
    }
}

impl Limits {
    pub(crate) fn level(&self, namespace: &str, key: &str) -> Level {
        self.row_of(namespace, key).unwrap_or_default()
    }

    pub(crate) fn row_of(&self, namespace: &str, key: &str) -> Option<Level> {
        self.kept(namespace, key).map(|kept| kept.level.clone())
    }

    /// The state, and the time before which no reservation expires.
    pub(crate) fn look(&self, namespace: &str, key: &str) -> (Level, i64) {
        let due = self.kept(namespace, key).and_then(|kept| kept.due);
        (self.level(namespace, key), due.unwrap_or(i64::MAX))
    }

    fn kept(&self, namespace: &str, key: &str) -> Option<&Kept> {
        self.rows.get(&(namespace.to_owned(), key.to_owned()))
    }

    pub(crate) fn take(&mut self, want: &Take, now: i64) -> RawDecision {
        let place = (want.namespace.clone(), want.key.clone());
        let known = self.rows.contains_key(&place);
        let overdue = self
            .rows
            .get(&place)
            .is_some_and(|kept| kept.is_overdue(now));
        let mut level = self.level(&want.namespace, &want.key);
        let fits = ((want.depth - level.debt(now)) / want.price).clamp(0, want.times);
        let outcome = if overdue {
            Outcome::Overdue
        } else if level.blocked_until > now || (fits == 0 && !level.is_ahead(now)) {
            Outcome::Refused
        } else {
            level.move_back(now);
            (level.tat, level.at) = (level.tat.max(now) + fits * want.price, now);
            if fits > 0 || known {
                self.rows.entry(place).or_default().level = level.clone();
            }
            if fits > 0 {
                Outcome::Taken(fits)
            } else {
                Outcome::Refused
            }
        };
        RawDecision {
            outcome,
            level: level.as_of(now),
            now,
        }
    }

    /// Charges a batch, in which requests may have keys in common: one is admitted if it fits behind
    /// all that those before it may get.
    pub(crate) fn charge(&mut self, batch: &[Charge], now: i64) -> Vec<Vec<RawDecision>> {
        let hopes: Vec<_> = batch.iter().map(|want| self.hope(want, now)).collect();
        let mut keys: BTreeMap<(String, String), Charged> = BTreeMap::new();
        for (want, alone) in batch.iter().zip(&hopes) {
            for line in want.lines.iter().filter(|_| alone.is_some()) {
                let key = keys.entry(place(want, line)).or_insert_with(|| Charged {
                    before: self.level(&want.namespace, &line.key),
                    quota: None,
                    first: line.quota,
                    ahead: 0,
                    sum: 0,
                    reserves: 0,
                });
                if *alone > Some(0) {
                    key.quota.get_or_insert(line.quota);
                }
            }
        }
        let mut answers = Vec::new();
        for (want, alone) in batch.iter().zip(&hopes) {
            let Some(alone) = *alone else {
                answers.push((self.not_tried(want, now), Vec::new()));
                continue;
            };
            let fits = |line: &ChargeLine| {
                let key = &keys[&place(want, line)];
                let alike = key.quota == Some(line.quota);
                let room = key.before.room(&line.quota, now) - key.ahead;
                let kept = self.kept(&want.namespace, &line.key);
                let full = kept.is_some_and(|kept| kept.is_full(line, key.reserves));
                if alike && !full {
                    room / line.price()
                } else {
                    0
                }
            };
            let taken = want.lines.iter().map(fits).min().unwrap_or(0);
            let taken = if alone > 0 {
                taken.clamp(0, want.times)
            } else {
                0
            };
            let gone = |line: &ChargeLine| {
                let key = &keys[&place(want, line)];
                let room = key.before.room(&line.quota, now) - key.sum;
                key.quota.unwrap_or(key.first) == line.quota && room < line.price()
            };
            let refused = taken == 0 && want.lines.iter().any(gone);
            let mut decided = Vec::new();
            let mut sums = Vec::new();
            for line in &want.lines {
                let Some(key) = keys.get_mut(&place(want, line)) else {
                    continue;
                };
                let ahead = key.ahead.saturating_add(line.price() * alone);
                key.ahead = ahead.min(4_000_000_000_000_000_000);
                key.sum += line.price() * taken;
                key.reserves += usize::from(line.id != 0 && alone > 0);
                sums.push(key.sum);
                let outcome = match (taken, alone) {
                    (1.., _) => Outcome::Taken(taken),
                    (_, 1..) if !refused => Outcome::Again,
                    _ => Outcome::Refused,
                };
                let level = key.before.clone();
                decided.push(RawDecision {
                    outcome,
                    level,
                    now,
                });
            }
            answers.push((decided, sums));
        }
        self.write(&keys, now);
        let mut all = Vec::new();
        for (want, (mut decided, sums)) in batch.iter().zip(answers) {
            for ((line, decided), sum) in want.lines.iter().zip(&mut decided).zip(sums) {
                let charged = &keys[&place(want, line)];
                let Some(kept) = self.row(&want.namespace, &line.key) else {
                    continue;
                };
                decided.level = kept.level.clone();
                if charged.quota.unwrap_or(charged.first) == line.quota {
                    // As if the requests of the batch had come one by one.
                    let later = charged.sum - sum;
                    match line.quota.window() {
                        0 => decided.level.tat -= later,
                        _ => decided.level.used -= later,
                    }
                }
                if line.id != 0 && matches!(decided.outcome, Outcome::Taken(_)) {
                    kept.reserve(line, now);
                }
            }
            all.push(decided);
        }
        all
    }

    /// Takes what the rows of a batch are charged.
    fn write(&mut self, keys: &BTreeMap<(String, String), Charged>, now: i64) {
        for ((namespace, key), charged) in keys {
            let quota = charged.quota.unwrap_or(charged.first);
            let Some(Kept { level, .. }) = self.row(namespace, key) else {
                continue;
            };
            if charged.sum > 0 {
                level.take(&quota, charged.sum, now);
            } else {
                level.move_back(now);
            }
        }
    }

    /// How often a request would fit if it were alone; `None` if what is there decides already.
    fn hope(&self, want: &Charge, now: i64) -> Option<i64> {
        let mut alone = want.times;
        for line in &want.lines {
            let kept = self.kept(&want.namespace, &line.key)?;
            let level = &kept.level;
            let fits = level.fits(&line.quota, line.price(), now);
            if kept.is_overdue(now) || kept.is_full(line, 0) || (fits == 0 && !level.is_ahead(now))
            {
                return None;
            }
            alone = alone.min(fits);
        }
        Some(alone)
    }

    /// The answer to a request that nothing is locked for.
    fn not_tried(&self, want: &Charge, now: i64) -> Vec<RawDecision> {
        let level = |line: &ChargeLine| self.level(&want.namespace, &line.key);
        let known = |line: &ChargeLine| self.kept(&want.namespace, &line.key);
        let overdue = |line: &ChargeLine| known(line).is_some_and(|kept| kept.is_overdue(now));
        let full = |line: &ChargeLine| known(line).is_some_and(|kept| kept.is_full(line, 0));
        let fits = |line: &ChargeLine| {
            let level = level(line);
            level.fits(&line.quota, line.price(), now) > 0 || level.is_ahead(now)
        };
        let hope = |line: &ChargeLine| fits(line) && !overdue(line) && !full(line);
        let hope = want.lines.iter().all(hope);
        let judge = |line: &ChargeLine| {
            let level = level(line);
            let outcome = match () {
                () if overdue(line) => Outcome::Overdue,
                () if full(line) && fits(line) => Outcome::Full,
                () if !hope => Outcome::Refused,
                () if known(line).is_none() => Outcome::Absent,
                () => Outcome::Again,
            };
            RawDecision {
                outcome,
                level: level.as_of(now),
                now,
            }
        };
        want.lines.iter().map(judge).collect()
    }

    pub(crate) fn ensure(&mut self, namespace: &str, key: &str) {
        let place = (namespace.to_owned(), key.to_owned());
        self.rows.entry(place).or_default();
    }

    pub(crate) fn refund(&mut self, want: &Refund, now: i64) {
        if let Some(Kept { level, .. }) = self.row(&want.namespace, &want.key) {
            level.give_back(want.price, want.window, want.at, now);
        }
    }

    pub(crate) fn reset(&mut self, namespace: &str, key: &str) {
        self.rows.remove(&(namespace.to_owned(), key.to_owned()));
    }

    pub(crate) fn block(&mut self, want: &Block, now: i64) {
        self.ensure(&want.namespace, &want.key);
        if let Some(Kept { level, .. }) = self.row(&want.namespace, &want.key) {
            level.blocked_until = now.saturating_add(want.time);
        }
    }

    /// Whether the reservation was there and had not expired.
    pub(crate) fn settle(&mut self, want: &Settle, now: i64) -> bool {
        let Some(kept) = self.row(&want.namespace, &want.key) else {
            return false;
        };
        let found = kept.reserved.keys().find(|(_, id)| *id == want.id).copied();
        let Some((expires, id)) = found else {
            return false;
        };
        let price = if expires > now { want.price } else { i64::MAX };
        kept.end((expires, id), price, now);
        expires > now
    }

    pub(crate) fn expire(&mut self, want: &Expire, now: i64) {
        let Some(kept) = self.row(&want.namespace, &want.key) else {
            return;
        };
        let expired = kept
            .reserved
            .keys()
            .take_while(|(expires, _)| *expires <= now);
        let part: Vec<_> = expired.take(PART).copied().collect();
        for place in &part {
            kept.end(*place, i64::MAX, now);
        }
        let left = kept.reserved.keys().map(|(expires, _)| *expires);
        kept.due = match part.last() {
            Some((last, _)) if part.len() == PART => Some(*last),
            _ => left.min(),
        };
    }

    /// Answers how many were deleted, and what was looked at.
    pub(crate) fn sweep(
        &mut self,
        after: &(String, String),
        most: i64,
        now: i64,
    ) -> (i64, Vec<(String, String)>) {
        let most = usize::try_from(most).unwrap_or_default();
        let part = self.rows.range((Excluded(after), Unbounded)).take(most);
        let idle = |level: &Level| {
            let idle = level.at.max(level.tat).max(level.forgotten()) < now - IDLE;
            idle && level.is_idle(now)
        };
        let part: Vec<_> = part
            .map(|(place, kept)| (place.clone(), idle(&kept.level)))
            .collect();
        let rows = self.rows.len();
        for (place, _) in part.iter().filter(|(_, idle)| *idle) {
            self.rows.remove(place);
        }
        let deleted = i64::try_from(rows - self.rows.len()).unwrap_or(i64::MAX);
        (deleted, part.into_iter().map(|(place, _)| place).collect())
    }

    fn row(&mut self, namespace: &str, key: &str) -> Option<&mut Kept> {
        self.rows.get_mut(&(namespace.to_owned(), key.to_owned()))
    }
}

fn place(want: &Charge, line: &ChargeLine) -> (String, String) {
    (want.namespace.clone(), line.key.clone())
}

/// A row that a batch charges.
struct Charged {
    before: Level,
    /// The quota of the first line that fits alone: those of another quota have to ask again.
    quota: Option<Quota>,
    /// The quota of the first line.
    first: Quota,
    /// What the lines so far may get, at most.
    ahead: i64,
    /// What the lines so far got.
    sum: i64,
    /// How many reservations the lines so far may get.
    reserves: usize,
}
