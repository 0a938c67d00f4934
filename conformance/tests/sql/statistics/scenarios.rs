//! Each statement with values that concern a few rows, and the rows that it finds.

use lockapi::driver::Statement;
use lockapi::suite::admin::{
    CancelJobs, EditJobs, ForceRelease, ListJobs, ListLeases, ListLimits, ListPausedNames,
    ListQueues, ListRunning, ListSchedulers, ListWorkers, Note, ReadHistory, ReadJob, Record,
};
use lockapi::suite::driver::Operation;
use lockapi::suite::id::{ClaimWorker, NextBlock, ReleaseWorker, RenewWorker};
use lockapi::suite::idempotency::{CompleteAnswer, RecallAnswer, RecordAnswer, SweepAnswers};
use lockapi::suite::lease;
use lockapi::suite::lease::{Abandon, Acquire, Peek, Release, Renew};
use lockapi::suite::limit;
use lockapi::suite::limit::{Block, Charge, Ensure, ReadLevel, Refund, Reset};
use lockapi::suite::mutex;
use lockapi::suite::queue;
use lockapi::suite::schedule;

/// A statement with values that concern a handful of rows of the namespace `{ns}`.
pub(super) struct Scenario {
    pub(super) statement: Statement,
    pub(super) values: &'static str,
    /// Whether it is run on connections of the user as well, under whatever settings those have.
    pub(super) pooled: bool,
}

fn engine(statement: Statement, values: &'static str) -> Scenario {
    Scenario {
        statement,
        values,
        pooled: false,
    }
}

fn pooled(statement: Statement, values: &'static str) -> Scenario {
    Scenario {
        pooled: true,
        ..engine(statement, values)
    }
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = scenarios_of_locks();
    all.extend(scenarios_of_queues());
    all.extend(scenarios_of_operators());
    all.extend(scenarios_of_schedules());
    all
}

/// The statement that does for some batches.
fn simple<O: Operation>() -> Statement {
    O::SIMPLE.expect("a simple statement")
}

