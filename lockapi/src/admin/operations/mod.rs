//! What inspectors, operators and the notes of a program do to the database.

mod edit;
mod history;
mod inspect;
mod jobs;
mod levels;
mod note;
mod operate;

pub(crate) use edit::Edit;
pub use edit::{EditJobs, Edited};
pub use history::ReadHistory;
#[cfg(feature = "suite")]
pub use inspect::{LeasePage, LeasePlace};
pub use inspect::{ListAudit, ListLeases, ListLocks, ListRunning, ListWaits};
pub use jobs::{ListJobs, ListPausedNames, ListQueues, ListSchedulers, ReadJob};
pub use levels::{ListLimits, ListWorkers};
pub use note::{Note, NotedLock, SweepNotes};
#[cfg(feature = "suite")]
pub use operate::Cancelled;
#[cfg(feature = "suite")]
pub use operate::LockHolder;
pub use operate::{Blocker, CancelJobs, ForceRelease, JobMatch, Record, Terminate, Unblock};
