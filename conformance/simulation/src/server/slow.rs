//! Statements that the server begins late: its disk or its processors are busy.

use std::time::Duration;

use lockapi::{Failure, Report};

use super::{Server, State};

/// How late.
const LATE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));

impl State {
    /// Whether a session runs this statement.
    pub(super) fn runs(&self, session: u64, number: u64) -> bool {
        let running = self.sessions.get(&session).map(|it| &it.running);
        matches!(running, Some(Some(running)) if running.number == number)
    }
}

impl Server {
    /// Begins a statement after some time, or refuses it after what its session allows.
    pub(super) fn delay_begin(&self, session: u64, number: u64) {
        let late = self.runtime.between(LATE.0, LATE.1);
        let state = self.lock();
        let limit = state.sessions.get(&session).map(|it| it.statement_timeout);
        drop(state);
        let server = self.clone();
        match limit.filter(|limit| !limit.is_zero() && *limit < late) {
            Some(limit) => self.runtime.after(limit, move |_| {
                let message = "canceling statement due to statement timeout";
                server.stop(session, number, ("57014", message));
            }),
            None => self
                .runtime
                .after(late, move |_| server.begin_late(session, number)),
        }
    }

    /// Begins all of them now.
    pub(super) fn begin_slow(&self) {
        let state = self.lock();
        let sessions = state.sessions.iter();
        let slow = sessions.filter_map(|(session, it)| {
            let running = it.running.as_ref().filter(|running| running.slow)?;
            Some((*session, running.number))
        });
        let slow: Vec<_> = slow.collect();
        drop(state);
        for (session, number) in slow {
            self.begin_late(session, number);
        }
    }

    fn begin_late(&self, session: u64, number: u64) {
        let mut state = self.lock();
        let running = state.sessions.get_mut(&session).map(|it| &mut it.running);
        let Some(Some(running)) = running.filter(|it| it.as_ref().is_some_and(|it| it.slow)) else {
            return;
        };
        if running.number != number {
            return;
        }
        running.slow = false;
        drop(state);
        self.attempt(session, false);
        self.bound(session, number);
    }

    /// Refuses a statement that a session runs; one whose client has left ends with it.
    pub(super) fn stop(&self, session: u64, number: u64, (code, message): (&str, &str)) {
        let mut state = self.lock();
        let Some(it) = state.sessions.get_mut(&session) else {
            return;
        };
        let abandoned = it.abandoned;
        let Some(running) = it.running.take_if(|it| it.number == number) else {
            return;
        };
        drop(state);
        let report = Report::new(Some(code.to_owned()), message);
        self.answer(session, running.answer, Err(Failure::reported(report)));
        if abandoned {
            self.end(session, None);
        }
        self.go_on(session);
    }
}
