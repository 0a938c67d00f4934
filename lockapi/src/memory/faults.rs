//! What tests do to a database: outages, a network that is stuck, clocks that are set, and fail-over.

use std::collections::HashSet;
use std::time::Duration;

use super::{ALL, Database, State};
use crate::lease::micros;

impl Database {
    /// Ends all sessions, as a server does that is restarted; they can be opened again at once.
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

    /// Leaves the sessions that are open now unanswered, as a network does that has forgotten their
    /// connections; [`set_silent(false)`](Self::set_silent) answers them again.
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

    /// Leaves statements unanswered until they are to be answered again.
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

    /// Sets the server's clock ahead, as a person or a time service may. What the server has written
    /// down with a time is then as old as that clock says: leases end, delayed jobs are due, permits
    /// have flowed back. The clocks of backends go on as before.
    pub fn set_clock_ahead(&self, by: Duration) {
        let mut state = self.shared.lock();
        state.set_ahead = state.set_ahead.saturating_add(micros(by));
    }

    /// Sets the server's clock back.
    pub fn set_clock_back(&self, by: Duration) {
        let mut state = self.shared.lock();
        state.set_ahead = state.set_ahead.saturating_sub(micros(by));
    }

    /// Cuts two standbys off: from now on they receive nothing of what is committed.
    pub fn cut_replication(&self) {
        let mut state = self.shared.lock();
        state.standbys = vec![state.model.clone(), state.model.clone()];
    }

    /// Loses the server, and has a standby take over: all sessions end, and what was committed after
    /// the replication was [cut](Self::cut_replication) is lost. The second time it is the other standby,
    /// which has not heard of the first; then nothing is lost.
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