fn scenarios_of_locks() -> Vec<Scenario> {
    vec![
        engine(simple::<Acquire>(), "'{ns}', 'k1', 0, 11, 1000000, 0, 'o', 'd'"),
        engine(simple::<Acquire>(), "'{ns}', 'new', 0, 11, 1000000, 0, 'o', 'd'"),
        engine(simple::<Renew>(), "'{ns}', 'k1', 0, 1, 1000000"),
        engine(simple::<Release>(), "'{ns}', 'k1', 0, 1"),
        engine(simple::<limit::Take>(), "'{ns}', 'k1', 10, 1000, 1, false"),
        pooled(simple::<queue::Push>(), "'{ns}', 'work', 'name', '1', 0, 0, 0, 3, 0"),
        engine(
            Acquire::STATEMENT,
            "'{{ns},{ns},{ns}}', '{k1,k2,new}', '{0,0,0}', '{11,12,13}', '{1000000,1000000,1000000}', '{0,0,0}',
             '{o,o,o}', '{d,d,d}'",
        ),
        engine(
            Renew::STATEMENT,
            "'{{ns},{ns},{ns}}', '{k1,k2,k3}', '{0,0,0}', '{1,2,3}', '{1000000,1000000,1000000}'",
        ),
        engine(
            Release::STATEMENT,
            "'{{ns},{ns},{ns}}', '{k1,k2,k3}', '{0,0,0}', '{1,2,3}'",
        ),
        engine(
            lease::Take::STATEMENT,
            "'{{ns},{ns}}', '{k1,k4}', '{3,3}', '{2,1}', '{21,22}', '{1000000,1000000}', '{0,0}', '{o,o}', '{d,d}'",
        ),
        engine(
            Abandon::STATEMENT,
            "'{{ns},{ns}}', '{k1,k2}', '{0,0}', '{0,0}', '{1,2}', '{0,0}'",
        ),
        engine(lease::Sweep::STATEMENT, "'', '', 0, 10"),
        engine(limit::Sweep::STATEMENT, "'', '', 10"),
        engine(mutex::SweepMarks::STATEMENT, "'', '', 10"),
        engine(RecallAnswer::STATEMENT, "'{{ns},{ns}}', '{k1,k2}'"),
        engine(
            RecordAnswer::STATEMENT,
            "'{{ns},{ns},{ns}}', '{k1,k2,new}', '{1,9,3}', '{00,01,02}', '{00,01,02}', '{1000000,1000000,1000000}'",
        ),
        pooled(
            CompleteAnswer::STATEMENT,
            "'{ns}', 'k1', 0, 1, 'k1', '\\x00', '\\x01', 1000000",
        ),
        engine(SweepAnswers::STATEMENT, "'', '', 10"),
        engine(Peek::STATEMENT, "'{{ns},{ns}}', '{k1,k2}', '{0,0}'"),
        pooled(lease::Check::STATEMENT, "'{ns}', 'k1', '{0}', 1"),
        engine(ForceRelease::STATEMENT, "'{ns}', 'k1', 'why'"),
        engine(
            limit::Take::STATEMENT,
            "'{{ns},{ns},{ns}}', '{k1,k2,new}', '{10,10,10}', '{1000,1000,1000}', '{1,1,1}', false",
        ),
        pooled(
            Charge::STATEMENT,
            "'{ns}', '{1,2,2}', '{k1,k2,new}', '{0,0,0}', '{f,f,f}', '{10,10,10}', '{1000,1000,1000}', '{1,1,1}',
             '{1,3}', '{-1,-2}', '{10,10}', '{10,10}', false",
        ),
        pooled(
            Charge::STATEMENT,
            "'{ns}', '{1,2,2}', '{k1,k2,k3}', '{0,0,0}', '{f,f,f}', '{10,10,10}', '{1000,1000,1000}', '{1,1,1}',
             '{}', '{}', '{}', '{}', false",
        ),
        pooled(Ensure::STATEMENT, "'{{ns},{ns}}', '{k1,new}'"),
        engine(ReadLevel::STATEMENT, "'{{ns},{ns}}', '{k1,new}'"),
        engine(
            Refund::STATEMENT,
            "'{{ns},{ns}}', '{k1,k2}', '{10,10}', '{0,0}', '{0,0}'",
        ),
        engine(Reset::STATEMENT, "'{{ns},{ns}}', '{k1,k2}'"),
        engine(Block::STATEMENT, "'{{ns},{ns}}', '{k1,k2}', '{10,10}'"),
        engine(
            limit::EndReservation::STATEMENT,
            "'{{ns},{ns}}', '{k1,k2}', '{reserved}', '{0,0}'",
        ),
        pooled(limit::Expire::STATEMENT, "'{{ns},{ns}}', '{k1,k2}'"),
        engine(
            ClaimWorker::STATEMENT,
            "'{{ns},{ns}}', '{ids,ids}', '{10,10}', '{12,12}', '{0,0}', '{31,32}', '{1000000,1000000}', '{1,1}',
             '{0,0}', '{o,o}'",
        ),
        engine(
            RenewWorker::STATEMENT,
            "'{{ns},{ns}}', '{ids,ids}', '{1,2}', '{1,2}', '{1000000,1000000}', '{1,1}', '{0,0}'",
        ),
        engine(
            ReleaseWorker::STATEMENT,
            "'{{ns},{ns}}', '{ids,ids}', '{1,2}', '{1,2}', '{1,1}'",
        ),
        engine(NextBlock::STATEMENT, "'{{ns},{ns}}', '{ids,new}', '{10,10}'"),
    ]
}

