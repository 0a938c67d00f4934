//! What has ended at the server, because nobody has renewed it, is lost to its holder.

use super::{History, Hold};
use crate::server::Server;

/// What belongs to a row of leases.
const KINDS: [&str; 4] = ["lease", "semaphore", "election", "leased mutex"];

impl History {
    /// Looks at all that somebody believes to hold whose time may be up at the server, whoever renews it.
    pub(crate) fn check_ends(&self, server: &Server) {
        // A clock that is set ends what its holder has, and another server may not know of it.
        if self.stepped || self.replaced {
            return;
        }
        let promise = "whoever holds what has ended knows it";
        let state = self.lock();
        let is_held = |hold: &&Hold| hold.is_held(&self.runtime);
        let places = state.places.iter();
        let mut places = places.filter(|((kind, _), place)| {
            KINDS.contains(kind) && place.open.values().any(|hold| is_held(&hold))
        });
        let ended = places.find_map(|((kind, key), place)| {
            self.runtime.looks_at(promise);
            let tokens = server.holders(key);
            let mut open = place.open.values().filter(is_held);
            let ended = open.find(|hold| !tokens.contains(&hold.token))?;
            let given = ended.given.1;
            Some(format!("{kind} {key}: {}, known at {given:?}", ended.token))
        });
        let jobs = state.jobs.iter();
        let jobs = jobs.flat_map(|(job, known)| known.open.values().map(move |it| (job, it)));
        let mut jobs = jobs.filter(|(_, hold)| hold.token > 0 && hold.is_held(&self.runtime));
        let ended = ended.or_else(|| {
            let over = server.ended_deliveries();
            let (job, hold) = jobs.find(|(_, hold)| over.contains(&hold.token))?;
            Some(format!(
                "job {job}: {}, known at {:?}",
                hold.token, hold.given.1
            ))
        });
        drop(state);
        if let Some(what) = ended {
            self.runtime.violate(promise, what);
        }
    }
}
