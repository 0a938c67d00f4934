//! Long holds and waits of the program, to be recorded for inspectors.

use std::time::Duration;

use super::effects::Effects;
use super::slot::Phase;
use super::{LockTable, Now};
use crate::engine::clock::Time;
use crate::key::LockId;

/// The interval at which the slots are checked, and the time after which a hold or wait is reported.
pub(super) const LONG: Duration = Duration::from_millis(500);

/// Long holds and waits in the slots.
pub(crate) struct Observed {
    pub(crate) now: Time,
    /// Marks of the sessions that were opened.
    pub(crate) marks: Vec<i64>,
    pub(crate) lasting: Vec<LongHoldOrWait>,
}

/// A hold or a wait that lasts.
pub(crate) struct LongHoldOrWait {
    pub(crate) lock: LockId,
    pub(crate) waits: bool,
    /// The holder's token; 0 of a wait, and of what is shared.
    pub(crate) fence: i64,
    pub(crate) since: Time,
}

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// Observes in a while, if that is wanted.
    pub(crate) fn observe_later(&mut self, now: Now<'_>, effects: &mut Effects<W, H, R>) {
        if self.limits.observed && self.observe_at.is_none() {
            let at = now() + LONG;
            self.observe_at = Some(at);
            self.arm(at, effects);
        }
    }

    /// Whether any lock is held or wanted.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Looks what lasts.
    pub(crate) fn observe(&mut self, now: Time) -> Observed {
        let lasts = |since: Time| since + LONG <= now;
        let mut lasting = Vec::new();
        for (lock, slot) in &self.slots {
            // What is shared has no token.
            let held = match &slot.phase {
                Phase::Held(held) => Some((held.fence + held.hand_overs, held.since)),
                Phase::Shared(shared) => Some((0, shared.since)),
                _ => None,
            };
            if let Some((fence, since)) = held.filter(|(_, since)| lasts(*since)) {
                lasting.push(LongHoldOrWait {
                    lock: *lock,
                    waits: false,
                    fence,
                    since,
                });
            }
            let first = slot.queue.iter().next().and_then(|first| first.since);
            if let Some(since) = first.filter(|since| lasts(*since)) {
                lasting.push(LongHoldOrWait {
                    lock: *lock,
                    waits: true,
                    fence: 0,
                    since,
                });
            }
        }
        let marks = self.sessions.iter().map(|session| session.mark);
        Observed {
            now,
            marks: marks.filter(|mark| *mark != 0).collect(),
            lasting,
        }
    }
}
