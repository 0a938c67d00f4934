//! The model of the table of leases, in memory.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::manage::Abandon;
use super::operations::{Acquire, Acquired, Peeked};
use super::take::{Take, Taken};
use crate::fence::HAND_OVER_BITS;

const DAY: i64 = 24 * 3600 * 1_000_000;

/// Namespace, key and slot.
pub(crate) type RowKey = (String, String, i64);

fn hold_until(now: i64, hold: i64) -> Option<i64> {
    (hold > 0).then(|| now.saturating_add(hold))
}

/// The rows of leases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<RowKey, Row>,
    /// Rows that open transactions have locked, and how many of these; acquisitions and sweeps skip them.
    locked: BTreeMap<RowKey, usize>,
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
        request: &Acquire,
    ) -> Acquired {
        let row_key = (request.namespace.clone(), request.key.clone(), request.slot);
        let row = self.rows.get(&row_key);
        let same = |row: &&Row| row.is_held(now) && row.acquisition == request.acquisition;
        let again = row.filter(same).map(|row| row.fence);
        let free_at = row.map_or(begun_at.saturating_add(request.ttl), |row| {
            row.free_at(now, begun_at, request.ttl)
        });
        if self.locked.contains_key(&row_key) || (again.is_none() && free_at > now) {
            return Acquired::Held(free_at.saturating_sub(now).max(0));
        }
        let fence = again.unwrap_or_else(|| next_fence() << HAND_OVER_BITS);
        let row = Row {
            fence,
            acquisition: request.acquisition,
            owner: request.owner.clone(),
            data: request.data.clone(),
            acquired_at: now,
            written_at: now,
            renewed_at: now,
            held_until: hold_until(now, request.hold),
            expires_at: now.saturating_add(request.ttl),
            released: false,
        };
        self.rows.insert(row_key, row);
        Acquired::Granted(fence)
    }

    pub(crate) fn take(
        &mut self,
        now: i64,
        begun_at: i64,
        mut next_fence: impl FnMut() -> i64,
        batch: &[Take],
    ) -> Vec<Taken> {
        let again: Vec<_> = batch
            .iter()
            .map(|request| self.again(now, request))
            .collect();
        let is_fresh = |at: usize| again[at].is_none();
        let fresh: Vec<_> = (0..batch.len()).filter(|at| is_fresh(*at)).collect();
        let fresh: Vec<&Take> = fresh.into_iter().map(|at| &batch[at]).collect();
        let lines = batch
            .iter()
            .map(|request| LockOwner::of(self, now, begun_at, &fresh, request));
        let lines: Vec<_> = lines.collect();
        let mut answers = Vec::new();
        for (at, (request, line)) in batch.iter().zip(&lines).enumerate() {
            if let Some((fence, slots)) = &again[at] {
                for slot in slots {
                    self.give(now, request, *slot, *fence);
                }
                answers.push(Taken::Granted {
                    fence: *fence,
                    slots: slots.as_slice().into(),
                });
                continue;
            }
            let before =
                (0..at).filter(|other| is_fresh(*other) && batch[*other].same_key(request));
            let before: i64 = before.map(|other| batch[other].count).sum();
            let part = |nth: i64| usize::try_from(nth).unwrap_or(usize::MAX);
            let given = line.free.get(part(before)..part(before + request.count));
            answers.push(match given {
                Some(slots) if slots.iter().all(|slot| *slot <= request.permits) => {
                    let fence = next_fence() << HAND_OVER_BITS;
                    for slot in slots {
                        self.give(now, request, *slot, fence);
                    }
                    Taken::Granted {
                        fence,
                        slots: slots.into(),
                    }
                }
                _ => Taken::Refused {
                    again: !line.missing.is_empty(),
                    held_for: line.held_for(request.permits),
                },
            });
        }
        for (request, line) in batch.iter().zip(lines) {
            for slot in line.missing {
                let row_key = (request.namespace.clone(), request.key.clone(), slot);
                self.rows.entry(row_key).or_insert(Row {
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
    fn again(&self, now: i64, request: &Take) -> Option<(i64, Vec<i64>)> {
        let rows = self.of_key(&request.namespace, &request.key, request.permits);
        let had = rows.filter(|((.., slot), row)| {
            *slot > 0 && row.is_held(now) && row.acquisition == request.acquisition
        });
        let had = had.filter(|(row_key, _)| !self.locked.contains_key(*row_key));
        let had: Vec<_> = had.map(|((.., slot), row)| (row.fence, *slot)).collect();
        let (fence, _) = *had.first()?;
        let all = i64::try_from(had.len()) == Ok(request.count);
        let one = had.iter().all(|(of, _)| *of == fence);
        (all && one).then(|| (fence, had.into_iter().map(|(_, slot)| slot).collect()))
    }

    fn give(&mut self, now: i64, request: &Take, slot: i64, fence: i64) {
        let row = Row {
            fence,
            acquisition: request.acquisition,
            owner: request.owner.clone(),
            data: request.data.clone(),
            acquired_at: now,
            written_at: now,
            renewed_at: now,
            held_until: hold_until(now, request.hold),
            expires_at: now.saturating_add(request.ttl),
            released: false,
        };
        let row_key = (request.namespace.clone(), request.key.clone(), slot);
        self.rows.insert(row_key, row);
    }

    /// All rows, with namespace, key and slot, and with what is held of them.
    pub(crate) fn all(&self, now: i64) -> impl Iterator<Item = (&str, &str, i64, Option<Peeked>)> {
        self.rows.keys().map(move |row_key| {
            let (namespace, key, slot) = row_key;
            let held = self.peek(now, row_key).filter(|peeked| !peeked.released);
            (&**namespace, &**key, *slot, held)
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

    pub(crate) fn renew(&mut self, now: i64, row_key: &RowKey, fence: i64, ttl: i64) -> bool {
        let Some(row) = self.of(row_key, fence) else {
            return false;
        };
        let held = row.is_held(now);
        if held {
            row.expires_at = now.saturating_add(ttl);
            (row.renewed_at, row.written_at) = (now, now);
        }
        held
    }

    pub(crate) fn release(
        &mut self,
        now: i64,
        begun_at: i64,
        row_key: &RowKey,
        fence: i64,
    ) -> bool {
        let Some(row) = self.of(row_key, fence) else {
            return false;
        };
        if row.is_held(now) {
            row.release(now, begun_at);
            row.held_until = row.held_until.filter(|until| *until > now);
            row.expires_at = row.held_until.unwrap_or(now);
        }
        row.released
    }

    pub(crate) fn peek(&self, now: i64, row_key: &RowKey) -> Option<Peeked> {
        let row = self.rows.get(row_key)?;
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
            .filter_map(|(row_key, _)| Some((row_key.2, self.peek(now, row_key)?)))
            .collect()
    }

    /// Answers how many were deleted, and what was looked at.
    pub(crate) fn sweep(
        &mut self,
        now: i64,
        begun_at: i64,
        after: &RowKey,
        most: i64,
    ) -> (i64, Vec<RowKey>) {
        let rows = self.rows.range((Excluded(after), Unbounded));
        let part: Vec<_> = rows
            .take(usize::try_from(most).unwrap_or_default())
            .collect();
        let old = |row: &Row| row.expires_at < now - DAY && row.free_at(now, begun_at, 0) <= now;
        let is_free = |row_key: &RowKey| !self.locked.contains_key(row_key);
        let gone = part.iter();
        let gone: Vec<_> = gone
            .filter(|(row_key, row)| old(row) && is_free(row_key))
            .collect();
        let gone: Vec<RowKey> = gone
            .into_iter()
            .map(|(row_key, _)| (*row_key).clone())
            .collect();
        let part = part
            .into_iter()
            .map(|(row_key, _)| row_key.clone())
            .collect();
        for row_key in &gone {
            self.rows.remove(row_key);
        }
        (i64::try_from(gone.len()).unwrap_or(i64::MAX), part)
    }

    /// Frees what an acquisition got; answers whether it had got something.
    pub(crate) fn abandon(&mut self, now: i64, begun_at: i64, request: &Abandon) -> bool {
        let row_key = |slot| (request.namespace.clone(), request.key.clone(), slot);
        let mut found = false;
        for (_, row) in self
            .rows
            .range_mut(row_key(request.first)..=row_key(request.last))
        {
            if row.is_held(now)
                && row.acquisition == request.acquisition
                && row.fence != request.granted
            {
                row.release(now, begun_at);
                row.held_until = None;
                row.expires_at = now;
                found = true;
            }
        }
        found
    }

    /// A transaction has locked a row, if that is there; answers whether.
    #[cfg(feature = "suite")]
    pub(crate) fn lock_row(&mut self, row_key: &RowKey) -> bool {
        let is_there = self.rows.contains_key(row_key);
        if is_there {
            *self.locked.entry(row_key.clone()).or_default() += 1;
        }
        is_there
    }

    /// The transaction has ended.
    #[cfg(feature = "suite")]
    pub(crate) fn unlock_row(&mut self, row_key: &RowKey) {
        if let Some(locks) = self.locked.get_mut(row_key) {
            *locks -= 1;
            if *locks == 0 {
                self.locked.remove(row_key);
            }
        }
    }

    /// No transaction is open any more.
    #[cfg(feature = "suite")]
    pub(crate) fn unlock_all_rows(&mut self) {
        self.locked.clear();
    }

    fn of(&mut self, row_key: &RowKey, fence: i64) -> Option<&mut Row> {
        self.rows.get_mut(row_key).filter(|row| row.fence == fence)
    }

    /// The rows of a key up to a slot.
    fn of_key(&self, namespace: &str, key: &str, to: i64) -> impl Iterator<Item = (&RowKey, &Row)> {
        let row_key = |slot| (namespace.to_owned(), key.to_owned(), slot);
        self.rows.range(row_key(i64::MIN)..=row_key(to))
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
    fn of(table: &Table, now: i64, begun_at: i64, batch: &[&Take], request: &Take) -> Self {
        let all = || batch.iter().filter(|other| other.same_key(request));
        let permits = all().map(|other| other.permits).max().unwrap_or_default();
        let ttl = all().map(|other| other.ttl).max().unwrap_or_default();
        let wanted = all().map(|other| other.count).sum::<i64>();
        let wanted = usize::try_from(wanted).unwrap_or_default();
        let row_key = |slot: &i64| (request.namespace.clone(), request.key.clone(), *slot);
        let row = |slot: &i64| table.rows.get(&row_key(slot));
        let is_free = |slot: &i64| {
            let row = row(slot).filter(|_| !table.locked.contains_key(&row_key(slot)));
            row.is_some_and(|row| {
                row.free_at(now, begun_at, ttl) <= now
                    || (row.is_held(now)
                        && batch
                            .iter()
                            .any(|other| other.acquisition == row.acquisition))
            })
        };
        let free: Vec<_> = (1..=permits).filter(is_free).take(wanted).collect();
        let short = wanted - free.len();
        let begins = |ttl: i64| begun_at.saturating_add(ttl);
        let is_missing = |slot: &i64| row(slot).is_none() && begins(ttl) <= now;
        Self {
            missing: (1..=permits).filter(is_missing).take(short).collect(),
            busy: (1..=permits)
                .map(|slot| {
                    let free_at = row(&slot).map_or(begins(request.ttl), |row| {
                        row.free_at(now, begun_at, request.ttl)
                    });
                    (slot, free_at.saturating_sub(now))
                })
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