fn scenarios_of_queues() -> Vec<Scenario> {
    vec![
        pooled(
            queue::Push::STATEMENT,
            "'{{ns}}', '{work}', '{send}', '{1}', '{2}', '{0}', '{0}', '{20}', '{1}', '{0}', '{g1}', '{\"{}\"}'",
        ),
        pooled(
            queue::PushKeyed::STATEMENT,
            "'{{ns},{ns},{ns},{ns}}', '{work,work,work,work}', '{s,s,s,s}', '{1,1,1,1}', '{2,2,2,2}', '{0,0,0,0}',
             '{0,0,0,0}', '{20,20,20,20}', '{u1,new,\"\",\"\"}', '{1,1,0,0}', '{\"\",\"\",p1,new}', '{1}', '{0,0,0,0}', '{\"\",g1,\"\",\"\"}', '{\"\",\"{}\",\"\",\"\"}'",
        ),
        pooled(queue::HoldKey::STATEMENT, "'{ns}', 'work', 'u1'"),
        engine(
            queue::CompleteAndClaim::STATEMENT,
            "'{ids}', '{tokens}', '{9,-1,9}', '{ns}', 'work', 60000000, '{0,1,2,3}', '{0,0,0,0}', 10, '{0,0,0,0}', 'w', 1,
             '{2}', '{}', 8388608, 1000000",
        ),
        engine(
            simple::<queue::CompleteAndClaim>(),
            "'{ids}', '{tokens}', '{9,-1,9}', '{ns}', 'work', 60000000, '{0,1,2,3}', '{0,0,0,0}', 10, '{0,0,0,0}', 'w', 1,
             '{2}', '{}', 8388608, 1000000",
        ),
        engine(
            queue::CompleteAndClaim::STATEMENT,
            "'{}', '{}', '{}', '{ns}', 'limited', 60000000, '{0,1,2,3}', '{0,0,0,0}', 10, '{0,0,0,0}', 'w', 1,
             '{2}', '{}', 8388608, 1000000",
        ),
        pooled(queue::Ack::STATEMENT, "'{ids}', '{tokens}', '{9,-1,9}'"),
        engine(
            queue::Settle::STATEMENT,
            "'{ids}', '{tokens}', '{5,0,1}', '{60000000,0,0}', '{\"\",no,no}', '{9,9,9}'",
        ),
        pooled(queue::Take::STATEMENT, "'{ns}', 'work', 10, 'w', 9, '{0,1,2,3}'"),
        engine(queue::Cancel::STATEMENT, "'{ns}', 'work', '{ids}', 9"),
        engine(queue::Purge::STATEMENT, "'{ns}', 'work', -1, 0, 0, 10"),
        engine(queue::Redrive::STATEMENT, "'{ns}', 'work', '{dead}', 0, 5, '{1}'"),
        engine(queue::Redrive::STATEMENT, "'{ns}', 'work', '{}', 0, 5, '{1}'"),
        engine(queue::Discard::STATEMENT, "'{ns}', 'work', '{dead}', 0, 10"),
        engine(queue::Discard::STATEMENT, "'{ns}', 'work', '{}', 0, 10"),
        engine(queue::SetPaused::STATEMENT, "'{ns}', 'work', true, '{1}', 1000000"),
        engine(
            queue::SetNamePaused::STATEMENT,
            "'{ns}', 'work', 'due', true, 1000000, '{1}'",
        ),
        engine(queue::SetNamePaused::STATEMENT, "'{ns}', 'work', 'paused', false, 0, '{1}'"),
        engine(
            queue::SetQueueLimit::STATEMENT,
            "'{ns}', 'work', true, 10, 10, 1000000000, 10, 100000000, '{1}'",
        ),
        engine(
            queue::SetQueueLimit::STATEMENT,
            "'{ns}', 'limited', false, -1, -1, -1, -1, -1, '{1}'",
        ),
        engine(queue::ReadQueueLimit::STATEMENT, "'{ns}', 'limited'"),
        engine(queue::Admit::STATEMENT, "'{ns}', 'groups', 10"),
        engine(queue::Admit::STATEMENT, "'{ns}', 'ordered', 10"),
        engine(queue::SetGroups::STATEMENT, "'{ns}', 'work', false, 3, 10, 1000000000, 10, 100000000, '{1}'"),
        engine(queue::SetGroupLimit::STATEMENT, "'{ns}', 'groups', 'g1', true, 3, -1, -1, -1, -1, '{1}'"),
        engine(queue::SetGroupLimit::STATEMENT, "'{ns}', 'groups', 'g1', false, -1, -1, -1, -1, -1, '{1}'"),
        engine(queue::CountJobs::STATEMENT, "'{ns}', 'work', 100"),
        engine(
            queue::CountRunning::STATEMENT,
            "'{ns}', 'work', '{0,1,2,3}', '{0,0,0,0}', '{0,0,0,0}', 100",
        ),
        engine(
            queue::SearchBelowFloors::STATEMENT,
            "'{ns}', 'work', '{0,1,2,3}', '{0,0,0,0}', '{9000000000000000,9000000000000000,9000000000000000,9000000000000000}', '{0,0,0,0}', '{}', '{2}'",
        ),
        engine(queue::ReadUnhandled::STATEMENT, "'{ns}', 'work', '{send}', 100"),
        engine(queue::ReadDeliveryState::STATEMENT, "'{ids}'"),
        engine(
            queue::Report::STATEMENT,
            "'{ids}', '{tokens}', '{1,2,1000000}', '{\"\",a,b}'",
        ),
        engine(queue::SweepProgress::STATEMENT, "{id} - 1, 10"),
        pooled(
            queue::AckWithResult::STATEMENT,
            "'{ids}', '{tokens}', '{9,-1,9}', '{1,2,3}', '{9,9,9}'",
        ),
        engine(
            queue::ReadResult::STATEMENT,
            "'{ids}', '{{ns},{ns},{ns}}', '{work,work,work}'",
        ),
        engine(queue::SweepResults::STATEMENT, "{id} - 1, 10"),
        engine(
            queue::RecordHistory::STATEMENT,
            "'{ns}', 9000000000000000, 1, '{work,work}', '{0,60000000}', '{a,b}', '{1,1}', '{0,0}', '{0,0}', '{1,1}', '{1,1}', '{\"{1}\",\"{1}\"}', '{\"{1}\",\"{0,1}\"}'",
        ),
        engine(queue::FoldHistory::STATEMENT, "'{ns}', 'work', 0, '', 0, 10"),
        engine(queue::SweepHistory::STATEMENT, "'{ns}', 'work', false, 0, '', 10"),
        engine(queue::ReadDeadLetters::STATEMENT, "'{ns}', 'work', 0, 10"),
        engine(queue::SweepQueues::STATEMENT, "'{ns}', 0, 0, 10"),
        engine(
            queue::ExpireJobs::STATEMENT,
            "'{ns}', 0, 0, 10, 8388608, '{work}', '{9}', 1000000",
        ),
    ]
}

