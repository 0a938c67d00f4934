//! What the table of leases means, in memory.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::manage::Abandon;
use super::operations::{Acquire, Acquired, Peeked};
use super::take::{Take, Taken};
use crate::fence::HAND_OVER_BITS;

const DAY: i64 = 24 * 3600 * 1_000_000;

/// Namespace, key and slot.
type Place = (String, String, i64);

fn hold_until(now: i64, hold: i64) -> Option<i64> {
    (hold > 0).then(|| now.saturating_add(hold))
}

/// The rows of leases.
#[derive(Clone, Debug, Default)]
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
    /// When it was last acquired, renewed or released.
    written_at: i64,
    renewed_at: i64,
    /// The end of its minimum hold.
    held_until: Option<i64>,
    expires_at: i64,
    released: bool,
}

impl Row {
    fn is_held(&self, now: i64) -> bool {
        !self.released && self.expires_at > now
    }

    /// One that was not renewed in the epoch may have been released, and acquired by another, before.
    fn release(&mut self, now: i64, begun_at: i64) {
        self.released = true;
        if self.renewed_at > begun_at {
            self.written_at = now;
        }
    }

    /// Whether it was released, and nothing keeps it from the next holder: it is free whatever the clock shows.
    fn is_left(&self) -> bool {
        self.released && self.held_until.is_none()
    }

    /// The time from which it is granted to a request with this time to live, in an epoch that began at
    /// `begun_at`. What was written at a time that is still to come was written before the clock was set back.
    fn free_at(&self, now: i64, begun_at: i64, ttl: i64) -> i64 {
        let expires_at = if self.is_left() { 0 } else { self.expires_at };
        if self.written_at > begun_at && self.written_at <= now {
            return expires_at;
        }
        let shown = if self.released {
            0
        } else {
            self.expires_at - self.renewed_at
        };
        expires_at.max(begun_at.saturating_add(ttl.max(shown)))
    }
}

impl Table {
    pub(crate) fn acquire(
        &mut self,
        now: i64,
        begun_at: i64,
        next_fence: impl FnOnce() -> i64,
        want: &Acquire,
    ) -> Acquired {
        let place = (want.namespace.clone(), want.key.clone(), want.slot);
        let row = self.rows.get(&place);
        let same = |row: &&Row| row.is_held(now) && row.acquisition == want.acquisition;
        let again = row.filter(same).map(|row| row.fence);
        let free_at = row.map_or(begun_at.saturating_add(want.ttl), |row| {
            row.free_at(now, begun_at, want.ttl)
        });
        if again.is_none() && free_at > now {
            return Acquired::Held(free_at - now);
        }
        let fence = again.unwrap_or_else(|| next_fence() << HAND_OVER_BITS);
        let row = Row {
            fence,
            acquisition: want.acquisition,
            owner: want.owner.clone(),
            data: want.data.clone(),
            acquired_at: now,
            written_at: now,
            renewed_at: now,
            held_until: hold_until(now, want.hold),
            expires_at: now.saturating_add(want.ttl),
            released: false,
        };
        self.rows.insert(place, row);
        Acquired::Granted(fence)
    }

