//! The table of limits, in memory.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::charge::{Charge, Line};
use super::judged::{Judged, Outcome};
use super::level::{Level, Reserved};
use super::take::Take;
use super::upkeep::{Block, Refund, Settle};

/// A row that has been idle for so long is deleted, in nanoseconds.
const IDLE: i64 = 60_000_000_000;

/// The rows of all limits.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    rows: BTreeMap<(String, String), Level>,
}

impl Limits {
    pub(crate) fn level(&self, namespace: &str, key: &str) -> Level {
        self.row_of(namespace, key).unwrap_or_default()
    }

    pub(crate) fn row_of(&self, namespace: &str, key: &str) -> Option<Level> {
        let place = (namespace.to_owned(), key.to_owned());
        self.rows.get(&place).cloned()
    }

    pub(crate) fn take(&mut self, want: &Take, now: i64) -> Judged {
        let place = (want.namespace.clone(), want.key.clone());
        let known = self.rows.contains_key(&place);
        let mut level = self.level(&want.namespace, &want.key);
        let base = level.tat.min(now + want.depth).max(now);
        let fits = ((now + want.depth - base) / want.price).clamp(0, want.times);
        let outcome = if is_overdue(&level, now) {
            Outcome::Overdue
        } else if level.blocked_until > now || (fits == 0 && level.tat <= now + want.depth) {
            Outcome::Refused
        } else {
            level.tat = base + fits * want.price;
            if fits > 0 || known {
                self.rows.insert(place, level.clone());
            }
            if fits > 0 {
                Outcome::Taken(fits)
            } else {
                Outcome::Refused
            }
        };
        Judged {
            outcome,
            level,
            now,
        }
    }

    pub(crate) fn charge(&mut self, want: &Charge, now: i64) -> Vec<Judged> {
        let levels: Vec<_> = want
            .lines
            .iter()
            .map(|line| self.level(&want.namespace, &line.key))
            .collect();
        let lines = || want.lines.iter().zip(&levels);
        let overdue = lines().any(|(_, level)| is_overdue(level, now));
        let fits = lines().all(|(line, level)| level.fits(&line.quota, line.price(), now) > 0);
        let hope = lines().all(|(line, level)| {
            level.is_beyond(&line.quota, now) || level.fits(&line.quota, line.price(), now) > 0
        });
        let known = |line: &Line| {
            let place = (want.namespace.clone(), line.key.clone());
            self.rows.contains_key(&place)
        };
        let incomplete = !want.lines.iter().all(known);
        let outcomes: Vec<_> = lines()
            .map(|(line, level)| match () {
                () if is_overdue(level, now) => Outcome::Overdue,
                () if overdue || !hope => Outcome::Refused,
                () if !known(line) => Outcome::Absent,
                () if incomplete => Outcome::Again,
                () if fits => Outcome::Taken(1),
                () => Outcome::Refused,
            })
            .collect();
        let settled = !overdue && hope && !incomplete;
        want.lines
            .iter()
            .zip(levels)
            .zip(outcomes)
            .map(|((line, mut level), outcome)| {
                if settled && (fits || level.is_beyond(&line.quota, now)) {
                    charge(&mut level, line, fits, now);
                    let place = (want.namespace.clone(), line.key.clone());
                    self.rows.insert(place, level.clone());
                }
                Judged {
                    outcome,
                    level,
                    now,
                }
            })
            .collect()
    }

    pub(crate) fn ensure(&mut self, namespace: &str, key: &str) {
        let place = (namespace.to_owned(), key.to_owned());
        self.rows.entry(place).or_default();
    }

    pub(crate) fn refund(&mut self, want: &Refund, now: i64) {
        if let Some(level) = self.row(&want.namespace, &want.key) {
            level.give_back(want.price, want.window, want.at, now);
        }
    }

    pub(crate) fn reset(&mut self, namespace: &str, key: &str) {
        self.rows.remove(&(namespace.to_owned(), key.to_owned()));
    }

    pub(crate) fn block(&mut self, want: &Block, now: i64) {
        self.ensure(&want.namespace, &want.key);
        if let Some(level) = self.row(&want.namespace, &want.key) {
            level.blocked_until = now.saturating_add(want.time);
        }
    }

    /// Whether the reservation was there.
    pub(crate) fn settle(&mut self, want: &Settle, now: i64) -> bool {
        let Some(level) = self.row(&want.namespace, &want.key) else {
            return false;
        };
        let mut found = false;
        for one in std::mem::take(&mut level.reserved) {
            if one.expires <= now {
                level.give_back(one.price, one.window, one.at, now);
            } else if one.id == want.id {
                level.give_back(want.price.min(one.price), one.window, one.at, now);
                found = true;
            } else {
                level.reserved.push(one);
            }
        }
        found
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
        let idle = |level: &Level| level.tat < now - IDLE && level.is_idle(now);
        let part: Vec<_> = part
            .map(|(place, level)| (place.clone(), idle(level)))
            .collect();
        let rows = self.rows.len();
        for (place, _) in part.iter().filter(|(_, idle)| *idle) {
            self.rows.remove(place);
        }
        let deleted = i64::try_from(rows - self.rows.len()).unwrap_or(i64::MAX);
        (deleted, part.into_iter().map(|(place, _)| place).collect())
    }

    fn row(&mut self, namespace: &str, key: &str) -> Option<&mut Level> {
        self.rows.get_mut(&(namespace.to_owned(), key.to_owned()))
    }
}

fn is_overdue(level: &Level, now: i64) -> bool {
    level.due() <= now
}

fn charge(level: &mut Level, line: &Line, fits: bool, now: i64) {
    if !fits {
        level.heal(&line.quota, now);
        return;
    }
    level.take(&line.quota, line.price(), now);
    if line.id != 0 {
        level.reserved.push(Reserved {
            id: line.id,
            at: now,
            price: line.price(),
            window: line.quota.window(),
            expires: now.saturating_add(line.ttl),
        });
    }
}
