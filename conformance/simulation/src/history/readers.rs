//! A process whose tasks share a lock admits no more of them while another process waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{History, Part, State};
use crate::runtime::{ProgramId, Time};

/// So long after it began to wait, others know of a writer whose process does not share the lock itself …
const KNOWN: Duration = Duration::from_millis(500);
/// … but for the moments between two of its waits at the server. Those of one moment are admitted together.
const MOMENT: Duration = Duration::from_millis(100);
/// It takes too many moments to be chance.
const CHANCE: usize = 3;

/// By lock and process: when it admitted further readers while a writer waited, as long as it shares the lock.
pub(super) type Admissions = BTreeMap<(String, ProgramId), Vec<Time>>;

impl History {
    /// A task of a process has been let in, before it is counted among those who share the lock.
    pub(super) fn admitted(
        &self,
        state: &mut State,
        (kind, key): (&'static str, &str),
        part: Part,
        program: ProgramId,
    ) -> Option<String> {
        if kind != "rw_lock" || part.is_whole() || !self.one_lock {
            return None;
        }
        let now = self.runtime.now();
        let name = (kind, key.to_owned());
        let place = state.places.get(&name);
        let shares = place.is_some_and(|it| it.open.values().any(|it| it.program == program));
        let admissions = state.admissions.entry((name.1.clone(), program));
        let admissions = admissions.or_default();
        if !shares {
            admissions.clear();
            return None;
        }
        let place = state.places.get(&name)?;
        let others = |of| place.open.values().any(|hold| hold.program == of);
        let since = state.turns.writer_of_others(&name, program, others)?;
        if since + KNOWN > now {
            return None;
        }
        self.runtime
            .looks_at("who shares lets those in who wait elsewhere");
        if admissions.last().is_none_or(|last| *last + MOMENT < now) {
            admissions.push(now);
        }
        (admissions.len() >= CHANCE).then(|| {
            format!(
                "{name:?} of {program:?}: at {admissions:?}, and a writer waits since {since:?}"
            )
        })
    }
}
