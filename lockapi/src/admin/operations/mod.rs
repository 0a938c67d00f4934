//! What inspectors, operators and the notes of a program do to the database.

mod inspect;
mod note;
mod operate;

pub use inspect::{ListAudit, ListLeases, ListLocks, ListRunning, ListWaits};
pub use note::{Note, Noted, SweepNotes};
pub use operate::{Blocker, CancelJob, ForceRelease, Struck, Terminate, Unblock};
