//! The table of limits, in memory.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::MAX_RESERVATIONS;
use super::charge::{Charge, ChargeLine, OfKey};
use super::level::{Level, Refunded};
use super::manage::{Block, Refund};
use super::raw_decision::{Outcome, RawDecision};
use super::reservation::{EndReservation, Expire, PART};
use super::take::Take;
use crate::admin::ListLimits;
use crate::driver::columns::maybe_int;
use crate::driver::{Row, Rows, Value};

/// A row that has been idle for so long is deleted, in nanoseconds.
const IDLE: i64 = 60_000_000_000;
/// A part of a sweep deletes so many reservations at most.
const MOST_FORGOTTEN: i64 = 10_000;

/// The rows of all limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    rows: BTreeMap<(String, String), LimitRow>,
}

/// A row, and the reservations of its key.
#[derive(Clone, Debug, Default)]
struct LimitRow {
    level: Level,
    /// No reservation expires earlier; `None` without reservations.
    due: Option<i64>,
    /// By the time when they expire, and their numbers.
    reserved: BTreeMap<(i64, i64), ReservationRow>,
}

#[derive(Clone, Copy, Debug)]
struct ReservationRow {
    /// When it was taken.
    at: i64,
    /// What it took: nanoseconds, or permits of a window.
    price: i64,
    /// The length of the window, or 0.
    window: i64,
}

impl LimitRow {
    /// Whether it has to be put in order first: reservations have expired, or the clock was set back.
    fn is_overdue(&self, now: i64) -> bool {
        self.due.is_some_and(|due| due <= now) || self.level.is_ahead(now)
    }

    /// Whether this number of further reservations is too many.
    fn is_full(&self, more: usize) -> bool {
        more > 0 && self.reserved.len() + more > MAX_RESERVATIONS
    }

    fn reserve(&mut self, line: &ChargeLine, now: i64) {
        let expires = now.saturating_add(line.ttl);
        let reserved = ReservationRow {
            at: now,
            price: line.price(),
            window: line.quota.window(),
        };
        self.reserved.insert((expires, line.id), reserved);
        self.due = Some(self.due.map_or(expires, |due| due.min(expires)));
        self.count();
    }

    /// Ends a reservation, of which at most `price` is given back: that is still to be done.
    fn end(&mut self, key: (i64, i64), price: i64) -> Option<Refunded> {
        let one = self.reserved.remove(&key);
        self.count();
        one.map(|one| Refunded {
            price: price.min(one.price),
            window: one.window,
            at: one.at,
        })
    }

    fn count(&mut self) {
        self.level.reserved = i64::try_from(self.reserved.len()).unwrap_or(i64::MAX);
        if self.reserved.is_empty() {
            self.due = None;
        }
    }
}

impl Limits {
    /// The rows of a list of limits.
    pub(crate) fn list(&self, now: i64, request: &ListLimits) -> Rows {
        let mut part: Vec<_> = self
            .rows
            .iter()
            .filter(|((_, key), _)| *key > request.after)
            .collect();
        part.sort_by_key(|((namespace, key), _)| (key, namespace));
        part.truncate(usize::try_from(request.examined).unwrap_or_default());
        let row = |(key, level): (&String, &Level)| {
            let counts = level.started > 0 && level.forgotten() > now;
            let blocked = level.blocked_until - now;
            Row(vec![
                Value::Text(key.clone()),
                Value::Int((now - level.at).max(0)),
                Value::Int((level.tat - now).max(0)),
                maybe_int(counts.then_some(level.span)),
                Value::Int(level.used),
                Value::Int(level.before),
                maybe_int((blocked > 0).then_some(blocked)),
                Value::Int(level.reserved),
            ])
        };
        part.into_iter()
            .filter(|((namespace, _), _)| *namespace == request.namespace)
            .map(|((_, key), row)| (key, &row.level))
            .take(usize::try_from(request.most).unwrap_or_default())
            .map(row)
            .collect()
    }

    pub(crate) fn level(&self, namespace: &str, key: &str) -> Level {
        self.row_of(namespace, key).unwrap_or_default()
    }

