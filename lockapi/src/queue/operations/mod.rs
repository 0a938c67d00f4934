//! What queues do to the database.

mod complete_and_claim;
mod dead_letters;
mod expire;
mod groups;
mod hold_key;
mod look_back;
mod manage;
mod push;
mod redrive;
mod settle;
mod standing;
mod take;
mod unhandled;

pub use complete_and_claim::{Claimed, CompleteAndClaim, CompletedAndClaimed, Floor};
pub(crate) use dead_letters::attempts;
pub use dead_letters::{DeadRow, FailedAttempt, ReadDead};
pub use expire::ExpireJobs;
pub(crate) use groups::NEVER;
pub use groups::{Admit, Admitted, SetGroupLimit, SetGroups};
pub use hold_key::HoldKey;
pub use look_back::{LookBack, Part, Seen};
#[cfg(feature = "suite")]
pub use manage::Cancelled;
pub use manage::{Cancel, CountJobs, Counted, Discard, Name, Purge, SetPaused, SweepQueues};
pub use push::{Keys, NewJob, Push, PushKeyed, PushTogether};
pub use redrive::{Redrive, Redriven};
pub use settle::{Ack, DELETED, FOR_EVER, Settle};
pub use standing::ReadStanding;
pub use take::Take;
pub use unhandled::{ReadUnhandled, UnhandledRow};
