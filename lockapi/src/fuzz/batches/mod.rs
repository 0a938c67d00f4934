//! A request of every operation, and its decoder without the type.

mod queues;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::admin::JobEdit;
use crate::admin::operations as admin;
use crate::driver::call::Operation;
use crate::driver::{Rows, Type};
use crate::engine::{cancel, epoch, notify, probe, session_settings};
use crate::error::Failure;
use crate::id::operations as id;
use crate::idempotency::operations as idempotency;
use crate::lease::operations as lease;
use crate::limit::{Quota, charge, manage, reservation, take as limit_take};
use crate::memory::ModelState;
use crate::mutex::lock_request::{LockMode, LockRequest};
use crate::queue::Ticket;
use crate::queue::operations as queue;
use crate::table::TableMode;
use crate::table::operations as table;
use crate::{LockId, driver, migrate, mutex};

/// The decoder of an operation.
pub(super) struct Decoder {
    pub(super) name: &'static str,
    pub(super) columns: &'static [Type],
    pub(super) read: Read,
    /// What the model answers to two requests on an empty database.
    pub(super) rows: Rows,
}

/// Reads rows as the answer to so many requests.
type Read = Box<dyn Fn(usize, Rows) -> Result<(), Failure>>;

fn of<O: Operation>(request: O) -> Decoder {
    let two = [request.clone(), request.clone()];
    let rows = O::model(&two, &mut ModelState::default(), 1);
    Decoder {
        name: O::STATEMENT.name,
        columns: O::STATEMENT.columns,
        rows: rows.unwrap_or_default(),
        read: Box::new(move |requests, rows| {
            let batch = vec![request.clone(); requests];
            O::decode(&batch, rows).map(drop)
        }),
    }
}

pub(super) fn decoders() -> Vec<Decoder> {
    let mut all = locks();
    all.extend(leases());
    all.extend(limits());
    all.extend(answers());
    all.extend(queues::queues());
    all.extend(queues::managed_queues());
    all.extend(queues::histories());
    all.extend(queues::paused_queues());
    all.extend(queues::results());
    all.extend(queues::schedules());
    all.extend(inspection());
    all.extend(connections());
    all
}

fn text() -> String {
    "text".to_owned()
}

fn answers() -> Vec<Decoder> {
    let record = || idempotency::RecordAnswer {
        namespace: text(),
        key: text(),
        fence: 1,
        fingerprint: vec![1],
        answer: vec![2],
        retention: 3,
    };
    vec![
        of(idempotency::RecallAnswer {
            namespace: text(),
            key: text(),
        }),
        of(record()),
        of(idempotency::CompleteAnswer {
            lease: text(),
            slot: 1,
            record: record(),
        }),
        of(idempotency::SweepAnswers {
            after: (text(), text()),
            most: 1,
        }),
    ]
}

fn slots() -> Arc<[i64]> {
    Arc::new([1, 2])
}

const LOCK: LockId = LockId {
    key: 1,
    pair: false,
};

const TICKET: Ticket = Ticket { id: 1, token: 2 };

fn locks() -> Vec<Decoder> {
    vec![
        of(LockRequest {
            lock: LOCK,
            mode: LockMode::Exclusive,
            release: false,
            session: 1,
        }),
        of(mutex::wait::Wait {
            lock: LOCK,
            mode: LockMode::Exclusive,
            millis: 1,
            session: 1,
        }),
        of(mutex::has_waiters::HasWaiters(LOCK)),
        of(mutex::deadlock::DeadlockCheck {
            lock: LOCK,
            holding: vec![LOCK],
            session: 1,
        }),
        of(mutex::session::MarkSession { mark: 1 }),
        of(mutex::session::AsyncCommit { session: 1 }),
        of(mutex::session::Ping { session: 1 }),
        of(mutex::session::FlushTokens),
        of(mutex::interrupt::Interrupt {
            mark: 1,
            process: 2,
        }),
        of(mutex::marks::SweepMarks {
            after: (text(), text()),
            most: 1,
        }),
        of(mutex::check::Check {
            session: 1,
            namespace: text(),
            key: text(),
            fence: 1,
        }),
        of(mutex::in_transaction::TryIn { lock: LOCK }),
        of(mutex::in_transaction::WaitIn {
            lock: LOCK,
            mark: text(),
        }),
        of(mutex::in_transaction::Timeouts {
            lock: text(),
            statement: text(),
            mark: text(),
        }),
        of(table::LockTable {
            schema: text(),
            table: text(),
            mode: TableMode::Share,
            no_wait: true,
            mark: text(),
        }),
        of(table::SetLockTimeout {
            timeout: text(),
            mark: text(),
        }),
        of(table::IsInTransaction { mark: text() }),
        of(table::BackendPid),
    ]
}

