//! The table of limits, in memory.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::charge::{Charge, Line};
use super::judged::{Judged, Outcome};
use super::level::{Level, Reserved};
use super::quota::Quota;
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
        let fits = ((want.depth - level.debt(now)) / want.price).clamp(0, want.times);
        let outcome = if is_overdue(&level, now) {
            Outcome::Overdue
        } else if level.blocked_until > now || (fits == 0 && !level.is_ahead(now)) {
            Outcome::Refused
        } else {
            level.move_back(now);
            (level.tat, level.at) = (level.tat.max(now) + fits * want.price, now);
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
            level: level.as_of(now),
            now,
        }
    }

    /// Charges a batch, in which requests may have keys in common: one is admitted if it fits behind
    /// all that those before it may get.
    pub(crate) fn charge(&mut self, batch: &[Charge], now: i64) -> Vec<Vec<Judged>> {
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
            let fits = |line: &Line| {
                let key = &keys[&place(want, line)];
                let alike = key.quota == Some(line.quota);
                let room = key.before.room(&line.quota, now) - key.ahead;
                if alike { room / line.price() } else { 0 }
            };
            let taken = want.lines.iter().map(fits).min().unwrap_or(0);
            let taken = if alone > 0 {
                taken.clamp(0, want.times)
            } else {
                0
            };
            let gone = |line: &Line| {
                let key = &keys[&place(want, line)];
                let room = key.before.room(&line.quota, now) - key.sum;
                key.quota.unwrap_or(key.first) == line.quota && room < line.price()
            };
            let refused = taken == 0 && want.lines.iter().any(gone);
            let mut judged = Vec::new();
            let mut sums = Vec::new();
            for line in &want.lines {
                let Some(key) = keys.get_mut(&place(want, line)) else {
                    continue;
                };
                let ahead = key.ahead.saturating_add(line.price() * alone);
                key.ahead = ahead.min(4_000_000_000_000_000_000);
                key.sum += line.price() * taken;
                sums.push(key.sum);
                let outcome = match (taken, alone) {
                    (1.., _) => Outcome::Taken(taken),
                    (_, 1..) if !refused => Outcome::Again,
                    _ => Outcome::Refused,
                };
                let level = key.before.clone();
                judged.push(Judged {
                    outcome,
                    level,
                    now,
                });
            }
            answers.push((judged, sums));
        }
        self.write(&keys, now);
        let mut all = Vec::new();
        for (want, (mut judged, sums)) in batch.iter().zip(answers) {
            for ((line, judged), sum) in want.lines.iter().zip(&mut judged).zip(sums) {
                let charged = &keys[&place(want, line)];
                let Some(level) = self.row(&want.namespace, &line.key) else {
                    continue;
                };
                judged.level = level.clone();
                if charged.quota.unwrap_or(charged.first) == line.quota {
                    // As if the requests of the batch had come one by one.
                    let later = charged.sum - sum;
                    match line.quota.window() {
                        0 => judged.level.tat -= later,
                        _ => judged.level.used -= later,
                    }
                }
                if line.id != 0 && matches!(judged.outcome, Outcome::Taken(_)) {
                    level.reserved.push(Reserved {
                        id: line.id,
                        at: now,
                        price: line.price(),
                        window: line.quota.window(),
                        expires: now.saturating_add(line.ttl),
                    });
                }
            }
            all.push(judged);
        }
        all
    }

    /// Takes what the rows of a batch are charged.
    fn write(&mut self, keys: &BTreeMap<(String, String), Charged>, now: i64) {
        for ((namespace, key), charged) in keys {
            let quota = charged.quota.unwrap_or(charged.first);
            let Some(level) = self.row(namespace, key) else {
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
            let level = self.row_of(&want.namespace, &line.key)?;
            let fits = level.fits(&line.quota, line.price(), now);
            if is_overdue(&level, now) || (fits == 0 && !level.is_ahead(now)) {
                return None;
            }
            alone = alone.min(fits);
        }
        Some(alone)
    }

    /// The answer to a request that nothing is locked for.
    fn not_tried(&self, want: &Charge, now: i64) -> Vec<Judged> {
        let level = |line: &Line| self.level(&want.namespace, &line.key);
        let known = |line: &Line| self.row_of(&want.namespace, &line.key).is_some();
        let hope = want.lines.iter().all(|line| {
            let level = level(line);
            let fits = level.fits(&line.quota, line.price(), now) > 0;
            (fits || level.is_ahead(now)) && !is_overdue(&level, now)
        });
        let judge = |line: &Line| {
            let level = level(line);
            let outcome = match () {
                () if is_overdue(&level, now) => Outcome::Overdue,
                () if !hope => Outcome::Refused,
                () if !known(line) => Outcome::Absent,
                () => Outcome::Again,
            };
            Judged {
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
        let idle = |level: &Level| {
            let idle = level.at.max(level.tat).max(level.forgotten()) < now - IDLE;
            idle && level.is_idle(now)
        };
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

fn place(want: &Charge, line: &Line) -> (String, String) {
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
}
