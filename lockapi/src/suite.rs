//! What the conformance suite sees of the inside: operations, their rows and their meaning in memory.
//!
//! It is no public interface, and changes with any version.

/// See [`crate::lease`].
pub mod lease {
    pub use crate::lease::manage::{Abandon, Sweep};
    pub use crate::lease::operations::{Acquire, Acquired, Check, Peek, Peeked, Release, Renew};
    pub use crate::lease::take::{Take, Taken};
}

/// See [`crate::mutex`].
pub mod mutex {
    pub use crate::mutex::check::Check;
    pub use crate::mutex::deadlock::DeadlockCheck;
    pub use crate::mutex::has_waiters::HasWaiters;
    pub use crate::mutex::in_transaction::{Timeouts, Tried, TryIn, WaitIn};
    pub use crate::mutex::interrupt::Interrupt;
    pub use crate::mutex::lock_request::{LockAnswer, LockRequest};
    pub use crate::mutex::marks::SweepMarks;
    pub use crate::mutex::session::{
        AsyncCommit, FlushTokens, MarkSession, MarkedSession, Ping, TOKENS_AT_RISK,
    };
    pub use crate::mutex::wait::Wait;
}

/// See [`crate::queue`].
pub mod queue {
    pub use crate::queue::HistorySums;
    pub use crate::queue::model::{GroupRule, Jobs, Sight};
    pub use crate::queue::operations::{
        Ack, AckWithResult, Admit, Admitted, Cancel, Cancelled, Claimed, CompleteAndClaim,
        CompletedAndClaimed, CountJobs, CountRunning, Counted, DELETED, DeadLetterRow, Discard,
        ExpireJobs, FOR_EVER, FailedAttempt, Floor, FoldHistory, HistoryKey, HistoryPart,
        HistoryPartKey, HoldKey, Keys, LimitRow, Limited, Name, NewJob, Purge, Push, PushKeyed,
        PushTogether, QueuePlace, ReadDeadLetters, ReadDeliveryState, ReadQueueLimit, ReadResult,
        ReadUnhandled, RecordHistory, Redrive, Redriven, Report, RunningLevel, RunningPart,
        SearchBelowFloors, SearchRange, SearchResult, SetGroupLimit, SetGroups, SetNamePaused,
        SetPaused, SetQueueLimit, Settle, SweepHistory, SweepProgress, SweepQueues, SweepResults,
        Take, UnhandledRow,
    };
}

/// See [`crate::limit`].
pub mod limit {
    pub use crate::limit::charge::{Charge, ChargeLine};
    pub use crate::limit::level::Level;
    pub use crate::limit::manage::{Block, CurrentLevel, Ensure, ReadLevel, Refund, Reset, Sweep};
    pub use crate::limit::raw_decision::{Outcome, RawDecision};
    pub use crate::limit::reservation::{EndReservation, Expire};
    pub use crate::limit::take::Take;
}

/// See [`crate::idempotency`].
pub mod idempotency {
    pub use crate::idempotency::operations::{
        CompleteAnswer, RecallAnswer, Recalled, RecordAnswer, SweepAnswers,
    };
}

/// See [`crate::id`].
pub mod id {
    pub use crate::id::operations::{
        ClaimWorker, ClaimedWorker, NextBlock, ReleaseWorker, RenewWorker, RenewedWorker,
    };
}

/// See [`crate::schedule`].
pub mod schedule {
    pub use crate::schedule::model::Schedules;
    pub use crate::schedule::operations::{
        Due, DueTasks, Expire, Fire, FireDecision, Fired, Name, ReadDueTasks, ReadRuns, ReadTasks,
        Release, RemoveTask, Request, RunNow, RunRow, SetTask, SweepRuns, SwitchTask, TaskName,
        TaskRow, Tasks,
    };
}

/// See [`crate::admin`].
pub mod admin {
    pub use crate::admin::examine::{
        ExamineIndexes, ExamineLimits, ExamineServer, ExamineSessions, ExamineSpace, ExamineTables,
        ExamineWork, ListAcquired, ListObjects, ReadClock,
    };
    pub use crate::admin::model::Notes;
    pub use crate::admin::operations::{
        Blocker, CancelJobs, Cancelled, EditJobs, Edited, ForceRelease, JobMatch, LeasePage,
        LeasePlace, ListAudit, ListJobs, ListLeases, ListLimits, ListLocks, ListPausedNames,
        ListQueues, ListRunning, ListSchedulers, ListWaits, ListWorkers, LockHolder, Note,
        NotedLock, ReadHistory, ReadJob, Record, SweepNotes, Terminate, Unblock,
    };
}

/// See [`crate::table`].
pub mod table {
    pub use crate::table::operations::{BackendPid, IsInTransaction, LockTable, SetLockTimeout};
}

/// See [`crate::engine`].
pub mod engine {
    pub use crate::engine::cancel::{Cancelled, Process};
    pub use crate::engine::epoch::EnterEpoch;
    pub use crate::engine::notify::{Notify, listen};
    pub use crate::engine::probe::{BEGIN as BEGIN_PROBE, Lock, Marker, SessionIdentity, Started};
    pub use crate::engine::session_settings::{ServerKind, ServerState, SessionSettings};
}

/// See [`crate::memory`].
pub mod memory {
    pub use crate::memory::model::ModelState;
}

/// See [`crate::driver`].
pub mod driver {
    pub use crate::driver::call::Operation;
    pub use crate::driver::hosts::IsPrimary;
    pub use crate::driver::pooled::{RestoreSettings, SaveSettings, Settings};
}

/// What a simulation of whole programs in one thread is made of.
pub mod simulation {
    pub use crate::engine::DrivenClock;
    pub use crate::memory::simulation::{Request, Server, connect};
    pub use crate::mutex::wait::time_limit;
    pub use crate::random::seed;
}
