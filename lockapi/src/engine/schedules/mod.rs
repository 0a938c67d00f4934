//! The schedulers of a process.

mod handle;

pub(super) use handle::open;

use super::piles::{ALONE, Queued};
use crate::schedule::{
    Expire, Fire, Look, ReadRuns, ReadTasks, Release, RemoveTask, RunNow, SetTask, SweepRuns,
    SwitchTask,
};

/// Declares how operations of schedulers travel: after those of queues, each alone.
macro_rules! queued {
    ($($turn:literal $operation:ident $name:literal $repeatable:literal;)*) => {
        $(impl Queued for $operation {
            const TURN: u8 = $turn;
            const NAME: &'static str = $name;
            const REPEATABLE: bool = $repeatable;

            fn weight(&self) -> usize {
                ALONE
            }
        })*
    };
}

queued! {
    20 Look "tick" true;
    21 Expire "tick" true;
    22 Release "tick" true;
    23 Fire "tick" false;
    24 RunNow "run_now" false;
    25 SetTask "set" true;
    26 SwitchTask "set_enabled" true;
    27 RemoveTask "remove" false;
    28 ReadTasks "tasks" true;
    29 ReadRuns "runs" true;
    30 SweepRuns "sweep" true;
}
