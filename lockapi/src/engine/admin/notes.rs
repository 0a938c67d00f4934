//! Noting what the program holds and waits for long, in the background.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::admin::{Note, NotedLock, SweepNotes};
use crate::driver::SweepResult;
use crate::engine::batcher::Batcher;
use crate::engine::batcher::{ALONE, Queued};
use crate::engine::clock::Time;
use crate::engine::locks::Observed;
use crate::engine::sweeps::{PART, Sweeping, Sweeps};
use crate::error::Result;
use crate::key::{Key, LockId};
use crate::lease::micros;
use crate::random;
use crate::sync::{Mutex, MutexGuard};

/// A name that is still in use is noted again after this time.
const AGAIN: Duration = Duration::from_secs(24 * 3600);
/// How long nothing is noted after that failed.
const PAUSE: Duration = Duration::from_secs(30);
/// How many names are known to be noted.
const KNOWN: usize = 100_000;
/// The most holds and waits in one statement; the others follow half a second later.
const MOST: usize = 10_000;
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

impl Queued for Note {
    const NAME: &'static str = "note";

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Queued for SweepNotes {
    const NAME: &'static str = "sweep";

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Sweeping for SweepNotes {
    const EVERY: Duration = SWEEP_EVERY;

    fn next(self, swept: SweepResult<i64>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

/// The names of the mutexes that are open in the program.
#[derive(Default)]
pub(crate) struct Names(Mutex<FxHashMap<LockId, (Key, usize)>>);

impl Names {
    pub(crate) fn add(&self, lock: LockId, key: &Key) {
        self.lock().entry(lock).or_insert((key.clone(), 0)).1 += 1;
    }

    pub(crate) fn remove(&self, lock: LockId) {
        let mut names = self.lock();
        if let Some((_, times)) = names.get_mut(&lock) {
            *times -= 1;
            if *times == 0 {
                names.remove(&lock);
            }
        }
    }

    /// The name that tables have; numbers have none.
    fn of(&self, lock: LockId) -> Option<String> {
        let names = self.lock();
        let (key, _) = names.get(&lock)?;
        key.is_name().then(|| key.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<LockId, (Key, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    /// When names were noted.
    names: FxHashMap<i64, Time>,
    marks: FxHashSet<i64>,
    /// Since when, and under which token, holds and waits were noted.
    noted: FxHashMap<(LockId, bool), (Time, i64)>,
    /// A statement is under way.
    busy: bool,
    /// What is in the tables is not known.
    unsure: bool,
    /// Nothing is noted before this time.
    paused_until: Time,
    sweep_at: Time,
}

impl State {
    /// Whether the tables may have a hold or a wait of the backend.
    fn may_have_notes(&self) -> bool {
        self.unsure || !self.noted.is_empty()
    }
}

/// Compares what lasts with what was noted, and notes the difference.
pub(crate) struct NoteRecorder {
    batcher: Arc<Batcher>,
    sweeps: Arc<Sweeps>,
    names: Arc<Names>,
    namespace: Arc<str>,
    backend: i64,
    owner: String,
    state: Mutex<State>,
    this: Weak<Self>,
}

impl NoteRecorder {
    pub(crate) fn new(
        batcher: Arc<Batcher>,
        sweeps: Arc<Sweeps>,
        names: Arc<Names>,
        namespace: Arc<str>,
    ) -> Result<Arc<Self>> {
        let backend = random::number()?;
        Ok(Arc::new_cyclic(|this| Self {
            batcher,
            sweeps,
            names,
            namespace,
            backend,
            owner: crate::lease::this_process(),
            state: Mutex::default(),
            this: this.clone(),
        }))
    }

    /// Answers whether something that has ended is still noted.
    pub(crate) fn record(&self, observed: Observed) -> bool {
        let mut state = self.lock();
        let now = observed.now;
        if state.busy || state.paused_until > now {
            return state.busy || state.may_have_notes();
        }
        let note = self.difference(&mut state, observed);
        let nothing = !note.all
            && note.marks.is_empty()
            && note.noted.is_empty()
            && note.ended.is_empty()
            && note.names.is_empty();
        if nothing {
            return state.may_have_notes();
        }
        state.busy = true;
        let sweep = state.sweep_at <= now;
        if sweep {
            let jitter = Duration::from_secs(600).mul_f64(fastrand::f64());
            state.sweep_at = now + SWEEP_EVERY + jitter;
        }
        drop(state);
        let this = self.this.clone();
        self.batcher.submit(note, move |outcome| {
            let Some(recorder) = this.upgrade() else {
                return;
            };
            let mut state = recorder.lock();
            state.busy = false;
            state.unsure = outcome.is_err();
            if outcome.is_err() {
                // Nothing depends on notes: they are made up for later.
                state.paused_until = now + PAUSE;
                state.names.clear();
                state.marks.clear();
                state.noted.clear();
            }
        });
        if sweep {
            let first = SweepNotes {
                after: i64::MIN,
                most: PART,
            };
            self.sweeps.now(0, first);
        }
        true
    }

    /// What is to be noted, and remembers it as noted.
    fn difference(&self, state: &mut State, observed: Observed) -> Note {
        let now = observed.now;
        let mut note = Note {
            backend: self.backend,
            namespace: self.namespace.to_string(),
            owner: self.owner.clone(),
            all: state.unsure,
            ..Note::default()
        };
        state.marks.retain(|mark| observed.marks.contains(mark));
        for mark in observed.marks {
            if state.marks.insert(mark) {
                note.marks.push(mark);
            }
        }
        if state.names.len() > KNOWN {
            state.names.clear();
        }
        let mut gone = std::mem::take(&mut state.noted);
        for lasting in observed.lasting {
            let noted_key = (lasting.lock, lasting.waits);
            let as_noted = (lasting.since, lasting.fence);
            let before = gone.remove(&noted_key);
            let known = state.names.get(&lasting.lock.key);
            if known.is_none_or(|noted| *noted + AGAIN <= now)
                && let Some(name) = self.names.of(lasting.lock)
            {
                state.names.insert(lasting.lock.key, now);
                note.names.push((lasting.lock.key, name));
            }
            if before == Some(as_noted) {
                state.noted.insert(noted_key, as_noted);
            } else if note.noted.len() < MOST {
                state.noted.insert(noted_key, as_noted);
                note.noted.push(NotedLock {
                    lock: lasting.lock,
                    waits: lasting.waits,
                    fence: lasting.fence,
                    age: micros(now.saturating_sub(lasting.since)),
                });
            }
        }
        note.ended = gone.into_keys().collect();
        note
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
