//! Rows of a snapshot.

mod rows;

use std::time::Duration;

use lockapi::admin::{HeldLease, LimitLevel, RunningJob};
use lockapi::mutex::LockMode;
use rows::{queue, task, wait};

use crate::action::{Action, BLOCK};
use crate::output::{plain, spoken, spoken_or_unknown};
use crate::watch::{Part, Snapshot};

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Queues,
    Waits,
    Locks,
    Leases,
    Running,
    Schedules,
    Limits,
    Ids,
}

impl View {
    pub(super) const ALL: [Self; 8] = [
        Self::Queues,
        Self::Waits,
        Self::Locks,
        Self::Leases,
        Self::Running,
        Self::Schedules,
        Self::Limits,
        Self::Ids,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queues => "Queues",
            Self::Waits => "Waits",
            Self::Locks => "Locks",
            Self::Leases => "Leases",
            Self::Running => "Running",
            Self::Schedules => "Schedules",
            Self::Limits => "Limits",
            Self::Ids => "Ids",
        }
    }

    /// The columns, each with its least width; the first grows.
    pub(super) fn columns(self) -> &'static [(&'static str, u16)] {
        match self {
            Self::Queues => &[
                ("Queue", 14),
                ("Ready", 7),
                ("Lately", 12),
                ("Growth", 8),
                ("Running", 7),
                ("Delayed", 7),
                ("Dead", 6),
                ("Oldest", 8),
            ],
            Self::Waits => &[
                ("Lock", 16),
                ("Who waits", 16),
                ("For", 8),
                ("In the way", 30),
            ],
            Self::Locks => &[
                ("Lock", 18),
                ("Holder", 18),
                ("Role", 10),
                ("Pid", 8),
                ("Held for", 8),
                ("Token", 11),
            ],
            Self::Leases => &[
                ("Key", 18),
                ("What", 12),
                ("Holder", 18),
                ("Held for", 8),
                ("Left", 8),
                ("Data", 8),
            ],
            Self::Running => &[
                ("Job", 10),
                ("Queue", 12),
                ("Name", 12),
                ("Worker", 18),
                ("For", 8),
                ("Left", 8),
            ],
            Self::Schedules => &[
                ("Task", 18),
                ("Scheduler", 14),
                ("When", 18),
                ("Next", 10),
                ("Latest", 10),
            ],
            Self::Limits => &[
                ("Key", 20),
                ("Flows back", 10),
                ("Window", 16),
                ("Blocked", 8),
                ("Reserved", 8),
                ("Used", 10),
            ],
            Self::Ids => &[
                ("Ids", 16),
                ("Number", 8),
                ("Owner", 22),
                ("Held for", 8),
                ("Left", 8),
            ],
        }
    }
}

/// A row: what it shows, what it is sorted by, and what can be done about it.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) cells: Vec<String>,
    /// Where it is not the text that a column is sorted by.
    numbers: Vec<Option<u128>>,
    pub(super) details: Vec<(&'static str, String)>,
    pub(super) actions: Vec<Action>,
    /// Whether somebody should look at it.
    pub(super) alarming: bool,
}

impl Line {
    fn new() -> Self {
        Self {
            cells: Vec::new(),
            numbers: Vec::new(),
            details: Vec::new(),
            actions: Vec::new(),
            alarming: false,
        }
    }

    fn text(mut self, text: &str) -> Self {
        self.cells.push(plain(text));
        self.numbers.push(None);
        self
    }

    fn number(mut self, number: impl Into<u128>, text: String) -> Self {
        self.cells.push(text);
        self.numbers.push(Some(number.into()));
        self
    }

    fn lasting(self, time: Option<Duration>) -> Self {
        let micros = time.map_or(0, |time| time.as_micros());
        self.number(micros, spoken_or_unknown(time))
    }

    fn detail(mut self, name: &'static str, text: impl AsRef<str>) -> Self {
        if !text.as_ref().is_empty() {
            self.details.push((name, plain(text.as_ref())));
        }
        self
    }

    fn offer(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }

    /// What it is known by when the rows are read anew.
    pub(super) fn key(&self) -> &str {
        self.cells.first().map_or("", String::as_str)
    }

    pub(super) fn matches(&self, filter: &str) -> bool {
        let filter = filter.to_lowercase();
        let mut cells = self.cells.iter();
        filter.is_empty() || cells.any(|cell| cell.to_lowercase().contains(&filter))
    }

    /// What it is sorted by in a column.
    pub(super) fn rank(&self, column: usize) -> (u128, String) {
        match self.numbers.get(column).copied().flatten() {
            Some(number) => (number, String::new()),
            None => (
                0,
                self.cells
                    .get(column)
                    .map_or_else(String::new, |cell| cell.to_lowercase()),
            ),
        }
    }
}

