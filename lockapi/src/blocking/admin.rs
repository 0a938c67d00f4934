//! [`Inspector`](crate::admin::Inspector) and [`Operator`](crate::admin::Operator) for blocking callers.

use std::sync::Arc;

use super::block_on;
use crate::admin::{
    AuditEntry, Contention, Filter, FoundQueue, HeldLease, HeldLock, JobDetails, JobEdit,
    JobFilter, JobPage, LimitLevel, MatchedJobs, PausedName, Priority, PriorityScope, RunningJob,
    TerminatedSession, Waiter, WorkerNumber,
};
use crate::error::Result;
use crate::key::Key;
use crate::queue::{HistoryPoint, HistoryStep};

/// An [inspector](crate::admin::Inspector) for blocking callers.
#[derive(Clone, Debug)]
pub struct Inspector(Arc<dyn crate::admin::Inspector>);

impl From<Arc<dyn crate::admin::Inspector>> for Inspector {
    fn from(inspector: Arc<dyn crate::admin::Inspector>) -> Self {
        Self(inspector)
    }
}

impl Inspector {
    /// Advisory locks that are held, by namespace and name.
    ///
    /// # Errors
    /// As for the async method.
    pub fn locks(&self, filter: &Filter) -> Result<Vec<HeldLock>> {
        block_on(self.0.locks(filter))
    }

    /// Leases that are held, by namespace and key.
    ///
    /// # Errors
    /// As for the async method.
    pub fn leases(&self, filter: &Filter) -> Result<Vec<HeldLease>> {
        block_on(self.0.leases(filter))
    }

    /// Who waits for which lock and who is in the way; see
    /// [`Inspector::waiters`](crate::admin::Inspector::waiters).
    ///
    /// # Errors
    /// As for the async method.
    pub fn waiters(&self, filter: &Filter) -> Result<Vec<Waiter>> {
        block_on(self.0.waiters(filter))
    }

    /// Jobs that run.
    ///
    /// # Errors
    /// As for the async method.
    pub fn running(&self, filter: &Filter) -> Result<Vec<RunningJob>> {
        block_on(self.0.running(filter))
    }

    /// How often locks were not free for the callers of this backend; see
    /// [`Inspector::contention`](crate::admin::Inspector::contention).
    ///
    /// # Errors
    /// As for the async method.
    pub fn contention(&self, filter: &Filter) -> Result<Vec<Contention>> {
        self.0.contention(filter)
    }

    /// What operators did, the latest first: among the latest 20,000 entries of all namespaces.
    ///
    /// # Errors
    /// As for the async method.
    pub fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>> {
        block_on(self.0.audit(filter))
    }

    /// Jobs of a queue in a state, page by page; see
    /// [`Inspector::jobs`](crate::admin::Inspector::jobs).
    ///
    /// # Errors
    /// As for the async method.
    pub fn jobs(&self, filter: &JobFilter) -> Result<JobPage> {
        block_on(self.0.jobs(filter))
    }

    /// A job with its attempts; see [`Inspector::job`](crate::admin::Inspector::job).
    ///
    /// # Errors
    /// As for the async method.
    pub fn job(&self, id: i64, payload: bool) -> Result<Option<JobDetails>> {
        block_on(self.0.job(id, payload))
    }

    /// Queues that have something in them; see [`Inspector::queues`](crate::admin::Inspector::queues).
    ///
    /// # Errors
    /// As for the async method.
    pub fn queues(&self, filter: &Filter, after: Option<(&str, &str)>) -> Result<Vec<FoundQueue>> {
        block_on(self.0.queues(filter, after))
    }

    /// Schedulers in the order of their names; see
    /// [`Inspector::schedulers`](crate::admin::Inspector::schedulers).
    ///
    /// # Errors
    /// As for the async method.
    pub fn schedulers(&self, after: &str, most: usize) -> Result<Vec<String>> {
        block_on(self.0.schedulers(after, most))
    }

    /// Names of jobs that are paused in a queue; see
    /// [`Inspector::paused_names`](crate::admin::Inspector::paused_names).
    ///
    /// # Errors
    /// As for the async method.
    pub fn paused_names(&self, queue: &str, most: usize) -> Result<Vec<PausedName>> {
        block_on(self.0.paused_names(queue, most))
    }

