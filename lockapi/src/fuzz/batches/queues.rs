//! Requests of queues and schedules.

use super::{Decoder, TICKET, of, text};
use crate::queue::operations as queue;
use crate::queue::{Headers, ResultValue, Unique};
use crate::schedule::operations as schedule;

pub(super) fn queues() -> Vec<Decoder> {
    let ack = || queue::Ack {
        ticket: TICKET,
        keep: 1,
    };
    let keyed = || queue::PushKeyed {
        namespace: text(),
        queue: text(),
        job: job(),
        keys: queue::Keys {
            unique_key: text(),
            unique: Unique::Skip,
            idempotency_key: text(),
        },
        topic: None,
    };
    vec![
        of(queue::Push {
            namespace: text(),
            queue: text(),
            jobs: vec![job(), job()],
            topic: None,
        }),
        of(keyed()),
        of(queue::PushTogether(vec![keyed(), keyed()])),
        of(queue::CompleteAndClaim {
            acks: vec![ack(), ack()],
            namespace: text(),
            queue: text(),
            most: 1,
            lease: 2,
            priorities: vec![(0, (0, 0))],
            worker: text(),
            claim: 1,
            lost: Vec::new(),
            names: Vec::new(),
            bytes: 1,
            keep_dead: 1,
            limited: false,
        }),
        of(ack()),
        of(queue::Settle {
            ticket: TICKET,
            kind: 0,
            time: 1,
            error: text(),
            keep: 1,
        }),
        of(queue::Take {
            namespace: text(),
            queue: text(),
            most: 1,
            priorities: vec![0],
            worker: text(),
            keep: 1,
        }),
    ]
}

pub(super) fn paused_queues() -> Vec<Decoder> {
    let name = || queue::Name {
        namespace: text(),
        queue: text(),
    };
    vec![
        of(queue::SetPaused {
            name: name(),
            paused: true,
            time: 1,
            topic: 1,
        }),
        of(queue::SetNamePaused {
            name: name(),
            job: text(),
            paused: true,
            time: 1,
            topic: 1,
        }),
        of(queue::SetQueueLimit {
            name: name(),
            limit: Some(queue::LimitRow::default()),
            topics: vec![1],
        }),
        of(queue::ReadQueueLimit { name: name() }),
    ]
}

pub(super) fn results() -> Vec<Decoder> {
    vec![
        of(queue::AckWithResult {
            ack: queue::Ack {
                ticket: TICKET,
                keep: 1,
            },
            result: ResultValue::stored(text()),
            retention: 1,
        }),
        of(queue::ReadResult {
            name: queue::Name {
                namespace: text(),
                queue: text(),
            },
            id: 1,
        }),
        of(queue::SweepResults { after: 1, most: 1 }),
    ]
}

pub(super) fn managed_queues() -> Vec<Decoder> {
    let name = || queue::Name {
        namespace: text(),
        queue: text(),
    };
    vec![
        of(queue::Cancel {
            name: name(),
            ids: vec![1],
            keep: 1,
        }),
        of(queue::Purge {
            name: name(),
            after: queue::Purge::FIRST,
            most: 1,
        }),
        of(queue::Redrive {
            name: name(),
            ids: vec![1],
            after: 0,
            most: 1,
            topic: 1,
        }),
        of(queue::Discard {
            name: name(),
            ids: vec![1],
            after: 0,
            most: 1,
        }),
        of(queue::SearchBelowFloors {
            name: name(),
            names: Vec::new(),
            priorities: vec![(0, 0, (0, 0))],
            lost: Vec::new(),
        }),
        of(queue::CountJobs {
            name: name(),
            most: 1,
        }),
        of(queue::CountRunning {
            name: name(),
            priorities: vec![(0, (0, 0))],
            most: 1,
        }),
        of(queue::ReadDeadLetters {
            name: name(),
            after: 0,
            most: 1,
        }),
        of(queue::Admit {
            name: name(),
            groups: 1,
        }),
        of(queue::SetGroups {
            name: name(),
            limit: queue::LimitRow::default(),
            ordered: false,
            topic: 1,
        }),
        of(queue::SetGroupLimit {
            name: name(),
            group: text(),
            limit: None,
            topic: 1,
        }),
        of(queue::SweepQueues {
            namespace: text(),
            from: (0, 0),
            most: 1,
        }),
        of(queue::ExpireJobs {
            namespace: text(),
            after: (0, 0),
            most: 1,
            bytes: 1,
            retentions: Vec::new(),
            keep_dead: 1,
        }),
        of(queue::HoldKey {
            name: name(),
            key: text(),
        }),
        of(queue::Report {
            ticket: TICKET,
            millionths: 1,
            note: text(),
        }),
        of(queue::SweepProgress { after: 1, most: 1 }),
        of(queue::ReadDeliveryState { ticket: TICKET }),
        of(queue::ReadUnhandled {
            name: name(),
            names: Vec::new(),
            most: 1,
        }),
    ]
}

/// Those of histories.
pub(super) fn histories() -> Vec<Decoder> {
    vec![
        of(queue::RecordHistory {
            namespace: text(),
            taken_at: 1,
            part: 1,
            parts: vec![queue::HistoryPart {
                queue: text(),
                minute: 1,
                name: text(),
                sums: crate::queue::HistorySums::default(),
            }],
        }),
        of(queue::FoldHistory {
            after: Default::default(),
            most: 1,
        }),
        of(queue::SweepHistory {
            after: Default::default(),
            most: 1,
        }),
    ]
}

fn job() -> queue::NewJob {
    queue::NewJob {
        name: text(),
        payload: text(),
        priority: 0,
        at: 0,
        delay: 0,
        max_attempts: 1,
        ttl: 0,
        group: text(),
        headers: Headers::default(),
    }
}

pub(super) fn schedules() -> Vec<Decoder> {
    let name = || schedule::Name {
        namespace: text(),
        scheduler: text(),
    };
    let task = || schedule::TaskName {
        of: name(),
        task: text(),
    };
    vec![
        of(schedule::ReadDueTasks {
            name: name(),
            most: 1,
            behind: None,
        }),
        of(schedule::Fire {
            name: name(),
            requests: Vec::new(),
            node: text(),
            topic: 1,
        }),
        of(schedule::RunNow {
            name: task(),
            version: 1,
            node: text(),
            topic: 1,
        }),
        of(schedule::Expire(name())),
        of(schedule::Release {
            name: name(),
            topic: 1,
        }),
        of(schedule::SetTask {
            name: task(),
            row: schedule::TaskRow {
                name: text(),
                version: 1,
                next: None,
                now: 1,
                enabled: true,
                recurrence: crate::schedule::Recurrence::Every(1),
                timeout: 0,
                misfire: 0,
                misfire_most: 0,
                overlap: 0,
                job: job(),
                last: None,
            },
            topic: 1,
        }),
        of(schedule::SwitchTask {
            name: task(),
            enabled: true,
            next: None,
            version: 1,
            topic: 1,
        }),
        of(schedule::RemoveTask {
            task: task(),
            again: false,
        }),
        of(schedule::ReadTasks {
            name: name(),
            task: text(),
            after: text(),
            most: 1,
        }),
        of(schedule::ReadRuns {
            name: task(),
            before: 1,
            most: 1,
        }),
        of(schedule::SweepRuns {
            name: name(),
            keep: 1,
            most: 1,
            from: (text(), 1),
        }),
    ]
}
