//! Every statement of the library, as the server understands it.

use lockapi::driver::{Statement, Type};
use lockapi::suite::admin::{
    CancelJobs, EditJobs, ExamineIndexes, ExamineLimits, ExamineServer, ExamineSessions,
    ExamineSpace, ExamineTables, ExamineWork, ForceRelease, ListAcquired, ListAudit, ListJobs,
    ListLeases, ListLimits, ListLocks, ListObjects, ListPausedNames, ListQueues, ListRunning,
    ListSchedulers, ListWaits, ListWorkers, Note, ReadClock, ReadHistory, ReadJob, Record,
    SweepNotes, Terminate, Unblock,
};
use lockapi::suite::driver::{IsPrimary, Operation, RestoreSettings, SaveSettings};
use lockapi::suite::engine::{Cancelled, EnterEpoch, Marker, Notify, SessionSettings, Started};
use lockapi::suite::id::{ClaimWorker, NextBlock, ReleaseWorker, RenewWorker};
use lockapi::suite::idempotency::{CompleteAnswer, RecallAnswer, RecordAnswer, SweepAnswers};
use lockapi::suite::lease;
use lockapi::suite::lease::{Abandon, Acquire, Peek, Release, Renew, Sweep, Take};
use lockapi::suite::limit;
use lockapi::suite::limit::{Block, Charge, Ensure, ReadLevel, Refund, Reset};
use lockapi::suite::mutex;
use lockapi::suite::mutex::{
    AsyncCommit, DeadlockCheck, FlushTokens, HasWaiters, Interrupt, LockRequest, MarkSession, Ping,
    SweepMarks, Timeouts, TryIn, Wait, WaitIn,
};
use lockapi::suite::queue;
use lockapi::suite::schedule;
use lockapi::suite::table::{BackendPid, IsInTransaction, LockTable, SetLockTimeout};
use postgres::{Client, NoTls};

/// Those that do for some batches.
fn simple() -> Vec<Statement> {
    let all = [
        Acquire::SIMPLE,
        Renew::SIMPLE,
        Release::SIMPLE,
        limit::Take::SIMPLE,
        queue::Push::SIMPLE,
        queue::CompleteAndClaim::SIMPLE,
        LockRequest::SIMPLE,
    ];
    all.into_iter().flatten().collect()
}

pub(super) fn statements() -> Vec<Statement> {
    let mut all = simple();
    all.extend(vec![
        Acquire::STATEMENT,
        Renew::STATEMENT,
        Release::STATEMENT,
        Take::STATEMENT,
        Peek::STATEMENT,
        lease::Check::STATEMENT,
        Sweep::STATEMENT,
        Abandon::STATEMENT,
        SweepMarks::STATEMENT,
        limit::Take::STATEMENT,
        Charge::STATEMENT,
        Ensure::STATEMENT,
        ReadLevel::STATEMENT,
        Refund::STATEMENT,
        Reset::STATEMENT,
        Block::STATEMENT,
        limit::EndReservation::STATEMENT,
        limit::Expire::STATEMENT,
        limit::Sweep::STATEMENT,
        RecallAnswer::STATEMENT,
        RecordAnswer::STATEMENT,
        CompleteAnswer::STATEMENT,
        SweepAnswers::STATEMENT,
        ClaimWorker::STATEMENT,
        RenewWorker::STATEMENT,
        ReleaseWorker::STATEMENT,
        NextBlock::STATEMENT,
        queue::Push::STATEMENT,
        queue::PushKeyed::STATEMENT,
        queue::HoldKey::STATEMENT,
        queue::CompleteAndClaim::STATEMENT,
        queue::Ack::STATEMENT,
        queue::Settle::STATEMENT,
        queue::Take::STATEMENT,
        queue::Cancel::STATEMENT,
        queue::Purge::STATEMENT,
        queue::Redrive::STATEMENT,
        queue::Discard::STATEMENT,
        queue::SetPaused::STATEMENT,
        queue::SetNamePaused::STATEMENT,
        queue::SetQueueLimit::STATEMENT,
        queue::ReadQueueLimit::STATEMENT,
        queue::Admit::STATEMENT,
        queue::SetGroups::STATEMENT,
        queue::SetGroupLimit::STATEMENT,
        queue::SearchBelowFloors::STATEMENT,
        queue::CountJobs::STATEMENT,
        queue::CountRunning::STATEMENT,
        queue::ReadDeadLetters::STATEMENT,
        queue::SweepQueues::STATEMENT,
        queue::ExpireJobs::STATEMENT,
        queue::ReadDeliveryState::STATEMENT,
        queue::Report::STATEMENT,
        queue::SweepProgress::STATEMENT,
        queue::AckWithResult::STATEMENT,
        queue::ReadResult::STATEMENT,
        queue::SweepResults::STATEMENT,
        queue::ReadUnhandled::STATEMENT,
        LockRequest::STATEMENT,
        Wait::STATEMENT,
        HasWaiters::STATEMENT,
        DeadlockCheck::STATEMENT,
        MarkSession::STATEMENT,
        AsyncCommit::STATEMENT,
        Ping::STATEMENT,
        FlushTokens::STATEMENT,
        Interrupt::STATEMENT,
        mutex::Check::STATEMENT,
        TryIn::STATEMENT,
        WaitIn::STATEMENT,
        Timeouts::STATEMENT,
        SessionSettings::STATEMENT,
        EnterEpoch::STATEMENT,
        IsPrimary::STATEMENT,
        Marker::STATEMENT,
        Started::STATEMENT,
        Cancelled::STATEMENT,
        Notify::STATEMENT,
        SaveSettings::STATEMENT,
        RestoreSettings::STATEMENT,
        schedule::ReadDueTasks::STATEMENT,
        schedule::Fire::STATEMENT,
        schedule::RunNow::STATEMENT,
        schedule::Expire::STATEMENT,
        schedule::Release::STATEMENT,
        schedule::SetTask::STATEMENT,
        schedule::SwitchTask::STATEMENT,
        schedule::RemoveTask::STATEMENT,
        schedule::ReadTasks::STATEMENT,
        schedule::ReadRuns::STATEMENT,
        schedule::SweepRuns::STATEMENT,
        LockTable::STATEMENT,
        SetLockTimeout::STATEMENT,
        IsInTransaction::STATEMENT,
        BackendPid::STATEMENT,
    ]);
    all.extend(of_operators());
    all
}

