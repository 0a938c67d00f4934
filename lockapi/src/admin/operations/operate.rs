//! Taking locks, leases and jobs from others; batches of one.

use std::collections::BTreeSet;

use crate::admin::JobFilter;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::ModelState;
use crate::queue::{self, Name};

/// Takes a lease from its holder.
#[derive(Clone, Debug)]
pub struct ForceRelease {
    /// Namespace of the backend.
    pub namespace: String,
    /// Key of the lease, as tables store it.
    pub key: String,
    /// Why.
    pub reason: String,
}

/// Ends the sessions that hold a lock.
#[derive(Clone, Debug)]
pub struct Terminate {
    /// Namespace of the backend.
    pub namespace: String,
    /// The lock.
    pub lock: LockId,
    /// What it is called.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A session that held the lock of a [`Terminate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The server's number of the session.
    pub pid: i64,
    /// Its role.
    pub username: String,
    /// Its application name.
    pub application: String,
    /// Whether the role may end it.
    pub allowed: bool,
    /// Whether it was ended.
    pub ended: bool,
}

/// What jobs have that are changed because a filter matched them: a push may have replaced one since, with another name and other
/// tags. Empty is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobMatch {
    /// The name.
    pub name: String,
    /// The group.
    pub group: String,
    /// One of the tags.
    pub tag: String,
}

impl JobMatch {
    pub(crate) fn of(filter: &JobFilter) -> Self {
        Self {
            name: filter.name.clone(),
            group: filter.group.clone(),
            tag: filter.tag.clone(),
        }
    }

    pub(super) fn params(only: Option<&Self>) -> [Value; 3] {
        let text =
            |of: fn(&Self) -> &String| Value::Text(only.map(of).cloned().unwrap_or_default());
        [
            text(|it| &it.name),
            text(|it| &it.group),
            text(|it| &it.tag),
        ]
    }
}

/// Cancels jobs of a queue.
#[derive(Clone, Debug)]
pub struct CancelJobs {
    /// The queue.
    pub name: Name,
    /// The numbers of the jobs.
    pub ids: Vec<i64>,
    /// Which of these; all, if that is not said.
    pub only: Option<JobMatch>,
    /// Whether those that run are cancelled, too.
    pub running: bool,
    /// Why.
    pub reason: String,
}

/// The answer to a [`CancelJobs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// How many were cancelled.
    pub jobs: i64,
    /// How many a transaction has locked.
    pub locked: i64,
}

/// Records an act that is done by other means.
#[derive(Clone, Debug)]
pub struct Record {
    /// Namespace of the backend.
    pub namespace: String,
    /// What is done.
    pub action: String,
    /// To what.
    pub target: String,
    /// Why.
    pub reason: String,
}

/// Reads who is in the way of a session, and signals some of them.
#[derive(Clone, Debug)]
pub struct Unblock {
    /// Namespace of the backend.
    pub namespace: String,
    /// The session that is in their way.
    pub pid: i64,
    /// Those whose statement is cancelled: pid and when it began.
    pub cancel: Vec<(i64, i64)>,
    /// Those that are ended.
    pub terminate: Vec<(i64, i64)>,
    /// Why.
    pub reason: String,
}

/// A session in the way of another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// The server's number of the session; 0 for a prepared transaction, which has none and is not signalled.
    pub pid: i64,
    /// When it began, in microseconds since 1970.
    pub started: i64,
    /// Its role.
    pub username: Option<String>,
    /// Its application name.
    pub application: Option<String>,
    /// What it does, such as `idle in transaction`.
    pub state: Option<String>,
    /// Its latest statement, as far as the role may see it.
    pub statement: Option<String>,
    /// How old its transaction is, in microseconds.
    pub transaction_age: Option<i64>,
    /// Whether the role may signal it.
    pub allowed: bool,
    /// What was done to it: 0 nothing, 1 cancelled, 2 ended.
    pub signalled: i64,
}

impl Operation for Record {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "admin.record",
        sql: include_str!("record.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Text],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            [&one.namespace, &one.action, &one.target, &one.reason]
                .map(|text| Value::Text(text.clone()))
                .to_vec()
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        let recorded = rows.into_iter().map(|mut row| row.bool(0).map(drop));
        recorded.collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (now, target) = (model.now, one.target.clone());
        model
            .notes
            .log(now, &one.namespace, one.action.clone(), target, &one.reason);
        Some(vec![Row(vec![Value::Bool(true)])])
    }
}

impl Operation for ForceRelease {
    /// Who held it.
    type Output = Vec<String>;