fn scenarios_of_operators() -> Vec<Scenario> {
    vec![
        engine(
            CancelJobs::STATEMENT,
            "'{ns}', 'work', '{{id}}', 'why', true, '', '', ''",
        ),
        engine(
            CancelJobs::STATEMENT,
            "'{ns}', 'work', '{{id}}', 'why', false, 'due', 'g1', 'tag'",
        ),
        engine(
            EditJobs::STATEMENT,
            "'{ns}', 'work', '{{id}}', 'why', 0, 1, 30, '2', '{1}', 'due now', -1, 0, 0, 0, '', true, 65536, 'due', 'g1', 'tag'",
        ),
        engine(
            EditJobs::STATEMENT,
            "'{ns}', 'work', '{{id}}', 'why', 0, 1, 30, '2', '{1}', 'due now', 0, 2, 20, 0, '1', false, 65536, '', '', ''",
        ),
        engine(ListRunning::STATEMENT, "'{ns}', 'work', 10"),
        engine(
            ListLeases::STATEMENT,
            "'{ns}', NULL, 'k1', '{ns}', -1, 20, 10",
        ),
        engine(ListLeases::STATEMENT, "'{ns}', 'k1', '', '', -1, 20, 10"),
        engine(
            ListJobs::STATEMENT,
            "'{ns}', 'work', 'ready', 'due', '{0,1,2,3}', '{0,0,0,0}', '{0,0,0,0}', 0, 20, 10, '', '', 0, 9223372036854775",
        ),
        engine(
            ListJobs::STATEMENT,
            "'{ns}', 'work', '', '', '{0,1,2,3}', '{0,0,0,0}', '{0,0,0,0}', 0, 20, 10, '', '', 0, 9223372036854775",
        ),
        engine(
            ListJobs::STATEMENT,
            "'{ns}', 'work', 'delayed', '', '{2,3}', '{1,0}', '{1,0}', 0, 20, 10, '', '', 0, 9223372036854775",
        ),
        engine(
            ListJobs::STATEMENT,
            "'{ns}', 'work', 'failed', '', '{}', '{}', '{}', 9223372036854775807, 20, 10, 'g', 't', 0, 9223372036854775",
        ),
        engine(
            ListJobs::STATEMENT,
            "'{ns}', 'work', 'completed', '', '{}', '{}', '{}', 9223372036854775807, 20, 10, 'g', 't', 0, 9223372036854775",
        ),
        engine(ReadJob::STATEMENT, "'{ns}', {id}, true, 100"),
        engine(ListQueues::STATEMENT, "'{ns}', '{ns}', '', 10"),
        engine(ListSchedulers::STATEMENT, "'{ns}', '', 10"),
        engine(ListPausedNames::STATEMENT, "'{ns}', 'work', 10, 20"),
        engine(ReadHistory::STATEMENT, "'{ns}', 'work', NULL, false, 100"),
        engine(ReadHistory::STATEMENT, "'{ns}', 'work', 'send', true, 100"),
        engine(ListLimits::STATEMENT, "'{ns}', 'k1', 10, 20"),
        engine(ListWorkers::STATEMENT, "'{ns}', 10"),
        engine(Record::STATEMENT, "'{ns}', 'a', 't', 'r'"),
        pooled(mutex::Check::STATEMENT, "1, '{ns}', 'k1', 100"),
    ]
}

