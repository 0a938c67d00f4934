//! What the table of leases means, in memory.

use std::collections::BTreeMap;

use super::operations::{Acquire, Acquired, Peeked};
use super::take::{Take, Taken};
use crate::fence::HAND_OVER_BITS;

const DAY: i64 = 24 * 3600 * 1_000_000;

/// Namespace, key and slot.
type Place = (String, String, i64);

/// The rows of leases.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<Place, Row>,
}

/// One acquisition, as a row keeps it.
#[derive(Clone, Debug)]
struct Row {
    fence: i64,
    acquisition: i64,
    owner: String,
    data: String,
    acquired_at: i64,
    held_until: i64,
    expires_at: i64,
    released: bool,
}

impl Row {
    fn is_held(&self, now: i64) -> bool {
        !self.released && self.expires_at > now
    }
}

impl Table {
    pub(crate) fn acquire(
        &mut self,
        now: i64,
        next_fence: impl FnOnce() -> i64,
        want: &Acquire,
    ) -> Acquired {
        let place = (want.namespace.clone(), want.key.clone(), want.slot);
        let again = match self.rows.get(&place) {
            Some(row) if row.is_held(now) && row.acquisition == want.acquisition => Some(row.fence),
            Some(row) if row.expires_at > now => return Acquired::Held(row.expires_at - now),
            _ => None,
        };
        let fence = again.unwrap_or_else(|| next_fence() << HAND_OVER_BITS);
        let row = Row {
            fence,
            acquisition: want.acquisition,
            owner: want.owner.clone(),
            data: want.data.clone(),
            acquired_at: now,
            held_until: now.saturating_add(want.hold),
            expires_at: now.saturating_add(want.ttl),
            released: false,
        };
        self.rows.insert(place, row);
        Acquired::Granted(fence)
    }

    pub(crate) fn take(
        &mut self,
        now: i64,
        mut next_fence: impl FnMut() -> i64,
        batch: &[Take],
    ) -> Vec<Taken> {
        let lines: Vec<_> = batch
            .iter()
            .map(|want| Line::of(self, now, batch, want))
            .collect();
        let mut answers = Vec::new();
        for (at, (want, line)) in batch.iter().zip(&lines).enumerate() {
            let before = batch[..at].iter().filter(|other| other.same_key(want));
            let before: i64 = before.map(|other| other.count).sum();
            let part = |nth: i64| usize::try_from(nth).unwrap_or(usize::MAX);
            let given = line.free.get(part(before)..part(before + want.count));
            answers.push(match given {
                Some(slots) if slots.iter().all(|slot| *slot <= want.permits) => {
                    let fence = next_fence() << HAND_OVER_BITS;
                    for slot in slots {
                        self.give(now, want, *slot, fence);
                    }
                    Taken::Granted {
                        fence,
                        slots: slots.into(),
                    }
                }
                _ => Taken::Refused {
                    again: !line.missing.is_empty(),
                    held_for: line.held_for(want.permits),
                },
            });
        }
        for (want, line) in batch.iter().zip(lines) {
            for slot in line.missing {
                let place = (want.namespace.clone(), want.key.clone(), slot);
                self.rows.entry(place).or_insert(Row {
                    fence: 0,
                    acquisition: 0,
                    owner: String::new(),
                    data: String::new(),
                    acquired_at: now,
                    held_until: now,
                    expires_at: now,
                    released: true,
                });
            }
        }
        answers
    }

    fn give(&mut self, now: i64, want: &Take, slot: i64, fence: i64) {
        let row = Row {
            fence,
            acquisition: want.acquisition,
            owner: want.owner.clone(),
            data: want.data.clone(),
            acquired_at: now,
            held_until: now.saturating_add(want.hold),
            expires_at: now.saturating_add(want.ttl),
            released: false,
        };
        let place = (want.namespace.clone(), want.key.clone(), slot);
        self.rows.insert(place, row);
    }

    /// What is held, with namespace, key and slot.
    pub(crate) fn all_held(&self, now: i64) -> impl Iterator<Item = (&str, &str, i64, Peeked)> {
        self.rows.keys().filter_map(move |place| {
            let (namespace, key, slot) = place;
            Some((&**namespace, &**key, *slot, self.peek(now, place)?))
        })
    }

