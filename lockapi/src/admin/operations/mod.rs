//! What inspectors, operators and the notes of a program do to the database.

mod inspect;
mod note;
mod operate;

pub use inspect::{ListAudit, ListLeases, ListLocks, ListRunning, ListWaits};
pub use note::{Note, Noted, SweepNotes};
#[cfg(feature = "suite")]
pub use operate::Struck;
pub use operate::{Blocker, CancelJob, ForceRelease, Terminate, Unblock};
