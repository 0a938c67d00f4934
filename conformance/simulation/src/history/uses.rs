//! What an answer says besides what is had: that others had it, and that the time to wait was up.

use std::future::Future;
use std::time::Duration;

use lockapi::{ErrorKind, Result};

use super::{History, is_session};
use crate::runtime::Time;

/// What was used can be had again after so long, where nothing fails.
const FREE: Duration = Duration::from_millis(500);
/// Within this time whoever asks for what nobody has is answered.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// A wait ends within this time of its limit, where its process is not held up.
const LATE: Duration = Duration::from_millis(100);

/// Who uses something: asks for it, has it, or gives it back.
#[derive(Default)]
pub(super) struct Uses {
    /// How many do, and how many have begun to.
    now: usize,
    begun: u64,
    /// When the last one ended.
    ended: Time,
}

/// A use, until this is dropped.
pub(crate) struct Use {
    history: History,
    name: (&'static str, String),
    /// Which of all, and whether nobody else had used it for a while.
    nth: u64,
    alone: bool,
}

impl Drop for Use {
    fn drop(&mut self) {
        let now = self.history.runtime.now();
        if let Some(uses) = self.history.lock().uses.get_mut(&self.name) {
            uses.now -= 1;
            uses.ended = now;
        }
    }
}

impl History {
    /// Somebody begins to use something.
    pub(crate) fn uses(&self, kind: &'static str, key: &str) -> Use {
        let name = (kind, key.to_owned());
        let mut state = self.lock();
        let uses = state.uses.entry(name.clone()).or_default();
        let rested = self.runtime.now().saturating_sub(uses.ended);
        let alone = uses.now == 0 && (uses.begun == 0 || rested > FREE);
        uses.now += 1;
        uses.begun += 1;
        let nth = uses.begun;
        drop(state);
        let history = self.clone();
        Use {
            history,
            name,
            nth,
            alone,
        }
    }
}

impl Use {
    /// A call that does not wait: it finds that others have it only where some do.
    pub(crate) async fn tried<T>(
        &self,
        call: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        let (history, asked) = (&self.history, self.history.runtime.now());
        let answer = call.await;
        let took = history.runtime.now().saturating_sub(asked);
        let promise = "who does not wait is answered at once";
        if history.undisturbed {
            history.runtime.looks_at(promise);
        }
        if history.undisturbed && took > SOON {
            let what = format!("{:?}: {took:?}", self.name);
            history.runtime.violate(promise, what);
        }
        let answer = answer?;
        if answer.is_none() {
            self.refused();
        }
        Ok(answer)
    }

    /// A call that waits for up to this time, and no less where it is not answered.
    pub(crate) async fn within<T>(
        &self,
        most: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (history, asked) = (&self.history, self.history.runtime.now());
        let answer = call.await;
        let took = history.runtime.now().saturating_sub(asked);
        // The server may also have ended its statement.
        let timed_out = |error: &lockapi::Error| {
            error.kind() == ErrorKind::TimedOut && error.sqlstate().is_none()
        };
        let what = || format!("{:?}: {took:?} of {most:?}", self.name);
        if answer.as_ref().is_err_and(timed_out) {
            // Enough to connect and to ask.
            if most > SOON {
                self.refused();
            }
            // Clocks of processes run faster by up to a hundredth.
            let promise = "a wait is not given up before its time";
            history.runtime.looks_at(promise);
            if took < most.mul_f64(0.985) {
                history.runtime.violate(promise, what());
            }
        }
        // Who does not wait is answered as soon as the server has.
        let (is_prompt, late) = if most.is_zero() {
            (history.undisturbed, SOON)
        } else {
            (history.prompt, LATE)
        };
        let promise = "a wait ends with its time";
        if is_prompt {
            history.runtime.looks_at(promise);
        }
        if is_prompt && took > most.mul_f64(1.015) + late {
            history.runtime.violate(promise, what());
        }
        answer
    }

    /// It was not had, because others had it.
    fn refused(&self) {
        let history = &self.history;
        history.answered("refusal");
        let state = history.lock();
        let others = state.uses.get(&self.name);
        let alone = self.alone && others.is_some_and(|uses| uses.begun == self.nth);
        drop(state);
        // A transaction in which it is checked in may be open for longer than its program is there.
        let is_free = is_session(self.name.0) || !history.checks_in;
        let promise = "what nobody has can be had";
        if is_free && history.undisturbed {
            history.runtime.looks_at(promise);
        }
        if alone && is_free && history.undisturbed {
            let what = format!("{:?}", self.name);
            history.runtime.violate(promise, what);
        }
    }
}
