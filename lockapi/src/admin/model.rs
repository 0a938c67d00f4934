//! The model of the statements about holds and waits.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::ops::Bound::{Excluded, Unbounded};

use rustc_hash::FxHashMap;

use super::operations::{ListAudit, ListLeases, ListLocks, Note};
use crate::driver::columns::maybe_text;
use crate::driver::{Row, Rows, Type, Value};
use crate::key::LockId;
use crate::lease::Peeked;
use crate::memory::ModelState;

const HOUR: i64 = 3600 * 1_000_000;
const MONTH: i64 = 30 * 24 * 3600 * 1_000_000;

/// The tables of names, sessions and notes, and the audit log.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Namespace, name, and when it was last seen.
    names: BTreeMap<i64, (String, String, i64)>,
    /// Marks of sessions, with their backend and its owner.
    sessions: FxHashMap<i64, (i64, String)>,
    /// By backend, lock and whether it waits: token, and since when.
    noted: BTreeMap<(i64, LockId, bool), (i64, i64)>,
    audit: Vec<Act>,
}

#[derive(Clone, Debug)]
struct Act {
    at: i64,
    namespace: String,
    action: Cow<'static, str>,
    target: String,
    reason: String,
}

impl Notes {
    pub(crate) fn note(&mut self, now: i64, note: &Note) -> i64 {
        let mut changed = 0;
        for (key, name) in &note.names {
            let new = || (note.namespace.clone(), name.clone(), i64::MIN);
            let (.., seen) = self.names.entry(*key).or_insert_with(new);
            if *seen < now - HOUR {
                *seen = now;
                changed += 1;
            }
        }
        for mark in &note.marks {
            if let Entry::Vacant(vacant) = self.sessions.entry(*mark) {
                vacant.insert((note.backend, note.owner.clone()));
                changed += 1;
            }
        }
        let before = self.noted.len();
        self.noted.retain(|(backend, lock, waits), _| {
            *backend != note.backend
                || !(note.ended.contains(&(*lock, *waits))
                    || note.all
                        && !note
                            .noted
                            .iter()
                            .any(|one| (one.lock, one.waits) == (*lock, *waits)))
        });
        changed += before - self.noted.len();
        for one in &note.noted {
            let row_key = (note.backend, one.lock, one.waits);
            self.noted.insert(row_key, (one.fence, now - one.age));
            changed += 1;
        }
        i64::try_from(changed).unwrap_or(i64::MAX)
    }

    pub(crate) fn log(
        &mut self,
        at: i64,
        namespace: &str,
        action: impl Into<Cow<'static, str>>,
        target: String,
        reason: &str,
    ) {
        self.audit.push(Act {
            at,
            namespace: namespace.to_owned(),
            action: action.into(),
            target,
            reason: reason.to_owned(),
        });
    }

    pub(crate) fn list_audit(&self, list: &ListAudit) -> Rows {
        let entries = (1..).zip(&self.audit).collect::<Vec<_>>().into_iter().rev();
        let entries = entries.filter(|(_, entry)| {
            let wanted = list.namespace.as_ref();
            wanted.is_none_or(|wanted| *wanted == entry.namespace)
        });
        let row = |(id, entry): (i64, &Act)| {
            let text = |text: &str| Value::Text(text.to_owned());
            Row(vec![
                Value::Int(id),
                Value::Int(entry.at),
                text("memory"),
                text("memory"),
                text(&entry.namespace),
                text(&entry.action),
                text(&entry.target),
                text(&entry.reason),
            ])
        };
        entries.take(most(list.most)).map(row).collect()
    }

    /// The name of a lock, with its namespace if it has one.
    fn name(&self, lock: LockId) -> (Option<&str>, String) {
        if lock.pair {
            let (class, object) = (lock.key >> 32, (lock.key << 32) >> 32);
            return (None, format!("#{class},{object}"));
        }
        match self.names.get(&lock.key) {
            Some((namespace, name, _)) => (Some(namespace), name.clone()),
            None => (None, format!("#{}", lock.key)),
        }
    }

    fn wanted(&self, list: &ListLocks, lock: LockId) -> bool {
        match (list.lock, &list.namespace) {
            (Some(wanted), _) => wanted == lock,
            (None, Some(namespace)) => self.name(lock).0 == Some(namespace),
            (None, None) => true,
        }
    }
}

fn most(most: i64) -> usize {
    usize::try_from(most).unwrap_or_default()
}

const NO_TEXT: Value = Value::Null(Type::Text);
const NO_INT: Value = Value::Null(Type::Int);

impl ModelState {
    /// The backend, and what it calls itself, that a session is of.
    fn backend_of(&self, session: u64) -> Option<&(i64, String)> {
        let mut marks = self.notes.sessions.iter();
        marks
            .find(|(mark, _)| self.holds(crate::mutex::mark_id(**mark), session))
            .map(|(_, backend)| backend)
    }

    fn is_mark(&self, lock: LockId) -> bool {
        !lock.pair && self.notes.sessions.contains_key(&lock.key)
    }

