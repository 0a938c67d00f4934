//! Reading who holds and who waits for what; batches of one.

use crate::admin::{
    AuditEntry, Blocking, HeldLease, HeldLock, LockMode, RunningJob, Waiter, duration, since_epoch,
};
use crate::driver::columns::maybe_text;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::ModelState;

/// Reads who holds advisory locks.
#[derive(Clone, Debug)]
pub struct ListLocks {
    /// Of this namespace, or of all.
    pub namespace: Option<String>,
    /// This one only, whatever the namespace.
    pub lock: Option<LockId>,
    /// How many at most.
    pub most: i64,
}

/// Reads who waits for whom.
#[derive(Clone, Debug)]
pub struct ListWaits {
    /// Of which locks.
    pub locks: ListLocks,
    /// Whether the statements of the sessions are read.
    pub statements: bool,
}

/// Reads who holds leases, in a part of the rows.
#[derive(Clone, Debug)]
pub struct ListLeases {
    /// Of this namespace, or of all.
    pub namespace: Option<String>,
    /// This one only.
    pub key: Option<String>,
    /// The place that the part comes after.
    pub after: LeasePlace,
    /// How many rows are examined at most, also of leases that have ended.
    pub examined: i64,
    /// How many at most.
    pub most: i64,
}

/// The place of a lease among the rows of all: key, namespace and slot.
pub type LeasePlace = (String, String, i64);

/// The answer to a [`ListLeases`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePage {
    /// The leases that are held.
    pub leases: Vec<HeldLease>,
    /// The last place that was examined, unless no more rows follow.
    pub next: Option<LeasePlace>,
}

/// Reads which jobs run.
#[derive(Clone, Debug)]
pub struct ListRunning {
    /// Of this namespace, or of all.
    pub namespace: Option<String>,
    /// Of this queue, or of all.
    pub queue: Option<String>,
    /// How many at most.
    pub most: i64,
}

/// Reads the audit log.
#[derive(Clone, Debug)]
pub struct ListAudit {
    /// Of this namespace, or of all.
    pub namespace: Option<String>,
    /// How many at most.
    pub most: i64,
}

impl ListLocks {
    fn params(&self) -> Vec<Value> {
        let lock = self.lock;
        vec![
            maybe_text(self.namespace.as_deref()),
            lock.map_or(Value::Null(Type::Int), |lock| Value::Int(lock.key)),
            lock.map_or(Value::Null(Type::Bool), |lock| Value::Bool(lock.pair)),
            Value::Int(self.most),
        ]
    }
}

impl Operation for ListLocks {
    type Output = Vec<HeldLock>;

