//! While a queue is paused, nothing of it is delivered.

use std::time::Duration;

use super::History;
use crate::runtime::Time;

/// A pause of a queue that was asked for.
struct Pause {
    asked: Time,
    /// When it was answered.
    answered: Option<Time>,
    /// When it ends at the earliest.
    until: Time,
}

/// Those of a queue, in the order in which they were asked for.
#[derive(Default)]
pub(super) struct Pauses(Vec<Pause>);

impl Pauses {
    /// The one that holds at this time, if it is known which that is: the last that was asked for, when all others had been answered.
    fn at(&self, at: Time) -> Option<&Pause> {
        let asked = self.0.partition_point(|pause| pause.asked <= at);
        let (last, others) = self.0[..asked].split_last()?;
        let is_known = |other: &Pause| other.answered.is_some_and(|end| end < last.asked);
        let holds = last.answered.is_some_and(|begun| begun < at) && at < last.until;
        (holds && others.iter().all(is_known)).then_some(last)
    }
}

impl History {
    /// Somebody is about to pause a queue for a time; answers the number of the call.
    pub(crate) fn pauses(&self, queue: &'static str, time: Duration) -> usize {
        let asked = self.runtime.now();
        let mut state = self.lock();
        let of_queue = &mut state.pauses.entry(queue).or_default().0;
        of_queue.push(Pause {
            asked,
            answered: None,
            until: asked + time,
        });
        of_queue.len() - 1
    }

    pub(crate) fn paused(&self, queue: &'static str, call: usize) {
        let now = self.runtime.now();
        let mut state = self.lock();
        let of_queue = state.pauses.get_mut(queue);
        if let Some(pause) = of_queue.and_then(|pauses| pauses.0.get_mut(call)) {
            pause.answered = Some(now);
        }
    }

    /// A job of a queue was delivered by a claim that the server did at that time.
    pub(crate) fn delivered_at(&self, queue: &str, at: Time) {
        // Who leaves a call knows nothing of it, and another server may not either.
        if !self.tells_all || self.stepped || self.replaced {
            return;
        }
        let state = self.lock();
        let promise = "nothing of a paused queue is delivered";
        let pauses = state.pauses.get(queue);
        pauses.inspect(|_| self.runtime.looks_at(promise));
        let pause = pauses.and_then(|pauses| pauses.at(at));
        let what = pause.map(|it| {
            let (answered, until) = (it.answered, it.until);
            format!("{queue}: delivered at {at:?}, paused from {answered:?} to {until:?}")
        });
        drop(state);
        if let Some(what) = what {
            self.runtime.violate(promise, what);
        }
    }
}