    pub(crate) fn list_locks(&self, list: &ListLocks) -> Rows {
        let mut held: Vec<_> = self
            .held()
            .filter(|(lock, ..)| !self.is_mark(*lock) && self.notes.wanted(list, *lock))
            .map(|(lock, session, shared)| (self.notes.name(lock), lock, session, shared))
            .collect();
        // Without a namespace, last, as in a column with NULLs.
        held.sort_by(|one, other| {
            let last = |named: &(Option<&str>, String)| named.0.is_none();
            last(&one.0).cmp(&last(&other.0)).then(one.cmp(other))
        });
        let row = |(named, lock, session, shared): ((Option<&str>, String), LockId, u64, bool)| {
            let (namespace, name) = named;
            let backend = self.backend_of(session);
            let noted = backend.and_then(|(id, _)| self.notes.noted.get(&(*id, lock, false)));
            Row(vec![
                maybe_text(namespace),
                Value::Text(name),
                Value::Text(if shared { "shared" } else { "exclusive" }.to_owned()),
                maybe_text(backend.map(|(_, owner)| owner.as_str())),
                NO_TEXT,
                NO_TEXT,
                NO_INT,
                noted
                    .filter(|(fence, _)| *fence != 0)
                    .map_or(NO_INT, |(fence, _)| Value::Int(*fence)),
                noted.map_or(NO_INT, |(_, since)| Value::Int(self.now - since)),
            ])
        };
        held.into_iter().take(most(list.most)).map(row).collect()
    }

    /// Waits that are noted: of others nothing is known in memory.
    pub(crate) fn list_waits(&self, list: &ListLocks) -> Rows {
        let living: BTreeMap<i64, &str> = self
            .notes
            .sessions
            .iter()
            .filter(|(mark, _)| self.is_locked(crate::mutex::mark_id(**mark)))
            .map(|(_, (backend, owner))| (*backend, owner.as_str()))
            .collect();
        let mut waits: Vec<_> = self
            .notes
            .noted
            .iter()
            .filter(|((_, lock, waits), _)| *waits && self.notes.wanted(list, *lock))
            .filter_map(|((backend, lock, _), (_, since))| {
                Some((*since, *lock, *living.get(backend)?))
            })
            .collect();
        waits.sort_unstable();
        let row = |(since, lock, owner): (i64, LockId, &str)| {
            let (namespace, name) = self.notes.name(lock);
            let mut row = vec![
                maybe_text(namespace),
                Value::Text(name),
                NO_TEXT,
                Value::Text(owner.to_owned()),
                NO_TEXT,
                NO_TEXT,
                NO_INT,
                NO_TEXT,
                Value::Int(self.now - since),
                NO_INT,
            ];
            row.extend([NO_TEXT; 4]);
            row.push(NO_INT);
            Row(row)
        };
        waits.into_iter().take(most(list.most)).map(row).collect()
    }

    pub(crate) fn list_leases(&self, list: &ListLeases) -> Rows {
        let (key, namespace, slot) = &list.after;
        let after = (&**key, &**namespace, *slot);
        let mut part: Vec<_> = self
            .all_leases()
            .map(|(namespace, key, slot, held)| ((key, namespace, slot), held))
            .filter(|(place, _)| *place > after)
            .filter(|((key, ..), _)| list.key.as_ref().is_none_or(|it| it == key))
            .collect();
        part.sort_by_key(|(place, _)| *place);
        part.truncate(most(list.examined));
        let full = part.len() >= most(list.examined);
        let end = part.last().filter(|_| full).map(|(place, _)| *place);
        let wanted = |namespace: &str| list.namespace.as_ref().is_none_or(|it| it == namespace);
        let held = part
            .into_iter()
            .filter(|((_, namespace, _), _)| wanted(namespace))
            .filter_map(|((key, namespace, slot), held)| Some((key, namespace, slot, held?)));
        let row = |(key, namespace, slot, peeked): (&str, &str, i64, Peeked)| {
            Row(vec![
                Value::Text(namespace.to_owned()),
                Value::Text(key.to_owned()),
                Value::Int(slot),
                Value::Text(peeked.owner),
                Value::Text(peeked.data),
                Value::Int(peeked.fence),
                Value::Int(peeked.age),
                Value::Int(peeked.remaining),
                NO_INT,
            ])
        };
        let mut rows: Rows = held.take(most(list.most)).map(row).collect();
        rows.extend(end.map(|(key, namespace, slot)| {
            let mut row = vec![
                Value::Text(namespace.to_owned()),
                Value::Text(key.to_owned()),
            ];
            row.extend([NO_INT, NO_TEXT, NO_TEXT, NO_INT, NO_INT, NO_INT]);
            row.push(Value::Int(slot));
            Row(row)
        }));
        rows
    }

    /// Answers how many rows were deleted, and which names were looked at.
    pub(crate) fn sweep_notes(&mut self, after: i64, limit: i64) -> (i64, Vec<i64>) {
        let dead: Vec<i64> = self
            .notes
            .sessions
            .keys()
            .filter(|mark| !self.is_locked(crate::mutex::mark_id(**mark)))
            .take(most(limit))
            .copied()
            .collect();
        let mut deleted = dead.len();
        let ended: Vec<i64> = dead
            .iter()
            .filter_map(|mark| self.notes.sessions.remove(mark).map(|(backend, _)| backend))
            .collect();
        let notes = &mut self.notes;
        let before = notes.noted.len() + notes.names.len();
        let sessions = &notes.sessions;
        notes.noted.retain(|(backend, ..), _| {
            !ended.contains(backend) || sessions.values().any(|(living, _)| living == backend)
        });
        let old = self.now - MONTH;
        let part = notes.names.range((Excluded(after), Unbounded));
        let part: Vec<i64> = part.take(most(limit)).map(|(key, _)| *key).collect();
        for key in &part {
            if notes.names.get(key).is_some_and(|(.., seen)| *seen < old) {
                notes.names.remove(key);
            }
        }
        deleted += before - notes.noted.len() - notes.names.len();
        (i64::try_from(deleted).unwrap_or(i64::MAX), part)
    }
}
