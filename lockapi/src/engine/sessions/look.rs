//! What a program has held or waited for so long that others may want to know.

use std::time::Duration;

use super::Sessions;
use super::state::{Phase, State};
use crate::engine::clock::Time;
use crate::key::LockId;

/// How often the slots are looked at, and how long something has to last to be told of.
const LASTING: Duration = Duration::from_millis(500);

/// Is told of each look; answers whether there has to be another, although nothing is in use.
pub(super) type Look = dyn Fn(Looked) -> bool + Send + Sync;

/// A look at the slots.
pub(crate) struct Looked {
    pub(crate) now: Time,
    /// Marks of the sessions that were opened.
    pub(crate) marks: Vec<i64>,
    pub(crate) lasting: Vec<Lasting>,
}

/// A hold or a wait that lasts.
pub(crate) struct Lasting {
    pub(crate) lock: LockId,
    pub(crate) waits: bool,
    /// The holder's token; 0 of a wait, and of what is shared.
    pub(crate) fence: i64,
    pub(crate) since: Time,
}

impl Sessions {
    /// Tells who is told of looks; called once, before anything else.
    pub(crate) fn look_with(&self, look: impl Fn(Looked) -> bool + Send + Sync + 'static) {
        let _first = self.look.set(Box::new(look));
    }

    /// Looks in a while, and again for as long as something is in use.
    pub(super) fn look_later(&self, state: &mut State) {
        if self.look.get().is_none() || std::mem::replace(&mut state.looking, true) {
            return;
        }
        let this = self.this.clone();
        self.keeper.run_at(self.keeper.now() + LASTING, move || {
            if let Some(sessions) = this.upgrade() {
                sessions.look();
            }
        });
    }

    fn look(&self) {
        let Some(look) = self.look.get() else {
            return;
        };
        let now = self.keeper.now();
        let mut state = self.lock();
        state.looking = false;
        let looked = looked(&mut state, now);
        let in_use = !state.slots.is_empty();
        drop(state);
        if look(looked) || in_use {
            self.look_later(&mut self.lock());
        }
    }
}

fn looked(state: &mut State, now: Time) -> Looked {
    let lasts = |since: Time| since + LASTING <= now;
    let mut lasting = Vec::new();
    for (lock, slot) in &mut state.slots {
        // What is shared has no token.
        let held = match &slot.phase {
            Phase::Held(held) => Some((held.fence + held.hand_overs, held.since)),
            Phase::Shared(shared) => Some((0, shared.since)),
            _ => None,
        };
        if let Some((fence, since)) = held.filter(|(_, since)| lasts(*since)) {
            lasting.push(Lasting {
                lock: *lock,
                waits: false,
                fence,
                since,
            });
        }
        slot.prune();
        if let Some(since) = slot.queue.front().and_then(|first| first.since)
            && lasts(since)
        {
            lasting.push(Lasting {
                lock: *lock,
                waits: true,
                fence: 0,
                since,
            });
        }
    }
    let marks = state.sessions.iter().map(|session| session.mark);
    Looked {
        now,
        marks: marks.filter(|mark| *mark != 0).collect(),
        lasting,
    }
}