fn scenarios_of_schedules() -> Vec<Scenario> {
    vec![
        engine(schedule::ReadDueTasks::STATEMENT, "'{ns}', 'work', 10, 0, ''"),
        engine(
            schedule::Fire::STATEMENT,
            "'{ns}', 'work', '{t1,t2}', '{1,1}', '{{due},{due}}', '{-1,-1}', '{1,2}', '{{due},{due}}', '{f,f}', '{0,0}',
             10, 'node', '{1}'",
        ),
        engine(schedule::RunNow::STATEMENT, "'{ns}', 'work', 't1', 10, 'node', '{1}', 1"),
        engine(schedule::Expire::STATEMENT, "'{ns}', 'work'"),
        engine(schedule::Release::STATEMENT, "'{ns}', 'work', '{1}'"),
        engine(
            schedule::SetTask::STATEMENT,
            "'{ns}', 'work', 't1', 0, 1000000, 0, 0, 0, 2, 20, 2, '', '', 'job', '1', '{1}'",
        ),
        engine(schedule::SwitchTask::STATEMENT, "'{ns}', 'work', 't1', false, 0, 1, '{1}'"),
        engine(schedule::RemoveTask::STATEMENT, "'{ns}', 'work', 't1', false"),
        engine(schedule::ReadTasks::STATEMENT, "'{ns}', 'work', '', '', 10"),
        engine(schedule::ReadRuns::STATEMENT, "'{ns}', 'work', 't1', {due} + 1000000, 10"),
        engine(schedule::SweepRuns::STATEMENT, "'{ns}', 'work', 1000000, 10, '', 0"),
        engine(
            Note::STATEMENT,
            "7, '{ns}', 'o', '{7,8}', '{a,b}', '{7}', '{7,8}', '{f,f}', '{f,f}', '{1,2}', '{0,0}', '{9}', '{f}', '{f}',
             false",
        ),
    ]
}