    /// What became of the attempts at jobs of a queue, by the minute or by the hour; see
    /// [`Inspector::history`](crate::admin::Inspector::history).
    ///
    /// # Errors
    /// As for the async method.
    pub fn history(
        &self,
        queue: &str,
        name: Option<&str>,
        step: HistoryStep,
    ) -> Result<Vec<HistoryPoint>> {
        block_on(self.0.history(queue, name, step))
    }

    /// Rate limits in the order of their keys; see
    /// [`Inspector::limits`](crate::admin::Inspector::limits).
    ///
    /// # Errors
    /// As for the async method.
    pub fn limits(&self, after: &str, most: usize) -> Result<Vec<LimitLevel>> {
        block_on(self.0.limits(after, most))
    }

    /// Worker numbers that are held; see
    /// [`Inspector::worker_numbers`](crate::admin::Inspector::worker_numbers).
    ///
    /// # Errors
    /// As for the async method.
    pub fn worker_numbers(&self, most: usize) -> Result<Vec<WorkerNumber>> {
        block_on(self.0.worker_numbers(most))
    }
}

/// An [operator](crate::admin::Operator) for blocking callers.
#[derive(Clone, Debug)]
pub struct Operator(Arc<dyn crate::admin::Operator>);

impl From<Arc<dyn crate::admin::Operator>> for Operator {
    fn from(operator: Arc<dyn crate::admin::Operator>) -> Self {
        Self(operator)
    }
}

impl Operator {
    /// Takes a lease from whoever holds it; see
    /// [`Operator::release_lease`](crate::admin::Operator::release_lease).
    ///
    /// # Errors
    /// As for the async method.
    pub fn release_lease(&self, key: impl Into<Key>, reason: &str) -> Result<Vec<String>> {
        block_on(self.0.release_lease(key.into(), reason))
    }

    /// Ends the sessions that hold a lock; see
    /// [`Operator::terminate_holder`](crate::admin::Operator::terminate_holder).
    ///
    /// # Errors
    /// As for the async method.
    pub fn terminate_holder(
        &self,
        key: impl Into<Key>,
        reason: &str,
    ) -> Result<Vec<TerminatedSession>> {
        block_on(self.0.terminate_holder(key.into(), reason))
    }

    /// Cancels a job, waiting or running; see
    /// [`Operator::cancel_job`](crate::admin::Operator::cancel_job).
    ///
    /// # Errors
    /// As for the async method.
    pub fn cancel_job(&self, queue: &str, id: i64, reason: &str) -> Result<bool> {
        block_on(self.0.cancel_job(queue, id, reason))
    }

    /// Changes a job that waits; see
    /// [`Operator::edit_job`](crate::admin::Operator::edit_job).
    ///
    /// # Errors
    /// As for the async method.
    pub fn edit_job(&self, queue: &str, id: i64, edit: JobEdit, reason: &str) -> Result<bool> {
        block_on(self.0.edit_job(queue, id, edit, reason))
    }

    /// Cancels all jobs that a filter matches; see
    /// [`Operator::cancel_jobs`](crate::admin::Operator::cancel_jobs).
    ///
    /// # Errors
    /// As for the async method.
    pub fn cancel_jobs(&self, filter: &JobFilter, reason: &str) -> Result<MatchedJobs> {
        block_on(self.0.cancel_jobs(filter, reason))
    }

    /// Changes all jobs that a filter matches and that wait; see
    /// [`Operator::edit_jobs`](crate::admin::Operator::edit_jobs).
    ///
    /// # Errors
    /// As for the async method.
    pub fn edit_jobs(
        &self,
        filter: &JobFilter,
        edit: JobEdit,
        reason: &str,
    ) -> Result<MatchedJobs> {
        block_on(self.0.edit_jobs(filter, edit, reason))
    }

    /// Records an act that is done by other means; see
    /// [`Operator::record`](crate::admin::Operator::record).
    ///
    /// # Errors
    /// As for the async method.
    pub fn record(&self, action: &str, target: &str, reason: &str) -> Result<()> {
        block_on(self.0.record(action, target, reason))
    }

    /// Clears the way for a session until the scope is
    /// [finished](PriorityScope::finish_blocking) or dropped; see
    /// [`Operator::prioritize`](crate::admin::Operator::prioritize).
    ///
    /// # Errors
    /// As for the async method.
    pub fn prioritize(&self, pid: i64, priority: Priority) -> Result<PriorityScope> {
        self.0.prioritize(pid, priority)
    }
}