/// The rows of a view, or why they could not be read.
pub(super) fn lines(view: View, seen: &Snapshot) -> Result<Vec<Line>, String> {
    fn each<T>(part: &Part<T>, line: impl Fn(&T) -> Line) -> Result<Vec<Line>, String> {
        part.as_ref()
            .map(|all| all.iter().map(line).collect())
            .map_err(Clone::clone)
    }
    match view {
        View::Queues => each(&seen.queues, queue),
        View::Waits => {
            let waiters = seen.waiters.as_ref().map_err(Clone::clone)?;
            Ok(waiters.iter().map(|waiter| wait(waiter, waiters)).collect())
        }
        View::Locks => each(&seen.locks, |lock| {
            let shared = if lock.mode == LockMode::Shared {
                " (shared)"
            } else {
                ""
            };
            let who = lock
                .owner
                .as_deref()
                .or(lock.application.as_deref())
                .unwrap_or("-");
            let line = Line::new()
                .text(&format!("{}{shared}", lock.name))
                .text(who)
                .text(lock.username.as_deref().unwrap_or("-"))
                .number(of(lock.pid), told(lock.pid))
                .lasting(lock.held_for)
                .number(of(lock.fence), told(lock.fence))
                .detail("Lock", &lock.name)
                .detail("Namespace", lock.namespace.as_deref().unwrap_or_default())
                .detail(
                    "Application",
                    lock.application.as_deref().unwrap_or_default(),
                );
            // A key of another namespace would be taken for a name of this one.
            let ours = lock
                .namespace
                .as_ref()
                .is_none_or(|it| *it == seen.namespace);
            if ours {
                line.offer(Action::Terminate(lock.name.clone()))
            } else {
                line
            }
        }),
        View::Leases => each(&seen.leases, lease),
        View::Running => each(&seen.running, running),
        View::Schedules => each(&seen.tasks, |line| task(line, seen.at)),
        View::Limits => each(&seen.limits, limit),
        View::Ids => each(&seen.workers, |worker| {
            Line::new()
                .text(&worker.name)
                .number(of(Some(worker.worker)), worker.worker.to_string())
                .text(&worker.owner)
                .lasting(Some(worker.held_for))
                .lasting(Some(worker.remaining))
                .detail("Owner", &worker.owner)
        }),
    }
}

fn limit(limit: &LimitLevel) -> Line {
    let window = limit.window.map_or_else(String::new, |window| {
        format!("{} in {}", limit.used, spoken(window))
    });
    let mut line = Line::new()
        .text(&limit.key)
        .lasting(Some(limit.backlog))
        .number(limit.used.max(0).unsigned_abs(), window)
        .lasting(limit.blocked)
        .number(
            limit.reservations.max(0).unsigned_abs(),
            limit.reservations.to_string(),
        )
        .number(
            limit.decided.as_micros(),
            format!("{} ago", spoken(limit.decided)),
        )
        .detail("Key", &limit.key)
        .detail("Window before", limit.before.to_string());
    line.alarming = limit.blocked.is_some();
    let key = || limit.key.clone();
    let block = if limit.blocked.is_some() {
        Duration::ZERO
    } else {
        BLOCK
    };
    line.offer(Action::Reset(key()))
        .offer(Action::Block(key(), block))
}

fn lease(lease: &HeldLease) -> Line {
    let what = match lease.slot {
        0 => "lease".to_owned(),
        -1 => "leader".to_owned(),
        -2 => "mutex".to_owned(),
        slot => format!("permit {slot}"),
    };
    Line::new()
        .text(&lease.key)
        .text(&what)
        .text(&lease.owner)
        .lasting(Some(lease.held_for))
        .lasting(Some(lease.remaining))
        .text(&lease.data)
        .detail("Key", &lease.key)
        .detail("Holder", &lease.owner)
        .detail("Token", lease.fence.to_string())
        .detail("Data", &lease.data)
        .offer(Action::Release(lease.key.clone()))
}

fn running(job: &RunningJob) -> Line {
    Line::new()
        .number(of(Some(job.id)), job.id.to_string())
        .text(&job.queue)
        .text(&job.name)
        .text(&job.worker)
        .lasting(Some(job.runs_for))
        .lasting(Some(job.lease_left))
        .detail("Job", job.id.to_string())
        .detail("Attempt", job.attempt.to_string())
        .detail("Worker", &job.worker)
        .offer(Action::Cancel(job.queue.clone(), job.id))
}

fn of(number: Option<i64>) -> u64 {
    number.unwrap_or_default().max(0).unsigned_abs()
}

fn told(number: Option<i64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}