    const STATEMENT: Statement = Statement {
        name: "admin.locks",
        sql: include_str!("locks.sql"),
        params: &[Type::Text, Type::Int, Type::Bool, Type::Int],
        columns: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.first().map(ListLocks::params).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<HeldLock>>, Failure> {
        let read = |mut row: Row| {
            Ok(HeldLock {
                namespace: row.maybe_text(0)?,
                name: row.text(1)?,
                mode: match row.text(2)?.as_str() {
                    "shared" => LockMode::Shared,
                    _ => LockMode::Exclusive,
                },
                owner: row.maybe_text(3)?,
                application: row.maybe_text(4)?,
                username: row.maybe_text(5)?,
                pid: row.maybe_int(6)?,
                fence: row.maybe_int(7)?,
                held_for: row.maybe_int(8)?.map(duration),
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(model.list_locks(batch.first()?))
    }
}

impl Operation for ListWaits {
    type Output = Vec<Waiter>;

    const STATEMENT: Statement = Statement {
        name: "admin.waits",
        sql: include_str!("waits.sql"),
        params: &[Type::Text, Type::Int, Type::Bool, Type::Int, Type::Bool],
        columns: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let mut params = one.locks.params();
            params.push(Value::Bool(one.statements));
            params
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<Waiter>>, Failure> {
        let mut waiters: Vec<Waiter> = Vec::new();
        for mut row in rows {
            let waiter = Waiter {
                namespace: row.maybe_text(0)?,
                name: row.maybe_text(1)?.unwrap_or_default(),
                mode: row.maybe_text(2)?,
                owner: row.maybe_text(3)?,
                application: row.maybe_text(4)?,
                username: row.maybe_text(5)?,
                pid: row.maybe_int(6)?,
                statement: row.maybe_text(7)?,
                waits_for: row.maybe_int(8)?.map(duration),
                blockers: Vec::new(),
            };
            let blocker = match row.maybe_int(9)? {
                None => None,
                Some(pid) => Some(Blocking {
                    pid,
                    application: row.maybe_text(10)?,
                    username: row.maybe_text(11)?,
                    state: row.maybe_text(12)?,
                    statement: row.maybe_text(13)?,
                    transaction_age: row.maybe_int(14)?.map(duration),
                }),
            };
            // The rows of one waiter follow each other.
            let same = waiters.last_mut().filter(|last| {
                last.pid == waiter.pid && last.name == waiter.name && last.owner == waiter.owner
            });
            match same {
                Some(last) => last.blockers.extend(blocker),
                None => waiters.push(Waiter {
                    blockers: blocker.into_iter().collect(),
                    ..waiter
                }),
            }
        }
        Ok(vec![waiters])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(model.list_waits(&batch.first()?.locks))
    }
}

impl Operation for ListLeases {
    type Output = LeasePage;

    const STATEMENT: Statement = Statement {
        name: "admin.leases",
        sql: include_str!("leases.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
        columns: &[
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let (key, namespace, slot) = one.after.clone();
            vec![
                maybe_text(one.namespace.as_deref()),
                maybe_text(one.key.as_deref()),
                Value::Text(key),
                Value::Text(namespace),
                Value::Int(slot),
                Value::Int(one.examined),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<LeasePage>, Failure> {
        let mut page = LeasePage::default();
        for mut row in rows {
            let (namespace, key) = (row.text(0)?, row.text(1)?);
            if let Some(slot) = row.maybe_int(8)? {
                page.next = Some((key, namespace, slot));
                continue;
            }
            page.leases.push(HeldLease {
                namespace,
                key,
                slot: row.int(2)?,
                owner: row.text(3)?,
                data: row.text(4)?,
                fence: row.int(5)?,
                held_for: duration(row.int(6)?),
                remaining: duration(row.int(7)?),
            });
        }
        Ok(vec![page])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(model.list_leases(batch.first()?))
    }
}

impl Operation for ListRunning {
    type Output = Vec<RunningJob>;

    const STATEMENT: Statement = Statement {
        name: "admin.running",
        sql: include_str!("running.sql"),
        params: &[Type::Text, Type::Text, Type::Int],
        columns: &[
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                maybe_text(one.namespace.as_deref()),
                maybe_text(one.queue.as_deref()),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<RunningJob>>, Failure> {
        let read = |mut row: Row| {
            Ok(RunningJob {
                id: row.int(0)?,
                namespace: row.text(1)?,
                queue: row.text(2)?,
                name: row.text(3)?,
                worker: row.maybe_text(4)?.unwrap_or_default(),
                attempt: row.int(5)?,
                runs_for: duration(row.maybe_int(6)?.unwrap_or_default()),
                lease_left: duration(row.int(7)?),
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (namespace, queue) = (one.namespace.as_deref(), one.queue.as_deref());
        Some(model.jobs.running(model.now, namespace, queue, one.most))
    }
}

impl Operation for ListAudit {
    type Output = Vec<AuditEntry>;

    const STATEMENT: Statement = Statement {
        name: "admin.audit",
        sql: include_str!("audit.sql"),
        params: &[Type::Text, Type::Int],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| vec![maybe_text(one.namespace.as_deref()), Value::Int(one.most)];
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<AuditEntry>>, Failure> {
        let read = |mut row: Row| {
            Ok(AuditEntry {
                id: row.int(0)?,
                at: since_epoch(row.int(1)?),
                by_user: row.text(2)?,
                application: row.text(3)?,
                namespace: row.text(4)?,
                action: row.text(5)?,
                target: row.text(6)?,
                reason: row.text(7)?,
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(model.notes.list_audit(batch.first()?))
    }
}
