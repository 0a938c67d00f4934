//! [`Inspector`] and [`Operator`] over the connection of jobs.

mod jobs;
mod notes;
mod priority;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

pub(super) use notes::{Names, NoteRecorder};

use super::Core;
use super::batcher::{ALONE, Queued};
use crate::admin::{
    AuditEntry, CancelJobs, Contention, EXAMINED, EditJobs, Filter, ForceRelease, FoundQueue,
    HeldLease, HeldLock, Inspector, JobDetails, JobEdit, JobFilter, JobPage, LimitLevel, ListAudit,
    ListJobs, ListLeases, ListLimits, ListLocks, ListPausedNames, ListQueues, ListRunning,
    ListSchedulers, ListWaits, ListWorkers, MatchedJobs, Operator, PausedName, Priority,
    PriorityScope, ReadHistory, ReadJob, Record, RunningJob, Terminate, TerminatedSession, Unblock,
    Waiter, WorkerNumber, check_act, check_page, check_reason,
};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Key, check_name};
use crate::queue::{HistoryPoint, HistoryStep, Name};

/// How many rows of a history are read at most.
const HISTORY_ROWS: i64 = 20_000;
/// How many rows of leases a statement examines, and how many statements a list takes.
const LEASE_ROWS: i64 = 5000;
const LEASE_PARTS: i64 = 100;

/// Declares how operations are batched: each in a statement of its own.
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
    Unblock "prioritize" false;
    ForceRelease "release_lease" false;
    Terminate "terminate_holder" false;
    CancelJobs "cancel_job" false;
    EditJobs "edit_job" false;
    Record "record" false;
    ListLocks "locks" true;
    ListWaits "waiters" true;
    ListLeases "leases" true;
    ListRunning "running" true;
    ListAudit "audit" true;
    ListJobs "jobs" true;
    ReadJob "job" true;
    ListQueues "queues" true;
    ListSchedulers "schedulers" true;
    ListPausedNames "paused_names" true;
    ReadHistory "history" true;
    ListLimits "limits" true;
    ListWorkers "worker_numbers" true;
}

pub(super) fn inspector(core: &Arc<Core>) -> Arc<dyn Inspector> {
    Arc::new(Admin(Arc::clone(core)))
}

pub(super) fn operator(core: &Arc<Core>) -> Arc<dyn Operator> {
    Arc::new(Admin(Arc::clone(core)))
}

struct Admin(Arc<Core>);

impl Admin {
    fn list_locks(&self, operation: &'static str, filter: &Filter) -> Result<ListLocks> {
        filter.check().map_err(|error| error.during(operation))?;
        let namespace = filter.namespace(&self.0.namespace);
        let lock = filter.wanted_key();
        Ok(ListLocks {
            namespace: namespace.map(str::to_owned),
            lock: lock.map(|key| key.lock_id(&self.0.namespace)),
            most: filter.most(),
        })
    }

    fn namespace(&self, operation: &'static str, filter: &Filter) -> Result<Option<String>> {
        filter.check().map_err(|error| error.during(operation))?;
        Ok(filter.namespace(&self.0.namespace).map(str::to_owned))
    }

    /// The name of the requested lock, even if it was not recorded.
    fn named(&self, filter: &Filter) -> Option<(String, String)> {
        let key = filter.wanted_key().filter(|key| key.is_name())?;
        Some((self.0.namespace.to_string(), key.to_string()))
    }

    /// Reads what may take longer than claims should wait.
    async fn read<O: Queued>(&self, list: O) -> Result<O::Output> {
        self.0.sweeps.batcher().call(list).await
    }

    fn with_sessions(&self, operation: &'static str) -> Result<()> {
        if self.0.connections.driver.has_server() {
            return Ok(());
        }
        let message = "the memory backend has no sessions that could be ended";
        Err(Error::new(ErrorKind::Unsupported, operation, message))
    }
}

#[async_trait]
impl Inspector for Admin {
    async fn locks(&self, filter: &Filter) -> Result<Vec<HeldLock>> {
        let list = self.list_locks("locks", filter)?;
        let mut locks = self.read(list).await?;
        if let Some((namespace, name)) = self.named(filter) {
            for lock in &mut locks {
                lock.namespace = Some(namespace.clone());
                lock.name.clone_from(&name);
            }
        }
        Ok(locks)
    }