fn leases() -> Vec<Decoder> {
    vec![
        of(lease::Acquire {
            namespace: text(),
            key: text(),
            slot: 0,
            acquisition: 1,
            ttl: 2,
            hold: 3,
            owner: text(),
            data: text(),
        }),
        of(lease::Renew {
            namespace: text(),
            key: text(),
            slots: slots(),
            fence: 1,
            ttl: 2,
        }),
        of(lease::Release {
            namespace: text(),
            key: text(),
            slots: slots(),
            fence: 1,
        }),
        of(lease::Peek {
            namespace: text(),
            key: text(),
            slot: 0,
        }),
        of(lease::Check {
            namespace: text(),
            key: text(),
            slots: slots(),
            fence: 1,
        }),
        of(crate::lease::take::Take {
            namespace: text(),
            key: text(),
            permits: 3,
            count: 2,
            acquisition: 1,
            ttl: 2,
            hold: 3,
            owner: text(),
            data: text(),
        }),
        of(crate::lease::manage::Abandon {
            namespace: text(),
            key: text(),
            first: 1,
            last: 2,
            acquisition: 3,
            granted: 4,
        }),
        of(crate::lease::manage::Sweep {
            after: (text(), text(), 0),
            most: 1,
        }),
        of(id::ClaimWorker {
            namespace: text(),
            name: text(),
            worker_bits: 10,
            sequence_bits: 12,
            epoch: i64::MAX,
            token: 1,
            ttl: 2,
            reserve: 3,
            least: 4,
            owner: text(),
        }),
        of(id::RenewWorker {
            namespace: text(),
            name: text(),
            worker: 1,
            token: 2,
            ttl: 3,
            reserve: 4,
            least: 5,
        }),
        of(id::ReleaseWorker {
            namespace: text(),
            name: text(),
            worker: 1,
            token: 2,
            floor: 3,
        }),
        of(id::NextBlock {
            namespace: text(),
            name: text(),
            size: 1,
        }),
    ]
}

fn limits() -> Vec<Decoder> {
    let line = charge::ChargeLine {
        key: text(),
        quota: Quota::per_second(1),
        cost: 1,
        id: 0,
        ttl: 0,
    };
    vec![
        of(charge::Charge {
            namespace: text(),
            lines: vec![line.clone(), line],
            times: 1,
            relaxed: false,
        }),
        of(limit_take::Take {
            namespace: text(),
            key: text(),
            price: 1,
            depth: 2,
            times: 1,
            relaxed: false,
            read_first: false,
        }),
        of(manage::ReadLevel {
            namespace: text(),
            key: text(),
        }),
        of(manage::Ensure {
            namespace: text(),
            key: text(),
        }),
        of(manage::Refund {
            namespace: text(),
            key: text(),
            price: 1,
            window: 2,
            at: 3,
        }),
        of(manage::Reset {
            namespace: text(),
            key: text(),
        }),
        of(manage::Block {
            namespace: text(),
            key: text(),
            time: 1,
        }),
        of(manage::Sweep {
            after: (text(), text()),
            most: 1,
        }),
        of(reservation::EndReservation {
            namespace: text(),
            key: text(),
            id: 1,
            price: 2,
        }),
        of(reservation::Expire {
            namespace: text(),
            key: text(),
        }),
    ]
}

