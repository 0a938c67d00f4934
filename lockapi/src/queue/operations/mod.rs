//! What queues do to the database.

mod complete_and_claim;
mod count_running;
mod dead_letters;
mod delivery_state;
mod expire;
mod groups;
mod history;
mod hold_key;
mod limit;
mod manage;
mod push;
mod redrive;
mod report;
mod result;
mod search_below_floors;
mod settle;
mod take;
mod unhandled;

pub use complete_and_claim::{Claimed, CompleteAndClaim, CompletedAndClaimed, Floor, Limited};
pub use count_running::{CountRunning, RunningLevel, RunningPart};
pub(crate) use dead_letters::attempts;
pub use dead_letters::{DeadLetterRow, FailedAttempt, ReadDeadLetters};
pub use delivery_state::ReadDeliveryState;
pub use expire::ExpireJobs;
pub(crate) use groups::NEVER;
pub use groups::{Admit, Admitted, SetGroupLimit, SetGroups};
pub use history::{
    FoldHistory, HistoryKey, HistoryPart, HistoryPartKey, RecordHistory, SweepHistory,
};
pub use hold_key::HoldKey;
pub use limit::{LimitRow, ReadQueueLimit, SetQueueLimit};
pub use manage::{
    Cancel, Cancelled, CountJobs, Counted, Discard, Name, Purge, QueuePlace, SetNamePaused,
    SetPaused, SweepQueues,
};
pub use push::{Keys, NewJob, Push, PushKeyed, PushTogether};
pub use redrive::Redrive;
#[cfg(feature = "suite")]
pub use redrive::Redriven;
pub use report::{Report, SweepProgress};
pub use result::{AckWithResult, ReadResult, SweepResults};
pub use search_below_floors::{SearchBelowFloors, SearchRange, SearchResult};
pub use settle::{Ack, DELETED, FOR_EVER, Settle};
pub use take::Take;
pub use unhandled::{ReadUnhandled, UnhandledRow};
