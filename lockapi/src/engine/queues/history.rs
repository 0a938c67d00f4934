//! What a process counts of the jobs that it works on, on its way to the database.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::engine::batcher::Batcher;
use crate::engine::clock::Time;
use crate::engine::sweeps::{PART, Sweeping};
use crate::engine::timer::Timer;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::micros;
use crate::queue::{
    Attempted, Delivery, FoldHistory, HistoryKey, HistoryPart, HistoryPartKey, HistorySums,
    RecordHistory, SweepHistory,
};
use crate::random;
use crate::sweep::SweepResult;
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::{self, Fault};

/// From one write to the next. The first is due after half of that or more, so that programs that start together do not
/// write together.
const EVERY: Duration = Duration::from_secs(60);
/// A write that failed is sent again after this time or up to twice as much, for this long.
const AGAIN: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(120);
/// What the server refused, it may accept later, when the schema or the rights are there.
const REFUSED: Duration = Duration::from_secs(3600);
/// How many names of jobs are told apart in a queue, and in all; the others are counted together.
const MAX_NAMES: usize = 100;
const MAX_ALL_NAMES: usize = 1000;
/// How many queues.
const MAX_QUEUES: usize = 1000;
/// So many sums are written in some three milliseconds.
const FEW: usize = 100;
/// How many sums are in memory at most.
const MAX_SUMS: usize = 8000;
/// The server's clock is taken to be this much nearer to the latest answer.
const SLEW: i64 = 64;
/// What the clock seems to go back by is the way of an answer; more is a step.
const STEP: i64 = 1_000_000;
const MINUTE: i64 = 60_000_000;

/// The names of a queue that are told apart: the first of this process.
struct Known {
    queue: String,
    names: FxHashSet<String>,
}

/// The sums of a minute, by queue and name.
type Sums = FxHashMap<i64, FxHashMap<String, HistorySums>>;

#[derive(Default)]
struct State {
    /// By how much the server's clock is ahead of that of the timer, in microseconds.
    ahead: Option<i64>,
    known: FxHashMap<i64, Known>,
    names: usize,
    minutes: BTreeMap<i64, Sums>,
    sums: usize,
    /// Whether something was not counted.
    left_out: bool,
    /// Whether a write will be due.
    armed: bool,
    /// Whether one is under way.
    sending: bool,
    /// The one that is sent again, and until when.
    again: Option<(RecordHistory, Time)>,
    /// Nothing is written before this time.
    next: Time,
    /// Nothing is counted before this time.
    refused_until: Time,
}

/// What a process has counted since its last write.
pub(super) struct History {
    namespace: Arc<str>,
    state: Mutex<State>,
    /// That of jobs, which is open where there are any.
    jobs: Arc<Batcher>,
    /// For writes that take longer.
    bulk: Arc<Batcher>,
    timer: Timer,
    this: Weak<Self>,
}

impl State {
    /// The server's clock at this time.
    fn server(&self, at: Time) -> Option<i64> {
        Some(micros(at).saturating_add(self.ahead?))
    }

    /// The name under which a job is counted; `None` if it is not.
    fn known_name<'a>(&mut self, number: i64, queue: &str, name: &'a str) -> Option<&'a str> {
        if self.known.len() >= MAX_QUEUES && !self.known.contains_key(&number) {
            return None;
        }
        let known = self.known.entry(number).or_insert_with(|| Known {
            queue: queue.to_owned(),
            names: FxHashSet::default(),
        });
        if known.names.contains(name) {
            return Some(name);
        }
        if known.names.len() >= MAX_NAMES || self.names >= MAX_ALL_NAMES {
            return Some("");
        }
        known.names.insert(name.to_owned());
        self.names += 1;
        Some(name)
    }

    /// The sums of a name; `None` if there are too many.
    fn sums(&mut self, minute: i64, number: i64, name: &str) -> Option<&mut HistorySums> {
        let names = self.minutes.entry(minute).or_default();
        let names = names.entry(number).or_default();
        if !names.contains_key(name) {
            if self.sums >= MAX_SUMS {
                return None;
            }
            self.sums += 1;
            names.insert(name.to_owned(), HistorySums::default());
        }
        names.get_mut(name)
    }

    fn take(&mut self) -> Vec<HistoryPart> {
        self.sums = 0;
        let mut parts = Vec::new();
        for (minute, queues) in std::mem::take(&mut self.minutes) {
            for (number, names) in queues {
                let Some(known) = self.known.get(&number) else {
                    continue;
                };
                parts.extend(names.into_iter().map(|(name, sums)| HistoryPart {
                    queue: known.queue.clone(),
                    minute,
                    name,
                    sums,
                }));
            }
        }
        parts
    }
}