    const STATEMENT: Statement = Statement {
        name: "admin.release_lease",
        sql: include_str!("release_lease.sql"),
        params: &[Type::Text, Type::Text, Type::Text],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            [&one.namespace, &one.key, &one.reason]
                .map(|text| Value::Text(text.clone()))
                .to_vec()
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<String>>, Failure> {
        let owners: Result<_, Failure> = rows.into_iter().map(|mut row| row.text(0)).collect();
        Ok(vec![owners?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let owners = model.force_release(batch.first()?);
        let row = |owner| Row(vec![Value::Text(owner)]);
        Some(owners.into_iter().map(row).collect())
    }
}

impl Operation for Terminate {
    type Output = Vec<LockHolder>;

    const STATEMENT: Statement = Statement {
        name: "admin.terminate",
        sql: include_str!("terminate.sql"),
        params: &[Type::Text, Type::Int, Type::Bool, Type::Text, Type::Text],
        columns: &[Type::Int, Type::Text, Type::Text, Type::Bool, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.namespace.clone()),
                Value::Int(one.lock.key),
                Value::Bool(one.lock.pair),
                Value::Text(one.name.clone()),
                Value::Text(one.reason.clone()),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<LockHolder>>, Failure> {
        let read = |mut row: Row| {
            Ok(LockHolder {
                pid: row.int(0)?,
                username: row.maybe_text(1)?.unwrap_or_default(),
                application: row.maybe_text(2)?.unwrap_or_default(),
                allowed: row.maybe_bool(3)?.unwrap_or_default(),
                ended: row.bool(4)?,
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    /// Sessions in memory are nobody's to end: the engine refuses before.
    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(Rows::new())
    }
}

impl Operation for CancelJobs {
    type Output = Cancelled;

    const STATEMENT: Statement = Statement {
        name: "admin.cancel_jobs",
        sql: include_str!("cancel_jobs.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Text,
            Type::Bool,
            Type::Text,
            Type::Text,
            Type::Text,
        ],
        columns: &[Type::Int, Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let mut params = vec![
                Value::Text(one.name.namespace.clone()),
                Value::Text(one.name.queue.clone()),
                Value::Ints(one.ids.clone()),
                Value::Text(one.reason.clone()),
                Value::Bool(one.running),
            ];
            params.extend(JobMatch::params(one.only.as_ref()));
            params
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Cancelled>, Failure> {
        let read = |mut row: Row| {
            Ok(Cancelled {
                jobs: row.int(0)?,
                locked: row.int(1)?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let now = model.now;
        let wanted: BTreeSet<i64> = one.ids.iter().copied().collect();
        let mut jobs = 0;
        for id in wanted {
            let Some(kind) = model.jobs.kind(&one.name, id).map(str::to_owned) else {
                continue;
            };
            if !one.running && model.jobs.runs(now, id) || !model.jobs.is_of(id, one.only.as_ref())
            {
                continue;
            }
            let cancel = queue::Cancel {
                keep: 7 * 24 * 3600 * 1_000_000,
                name: one.name.clone(),
                ids: vec![id],
            };
            if model.jobs.cancel(now, &cancel).cancelled.is_empty() {
                continue;
            }
            jobs += 1;
            model.jobs.blame(id, &one.reason);
            let target = format!("{id} ({kind}) of {}", one.name.queue);
            model
                .notes
                .log(now, &one.name.namespace, "cancel job", target, &one.reason);
        }
        let row = vec![Value::Int(jobs), Value::Int(0), Value::Null(Type::Bool)];
        Some(vec![Row(row)])
    }
}

impl Operation for Unblock {
    type Output = Vec<Blocker>;

    const STATEMENT: Statement = Statement {
        name: "admin.unblock",
        sql: include_str!("unblock.sql"),
        params: &[
            Type::Text,
            Type::Int,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Text,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Bool,
            Type::Int,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let pids = |of: &[(i64, i64)]| Value::Ints(of.iter().map(|(pid, _)| *pid).collect());
            let starts = |of: &[(i64, i64)]| Value::Ints(of.iter().map(|(_, at)| *at).collect());
            vec![
                Value::Text(one.namespace.clone()),
                Value::Int(one.pid),
                pids(&one.cancel),
                starts(&one.cancel),
                pids(&one.terminate),
                starts(&one.terminate),
                Value::Text(one.reason.clone()),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<Blocker>>, Failure> {
        let read = |mut row: Row| {
            Ok(Blocker {
                pid: row.int(0)?,
                started: row.maybe_int(1)?.unwrap_or_default(),
                username: row.maybe_text(2)?,
                application: row.maybe_text(3)?,
                state: row.maybe_text(4)?,
                statement: row.maybe_text(5)?,
                transaction_age: row.maybe_int(6)?,
                allowed: row.bool(7)?,
                signalled: row.int(8)?,
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    /// Sessions in memory are nobody's to end: the engine refuses before.
    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(Rows::new())
    }
}