    pub(crate) fn row_of(&self, namespace: &str, key: &str) -> Option<Level> {
        self.get(namespace, key).map(|row| row.level.clone())
    }

    /// The state, and the time before which no reservation expires.
    pub(crate) fn read_level(&self, namespace: &str, key: &str) -> (Level, i64) {
        let due = self.get(namespace, key).and_then(|row| row.due);
        (self.level(namespace, key), due.unwrap_or(i64::MAX))
    }

    fn get(&self, namespace: &str, key: &str) -> Option<&LimitRow> {
        self.rows.get(&(namespace.to_owned(), key.to_owned()))
    }

    pub(crate) fn take(&mut self, request: &Take, now: i64) -> RawDecision {
        let key = (request.namespace.clone(), request.key.clone());
        let overdue = self.rows.get(&key).is_some_and(|row| row.is_overdue(now));
        let mut level = self.level(&request.namespace, &request.key);
        let fits = ((request.depth - level.debt(now)) / request.price).clamp(0, request.times);
        let outcome = if overdue {
            Outcome::Overdue
        } else if level.blocked_until > now || fits == 0 {
            Outcome::Refused
        } else {
            (level.tat, level.at) = (level.tat.max(now) + fits * request.price, now);
            self.rows.entry(key).or_default().level = level.clone();
            Outcome::Taken(fits)
        };
        RawDecision {
            outcome,
            level: level.as_of(now),
            now,
        }
    }

    /// Charges all lines of a request or none; answers for each of its keys.
    pub(crate) fn charge(&mut self, request: &Charge, now: i64) -> Vec<RawDecision> {
        let (keys, _) = request.keys();
        let outcomes: Vec<_> = keys
            .iter()
            .map(|key| self.outcome_for(request, key, now))
            .collect();
        let level = |key: &OfKey<'_>| self.level(&request.namespace, &key.line.key);
        let hope = |outcome: &Outcome| matches!(outcome, Outcome::Again | Outcome::Absent);
        if !outcomes.iter().all(|outcome| *outcome == Outcome::Again) {
            let hope = outcomes.iter().all(hope);
            let decided = keys.iter().zip(outcomes).map(|(key, outcome)| RawDecision {
                outcome: match outcome {
                    Outcome::Again | Outcome::Absent if !hope => Outcome::Refused,
                    outcome => outcome,
                },
                level: level(key).as_of(now),
                now,
            });
            return decided.collect();
        }
        let fits = |key: &OfKey<'_>| key.fits(&level(key), now);
        let times = keys.iter().map(fits).fold(request.times, i64::min);
        let outcome = if times > 0 {
            Outcome::Taken(times)
        } else {
            Outcome::Refused
        };
        let mut decided = Vec::new();
        for key in &keys {
            let Some(row) = self.get_mut(&request.namespace, &key.line.key) else {
                continue;
            };
            if times > 0 {
                row.level.take(&key.line.quota, key.price * times, now);
                let lines = request.lines.iter().filter(|line| line.key == key.line.key);
                for line in lines.filter(|line| line.id != 0) {
                    row.reserve(line, now);
                }
            }
            decided.push(RawDecision {
                outcome,
                level: row.level.clone(),
                now,
            });
        }
        decided
    }

    /// What the row of a key says before any is locked: `Again` where it does not refuse.
    fn outcome_for(&self, request: &Charge, key: &OfKey<'_>, now: i64) -> Outcome {
        let Some(row) = self.get(&request.namespace, &key.line.key) else {
            return Outcome::Absent;
        };
        let fits = key.fits(&row.level, now) > 0;
        let lines = request.lines.iter().filter(|line| line.key == key.line.key);
        match () {
            () if row.is_overdue(now) => Outcome::Overdue,
            () if !fits => Outcome::Refused,
            () if row.is_full(lines.filter(|line| line.id != 0).count()) => Outcome::Full,
            () => Outcome::Again,
        }
    }