/// Rows of others, in other namespaces and in these, in front of and behind ours in every index.
pub(super) const OTHERS: &str = "
    INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, unique_key, token,
                             lease_until, started_at, expires_at)
    SELECT now() - interval '1 hour', 20, 2, o.namespace, o.queue, 'due', '1', 'u' || n, -n, now() + interval '1 hour', now(),
           CASE WHEN n % 2 = 0 THEN now() END
      FROM (VALUES ('m', 'work', 60000), ('a', 'aaa', 15000), ('a', 'zzz', 15000), ('z', 'aaa', 15000), ('z', 'zzz', 15000))
           AS o (namespace, queue, many)
     CROSS JOIN LATERAL generate_series(1, o.many) AS n;
    INSERT INTO lockapi.job (run_at, due_at, group_key, max_attempts, priority, namespace, queue, name, payload)
    SELECT CASE WHEN n % 2 = 0 THEN '20000-01-01 00:00:00+00' ELSE now() + interval '1 hour' END,
           CASE WHEN n % 2 = 0 THEN now() - interval '1 hour' END, 'g' || n % 1000, 20, 2, o.namespace, o.queue, 'due', '1'
      FROM (VALUES ('m', 'groups', 20000), ('a', 'aaa', 10000), ('a', 'zzz', 10000), ('z', 'aaa', 10000), ('z', 'zzz', 10000))
           AS o (namespace, queue, many)
     CROSS JOIN LATERAL generate_series(1, o.many) AS n;
    INSERT INTO lockapi.queue_groups (namespace, queue) SELECT 'm', 'q' || n FROM generate_series(1, 20000) AS n;
    INSERT INTO lockapi.group_limit (most, namespace, queue, group_key)
    SELECT 1, 'm', 'groups', 'g' || n FROM generate_series(1, 20000) AS n;
    INSERT INTO lockapi.group_rate (tat, at, namespace, queue, group_key)
    SELECT 0, 0, 'm', 'groups', 'g' || n FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.job_archive (id, status, run_at, created_at, completed_at, attempt, max_attempts, priority,
                                     namespace, queue, name, payload)
    SELECT n::int8 * sign, CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'completed' END, now(), now(), now() - interval '1 year', 1, 20, 2,
           o.namespace, o.queue, 'done', '1'
      FROM (VALUES ('m', 'work', 40000, -1), ('a', 'zzz', 15000, 100000000), ('z', 'aaa', 15000, -100000000))
           AS o (namespace, queue, many, sign)
     CROSS JOIN LATERAL generate_series(1, o.many) AS n;
    INSERT INTO lockapi.job_progress (id, token, reported_at, fraction, note)
    SELECT n, 0, now(), 0.5, 'half' FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.job_result (id, completed_at, expires_at, namespace, queue, result)
    SELECT -n, now(), now() + (n % 2 - 0.5) * interval '1 hour', 'm', 'work', '1' FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.job_history_part (minute, part, completed, failed, dead, waited, ran, waits, runs, namespace, queue, name)
    SELECT date_trunc('minute', now()) - n % 60 * interval '1 minute', n, 1, 0, 0, 1, 1, '{1}', '{1}', o.namespace, o.queue, 'send'
      FROM (VALUES ('m', 'work'), ('a', 'zzz'), ('z', 'aaa')) AS o (namespace, queue), generate_series(1, 15000) AS n;
    INSERT INTO lockapi.job_history (at, completed, failed, dead, waited, ran, hourly, waits, runs, namespace, queue, name)
    SELECT date_trunc('hour', now()) - n / 100 * interval '1 minute', 1, 0, 0, 1, 1, n % 2 = 0, '{1}', '{1}', o.namespace, o.queue, 'n' || n
      FROM (VALUES ('m', 'work'), ('a', 'zzz'), ('z', 'aaa')) AS o (namespace, queue), generate_series(1, 15000) AS n;
    INSERT INTO lockapi.push_key (namespace, queue, key, job, created_at)
    SELECT 'm', 'work', 'p' || n, n, now() FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.queue (namespace, name, paused) SELECT 'm', 'q' || n, true FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.paused_name (namespace, queue, name) SELECT 'm', 'q' || n % 1000, 'n' || n FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.queue_limit (namespace, queue, most) SELECT 'm', 'q' || n, 10 FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, expires_at)
    SELECT 'm', 'k' || n, 0, n, n, 'o', 'd', now(), now(), now() + interval '1 hour' FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.rate_limit (namespace, key) SELECT 'm', 'k' || n FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.answer
    SELECT 'm', 'k' || n, n, '', '', now(), now() + interval '1 hour' FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.rate_reservation (id, namespace, key, at, expires, price, span)
    SELECT ascii('m') * 100000 + n, 'm', 'k' || n % 100, 0, n, 1, 0 FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.id_space SELECT 'm', 'ids' || n, 10, 12, 0 FROM generate_series(1, 20000) AS n;
    INSERT INTO lockapi.id_worker
    SELECT 'm', 'ids' || n / 4, n % 4, n, 0, 'o', now(), now(), now() FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.id_block SELECT 'm', 'ids' || n, 1 FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.fence_mark SELECT 'm', 'k' || n, n FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.task (next_at, every, timeout, misfire, misfire_most, overlap, max_attempts, priority, namespace,
                              scheduler, name, job, payload)
    SELECT now(), 1000000, 1000000, 0, 0, 2, 20, 2, o.namespace, o.scheduler, 't' || n, 'job', '1'
      FROM (VALUES ('m', 'work'), ('a', 'zzz'), ('z', 'aaa')) AS o (namespace, scheduler), generate_series(1, 10000) AS n;
    INSERT INTO lockapi.task_run (job, decided, fire_at, fired_at, namespace, scheduler, task, fired_by)
    SELECT CASE WHEN n % 2 = 0 THEN -n END, CASE WHEN n % 2 = 1 THEN 'held' END, now() - n * interval '1 s',
           now() - interval '1 year', o.namespace, o.scheduler, 't1', 'node'
      FROM (VALUES ('m', 'work'), ('a', 'zzz'), ('z', 'aaa')) AS o (namespace, scheduler), generate_series(1, 15000) AS n;
    INSERT INTO lockapi.lock_name SELECT n + 1000, 'm', 'k' || n FROM generate_series(1, 40000) AS n;
    INSERT INTO lockapi.lock_session SELECT n + 1000, n, 'm', 'o' FROM generate_series(1, 20000) AS n;
    INSERT INTO lockapi.lock_note SELECT n, n, false, false, n, now() FROM generate_series(1, 20000) AS n;";