    pub(crate) fn take(
        &mut self,
        now: i64,
        begun_at: i64,
        mut next_fence: impl FnMut() -> i64,
        batch: &[Take],
    ) -> Vec<Taken> {
        let again: Vec<_> = batch.iter().map(|want| self.again(now, want)).collect();
        let is_fresh = |at: usize| again[at].is_none();
        let fresh: Vec<_> = (0..batch.len()).filter(|at| is_fresh(*at)).collect();
        let fresh: Vec<&Take> = fresh.into_iter().map(|at| &batch[at]).collect();
        let lines = batch
            .iter()
            .map(|want| LockOwner::of(self, now, begun_at, &fresh, want));
        let lines: Vec<_> = lines.collect();
        let mut answers = Vec::new();
        for (at, (want, line)) in batch.iter().zip(&lines).enumerate() {
            if let Some((fence, slots)) = &again[at] {
                for slot in slots {
                    self.give(now, want, *slot, *fence);
                }
                answers.push(Taken::Granted {
                    fence: *fence,
                    slots: slots.as_slice().into(),
                });
                continue;
            }
            let before = (0..at).filter(|other| is_fresh(*other) && batch[*other].same_key(want));
            let before: i64 = before.map(|other| batch[other].count).sum();
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
                    written_at: 0,
                    renewed_at: 0,
                    held_until: None,
                    expires_at: now,
                    released: true,
                });
            }
        }
        answers
    }

    /// What a request has that came before, with its token; only if it has all that it wants.
    fn again(&self, now: i64, want: &Take) -> Option<(i64, Vec<i64>)> {
        let rows = self.of_key(&want.namespace, &want.key, want.permits);
        let had = rows.filter(|((.., slot), row)| {
            *slot > 0 && row.is_held(now) && row.acquisition == want.acquisition
        });
        let had: Vec<_> = had.map(|((.., slot), row)| (row.fence, *slot)).collect();
        let (fence, _) = *had.first()?;
        let all = i64::try_from(had.len()) == Ok(want.count);
        let one = had.iter().all(|(of, _)| *of == fence);
        (all && one).then(|| (fence, had.into_iter().map(|(_, slot)| slot).collect()))
    }

    fn give(&mut self, now: i64, want: &Take, slot: i64, fence: i64) {
        let row = Row {
            fence,
            acquisition: want.acquisition,
            owner: want.owner.clone(),
            data: want.data.clone(),
            acquired_at: now,
            written_at: now,
            renewed_at: now,
            held_until: hold_until(now, want.hold),
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
            let held = self.peek(now, place).filter(|peeked| !peeked.released)?;
            Some((&**namespace, &**key, *slot, held))
        })
    }

    /// Takes all slots of a key from their holders, and answers who they were.
    pub(crate) fn force_release(
        &mut self,
        now: i64,
        begun_at: i64,
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
                row.release(now, begun_at);
                row.held_until = None;
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
            (row.renewed_at, row.written_at) = (now, now);
        }
        held
    }

    pub(crate) fn release(&mut self, now: i64, begun_at: i64, place: &Place, fence: i64) -> bool {
        let Some(row) = self.of(place, fence) else {
            return false;
        };
        if row.is_held(now) {
            row.release(now, begun_at);
            row.held_until = row.held_until.filter(|until| *until > now);
            row.expires_at = row.held_until.unwrap_or(now);
        }
        row.released
    }

    pub(crate) fn peek(&self, now: i64, place: &Place) -> Option<Peeked> {
        let row = self.rows.get(place)?;
        (row.expires_at > now && !row.is_left()).then(|| Peeked {
            owner: row.owner.clone(),
            data: row.data.clone(),
            fence: row.fence,
            age: now - row.acquired_at,
            remaining: row.expires_at - now,
            released: row.released,
        })
    }

    /// The slots of a key that are held.
    pub(crate) fn held(&self, now: i64, namespace: &str, key: &str) -> Vec<(i64, Peeked)> {
        self.of_key(namespace, key, i64::MAX)
            .filter(|(_, row)| row.is_held(now))
            .filter_map(|(place, _)| Some((place.2, self.peek(now, place)?)))
            .collect()
    }

    /// Answers how many were deleted, and what was looked at.
    pub(crate) fn sweep(
        &mut self,
        now: i64,
        begun_at: i64,
        after: &Place,
        most: i64,
    ) -> (i64, Vec<Place>) {
        let rows = self.rows.range((Excluded(after), Unbounded));
        let part: Vec<_> = rows
            .take(usize::try_from(most).unwrap_or_default())
            .collect();
        let old = |row: &Row| row.expires_at < now - DAY && row.free_at(now, begun_at, 0) <= now;
        let gone: Vec<_> = part.iter().filter(|(_, row)| old(row)).collect();
        let gone: Vec<Place> = gone
            .into_iter()
            .map(|(place, _)| (*place).clone())
            .collect();
        let part = part.into_iter().map(|(place, _)| place.clone()).collect();
        for place in &gone {
            self.rows.remove(place);
        }
        (i64::try_from(gone.len()).unwrap_or(i64::MAX), part)
    }

    /// Frees what an acquisition got; answers whether it had got something.
    pub(crate) fn abandon(&mut self, now: i64, begun_at: i64, want: &Abandon) -> bool {
        let place = |slot| (want.namespace.clone(), want.key.clone(), slot);
        let mut found = false;
        for (_, row) in self.rows.range_mut(place(want.first)..=place(want.last)) {
            if row.is_held(now) && row.acquisition == want.acquisition && row.fence != want.granted
            {
                row.release(now, begun_at);
                row.held_until = None;
                row.expires_at = now;
                found = true;
            }
        }
        found
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
struct LockOwner {
    free: Vec<i64>,
    missing: Vec<i64>,
    /// Slots that are not free, and for how long.
    busy: Vec<(i64, i64)>,
}

impl LockOwner {
    fn of(table: &Table, now: i64, begun_at: i64, batch: &[&Take], want: &Take) -> Self {
        let all = || batch.iter().filter(|other| other.same_key(want));
        let permits = all().map(|other| other.permits).max().unwrap_or_default();
        let ttl = all().map(|other| other.ttl).max().unwrap_or_default();
        let wanted = all().map(|other| other.count).sum::<i64>();
        let wanted = usize::try_from(wanted).unwrap_or_default();
        let row = |slot: &i64| {
            let place = (want.namespace.clone(), want.key.clone(), *slot);
            table.rows.get(&place)
        };
        let is_free = |slot: &i64| {
            row(slot).is_some_and(|row| {
                row.free_at(now, begun_at, ttl) <= now
                    || (row.is_held(now)
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
                .filter_map(|slot| Some((slot, row(&slot)?.free_at(now, begun_at, want.ttl) - now)))
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
