//! What a program may choose when it connects.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::telemetry::Warn;

/// Connections of a backend beside those that wait for mutexes: five for statements on tables, one each for
/// mutexes, for notifications and for what sweeps, and one that is opened for a moment, to cancel or to
/// migrate.
const OWN_CONNECTIONS: usize = 9;

/// What a program may choose when it connects.
///
/// ```
/// let options = lockapi::BackendOptions::default().namespace("billing").max_locks(500);
/// ```
#[derive(Clone, Debug)]
pub struct BackendOptions {
    pub(super) namespace: String,
    pub(super) max_locks: usize,
    pub(super) waiters: usize,
    pub(super) timeout: Duration,
    pub(super) heartbeat: Duration,
    pub(super) notes: bool,
    pub(super) history: bool,
    pub(super) warn: Warn,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self {
            namespace: "default".to_owned(),
            max_locks: 10_000,
            waiters: 4,
            timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(1),
            notes: true,
            history: true,
            warn: Warn::default(),
        }
    }
}

impl BackendOptions {
    /// The namespace of all names, 1 to 255 bytes; the default is `default`. Names in different
    /// namespaces are independent. `lockapi` is reserved for the library.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The maximum number of mutexes that the process holds or waits for, 10,000 by default; those
    /// being released do not count. All sessions of a server share a lock table with room for about
    /// `max_locks_per_transaction * max_connections` locks.
    #[must_use]
    pub fn max_locks(mut self, locks: usize) -> Self {
        self.max_locks = locks;
        self
    }

    /// The number of connections that wait for mutexes which other processes hold, 4 by default, at
    /// most 64. They are opened when needed. Further keys take turns of 250 ms on them, some of up to 0.8
    /// s where a [`LockOwner`](crate::LockOwner) waits that holds something. With 0 all waits poll: then
    /// there is no order between processes, a wait beside a busy process may be long, and deadlocks with
    /// other processes are not detected.
    #[must_use]
    pub fn waiters(mut self, connections: usize) -> Self {
        self.waiters = connections;
        self
    }

    /// The time limit of a statement, after which its connection is closed, and of a wait for rows that
    /// an open transaction has locked; 5 s by default, at least 2 s. The server cancels a statement
    /// after nine tenths of it. A request that can be repeated is sent once more on a new connection: a
    /// call without a time limit of its own returns within about twice this time, whatever the network
    /// does; one that works in parts, or changes a task of a scheduler, for each of its statements. Those of sessions
    /// that hold mutexes take 9 s at most. Renewals of leases and heartbeats of deliveries time out earlier, depending on their time
    /// to live.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The interval at which an idle session that holds mutexes is checked, 1 s by default, at least 10
    /// ms. A holder learns within about this time that its session has ended; about 9 s later if the network is
    /// cut, and up to 20 s later if the server vanished while it flushed its log for a grant.
    #[must_use]
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// Whether the names of mutexes that are held or waited for long are recorded, for
    /// [inspectors](crate::admin); `true` by default. Recording uses the connection of jobs.
    #[must_use]
    pub fn notes(mut self, notes: bool) -> Self {
        self.notes = notes;
        self
    }

    /// Whether the [history](crate::admin::Inspector::history) of queues counts the jobs that this backend works on; `true` by
    /// default. Counting writes one statement a minute.
    #[must_use]
    pub fn history(mut self, history: bool) -> Self {
        self.history = history;
        self
    }

    /// Warns about each call that waits for a lock, a lease, a permit, a leadership or a rate limit for
    /// `time` or more, once, while it waits, with the feature `tracing`; off by default.
    #[must_use]
    pub fn warn_waited(mut self, time: Duration) -> Self {
        self.warn.waited = Some(time);
        self
    }

    /// Warns about each guard that is held for `time` or more, once, while it is held, with the feature
    /// `tracing`; off by default.
    #[must_use]
    pub fn warn_held(mut self, time: Duration) -> Self {
        self.warn.held = Some(time);
        self
    }

    /// The maximum number of connections that a backend has open: 8 that it keeps, one that it opens
    /// for a moment, and the [`waiters`](Self::waiters). Connections that cannot be closed because the
    /// network is broken do not count.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.waiters.saturating_add(OWN_CONNECTIONS)
    }

    /// Checks that a pool from which a backend takes its [connections](Self::connections) has one more,
    /// for the program.
    ///
    /// # Errors
    /// `Invalid` when it is smaller, and for options that are outside their limits.
    pub fn check_pool(&self, size: usize) -> Result<()> {
        self.check()?;
        let needed = self.connections();
        if size > needed {
            return Ok(());
        }
        let message = format!(
            "a pool of {size} connections; allowed are {} or more: a backend takes up to {needed}, which are \
             {OWN_CONNECTIONS} and one for each of {} waiters, and the program needs one. Or use \
             `connect_url`, which opens connections of the backend's own",
            needed + 1,
            self.waiters
        );
        Err(Error::new(ErrorKind::Invalid, "connect", message))
    }

    pub(super) fn check(&self) -> Result<()> {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "connect", message));
        check_name("namespace", &self.namespace, 1)?;
        if self.namespace == "lockapi" {
            // An advisory lock of it keeps migrations apart.
            return invalid("the namespace `lockapi` is the library's own; use another".to_owned());
        }
        if self.max_locks == 0 {
            return invalid("max_locks of 0; allowed are 1 or more".to_owned());
        }
        if self.waiters > 64 {
            return invalid(format!("waiters of {}; allowed are 0 to 64", self.waiters));
        }
        if self.timeout < Duration::from_secs(2) || self.timeout > DAY {
            let timeout = self.timeout;
            return invalid(format!(
                "a timeout of {timeout:?}; allowed are 2 s to 24 hours"
            ));
        }
        if self.heartbeat < Duration::from_millis(10) || self.heartbeat > DAY {
            let heartbeat = self.heartbeat;
            return invalid(format!(
                "a heartbeat of {heartbeat:?}; allowed are 10 ms to 24 hours"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_the_library_is_refused() {
        let refused = BackendOptions::default().namespace("lockapi").check();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
        assert!(
            BackendOptions::default()
                .namespace("lockapis")
                .check()
                .is_ok()
        );
    }
}