impl History {
    pub(super) fn new(
        namespace: Arc<str>,
        jobs: Arc<Batcher>,
        bulk: Arc<Batcher>,
        timer: Timer,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            namespace,
            state: Mutex::default(),
            jobs,
            bulk,
            timer,
            this: this.clone(),
        })
    }

    /// An answer that just came says what the server's clock showed when it began. The way of an answer takes
    /// longer sometimes, and never less than nothing: the latest time is the best.
    pub(super) fn saw(&self, server: i64) {
        let ahead = server.saturating_sub(micros(self.timer.now()));
        let mut state = self.lock();
        state.ahead = Some(match state.ahead {
            Some(before) if (0..STEP).contains(&(before - ahead)) => {
                before - (before - ahead) / SLEW
            }
            _ => ahead,
        });
    }

    /// Counts an attempt.
    pub(super) fn count(&self, number: i64, queue: &str, job: &Delivery, how: Attempted) {
        let (began, ended) = job.ran_from_to();
        let mut state = self.lock();
        if self.timer.now() < state.refused_until {
            return;
        }
        // Nothing was claimed, so there was no delivery.
        let (Some(begun_at), Some(ended_at)) = (state.server(began), state.server(ended)) else {
            return;
        };
        let waited = begun_at.saturating_sub(job.due()).max(0);
        let ran = micros(ended.saturating_sub(began));
        let minute = ended_at - ended_at.rem_euclid(MINUTE);
        let name = state.known_name(number, queue, job.name());
        match name.and_then(|name| state.sums(minute, number, name)) {
            Some(sums) => sums.count(how, waited, ran),
            None => state.left_out = true,
        }
        if !state.armed {
            let soon = self.timer.now() + EVERY.mul_f64(0.5 + fastrand::f64() / 2.0);
            let at = state.next.max(soon);
            self.arm(&mut state, at);
        }
    }

    /// Sends all that was counted, before the process ends.
    pub(super) fn flush(&self) {
        let (again, new) = {
            let mut state = self.lock();
            state.next = self.timer.now() + EVERY;
            (state.again.take(), self.take(&mut state))
        };
        for record in again.map(|(record, _)| record).into_iter().chain(new) {
            self.batcher(&record).submit(record, |answer| {
                if !matches!(answer, Ok(true)) {
                    telemetry::fault(Fault::HistoryUnwritten);
                }
            });
        }
    }

    /// A connection that is opened for that each minute costs more than the claim that waits for that.
    fn batcher(&self, record: &RecordHistory) -> &Arc<Batcher> {
        if record.parts.len() <= FEW {
            &self.jobs
        } else {
            &self.bulk
        }
    }

    fn arm(&self, state: &mut State, at: Time) {
        state.armed = true;
        let this = self.this.clone();
        self.timer.run_at(at, move || {
            if let Some(history) = this.upgrade() {
                history.write();
            }
        });
    }

    /// What was counted, as a request.
    fn take(&self, state: &mut State) -> Option<RecordHistory> {
        let taken_at = state.server(self.timer.now())?;
        let parts = state.take();
        // Without a random number another program might have the same.
        let part = random::number().ok()?;
        (!parts.is_empty()).then(|| RecordHistory {
            namespace: self.namespace.to_string(),
            taken_at,
            part,
            parts,
        })
    }

    /// A write is due.
    fn write(&self) {
        let now = self.timer.now();
        let mut state = self.lock();
        state.armed = false;
        if state.sending {
            return;
        }
        state.next = now + EVERY;
        let record = match state.again.take() {
            Some(again) => Some(again),
            None => self.take(&mut state).map(|new| (new, now + PATIENCE)),
        };
        let left_out = std::mem::take(&mut state.left_out);
        state.sending = record.is_some();
        drop(state);
        if left_out {
            telemetry::fault(Fault::HistoryUnwritten);
        }
        let Some((record, until)) = record else {
            return;
        };
        let (this, again) = (self.this.clone(), record.clone());
        self.batcher(&again).submit(record, move |answer| {
            if let Some(history) = this.upgrade() {
                history.answered(answer, again, until);
            }
        });
    }

    fn answered(&self, answer: Result<bool>, record: RecordHistory, until: Time) {
        let now = self.timer.now();
        let mut state = self.lock();
        state.sending = false;
        let failed = match answer {
            Ok(in_time) => !in_time,
            Err(error) if may_pass(&error) => {
                let at = now + AGAIN.mul_f64(1.0 + fastrand::f64());
                let again = at < until;
                if again {
                    state.again = Some((record, until));
                    if !state.armed {
                        self.arm(&mut state, at);
                    }
                }
                !again
            }
            Err(_) => {
                state.refused_until = now + REFUSED;
                drop(state.take());
                true
            }
        };
        if !state.armed && state.sums > 0 {
            let at = state.next;
            self.arm(&mut state, at);
        }
        drop(state);
        if failed {
            telemetry::fault(Fault::HistoryUnwritten);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn may_pass(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable
            | ErrorKind::Indeterminate
            | ErrorKind::TimedOut
            | ErrorKind::Capacity
    )
}

impl Sweeping for FoldHistory {
    const EVERY: Duration = Duration::from_secs(300);

    fn next(self, swept: SweepResult<HistoryPartKey>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

impl Sweeping for SweepHistory {
    const EVERY: Duration = Duration::from_secs(300);

    fn next(self, swept: SweepResult<HistoryKey>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

/// The first part of the table of parts.
pub(super) fn first_fold() -> FoldHistory {
    FoldHistory {
        after: Default::default(),
        most: PART,
    }
}

/// The first part of the table of minutes and hours.
pub(super) fn first_sweep() -> SweepHistory {
    SweepHistory {
        after: Default::default(),
        most: PART,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_and_minutes_are_bounded() {
        let mut state = State::default();
        let mut counted = 0;
        for n in 0..100_000_i64 {
            let name = n.to_string();
            let known = state.known_name(n % 3, "work", &name);
            if let Some(known) = known
                && let Some(sums) = state.sums(n / 100 * MINUTE, n % 3, known)
            {
                sums.count(Attempted::Completed, 0, 0);
                counted += 1;
            }
        }
        assert_eq!(state.names, 3 * MAX_NAMES);
        assert!(state.sums <= MAX_SUMS);
        assert!(
            state
                .known_name(0, "work", "0")
                .is_some_and(|name| name == "0")
        );
        let parts = state.take();
        let sum: i64 = parts.iter().map(|part| part.sums.completed).sum();
        assert_eq!(sum, counted);
        assert!(parts.len() <= MAX_SUMS);
        // Those of a minute are told apart by their names, and the rest is one.
        for n in 0..100_000_i64 {
            let name = n.to_string();
            let name = state.known_name(0, "work", &name).expect("a known queue");
            let sums = state.sums(0, 0, name).expect("few sums");
            sums.count(Attempted::Failed, 0, 0);
        }
        let parts = state.take();
        assert_eq!(parts.len(), MAX_NAMES + 1);
        let rest = parts.iter().find(|part| part.name.is_empty());
        assert_eq!(rest.map(|part| part.sums.failed), Some(99_900));
        // And so are queues.
        for n in 0..100_000 {
            if let Some(name) = state.known_name(n, "work", "send") {
                state.sums(0, n, name);
            }
        }
        assert_eq!(state.known.len(), MAX_QUEUES);
        assert_eq!(state.names, MAX_ALL_NAMES);
        assert!(state.take().len() <= 2 * MAX_QUEUES);
    }
}
