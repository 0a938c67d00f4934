//! Inspectors and operators, called through generics.

use async_trait::async_trait;
use lockapi::admin::{
    AuditEntry, Contention, Filter, FoundQueue, HeldLease, HeldLock, Inspector, JobDetails,
    JobEdit, JobFilter, JobPage, LimitLevel, MatchedJobs, Operator, PausedName, Priority,
    PriorityScope, RunningJob, TerminatedSession, Waiter, WorkerNumber,
};
use lockapi::queue::{HistoryPoint, HistoryStep};
use lockapi::{Key, Result};

use super::Through;

#[async_trait]
impl<I: Inspector + ?Sized> Inspector for Through<I> {
    async fn locks(&self, filter: &Filter) -> Result<Vec<HeldLock>> {
        self.0.locks(filter).await
    }

    async fn leases(&self, filter: &Filter) -> Result<Vec<HeldLease>> {
        self.0.leases(filter).await
    }

    async fn waiters(&self, filter: &Filter) -> Result<Vec<Waiter>> {
        self.0.waiters(filter).await
    }

    async fn running(&self, filter: &Filter) -> Result<Vec<RunningJob>> {
        self.0.running(filter).await
    }

    fn contention(&self, filter: &Filter) -> Result<Vec<Contention>> {
        self.0.contention(filter)
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>> {
        self.0.audit(filter).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<JobPage> {
        self.0.jobs(filter).await
    }

    async fn job(&self, id: i64, payload: bool) -> Result<Option<JobDetails>> {
        self.0.job(id, payload).await
    }

    async fn queues(
        &self,
        filter: &Filter,
        after: Option<(&str, &str)>,
    ) -> Result<Vec<FoundQueue>> {
        self.0.queues(filter, after).await
    }

    async fn schedulers(&self, after: &str, most: usize) -> Result<Vec<String>> {
        self.0.schedulers(after, most).await
    }

    async fn paused_names(&self, queue: &str, most: usize) -> Result<Vec<PausedName>> {
        self.0.paused_names(queue, most).await
    }

    async fn history(
        &self,
        queue: &str,
        name: Option<&str>,
        step: HistoryStep,
    ) -> Result<Vec<HistoryPoint>> {
        self.0.history(queue, name, step).await
    }

    async fn limits(&self, after: &str, most: usize) -> Result<Vec<LimitLevel>> {
        self.0.limits(after, most).await
    }

    async fn worker_numbers(&self, most: usize) -> Result<Vec<WorkerNumber>> {
        self.0.worker_numbers(most).await
    }
}

#[async_trait]
impl<O: Operator + ?Sized> Operator for Through<O> {
    async fn release_lease(&self, key: Key, reason: &str) -> Result<Vec<String>> {
        self.0.release_lease(key, reason).await
    }

    async fn terminate_holder(&self, key: Key, reason: &str) -> Result<Vec<TerminatedSession>> {
        self.0.terminate_holder(key, reason).await
    }

    async fn cancel_job(&self, queue: &str, id: i64, reason: &str) -> Result<bool> {
        self.0.cancel_job(queue, id, reason).await
    }

    async fn edit_job(&self, queue: &str, id: i64, edit: JobEdit, reason: &str) -> Result<bool> {
        self.0.edit_job(queue, id, edit, reason).await
    }

    async fn cancel_jobs(&self, filter: &JobFilter, reason: &str) -> Result<MatchedJobs> {
        self.0.cancel_jobs(filter, reason).await
    }

    async fn edit_jobs(
        &self,
        filter: &JobFilter,
        edit: JobEdit,
        reason: &str,
    ) -> Result<MatchedJobs> {
        self.0.edit_jobs(filter, edit, reason).await
    }

    async fn record(&self, action: &str, target: &str, reason: &str) -> Result<()> {
        self.0.record(action, target, reason).await
    }

    fn prioritize(&self, pid: i64, priority: Priority) -> Result<PriorityScope> {
        self.0.prioritize(pid, priority)
    }
}
