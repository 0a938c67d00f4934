//! Processes that close while calls are under way: they hold nothing afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{History, Hold};
use crate::runtime::ProgramId;

/// What a process has that holds something: kind, key and token.
pub(crate) type Holding = (&'static str, String, i64);

impl History {
    /// The same history, for a process that has not closed.
    pub(crate) fn of_process(&self) -> Self {
        Self {
            closing: Arc::default(),
            ..self.clone()
        }
    }

    /// The process closes: its calls may fail, and what it holds is lost.
    pub(crate) fn closes(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Whether its process closes, or has closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Whether another server may take over, or leases may last longer than by the clocks of processes.
    pub(crate) fn may_be_kept(&self) -> bool {
        self.replaced || self.stepped
    }

    /// Whether nobody is held up, so that all calls are answered soon.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.undisturbed
    }

    /// What a process holds, by what it was granted, and has not lost by its clock: of that nobody knows whether a renewal was late.
    pub(crate) fn holdings(&self, program: ProgramId) -> Vec<Holding> {
        let holds = |hold: &&Hold| hold.program == program && (hold.held)();
        let state = self.lock();
        let places = state.places.iter();
        let of_places = places.flat_map(|((kind, key), place)| {
            let open = place.open.values().filter(holds);
            open.map(|hold| (*kind, key.clone(), hold.token))
        });
        let jobs = state.jobs.iter();
        let of_jobs = jobs.flat_map(|(job, known)| {
            let open = known.open.values().filter(holds);
            open.map(|hold| ("job", job.to_string(), hold.token))
        });
        of_places.chain(of_jobs).collect()
    }

    /// The process has closed: what it held it knows to be lost.
    pub(crate) fn check_closed(&self, program: ProgramId) {
        let state = self.lock();
        let believes = |hold: &&Hold| hold.program == program && (hold.held)();
        let places = state.places.iter();
        let of_places = places.flat_map(|(name, place)| {
            let held = place.open.values().filter(believes);
            held.map(move |hold| format!("{name:?} with {}", hold.token))
        });
        let jobs = state.jobs.iter();
        let of_jobs = jobs.flat_map(|(job, known)| {
            let held = known.open.values().filter(believes);
            // Of a transaction of the process itself, which is not closed, a token is not known.
            let held = held.filter(|hold| hold.token != 0);
            held.map(move |hold| format!("job {job} with {}", hold.token))
        });
        let still: Vec<_> = of_places.chain(of_jobs).collect();
        drop(state);
        self.answered("close");
        if !still.is_empty() {
            let promise = "what a process held that has closed is lost";
            self.runtime.violate(promise, format!("{still:?}"));
        }
    }
}