/// A handful of rows of the namespace `{ns}`.
pub(super) const OURS: &str = "
    INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, unique_key, token, lease_until,
                             started_at, attempt, task, expires_at)
    SELECT now() - interval '1 minute', 20, 2, '{ns}', 'work', 'due', '1', CASE WHEN n > 6 THEN 'u' || n - 6 END,
           CASE WHEN n < 4 THEN nextval('lockapi.delivery_seq') END, CASE WHEN n < 4 THEN now() + interval '1 hour' END,
           now() - interval '1 minute', CASE WHEN n > 15 THEN 0 ELSE 1 END, CASE WHEN n = 4 THEN 't1' END,
           CASE WHEN n > 10 THEN now() - interval '1 hour' END
      FROM generate_series(1, 20) AS n;
    INSERT INTO lockapi.job (run_at, due_at, group_key, max_attempts, priority, namespace, queue, name, payload)
    SELECT CASE WHEN n % 5 = 0 AND o.queue = 'groups' THEN now() ELSE '20000-01-01 00:00:00+00' END,
           CASE WHEN n % 5 > 0 OR o.queue = 'ordered' THEN now() - interval '1 minute' END, 'g1', 20, n % 4, '{ns}', o.queue, 'due', '1'
      FROM (VALUES ('groups'), ('ordered')) AS o (queue), generate_series(1, 10) AS n;
    INSERT INTO lockapi.queue_groups (namespace, queue, most, ordered, reached, permits, period, burst, step)
    VALUES ('{ns}', 'groups', 3, false, 'g0', 10, 10000000, 10, 1000000), ('{ns}', 'ordered', 1, true, '', 1, 1000000, 1, 1000000);
    INSERT INTO lockapi.group_rate (tat, at, namespace, queue, group_key)
    SELECT 0, 0, '{ns}', o.queue, 'g' || n FROM (VALUES ('groups'), ('ordered')) AS o (queue), generate_series(1, 5) AS n;
    INSERT INTO lockapi.paused_name (namespace, queue, name) VALUES ('{ns}', 'work', 'paused');
    INSERT INTO lockapi.job_history_part (minute, part, written_at, completed, failed, dead, waited, ran, waits, runs, namespace, queue, name)
    SELECT date_trunc('minute', now()) - n % 60 * interval '1 minute', n, now() - interval '1 hour', 1, 0, 0, 1, 1, '{1}', '{1}', '{ns}', 'work', 'send'
      FROM generate_series(1, 20) AS n;
    INSERT INTO lockapi.job_history (at, completed, failed, dead, waited, ran, hourly, waits, runs, namespace, queue, name)
    SELECT date_trunc('hour', now()) - n * interval '1 minute', 1, 0, 0, 1, 1, n % 2 = 0, '{1}', '{1}', '{ns}', 'work', 'send'
      FROM generate_series(1, 200) AS n;
    INSERT INTO lockapi.queue_limit (namespace, queue, most, ids, tokens) VALUES ('{ns}', 'limited', 10, '{1,2,3}', '{1,2,3}');
    INSERT INTO lockapi.group_limit (most, namespace, queue, group_key) VALUES (3, '{ns}', 'groups', 'g1');
    INSERT INTO lockapi.job_archive (id, status, run_at, created_at, completed_at, attempt, max_attempts, priority,
                                     namespace, queue, name, payload)
    SELECT nextval('lockapi.job_seq'), CASE WHEN n > 10 THEN 'failed' ELSE 'completed' END, now(), now(),
           now() - interval '1 hour', 1, 20, 2, '{ns}', 'work', 'done', '1'
      FROM generate_series(1, 20) AS n;
    INSERT INTO lockapi.push_key (namespace, queue, key, job, created_at)
    SELECT '{ns}', 'work', 'p' || n, n, now() - interval '2 days' FROM generate_series(1, 5) AS n;
    INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, expires_at)
    SELECT '{ns}', 'k' || n, 0, n, n, 'o', 'd', now(), now(), now() + (n - 2) * interval '1 hour'
      FROM generate_series(1, 5) AS n;
    INSERT INTO lockapi.answer
    SELECT '{ns}', 'k' || n, n, '', '', now(), now() + (n - 2) * interval '1 hour' FROM generate_series(1, 5) AS n;
    INSERT INTO lockapi.rate_limit (namespace, key, reserved, due) SELECT '{ns}', 'k' || n, 4, 0 FROM generate_series(1, 5) AS n;
    INSERT INTO lockapi.rate_reservation (id, namespace, key, at, expires, price, span)
    SELECT ascii('{ns}') * 100000 + n, '{ns}', 'k' || n % 5, 0, 0, 1, 0 FROM generate_series(1, 20) AS n;
    INSERT INTO lockapi.id_space VALUES ('{ns}', 'ids', 10, 12, 0);
    INSERT INTO lockapi.id_worker
    SELECT '{ns}', 'ids', n, n, 0, 'o', now(), now(), now() FROM generate_series(1, 5) AS n;
    INSERT INTO lockapi.id_block VALUES ('{ns}', 'ids', 1);
    INSERT INTO lockapi.fence_mark VALUES ('{ns}', 'k1', 1);
    INSERT INTO lockapi.task (next_at, every, timeout, misfire, misfire_most, overlap, max_attempts, priority, namespace,
                              scheduler, name, job, payload)
    SELECT timestamptz 'epoch' + interval '50 years', 1000000, 1000000, 0, 0, 2, 20, 2, '{ns}', 'work', 't' || n, 'job', '1'
      FROM generate_series(1, 5) AS n;
    INSERT INTO lockapi.task_run (job, decided, fire_at, fired_at, namespace, scheduler, task, fired_by)
    SELECT CASE WHEN n % 2 = 0 THEN 0 END, CASE WHEN n % 2 = 1 THEN 'held' END, now() - n * interval '1 s',
           now() - interval '1 hour', '{ns}', 'work', 't1', 'node'
      FROM generate_series(1, 10) AS n;";
