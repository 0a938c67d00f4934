//! Faults for tests: outages, a network that has stalled, clocks that are set, and fail-over.

use std::collections::HashSet;
use std::time::Duration;

use super::{ALL, Database, State};
use crate::lease::micros;

impl Database {
    /// Ends all sessions, like a restart of the server; new ones can be opened at once.
    pub fn sever(&self) {
        let mut state = self.shared.lock();
        let State {
            sessions, model, ..
        } = &mut *state;
        sessions.retain(|session, link| {
            let stays = !self.has(*link);
            if !stays {
                model.end_session(*session);
            }
            stays
        });
        drop(state);
        self.shared.changed.notify_all();
        self.shared.spoken.notify_waiters();
    }

    /// Refuses connections and statements, or serves them again.
    pub fn set_reachable(&self, reachable: bool) {
        let mut state = self.shared.lock();
        set(&mut state.unreachable, self.link, !reachable);
        drop(state);
        if !reachable {
            self.sever();
        }
    }

    /// Stops answering on the sessions that are open now, like a network that has dropped their
    /// connections; [`set_silent(false)`](Self::set_silent) lets them be answered again.
    pub fn silence_sessions(&self) {
        let mut state = self.shared.lock();
        let State {
            silent_sessions,
            sessions,
            ..
        } = &mut *state;
        let of_link = sessions.iter().filter(|(_, link)| self.has(**link));
        silent_sessions.extend(of_link.map(|(session, _)| *session));
    }

    /// Stops answering statements, or answers them again.
    pub fn set_silent(&self, silent: bool) {
        let mut state = self.shared.lock();
        set(&mut state.silent, self.link, silent);
        let State {
            silent_sessions,
            sessions,
            ..
        } = &mut *state;
        silent_sessions.retain(|session| {
            let link = sessions.get(session);
            link.is_some_and(|link| !self.has(*link))
        });
        drop(state);
        self.shared.changed.notify_all();
        self.shared.spoken.notify_waiters();
    }

    /// Sets the server's clock forward, as an administrator or a time service may. Times that the
    /// server has stored are then compared with the new time: leases end, delayed jobs are due, permits
    /// are replenished. The clocks of backends are not affected.
    pub fn set_clock_ahead(&self, by: Duration) {
        let mut state = self.shared.lock();
        state.set_ahead = state.set_ahead.saturating_add(micros(by));
    }

    /// Sets the server's clock back.
    pub fn set_clock_back(&self, by: Duration) {
        let mut state = self.shared.lock();
        state.set_ahead = state.set_ahead.saturating_sub(micros(by));
    }

    /// Cuts the replication to two standbys: they receive no further commits.
    pub fn cut_replication(&self) {
        let mut state = self.shared.lock();
        state.standbys = vec![state.model.clone(), state.model.clone()];
    }

    /// Promotes a standby after the loss of the server: all sessions end, and commits after the
    /// replication was [cut](Self::cut_replication) are lost. The second call promotes the other
    /// standby, which has not replicated the first promotion; further calls lose nothing.
    ///
    /// ```
    /// # async fn example() -> lockapi::Result<()> {
    /// use lockapi::memory::Database;
    ///
    /// let database = Database::new();
    /// let backend = database.connect().await?;
    /// database.cut_replication();
    /// let lost = backend.mutex("k")?.lock().await?;
    /// database.fail_over();
    /// let next = backend.mutex("k")?.lock().await?;
    /// assert!(next.fence().token() > lost.fence().token());
    /// # Ok(())
    /// # }
    /// # lockapi::blocking::block_on(example()).unwrap();
    /// ```
    pub fn fail_over(&self) {
        let mut state = self.shared.lock();
        let now = self.now(state.set_ahead);
        if let Some(standby) = state.standbys.pop() {
            state.model = standby;
        }
        state.model.promote(now);
        state.sessions.clear();
        drop(state);
        self.shared.changed.notify_all();
        self.shared.spoken.notify_waiters();
    }
}

fn set(links: &mut HashSet<u64>, link: u64, is_in: bool) {
    if is_in {
        links.insert(link);
    } else if link == ALL {
        links.clear();
    } else {
        links.remove(&link);
    }
}
