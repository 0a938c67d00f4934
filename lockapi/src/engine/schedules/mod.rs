//! The schedulers of a process.

mod handle;

pub(super) use handle::open;

use super::batcher::{ALONE, Queued};
use crate::schedule::{
    Expire, Fire, ReadDueTasks, ReadRuns, ReadTasks, Release, RemoveTask, RunNow, SetTask,
    SweepRuns, SwitchTask,
};

/// Declares how operations of schedulers are batched: each is sent alone.
macro_rules! queued {
    ($($operation:ident $name:literal $repeatable:literal;)*) => {
        $(impl Queued for $operation {
            const NAME: &'static str = $name;
            const REPEATABLE: bool = $repeatable;

            fn weight(&self) -> usize {
                ALONE
            }
        })*
    };
}

queued! {
    ReadDueTasks "tick" true;
    Expire "tick" true;
    Release "tick" true;
    Fire "tick" false;
    RunNow "run_now" false;
    SetTask "set" true;
    SwitchTask "set_enabled" true;
    RemoveTask "remove" false;
    ReadTasks "tasks" true;
    ReadRuns "runs" true;
    SweepRuns "sweep" true;
}