#[allow(clippy::too_many_lines, reason = "a line for each")]
fn inspection() -> Vec<Decoder> {
    let locks = || admin::ListLocks {
        namespace: None,
        lock: None,
        most: 1,
    };
    vec![
        of(locks()),
        of(admin::ListWaits {
            locks: locks(),
            statements: true,
        }),
        of(admin::ListLeases {
            namespace: None,
            key: None,
            after: (text(), text(), 0),
            examined: 1,
            most: 1,
        }),
        of(admin::ListRunning {
            namespace: None,
            queue: None,
            most: 1,
        }),
        of(admin::ListQueues {
            namespace: None,
            after: (text(), text()),
            most: 1,
        }),
        of(crate::admin::examine::ExamineServer),
        of(crate::admin::examine::ExamineSessions { age: 1 }),
        of(crate::admin::examine::ExamineTables),
        of(crate::admin::examine::ExamineWork { age: 1 }),
        of(crate::admin::examine::ExamineSpace),
        of(crate::admin::examine::ExamineIndexes),
        of(crate::admin::examine::ExamineLimits { block: 1 }),
        of(crate::admin::examine::ListAcquired { since: 1 }),
        of(crate::admin::examine::ListObjects),
        of(crate::admin::examine::ReadClock),
        of(admin::ListAudit {
            namespace: None,
            most: 1,
        }),
        of(admin::ListJobs {
            name: queue::Name {
                namespace: text(),
                queue: text(),
            },
            state: None,
            job: text(),
            group: text(),
            tag: text(),
            created: (0, i64::MAX),
            after: None,
            examined: 1,
            most: 1,
        }),
        of(admin::ReadJob {
            namespace: text(),
            id: 1,
            payload: true,
        }),
        of(admin::ListSchedulers {
            namespace: text(),
            after: text(),
            most: 1,
        }),
        of(admin::ReadHistory {
            name: queue::Name {
                namespace: text(),
                queue: text(),
            },
            job: None,
            hourly: true,
            most: 1,
        }),
        of(admin::ListPausedNames {
            name: queue::Name {
                namespace: text(),
                queue: text(),
            },
            most: 1,
            examined: 1,
        }),
        of(admin::ListLimits {
            namespace: text(),
            after: text(),
            most: 1,
            examined: 1,
        }),
        of(admin::ListWorkers {
            namespace: text(),
            most: 1,
        }),
        of(admin::Note {
            backend: 1,
            namespace: text(),
            owner: text(),
            names: Vec::new(),
            marks: Vec::new(),
            noted: Vec::new(),
            ended: Vec::new(),
            all: false,
        }),
        of(admin::SweepNotes { after: 0, most: 1 }),
        of(admin::ForceRelease {
            namespace: text(),
            key: text(),
            reason: text(),
        }),
        of(admin::Record {
            namespace: text(),
            action: text(),
            target: text(),
            reason: text(),
        }),
        of(admin::Terminate {
            namespace: text(),
            lock: LOCK,
            name: text(),
            reason: text(),
        }),
        of(admin::CancelJobs {
            name: queue::Name {
                namespace: text(),
                queue: text(),
            },
            ids: vec![1],
            only: None,
            running: true,
            reason: text(),
        }),
        of(admin::EditJobs {
            name: queue::Name {
                namespace: text(),
                queue: text(),
            },
            ids: vec![1],
            only: None,
            edit: JobEdit::new().now(),
            again: false,
            topic: 1,
            reason: text(),
        }),
        of(admin::Unblock {
            namespace: text(),
            pid: 1,
            cancel: Vec::new(),
            terminate: Vec::new(),
            reason: text(),
        }),
    ]
}

fn connections() -> Vec<Decoder> {
    vec![
        of(session_settings::SessionSettings {
            local: true,
            lock_timeout: text(),
            statement_timeout: text(),
            program: text(),
        }),
        of(cancel::Cancelled(Vec::new())),
        of(probe::Started),
        of(notify::Notify(1)),
        of(probe::Marker {
            marker: text(),
            lock: probe::Lock::None,
        }),
        of(epoch::EnterEpoch),
        of(driver::hosts::IsPrimary),
        of(driver::pooled::SaveSettings),
        of(driver::pooled::RestoreSettings(
            driver::pooled::Settings::default(),
        )),
        of(migrate::ReadSchemaState),
        of(migrate::Applied),
        of(migrate::ActAs { role: text() }),
        of(migrate::LockMigrations { key: 1 }),
        of(migrate::Record {
            version: 1,
            name: "name",
            checksum: text(),
        }),
    ]
}

/// The names of the statements in a folder of the sources.
fn names(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            names(&path, found);
        } else if path.extension() == Some("rs".as_ref()) && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).expect("a text");
            let statements = text
                .split("const STATEMENT: Statement = Statement {")
                .skip(1);
            found.extend(statements.filter_map(|it| Some(it.split('"').nth(1)?.to_owned())));
        }
    }
}

#[test]
fn every_operation_is_among_them() {
    let (mut found, source) = (BTreeSet::new(), concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    for entry in fs::read_dir(source).expect("a folder") {
        let path = entry.expect("a part").path();
        if path.is_dir() && !path.ends_with("fuzz") {
            names(&path, &mut found);
        }
    }
    let here: BTreeSet<_> = decoders().iter().map(|it| it.name.to_owned()).collect();
    let missing: Vec<_> = found.difference(&here).collect();
    assert!(found.len() > 100 && missing.is_empty(), "{missing:?}");
}
