//! Whose turn it is: kinds of requests share a connection by the time that their statements take.

use std::any::TypeId;
use std::time::Duration;

use super::KindId;
use super::backlog::{AnyBacklog, Backlog, Drawn};
use super::batch::AnyBatch;
use super::request::{Caller, MAX_WEIGHT, Queued};
use crate::error::{Error, Failure};
use crate::seam::Connection;

/// A statement carries as much as the server does in about this time, so that others need not wait
/// for long.
const SLICE: Duration = Duration::from_millis(4);
/// What it carries at least, however long that takes: smaller statements would cost more than they
/// save.
const MIN_WEIGHT: usize = 64;
/// What the first one carries.
const FIRST_WEIGHT: usize = 512;

/// The requests that wait, by kind.
pub(super) struct Kinds<N> {
    /// In the order in which they were first used.
    all: Vec<Kind<N>>,
    /// The time that the kind had which ran last: who comes anew begins there.
    floor: Duration,
}

struct Kind<N> {
    id: KindId,
    gives_back: bool,
    backlog: Box<dyn AnyBacklog<N>>,
    /// How long its statements have had the connection.
    used: Duration,
    /// How much the next one carries.
    room: usize,
}

impl<N> Default for Kinds<N> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            floor: Duration::ZERO,
        }
    }
}

impl<N: Connection + 'static> Kinds<N> {
    pub(super) fn add<O: Queued>(
        &mut self,
        asked: O,
        caller: Caller<O::Output>,
    ) -> Result<(), (Caller<O::Output>, Error)> {
        let id = (asked.class(), TypeId::of::<O>());
        let at = self.all.iter().position(|kind| kind.id == id);
        let at = at.unwrap_or_else(|| {
            self.all.push(Kind {
                id,
                gives_back: O::GIVES_BACK,
                backlog: Box::<Backlog<O>>::default(),
                used: Duration::ZERO,
                room: FIRST_WEIGHT,
            });
            self.all.len() - 1
        });
        let kind = &mut self.all[at];
        if kind.backlog.is_empty() {
            kind.used = kind.used.max(self.floor);
        }
        match kind.backlog.as_any().downcast_mut::<Backlog<O>>() {
            Some(backlog) => backlog.add(asked, caller),
            // The kind was found by its type.
            None => Ok(()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.iter().all(|kind| kind.backlog.is_empty())
    }

    /// The kinds that run a statement each, in this order: those that give back, and the one of the
    /// others that had the least time.
    pub(super) fn round(&mut self) -> Vec<usize> {
        let waiting = || {
            let all = self.all.iter().enumerate();
            all.filter(|(_, kind)| !kind.backlog.is_empty())
        };
        let back = waiting().filter(|(_, kind)| kind.gives_back);
        let mut back: Vec<_> = back.collect();
        // The shortest limits first, and after them those that have none.
        back.sort_by_key(|(_, kind)| kind.id.0.wrapping_sub(1));
        let least = waiting()
            .filter(|(_, kind)| !kind.gives_back)
            .min_by_key(|(_, kind)| kind.used);
        back.into_iter().chain(least).map(|(at, _)| at).collect()
    }

    /// The requests of the next statement of a kind.
    pub(super) fn draw(&mut self, at: usize) -> Drawn<N> {
        let kind = &mut self.all[at];
        if !kind.gives_back {
            self.floor = self.floor.max(kind.used);
        }
        kind.backlog.draw(kind.room)
    }

    /// Takes note of a statement that took so long, and takes back what it left.
    pub(super) fn served(
        &mut self,
        at: usize,
        left: usize,
        took: Duration,
        batch: &mut dyn AnyBatch<N>,
    ) {
        let kind = &mut self.all[at];
        kind.used += took;
        if took > SLICE && left < kind.room {
            kind.room = MIN_WEIGHT.max(kind.room / 2);
        } else if took < SLICE / 2 && left == 0 {
            kind.room = MAX_WEIGHT.min(kind.room * 2);
        }
        kind.backlog.put_back(batch);
    }

    /// Fails all.
    pub(super) fn refuse(&mut self, failure: &Failure) {
        for kind in &mut self.all {
            kind.backlog.refuse(failure);
        }
    }
}