    async fn leases(&self, filter: &Filter) -> Result<Vec<HeldLease>> {
        let mut list = ListLeases {
            namespace: self.namespace("leases", filter)?,
            key: filter.wanted_key().map(Key::to_string),
            after: (String::new(), String::new(), -1),
            examined: LEASE_ROWS,
            most: filter.most(),
        };
        let mut leases = Vec::new();
        for _ in 0..LEASE_PARTS {
            let page = self.read(list.clone()).await?;
            leases.extend(page.leases);
            list.most = filter.most() - i64::try_from(leases.len()).unwrap_or(i64::MAX);
            match page.next {
                Some(next) if list.most > 0 => list.after = next,
                _ => return Ok(leases),
            }
        }
        let message = format!(
            "{} leases of all namespaces, held or ended within a day, are not all that there are; ask for one key",
            LEASE_ROWS.saturating_mul(LEASE_PARTS)
        );
        Err(Error::new(ErrorKind::Capacity, "leases", message))
    }

    async fn waiters(&self, filter: &Filter) -> Result<Vec<Waiter>> {
        let list = ListWaits {
            locks: self.list_locks("waiters", filter)?,
            statements: filter.wants_statements(),
        };
        let mut waiters = self.read(list).await?;
        if let Some((namespace, name)) = self.named(filter) {
            for waiter in &mut waiters {
                waiter.namespace = Some(namespace.clone());
                waiter.name.clone_from(&name);
            }
        }
        Ok(waiters)
    }

    async fn running(&self, filter: &Filter) -> Result<Vec<RunningJob>> {
        let list = ListRunning {
            namespace: self.namespace("running", filter)?,
            queue: filter.wanted_queue().map(str::to_owned),
            most: filter.most(),
        };
        self.read(list).await
    }