/// Those of inspectors, operators and the doctor, and those of histories.
fn of_operators() -> Vec<Statement> {
    vec![
        Note::STATEMENT,
        SweepNotes::STATEMENT,
        ListLocks::STATEMENT,
        ListWaits::STATEMENT,
        ListLeases::STATEMENT,
        ListRunning::STATEMENT,
        ListAudit::STATEMENT,
        ListJobs::STATEMENT,
        ReadJob::STATEMENT,
        ListQueues::STATEMENT,
        ExamineServer::STATEMENT,
        ExamineSessions::STATEMENT,
        ExamineTables::STATEMENT,
        ExamineWork::STATEMENT,
        ExamineSpace::STATEMENT,
        ExamineIndexes::STATEMENT,
        ExamineLimits::STATEMENT,
        ListAcquired::STATEMENT,
        ListObjects::STATEMENT,
        ReadClock::STATEMENT,
        ListSchedulers::STATEMENT,
        ListPausedNames::STATEMENT,
        ReadHistory::STATEMENT,
        queue::RecordHistory::STATEMENT,
        queue::FoldHistory::STATEMENT,
        queue::SweepHistory::STATEMENT,
        ListLimits::STATEMENT,
        ListWorkers::STATEMENT,
        ForceRelease::STATEMENT,
        Record::STATEMENT,
        Terminate::STATEMENT,
        CancelJobs::STATEMENT,
        EditJobs::STATEMENT,
        Unblock::STATEMENT,
    ]
}

#[test]
fn prepare_with_the_types_that_are_declared() {
    let (url, _runtime) = crate::server();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    for statement in statements() {
        let prepared = match client.prepare(statement.sql) {
            Ok(prepared) => prepared,
            Err(error) => panic!("{}: {error:?}", statement.name),
        };
        let oids = |types: &[Type]| types.iter().map(|of| of.oid()).collect::<Vec<_>>();
        let params: Vec<_> = prepared
            .params()
            .iter()
            .map(postgres::types::Type::oid)
            .collect();
        assert_eq!(
            params,
            oids(statement.params),
            "parameters of {}",
            statement.name
        );
        let columns = prepared.columns().iter();
        let columns: Vec<_> = columns.map(|column| column.type_().oid()).collect();
        assert_eq!(
            columns,
            oids(statement.columns),
            "columns of {}",
            statement.name
        );
    }
}

#[test]
fn are_all_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockapi/src");
    let listed: Vec<_> = statements().iter().map(|statement| statement.sql).collect();
    let mut unlisted = Vec::new();
    let modules = [
        "engine",
        "id",
        "lease",
        "limit",
        "mutex",
        "queue/operations",
        "schedule/operations",
        "driver",
        "admin/operations",
        "admin/examine",
        "table",
    ];
    for module in modules {
        for file in std::fs::read_dir(format!("{folder}/{module}")).expect("the sources") {
            let path = file.expect("a file").path();
            if path.extension().is_some_and(|ending| ending == "sql") {
                let sql = std::fs::read_to_string(&path).expect("a statement");
                if !listed.contains(&&*sql) {
                    unlisted.push(path.file_stem().expect("a name").display().to_string());
                }
            }
        }
    }
    unlisted.sort();
    let scripts = [
        "begin_first",
        "begin_write",
        "check_transaction",
        "commit",
        "listen",
        "local_search_path",
        "release_savepoint",
        "rollback",
        "rollback_to_savepoint",
        "savepoint",
        "search_path",
        "terminate",
        "unlisten",
    ];
    assert_eq!(unlisted, scripts);
}

/// A day is as long as the time zone of the session says.
#[test]
fn count_hours_and_not_days() {
    for statement in statements() {
        let intervals = statement.sql.split("interval '").skip(1);
        for interval in intervals.filter_map(|rest| rest.split('\'').next()) {
            let exact = ["microsecond", "second", "minute", "hour"];
            let exact = exact.iter().any(|unit| interval.contains(unit));
            assert!(exact, "{interval} in {}", statement.name);
        }
    }
}