    pub(crate) fn ensure(&mut self, namespace: &str, key: &str) {
        let key = (namespace.to_owned(), key.to_owned());
        self.rows.entry(key).or_default();
    }

    /// Gives back what was taken; of a key at once.
    pub(crate) fn refund(&mut self, requests: &[Refund], now: i64) {
        let mut keys = BTreeMap::<_, Vec<_>>::new();
        for request in requests {
            let key = (request.namespace.clone(), request.key.clone());
            keys.entry(key).or_default().push(Refunded {
                price: request.price,
                window: request.window,
                at: request.at,
            });
        }
        self.give_back(keys, now);
    }

    fn give_back(&mut self, keys: BTreeMap<(String, String), Vec<Refunded>>, now: i64) {
        for (key, all) in keys {
            if let Some(row) = self.rows.get_mut(&key) {
                row.level.give_back(&all, now.max(row.level.at));
            }
        }
    }

    pub(crate) fn reset(&mut self, namespace: &str, key: &str) {
        self.rows.remove(&(namespace.to_owned(), key.to_owned()));
    }

    pub(crate) fn block(&mut self, request: &Block, now: i64) {
        self.ensure(&request.namespace, &request.key);
        if let Some(LimitRow { level, .. }) = self.get_mut(&request.namespace, &request.key) {
            level.blocked_until = now.saturating_add(request.time);
        }
    }

    /// Whether each reservation was there and had not expired.
    pub(crate) fn end_reservation(&mut self, requests: &[EndReservation], now: i64) -> Vec<bool> {
        let mut keys = BTreeMap::<_, Vec<_>>::new();
        let mut end_reservation = |request: &EndReservation| {
            let row = self.get_mut(&request.namespace, &request.key)?;
            let found = row
                .reserved
                .keys()
                .find(|(_, id)| *id == request.id)
                .copied();
            let (expires, id) = found?;
            let price = if expires > now {
                request.price
            } else {
                i64::MAX
            };
            let key = (request.namespace.clone(), request.key.clone());
            keys.entry(key)
                .or_default()
                .extend(row.end((expires, id), price));
            Some(expires > now)
        };
        let ended = requests
            .iter()
            .map(|request| end_reservation(request).unwrap_or(false))
            .collect();
        self.give_back(keys, now);
        ended
    }

    pub(crate) fn expire(&mut self, request: &Expire, now: i64) {
        let Some(row) = self.get_mut(&request.namespace, &request.key) else {
            return;
        };
        let expired = row
            .reserved
            .keys()
            .take_while(|(expires, _)| *expires <= now);
        let part: Vec<_> = expired.take(PART).copied().collect();
        let ended: Vec<_> = part
            .iter()
            .filter_map(|key| row.end(*key, i64::MAX))
            .collect();
        row.level.give_back(&ended, now.max(row.level.at));
        row.level.move_back(now);
        let left = row.reserved.keys().map(|(expires, _)| *expires);
        row.due = match part.last() {
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
        let mut reservations = 0;
        let mut goes = |row: &LimitRow| {
            let level = &row.level;
            let is_over = level.at.max(level.tat).max(level.forgotten()) < now - IDLE;
            let mut reserved = row.reserved.keys();
            let is_idle =
                is_over && level.is_over(now) && reserved.all(|(expires, _)| *expires < now - IDLE);
            // All of it, or nothing.
            reservations += if is_idle { level.reserved } else { 0 };
            is_idle && reservations <= MOST_FORGOTTEN
        };
        let part: Vec<_> = part.map(|(key, row)| (key.clone(), goes(row))).collect();
        let rows = self.rows.len();
        for (key, _) in part.iter().filter(|(_, idle)| *idle) {
            self.rows.remove(key);
        }
        let deleted = i64::try_from(rows - self.rows.len()).unwrap_or(i64::MAX);
        (deleted, part.into_iter().map(|(key, _)| key).collect())
    }

    fn get_mut(&mut self, namespace: &str, key: &str) -> Option<&mut LimitRow> {
        self.rows.get_mut(&(namespace.to_owned(), key.to_owned()))
    }
}
