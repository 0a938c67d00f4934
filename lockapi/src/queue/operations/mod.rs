//! What queues do to the database.

mod look_back;
mod manage;
mod push;
mod redrive;
mod settle;
mod take;
mod turn;

pub use look_back::{LookBack, Seen};
pub use manage::{
    Cancel, CountJobs, Counted, DeadRow, Discard, Name, Purge, ReadDead, SetPaused, SweepQueue,
};
pub use push::{Keys, NewJob, Push, PushKeyed, PushTogether};
pub use redrive::{Redrive, Redriven};
pub use settle::{Ack, Settle};
pub use take::Take;
pub use turn::{Claimed, Floor, Turn, Turned};