    fn contention(&self, filter: &Filter) -> Result<Vec<Contention>> {
        filter.check().map_err(|error| error.during("contention"))?;
        Ok(self.0.contended.list(filter.wanted_key(), filter.entries()))
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>> {
        let list = ListAudit {
            namespace: self.namespace("audit", filter)?,
            most: filter.most(),
        };
        self.read(list).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<JobPage> {
        filter.check().map_err(|error| error.during("jobs"))?;
        let list = ListJobs::new(&self.0.namespace, filter);
        if let Some(few) = list.few() {
            let page = self.read(few).await?;
            if page.jobs.len() == filter.limit || page.next.is_none() {
                return Ok(page);
            }
        }
        self.read(list).await
    }

    async fn job(&self, id: i64, payload: bool) -> Result<Option<JobDetails>> {
        let namespace = self.0.namespace.to_string();
        let read = ReadJob {
            namespace,
            id,
            payload,
        };
        self.read(read).await
    }

    async fn queues(
        &self,
        filter: &Filter,
        after: Option<(&str, &str)>,
    ) -> Result<Vec<FoundQueue>> {
        let namespace = self.namespace("queues", filter)?;
        // No namespace is empty, so all names of one come after it.
        let first = (namespace.as_deref().unwrap_or_default(), "");
        let (of, name) = after.unwrap_or(first);
        let list = ListQueues {
            after: (of.to_owned(), name.to_owned()),
            most: filter.most(),
            namespace,
        };
        self.read(list).await
    }

    async fn schedulers(&self, after: &str, most: usize) -> Result<Vec<String>> {
        let (after, most) = page("schedulers", after, most)?;
        let namespace = self.0.namespace.to_string();
        let list = ListSchedulers {
            namespace,
            after,
            most,
        };
        self.read(list).await
    }

    async fn paused_names(&self, queue: &str, most: usize) -> Result<Vec<PausedName>> {
        let during = |error: Error| error.during("paused_names");
        check_name("queue", queue, 1).map_err(during)?;
        check_page(most).map_err(during)?;
        let list = ListPausedNames {
            name: Name {
                namespace: self.0.namespace.to_string(),
                queue: queue.to_owned(),
            },
            most: i64::try_from(most).unwrap_or(i64::MAX),
            examined: EXAMINED,
        };
        self.read(list).await
    }

    async fn history(
        &self,
        queue: &str,
        name: Option<&str>,
        step: HistoryStep,
    ) -> Result<Vec<HistoryPoint>> {
        let during = |error: Error| error.during("history");
        check_name("queue", queue, 1).map_err(during)?;
        check_name("name of a job", name.unwrap_or_default(), 0).map_err(during)?;
        let read = ReadHistory {
            name: Name {
                namespace: self.0.namespace.to_string(),
                queue: queue.to_owned(),
            },
            job: name.map(str::to_owned),
            hourly: step == HistoryStep::Hour,
            most: HISTORY_ROWS,
        };
        self.read(read).await
    }

    async fn limits(&self, after: &str, most: usize) -> Result<Vec<LimitLevel>> {
        let (after, most) = page("limits", after, most)?;
        let namespace = self.0.namespace.to_string();
        let list = ListLimits::new(namespace, after, most);
        self.read(list).await
    }

    async fn worker_numbers(&self, most: usize) -> Result<Vec<WorkerNumber>> {
        let (_, most) = page("worker_numbers", "", most)?;
        let namespace = self.0.namespace.to_string();
        self.read(ListWorkers { namespace, most }).await
    }
}

/// A page of so many entries after a name.
fn page(operation: &'static str, after: &str, most: usize) -> Result<(String, i64)> {
    let checked = check_name("name before the page", after, 0).and_then(|()| check_page(most));
    checked.map_err(|error| error.during(operation))?;
    Ok((after.to_owned(), i64::try_from(most).unwrap_or(i64::MAX)))
}

#[async_trait]
impl Operator for Admin {
    async fn release_lease(&self, key: Key, reason: &str) -> Result<Vec<String>> {
        const OPERATION: &str = "release_lease";
        let checked = key.check().and_then(|()| check_reason(reason));
        checked.map_err(|error| error.during(OPERATION).on(&key))?;
        let release = ForceRelease {
            namespace: self.0.namespace.to_string(),
            key: key.to_string(),
            reason: reason.to_owned(),
        };
        let released = self.0.jobs.call(release).await;
        released.map_err(|error| error.on(&key))
    }

    async fn terminate_holder(&self, key: Key, reason: &str) -> Result<Vec<TerminatedSession>> {
        const OPERATION: &str = "terminate_holder";
        let checked = key.check().and_then(|()| check_reason(reason));
        let checked = checked.and_then(|()| self.with_sessions(OPERATION));
        checked.map_err(|error| error.during(OPERATION).on(&key))?;
        let terminate = Terminate {
            namespace: self.0.namespace.to_string(),
            lock: key.lock_id(&self.0.namespace),
            name: key.to_string(),
            reason: reason.to_owned(),
        };
        let signalled = self.0.jobs.call(terminate).await;
        let signalled = signalled.map_err(|error| error.on(&key))?;
        if let Some(refused) = signalled.iter().find(|one| !one.allowed) {
            let message = format!(
                "this role may not end session {} of the role {}; grant it pg_signal_backend",
                refused.pid, refused.username
            );
            return Err(Error::new(ErrorKind::Unsupported, OPERATION, message).on(&key));
        }
        let ended = signalled.into_iter().filter(|one| one.ended);
        Ok(ended
            .map(|one| TerminatedSession {
                pid: one.pid,
                application: one.application,
                username: one.username,
            })
            .collect())
    }

    async fn cancel_job(&self, queue: &str, id: i64, reason: &str) -> Result<bool> {
        self.cancel_one(queue, id, reason).await
    }

    async fn edit_job(&self, queue: &str, id: i64, edit: JobEdit, reason: &str) -> Result<bool> {
        self.edit_one(queue, id, edit, reason).await
    }

    async fn cancel_jobs(&self, filter: &JobFilter, reason: &str) -> Result<MatchedJobs> {
        self.cancel_matching(filter, reason).await
    }

    async fn edit_jobs(
        &self,
        filter: &JobFilter,
        edit: JobEdit,
        reason: &str,
    ) -> Result<MatchedJobs> {
        self.edit_matching(filter, edit, reason).await
    }

    async fn record(&self, action: &str, target: &str, reason: &str) -> Result<()> {
        let checked = check_act(action, target).and_then(|()| check_reason(reason));
        checked.map_err(|error| error.during("record"))?;
        let record = Record {
            namespace: self.0.namespace.to_string(),
            action: action.to_owned(),
            target: target.to_owned(),
            reason: reason.to_owned(),
        };
        self.0.jobs.call(record).await
    }

    fn prioritize(&self, pid: i64, priority: Priority) -> Result<PriorityScope> {
        self.with_sessions("prioritize")?;
        priority.check()?;
        Ok(priority::start(&self.0, pid, priority))
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Admin").field(&self.0.namespace).finish()
    }
}