    /// Takes all slots of a key from their holders, and answers who they were.
    pub(crate) fn force_release(
        &mut self,
        now: i64,
        mut next_fence: impl FnMut() -> i64,
        namespace: &str,
        key: &str,
    ) -> Vec<String> {
        let of_key = self
            .rows
            .iter_mut()
            .filter(|((of, name, _), row)| of == namespace && name == key && row.is_held(now));
        of_key
            .map(|(_, row)| {
                row.fence = next_fence() << HAND_OVER_BITS;
                row.released = true;
                row.held_until = now;
                row.expires_at = now;
                row.owner.clone()
            })
            .collect()
    }

    pub(crate) fn renew(&mut self, now: i64, place: &Place, fence: i64, ttl: i64) -> bool {
        let Some(row) = self.of(place, fence) else {
            return false;
        };
        let held = row.is_held(now);
        if held {
            row.expires_at = now.saturating_add(ttl);
        }
        held
    }

    pub(crate) fn release(&mut self, now: i64, place: &Place, fence: i64) -> bool {
        let Some(row) = self.of(place, fence) else {
            return false;
        };
        if row.is_held(now) {
            row.released = true;
            row.expires_at = now.max(row.held_until);
        }
        row.released
    }

    pub(crate) fn peek(&self, now: i64, place: &Place) -> Option<Peeked> {
        let row = self.rows.get(place)?;
        row.is_held(now).then(|| Peeked {
            owner: row.owner.clone(),
            data: row.data.clone(),
            fence: row.fence,
            age: now - row.acquired_at,
            remaining: row.expires_at - now,
        })
    }

    /// The slots of a key that are held.
    pub(crate) fn held(&self, now: i64, namespace: &str, key: &str) -> Vec<(i64, Peeked)> {
        self.of_key(namespace, key, i64::MAX)
            .filter_map(|(place, _)| Some((place.2, self.peek(now, place)?)))
            .collect()
    }

    pub(crate) fn sweep(&mut self, now: i64, limit: i64) -> i64 {
        let before = now - DAY;
        let mut deleted = 0;
        self.rows.retain(|_, row| {
            let old = row.expires_at < before && deleted < limit;
            deleted += i64::from(old);
            !old
        });
        deleted
    }

    fn of(&mut self, place: &Place, fence: i64) -> Option<&mut Row> {
        self.rows.get_mut(place).filter(|row| row.fence == fence)
    }

    /// The rows of a key up to a slot.
    fn of_key(&self, namespace: &str, key: &str, to: i64) -> impl Iterator<Item = (&Place, &Row)> {
        let place = |slot| (namespace.to_owned(), key.to_owned(), slot);
        self.rows.range(place(i64::MIN)..=place(to))
    }
}

/// What the requests for one key find.
struct Line {
    free: Vec<i64>,
    missing: Vec<i64>,
    /// Slots that are not free, and for how long.
    busy: Vec<(i64, i64)>,
}

impl Line {
    fn of(table: &Table, now: i64, batch: &[Take], want: &Take) -> Self {
        let all = || batch.iter().filter(|other| other.same_key(want));
        let permits = all().map(|other| other.permits).max().unwrap_or_default();
        let wanted = all().map(|other| other.count).sum::<i64>();
        let wanted = usize::try_from(wanted).unwrap_or_default();
        let row = |slot: &i64| {
            let place = (want.namespace.clone(), want.key.clone(), *slot);
            table.rows.get(&place)
        };
        let is_free = |slot: &i64| {
            row(slot).is_some_and(|row| {
                row.expires_at <= now
                    || (!row.released
                        && batch
                            .iter()
                            .any(|other| other.acquisition == row.acquisition))
            })
        };
        let free: Vec<_> = (1..=permits).filter(is_free).take(wanted).collect();
        let short = wanted - free.len();
        let is_missing = |slot: &i64| row(slot).is_none();
        Self {
            missing: (1..=permits).filter(is_missing).take(short).collect(),
            busy: (1..=permits)
                .filter_map(|slot| Some((slot, row(&slot)?.expires_at - now)))
                .filter(|(_, left)| *left > 0)
                .collect(),
            free,
        }
    }

    fn held_for(&self, permits: i64) -> i64 {
        let busy = self.busy.iter().filter(|(slot, _)| *slot <= permits);
        busy.map(|(_, left)| *left).min().unwrap_or_default()
    }
}
